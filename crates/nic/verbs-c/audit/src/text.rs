//! Text in an array.

/// Up to `N` bytes.
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Replaces the text by `parts`; if they do not fit, by nothing.
    pub(crate) fn set(&mut self, parts: &[&[u8]]) {
        self.len = 0;
        if !parts.iter().all(|part| self.push(part)) {
            self.len = 0;
        }
    }

    /// Appends `part`; returns false, and appends nothing, if it does not fit.
    pub(crate) fn push(&mut self, part: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(self.len..).and_then(|room| room.get_mut(..part.len())) else {
            return false;
        };
        room.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        self.len += part.len();
        true
    }

    /// Replaces what is not ASCII or controls a terminal by `?`: names of programs and libraries contain what
    /// others chose. A newline at the end stays.
    pub(crate) fn make_printable(&mut self) {
        let text = self.bytes.get_mut(..self.len).unwrap_or_default();
        let Some((last, text)) = text.split_last_mut() else { return };
        for byte in text.iter_mut().chain((*last != b'\n').then_some(last)) {
            if !matches!(byte, b' '..=b'~') {
                *byte = b'?';
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_controls_no_terminal() {
        for (given, shown) in [
            ("a b~\n", "a b~\n"),
            ("\u{1b}[31m\n", "?[31m\n"),
            ("a\nroxie: b\u{9b}\n", "a?roxie: b??\n"),
            ("x\r", "x?"),
        ] {
            let mut text = Text::<32>::new();
            text.set(&[given.as_bytes()]);
            text.make_printable();
            assert_eq!(text.bytes(), shown.as_bytes());
        }
    }

    #[test]
    fn a_text_that_does_not_fit_is_empty() {
        let mut text = Text::<8>::new();
        text.set(&[b"12345", b"678"]);
        assert_eq!(text.bytes(), b"12345678");
        text.set(&[b"12345", b"6789"]);
        assert_eq!(text.bytes(), b"");
    }
}
