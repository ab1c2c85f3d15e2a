//! How to decode what a capture does not say by itself: UDP ports and link types that the user names.

use super::LinkType;
use crate::udp::{ROCE_PORT, Udp};

/// What the datagrams of a UDP port carry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Carried {
    /// RoCEv2.
    Roce,
    /// VXLAN (RFC 7348).
    Vxlan,
    /// VXLAN with a header that says what follows.
    VxlanGpe,
    /// GENEVE (RFC 8926).
    Geneve,
    /// MPLS (RFC 7510).
    Mpls,
    /// GTP-U (3GPP TS 29.281).
    Gtp,
}

impl Carried {
    /// Returns what a port carries by its registration.
    pub(super) const fn of_port(port: u16) -> Option<Self> {
        Some(match port {
            ROCE_PORT => Self::Roce,
            // 8472 is that of Linux interfaces without `dstport`.
            4789 | 8472 => Self::Vxlan,
            4790 => Self::VxlanGpe,
            6081 => Self::Geneve,
            6635 => Self::Mpls,
            2152 => Self::Gtp,
            _ => return None,
        })
    }
}

/// UDP ports that the user has named, and what they carry.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Ports([Option<(u16, Carried)>; Self::MAX]);

impl Ports {
    /// Most ports.
    pub const MAX: usize = 8;

    /// Adds a port. Returns `false` if there are [`Ports::MAX`] already.
    pub fn add(&mut self, port: u16, carried: Carried) -> bool {
        let free = self.0.iter_mut().find(|place| place.is_none_or(|(known, _)| known == port));
        free.map(|place| *place = Some((port, carried))).is_some()
    }

    /// Returns what the datagram carries by its destination port, or else by its source port. The source port
    /// of RoCEv2 may be any.
    #[inline]
    pub(super) fn get(&self, udp: Udp) -> Option<Carried> {
        self.0[0]?;
        let of =
            |port| self.0.iter().flatten().find(|(known, _)| *known == port).map(|(_, carried)| *carried);
        of(udp.dst_port).or_else(|| of(udp.src_port).filter(|_| udp.dst_port != ROCE_PORT))
    }
}

/// How to decode a packet. A [`LinkType`] converts to it: then only registered ports are known.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DecodeAs {
    /// The link layer that the packet begins with.
    pub link_type: LinkType,
    /// Ports that the user has named.
    pub ports: Ports,
}

impl From<LinkType> for DecodeAs {
    fn from(link_type: LinkType) -> Self {
        Self { link_type, ports: Ports::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_counts_in_both_directions_and_the_last_rule_holds() {
        let mut ports = Ports::default();
        let udp = |src_port, dst_port| Udp { src_port, dst_port, ..Udp::default() };
        assert_eq!(ports.get(udp(1, 2)), None);
        assert!(ports.add(7, Carried::Vxlan) && ports.add(9, Carried::Gtp) && ports.add(7, Carried::Roce));
        assert_eq!(ports.get(udp(1, 7)), Some(Carried::Roce));
        assert_eq!(ports.get(udp(9, 1)), Some(Carried::Gtp));
        assert_eq!(ports.get(udp(9, ROCE_PORT)), None);
        assert!((100..106).all(|port| ports.add(port, Carried::Mpls)) && !ports.add(200, Carried::Mpls));
    }
}
