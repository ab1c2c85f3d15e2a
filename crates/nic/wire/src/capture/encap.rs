//! Headers of tunnels: their kinds, how long they are, and what follows.

use core::fmt;

use super::decode_as::Carried;
use super::not_roce::NotRoce;
use crate::bytes::{u16_at, u32_at};
use crate::eth::EtherType;

/// Transparent Ethernet bridging: an Ethernet frame follows.
pub(super) const BRIDGED: EtherType = EtherType(0x6558);
/// A PPPoE session (RFC 2516).
pub(super) const PPPOE: EtherType = EtherType(0x8864);
/// The set-up of PPPoE sessions: no packets follow.
const PPPOE_DISCOVERY: EtherType = EtherType(0x8863);
const MPLS: [EtherType; 2] = [EtherType(0x8847), EtherType(0x8848)];
const NSH: EtherType = EtherType(0x894f);
const ERSPAN_2: EtherType = EtherType(0x88be);
const ERSPAN_3: EtherType = EtherType(0x22eb);

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
    /// A PPPoE session, with its number.
    Pppoe(u16),
    /// GTP-U (3GPP TS 29.281), with its tunnel endpoint.
    Gtp(u32),
    /// A network service header (RFC 8300), with its service path.
    Nsh(u32),
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
            Self::Pppoe(session) => write!(f, "PPPoE {session}"),
            Self::Gtp(teid) => write!(f, "GTP {teid:#x}"),
            Self::Nsh(path) => write!(f, "NSH {path}"),
            Self::Ip => f.write_str("IP in IP"),
        }
    }
}

/// What a tunnel carries.
pub(super) type Next<'a> = (EtherType, &'a [u8]);

/// The tunnel in a UDP datagram.
pub(super) fn in_udp(carried: Carried, bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    match carried {
        Carried::Roce => None,
        Carried::Vxlan => {
            let (header, rest) = bytes.split_first_chunk::<8>()?;
            // Flag I: the identifier is valid.
            let is_valid = header[0] & 0x08 != 0;
            is_valid.then(|| (TunnelKind::Vxlan(u32_at(header, 4) >> 8), (BRIDGED, rest)))
        }
        Carried::VxlanGpe => {
            let (header, rest) = bytes.split_first_chunk::<8>()?;
            let next = match header[3] {
                1 => EtherType::IPV4,
                2 => EtherType::IPV6,
                3 => BRIDGED,
                4 => NSH,
                5 => MPLS[0],
                _ => return None,
            };
            Some((TunnelKind::Vxlan(u32_at(header, 4) >> 8), (next, rest)))
        }
        Carried::Geneve => {
            let (header, rest) = bytes.split_first_chunk::<8>()?;
            // Version 0; the low six bits count the options in units of 4 bytes.
            let options = usize::from(header[0] & 0x3f) * 4;
            let next = (EtherType(u16_at(header, 2)), rest.get(options..)?);
            (header[0] >> 6 == 0).then_some((TunnelKind::Geneve(u32_at(header, 4) >> 8), next))
        }
        Carried::Mpls => mpls(bytes),
        Carried::Gtp => gtp(bytes),
    }
}

/// The tunnel behind an Ethernet header.
pub(super) fn in_ethernet(ether_type: EtherType, bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    match ether_type {
        PPPOE => {
            let (header, rest) = bytes.split_first_chunk::<6>()?;
            // Version 1, type 1, code 0: session data.
            (header[..2] == [0x11, 0]).then_some(())?;
            Some((TunnelKind::Pppoe(u16_at(header, 2)), ppp(rest)?))
        }
        NSH => nsh(bytes),
        other if MPLS.contains(&other) => mpls(bytes),
        _ => None,
    }
}

