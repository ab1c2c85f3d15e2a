//! How to decode what a capture does not say by itself: UDP ports and link types that the user names.

use core::str::FromStr;

use super::LinkType;
use crate::udp::Udp;

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

    /// Returns what the datagram carries by its destination port, or else by its source port.
    #[inline]
    pub(super) fn get(&self, udp: Udp) -> Option<Carried> {
        self.0[0]?;
        let of =
            |port| self.0.iter().flatten().find(|(known, _)| *known == port).map(|(_, carried)| *carried);
        of(udp.dst_port).or_else(|| of(udp.src_port))
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

/// A statement of the user about a capture, in the form of tshark's `-d`: `udp.port==1021,rocev2`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DecodeRule {
    /// A UDP port, and what it carries.
    Port(u16, Carried),
    /// The number of a link type in the file, and the link type that it stands for.
    Link(LinkType, LinkType),
}

impl FromStr for DecodeRule {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = "udp.port==1021,rocev2 or linktype==147,ethernet";
        let (selector, protocol) = text.split_once(',').ok_or(form)?;
        let (table, number) = selector.split_once("==").ok_or(form)?;
        let (protocol, number) = (protocol.trim(), number.trim().parse().map_err(|_| form)?);
        match table.trim() {
            "udp.port" => Ok(Self::Port(
                number,
                match protocol {
                    "rocev2" | "rroce" | "infiniband" => Carried::Roce,
                    "vxlan" => Carried::Vxlan,
                    "vxlan-gpe" | "vxlan_gpe" => Carried::VxlanGpe,
                    "geneve" => Carried::Geneve,
                    "mpls" => Carried::Mpls,
                    "gtp" => Carried::Gtp,
                    _ => return Err("a UDP port carries rocev2, vxlan, vxlan-gpe, geneve, mpls or gtp"),
                },
            )),
            "linktype" => Ok(Self::Link(
                LinkType(number),
                match protocol {
                    "ethernet" | "eth" => LinkType::ETHERNET,
                    "raw" | "ip" => LinkType::RAW,
                    "sll" => LinkType::LINUX_SLL,
                    "sll2" => LinkType::LINUX_SLL2,
                    "infiniband" | "ib" => LinkType::INFINIBAND,
                    "ppp" => LinkType::PPP,
                    "erf" => LinkType::ERF,
                    _ => return Err("a link type is ethernet, raw, sll, sll2, infiniband, ppp or erf"),
                },
            )),
            _ => Err(form),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_the_form_of_tshark() {
        let rule = |text: &str| text.parse::<DecodeRule>();
        assert_eq!(rule("udp.port==1021,rocev2"), Ok(DecodeRule::Port(1021, Carried::Roce)));
        assert_eq!(rule("udp.port == 8473 , vxlan"), Ok(DecodeRule::Port(8473, Carried::Vxlan)));
        assert_eq!(rule("linktype==147,ethernet"), Ok(DecodeRule::Link(LinkType(147), LinkType::ETHERNET)));
        for wrong in
            ["1021", "udp.port==1021", "udp.port==x,rocev2", "udp.port==70000,rocev2", "tcp.port==1,gtp"]
        {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
        assert!(rule("udp.port==1021,dns").is_err_and(|why| why.contains("geneve")));
    }

    #[test]
    fn a_port_counts_in_both_directions_and_the_last_rule_holds() {
        let mut ports = Ports::default();
        let udp = |src_port, dst_port| Udp { src_port, dst_port, ..Udp::default() };
        assert_eq!(ports.get(udp(1, 2)), None);
        assert!(ports.add(7, Carried::Vxlan) && ports.add(9, Carried::Gtp) && ports.add(7, Carried::Roce));
        assert_eq!(ports.get(udp(1, 7)), Some(Carried::Roce));
        assert_eq!(ports.get(udp(9, 1)), Some(Carried::Gtp));
        assert!((100..106).all(|port| ports.add(port, Carried::Mpls)) && !ports.add(200, Carried::Mpls));
    }
}
