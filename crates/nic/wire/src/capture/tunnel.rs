//! Finds the RoCE packet inside tunnels: VXLAN, GENEVE, GRE, ERSPAN, MPLS and IP in IP, in any nesting.

use core::fmt;
use core::net::IpAddr;

use super::link::{Link, LinkType};
use super::seen::NotRoce;
use crate::bytes::{u16_at, u32_at};
use crate::eth::EtherType;
use crate::ip::{Ip, Ipv4, Ipv6, PROTOCOL_UDP};
use crate::udp::{ROCE_PORT, Udp};

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

const VXLAN_PORT: u16 = 4789;
/// VXLAN of Linux interfaces without `dstport`.
const VXLAN_LINUX_PORT: u16 = 8472;
const VXLAN_GPE_PORT: u16 = 4790;
const GENEVE_PORT: u16 = 6081;
/// MPLS in UDP (RFC 7510).
const MPLS_PORT: u16 = 6635;
/// Transparent Ethernet bridging: an Ethernet frame follows.
const BRIDGED: EtherType = EtherType(0x6558);
const MPLS: [EtherType; 2] = [EtherType(0x8847), EtherType(0x8848)];
const ERSPAN_2: EtherType = EtherType(0x88be);
const ERSPAN_3: EtherType = EtherType(0x22eb);
/// RoCEv1: a GRH follows, which has the form of an IPv6 header.
const ROCE_V1: EtherType = EtherType(0x8915);
/// `next_header` of a GRH in front of a BTH (IBA 8.3).
const GRH_NEXT_BTH: u8 = 0x1b;

/// Kind of a tunnel, with its number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TunnelKind {
    /// VXLAN (RFC 7348), with its network identifier.
    Vxlan(u32),
    /// GENEVE (RFC 8926), with its network identifier.
    Geneve(u32),
    /// GRE (RFC 2784, 2890), with its key.
    Gre(Option<u32>),
    /// A mirrored packet (ERSPAN), with the number of the session.
    Erspan(u16),
    /// MPLS, with the label at the bottom of the stack.
    Mpls(u32),
    /// IP in IP.
    Ip,
}

impl fmt::Display for TunnelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vxlan(vni) => write!(f, "VXLAN {vni}"),
            Self::Geneve(vni) => write!(f, "GENEVE {vni}"),
            Self::Gre(Some(key)) => write!(f, "GRE {key}"),
            Self::Gre(None) => f.write_str("GRE"),
            Self::Erspan(session) => write!(f, "ERSPAN {session}"),
            Self::Mpls(label) => write!(f, "MPLS {label}"),
            Self::Ip => f.write_str("IP in IP"),
        }
    }
}

/// A tunnel around a RoCE packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tunnel {
    /// Kind and number.
    pub kind: TunnelKind,
    /// The ends of the tunnel; `None` for MPLS without IP.
    pub ends: Option<(IpAddr, IpAddr)>,
}

