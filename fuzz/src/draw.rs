//! Draws decisions from the bytes of the input. When they are used up, every decision is the first one.

use arbitrary::{Arbitrary, Unstructured};

/// The rest of an input.
pub(crate) struct Draw<'a>(Unstructured<'a>);

impl<'a> Draw<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns any value; zero at the end of the input.
    pub(crate) fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    /// Returns a number from 0 to `n - 1`. It uses one byte of input for `n` up to 256.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0.int_in_range(0..=n.saturating_sub(1)).unwrap_or_default()
    }

    /// Returns true in one of `n` cases; never at the end of the input.
    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == n - 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u32) as usize]
    }

    /// Returns up to `max` bytes of the input.
    pub(crate) fn bytes(&mut self, max: u32) -> &'a [u8] {
        let wanted = self.below(max + 1) as usize;
        let len = wanted.min(self.0.len());
        self.0.bytes(len).unwrap_or_default()
    }

    /// Returns the rest of the input.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0.take_rest()
    }
}
