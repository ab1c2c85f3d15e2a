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

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_does_not_fit_is_empty() {
        let mut text = Text::<8>::new();
        text.set(&[b"12345", b"678"]);
        assert_eq!(text.bytes(), b"12345678");
        text.set(&[b"12345", b"6789"]);
        assert_eq!(text.bytes(), b"");
    }
}
