//! RDMA extended transport header: where a WRITE lands or a READ comes from (IBA 9.3.3).
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
    /// First byte of the range, in the responder's virtual addresses.
    pub va: u64,
    /// Key of the memory the range lies in.
    pub r_key: Rkey,
    /// Bytes in the whole message, at most 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Decodes.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { va: u64_at(bytes, 0), r_key: Rkey(u32_at(bytes, 8)), dma_len: u32_at(bytes, 12) }
    }

    /// Encodes.
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
