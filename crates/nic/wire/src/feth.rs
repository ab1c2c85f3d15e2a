//! Flush extended transport header: the placement that a FLUSH request asks for (IBA Annex A19).
//!
//! ```text
//! |                 reserved (26)                     |sel| placement |
//! ```

use core::fmt;

/// Flush extended transport header (IBA Annex A19).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Feth {
    /// Requested placement: [`Feth::GLOBAL_VISIBILITY`] and [`Feth::PERSISTENCE`], or-ed; 4 bits.
    pub placement: u8,
    /// Memory to flush: [`Feth::RANGE`] or [`Feth::WHOLE_MR`]; 2 bits.
    pub selectivity: u8,
}

impl Feth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Placement: earlier writes are visible to every reader of the memory.
    pub const GLOBAL_VISIBILITY: u8 = 1;
    /// Placement: earlier writes survive a power failure.
    pub const PERSISTENCE: u8 = 2;
    /// Selectivity: the range that the RETH names.
    pub const RANGE: u8 = 0;
    /// Selectivity: the whole memory region.
    pub const WHOLE_MR: u8 = 1;

    /// Decodes the header. Reserved bits are ignored.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { placement: bytes[3] & 0xf, selectivity: bytes[3] >> 4 & 3 }
    }

    /// Encodes the header. Both fields are cut to their width.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = [0, 0, 0, (self.selectivity & 3) << 4 | self.placement & 0xf];
    }
}

impl fmt::Display for Feth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FETH Placement={:#x} Selectivity={}", self.placement, self.selectivity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field_or_reserved() {
        crate::bytes::check_every_bit([0xff, 0xff, 0xff, 0xc0], |bytes| {
            let mut out = [0; Feth::LEN];
            Feth::parse(bytes).emit(&mut out);
            out
        });
    }
}
