//! XRC extended transport header: the shared receive queue of a request (IBA Annex A14).

use core::fmt;

use crate::bytes::{put_u24, u24_at};

/// XRC extended transport header (IBA Annex A14).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Xrceth {
    /// Number of the XRC shared receive queue at the responder, 24 bits.
    pub srqn: u32,
}

impl Xrceth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header. Reserved bits are ignored.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { srqn: u24_at(bytes, 1) }
    }

    /// Encodes the low 24 bits of the number.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[0] = 0;
        put_u24(bytes, 1, self.srqn);
    }
}

impl fmt::Display for Xrceth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XRCETH SRQ={:#08x}", self.srqn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field_or_reserved() {
        crate::bytes::check_every_bit([0xff, 0, 0, 0], |bytes| {
            let mut out = [0; Xrceth::LEN];
            Xrceth::parse(bytes).emit(&mut out);
            out
        });
    }
}
