//! Link layers of capture files: the bytes in front of the IP header.

use super::{NotRoce, encap};
use crate::bytes::{u16_at, u32_at};
use crate::eth::{EtherType, Ethernet, VlanTag};

/// Types of an ERF record that hold Ethernet frames: plain, with a colour, a stream or a hash.
const ERF_ETHERNET: [u8; 4] = [2, 11, 16, 20];
/// Types of an ERF record that hold InfiniBand packets: captured on a link, or at its end.
const ERF_INFINIBAND: [u8; 2] = [21, 25];

/// Link type of a captured packet (the `LINKTYPE_` numbers of tcpdump.org).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: a protocol family in the byte order of the host.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// PPP.
    pub const PPP: Self = Self(9);
    /// PPP in frames like those of HDLC.
    pub const PPP_HDLC: Self = Self(50);
    /// A PPPoE session without its Ethernet header.
    pub const PPP_ETHER: Self = Self(51);
    /// IPv4 or IPv6 without a link layer. 12 and 14 mean the same on some systems.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: a protocol family, big-endian.
    pub const LOOP: Self = Self(108);
    /// Linux "any" device, version 1.
    pub const LINUX_SLL: Self = Self(113);
    /// A record of Endace's cards, with a packet in it.
    pub const ERF: Self = Self(197);
    /// IPv4 without a link layer.
    pub const IPV4: Self = Self(228);
    /// IPv6 without a link layer.
    pub const IPV6: Self = Self(229);
    /// InfiniBand: the local route header and what follows.
    pub const INFINIBAND: Self = Self(247);
    /// Linux "any" device, version 2.
    pub const LINUX_SLL2: Self = Self(276);

    /// Returns the name of the link type, or `None` if this crate cannot read it.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NULL => "BSD loopback",
            Self::ETHERNET => "Ethernet",
            Self::PPP | Self::PPP_HDLC => "PPP",
            Self::PPP_ETHER => "PPPoE",
            Self::RAW | Self(12 | 14) => "raw IP",
            Self::LOOP => "OpenBSD loopback",
            Self::LINUX_SLL => "Linux cooked v1",
            Self::ERF => "ERF",
            Self::INFINIBAND => "InfiniBand",
            Self::IPV4 => "raw IPv4",
            Self::IPV6 => "raw IPv6",
            Self::LINUX_SLL2 => "Linux cooked v2",
            _ => return None,
        })
    }

    /// Returns why [`LinkType::split`] refuses a packet.
    pub(super) fn refusal(self, packet: &[u8]) -> NotRoce {
        match self {
            Self::ERF => erf(packet).map_or_else(|reason| reason, |(inner, rest)| inner.refusal(rest)),
            Self::INFINIBAND if packet.len() >= Lrh::LEN => NotRoce::LinkType(self),
            _ if self.name().is_none() => NotRoce::LinkType(self),
            _ => NotRoce::Link,
        }
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
            Self::PPP | Self::PPP_HDLC => {
                let (ether_type, rest) = encap::ppp(packet)?;
                Some(Link::bare(ether_type, rest))
            }
            Self::PPP_ETHER => Some(Link::bare(encap::PPPOE, packet)),
            Self::ERF => erf(packet).ok().and_then(|(inner, rest)| inner.split(rest)),
            Self::INFINIBAND => Lrh::split(packet),
            _ => None,
        }
    }
}

/// Removes the header of an ERF record. Returns the link type of the packet in it, and the packet.
fn erf(record: &[u8]) -> Result<(LinkType, &[u8]), NotRoce> {
    const HAS_EXTENSION: u8 = 0x80;
    let (header, mut rest) = record.split_first_chunk::<16>().ok_or(NotRoce::Link)?;
    // Two bytes of padding are in front of an Ethernet header.
    let (inner, padding) = match header[8] & !HAS_EXTENSION {
        kind if ERF_ETHERNET.contains(&kind) => (LinkType::ETHERNET, 2),
        kind if ERF_INFINIBAND.contains(&kind) => (LinkType::INFINIBAND, 0),
        22 | 23 => (LinkType::RAW, 0),
        _ => return Err(NotRoce::LinkType(LinkType::ERF)),
    };
    let mut more = header[8] & HAS_EXTENSION != 0;
    while more {
        let (extension, behind) = rest.split_first_chunk::<8>().ok_or(NotRoce::Link)?;
        (more, rest) = (extension[0] & HAS_EXTENSION != 0, behind);
    }
    Ok((inner, rest.get(padding..).ok_or(NotRoce::Link)?))
}

/// The local route header of InfiniBand (IBA 7.7).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lrh {
    /// Virtual lane.
    pub vl: u8,
    /// Version.
    pub version: u8,
    /// Service level.
    pub sl: u8,
    /// Header that follows: 2 is a BTH, 3 a GRH.
    pub next: u8,
    /// Local identifier of the receiving port.
    pub dst: u16,
    /// Length from this header to the ICRC, in words of 4 bytes.
    pub len_words: u16,
    /// Local identifier of the sending port.
    pub src: u16,
}

