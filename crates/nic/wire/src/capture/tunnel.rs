//! Finds the RoCE packet inside tunnels, in any nesting. `encap` removes their headers.

use core::net::IpAddr;

use super::decode_as::{Carried, DecodeAs, Ports};
use super::encap::{self, BRIDGED, TunnelKind, is_in_llc};
use super::link::{Link, LinkType, Lrh};
use super::not_roce::{NotRoce, is_known_port};
use crate::bytes::u16_at;
use crate::eth::EtherType;
use crate::ip::{Ip, Ipv4, Ipv6, PROTOCOL_UDP};
use crate::udp::Udp;

/// Most tunnels inside each other.
pub const TUNNELS_MAX: usize = 8;
/// Most extension headers of an IPv6 packet.
pub(super) const EXTENSIONS_MAX: usize = 8;
/// `next_header` of extension headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(super) const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;

/// `next_header` of a GRH in front of a BTH (IBA 8.3).
const GRH_NEXT_BTH: u8 = 0x1b;

/// A tunnel around a RoCE packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tunnel {
    /// Kind and number.
    pub kind: TunnelKind,
    /// The ends of the tunnel; `None` without an IP header.
    pub ends: Option<(IpAddr, IpAddr)>,
}

/// Returns the tunnels around a packet, the outermost first.
#[must_use]
pub fn tunnels(decode_as: impl Into<DecodeAs>, bytes: &[u8]) -> [Option<Tunnel>; TUNNELS_MAX] {
    let mut list = [None; TUNNELS_MAX];
    let DecodeAs { link_type, ports } = decode_as.into();
    if let Some(link) = link_type.split(bytes) {
        let mut places = list.iter_mut();
        let _ = find(&link, &ports, |tunnel| {
            if let Some(place) = places.next() {
                *place = Some(tunnel);
            }
        });
    }
    list
}

/// What carries the RoCE packet.
pub(super) enum Carrier {
    /// RoCEv2: UDP.
    Udp(Udp),
    /// RoCEv1 and InfiniBand: the GRH alone, or the local route header.
    Grh,
}

/// A RoCE packet inside all tunnels.
pub(super) struct Inside<'a> {
    pub(super) ip: IpPacket<'a>,
    pub(super) carrier: Carrier,
    /// The captured bytes behind the UDP header, or behind the GRH.
    pub(super) rest: &'a [u8],
    /// Number of tunnels.
    pub(super) tunnels: u8,
    /// Network identifier of the innermost VXLAN or GENEVE tunnel.
    pub(super) vni: Option<u32>,
    /// The packet, or a tunnel around it, is the first fragment of a larger one.
    pub(super) is_fragment: bool,
}

/// Removes all tunnels. `visit` is called for each.
#[inline]
pub(super) fn find<'a>(
    link: &Link<'a>,
    ports: &Ports,
    visit: impl FnMut(Tunnel),
) -> Result<Inside<'a>, NotRoce> {
    find_ip(link, ports, visit, |_| {})
}

