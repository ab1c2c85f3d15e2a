//! Messages between the two ends of an rsocket (rsocket(7), rdma-core): private data of the connection
//! request and reply, immediate data of WRITEs, and entries that each end writes into the other's tables.
//!
//! The sender writes the stream into memory that the receiver has granted, a [`Segment`]. Each WRITE carries
//! a [`Message`] as immediate data. Private data and messages are big-endian; table entries have the byte
//! order of the end that owns the table, see [`ByteOrder`].
//!
//! ```text
//! | version = 1   | flags         |            credits            |
//! |                   reserved                    |  iomap size   |
//! |                       table: segment                          |
//! |                       memory: segment                         |
//! ```

pub mod datagram;

use crate::bytes::{array, put, u16_at, u32_at, u64_at};
use crate::keys::Rkey;

/// Byte order of one end of the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first (network order).
    Big,
}

impl ByteOrder {
    /// Byte order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };

    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(array(bytes, at)),
            Self::Big => u32_at(bytes, at),
        }
    }

    fn u64(self, bytes: &[u8], at: usize) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(array(bytes, at)),
            Self::Big => u64_at(bytes, at),
        }
    }

    fn put_u32(self, bytes: &mut [u8], at: usize, value: u32) {
        put(bytes, at, if self == Self::Big { value.to_be_bytes() } else { value.to_le_bytes() });
    }

    fn put_u64(self, bytes: &mut [u8], at: usize, value: u64) {
        put(bytes, at, if self == Self::Big { value.to_be_bytes() } else { value.to_le_bytes() });
    }
}

/// A part of one end's memory that the peer may write to. In [`Hello::table`], `length` counts entries
/// instead of bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Segment {
    /// Virtual address of the first byte.
    pub addr: u64,
    /// R_Key of the memory region.
    pub key: Rkey,
    /// Length in bytes.
    pub length: u32,
}

impl Segment {
    /// Length of a table entry, in bytes.
    pub const LEN: usize = 16;

    /// Decodes the wire format.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN], order: ByteOrder) -> Self {
        Self { addr: order.u64(bytes, 0), key: Rkey(order.u32(bytes, 8)), length: order.u32(bytes, 12) }
    }

    /// Encodes into the wire format.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN], order: ByteOrder) {
        order.put_u64(bytes, 0, self.addr);
        order.put_u32(bytes, 8, self.key.0);
        order.put_u32(bytes, 12, self.length);
    }
}

/// Memory that the peer's application maps at an offset (`riomap`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Iomap {
    /// Offset of the first byte.
    pub offset: u64,
    /// Memory that is mapped there.
    pub segment: Segment,
}

impl Iomap {
    /// Length of a table entry, in bytes.
    pub const LEN: usize = 24;

    /// Decodes the wire format.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN], order: ByteOrder) -> Self {
        Self { offset: order.u64(bytes, 0), segment: Segment::parse(&array(bytes, 8), order) }
    }

    /// Encodes into the wire format.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN], order: ByteOrder) {
        order.put_u64(bytes, 0, self.offset);
        let mut segment = [0; Segment::LEN];
        self.segment.emit(&mut segment, order);
        put(bytes, 8, segment);
    }
}

/// Private data of the connection request and of the reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hello {
    /// Byte order of the sender.
    pub order: ByteOrder,
    /// Number of messages that the sender can receive.
    pub credits: u16,
    /// Number of [`Iomap`] entries after the sender's table; see [`iomaps_on_the_wire`].
    pub iomaps: u16,
    /// The sender's table. The peer writes later grants into it in turn, starting with entry 1. `length` is
    /// the number of entries.
    pub table: Segment,
    /// The first grant.
    pub memory: Segment,
}

impl Hello {
    /// Length in the private data, in bytes.
    pub const LEN: usize = 40;
    const VERSION: u8 = 1;
    const FLAG_BIG_ENDIAN: u8 = 1;
    const FLAG_IOMAP: u8 = 2;

