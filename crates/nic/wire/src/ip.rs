//! IPv4 and IPv6 headers, and the IPv4 header checksum (RFC 791, 8200, 1071).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array, put, u16_at, u32_at};
use crate::eth::EtherType;

/// The protocol number of UDP, in either version of IP.
pub const PROTOCOL_UDP: u8 = 17;

/// IPv4 header without options, the only form that RoCEv2 allows (RFC 791).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv4 {
    /// Version: 4.
    pub version: u8,
    /// Header length in units of 4 bytes: 5, or more if options follow.
    pub ihl: u8,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
    /// Length of header and payload, in bytes.
    pub total_len: u16,
    /// Identification. The ICRC covers it.
    pub id: u16,
    /// Flags: reserved bit, DF, MF, from the highest bit down. 2 is DF alone.
    pub flags: u8,
    /// Fragment offset in units of 8 bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Header checksum; see [`Ipv4::with_checksum`].
    pub checksum: u16,
    /// Address of the sender.
    pub src: Ipv4Addr,
    /// Address of the receiver.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 20;

    /// The `flags` of every RoCEv2 packet: don't fragment.
    pub const DONT_FRAGMENT: u8 = 2;

    /// Returns the header of a UDP datagram with DF set. `udp_len` is its length in bytes with the UDP
    /// header; other fields are 0.
    #[must_use]
    pub const fn udp(src: Ipv4Addr, dst: Ipv4Addr, ttl: u8, udp_len: u16) -> Self {
        Self {
            version: 4,
            ihl: 5,
            tos: 0,
            total_len: udp_len.saturating_add(Self::LEN as u16),
            id: 0,
            flags: Self::DONT_FRAGMENT,
            fragment_offset: 0,
            ttl,
            protocol: PROTOCOL_UDP,
            checksum: 0,
            src,
            dst,
        }
    }

    /// Decodes the wire format.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let fragment = u16_at(bytes, 6);
        Self {
            version: bytes[0] >> 4,
            ihl: bytes[0] & 0xf,
            tos: bytes[1],
            total_len: u16_at(bytes, 2),
            id: u16_at(bytes, 4),
            flags: (fragment >> 13) as u8,
            fragment_offset: fragment & 0x1fff,
            ttl: bytes[8],
            protocol: bytes[9],
            checksum: u16_at(bytes, 10),
            src: array(bytes, 12).into(),
            dst: array(bytes, 16).into(),
        }
    }

    /// Encodes the header. Values wider than their field are cut.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[0] = self.version << 4 | self.ihl & 0xf;
        bytes[1] = self.tos;
        put(bytes, 2, self.total_len.to_be_bytes());
        put(bytes, 4, self.id.to_be_bytes());
        let fragment = u16::from(self.flags & 7) << 13 | self.fragment_offset & 0x1fff;
        put(bytes, 6, fragment.to_be_bytes());
        bytes[8] = self.ttl;
        bytes[9] = self.protocol;
        put(bytes, 10, self.checksum.to_be_bytes());
        put(bytes, 12, self.src.octets());
        put(bytes, 16, self.dst.octets());
    }

    /// Returns the same header with the correct checksum.
    #[must_use]
    pub fn with_checksum(self) -> Self {
        let mut bytes = [0; Self::LEN];
        Self { checksum: 0, ..self }.emit(&mut bytes);
        Self { checksum: !fold(sum(&bytes)), ..self }
    }

    /// Returns whether the checksum is correct.
    #[must_use]
    pub fn checksum_ok(&self) -> bool {
        let mut bytes = [0; Self::LEN];
        self.emit(&mut bytes);
        fold(sum(&bytes)) == 0xffff
    }

    /// Returns whether this is a fragment of a larger datagram.
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.flags & 1 != 0 || self.fragment_offset != 0
    }
}

impl fmt::Display for Ipv4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "IPv4 {} > {} Len={} ID={:#06x} TTL={} TOS={:#04x}",
            self.src, self.dst, self.total_len, self.id, self.ttl, self.tos
        )
    }
}

/// IPv6 header (RFC 8200).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ipv6 {
    /// Version: 6.
    pub version: u8,
    /// DSCP in the upper six bits, ECN in the lower two.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Length of everything after this header, in bytes.
    pub payload_len: u16,
    /// [`PROTOCOL_UDP`] in RoCEv2; extension headers are not allowed.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Address of the sender.
    pub src: Ipv6Addr,
    /// Address of the receiver.
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 40;

    /// Returns the header of a UDP datagram. `udp_len` is its length in bytes with the UDP header; other
    /// fields are 0.
    #[must_use]
    pub const fn udp(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, udp_len: u16) -> Self {
        Self {
            version: 6,
            traffic_class: 0,
            flow_label: 0,
            payload_len: udp_len,
            next_header: PROTOCOL_UDP,
            hop_limit,
            src,
            dst,
        }
    }

    /// Decodes the wire format.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let first = u32_at(bytes, 0);
        Self {
            version: (first >> 28) as u8,
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: u16_at(bytes, 4),
            next_header: bytes[6],
            hop_limit: bytes[7],
            src: array::<16>(bytes, 8).into(),
            dst: array::<16>(bytes, 24).into(),
        }
    }

    /// Encodes the header. Values wider than their field are cut.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let first =
            u32::from(self.version) << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put(bytes, 0, first.to_be_bytes());
        put(bytes, 4, self.payload_len.to_be_bytes());
        bytes[6] = self.next_header;
        bytes[7] = self.hop_limit;
        put(bytes, 8, self.src.octets());
        put(bytes, 24, self.dst.octets());
    }
}