/// As [`find`]; `visit_ip` is called for each IP packet, from the outside.
#[inline]
pub(super) fn find_ip<'a>(
    link: &Link<'a>,
    ports: &Ports,
    mut visit: impl FnMut(Tunnel),
    mut visit_ip: impl FnMut(&IpPacket<'a>),
) -> Result<Inside<'a>, NotRoce> {
    let (mut ether_type, mut rest, mut tunnels, mut vni) = (link.ether_type, link.rest, 0, None);
    let mut is_fragment = false;
    if let Some(lrh) = link.lrh.filter(|lrh| lrh.next == Lrh::NEXT_BTH) {
        let ip = IpPacket::of_local(&lrh, rest);
        return Ok(Inside { ip, carrier: Carrier::Grh, rest, tunnels, vni, is_fragment });
    }
    // Every tunnel takes up to two rounds: its IP header and its Ethernet frame.
    for _ in 0..=2 * TUNNELS_MAX {
        let (kind, ends, next) = match ether_type {
            EtherType::IPV4 | EtherType::IPV6 => {
                let ip = IpPacket::parse(ether_type, rest).ok_or(NotRoce::Ip)?;
                visit_ip(&ip);
                is_fragment |= ip.is_first_fragment;
                ip.check_fragment()?;
                let ends = Some((ip.ip.src(), ip.ip.dst()));
                if ip.protocol == PROTOCOL_UDP {
                    let (udp, behind) = ip.behind.split_first_chunk().ok_or(NotRoce::Ip)?;
                    let udp = Udp::parse(udp);
                    let carried = ports.get(udp).or_else(|| Carried::of_port(udp.dst_port));
                    if carried == Some(Carried::Roce) {
                        let carrier = Carrier::Udp(udp);
                        return Ok(Inside { ip, carrier, rest: behind, tunnels, vni, is_fragment });
                    }
                    let tunnel = carried.and_then(|carried| encap::in_udp(carried, behind));
                    // A packet to any port may be the reply of a known service.
                    let port = if is_known_port(udp.src_port) { udp.src_port } else { udp.dst_port };
                    let (kind, next) = tunnel.ok_or(NotRoce::Port(port))?;
                    (kind, ends, next)
                } else {
                    let inside = encap::in_ip(ip.protocol, ip.behind);
                    let inside = inside.ok_or(NotRoce::Protocol(ip.protocol))?;
                    (inside.0, ends, inside.1)
                }
            }
            BRIDGED => {
                let inner = LinkType::ETHERNET.split(rest).ok_or(NotRoce::Link)?;
                (ether_type, rest) = (inner.ether_type, inner.rest);
                continue;
            }
            EtherType::ROCE_V1 => {
                let ip = IpPacket::parse(EtherType::IPV6, rest).ok_or(NotRoce::Ip)?;
                if ip.protocol != GRH_NEXT_BTH {
                    return Err(NotRoce::Protocol(ip.protocol));
                }
                let rest = ip.behind;
                return Ok(Inside { ip, carrier: Carrier::Grh, rest, tunnels, vni, is_fragment });
            }
            length if is_in_llc(length) => match encap::snap(rest) {
                Some(next) => {
                    (ether_type, rest) = next;
                    continue;
                }
                None => return Err(encap::llc(length, rest)),
            },
            other => {
                let inside = encap::in_ethernet(other, rest).ok_or(NotRoce::EtherType(other))?;
                (inside.0, None, inside.1)
            }
        };
        visit(Tunnel { kind, ends });
        if usize::from(tunnels) == TUNNELS_MAX {
            break;
        }
        tunnels += 1;
        if let TunnelKind::Vxlan(id) | TunnelKind::Geneve(id) = kind {
            vni = Some(id);
        }
        (ether_type, rest) = next;
    }
    Err(NotRoce::Nested)
}

/// An IP packet as far as it was captured.
pub(super) struct IpPacket<'a> {
    pub(super) ip: Ip,
    /// The captured bytes from the IP header on.
    pub(super) bytes: &'a [u8],
    /// Length of the packet on the wire in bytes, with its headers.
    pub(super) len: usize,
    /// Protocol behind options and extension headers.
    pub(super) protocol: u8,
    /// The captured bytes behind options and extension headers.
    pub(super) behind: &'a [u8],
    /// The first fragment of a datagram: the end of the datagram is in others.
    pub(super) is_first_fragment: bool,
    /// A fragment without the transport header.
    pub(super) is_later_fragment: bool,
    /// Options or extension headers, which RoCEv2 excludes.
    pub(super) has_options: bool,
}

