//! Colours of text on a terminal, and what a terminal may get of text that others chose.

use std::borrow::Cow;

use wire::text::is_unsafe;

/// Meaning of a text, which decides its colour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tone {
    /// Works: green.
    Good,
    /// Works, with a caveat: yellow.
    Warn,
    /// Does not work: red.
    Bad,
    /// Headings: bold.
    Strong,
    /// Less important: dim.
    Faint,
    /// Uncoloured.
    Plain,
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Colours {
    /// No colours: files, pipes, `NO_COLOR`.
    #[default]
    None,
    /// Escape sequences of ECMA-48, for terminals.
    Ansi,
}

/// Where a colour ends, and where those of the tones begin: noncharacters of Unicode, which
/// [`Colours::lines`] replaces. The escape character is not among them, because other text may contain it.
const MARKS: [(char, &str); 6] = [
    ('\u{fdd0}', "\x1b[0m"),
    ('\u{fdd1}', "\x1b[32m"),
    ('\u{fdd2}', "\x1b[33m"),
    ('\u{fdd3}', "\x1b[31m"),
    ('\u{fdd4}', "\x1b[1m"),
    ('\u{fdd5}', "\x1b[2m"),
];

impl Colours {
    /// `text` between the marks of the colour of `tone`; [`Colours::lines`] makes escape sequences of them.
    #[must_use]
    pub fn paint(self, tone: Tone, text: &str) -> String {
        // The marks of the tones stand behind the one for the end, in the order of the tones.
        match MARKS.get(tone as usize + 1).filter(|_| self == Self::Ansi) {
            Some((mark, _)) => format!("{mark}{text}{}", MARKS[0].0),
            None => text.to_owned(),
        }
    }

    /// What a terminal may get of a text of several lines: colours, and `\u{...}` with their number in place
    /// of [unsafe characters](is_unsafe) other than newlines.
    #[must_use]
    pub fn lines(self, text: &str) -> Cow<'_, str> {
        if is_plain(text) { Cow::Borrowed(text) } else { Cow::Owned(self.shown(text, "\n")) }
    }

    /// As [`Colours::lines`] for one line: newlines, which a name may contain, are shown as numbers, too.
    #[must_use]
    pub fn line(self, text: &str) -> Cow<'_, str> {
        let is_safe = is_plain(text) && !text.contains('\n');
        if is_safe { Cow::Borrowed(text) } else { Cow::Owned(self.shown(text, "")) }
    }

    /// The text with marks replaced and unsafe characters shown as numbers, except those of `kept`.
    fn shown(self, text: &str, kept: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        for c in text.chars() {
            let colour = MARKS.iter().find(|(mark, _)| *mark == c && self == Self::Ansi);
            match colour {
                Some((_, sequence)) => shown.push_str(sequence),
                None if is_unsafe(c) && !kept.contains(c) => shown.extend(c.escape_unicode()),
                None => shown.push(c),
            }
        }
        shown
    }
}

/// Text that others chose without the control characters that a terminal obeys.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().filter(|c| !c.is_control()).collect()
}

/// JSON with escapes in place of [unsafe characters](is_unsafe) other than newlines: the same values. JSON as
/// such needs none for some of them, such as the marks for the direction of text.
#[must_use]
pub fn json(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        // All unsafe characters have numbers below 2^16.
        if is_unsafe(c) && c != '\n' { shown += &format!("\\u{:04x}", c as u32) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// True if all characters are printable ASCII or newlines. Looks at all bytes, also after the first other
/// one: so the compiler compares 16 at a time.
fn is_plain(text: &str) -> bool {
    let other = |byte: u8| u8::from(!(b' '..=b'~').contains(&byte) & (byte != b'\n'));
    text.bytes().fold(0, |others, byte| others | other(byte)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_coloured_only_for_a_terminal() {
        for (colours, tone, shown) in [
            (Colours::None, Tone::Bad, "NAK"),
            (Colours::Ansi, Tone::Plain, "NAK"),
            (Colours::Ansi, Tone::Bad, "\x1b[31mNAK\x1b[0m"),
            (Colours::Ansi, Tone::Strong, "\x1b[1mNAK\x1b[0m"),
        ] {
            let painted = colours.paint(tone, "NAK");
            assert_eq!((&*colours.line(&painted), &*colours.lines(&painted)), (shown, shown));
        }
    }

    #[test]
    fn other_text_can_neither_control_the_terminal_nor_begin_a_line() {
        let hostile = "a\x1b[31m\u{9b}2J\r\nb\u{202e}";
        for colours in [Colours::None, Colours::Ansi] {
            assert_eq!(colours.line(hostile), "a\\u{1b}[31m\\u{9b}2J\\u{d}\\u{a}b\\u{202e}");
            assert_eq!(colours.lines(hostile), "a\\u{1b}[31m\\u{9b}2J\\u{d}\nb\\u{202e}");
        }
        assert_eq!(Colours::None.line("\u{fdd3}red"), "\\u{fdd3}red");
        assert_eq!(Colours::None.line("größe 5 µs"), "größe 5 µs");
    }

    #[test]
    fn json_has_the_same_values() {
        let value = serde_json::json!({ "name\u{9b}": "\x1b\u{7f}\n\u{202e} ö" });
        let text = serde_json::to_string_pretty(&value).expect("a value");
        let shown = json(&text);
        assert!(!shown.chars().any(|c| is_unsafe(c) && c != '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).ok(), Some(value));
    }
}