/// What follows PPP (RFC 1661): the address field of HDLC may precede, and the protocol may be one byte.
pub(super) fn ppp(bytes: &[u8]) -> Option<Next<'_>> {
    let bytes = bytes.strip_prefix(&[0xff, 3]).unwrap_or(bytes);
    let (protocol, rest) = match bytes.split_first()? {
        (first, rest) if first & 1 != 0 => (u16::from(*first), rest),
        _ => (u16_at(bytes.first_chunk::<2>()?, 0), &bytes[2..]),
    };
    let ether_type = match protocol {
        0x21 => EtherType::IPV4,
        0x57 => EtherType::IPV6,
        0x281 => MPLS[0],
        0x283 => MPLS[1],
        // The set-up of links.
        0x8001.. => PPPOE_DISCOVERY,
        _ => return None,
    };
    Some((ether_type, rest))
}

/// GTP-U with a packet of the user: IP, or an Ethernet frame.
fn gtp(bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    const VERSION_1: u8 = 0x30;
    const HAS_EXTENSION: u8 = 4;
    const HAS_OPTIONS: u8 = 7;
    const USER_DATA: u8 = 0xff;
    let (header, mut rest) = bytes.split_first_chunk::<8>()?;
    if header[0] & 0xf0 != VERSION_1 || header[1] != USER_DATA {
        return None;
    }
    if header[0] & HAS_OPTIONS != 0 {
        let (options, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        let mut next = if header[0] & HAS_EXTENSION != 0 { options[3] } else { 0 };
        while next != 0 {
            let len = usize::from(*rest.first()?) * 4;
            next = *rest.get(len.checked_sub(1)?)?;
            rest = &rest[len..];
        }
    }
    Some((TunnelKind::Gtp(u32_at(header, 4)), by_version(rest)?))
}

/// A network service header.
fn nsh(bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
    let header = bytes.first_chunk::<8>()?;
    let (first, len) = (u16_at(header, 0), usize::from(u16_at(header, 0) & 0x3f) * 4);
    if first >> 14 != 0 || len < header.len() {
        return None;
    }
    let next = match header[3] {
        1 => EtherType::IPV4,
        2 => EtherType::IPV6,
        3 => BRIDGED,
        4 => NSH,
        5 => MPLS[0],
        _ => return None,
    };
    Some((TunnelKind::Nsh(u32_at(header, 4) >> 8), (next, bytes.get(len..)?)))
}

/// What follows a header that does not say it: IP by its version, else an Ethernet frame.
fn by_version(bytes: &[u8]) -> Option<Next<'_>> {
    Some(match bytes.first()? >> 4 {
        4 => (EtherType::IPV4, bytes),
        6 => (EtherType::IPV6, bytes),
        _ => (BRIDGED, bytes),
    })
}

/// Whether the type of an Ethernet frame is its length, so that a header of logical link control follows.
pub(super) fn is_in_llc(ether_type: EtherType) -> bool {
    ether_type.0 < 0x600
}

/// What follows the headers of IEEE 802.2 and SNAP: an Ethernet type by RFC 1042 or IEEE 802.1H.
pub(super) fn snap(bytes: &[u8]) -> Option<Next<'_>> {
    let (header, rest) = bytes.split_first_chunk::<8>()?;
    let has_type = header.starts_with(&[0xaa, 0xaa, 3, 0, 0]) && matches!(header[5], 0 | 0xf8);
    has_type.then(|| (EtherType(u16_at(header, 6)), rest))
}

/// What the frame of IEEE 802.2 is that carries no other one.
pub(super) fn llc(length: EtherType, bytes: &[u8]) -> NotRoce {
    match *bytes {
        // A frame of length 0 has no header.
        _ if length.0 == 0 => NotRoce::EtherType(length),
        [0xaa, _, _, a, b, c, ..] => NotRoce::Snap([a, b, c]),
        [] | [0xaa, ..] => NotRoce::Link,
        [sap, ..] => NotRoce::Llc(sap),
    }
}

/// The tunnel behind an IP header.
pub(super) fn in_ip(protocol: u8, bytes: &[u8]) -> Option<(TunnelKind, Next<'_>)> {
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
            0 => (BRIDGED, rest.get(4..)?),
            _ => by_version(rest)?,
        };
        return Some((kind, next));
    }
}
