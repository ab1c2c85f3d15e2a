//! Immediate data: four bytes from the sender's work request to the receiver's completion (IBA 9.3.6).

use core::fmt;

/// Immediate data extended transport header (IBA 9.3.6): the four bytes of `imm_data`, in the order in which
/// the application stored them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(*bytes)
    }

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.0;
    }
}

impl fmt::Display for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImmDt {:#010x}", u32::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; ImmDt::LEN], |bytes| {
            let mut out = [0; ImmDt::LEN];
            ImmDt::parse(bytes).emit(&mut out);
            out
        });
    }
}
