//! Atomic headers: the operands of an atomic request and the original value in its response (IBA 9.3.4,
//! 9.5.3).
//!
//! ```text
//! |                              va (64)                          |
//! |                             r_key                             |
//! |                         swap_or_add (64)                      |
//! |                           compare (64)                        |
//! ```

use core::fmt;

use crate::bytes::{put, u32_at, u64_at};
use crate::keys::Rkey;

/// Atomic extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AtomicEth {
    /// Virtual address of the eight bytes, a multiple of 8.
    pub va: u64,
    /// R_Key of the memory that contains the eight bytes.
    pub r_key: Rkey,
    /// New value of a Compare Swap; addend of a Fetch Add.
    pub swap_or_add: u64,
    /// Value that a Compare Swap expects; 0 and ignored in a Fetch Add.
    pub compare: u64,
}

impl AtomicEth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 28;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            va: u64_at(bytes, 0),
            r_key: Rkey(u32_at(bytes, 8)),
            swap_or_add: u64_at(bytes, 12),
            compare: u64_at(bytes, 20),
        }
    }

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put(bytes, 0, self.va.to_be_bytes());
        put(bytes, 8, self.r_key.0.to_be_bytes());
        put(bytes, 12, self.swap_or_add.to_be_bytes());
        put(bytes, 20, self.compare.to_be_bytes());
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "AtomicETH VA={:#018x} R_Key={} SwapOrAdd={:#x} Compare={:#x}",
            self.va, self.r_key, self.swap_or_add, self.compare
        )
    }
}

/// Atomic acknowledge extended transport header (IBA 9.5.3).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AtomicAckEth {
    /// Value of the eight bytes before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { original: u64::from_be_bytes(*bytes) }
    }

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.original.to_be_bytes();
    }
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AtomicAckETH Original={:#x}", self.original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; AtomicEth::LEN], |bytes| {
            let mut out = [0; AtomicEth::LEN];
            AtomicEth::parse(bytes).emit(&mut out);
            out
        });
        crate::bytes::check_every_bit([0; AtomicAckEth::LEN], |bytes| {
            let mut out = [0; AtomicAckEth::LEN];
            AtomicAckEth::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn swap_comes_before_compare() {
        let mut bytes = [0; AtomicEth::LEN];
        AtomicEth { va: 8, r_key: Rkey(1), swap_or_add: 2, compare: 3 }.emit(&mut bytes);
        assert_eq!((bytes[7], bytes[11], bytes[19], bytes[27]), (8, 1, 2, 3));
    }
}
