//! The pcapng file format: a sequence of blocks, each framed by its length (draft-ietf-opsawg-pcapng).
//!
//! ```text
//! | kind | length | body, padded to 4 ... | length |
//! ```
//!
//! A file has one or more sections. Each section has its own byte order and its own list of interfaces.

use super::{LinkType, Order};

/// Kind and length of a block. They can be read before the body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockHeader {
    /// Kind of the block, one of the constants below.
    pub kind: u32,
    /// Length of the whole block in bytes, with both length fields.
    pub len: u32,
}

impl BlockHeader {
    /// Length of the kind and the first length field, in bytes.
    pub const LEN: usize = 8;
    /// Length of the shortest block, one with an empty body, in bytes.
    pub const BLOCK_MIN: u32 = 12;

    /// Section header. The value reads the same in both byte orders.
    pub const SECTION: u32 = 0x0a0d_0d0a;
    /// Interface description.
    pub const INTERFACE: u32 = 1;
    /// Packet in the obsolete form that files had before 2009.
    pub const OBSOLETE_PACKET: u32 = 2;
    /// Packet without a time.
    pub const SIMPLE_PACKET: u32 = 3;
    /// Name resolution: names of addresses.
    pub const NAMES: u32 = 4;
    /// Interface statistics.
    pub const STATISTICS: u32 = 5;
    /// Enhanced packet, the usual form.
    pub const ENHANCED_PACKET: u32 = 6;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(order: Order, bytes: &[u8; Self::LEN]) -> Self {
        Self { kind: order.u32(bytes, 0).unwrap_or(0), len: order.u32(bytes, 4).unwrap_or(0) }
    }

    /// Returns the byte order of the section that starts here, or `None` if `bytes` is no section header.
    #[must_use]
    pub fn section_order(bytes: &[u8]) -> Option<Order> {
        let magic = bytes.get(Self::LEN..)?;
        (Order::Big.u32(bytes, 0)? == Self::SECTION).then_some(())?;
        [Order::Little, Order::Big].into_iter().find(|order| order.u32(magic, 0) == Some(0x1a2b_3c4d))
    }

    /// Returns whether the length is valid: at least [`BlockHeader::BLOCK_MIN`] and a multiple of 4.
    #[must_use]
    #[inline]
    pub const fn len_ok(&self) -> bool {
        self.len >= Self::BLOCK_MIN && self.len.is_multiple_of(4)
    }
}

