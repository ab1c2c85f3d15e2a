//! Text from files, packets and other processes, made safe for a terminal.

use core::fmt::{self, Write};

/// Whether a character may control a terminal, or the order of what it shows: control characters, the line
/// separators of Unicode, the marks for the direction of text, and noncharacters, which have no meaning
/// between programs.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    let is_direction_or_separator =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_noncharacter = matches!(c, '\u{fdd0}'..='\u{fdef}');
    c.is_control() || is_direction_or_separator || is_noncharacter
}

/// Displays a text with `\u{...}` and their number in place of [unsafe characters](is_unsafe).
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match is_unsafe(c) {
            true => write!(f, "{}", c.escape_unicode()),
            false => f.write_char(c),
        })
    }
}
