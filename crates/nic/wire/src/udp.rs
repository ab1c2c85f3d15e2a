//! UDP header, the port of RoCEv2, and source ports that spread flows over a network (RFC 768, Annex
//! A17.9.2).

use core::fmt;
use core::net::IpAddr;

use crate::bytes::{put, u16_at};
use crate::ip::{PROTOCOL_UDP, fold, sum};
use crate::psn::Qpn;

/// Destination port of every RoCEv2 packet.
pub const ROCE_PORT: u16 = 4791;

/// UDP header (RFC 768).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Udp {
    /// Source port: entropy for the flow. A receiver accepts every value.
    pub src_port: u16,
    /// Destination port: [`ROCE_PORT`] for RoCEv2.
    pub dst_port: u16,
    /// Length of header and payload, in bytes.
    pub length: u16,
    /// Checksum. 0 means that there is none, which RoCEv2 allows over IPv6 too.
    pub checksum: u16,
}

impl Udp {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 8;

    /// Decodes the wire format.
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

    /// Encodes into the wire format.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put(bytes, 0, self.src_port.to_be_bytes());
        put(bytes, 2, self.dst_port.to_be_bytes());
        put(bytes, 4, self.length.to_be_bytes());
        put(bytes, 6, self.checksum.to_be_bytes());
    }

    /// Splits a datagram into its UDP header and the payload, which is cut to the length that the header
    /// states. Returns `None` if the datagram is shorter than stated.
    #[must_use]
    pub fn split(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, rest) = datagram.split_first_chunk()?;
        let udp = Self::parse(bytes);
        Some((udp, rest.get(..usize::from(udp.length).checked_sub(Self::LEN)?)?))
    }

    /// Returns the same header with the correct checksum over the addresses, its other fields and `payload`.
    /// The result is never 0, because 0 means that there is no checksum.
    #[must_use]
    pub fn with_checksum(self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> Self {
        let checksum = match !fold(Self { checksum: 0, ..self }.sum(src, dst, payload)) {
            0 => 0xffff,
            checksum => checksum,
        };
        Self { checksum, ..self }
    }

    /// Returns whether the checksum is correct or absent.
    #[must_use]
    pub fn checksum_ok(&self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> bool {
        self.checksum == 0 || fold(self.sum(src, dst, payload)) == 0xffff
    }

    fn sum(&self, src: IpAddr, dst: IpAddr, payload: &[u8]) -> u64 {
        let address = |ip| match ip {
            IpAddr::V4(ip) => sum(&ip.octets()),
            IpAddr::V6(ip) => sum(&ip.octets()),
        };
        let mut header = [0; Self::LEN];
        self.emit(&mut header);
        address(src)
            + address(dst)
            + u64::from(PROTOCOL_UDP)
            + u64::from(self.length)
            + sum(&header)
            + sum(payload)
    }
}

impl fmt::Display for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP {} > {} Len={}", self.src_port, self.dst_port, self.length)
    }
}

/// Returns the flow label of a connection that was configured without one. Both ends compute the same value,
/// because the function is symmetric.
#[must_use]
pub const fn flow_label(local: Qpn, remote: Qpn) -> u32 {
    let mut v = local.value() as u64 * remote.value() as u64;
    v ^= v >> 20;
    v ^= v >> 40;
    v as u32 & 0xf_ffff
}

/// Returns the UDP source port for a 20-bit flow label, in 0xc000..=0xffff (`ibv_flow_label_to_udp_sport`).
#[must_use]
pub const fn src_port(flow_label: u32) -> u16 {
    ((flow_label & 0x3fff) ^ ((flow_label & 0xf_c000) >> 14)) as u16 | 0xc000
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; Udp::LEN], |bytes| {
            let mut out = [0; Udp::LEN];
            Udp::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn source_ports_agree_with_the_published_table() {
        for (local, remote, label, port) in [
            (0x00_0011, 0x00_0012, 0x0_0132, 0xc132),
            (0x12_3456, 0xab_cdef, 0xa_c3e3, 0xc3c8),
            (0xff_ffff, 0xff_ffff, 0xf_ff1e, 0xff21),
            (0x00_01a2, 0x00_01a3, 0x2_ac26, 0xec2c),
        ] {
            assert_eq!(flow_label(Qpn::new(local), Qpn::new(remote)), label);
            assert_eq!(flow_label(Qpn::new(remote), Qpn::new(local)), label);
            assert_eq!(src_port(label), port);
        }
        assert_eq!(src_port(0x1_2345), 0xe341);
        assert_eq!(src_port(0xf_ffff), 0xffc0);
    }

    proptest! {
        #[test]
        fn a_source_port_is_in_the_dynamic_range(label: u32) {
            prop_assert!(src_port(label) >= 0xc000);
        }

        #[test]
        fn a_computed_checksum_is_correct(
            src: [u8; 4], dst: [u8; 4], src_port: u16, payload in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let (src, dst) = (IpAddr::from(src), IpAddr::from(dst));
            let length = (Udp::LEN + payload.len()) as u16;
            let udp = Udp { src_port, dst_port: ROCE_PORT, length, checksum: 0 };
            let udp = udp.with_checksum(src, dst, &payload);
            prop_assert!(udp.checksum != 0 && udp.checksum_ok(src, dst, &payload));
            let off_by_one = Udp { src_port: src_port ^ 1, ..udp };
            prop_assert!(!off_by_one.checksum_ok(src, dst, &payload));
        }
    }

    /// The ICRC vector V2, which another implementation sent with a checksum.
    #[test]
    fn a_checksum_of_another_implementation_is_correct() {
        let node = |n| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n));
        let payload = [
            0x0a, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0xab, 0x80, 0xff, 0xff, 0xff, 0x00, 0x00, 0x7f, 0x12,
            0x34, 0x56, 0x70, 0x00, 0x00, 0x00, 0xa1, 0xb2, 0x00, 0x00, 0x00, 0x08, 0x00, 0x01, 0x02, 0x03,
            0x04, 0x05, 0x06, 0x07, 0xbc, 0x3c, 0x59, 0x97,
        ];
        let udp = Udp { src_port: 0xd234, dst_port: ROCE_PORT, length: 48, checksum: 0x4c7b };
        assert!(udp.checksum_ok(node(1), node(2), &payload));
        assert_eq!(Udp { checksum: 0, ..udp }.with_checksum(node(1), node(2), &payload), udp);
    }

    #[test]
    fn a_length_beyond_the_datagram_is_refused() {
        let mut datagram = [0; 12];
        for (length, want) in [(8, Some(0)), (12, Some(4)), (13, None), (7, None)] {
            put(&mut datagram, 4, u16::to_be_bytes(length));
            assert_eq!(Udp::split(&datagram).map(|(_, payload)| payload.len()), want);
        }
    }
}
