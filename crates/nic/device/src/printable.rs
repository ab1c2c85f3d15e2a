//! Text of other processes, made safe for a terminal.

use wire::text::Printable;

/// Replaces characters that control a terminal, or the order of what it shows, by `\u{...}` with their
/// number, as [`Printable`] does.
#[must_use]
pub fn printable(text: &str) -> String {
    Printable(text).to_string()
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