    /// Decodes the private data. Returns `None` if the version is not 1.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        if bytes[0] != Self::VERSION {
            return None;
        }
        let big = bytes[1] & Self::FLAG_BIG_ENDIAN != 0;
        let maps = bytes[1] & Self::FLAG_IOMAP != 0;
        Some(Self {
            order: if big { ByteOrder::Big } else { ByteOrder::Little },
            credits: u16_at(bytes, 2),
            iomaps: if maps { iomaps_of_wire(bytes[7]) } else { 0 },
            table: Segment::parse(&array(bytes, 8), ByteOrder::Big),
            memory: Segment::parse(&array(bytes, 24), ByteOrder::Big),
        })
    }

    /// Encodes into the wire format.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let big = if self.order == ByteOrder::Big { Self::FLAG_BIG_ENDIAN } else { 0 };
        *bytes = [0; Self::LEN];
        bytes[0] = Self::VERSION;
        bytes[1] = Self::FLAG_IOMAP | big;
        put(bytes, 2, self.credits.to_be_bytes());
        bytes[7] = iomaps_on_the_wire(self.iomaps);
        let mut segment = [0; Segment::LEN];
        self.table.emit(&mut segment, ByteOrder::Big);
        put(bytes, 8, segment);
        self.memory.emit(&mut segment, ByteOrder::Big);
        put(bytes, 24, segment);
    }
}

/// Encodes a number of iomap entries as one byte: up to 128 exactly, above that in steps of 256.
#[must_use]
pub fn iomaps_on_the_wire(entries: u16) -> u8 {
    match u8::try_from(entries) {
        Ok(few) if few <= 0x80 => few,
        _ => 0x80 | ((entries >> 8) as u8 & 0x7f),
    }
}

fn iomaps_of_wire(byte: u8) -> u16 {
    if byte <= 0x80 { u16::from(byte) } else { u16::from(byte & 0x7f) << 8 }
}

/// Returns the number of entries that a peer decodes if this end announces `entries`.
#[must_use]
pub fn iomaps_as_told(entries: u16) -> u16 {
    iomaps_of_wire(iomaps_on_the_wire(entries))
}

/// Meaning of a [`Message::Control`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Control {
    /// The sender closes the connection.
    Disconnect,
    /// Keep-alive; no further meaning.
    KeepAlive,
    /// The sender will not send any more.
    Shutdown,
}

/// Immediate data of a WRITE. The upper three bits are the kind, the others its value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Message {
    /// Number of stream bytes that were written.
    Data(u32),
    /// The sender can receive messages up to this number, counted from 0 modulo 2^16. If the WRITE has 16
    /// bytes, they are the next grant.
    Credits(u16),
    /// Index of the receiver's iomap entry that was written.
    Iomap(u16),
    /// State of the connection.
    Control(Control),
    /// Reserved kind or unknown control.
    Unknown(u32),
}

impl Message {
    /// Largest byte count of a [`Message::Data`], and so of a WRITE of a stream.
    pub const DATA_MAX: u32 = (1 << 29) - 1;
    const DATA: u32 = 0;
    const CREDITS: u32 = 4;
    const IOMAP: u32 = 6;
    const CONTROL: u32 = 7;

    /// Decodes the wire format.
    #[must_use]
    pub fn parse(bytes: [u8; 4]) -> Self {
        let word = u32::from_be_bytes(bytes);
        let value = word & Self::DATA_MAX;
        match (word >> 29, value) {
            (Self::DATA, _) => Self::Data(value),
            (Self::CREDITS, _) => Self::Credits(value as u16),
            (Self::IOMAP, _) => Self::Iomap(value as u16),
            (Self::CONTROL, 0) => Self::Control(Control::Disconnect),
            (Self::CONTROL, 1) => Self::Control(Control::KeepAlive),
            (Self::CONTROL, 2) => Self::Control(Control::Shutdown),
            _ => Self::Unknown(word),
        }
    }

