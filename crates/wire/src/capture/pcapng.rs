//! The pcapng file format: blocks of many kinds, each framed by its length (draft-ietf-opsawg-pcapng).
//!
//! ```text
//! | kind | length | body, padded to 4 ... | length |
//! ```
//!
//! A file is one or more sections, each with a byte order and interfaces of its own.

use super::{LinkType, Order};

/// Kind and length of a block, before anything is known about its body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockHeader {
    /// What the body is.
    pub kind: u32,
    /// Bytes of the whole block, both lengths included.
    pub len: u32,
}

impl BlockHeader {
    /// Bytes in front of the body.
    pub const LEN: usize = 8;
    /// Shortest block: an empty body.
    pub const BLOCK_MIN: u32 = 12;

    /// A section begins; reads the same in both byte orders.
    pub const SECTION: u32 = 0x0a0d_0d0a;
    /// An interface.
    pub const INTERFACE: u32 = 1;
    /// A packet in the form that pcapng files had before 2009.
    pub const OBSOLETE_PACKET: u32 = 2;
    /// A packet without time.
    pub const SIMPLE_PACKET: u32 = 3;
    /// Names of addresses.
    pub const NAMES: u32 = 4;
    /// Counters of an interface.
    pub const STATISTICS: u32 = 5;
    /// A packet.
    pub const ENHANCED_PACKET: u32 = 6;

    /// Decodes.
    #[must_use]
    #[inline]
    pub fn parse(order: Order, bytes: &[u8; Self::LEN]) -> Self {
        Self { kind: order.u32(bytes, 0).unwrap_or(0), len: order.u32(bytes, 4).unwrap_or(0) }
    }

    /// The byte order of the section that begins here, if one does.
    #[must_use]
    pub fn section_order(bytes: &[u8]) -> Option<Order> {
        let magic = bytes.get(Self::LEN..)?;
        (Order::Big.u32(bytes, 0)? == Self::SECTION).then_some(())?;
        [Order::Little, Order::Big].into_iter().find(|order| order.u32(magic, 0) == Some(0x1a2b_3c4d))
    }

    /// Whether the length is one a block can have.
    #[must_use]
    #[inline]
    pub const fn len_ok(&self) -> bool {
        self.len >= Self::BLOCK_MIN && self.len.is_multiple_of(4)
    }
}

