//! A captured RoCE packet. A receiver refuses an incomplete packet; this decoder returns the part that was
//! captured.

use super::tunnel::{self, Carrier};
use super::{DecodeAs, Link, NotRoce};
use crate::bth::Bth;
use crate::drop::DropReason;
use crate::icrc::{ICRC_LEN, icrc_of_frame, icrc_of_grh};
use crate::ip::Ip;
use crate::packet::Packet;
use crate::udp::Udp;

/// A captured packet with its outer headers.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Link layer, outside of all tunnels.
    pub link: Link<'a>,
    /// IP header inside of all tunnels; of RoCEv1 the GRH, which has the form of an IPv6 header. Of an
    /// InfiniBand packet without GRH, the addresses are its local identifiers: `::5`.
    pub ip: Ip,
    /// UDP header; `None` for RoCEv1 and InfiniBand.
    pub udp: Option<Udp>,
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
    /// Number of tunnels around the packet; [`tunnels`](super::tunnels) describes them.
    pub tunnels: u8,
    /// Network identifier of the innermost VXLAN or GENEVE tunnel.
    pub vni: Option<u32>,
    /// The packet, or a tunnel around it, is the first fragment of a larger one, which RoCEv2 excludes.
    pub is_fragment: bool,
    /// The packet has IP options or extension headers, which RoCEv2 excludes.
    pub has_options: bool,
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
    /// The ICRC cannot be checked: the capture holds only the front of the packet, or the packet has a form
    /// for which no ICRC is specified (IP options, fragments), or it is of RoCEv1 with another ICRC than
    /// computed.
    Cut,
}

impl<'a> Seen<'a> {
    /// Decodes a captured packet.
    ///
    /// # Errors
    /// [`NotRoce`] if it is neither a UDP datagram for the RoCE port nor a packet of RoCEv1 or InfiniBand, in
    /// any tunnel.
    #[inline]
    pub fn parse(decode_as: impl Into<DecodeAs>, bytes: &'a [u8]) -> Result<Self, NotRoce> {
        let DecodeAs { link_type, ports } = decode_as.into();
        let link = link_type.split(bytes).ok_or_else(|| link_type.refusal(bytes))?;
        let inside = tunnel::find(&link, &ports, |_| {})?;
        let (ip, rest) = (inside.ip, inside.rest);
        // The payload length that all headers allow. Ethernet padding or a frame check sequence may follow.
        let front = ip.bytes.len() - rest.len();
        let by_ip = ip.len.saturating_sub(front);
        let (udp, udp_payload_len) = match inside.carrier {
            Carrier::Udp(udp) => {
                let by_udp = usize::from(udp.length).saturating_sub(Udp::LEN);
                (Some(udp), if ip.is_first_fragment { by_udp } else { by_udp.min(by_ip) })
            }
            Carrier::Grh => (None, by_ip),
        };
        let udp_payload = rest.get(..udp_payload_len.min(by_ip)).unwrap_or(rest);
        Ok(Self {
            link,
            ip: ip.ip,
            udp,
            packet: Packet::parse_cut(udp_payload, udp_payload_len),
            bth: udp_payload.first_chunk().map(Bth::parse),
            ip_packet: ip.bytes.get(..ip.len).unwrap_or(ip.bytes),
            udp_payload_len,
            udp_payload,
            tunnels: inside.tunnels,
            vni: inside.vni,
            is_fragment: inside.is_fragment,
            has_options: ip.has_options,
        })
    }

    /// Returns the UDP source port; 0 for RoCEv1.
    #[must_use]
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.udp.map_or(0, |udp| udp.src_port)
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
        if self.udp.is_none() {
            let is_good = icrc_of_grh(self.ip_packet) == Some(u32::from_le_bytes(*got));
            return if is_good { IcrcCheck::Good } else { IcrcCheck::Cut };
        }
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
    use crate::capture::LinkType;
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
