//! Keys: memory keys, partition keys and queue keys.

use core::fmt;

/// Local key: names a memory region in a scatter/gather element.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Lkey(pub u32);

/// Remote key: the peer sends it in RETH, AtomicETH or IETH to access a memory region.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Rkey(pub u32);

/// Partition key: 15 bits of partition number, and the full-member bit on top (IBA 10.9).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct PKey(pub u16);

impl PKey {
    /// Full member of the default partition, the only key that RoCE devices use.
    pub const DEFAULT: Self = Self(0xffff);

    const FULL_MEMBER: u16 = 0x8000;

    /// Returns whether ports with these keys may communicate: the partition is the same and at least one is a
    /// full member (IBA 10.9.3). Partition 0 is invalid and matches nothing.
    #[must_use]
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        let partition = self.0 & !Self::FULL_MEMBER;
        partition != 0
            && partition == other.0 & !Self::FULL_MEMBER
            && (self.0 | other.0) & Self::FULL_MEMBER != 0
    }
}

impl Default for PKey {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Queue key: a datagram must carry the Q_Key of its destination QP (IBA 10.2.5).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known Q_Key of QP 1 (IBA 10.2.4.2).
    pub const GSI: Self = Self(0x8001_0000);
    /// The Q_Key that librdmacm gives datagram QPs by default (`RDMA_UDP_QKEY`).
    pub const RDMA_UDP: Self = Self(0x0123_4567);

    const CONTROLLED: u32 = 0x8000_0000;

    /// Returns whether only privileged software may put this key into a work request. The highest bit of a
    /// work request's Q_Key means "use the QP's own key" (IBA 10.2.5).
    #[must_use]
    #[inline]
    pub const fn is_controlled(self) -> bool {
        self.0 & Self::CONTROLLED != 0
    }
}

macro_rules! display_hex {
    ($($ty:ty => $width:literal),*) => {$(
        impl fmt::Display for $ty {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:#0", $width, "x}"), self.0)
            }
        }
    )*};
}

display_hex!(Lkey => "10", Rkey => "10", PKey => "6", QKey => "10");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_limited_members_do_not_match() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(PKey(0x7fff).matches(PKey::DEFAULT));
        assert!(PKey::DEFAULT.matches(PKey::DEFAULT));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey::DEFAULT.matches(PKey(0x9234)));
    }

    #[test]
    fn partition_zero_matches_nothing() {
        assert!(!PKey(0).matches(PKey(0)));
        assert!(!PKey(0x8000).matches(PKey(0x8000)));
    }
}
