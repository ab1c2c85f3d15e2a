//! Datagram extended transport header: the sender's QP and the Q_Key (IBA 9.3.2).
//!
//! ```text
//! |                             q_key                             |
//! |   reserved    |                   src_qp                      |
//! ```

use core::fmt;

use crate::bytes::{put, put_u24, u24_at, u32_at};
use crate::keys::QKey;
use crate::psn::Qpn;

/// Datagram extended transport header (IBA 9.3.2).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Deth {
    /// Q_Key; the receiver drops the datagram unless it equals the Q_Key of the destination QP.
    pub q_key: QKey,
    /// QP number of the sender.
    pub src_qp: Qpn,
}

impl Deth {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { q_key: QKey(u32_at(bytes, 0)), src_qp: Qpn::new(u24_at(bytes, 5)) }
    }

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put(bytes, 0, self.q_key.0.to_be_bytes());
        bytes[4] = 0;
        put_u24(bytes, 5, self.src_qp.value());
    }
}

impl fmt::Display for Deth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DETH Q_Key={} SrcQP={}", self.q_key, self.src_qp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field_or_reserved() {
        crate::bytes::check_every_bit([0, 0, 0, 0, 0xff, 0, 0, 0], |bytes| {
            let mut out = [0; Deth::LEN];
            Deth::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn a_known_header_decodes() {
        let deth = Deth::parse(&[0x80, 0x01, 0, 0, 0, 0, 0, 5]);
        assert_eq!(deth, Deth { q_key: QKey::GSI, src_qp: Qpn::new(5) });
    }
}