/// The decoded body of a block.
#[derive(Clone, Copy, Debug)]
pub enum Block<'a> {
    /// A new section. Interfaces of the previous section are no longer valid.
    Section,
    /// The next interface of the section.
    Interface(Interface<'a>),
    /// A packet in any of the three forms.
    Packet(EnhancedPacket<'a>),
    /// Counters of an interface.
    Statistics(InterfaceStatistics<'a>),
    /// A block of another kind.
    Other,
}

impl<'a> Block<'a> {
    /// Decodes the body of a block. Returns `None` if the body is too short for its kind.
    #[must_use]
    #[inline]
    pub fn parse(order: Order, kind: u32, body: &'a [u8]) -> Option<Self> {
        Some(match kind {
            BlockHeader::ENHANCED_PACKET => Self::Packet(EnhancedPacket::parse(order, body)?),
            BlockHeader::SIMPLE_PACKET => Self::Packet(EnhancedPacket::simple(order, body)?),
            BlockHeader::OBSOLETE_PACKET => Self::Packet(EnhancedPacket::obsolete(order, body)?),
            BlockHeader::SECTION => Self::Section,
            BlockHeader::INTERFACE => Self::Interface(Interface::parse(order, body)?),
            BlockHeader::STATISTICS => Self::Statistics(InterfaceStatistics::parse(order, body)?),
            _ => Self::Other,
        })
    }
}

/// Option codes. A code has a different meaning in each kind of block.
pub mod option {
    /// End of the options.
    pub const END: u16 = 0;
    /// Any block: comment text.
    pub const COMMENT: u16 = 1;
    /// Interface: name.
    pub const INTERFACE_NAME: u16 = 2;
    /// Interface: unit of time, see [`Resolution`](super::Resolution).
    pub const INTERFACE_RESOLUTION: u16 = 9;
    /// Interface: seconds to add to every time.
    pub const INTERFACE_OFFSET: u16 = 14;
    /// Packet: direction and link-layer errors.
    pub const PACKET_FLAGS: u16 = 2;
    /// Packet: packets lost since the previous one.
    pub const PACKET_DROPS: u16 = 4;
    /// Packet: verdict of the program that judged it: a kind ([`XDP_VERDICT`]) and the verdict, in 8 bytes.
    pub const PACKET_VERDICT: u16 = 7;
    /// The verdict is that of an XDP program (`enum xdp_action`).
    pub const XDP_VERDICT: u8 = 2;
    /// Statistics: packets that arrived at the interface.
    pub const STATISTICS_RECEIVED: u16 = 4;
    /// Statistics: packets that the interface dropped.
    pub const STATISTICS_INTERFACE_DROPS: u16 = 5;
    /// Statistics: packets that the filter of the capture accepted.
    pub const STATISTICS_ACCEPTED: u16 = 6;
    /// Statistics: packets that the operating system dropped.
    pub const STATISTICS_SYSTEM_DROPS: u16 = 7;
    /// Statistics: packets that the capturing program received.
    pub const STATISTICS_DELIVERED: u16 = 8;
}

/// Iterator over the options at the end of a block, as pairs of code and value.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    order: Order,
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    fn new(order: Order, rest: &'a [u8]) -> Self {
        Self { order, rest }
    }

    /// Returns the first value with this code.
    #[must_use]
    pub fn value(mut self, code: u16) -> Option<&'a [u8]> {
        self.find(|option| option.0 == code).map(|option| option.1)
    }

    fn u64(self, code: u16) -> Option<u64> {
        self.order.u64(self.value(code)?, 0)
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (code, len) = (self.order.u16(self.rest, 0)?, usize::from(self.order.u16(self.rest, 2)?));
        if code == option::END {
            return None;
        }
        let value = self.rest.get(4..4 + len)?;
        self.rest = self.rest.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        Some((code, value))
    }
}

/// Description of an interface.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// Link type of its packets.
    pub link_type: LinkType,
    /// Longest packet that the writer stores, in bytes; 0 means no limit.
    pub snap_len: u32,
    /// Unit of the times of its packets.
    pub resolution: Resolution,
    /// Seconds to add to the times of its packets.
    pub offset_s: i64,
    /// All options. The name of the interface is [`option::INTERFACE_NAME`].
    pub options: Options<'a>,
}

impl<'a> Interface<'a> {
    fn parse(order: Order, body: &'a [u8]) -> Option<Self> {
        let options = Options::new(order, body.get(8..)?);
        let resolution = options.value(option::INTERFACE_RESOLUTION).and_then(|v| v.first().copied());
        Some(Self {
            link_type: LinkType(order.u16(body, 0)?),
            snap_len: order.u32(body, 4)?,
            resolution: resolution.map_or(Resolution::MICROSECONDS, Resolution),
            offset_s: options.u64(option::INTERFACE_OFFSET).unwrap_or(0).cast_signed(),
            options,
        })
    }
}

/// Unit of time of an interface: 10^-n seconds, or 2^-n seconds if the highest bit is set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resolution(pub u8);

impl Resolution {
    /// The default of a file that gives no resolution.
    pub const MICROSECONDS: Self = Self(6);
    /// Nanoseconds.
    pub const NANOSECONDS: Self = Self(9);

