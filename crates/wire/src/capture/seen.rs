//! A captured RoCEv2 packet. A receiver refuses an incomplete packet; this decoder returns the part that was
//! captured.

use core::fmt;

use super::{Link, LinkType};
use crate::bth::Bth;
use crate::drop::DropReason;
use crate::eth::EtherType;
use crate::icrc::{ICRC_LEN, icrc_of_frame};
use crate::ip::{Ip, Ipv4, Ipv6, PROTOCOL_UDP};
use crate::packet::Packet;
use crate::udp::{ROCE_PORT, Udp};

/// A captured packet with its outer headers.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Link layer.
    pub link: Link<'a>,
    /// IP header.
    pub ip: Ip,
    /// UDP header.
    pub udp: Udp,
    /// BTH, extension headers and payload as far as captured. `Err` is the reason why a packet to the RoCE
    /// port is malformed.
    pub packet: Result<Packet<'a>, DropReason>,
    /// The base transport header; also present if the rest of the packet is malformed.
    pub bth: Option<Bth>,
    /// The captured bytes from the IP header on.
    pub ip_packet: &'a [u8],
    /// Length of the UDP payload on the wire, in bytes. The capture may hold fewer.
    pub udp_payload_len: usize,
    /// The captured part of the UDP payload.
    pub udp_payload: &'a [u8],
}

/// Result of checking the invariant CRC of a captured packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IcrcCheck {
    /// The ICRC is correct.
    Good,
    /// The ICRC is wrong.
    Bad {
        /// The ICRC computed from the packet's bytes.
        want: u32,
    },
    /// The capture holds only the front of the packet, so the ICRC cannot be checked.
    Cut,
}

/// Reason why a captured packet is not a RoCEv2 packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotRoce {
    /// The link type of the capture is unknown, or the packet is shorter than its link layer.
    Link,
    /// The Ethernet type is this one, neither IPv4 nor IPv6.
    EtherType(EtherType),
    /// The IP header is malformed or has options, or the packet is a fragment.
    Ip,
    /// The IP protocol number is this one, not UDP.
    Protocol(u8),
    /// The UDP destination port is this one, not 4791.
    Port(u16),
}

impl fmt::Display for NotRoce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link => f.write_str("no known link layer"),
            Self::EtherType(ether_type) => write!(f, "Ethernet type {ether_type}"),
            Self::Ip => f.write_str("an IP header with options, of a fragment, or cut"),
            Self::Protocol(protocol) => write!(f, "IP protocol {protocol}"),
            Self::Port(port) => write!(f, "UDP port {port}"),
        }
    }
}

impl<'a> Seen<'a> {
    /// Decodes a captured packet.
    ///
    /// # Errors
    /// [`NotRoce`] if it is not a UDP datagram for the RoCE port.
    #[inline]
    pub fn parse(link_type: LinkType, bytes: &'a [u8]) -> Result<Self, NotRoce> {
        let link = link_type.split(bytes).ok_or(NotRoce::Link)?;
        let (ip, ip_len, behind) = match link.ether_type {
            EtherType::IPV4 => {
                let (bytes, rest) = link.rest.split_first_chunk().ok_or(NotRoce::Ip)?;
                let ip = Ipv4::parse(bytes);
                if ip.version != 4 || ip.ihl != 5 || ip.is_fragment() {
                    return Err(NotRoce::Ip);
                }
                (Ip::V4(ip), usize::from(ip.total_len), rest)
            }
            EtherType::IPV6 => {
                let (bytes, rest) = link.rest.split_first_chunk().ok_or(NotRoce::Ip)?;
                let ip = Ipv6::parse(bytes);
                if ip.version != 6 {
                    return Err(NotRoce::Ip);
                }
                (Ip::V6(ip), Ipv6::LEN + usize::from(ip.payload_len), rest)
            }
            other => return Err(NotRoce::EtherType(other)),
        };
        if ip.protocol() != PROTOCOL_UDP {
            return Err(NotRoce::Protocol(ip.protocol()));
        }
        let (udp, rest) = behind.split_first_chunk().ok_or(NotRoce::Ip)?;
        let udp = Udp::parse(udp);
        if udp.dst_port != ROCE_PORT {
            return Err(NotRoce::Port(udp.dst_port));
        }
        let ip_header_len = link.rest.len() - behind.len();
        // The payload length that both headers allow. Ethernet padding or a frame check sequence may follow
        // it.
        let by_ip = ip_len.saturating_sub(ip_header_len + Udp::LEN);
        let udp_payload_len = usize::from(udp.length).saturating_sub(Udp::LEN).min(by_ip);
        let udp_payload = rest.get(..udp_payload_len).unwrap_or(rest);
        Ok(Self {
            link,
            ip,
            udp,
            packet: Packet::parse_cut(udp_payload, udp_payload_len),
            bth: udp_payload.first_chunk().map(Bth::parse),
            ip_packet: link.rest.get(..ip_len).unwrap_or(link.rest),
            udp_payload_len,
            udp_payload,
        })
    }

