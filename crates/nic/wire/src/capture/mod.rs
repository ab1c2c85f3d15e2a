//! Capture files: records of pcap and pcapng, link layers, and RoCEv2 packets that the capture may have cut
//! short.
//!
//! All functions decode bytes that the caller has read. The caller keeps the list of interfaces and handles
//! damaged files.

mod conditions;
mod control;
mod decode_as;
mod encap;
mod fragment;
mod link;
mod not_roce;
mod pcap;
mod pcapng;
mod seen;
mod tunnel;

pub use conditions::{Conditions, OpcodeSet, PsnRange, is_nak};
pub use control::{Classes, Control, LinkControl};
pub use decode_as::{Carried, DecodeAs, Ports};
pub use encap::TunnelKind;
pub use fragment::{Fragment, FragmentKey};
pub use link::{Link, LinkType, Lrh};
pub use not_roce::NotRoce;
pub use pcap::{FileHeader, RecordHeader};
pub use pcapng::{
    Block, BlockHeader, EnhancedPacket, Interface, InterfaceStatistics, Options, Resolution, option,
};
pub use seen::{IcrcCheck, Seen};
pub use tunnel::{TUNNELS_MAX, Tunnel, tunnels};

use crate::bytes::array;

/// Byte order of the numbers in a file, that of the machine that wrote it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Order {
    /// Returns the 16-bit number at offset `at`, or `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(*bytes),
            Self::Big => u16::from_be_bytes(*bytes),
        })
    }

    /// Returns the 32-bit number at offset `at`, or `None` beyond the end.
    #[must_use]
    #[inline]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(*bytes),
            Self::Big => u32::from_be_bytes(*bytes),
        })
    }

    /// Returns the 64-bit number at offset `at`, or `None` beyond the end.
    #[must_use]
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let bytes = array(bytes.get(at..)?.first_chunk::<8>()?, 0);
        Some(match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        })
    }

    /// Returns a 64-bit number stored as two 32-bit halves, the upper half first in either byte order. pcapng
    /// stores times this way.
    #[must_use]
    #[inline]
    pub fn halves(self, bytes: &[u8], at: usize) -> Option<u64> {
        Some(u64::from(self.u32(bytes, at)?) << 32 | u64::from(self.u32(bytes, at + 4)?))
    }
}