    /// Converts `ticks` to nanoseconds. Saturates at `u64::MAX`.
    #[must_use]
    #[inline]
    pub fn ns(self, ticks: u64) -> u64 {
        match self {
            Self::NANOSECONDS => ticks,
            Self::MICROSECONDS => ticks.saturating_mul(1000),
            Self(power) if power & 0x80 == 0 => match power.checked_sub(9) {
                None => ticks.saturating_mul(10u64.pow(9 - u32::from(power))),
                Some(over) => 10u64.checked_pow(over.into()).map_or(0, |unit| ticks / unit),
            },
            Self(power) => {
                let ns = (u128::from(ticks) * 1_000_000_000) >> (power & 0x7f);
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        }
    }
}

/// A packet. The simple and the obsolete form are converted to this one.
#[derive(Clone, Copy, Debug)]
pub struct EnhancedPacket<'a> {
    /// Index of the interface in the section.
    pub interface: u32,
    /// Time of capture in units of the interface's resolution; 0 in the simple form.
    pub ticks: u64,
    /// Bytes that the packet had on the wire.
    pub original: u32,
    /// The stored bytes. They end at the end of the block, even if the block states more.
    pub data: &'a [u8],
    /// Options: comments, direction, drops.
    pub options: Options<'a>,
    /// Packets lost since the previous one, by the field of the obsolete form.
    lost: u16,
}

impl<'a> EnhancedPacket<'a> {
    #[inline]
    fn parse(order: Order, body: &'a [u8]) -> Option<Self> {
        let (data, options) = Self::data(order, body.get(20..)?, order.u32(body, 12)?);
        Some(Self {
            interface: order.u32(body, 0)?,
            ticks: order.halves(body, 4)?,
            original: order.u32(body, 16)?,
            data,
            options,
            lost: 0,
        })
    }

    fn simple(order: Order, body: &'a [u8]) -> Option<Self> {
        let original = order.u32(body, 0)?;
        let (data, _) = Self::data(order, body.get(4..)?, original);
        Some(Self { interface: 0, ticks: 0, original, data, options: Options::new(order, &[]), lost: 0 })
    }

    fn obsolete(order: Order, body: &'a [u8]) -> Option<Self> {
        let packet = Self::parse(order, body)?;
        // The obsolete form has a 16-bit interface and a 16-bit drop count in place of the 32-bit interface.
        // All ones: not known.
        let lost = order.u16(body, 2).filter(|lost| *lost != u16::MAX).unwrap_or(0);
        Some(Self { interface: order.u16(body, 0)?.into(), lost, ..packet })
    }

    fn data(order: Order, rest: &'a [u8], captured: u32) -> (&'a [u8], Options<'a>) {
        let captured = (captured as usize).min(rest.len());
        let options = rest.get(captured.next_multiple_of(4)..).unwrap_or_default();
        (&rest[..captured], Options::new(order, options))
    }

    /// Returns the direction: `Some(true)` is sent, `Some(false)` received, `None` unknown.
    #[must_use]
    pub fn outbound(&self) -> Option<bool> {
        let flags = self.options.order.u32(self.options.value(option::PACKET_FLAGS)?, 0)?;
        match flags & 3 {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        }
    }

    /// Returns the verdict of the XDP program that judged the packet (`enum xdp_action`), if there is one.
    #[must_use]
    pub fn xdp_verdict(&self) -> Option<u8> {
        let value = self.options.value(option::PACKET_VERDICT)?;
        let (kind, verdict) = value.split_first()?;
        (*kind == option::XDP_VERDICT).then_some(())?;
        u8::try_from(self.options.order.u64(verdict, 0)?).ok()
    }

    /// Returns the number of packets that the writer lost since the previous one.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.options.u64(option::PACKET_DROPS).unwrap_or(self.lost.into())
    }
}

/// Counters of an interface at one moment of the capture.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceStatistics<'a> {
    /// Index of the interface in the section.
    pub interface: u32,
    /// Packets that arrived at the interface, if the file says so.
    pub received: Option<u64>,
    /// Packets dropped by the interface and by the operating system together; more if the capturing program
    /// did not receive others that its filter accepted.
    pub drops: u64,
    /// All options.
    pub options: Options<'a>,
}

