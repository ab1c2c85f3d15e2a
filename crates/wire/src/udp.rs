//! UDP: the port that says RoCEv2, and the source port that spreads flows over a network (RFC 768, Annex A17.9.2).

use core::fmt;

use crate::bytes::{put, u16_at};
use crate::psn::Qpn;

/// The destination port of every RoCEv2 packet.
pub const ROCE_PORT: u16 = 4791;

/// UDP header (RFC 768).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Udp {
    /// Flow entropy; any value must be accepted.
    pub src_port: u16,
    /// [`ROCE_PORT`] for RoCEv2.
    pub dst_port: u16,
    /// Header and payload.
    pub length: u16,
    /// 0 means none, which RoCEv2 allows over IPv6 too.
    pub checksum: u16,
}

impl Udp {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Decodes.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            src_port: u16_at(bytes, 0),
            dst_port: u16_at(bytes, 2),
            length: u16_at(bytes, 4),
            checksum: u16_at(bytes, 6),
        }
    }

    /// Encodes.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put(bytes, 0, self.src_port.to_be_bytes());
        put(bytes, 2, self.dst_port.to_be_bytes());
        put(bytes, 4, self.length.to_be_bytes());
        put(bytes, 6, self.checksum.to_be_bytes());
    }
}

impl fmt::Display for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP {} > {} Len={}", self.src_port, self.dst_port, self.length)
    }
}

/// The flow label of a connection that was given none: the same from both ends, because the product is.
#[must_use]
pub const fn flow_label(local: Qpn, remote: Qpn) -> u32 {
    let mut v = local.value() as u64 * remote.value() as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    v as u32 & 0xf_ffff
}

/// The UDP source port for a 20-bit flow label, in 0xc000..=0xffff (`ibv_flow_label_to_udp_sport`).
#[must_use]
pub const fn src_port(flow_label: u32) -> u16 {
    ((flow_label & 0x3fff) ^ ((flow_label & 0xf_c000) >> 14)) as u16 | 0xc000
}
