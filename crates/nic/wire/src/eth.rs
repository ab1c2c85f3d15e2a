//! Ethernet header and VLAN tag (IEEE 802.3, 802.1Q). The ICRC covers neither.

use core::fmt;

use crate::bytes::{array, put, u16_at};

/// Ethernet (MAC) address, in wire order.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Type of the payload of an Ethernet frame.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[repr(transparent)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// A VLAN tag follows.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// RoCE version 1: a GRH without IP and UDP. roxie does not process it.
    pub const ROCE_V1: Self = Self(0x8915);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IPV4 => f.write_str("IPv4"),
            Self::VLAN => f.write_str("802.1Q"),
            Self::IPV6 => f.write_str("IPv6"),
            Self::ROCE_V1 => f.write_str("RoCEv1"),
            Self(other) => write!(f, "{other:#06x}"),
        }
    }
}

/// Ethernet header (IEEE 802.3).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Ethernet {
    /// Address of the next hop.
    pub dst: Mac,
    /// Address of the sender.
    pub src: Mac,
    /// Type of the payload.
    pub ether_type: EtherType,
}

impl Ethernet {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 14;

    /// Decodes the wire format.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            dst: Mac(array(bytes, 0)),
            src: Mac(array(bytes, 6)),
            ether_type: EtherType(u16_at(bytes, 12)),
        }
    }

    /// Encodes into the wire format.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        put(bytes, 0, self.dst.0);
        put(bytes, 6, self.src.0);
        put(bytes, 12, self.ether_type.0.to_be_bytes());
    }

    /// Splits a frame into its Ethernet header, the VLAN tag if there is one, the type of the payload, and
    /// the payload. Returns `None` if the frame is too short.
    #[must_use]
    pub fn split(frame: &[u8]) -> Option<(Self, Option<VlanTag>, EtherType, &[u8])> {
        let (header, rest) = frame.split_first_chunk().map(|(bytes, rest)| (Self::parse(bytes), rest))?;
        if header.ether_type != EtherType::VLAN {
            return Some((header, None, header.ether_type, rest));
        }
        let (tag, rest) = rest.split_first_chunk().map(|(bytes, rest)| (VlanTag::parse(bytes), rest))?;
        Some((header, Some(tag), tag.ether_type, rest))
    }
}

impl fmt::Display for Ethernet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ethernet {} > {} {}", self.src, self.dst, self.ether_type)
    }
}

/// VLAN tag, and the type of the payload after it (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VlanTag {
    /// Priority, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator (DEI): drop this frame first.
    pub drop_eligible: bool,
    /// VLAN id, 12 bits.
    pub id: u16,
    /// Type of the payload.
    pub ether_type: EtherType,
}

impl VlanTag {
    /// Length on the wire, in bytes.
    pub const LEN: usize = 4;

    /// Decodes the wire format.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let tag = u16_at(bytes, 0);
        Self {
            priority: (tag >> 13) as u8,
            drop_eligible: tag & 0x1000 != 0,
            id: tag & 0x0fff,
            ether_type: EtherType(u16_at(bytes, 2)),
        }
    }

    /// Encodes the tag. Values wider than their field are cut.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let tag = u16::from(self.priority & 7) << 13 | u16::from(self.drop_eligible) << 12 | self.id & 0x0fff;
        put(bytes, 0, tag.to_be_bytes());
        put(bytes, 2, self.ether_type.0.to_be_bytes());
    }
}

impl fmt::Display for VlanTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "802.1Q ID={} PRI={} DEI={}", self.id, self.priority, u8::from(self.drop_eligible))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_is_a_field() {
        crate::bytes::check_every_bit([0; Ethernet::LEN], |bytes| {
            let mut out = [0; Ethernet::LEN];
            Ethernet::parse(bytes).emit(&mut out);
            out
        });
        crate::bytes::check_every_bit([0; VlanTag::LEN], |bytes| {
            let mut out = [0; VlanTag::LEN];
            VlanTag::parse(bytes).emit(&mut out);
            out
        });
    }

    #[test]
    fn a_vlan_tag_is_split_from_the_frame() {
        let mut frame = [0; 19];
        put(&mut frame, 12, [0x81, 0x00, 0x60, 0x2a, 0x08, 0x00, 0x45]);
        let (_, tag, ether_type, rest) = Ethernet::split(&frame).unwrap();
        let tag = tag.unwrap();
        assert_eq!((tag.priority, tag.drop_eligible, tag.id), (3, false, 42));
        assert_eq!((ether_type, rest), (EtherType::IPV4, &[0x45][..]));
        assert_eq!(Ethernet::split(&frame[..17]), None);
        assert_eq!(Ethernet::split(&frame[..13]), None);
    }
}
