//! Frames as on the wire, from the Ethernet header to the ICRC, and the checks of a receiver before a packet
//! reaches a queue pair.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use transport::PacketSource;
use wire::icrc::ICRC_LEN;
use wire::ip::PROTOCOL_UDP;
use wire::{DropReason, EtherType, Ethernet, Gid, IcrcHeader, Ip, Ipv4, Ipv6, Mac, Packet, ROCE_PORT, Udp};

/// Hop limit of all frames.
const TTL: u8 = 64;
/// First UDP source port (RFC 6335: dynamic ports).
pub(crate) const SRC_PORT: u16 = 0xc000;

/// ECN codepoints: ECN-capable, and congestion experienced (RFC 3168).
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// Returns the address of a node.
pub(crate) fn address(node: usize, v6: bool) -> IpAddr {
    let number = node as u16 + 1;
    if v6 {
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number))
    } else {
        let [high, low] = number.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(10, 0, high, low))
    }
}

pub(crate) fn mac(node: usize) -> Mac {
    let [high, low] = (node as u16 + 1).to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

/// Returns the node with this address.
pub(crate) fn node_of(gid: &Gid) -> usize {
    let [.., high, low] = gid.0;
    usize::from(u16::from_be_bytes([high, low])).wrapping_sub(1)
}

/// Header fields of a frame besides its packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) v6: bool,
    pub(crate) ip_id: u16,
    /// UDP source port.
    pub(crate) port: u16,
    /// Whether switches may mark the frame (ECT).
    pub(crate) ecn: bool,
}

/// Writes the frame of a packet (from BTH to pad) to `out`.
pub(crate) fn emit(out: &mut Vec<u8>, head: Head, packet: &[u8]) {
    let Head { from, to, v6, ip_id, port, ecn } = head;
    let tos = if ecn { ECT_0 } else { 0 };
    let (src_port, dst_port) = (port, ROCE_PORT);
    let ether_type = if v6 { EtherType::IPV6 } else { EtherType::IPV4 };
    let udp_len = (Udp::LEN + packet.len() + ICRC_LEN) as u16;
    out.clear();
    out.resize(Ethernet::LEN, 0);
    Ethernet { dst: mac(to), src: mac(from), ether_type }
        .emit(out.first_chunk_mut().expect("`out` has room for the header"));
    let icrc = match (address(from, v6), address(to, v6)) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let ip = Ipv4 { id: ip_id, tos, ..Ipv4::udp(src, dst, TTL, udp_len) }.with_checksum();
            let mut bytes = [0; Ipv4::LEN];
            ip.emit(&mut bytes);
            out.extend_from_slice(&bytes);
            IcrcHeader::v4(src, dst, src_port, dst_port)
        }
        (src, dst) => {
            let (src, dst) = (v6_of(src), v6_of(dst));
            let mut bytes = [0; Ipv6::LEN];
            Ipv6 { traffic_class: tos, ..Ipv6::udp(src, dst, TTL, udp_len) }.emit(&mut bytes);
            out.extend_from_slice(&bytes);
            IcrcHeader::v6(src, dst, src_port, dst_port)
        }
    };
    let mut bytes = [0; Udp::LEN];
    Udp { src_port, dst_port, length: udp_len, checksum: 0 }.emit(&mut bytes);
    out.extend_from_slice(&bytes);
    out.extend_from_slice(packet);
    out.extend_from_slice(&icrc.icrc(ip_id, packet).to_le_bytes());
}

/// Marks an ECN-capable frame as a router does. The checksum is updated by the difference (RFC 1624), so a
/// damaged frame stays damaged. Returns whether the frame was ECN-capable.
pub(crate) fn mark(frame: &mut [u8]) -> bool {
    let is_v4 = frame.get(12..14) == Some(&EtherType::IPV4.0.to_be_bytes());
    let Some(ip) = frame.get_mut(Ethernet::LEN..).and_then(|ip| ip.first_chunk_mut::<{ Ipv4::LEN }>()) else {
        return false;
    };
    let word = u16::from_be_bytes([ip[0], ip[1]]);
    // The traffic class of IPv6 starts four bits earlier.
    let shift = if is_v4 { 0 } else { 4 };
    if word >> shift & u16::from(CE) != u16::from(ECT_0) {
        return false;
    }
    let marked = word | u16::from(CE) << shift;
    ip[..2].copy_from_slice(&marked.to_be_bytes());
    if is_v4 {
        let checksum = u16::from_be_bytes([ip[10], ip[11]]);
        let sum = [!checksum, !word, marked].into_iter().map(u32::from).sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        ip[10..12].copy_from_slice(&(!folded as u16).to_be_bytes());
    }
    true
}

