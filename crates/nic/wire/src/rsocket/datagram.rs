//! Messages of datagram rsockets: the address header of messages between UD queue pairs, and the header of
//! UDP datagrams by which the ends learn each other's queue pair number. Everything is big-endian.
//!
//! ```text
//! UD message, IPv4                                 UDP datagram, IPv4
//! | version = 4   | length = 8    |  port         |  |           tag = 0x55555555           |
//! |            address                            |  | version = 4 | op | length = 16 |     |
//!                                                    |     0       |    queue pair number   |
//! IPv6: version 6, length 24, a flow label in        |            address                   |
//! front of the address                               IPv6: version 6, length 28
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bytes::{array, put, u16_at, u32_at};
use crate::psn::Qpn;

/// Address header of a UD message: the socket address of its sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Source(pub SocketAddr);

impl Source {
    /// Length of the IPv6 form, the longer one, in bytes.
    pub const LEN_MAX: usize = 24;
    const LEN_V4: usize = 8;

    /// Returns the length of the header for an address, in bytes.
    #[must_use]
    pub fn len_of(addr: IpAddr) -> usize {
        if addr.is_ipv4() { Self::LEN_V4 } else { Self::LEN_MAX }
    }

    /// Decodes the header at the front of a message and returns its length in bytes. Returns `None` if it is
    /// no such header.
    #[must_use]
    pub fn parse(message: &[u8]) -> Option<(Self, usize)> {
        let (&version, &length) = (message.first()?, message.get(1)?);
        let length = usize::from(length);
        let header = message.get(..length)?;
        let addr = match (version, length) {
            (4, Self::LEN_V4) => (Ipv4Addr::from(array(header, 4)), u16_at(header, 2)).into(),
            (6, Self::LEN_MAX) => (Ipv6Addr::from(array(header, 8)), u16_at(header, 2)).into(),
            _ => return None,
        };
        Some((Self(addr), length))
    }

    /// Encodes the header and returns its length in bytes.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN_MAX]) -> usize {
        let length = Self::len_of(self.0.ip());
        *bytes = [0; Self::LEN_MAX];
        put(bytes, 2, self.0.port().to_be_bytes());
        match self.0.ip() {
            IpAddr::V4(ip) => {
                put(bytes, 0, [4, length as u8]);
                put(bytes, 4, ip.octets());
            }
            IpAddr::V6(ip) => {
                put(bytes, 0, [6, length as u8]);
                put(bytes, 8, ip.octets());
            }
        }
        length
    }
}

/// Header of a UDP datagram: the queue pair of its sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Introduction {
    /// Whether a message follows. The receiver delivers it like one from a queue pair and replies with its
    /// own header.
    pub with_message: bool,
    /// QP number of the sender.
    pub qpn: Qpn,
    /// IP address of that queue pair.
    pub addr: IpAddr,
}

impl Introduction {
    /// Length of the IPv6 form, the longer one, in bytes.
    pub const LEN_MAX: usize = 28;
    const LEN_V4: usize = 16;
    const TAG: u32 = 0x5555_5555;
    const DATA: u8 = 0;
    const CONTROL: u8 = 7;

    /// Decodes the header at the front of a datagram and returns its length in bytes. Returns `None` if it is
    /// no such header.
    #[must_use]
    pub fn parse(datagram: &[u8]) -> Option<(Self, usize)> {
        let fixed: &[u8; 12] = datagram.first_chunk()?;
        let length = usize::from(fixed[6]);
        let header = datagram.get(..length)?;
        let addr = match (fixed[4], length) {
            (4, Self::LEN_V4) => Ipv4Addr::from(array(header, 12)).into(),
            (6, Self::LEN_MAX) => Ipv6Addr::from(array(header, 12)).into(),
            _ => return None,
        };
        let known = u32_at(fixed, 0) == Self::TAG && matches!(fixed[5], Self::DATA | Self::CONTROL);
        let qpn = Qpn::new(u32_at(fixed, 8) & 0xff_ffff);
        known.then_some((Self { with_message: fixed[5] == Self::DATA, qpn, addr }, length))
    }

