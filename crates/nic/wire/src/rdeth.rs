//! Reliable datagram extended transport header (IBA 9.3.1). roxie only decodes it.

use core::fmt;

use crate::bytes::{put_u24, u24_at};

/// Reliable datagram extended transport header (IBA 9.3.1).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rdeth {
    /// End-to-end context at the destination, 24 bits.
    pub ee_context: u32,
}

impl Rdeth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header. Reserved bits are ignored.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { ee_context: u24_at(bytes, 1) }
    }

    /// Encodes the low 24 bits of the context.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[0] = 0;
        put_u24(bytes, 1, self.ee_context);
    }
}

impl fmt::Display for Rdeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RDETH EEC={:#08x}", self.ee_context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field_or_reserved() {
        crate::bytes::check_every_bit([0xff, 0, 0, 0], |bytes| {
            let mut out = [0; Rdeth::LEN];
            Rdeth::parse(bytes).emit(&mut out);
            out
        });
    }
}
