//! The pcap file format: one header, then records (draft-ietf-opsawg-pcap).
//!
//! ```text
//! | magic | major, minor | 0 | 0 | snap_len | link_type |     24 bytes
//! | seconds | fraction | captured | original | data ... |     16 bytes and the data
//!
//! Files of old tcpdumps for Linux have 8 more bytes in front of the data:
//! | interface index | protocol, 16 bits | packet type, 8 bits | 0 |
//! ```

use super::{LinkType, Order};

/// Header of a pcap file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FileHeader {
    /// Byte order of every number in the file's headers.
    pub order: Order,
    /// Whether fractions of a second are in nanoseconds; otherwise they are in microseconds.
    pub nanoseconds: bool,
    /// Longest record that the writer stores, in bytes; 0 means no limit.
    pub snap_len: u32,
    /// Link type of every record.
    pub link_type: LinkType,
    /// Whether records have the longer header of old tcpdumps for Linux.
    pub is_extended: bool,
}

impl FileHeader {
    /// Length in the file, in bytes.
    pub const LEN: usize = 24;

    const MICROSECONDS: u32 = 0xa1b2_c3d4;
    const NANOSECONDS: u32 = 0xa1b2_3c4d;
    const EXTENDED: u32 = 0xa1b2_cd34;

    /// Decodes the header. Returns `None` if the magic number is not that of a pcap file.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        [Order::Little, Order::Big].into_iter().find_map(|order| {
            let magic = order.u32(bytes, 0)?;
            let (nanoseconds, is_extended) = (magic == Self::NANOSECONDS, magic == Self::EXTENDED);
            if magic != Self::MICROSECONDS && !nanoseconds && !is_extended {
                return None;
            }
            // The upper half of the last word describes frame check sequences, which this crate does not use.
            let link_type = LinkType(order.u32(bytes, 20)? as u16);
            Some(Self { order, nanoseconds, snap_len: order.u32(bytes, 16)?, link_type, is_extended })
        })
    }

    /// Decodes the header of a file that begins at `bytes`, behind another file. Its version must be that of
    /// all files since 1998.
    #[must_use]
    pub fn of_next_file(bytes: &[u8]) -> Option<Self> {
        let header = Self::parse(bytes.first_chunk()?)?;
        let version = (header.order.u16(bytes, 4)?, header.order.u16(bytes, 6)?);
        (version == (2, 4)).then_some(header)
    }

    /// Length of the header of a record, in bytes.
    #[must_use]
    #[inline]
    pub const fn record_len(&self) -> usize {
        if self.is_extended { RecordHeader::LEN + 8 } else { RecordHeader::LEN }
    }
}

/// Header in front of each packet of a pcap file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecordHeader {
    /// Time of capture, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether the fraction of the time is less than a second. If not, the file is damaged.
    pub fraction_ok: bool,
    /// Bytes of the packet that the file holds.
    pub captured: u32,
    /// Bytes that the packet had on the wire.
    pub original: u32,
}

impl RecordHeader {
    /// Length in the file, in bytes.
    pub const LEN: usize = 16;

    /// Decodes the wire format.
    #[must_use]
    #[inline]
    pub fn parse(file: &FileHeader, bytes: &[u8; Self::LEN]) -> Self {
        let word = |at| file.order.u32(bytes, at).unwrap_or(0);
        let (seconds, fraction) = (u64::from(word(0)), u64::from(word(4)));
        let (units, ns) = if file.nanoseconds { (1_000_000_000, 1) } else { (1_000_000, 1000) };
        Self {
            time_ns: seconds * 1_000_000_000 + fraction * ns,
            fraction_ok: fraction < units,
            captured: word(8),
            original: word(12),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(order: Order, magic: u32) -> [u8; FileHeader::LEN] {
        let mut bytes = [0; FileHeader::LEN];
        for (at, value) in [(0, magic), (16, 262_144), (20, 0x1000_0001)] {
            bytes[at..at + 4].copy_from_slice(&match order {
                Order::Little => value.to_le_bytes(),
                Order::Big => value.to_be_bytes(),
            });
        }
        bytes
    }

    #[test]
    fn both_byte_orders_and_both_time_units_are_read() {
        for order in [Order::Little, Order::Big] {
            for (magic, nanoseconds, fraction_ns) in [(0xa1b2_c3d4, false, 7000), (0xa1b2_3c4d, true, 7)] {
                let file = FileHeader::parse(&header(order, magic)).unwrap();
                let link_type = LinkType::ETHERNET;
                let want =
                    FileHeader { order, nanoseconds, snap_len: 262_144, link_type, is_extended: false };
                assert_eq!(file, want);
                let mut record = [0; RecordHeader::LEN];
                for (at, value) in [(0, 3u32), (4, 7), (8, 60), (12, 1500)] {
                    record[at..at + 4].copy_from_slice(&match order {
                        Order::Little => value.to_le_bytes(),
                        Order::Big => value.to_be_bytes(),
                    });
                }
                let want = RecordHeader {
                    time_ns: 3_000_000_000 + fraction_ns,
                    fraction_ok: true,
                    captured: 60,
                    original: 1500,
                };
                assert_eq!(RecordHeader::parse(&file, &record), want);
            }
        }
    }

    #[test]
    fn an_unknown_magic_number_is_refused() {
        assert_eq!(FileHeader::parse(&header(Order::Little, 0x0a0d_0d0a)), None);
        assert_eq!(FileHeader::parse(&[0; FileHeader::LEN]), None);
    }

    #[test]
    fn a_fraction_of_a_whole_second_is_reported() {
        let file = FileHeader::parse(&header(Order::Little, 0xa1b2_c3d4)).unwrap();
        let mut record = [0; RecordHeader::LEN];
        record[4..8].copy_from_slice(&1_000_000u32.to_le_bytes());
        assert!(!RecordHeader::parse(&file, &record).fraction_ok);
    }
}