    /// Encodes the header and returns its length in bytes.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN_MAX]) -> usize {
        let op = if self.with_message { Self::DATA } else { Self::CONTROL };
        *bytes = [0; Self::LEN_MAX];
        put(bytes, 0, Self::TAG.to_be_bytes());
        put(bytes, 8, self.qpn.value().to_be_bytes());
        match self.addr {
            IpAddr::V4(ip) => {
                put(bytes, 4, [4, op, Self::LEN_V4 as u8]);
                put(bytes, 12, ip.octets());
                Self::LEN_V4
            }
            IpAddr::V6(ip) => {
                put(bytes, 4, [6, op, Self::LEN_MAX as u8]);
                put(bytes, 12, ip.octets());
                Self::LEN_MAX
            }
        }
    }
}

/// Returns the address with an IPv4-mapped IPv6 address converted to IPv4.
#[must_use]
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => (v4, v6.port()).into(),
            None => SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        },
        v4 @ SocketAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::borrow::ToOwned;
    use std::string::ToString;

    use super::*;

    #[test]
    fn source_headers_of_both_families_survive_a_round_trip() {
        for (text, want) in [
            ("10.0.0.2:258", &[4, 8, 1, 2, 10, 0, 0, 2][..]),
            ("[fd00::9]:258", &[6, 24, 1, 2, 0, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]),
        ] {
            let source = Source(text.parse().unwrap());
            let mut bytes = [0xff; Source::LEN_MAX];
            let length = source.emit(&mut bytes);
            assert_eq!(&bytes[..length], want);
            let message = [want, b"text"].concat();
            assert_eq!(Source::parse(&message), Some((source, want.len())));
            assert_eq!(Source::parse(&want[..want.len() - 1]), None, "cut");
        }
        assert_eq!(
            Source::parse(&[4, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            None
        );
        assert_eq!((Source::parse(&[]), Source::parse(&[4])), (None, None));
    }

    #[test]
    fn introductions_with_and_without_a_message_survive_a_round_trip() {
        let v4 = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 0x12, 0x34, 0x56, 10, 0, 0, 2];
        let mut v6 = [0; 28];
        v6[..12].copy_from_slice(&[0x55, 0x55, 0x55, 0x55, 6, 7, 28, 0, 0, 0x12, 0x34, 0x56]);
        (v6[12], v6[27]) = (0xfd, 9);
        for (addr, with_message, want) in [("10.0.0.2", true, &v4[..]), ("fd00::9", false, &v6)] {
            let said = Introduction { with_message, qpn: Qpn::new(0x12_3456), addr: addr.parse().unwrap() };
            let mut bytes = [0xff; Introduction::LEN_MAX];
            let length = said.emit(&mut bytes);
            assert_eq!(&bytes[..length], want);
            assert_eq!(Introduction::parse(&[want, b"text"].concat()), Some((said, want.len())));
            assert_eq!(Introduction::parse(&want[..want.len() - 1]), None, "cut");
        }
        for (at, value) in [(0, 0x54), (4, 6), (5, 2), (6, 28)] {
            let mut other = v4;
            other[at] = value;
            assert_eq!(Introduction::parse(&other), None, "byte {at}");
        }
    }

    #[test]
    fn a_mapped_ipv4_address_becomes_ipv4() {
        let one = |text: &str| canonical(text.parse().unwrap()).to_string();
        assert_eq!(one("[::ffff:10.0.0.2]:5"), "10.0.0.2:5");
        assert_eq!(
            (one("[fd00::9]:5"), one("10.0.0.2:5")),
            ("[fd00::9]:5".to_owned(), "10.0.0.2:5".to_owned())
        );
    }
}