/// A block's body, decoded.
#[derive(Clone, Copy, Debug)]
pub enum Block<'a> {
    /// A new section: what was known about interfaces is void.
    Section,
    /// The section's next interface.
    Interface(Interface<'a>),
    /// A packet, in whichever form.
    Packet(EnhancedPacket<'a>),
    /// Counters.
    Statistics(InterfaceStatistics),
    /// Anything else.
    Other,
}

impl<'a> Block<'a> {
    /// Decodes a body; `None` if it is too short for its kind.
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

/// Codes of options.
pub mod option {
    /// No more options.
    pub const END: u16 = 0;
    /// Of any block: text for people.
    pub const COMMENT: u16 = 1;
    /// Of an interface: its name.
    pub const INTERFACE_NAME: u16 = 2;
    /// Of an interface: unit of time.
    pub const INTERFACE_RESOLUTION: u16 = 9;
    /// Of an interface: seconds to be added to every time.
    pub const INTERFACE_OFFSET: u16 = 14;
    /// Of a packet: direction, link-layer errors.
    pub const PACKET_FLAGS: u16 = 2;
    /// Of a packet: packets lost since the one before.
    pub const PACKET_DROPS: u16 = 4;
    /// Of statistics: packets that arrived at the interface.
    pub const STATISTICS_RECEIVED: u16 = 4;
    /// Of statistics: packets the interface lost.
    pub const STATISTICS_INTERFACE_DROPS: u16 = 5;
    /// Of statistics: packets the operating system lost.
    pub const STATISTICS_SYSTEM_DROPS: u16 = 7;
}

/// The options at the end of a block, as pairs of code and value.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    order: Order,
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    fn new(order: Order, rest: &'a [u8]) -> Self {
        Self { order, rest }
    }

    /// The first value with this code.
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

/// What a section says about an interface.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// What its packets begin with.
    pub link_type: LinkType,
    /// Longest packet the writer meant to store; 0 means no limit.
    pub snap_len: u32,
    /// Unit of its packets' times.
    pub resolution: Resolution,
    /// Seconds to be added to them.
    pub offset_s: i64,
    /// All options; its name is [`option::INTERFACE_NAME`].
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

/// Unit of time of an interface: a negative power of 10, or of 2 if the highest bit is set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resolution(pub u8);

impl Resolution {
    /// What holds where nothing is said.
    pub const MICROSECONDS: Self = Self(6);
    /// Nanoseconds.
    pub const NANOSECONDS: Self = Self(9);

    /// Nanoseconds of so many units; the largest number if they are more than 64 bits hold.
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

/// A packet. The simple and the obsolete form are brought into this one.
#[derive(Clone, Copy, Debug)]
pub struct EnhancedPacket<'a> {
    /// Index among the section's interfaces.
    pub interface: u32,
    /// In units of the interface; 0 in the simple form.
    pub ticks: u64,
    /// Bytes the packet had on the wire.
    pub original: u32,
    /// Bytes stored. Fewer than the block promises if it promises more than it holds.
    pub data: &'a [u8],
    /// Comments, direction, drops.
    pub options: Options<'a>,
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
        })
    }

    fn simple(order: Order, body: &'a [u8]) -> Option<Self> {
        let original = order.u32(body, 0)?;
        let (data, _) = Self::data(order, body.get(4..)?, original);
        Some(Self { interface: 0, ticks: 0, original, data, options: Options::new(order, &[]) })
    }

    fn obsolete(order: Order, body: &'a [u8]) -> Option<Self> {
        let packet = Self::parse(order, body)?;
        // Sixteen bits of interface and as many of drops stand where the interface is now.
        Some(Self { interface: order.u16(body, 0)?.into(), ..packet })
    }

    fn data(order: Order, rest: &'a [u8], captured: u32) -> (&'a [u8], Options<'a>) {
        let captured = (captured as usize).min(rest.len());
        let options = rest.get(captured.next_multiple_of(4)..).unwrap_or_default();
        (&rest[..captured], Options::new(order, options))
    }

    /// Which way the packet went: `Some(true)` out, `Some(false)` in.
    #[must_use]
    pub fn outbound(&self) -> Option<bool> {
        let flags = self.options.order.u32(self.options.value(option::PACKET_FLAGS)?, 0)?;
        match flags & 3 {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        }
    }

    /// Packets the writer lost since the one before.
    #[must_use]
    pub fn drops(&self) -> u64 {
        self.options.u64(option::PACKET_DROPS).unwrap_or(0)
    }
}

/// Counters of an interface, as of some time in the capture.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InterfaceStatistics {
    /// Index among the section's interfaces.
    pub interface: u32,
    /// Packets that arrived.
    pub received: Option<u64>,
    /// Packets lost by the interface and by the operating system.
    pub drops: u64,
}

impl InterfaceStatistics {
    fn parse(order: Order, body: &[u8]) -> Option<Self> {
        let options = Options::new(order, body.get(12..)?);
        let drops = [option::STATISTICS_INTERFACE_DROPS, option::STATISTICS_SYSTEM_DROPS];
        Some(Self {
            interface: order.u32(body, 0)?,
            received: options.u64(option::STATISTICS_RECEIVED),
            drops: drops.iter().filter_map(|code| options.u64(*code)).fold(0, u64::saturating_add),
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_section_says_its_byte_order() {
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
    fn every_unit_of_time_becomes_nanoseconds() {
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
    fn a_block_that_promises_more_than_it_holds_gives_what_it_holds() {
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
