//! Colours of text on a terminal.

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

impl Colours {
    /// `text` in the colour of `tone`.
    #[must_use]
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match (self, tone) {
            (Self::None, _) | (_, Tone::Plain) => return text.to_owned(),
            (Self::Ansi, Tone::Good) => "32",
            (Self::Ansi, Tone::Warn) => "33",
            (Self::Ansi, Tone::Bad) => "31",
            (Self::Ansi, Tone::Strong) => "1",
            (Self::Ansi, Tone::Faint) => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_coloured_only_for_a_terminal() {
        assert_eq!(Colours::None.paint(Tone::Bad, "NAK"), "NAK");
        assert_eq!(Colours::Ansi.paint(Tone::Plain, "ACK"), "ACK");
        assert_eq!(Colours::Ansi.paint(Tone::Bad, "NAK"), "\x1b[31mNAK\x1b[0m");
    }
}