fn v6_of(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Checks a frame that arrived at `node`, and returns its packet with the sender's addresses.
///
/// # Errors
/// The reason for dropping the frame: it is for another node, or damaged.
pub(crate) fn open(frame: &[u8], node: usize, v6: bool) -> Result<(PacketSource, Packet<'_>), DropReason> {
    let (ethernet, tag, ether_type, packet) = Ethernet::split(frame).ok_or(DropReason::TooShort)?;
    if ethernet.dst != mac(node) || tag.is_some() {
        return Err(DropReason::NotForUs);
    }
    let (ip, datagram) = Ip::split(ether_type, packet).ok_or(DropReason::TooShort)?;
    let (udp, payload) = Udp::split(datagram).ok_or(DropReason::TooShort)?;
    if ip.protocol() != PROTOCOL_UDP || udp.dst_port != ROCE_PORT || ip.dst() != address(node, v6) {
        return Err(DropReason::NotForUs);
    }
    // No node sends a UDP checksum, so a checksum other than 0 is damage.
    if udp.checksum != 0 || usize::from(udp.length) != datagram.len() {
        return Err(DropReason::TooShort);
    }
    let (icrc, ip_id, tos, ttl) = match ip {
        Ip::V4(ip) if !ip.checksum_ok() => return Err(DropReason::TooShort),
        Ip::V4(ip) => (IcrcHeader::v4(ip.src, ip.dst, udp.src_port, ROCE_PORT), ip.id, ip.tos, ip.ttl),
        Ip::V6(ip) => {
            (IcrcHeader::v6(ip.src, ip.dst, udp.src_port, ROCE_PORT), 0, ip.traffic_class, ip.hop_limit)
        }
    };
    let packet = Packet::parse(payload)?;
    if icrc.verify(ip_id, payload)? != ip_id {
        return Err(DropReason::BadIcrc);
    }
    let (src, dst) = (ip.src().into(), ip.dst().into());
    Ok((PacketSource { src, src_port: udp.src_port, dst, tos, ttl }, packet))
}

/// Returns the packet of a frame of this crate.
pub(crate) fn packet_of(frame: &[u8], v6: bool) -> Option<Packet<'_>> {
    let ip_len = if v6 { Ipv6::LEN } else { Ipv4::LEN };
    Packet::parse(frame.get(Ethernet::LEN + ip_len + Udp::LEN..)?).ok()
}

/// As [`packet_of`], for either version of IP.
pub(crate) fn packet_anyhow(frame: &[u8]) -> Option<Packet<'_>> {
    let (ethernet, ..) = Ethernet::split(frame)?;
    packet_of(frame, ethernet.ether_type == EtherType::IPV6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Bth, Opcode, Qpn};

    fn frame(v6: bool) -> Vec<u8> {
        let mut packet = vec![0x5a; Bth::LEN + 40];
        let bth = Bth { opcode: Opcode::RC_SEND_ONLY, dest_qp: Qpn::new(7), ..Bth::default() };
        bth.emit(packet.first_chunk_mut().unwrap());
        let mut out = Vec::new();
        let head = Head { from: 2, to: 300, v6, ip_id: 77, port: SRC_PORT + 5, ecn: true };
        emit(&mut out, head, &packet);
        out
    }

    #[test]
    fn a_frame_is_accepted_only_by_its_destination_node() {
        for v6 in [false, true] {
            let frame = frame(v6);
            let (from, packet) = open(&frame, 300, v6).unwrap();
            assert_eq!((node_of(&from.src), node_of(&from.dst)), (2, 300));
            assert_eq!((packet.bth.dest_qp, packet.payload()), (Qpn::new(7), &[0x5a; 40][..]));
            assert_eq!(open(&frame, 2, v6).err(), Some(DropReason::NotForUs));
            assert_eq!(packet_of(&frame, v6).unwrap().bytes(), packet.bytes());
        }
    }

    /// Flips every bit except the sender's Ethernet address and the fields that routers may change (IPv6
    /// traffic class, flow label, hop limit; FECN and BECN).
    #[test]
    fn every_flipped_bit_and_every_cut_is_detected() {
        for v6 in [false, true] {
            let whole = frame(v6);
            let bth = whole.len() - ICRC_LEN - 40 - Bth::LEN;
            for at in 0..whole.len() {
                let ip = Ethernet::LEN;
                let free = (6..12).contains(&at)
                    || at == bth + 4
                    || v6 && ((ip + 1..ip + 4).contains(&at) || at == ip + 7 || at == ip);
                for bit in 0..8 {
                    let mut damaged = whole.clone();
                    damaged[at] ^= 1 << bit;
                    assert!(free || open(&damaged, 300, v6).is_err(), "byte {at}, bit {bit}");
                }
                assert!(open(&whole[..at], 300, v6).is_err(), "cut to {at}");
            }
        }
    }

    #[test]
    fn an_ecn_mark_changes_no_other_field_and_hides_no_damage() {
        for v6 in [false, true] {
            let mut marked = frame(v6);
            let before = open(&frame(v6), 300, v6).map(|(from, _)| from.tos).unwrap();
            assert!(mark(&mut marked));
            let (from, packet) = open(&marked, 300, v6).unwrap();
            assert_eq!((before, from.tos), (ECT_0, CE));
            assert_eq!(packet.bytes(), packet_of(&frame(v6), v6).unwrap().bytes());
            assert!(!mark(&mut marked), "the frame is marked already");
        }
        for bit in 0..8 * Ipv4::LEN {
            let mut damaged = frame(false);
            damaged[Ethernet::LEN + bit / 8] ^= 1 << (bit % 8);
            mark(&mut damaged);
            assert!(open(&damaged, 300, false).is_err(), "bit {bit}");
        }
        assert!(!mark(&mut frame(true)[..30]), "a cut frame is not marked");
    }
}