impl fmt::Display for Ipv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "IPv6 {} > {} Len={} HopLimit={} TrafficClass={:#04x} FlowLabel={:#07x}",
            self.src, self.dst, self.payload_len, self.hop_limit, self.traffic_class, self.flow_label
        )
    }
}

/// An IP header of either version.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ip {
    /// IPv4.
    V4(Ipv4),
    /// IPv6.
    V6(Ipv6),
}

impl Ip {
    /// Splits a packet into its IP header and the payload, which is cut to the length that the header states.
    /// Returns `None` if the packet is shorter than stated, or has options or is a fragment, which RoCEv2
    /// excludes.
    #[must_use]
    pub fn split(ether_type: EtherType, packet: &[u8]) -> Option<(Self, &[u8])> {
        match ether_type {
            EtherType::IPV4 => {
                let (bytes, rest) = packet.split_first_chunk()?;
                let ip = Ipv4::parse(bytes);
                if ip.version != 4 || ip.ihl != 5 || ip.is_fragment() {
                    return None;
                }
                let len = usize::from(ip.total_len).checked_sub(Ipv4::LEN)?;
                Some((Self::V4(ip), rest.get(..len)?))
            }
            EtherType::IPV6 => {
                let (bytes, rest) = packet.split_first_chunk()?;
                let ip = Ipv6::parse(bytes);
                if ip.version != 6 {
                    return None;
                }
                Some((Self::V6(ip), rest.get(..usize::from(ip.payload_len))?))
            }
            _ => None,
        }
    }

    /// Returns the address of the sender.
    #[must_use]
    pub const fn src(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.src),
            Self::V6(ip) => IpAddr::V6(ip.src),
        }
    }

    /// Returns the address of the receiver.
    #[must_use]
    pub const fn dst(&self) -> IpAddr {
        match self {
            Self::V4(ip) => IpAddr::V4(ip.dst),
            Self::V6(ip) => IpAddr::V6(ip.dst),
        }
    }

    /// Returns the protocol number of the payload.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        match self {
            Self::V4(ip) => ip.protocol,
            Self::V6(ip) => ip.next_header,
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(ip) => ip.fmt(f),
            Self::V6(ip) => ip.fmt(f),
        }
    }
}

/// Returns the sum of the 16-bit words in `bytes`. An odd last byte is the upper half of a word (RFC 1071).
/// Sums of several ranges may be added if all ranges but the last have even length.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks_exact(2);
    let odd = pairs.remainder().first().map_or(0, |&byte| u64::from(byte) << 8);
    pairs.fold(odd, |sum, pair| sum + u64::from(u16_at(pair, 0)))
}

/// Folds a sum to 16 bits with end-around carry, without the final inversion.
pub(crate) const fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The IP header of vector V1: 192.0.2.1 to 192.0.2.2, 60 bytes, identification 0x1234.
    const HEADER: [u8; 20] =
        [0x45, 0x02, 0, 0x3c, 0x12, 0x34, 0x40, 0, 0x40, 0x11, 0xa4, 0x77, 0xc0, 0, 2, 1, 0xc0, 0, 2, 2];

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; Ipv4::LEN], |bytes| {
            let mut out = [0; Ipv4::LEN];
            Ipv4::parse(bytes).emit(&mut out);
            out
        });
        crate::bytes::check_every_bit([0; Ipv6::LEN], |bytes| {
            let mut out = [0; Ipv6::LEN];
            Ipv6::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn a_known_header_has_the_checksum_we_compute() {
        let ip = Ipv4::parse(&HEADER);
        let want = Ipv4 {
            tos: 2,
            id: 0x1234,
            ..Ipv4::udp(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2), 64, 40)
        };
        assert_eq!(ip, want.with_checksum());
        assert!(ip.checksum_ok());
        assert!(!Ipv4 { ttl: 63, ..ip }.checksum_ok());
    }

    #[test]
    fn options_and_fragments_are_refused() {
        let mut padded = [0; 64];
        padded[..20].copy_from_slice(&HEADER);
        let split = |packet: &[u8]| Ip::split(EtherType::IPV4, packet).map(|(_, payload)| payload.len());
        let packet: [u8; 60] = array(&padded, 0);
        assert_eq!(split(&packet), Some(40));
        assert_eq!(split(&padded), Some(40), "Ethernet padding is cut off");
        assert_eq!(split(&packet[..59]), None, "the packet is shorter than its header states");
        for (at, value, why) in
            [(0, 0x46, "options"), (0, 0x65, "version"), (6, 0x20, "MF"), (7, 1, "offset")]
        {
            let mut packet = packet;
            packet[at] = value;
            assert_eq!(split(&packet), None, "{why}");
        }
        assert_eq!(Ip::split(EtherType::ROCE_V1, &packet), None);
    }
}
