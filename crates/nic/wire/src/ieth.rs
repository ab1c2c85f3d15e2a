//! Invalidate extended transport header: the R_Key that a SEND with Invalidate invalidates (IBA 9.3.7).

use core::fmt;

use crate::keys::Rkey;

/// Invalidate extended transport header (IBA 9.3.7).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Ieth {
    /// R_Key of the receiver. The receiver invalidates it when the message is complete.
    pub r_key: Rkey,
}

impl Ieth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { r_key: Rkey(u32::from_be_bytes(*bytes)) }
    }

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.r_key.0.to_be_bytes();
    }
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IETH R_Key={}", self.r_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; Ieth::LEN], |bytes| {
            let mut out = [0; Ieth::LEN];
            Ieth::parse(bytes).emit(&mut out);
            out
        });
    }
}
