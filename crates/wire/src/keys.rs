//! Keys: what a peer must show before it may touch memory, join a partition, or reach a datagram QP.

use core::fmt;

/// Local key: names a memory region in a scatter/gather element.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Lkey(pub u32);

/// Remote key: what a peer presents in RETH, AtomicETH or IETH.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Rkey(pub u32);

/// Partition key: 15 bits of partition and a full-member bit on top (IBA 10.9).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct PKey(pub u16);

impl PKey {
    /// Full member of the default partition; the only key a RoCE device needs.
    pub const DEFAULT: Self = Self(0xffff);

    const FULL_MEMBER: u16 = 0x8000;

    /// Whether two ports holding these keys may talk: same partition, at least one of them a full
    /// member (IBA 10.9.3). Partition 0 is invalid and matches nothing.
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

/// Queue key: what a datagram must carry to be delivered to a QP (IBA 10.2.5).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct QKey(pub u32);

impl QKey {
    /// The well-known Q_Key of QP 1 (IBA 10.2.4.2).
    pub const GSI: Self = Self(0x8001_0000);
    /// What librdmacm gives datagram QPs unless told otherwise (`RDMA_UDP_QKEY`).
    pub const RDMA_UDP: Self = Self(0x0123_4567);

    const CONTROLLED: u32 = 0x8000_0000;

    /// Whether only privileged software may put this key into a work request: the high bit in a work request
    /// means "use the QP's own key instead" (IBA 10.2.5).
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
