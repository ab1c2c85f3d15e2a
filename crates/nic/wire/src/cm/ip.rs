//! IP addresses and ports in CM messages: service ids, and the header in front of the private data (IBA Annex
//! A11).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::layout::{Bits, bits};
use crate::bytes::{array, put, u16_at};
use crate::gid::Gid;

/// Service id: identifies a listener. In the IP port spaces of librdmacm it is `port_space << 16 | port`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct ServiceId(pub u64);

bits! {
    ServiceId: bits => Self(bits), v => v.0;
}

impl ServiceId {
    /// Port space of connected services (`RDMA_PS_TCP`).
    pub const TCP: u16 = 0x0106;
    /// Port space of datagrams (`RDMA_PS_UDP`).
    pub const UDP: u16 = 0x0111;
    /// Port space of native InfiniBand service ids (`RDMA_PS_IB`).
    pub const IB: u16 = 0x013f;

    /// Returns the service id of a port in a port space.
    #[must_use]
    pub const fn from_port(port_space: u16, port: u16) -> Self {
        Self((port_space as u64) << 16 | port as u64)
    }

    /// Returns the port space, or `None` if the id does not have that form.
    #[must_use]
    pub const fn port_space(self) -> Option<u16> {
        if self.0 >> 24 == 1 { Some((self.0 >> 16) as u16) } else { None }
    }

    /// Returns the port: the low 16 bits.
    #[must_use]
    pub const fn port(self) -> u16 {
        self.0 as u16
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port_space() {
            Some(Self::TCP) => write!(f, "TCP:{}", self.port()),
            Some(Self::UDP) => write!(f, "UDP:{}", self.port()),
            _ => write!(f, "{:#018x}", self.0),
        }
    }
}

/// Header at the front of the private data of REQ and SIDR_REQ in IP port spaces: the addresses of both ends
/// (IBA Annex A11). The destination port is in the service id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IpCmHeader {
    /// Source port: the port to which the active side is bound.
    pub src_port: u16,
    /// Address of the active side.
    pub src: IpAddr,
    /// Address of the passive side, of the same family.
    pub dst: IpAddr,
}

impl IpCmHeader {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 36;

    const SRC: usize = 4;
    const DST: usize = 20;
    /// An IPv4 address occupies the last 4 of 16 bytes.
    const V4_SKIP: usize = 12;

    /// Decodes the header. Returns `None` if the version is not 0 or the addresses are neither IPv4 nor IPv6.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let address = |at| match bytes[1] >> 4 {
            4 => Some(IpAddr::V4(Ipv4Addr::from(array(bytes, at + Self::V4_SKIP)))),
            6 => Some(IpAddr::V6(Ipv6Addr::from(array::<16>(bytes, at)))),
            _ => None,
        };
        if bytes[0] != 0 {
            return None;
        }
        Some(Self { src_port: u16_at(bytes, 2), src: address(Self::SRC)?, dst: address(Self::DST)? })
    }

    /// Encodes the header. If the families differ, both addresses are written as IPv6 and the IPv4 one is
    /// mapped.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        bytes.fill(0);
        put(bytes, 2, self.src_port.to_be_bytes());
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.src, self.dst) {
            bytes[1] = 4 << 4;
            put(bytes, Self::SRC + Self::V4_SKIP, src.octets());
            put(bytes, Self::DST + Self::V4_SKIP, dst.octets());
        } else {
            bytes[1] = 6 << 4;
            put(bytes, Self::SRC, Gid::from(self.src).0);
            put(bytes, Self::DST, Gid::from(self.dst).0);
        }
    }
}

impl fmt::Display for IpCmHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {} > {}", self.src, self.src_port, self.dst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_id_is_a_port_space_and_a_port() {
        let id = ServiceId::from_port(ServiceId::TCP, 7174);
        assert_eq!(id.0.to_be_bytes(), [0, 0, 0, 0, 0x01, 0x06, 0x1c, 0x06]);
        assert_eq!((id.port_space(), id.port()), (Some(ServiceId::TCP), 7174));
        assert_eq!(ServiceId(0x0200_0000_0106_1c06).port_space(), None);
    }

    #[test]
    fn addresses_of_both_families_survive_a_round_trip() {
        for (src, dst) in [
            (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])),
            (IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]), IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 2])),
        ] {
            let header = IpCmHeader { src_port: 45678, src, dst };
            let mut bytes = [0xff; IpCmHeader::LEN];
            header.emit(&mut bytes);
            assert_eq!(IpCmHeader::parse(&bytes), Some(header));
        }
    }

    #[test]
    fn an_unknown_header_version_is_refused() {
        let mut bytes = [0; IpCmHeader::LEN];
        assert_eq!(IpCmHeader::parse(&bytes), None, "IP version 0");
        bytes[1] = 0x40;
        assert!(IpCmHeader::parse(&bytes).is_some());
        bytes[0] = 0x10;
        assert_eq!(IpCmHeader::parse(&bytes), None, "header version 1.0");
    }
}
