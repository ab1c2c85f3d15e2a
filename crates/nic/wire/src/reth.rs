//! RDMA extended transport header: the memory range of a WRITE or READ (IBA 9.3.3).
//!
//! ```text
//! |                              va                               |
//! |                                                               |
//! |                             r_key                             |
//! |                            dma_len                            |
//! ```

use core::fmt;

use crate::bytes::{put, u32_at, u64_at};
use crate::keys::Rkey;

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reth {
    /// Virtual address of the first byte, at the responder.
    pub va: u64,
    /// R_Key of the memory region that contains the range.
    pub r_key: Rkey,
    /// Length of the whole message in bytes, at most 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 16;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { va: u64_at(bytes, 0), r_key: Rkey(u32_at(bytes, 8)), dma_len: u32_at(bytes, 12) }
    }

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put(bytes, 0, self.va.to_be_bytes());
        put(bytes, 8, self.r_key.0.to_be_bytes());
        put(bytes, 12, self.dma_len.to_be_bytes());
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RETH VA={:#018x} R_Key={} DMALen={}", self.va, self.r_key, self.dma_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; Reth::LEN], |bytes| {
            let mut out = [0; Reth::LEN];
            Reth::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn a_known_header_decodes() {
        let reth = Reth::parse(&[0, 0, 0x7f, 0x12, 0x34, 0x56, 0x70, 0, 0, 0, 0xa1, 0xb2, 0, 0, 0, 8]);
        assert_eq!(reth, Reth { va: 0x7f12_3456_7000, r_key: Rkey(0xa1b2), dma_len: 8 });
    }
}
