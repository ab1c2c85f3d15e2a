//! Draws the indices of queue pairs, which are the low halves of their QPNs.
//!
//! Each index comes once before any comes again, because the peer of a destroyed queue pair still knows its
//! number for some seconds (TIMEWAIT). The numbers seen so far do not tell the next one: the order is a
//! Feistel network of four rounds and more over the 16 bits, with SipHash under a random key as its function.

use std::hash::{BuildHasher, RandomState};

/// Rounds of the network. Four make a random permutation of a large set; a set of 65536 wants some more.
const ROUNDS: u8 = 8;

/// The order of the indices, and the next position in it.
#[derive(Debug)]
pub(super) struct QpNumbers {
    /// The key; `None` for ascending numbers.
    order: Option<(RandomState, u64)>,
    next: u16,
}

impl QpNumbers {
    /// A random order.
    pub(super) fn random() -> Self {
        Self { order: Some((RandomState::new(), sys::random_u64())), next: 0 }
    }

    /// Ascending numbers.
    pub(super) fn from_zero() -> Self {
        Self { order: None, next: 0 }
    }

    /// The next index.
    pub(super) fn draw(&mut self) -> u16 {
        let at = self.next;
        self.next = at.wrapping_add(1);
        let Some((hasher, key)) = &self.order else { return at };
        let [mut left, mut right] = at.to_be_bytes();
        for round in 0..ROUNDS {
            let mixed = left ^ hasher.hash_one((key, round, right)) as u8;
            (left, right) = (right, mixed);
        }
        u16::from_be_bytes([left, right])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_comes_once_and_none_tells_the_next() {
        let mut numbers = QpNumbers::random();
        let drawn: Vec<u16> = (0..=u16::MAX).map(|_| numbers.draw()).collect();
        let mut sorted = drawn.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..=u16::MAX));
        // One of 65536 steps has any given width, on average.
        for width in [1, 2, 0xff, 0x100] {
            let steps = drawn.windows(2).filter(|pair| pair[1].wrapping_sub(pair[0]) == width).count();
            assert!(steps < 20, "{steps} steps of {width}");
        }
        let mut others = QpNumbers::random();
        let equal = drawn.iter().filter(|index| others.draw() == **index).count();
        assert!(equal < 20, "{equal} of two orders are equal");
    }
}
