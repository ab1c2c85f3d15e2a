//! Global identifiers (GIDs). A GID of RoCEv2 is an IP address; IPv4 is mapped into `::ffff:0:0/96` (IBA
//! Annex A17).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Global identifier (GID), 16 bytes in wire order.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zero: the value of an empty entry in a GID table.
    pub const ZERO: Self = Self([0; 16]);

    /// Returns whether this is [`Gid::ZERO`].
    #[must_use]
    #[inline]
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }

    /// Returns the IP address of this GID. An IPv4-mapped address is returned as IPv4.
    #[must_use]
    #[inline]
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }

    /// Returns the lower 64 bits, `interface_id` in verbs.
    #[must_use]
    pub fn interface_id(&self) -> u64 {
        crate::bytes::u64_at(&self.0, 8)
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self(ip.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_is_mapped_into_a_gid() {
        let ip = Ipv4Addr::new(10, 8, 0, 2);
        let gid = Gid::from(ip);
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 8, 0, 2]);
        assert_eq!(gid.ip(), IpAddr::V4(ip));
        assert_eq!(gid.interface_id(), 0xffff_0a08_0002);
    }

    #[test]
    fn an_ipv6_address_is_its_own_gid() {
        let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0xff, 0xfe0a, 0x802);
        assert_eq!(Gid::from(IpAddr::V6(ip)).ip(), IpAddr::V6(ip));
        assert!(Gid::ZERO.is_zero());
        assert!(!Gid::from(ip).is_zero());
    }
}