    /// Encodes into the wire format.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 4] {
        let (kind, value) = match self {
            Self::Data(bytes) => (Self::DATA, bytes & Self::DATA_MAX),
            Self::Credits(limit) => (Self::CREDITS, u32::from(limit)),
            Self::Iomap(index) => (Self::IOMAP, u32::from(index)),
            Self::Control(Control::Disconnect) => (Self::CONTROL, 0),
            Self::Control(Control::KeepAlive) => (Self::CONTROL, 1),
            Self::Control(Control::Shutdown) => (Self::CONTROL, 2),
            Self::Unknown(word) => return word.to_be_bytes(),
        };
        (kind << 29 | value).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Private data of a connection request of rdma-core's rstream (tests/golden/cm-rstream-v4.pcap, first
    /// packet).
    const KERNEL_HELLO: [u8; Hello::LEN] = [
        0x01, 0x02, 0x01, 0x80, 0, 0, 0, 0, 0, 0, 0x55, 0x6d, 0x09, 0xad, 0x80, 0x00, 0, 0, 0x66, 0x1c, 0, 0,
        0, 2, 0, 0, 0x7f, 0x63, 0x69, 0x69, 0x80, 0x00, 0, 0, 0x67, 0x9c, 0, 0x08, 0, 0,
    ];

    #[test]
    fn the_request_of_rdma_core_decodes_and_encodes() {
        let hello = Hello::parse(&KERNEL_HELLO).unwrap();
        let want = Hello {
            order: ByteOrder::Little,
            credits: 384,
            iomaps: 0,
            table: Segment { addr: 0x556d_09ad_8000, key: Rkey(0x661c), length: 2 },
            memory: Segment { addr: 0x7f63_6969_8000, key: Rkey(0x679c), length: 1 << 19 },
        };
        assert_eq!(hello, want);
        let mut bytes = [0xff; Hello::LEN];
        hello.emit(&mut bytes);
        assert_eq!(bytes, KERNEL_HELLO);
    }

    #[test]
    fn an_unknown_version_is_refused() {
        let mut bytes = KERNEL_HELLO;
        bytes[0] = 2;
        assert_eq!(Hello::parse(&bytes), None);
    }

    #[test]
    fn table_entries_have_the_byte_order_of_their_owner() {
        let entry =
            Iomap { offset: 0x10, segment: Segment { addr: 0x1122_3344_5566_7788, key: Rkey(9), length: 5 } };
        let (mut little, mut big) = ([0; Iomap::LEN], [0; Iomap::LEN]);
        entry.emit(&mut little, ByteOrder::Little);
        entry.emit(&mut big, ByteOrder::Big);
        assert_eq!(little[..10], [0x10, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x77]);
        assert_eq!(big[..10], [0, 0, 0, 0, 0, 0, 0, 0x10, 0x11, 0x22]);
        assert_eq!(Iomap::parse(&little, ByteOrder::Little), entry);
        assert_eq!(Iomap::parse(&big, ByteOrder::Big), entry);
    }

    #[test]
    fn more_than_128_iomaps_are_announced_in_steps_of_256() {
        assert_eq!([0, 1, 128, 129, 256, 300, 1024].map(iomaps_as_told), [0, 1, 128, 128, 256, 256, 1024]);
    }

    #[test]
    fn every_word_decodes_to_a_message() {
        for kind in 0..8u32 {
            for value in [0, 1, 2, 3, 0xffff, Message::DATA_MAX] {
                let word = (kind << 29 | value).to_be_bytes();
                let again = Message::parse(word).to_bytes();
                // The numbers of credits and of iomap entries have 16 bits.
                let mask = if matches!(kind, 4 | 6) { 0xffff } else { Message::DATA_MAX };
                assert_eq!(again, (kind << 29 | value & mask).to_be_bytes());
            }
        }
        assert_eq!(Message::parse([0xe0, 0, 0, 2]), Message::Control(Control::Shutdown));
        assert_eq!(Message::parse([0x80, 0, 0x01, 0x81]), Message::Credits(0x181));
    }
}