impl<'a> InterfaceStatistics<'a> {
    fn parse(order: Order, body: &'a [u8]) -> Option<Self> {
        let options = Options::new(order, body.get(12..)?);
        let counter = |code| options.u64(code);
        let undelivered = match (counter(option::STATISTICS_ACCEPTED), counter(option::STATISTICS_DELIVERED))
        {
            (Some(accepted), Some(delivered)) => accepted.saturating_sub(delivered),
            _ => 0,
        };
        let drops = [option::STATISTICS_INTERFACE_DROPS, option::STATISTICS_SYSTEM_DROPS];
        Some(Self {
            interface: order.u32(body, 0)?,
            received: options.u64(option::STATISTICS_RECEIVED),
            drops: drops
                .iter()
                .filter_map(|code| options.u64(*code))
                .fold(0, u64::saturating_add)
                .max(undelivered),
            options,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_section_header_tells_its_byte_order() {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&BlockHeader::SECTION.to_le_bytes());
        bytes[8..].copy_from_slice(&0x1a2b_3c4du32.to_le_bytes());
        assert_eq!(BlockHeader::section_order(&bytes), Some(Order::Little));
        bytes[8..].reverse();
        assert_eq!(BlockHeader::section_order(&bytes), Some(Order::Big));
        bytes[8] = 0;
        assert_eq!(BlockHeader::section_order(&bytes), None);
        assert_eq!(BlockHeader::section_order(&bytes[..11]), None);
    }

    #[test]
    fn every_unit_of_time_converts_to_nanoseconds() {
        assert_eq!(Resolution(0).ns(3), 3_000_000_000);
        assert_eq!(Resolution(6).ns(1_700_000_000_123_456), 1_700_000_000_123_456_000);
        assert_eq!(Resolution(9).ns(17), 17);
        assert_eq!(Resolution(12).ns(17_999), 17);
        assert_eq!(Resolution(127).ns(u64::MAX), 0);
        assert_eq!(Resolution(0x80 | 10).ns(512), 500_000_000);
        assert_eq!(Resolution(0x80).ns(u64::MAX), u64::MAX);
        assert_eq!(Resolution(0xff).ns(u64::MAX), 0);
    }

    fn packet(options: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        for word in [2u32, 1, 5, 3, 99] {
            body.extend(word.to_le_bytes());
        }
        body.extend(b"abc\0");
        body.extend(options);
        body
    }

    #[test]
    fn a_packet_has_data_time_and_options() {
        let flags = [2, 0, 4, 0, 2, 0, 0, 0, 1, 0, 2, 0, b'h', b'i', 0, 0, 0, 0, 0, 0];
        let body = packet(&flags);
        let packet = EnhancedPacket::parse(Order::Little, &body).unwrap();
        assert_eq!((packet.interface, packet.ticks, packet.original), (2, 1 << 32 | 5, 99));
        assert_eq!((packet.data, packet.outbound(), packet.drops()), (&b"abc"[..], Some(true), 0));
        assert_eq!(packet.options.value(option::COMMENT), Some(&b"hi"[..]));
    }

    #[test]
    fn a_packet_longer_than_its_block_is_cut_to_the_block() {
        let mut body = packet(&[]);
        body[12] = 200;
        let packet = EnhancedPacket::parse(Order::Little, &body).unwrap();
        assert_eq!(packet.data, b"abc\0");
        assert!(EnhancedPacket::parse(Order::Little, &body[..19]).is_none());
    }

    #[test]
    fn an_option_longer_than_its_block_ends_the_options() {
        let body = packet(&[1, 0, 200, 0, b'x', 0, 0, 0]);
        let packet = EnhancedPacket::parse(Order::Little, &body).unwrap();
        assert_eq!(packet.options.count(), 0);
    }
}
