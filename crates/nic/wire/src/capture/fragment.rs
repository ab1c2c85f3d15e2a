//! Fragments of IP datagrams, outside or inside of tunnels: what is needed to join them.

use core::net::IpAddr;

use super::DecodeAs;
use super::tunnel::{self, IpPacket};
use crate::bytes::{u16_at, u32_at};
use crate::ip::{Ip, Ipv6};

/// Bytes of the fragment header of IPv6 (RFC 8200, 4.5).
const HEADER_LEN: usize = 8;
/// Bytes that the offset of a fragment counts in.
const UNIT: usize = 8;

/// What all fragments of a datagram have in common (RFC 791, RFC 8200).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FragmentKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Identification.
    pub id: u32,
    /// Protocol of IPv4; 0 for IPv6.
    pub protocol: u8,
}

/// A captured fragment.
#[derive(Clone, Copy, Debug)]
pub struct Fragment<'a> {
    /// Tells the datagrams apart.
    pub key: FragmentKey,
    /// Where its payload belongs, in bytes from the start of the datagram's payload.
    pub offset: usize,
    /// Further fragments follow.
    pub more: bool,
    /// The frame up to the payload.
    pub front: &'a [u8],
    /// The captured part of the payload.
    pub payload: &'a [u8],
    /// Bytes of the payload on the wire.
    pub payload_len: usize,
    /// Offset of the IP header in the frame.
    ip_at: usize,
    /// Offset of the byte that announces the fragment header; `None` for IPv4.
    next_header_at: Option<usize>,
}

impl<'a> Fragment<'a> {
    /// Finds the outermost IP fragment of a captured packet; `None` if no IP packet in it is a fragment.
    #[must_use]
    pub fn find(decode_as: impl Into<DecodeAs>, bytes: &'a [u8]) -> Option<Self> {
        let DecodeAs { link_type, ports } = decode_as.into();
        let link = link_type.split(bytes)?;
        let mut found = None;
        // The rest of the packet is of no interest, nor why it cannot be decoded.
        let _rest = tunnel::find_ip(
            &link,
            &ports,
            |_| {},
            |ip| {
                if found.is_none() && (ip.is_first_fragment || ip.is_later_fragment) {
                    found = Some(Fragment::of(bytes, ip));
                }
            },
        );
        found.flatten()
    }

    fn of(frame: &'a [u8], packet: &IpPacket<'a>) -> Option<Self> {
        let ip_at = frame.len().checked_sub(packet.bytes.len())?;
        let (src, dst) = (packet.ip.src(), packet.ip.dst());
        let (header_len, id, protocol, offset, more, next_header_at) = match packet.ip {
            Ip::V4(ip) => {
                let offset = usize::from(ip.fragment_offset) * UNIT;
                (usize::from(ip.ihl) * 4, u32::from(ip.id), ip.protocol, offset, ip.flags & 1 != 0, None)
            }
            Ip::V6(ip) => {
                let (at, next) = fragment_header(packet.bytes, ip.next_header)?;
                let header = packet.bytes.get(at..at + HEADER_LEN)?;
                let field = u16_at(header.first_chunk::<HEADER_LEN>()?, 2);
                let id = u32_at(header.first_chunk::<HEADER_LEN>()?, 4);
                let offset = usize::from(field >> 3) * UNIT;
                (at + HEADER_LEN, id, 0, offset, field & 1 != 0, Some(ip_at + next))
            }
        };
        let payload_len = packet.len.checked_sub(header_len)?;
        let front = frame.get(..ip_at + header_len)?;
        let behind = frame.get(front.len()..)?;
        Some(Self {
            key: FragmentKey { src, dst, id, protocol },
            offset,
            more,
            front,
            payload: behind.get(..payload_len).unwrap_or(behind),
            payload_len,
            ip_at,
            next_header_at,
        })
    }

    /// Offset in the frame of the byte with DF (0x40); `None` for IPv6.
    #[must_use]
    pub fn flags_at(&self) -> Option<usize> {
        self.next_header_at.is_none().then_some(self.ip_at + 6)
    }