/// Returns the tunnels around a packet, the outermost first.
#[must_use]
pub fn tunnels(link_type: LinkType, bytes: &[u8]) -> [Option<Tunnel>; TUNNELS_MAX] {
    let mut list = [None; TUNNELS_MAX];
    if let Some(link) = link_type.split(bytes) {
        let mut places = list.iter_mut();
        let _ = find(&link, |tunnel| {
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
    /// RoCEv1: the GRH alone.
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
pub(super) fn find<'a>(link: &Link<'a>, visit: impl FnMut(Tunnel)) -> Result<Inside<'a>, NotRoce> {
    find_ip(link, visit, |_| {})
}

/// As [`find`]; `visit_ip` is called for each IP packet, from the outside.
#[inline]
pub(super) fn find_ip<'a>(
    link: &Link<'a>,
    mut visit: impl FnMut(Tunnel),
    mut visit_ip: impl FnMut(&IpPacket<'a>),
) -> Result<Inside<'a>, NotRoce> {
    let (mut ether_type, mut rest, mut tunnels, mut vni) = (link.ether_type, link.rest, 0, None);
    let mut is_fragment = false;
    // Every tunnel takes up to two rounds: its IP header and its Ethernet frame.
    for _ in 0..=2 * TUNNELS_MAX {
        let (kind, ends, next) = match ether_type {
            EtherType::IPV4 | EtherType::IPV6 => {
                let ip = IpPacket::parse(ether_type, rest).ok_or(NotRoce::Ip)?;
                visit_ip(&ip);
                is_fragment |= ip.is_first_fragment;
                if ip.is_later_fragment {
                    return Err(NotRoce::Fragment);
                }
                let ends = Some((ip.ip.src(), ip.ip.dst()));
                if ip.protocol == PROTOCOL_UDP {
                    let (udp, behind) = ip.behind.split_first_chunk().ok_or(NotRoce::Ip)?;
                    let udp = Udp::parse(udp);
                    if udp.dst_port == ROCE_PORT {
                        let carrier = Carrier::Udp(udp);
                        return Ok(Inside { ip, carrier, rest: behind, tunnels, vni, is_fragment });
                    }
                    let (kind, next) = in_udp(udp.dst_port, behind).ok_or(NotRoce::Port(udp.dst_port))?;
                    (kind, ends, next)
                } else {
                    let inside = in_ip(ip.protocol, ip.behind).ok_or(NotRoce::Protocol(ip.protocol))?;
                    (inside.0, ends, inside.1)
                }
            }
            BRIDGED => {
                let inner = LinkType::ETHERNET.split(rest).ok_or(NotRoce::Link)?;
                (ether_type, rest) = (inner.ether_type, inner.rest);
                continue;
            }
            ROCE_V1 => {
                let ip = IpPacket::parse(EtherType::IPV6, rest).ok_or(NotRoce::Ip)?;
                if ip.protocol != GRH_NEXT_BTH {
                    return Err(NotRoce::Protocol(ip.protocol));
                }
                let rest = ip.behind;
                return Ok(Inside { ip, carrier: Carrier::Grh, rest, tunnels, vni, is_fragment });
            }
            other if MPLS.contains(&other) => {
                let (kind, next) = mpls(rest).ok_or(NotRoce::EtherType(other))?;
                (kind, None, next)
            }
            other => return Err(NotRoce::EtherType(other)),
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
    Err(NotRoce::Link)
}

/// What a tunnel carries.
type Next<'a> = (EtherType, &'a [u8]);

fn in_udp(port: u16, bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    match port {
        VXLAN_PORT | VXLAN_LINUX_PORT => {
            let (header, rest) = bytes.split_first_chunk::<8>()?;
            // Flag I: the identifier is valid.
            let is_valid = header[0] & 0x08 != 0;
            is_valid.then(|| (TunnelKind::Vxlan(u32_at(header, 4) >> 8), (BRIDGED, rest)))
        }
        VXLAN_GPE_PORT => {
            let (header, rest) = bytes.split_first_chunk::<8>()?;
            let next = match header[3] {
                1 => EtherType::IPV4,
                2 => EtherType::IPV6,
                3 => BRIDGED,
                5 => MPLS[0],
                _ => return None,
            };
            Some((TunnelKind::Vxlan(u32_at(header, 4) >> 8), (next, rest)))
        }
        GENEVE_PORT => {
            let (header, rest) = bytes.split_first_chunk::<8>()?;
            // Version 0; the low six bits count the options in units of 4 bytes.
            let options = usize::from(header[0] & 0x3f) * 4;
            let next = (EtherType(u16_at(header, 2)), rest.get(options..)?);
            (header[0] >> 6 == 0).then_some((TunnelKind::Geneve(u32_at(header, 4) >> 8), next))
        }
        MPLS_PORT => mpls(bytes),
        _ => None,
    }
}

fn in_ip(protocol: u8, bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    match protocol {
        4 => Some((TunnelKind::Ip, (EtherType::IPV4, bytes))),
        41 => Some((TunnelKind::Ip, (EtherType::IPV6, bytes))),
        47 => gre(bytes),
        137 => mpls(bytes),
        _ => None,
    }
}

fn gre(bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    const CHECKSUM: u16 = 0x8000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    let (header, mut rest) = bytes.split_first_chunk::<4>()?;
    let (flags, ether_type) = (u16_at(header, 0), EtherType(u16_at(header, 2)));
    // The version is in the low three bits.
    if flags & 7 != 0 {
        return None;
    }
    let mut word = || {
        let (word, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        Some(u32_at(word, 0))
    };
    if flags & CHECKSUM != 0 {
        word()?;
    }
    let key = if flags & KEY != 0 { Some(word()?) } else { None };
    let has_sequence = flags & SEQUENCE != 0;
    if has_sequence {
        word()?;
    }
    match ether_type {
        // Type I has no sequence number, and no header of its own.
        ERSPAN_2 if !has_sequence => Some((TunnelKind::Erspan(0), (BRIDGED, rest))),
        ERSPAN_2 => {
            let (header, rest) = rest.split_first_chunk::<8>()?;
            Some((TunnelKind::Erspan(u16_at(header, 2) & 0x3ff), (BRIDGED, rest)))
        }
        ERSPAN_3 => {
            let (header, rest) = rest.split_first_chunk::<12>()?;
            // The last bit announces a subheader of 8 bytes.
            let rest = rest.get(if header[11] & 1 != 0 { 8 } else { 0 }..)?;
            Some((TunnelKind::Erspan(u16_at(header, 2) & 0x3ff), (BRIDGED, rest)))
        }
        _ => Some((TunnelKind::Gre(key), (ether_type, rest))),
    }
}

/// Removes a label stack. No field says what follows: the first four bits tell IPv4 and IPv6 from a control
/// word (0) with an Ethernet frame behind it (RFC 4385), and from an Ethernet frame without.
fn mpls(bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    let mut rest = bytes;
    loop {
        let (entry, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        let entry = u32_at(entry, 0);
        if entry & 0x100 == 0 {
            continue;
        }
        let kind = TunnelKind::Mpls(entry >> 12);
        let next = match rest.first()? >> 4 {
            4 => (EtherType::IPV4, rest),
            6 => (EtherType::IPV6, rest),
            0 => (BRIDGED, rest.get(4..)?),
            _ => (BRIDGED, rest),
        };
        return Some((kind, next));
    }
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
            if !matches!(self.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION) {
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
        HOP_BY_HOP | ROUTING | DESTINATION => Some((usize::from(header[1]) + 1) * 8),
        _ => None,
    }
}