impl<'a> IpPacket<'a> {
    /// The packet behind a local route header, as if the local identifiers were the addresses `::LID`.
    fn of_local(lrh: &Lrh, bytes: &'a [u8]) -> Self {
        let lid = |lid: u16| u128::from(lid).into();
        let len = lrh.payload_len(bytes.len());
        let ip = Ipv6 { next_header: GRH_NEXT_BTH, ..Ipv6::udp(lid(lrh.src), lid(lrh.dst), 0, len as u16) };
        Self {
            ip: Ip::V6(ip),
            bytes,
            len,
            protocol: GRH_NEXT_BTH,
            behind: bytes,
            is_first_fragment: false,
            is_later_fragment: false,
            has_options: false,
        }
    }

    #[inline]
    fn parse(ether_type: EtherType, bytes: &'a [u8]) -> Option<Self> {
        if ether_type == EtherType::IPV4 {
            let ip = Ipv4::parse(bytes.first_chunk()?);
            let header_len = usize::from(ip.ihl) * 4;
            if ip.version != 4 || header_len < Ipv4::LEN {
                return None;
            }
            let packet = Self {
                ip: Ip::V4(ip),
                bytes,
                len: usize::from(ip.total_len),
                protocol: ip.protocol,
                behind: bytes.get(header_len..)?,
                is_first_fragment: ip.is_fragment() && ip.fragment_offset == 0,
                is_later_fragment: ip.fragment_offset != 0,
                has_options: header_len > Ipv4::LEN,
            };
            return packet.without_authentication();
        }
        let (header, behind) = bytes.split_first_chunk()?;
        let ip = Ipv6::parse(header);
        if ip.version != 6 {
            return None;
        }
        let packet = Self {
            ip: Ip::V6(ip),
            bytes,
            len: Ipv6::LEN + usize::from(ip.payload_len),
            protocol: ip.next_header,
            behind,
            is_first_fragment: false,
            is_later_fragment: false,
            has_options: false,
        };
        packet.without_extensions()
    }

    /// Refuses a fragment without the transport header. Its protocol may tell that it is other traffic.
    fn check_fragment(&self) -> Result<(), NotRoce> {
        let protocol = NotRoce::Protocol(self.protocol);
        match (self.is_later_fragment, protocol.is_other_traffic()) {
            (false, _) => Ok(()),
            (true, true) => Err(protocol),
            (true, false) => Err(NotRoce::Fragment),
        }
    }

    /// Removes an IP Authentication Header (RFC 4302), the only extension header that IPv4 has, too.
    #[inline]
    fn without_authentication(mut self) -> Option<Self> {
        if self.protocol == AUTHENTICATION && !self.is_later_fragment {
            let header = *self.behind.first_chunk::<2>()?;
            self.has_options = true;
            self.protocol = header[0];
            self.behind = self.behind.get(extension_len(AUTHENTICATION, &header)?..)?;
        }
        Some(self)
    }

    /// Removes extension headers (RFC 8200, 4302).
    #[inline]
    fn without_extensions(mut self) -> Option<Self> {
        for _ in 0..EXTENSIONS_MAX {
            if extension_len(self.protocol, &[0; 2]).is_none() {
                return Some(self);
            }
            let header = self.behind.first_chunk::<4>()?;
            if self.protocol == FRAGMENT {
                let field = u16_at(header, 2);
                self.is_later_fragment |= field >> 3 != 0;
                self.is_first_fragment |= field >> 3 == 0 && field & 1 != 0;
            }
            let len = extension_len(self.protocol, &[header[0], header[1]])?;
            self.has_options = true;
            self.protocol = header[0];
            self.behind = self.behind.get(len..)?;
            if self.is_later_fragment {
                // What follows is no header.
                return Some(self);
            }
        }
        None
    }
}

/// Length of an extension header that begins with `header`; `None` for other protocols.
#[inline]
pub(super) fn extension_len(protocol: u8, header: &[u8; 2]) -> Option<usize> {
    match protocol {
        FRAGMENT => Some(8),
        AUTHENTICATION => Some((usize::from(header[1]) + 2) * 4),
        HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HOST_IDENTITY | SHIM6 => {
            Some((usize::from(header[1]) + 1) * 8)
        }
        _ => None,
    }
}