    /// Makes `front`, a copy of the [`front`](Self::front) of the first fragment, the front of the whole
    /// datagram with a payload of `payload_len` bytes. Returns how many of its bytes remain; `None` if the
    /// datagram would be too long. Header checksums are not computed.
    #[must_use]
    pub fn join_front(&self, front: &mut [u8], payload_len: usize) -> Option<usize> {
        let whole = front.len();
        let ip = front.get_mut(self.ip_at..)?;
        let Some(next_header_at) = self.next_header_at else {
            let len = u16::try_from(ip.len() + payload_len).ok()?;
            let flags = ip.get(6)? & 0xc0;
            ip.get_mut(2..4)?.copy_from_slice(&len.to_be_bytes());
            ip.get_mut(6..8)?.copy_from_slice(&[flags, 0]);
            return Some(whole);
        };
        let kept = whole.checked_sub(HEADER_LEN)?;
        let len = u16::try_from((kept + payload_len).checked_sub(self.ip_at + Ipv6::LEN)?).ok()?;
        ip.get_mut(4..6)?.copy_from_slice(&len.to_be_bytes());
        let next = *front.get(kept)?;
        *front.get_mut(next_header_at)? = next;
        Some(kept)
    }
}

/// Offsets of the fragment header in an IPv6 packet and of the byte that announces it.
fn fragment_header(packet: &[u8], next_header: u8) -> Option<(usize, usize)> {
    let (mut kind, mut named_at, mut at) = (next_header, 6, Ipv6::LEN);
    for _ in 0..tunnel::EXTENSIONS_MAX {
        if kind == tunnel::FRAGMENT {
            return Some((at, named_at));
        }
        let header = packet.get(at..)?.first_chunk::<2>()?;
        let len = tunnel::extension_len(kind, header)?;
        (kind, named_at, at) = (header[0], at, at + len);
    }
    None
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::capture::LinkType;

    /// An IPv6 frame with a hop-by-hop header, a fragment header and 16 bytes.
    fn frame(field: u16) -> Vec<u8> {
        let mut frame = [&[0; 12][..], &[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 0, 64], &[7; 32]].concat();
        frame.extend([44, 0, 1, 4, 0, 0, 0, 0]);
        frame.extend([17, 0]);
        frame.extend(field.to_be_bytes());
        frame.extend([0, 0, 1, 2]);
        frame.extend(0..16);
        frame
    }

    #[test]
    fn fragment_headers_are_found_and_removed() {
        let first = frame(1);
        let fragment = Fragment::find(LinkType::ETHERNET, &first).expect("a fragment");
        assert_eq!((fragment.key.id, fragment.offset, fragment.more), (0x102, 0, true));
        assert_eq!((fragment.payload_len, fragment.payload[15]), (16, 15));
        let mut front = fragment.front.to_vec();
        assert_eq!(fragment.join_front(&mut front, 1000), Some(14 + 40 + 8));
        // The payload has 1008 bytes with the other header, which now announces UDP.
        assert_eq!((front[18..20].to_vec(), front[54]), (1008_u16.to_be_bytes().to_vec(), 17));
        assert_eq!(fragment.join_front(&mut fragment.front.to_vec(), 65_535), None);
        let last = frame(3 << 3);
        let fragment = Fragment::find(LinkType::ETHERNET, &last).expect("a fragment");
        assert_eq!((fragment.offset, fragment.more), (24, false));
        // Neither first nor later: a datagram in one fragment.
        assert!(Fragment::find(LinkType::ETHERNET, &frame(0)).is_none());
    }

    #[test]
    fn frames_cut_anywhere_are_no_problem() {
        let whole = frame(1);
        for len in 0..whole.len() {
            if let Some(fragment) = Fragment::find(LinkType::ETHERNET, &whole[..len]) {
                assert_eq!((fragment.payload.len(), fragment.payload_len), (len - 70, 16));
            }
        }
    }
}
