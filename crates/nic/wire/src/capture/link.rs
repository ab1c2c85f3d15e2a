//! Link layers of capture files: the bytes in front of the IP header.

use crate::bytes::{u16_at, u32_at};
use crate::eth::{EtherType, Ethernet, VlanTag};

/// Link type of a captured packet (the `LINKTYPE_` numbers of tcpdump.org).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: a protocol family in the byte order of the host.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// IPv4 or IPv6 without a link layer. 12 and 14 mean the same on some systems.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: a protocol family, big-endian.
    pub const LOOP: Self = Self(108);
    /// Linux "any" device, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// IPv4 without a link layer.
    pub const IPV4: Self = Self(228);
    /// IPv6 without a link layer.
    pub const IPV6: Self = Self(229);
    /// Linux "any" device, version 2.
    pub const LINUX_SLL2: Self = Self(276);

    /// Returns the name of the link type, or `None` if this crate cannot read it.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NULL => "BSD loopback",
            Self::ETHERNET => "Ethernet",
            Self::RAW | Self(12 | 14) => "raw IP",
            Self::LOOP => "OpenBSD loopback",
            Self::LINUX_SLL => "Linux cooked v1",
            Self::IPV4 => "raw IPv4",
            Self::IPV6 => "raw IPv6",
            Self::LINUX_SLL2 => "Linux cooked v2",
            _ => return None,
        })
    }

    /// Removes the link layer from a packet. Returns `None` if the packet is too short or the link type is
    /// unknown.
    #[must_use]
    #[inline]
    pub fn split(self, packet: &[u8]) -> Option<Link<'_>> {
        match self {
            Self::ETHERNET => {
                let (bytes, rest) = packet.split_first_chunk()?;
                let ethernet = Ethernet::parse(bytes);
                Link { ethernet: Some(ethernet), ..Link::bare(ethernet.ether_type, rest) }.untagged()
            }
            Self::RAW | Self(12 | 14) | Self::IPV4 | Self::IPV6 => {
                let ether_type = match packet.first()? >> 4 {
                    4 => EtherType::IPV4,
                    6 => EtherType::IPV6,
                    _ => return None,
                };
                Some(Link::bare(ether_type, packet))
            }
            Self::NULL | Self::LOOP => {
                let (family, rest) = packet.split_first_chunk::<4>()?;
                // The value of AF_INET6 differs between systems, so the version field of the IP header
                // decides.
                let ether_type = match (family, rest.first()? >> 4) {
                    ([2, 0, 0, 0] | [0, 0, 0, 2], 4) => EtherType::IPV4,
                    (_, 6) => EtherType::IPV6,
                    _ => return None,
                };
                Some(Link::bare(ether_type, rest))
            }
            Self::LINUX_SLL => {
                let (header, rest) = packet.split_first_chunk::<16>()?;
                let link = Link::bare(EtherType(u16_at(header, 14)), rest);
                Link { packet_type: Some(u16_at(header, 0) as u8), ..link }.untagged()
            }
            Self::LINUX_SLL2 => {
                let (header, rest) = packet.split_first_chunk::<20>()?;
                let link = Link::bare(EtherType(u16_at(header, 0)), rest);
                let ifindex = Some(u32_at(header, 4));
                Link { packet_type: Some(header[10]), ifindex, ..link }.untagged()
            }
            _ => None,
        }
    }
}

/// A packet without its link layer, and what the link layer said.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// The Ethernet header, if the capture has one.
    pub ethernet: Option<Ethernet>,
    /// VLAN tags, the outermost first.
    pub tags: [Option<VlanTag>; 2],
    /// Linux `PACKET_` type of a cooked capture: 0 is received by this host, 4 is sent by this host.
    pub packet_type: Option<u8>,
    /// Index of the interface, from a cooked capture of version 2.
    pub ifindex: Option<u32>,
    /// Type of the bytes in `rest`.
    pub ether_type: EtherType,
    /// The bytes after the link layer.
    pub rest: &'a [u8],
}

impl<'a> Link<'a> {
    const SERVICE_TAG: EtherType = EtherType(0x88a8);

    const fn bare(ether_type: EtherType, rest: &'a [u8]) -> Self {
        Self { ethernet: None, tags: [None; 2], packet_type: None, ifindex: None, ether_type, rest }
    }

    /// Removes VLAN tags, at most two (IEEE 802.1ad).
    #[inline]
    fn untagged(mut self) -> Option<Self> {
        for at in 0..2 {
            if self.ether_type != EtherType::VLAN && self.ether_type != Self::SERVICE_TAG {
                break;
            }
            let (bytes, rest) = self.rest.split_first_chunk()?;
            let tag = VlanTag::parse(bytes);
            self.tags[at] = Some(tag);
            (self.ether_type, self.rest) = (tag.ether_type, rest);
        }
        Some(self)
    }

    /// Returns the direction from a cooked capture: `Some(true)` is sent, `Some(false)` received.
    #[must_use]
    pub fn outbound(&self) -> Option<bool> {
        self.packet_type.map(|kind| kind == 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_vlan_tags_are_removed() {
        let mut frame = [0; 14 + 4 + 4 + 1];
        frame[12..14].copy_from_slice(&[0x88, 0xa8]);
        frame[14..18].copy_from_slice(&[0x00, 0x64, 0x81, 0x00]);
        frame[18..22].copy_from_slice(&[0xa0, 0x07, 0x08, 0x00]);
        frame[22] = 0x45;
        let link = LinkType::ETHERNET.split(&frame).unwrap();
        assert_eq!((link.ether_type, link.rest), (EtherType::IPV4, &[0x45][..]));
        assert_eq!(link.tags.map(|tag| tag.map(|tag| tag.id)), [Some(100), Some(7)]);
        assert!(LinkType::ETHERNET.split(&frame[..20]).is_none());
    }

    #[test]
    fn a_cooked_capture_tells_the_direction() {
        let mut sll = [0; 17];
        sll[1] = 4;
        sll[14..16].copy_from_slice(&[0x86, 0xdd]);
        let link = LinkType::LINUX_SLL.split(&sll).unwrap();
        assert_eq!((link.ether_type, link.outbound(), link.rest.len()), (EtherType::IPV6, Some(true), 1));
        let mut sll2 = [0; 21];
        sll2[..2].copy_from_slice(&[0x08, 0x00]);
        sll2[7] = 3;
        let link = LinkType::LINUX_SLL2.split(&sll2).unwrap();
        assert_eq!((link.ether_type, link.outbound(), link.ifindex), (EtherType::IPV4, Some(false), Some(3)));
    }

    #[test]
    fn the_ip_version_tells_the_type_of_a_raw_packet() {
        assert_eq!(LinkType::RAW.split(&[0x45]).unwrap().ether_type, EtherType::IPV4);
        assert_eq!(LinkType::RAW.split(&[0x60]).unwrap().ether_type, EtherType::IPV6);
        assert!(LinkType::RAW.split(&[0x00]).is_none());
        assert_eq!(LinkType::NULL.split(&[2, 0, 0, 0, 0x45]).unwrap().ether_type, EtherType::IPV4);
        assert_eq!(LinkType::LOOP.split(&[0, 0, 0, 24, 0x60]).unwrap().ether_type, EtherType::IPV6);
        assert!(LinkType(147).split(&[0x45; 64]).is_none());
    }
}