impl Lrh {
    /// `next` of a packet without a GRH.
    pub const NEXT_BTH: u8 = 2;
    /// `next` of a packet with a GRH.
    pub const NEXT_GRH: u8 = 3;
    /// Bytes on the wire.
    const LEN: usize = 8;

    /// The packet without this header. One with a GRH looks like RoCEv1 from here on.
    fn split(packet: &[u8]) -> Option<Link<'_>> {
        let (header, rest) = packet.split_first_chunk::<{ Self::LEN }>()?;
        let lrh = Self {
            vl: header[0] >> 4,
            version: header[0] & 15,
            sl: header[1] >> 4,
            next: header[1] & 3,
            dst: u16_at(header, 2),
            len_words: u16_at(header, 4) & 0x7ff,
            src: u16_at(header, 6),
        };
        matches!(lrh.next, Self::NEXT_BTH | Self::NEXT_GRH)
            .then(|| Link { lrh: Some(lrh), ..Link::bare(EtherType::ROCE_V1, rest) })
    }

    /// Bytes from the BTH to the ICRC of a packet without a GRH of which `there` bytes behind this header
    /// were captured. The VCRC may be among them. A longer packet was cut by the capture, if it is longer by
    /// more than writers miscount headers; a shorter length is wrong.
    pub(super) fn payload_len(&self, there: usize) -> usize {
        const VCRC_LEN: usize = 2;
        const MISCOUNT_MAX: usize = 16;
        let len = (usize::from(self.len_words) * 4).saturating_sub(Self::LEN);
        if len > there + MISCOUNT_MAX || len + VCRC_LEN == there { len } else { there }
    }
}

/// A packet without its link layer, and what the link layer said.
#[derive(Clone, Copy, Debug)]
pub struct Link<'a> {
    /// The Ethernet header, if the capture has one.
    pub ethernet: Option<Ethernet>,
    /// The local route header of InfiniBand.
    pub lrh: Option<Lrh>,
    /// The bytes of all VLAN tags; see [`Link::tags`].
    tags: &'a [u8],
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
    /// Types that announce a tag: 802.1Q, 802.1ad, and those that switches used before it.
    const TAGS: [EtherType; 5] =
        [EtherType::VLAN, EtherType(0x88a8), EtherType(0x9100), EtherType(0x9200), EtherType(0x9300)];

    const fn bare(ether_type: EtherType, rest: &'a [u8]) -> Self {
        Self { ethernet: None, lrh: None, tags: &[], packet_type: None, ifindex: None, ether_type, rest }
    }

    /// Removes VLAN tags, however many.
    #[inline]
    fn untagged(mut self) -> Option<Self> {
        let behind = self.rest;
        while Self::TAGS.contains(&self.ether_type) {
            let (bytes, rest) = self.rest.split_first_chunk()?;
            (self.ether_type, self.rest) = (VlanTag::parse(bytes).ether_type, rest);
        }
        self.tags = &behind[..behind.len() - self.rest.len()];
        Some(self)
    }

    /// Returns the VLAN tags, the outermost first.
    pub fn tags(&self) -> impl Iterator<Item = VlanTag> + '_ {
        self.tags.as_chunks().0.iter().map(VlanTag::parse)
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
    fn any_number_of_vlan_tags_is_removed() {
        let mut frame = [0; 14 + 3 * 4 + 1];
        frame[12..14].copy_from_slice(&[0x91, 0x00]);
        frame[14..18].copy_from_slice(&[0x00, 0x64, 0x88, 0xa8]);
        frame[18..22].copy_from_slice(&[0x00, 0x09, 0x81, 0x00]);
        frame[22..26].copy_from_slice(&[0xa0, 0x07, 0x08, 0x00]);
        frame[26] = 0x45;
        let link = LinkType::ETHERNET.split(&frame).unwrap();
        assert_eq!((link.ether_type, link.rest), (EtherType::IPV4, &[0x45][..]));
        assert!(link.tags().map(|tag| tag.id).eq([100, 9, 7]));
        assert!(LinkType::ETHERNET.split(&frame[..24]).is_none());
    }

    #[test]
    fn the_type_of_an_erf_record_tells_another_kind_from_a_cut_one() {
        let mut record = [0; 40];
        for (kind, len, reason) in [
            (3, 40, NotRoce::LinkType(LinkType::ERF)),
            (0x83, 16, NotRoce::LinkType(LinkType::ERF)),
            (2, 31, NotRoce::Link),
            (0x80 | 11, 20, NotRoce::Link),
            (21, 23, NotRoce::Link),
            (21, 24, NotRoce::LinkType(LinkType::INFINIBAND)),
            (22, 16, NotRoce::Link),
            (3, 15, NotRoce::Link),
        ] {
            record[8] = kind;
            assert!(LinkType::ERF.split(&record[..len]).is_none());
            assert_eq!(LinkType::ERF.refusal(&record[..len]), reason, "{kind} {len}");
        }
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
