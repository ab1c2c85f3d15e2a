//! What the user says of packets that a file does not describe.

use std::fmt;
use std::str::FromStr;

use wire::capture::{Carried, LinkType, Ports};

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

/// The rules name more UDP ports than [`Ports::MAX`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TooManyPorts;

impl fmt::Display for TooManyPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "more than {} UDP ports are named by -d udp.port==", Ports::MAX)
    }
}

impl std::error::Error for TooManyPorts {}

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
}