    /// Returns whether the capture holds the whole packet.
    #[must_use]
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.udp_payload.len() == self.udp_payload_len
    }

    /// Returns the length of the payload on the wire in bytes, without pad. `Packet::payload` returns the
    /// captured part.
    #[must_use]
    #[inline]
    pub fn payload_len(&self) -> usize {
        let Ok(packet) = self.packet else { return 0 };
        let around = packet.row().header_len() + usize::from(packet.bth.pad_cnt) + ICRC_LEN;
        self.udp_payload_len.saturating_sub(around)
    }

    /// Checks the invariant CRC.
    #[must_use]
    #[inline]
    pub fn icrc(&self) -> IcrcCheck {
        let (true, Some((_, got))) = (self.is_whole(), self.udp_payload.split_last_chunk::<ICRC_LEN>())
        else {
            return IcrcCheck::Cut;
        };
        match icrc_of_frame(self.ip_packet) {
            Some(want) if want == u32::from_le_bytes(*got) => IcrcCheck::Good,
            Some(want) => IcrcCheck::Bad { want },
            None => IcrcCheck::Cut,
        }
    }

    /// Returns the ECN bits of the IP header. 3 means that a router marked congestion.
    #[must_use]
    #[inline]
    pub fn ecn(&self) -> u8 {
        3 & match self.ip {
            Ip::V4(ip) => ip.tos,
            Ip::V6(ip) => ip.traffic_class,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::opcode::Opcode;
    use crate::reth::Reth;

    /// Vector V2 of the ICRC vectors: an RDMA WRITE Only of 8 bytes over IPv6.
    const WRITE: &str = "02000000000202000000000186dd66a12345003011402001\
        0db800000000000000000000000120010db8000000000000000000000002d23412b700304c7b0a00ffff000000ab80ffffff\
        00007f12345670000000a1b2000000080001020304050607bc3c5997";

    fn frame() -> Vec<u8> {
        let digits: Vec<u8> = WRITE.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|p| u8::from_str_radix(core::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn the_icrc_of_a_whole_packet_is_checked() {
        let mut frame = frame();
        let seen = Seen::parse(LinkType::ETHERNET, &frame).unwrap();
        assert_eq!((seen.icrc(), seen.payload_len(), seen.ecn()), (IcrcCheck::Good, 8, 2));
        let at = frame.len() - 6;
        frame[at] ^= 1;
        let seen = Seen::parse(LinkType::ETHERNET, &frame).unwrap();
        assert!(matches!(seen.icrc(), IcrcCheck::Bad { .. }));
    }

    #[test]
    fn bytes_after_the_udp_payload_are_ignored() {
        let mut frame = frame();
        frame.extend([0xee; 9]);
        let seen = Seen::parse(LinkType::ETHERNET, &frame).unwrap();
        assert_eq!((seen.icrc(), seen.payload_len()), (IcrcCheck::Good, 8));
    }

    /// Cuts the frame at every length and checks which headers are still decoded.
    #[test]
    fn a_cut_packet_shows_every_header_that_was_captured() {
        let frame = frame();
        for len in 0..frame.len() {
            let Ok(seen) = Seen::parse(LinkType::ETHERNET, &frame[..len]) else {
                assert!(len < 62, "{len}");
                continue;
            };
            assert_eq!(seen.icrc(), IcrcCheck::Cut, "{len}");
            let Ok(packet) = seen.packet else {
                assert!(len < 74, "{len}");
                continue;
            };
            assert_eq!(packet.bth.opcode, Opcode::RC_WRITE_ONLY);
            assert_eq!(packet.reth().map(|reth: Reth| reth.dma_len), (len >= 90).then_some(8), "{len}");
            assert_eq!((packet.payload().len(), seen.payload_len()), (len.saturating_sub(90).min(8), 8));
        }
    }
}
