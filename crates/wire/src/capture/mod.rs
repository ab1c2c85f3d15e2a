//! What capture files hold: records of pcap and pcapng, the link layers they begin with, and a RoCEv2 packet as an
//! onlooker sees it, perhaps cut short.
//!
//! Everything works on bytes at hand; who reads a file keeps the list of interfaces and decides what to do with damage.

mod conditions;
mod link;
mod pcap;
mod pcapng;
mod seen;

pub use conditions::{Conditions, OpcodeSet, PsnRange, is_nak};
pub use link::{Link, LinkType};
pub use pcap::{FileHeader, RecordHeader};
pub use pcapng::{
    Block, BlockHeader, EnhancedPacket, Interface, InterfaceStatistics, Options, Resolution, option,
};
pub use seen::{IcrcCheck, NotRoce, Seen};

use crate::bytes::array;

/// Byte order of a file's numbers: that of the machine that wrote it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Order {
    /// The 16-bit number at `at`, or `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(*bytes),
            Self::Big => u16::from_be_bytes(*bytes),
        })
    }

    /// The 32-bit number at `at`, or `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(*bytes),
            Self::Big => u32::from_be_bytes(*bytes),
        })
    }

    /// The 64-bit number at `at`, or `None` beyond the end.
    #[must_use]
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let bytes = array(bytes.get(at..)?.first_chunk::<8>()?, 0);
        Some(match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        })
    }

    /// Two halves of a 64-bit number, the upper one first whatever the order, as pcapng stores time.
    #[must_use]
    #[inline]
    pub fn halves(self, bytes: &[u8], at: usize) -> Option<u64> {
        Some(u64::from(self.u32(bytes, at)?) << 32 | u64::from(self.u32(bytes, at + 4)?))
    }
}
