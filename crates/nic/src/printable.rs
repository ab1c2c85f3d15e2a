//! Text of other processes, made safe for a terminal.

/// Replaces characters that control a terminal, or the order of what it shows, by `\u{...}` with their
/// number: control characters, the line separators of Unicode, and the marks for the direction of text.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    safe
}

fn is_unsafe(c: char) -> bool {
    let is_direction_or_separator =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_direction_or_separator
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_controls_a_terminal_is_shown_as_numbers() {
        for (text, shown) in [
            ("ib_write_bw", "ib_write_bw"),
            ("\x1b]0;owned\x07", "\\u{1b}]0;owned\\u{7}"),
            ("a\r\nb\tc\x7f", "a\\u{d}\\u{a}b\\u{9}c\\u{7f}"),
            // A control sequence introducer in one character, and a reversal of the following text.
            ("\u{9b}2J", "\\u{9b}2J"),
            ("\u{202e}txt", "\\u{202e}txt"),
            ("größe 5 µs", "größe 5 µs"),
        ] {
            assert_eq!(printable(text), shown);
            assert_eq!(printable(shown), shown, "a second call changes nothing");
        }
    }
}
