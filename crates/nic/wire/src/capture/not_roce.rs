//! Why a captured packet is not a RoCEv2 packet, and whether that is certain.

use core::fmt;

use super::LinkType;
use crate::eth::EtherType;

/// Reason why a captured packet is not decoded as a RoCEv2 packet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum NotRoce {
    /// The link type of the capture is unknown, or the kind of record in it.
    LinkType(LinkType),
    /// The packet is shorter than its link layer.
    Link,
    /// The Ethernet type is this one, neither IPv4 nor IPv6.
    EtherType(EtherType),
    /// A frame of IEEE 802.2 with this service access point.
    Llc(u8),
    /// A frame of SNAP with a protocol of this organization.
    Snap([u8; 3]),
    /// The IP header is malformed or was not captured.
    Ip,
    /// The packet is a fragment without the transport header.
    Fragment,
    /// The IP protocol number is this one, not UDP.
    Protocol(u8),
    /// One of the UDP ports is this one, and none is that of RoCEv2.
    Port(u16),
    /// There are more tunnels inside each other than are decoded.
    Nested,
}

impl fmt::Display for NotRoce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkType(link_type) => match link_type.name() {
                None => write!(f, "link type {}", link_type.0),
                Some(name) => write!(f, "link type {} ({name}) with another kind of record", link_type.0),
            },
            Self::Link => f.write_str("a link layer that is malformed or cut"),
            Self::EtherType(ether_type) => write!(f, "Ethernet type {ether_type}"),
            Self::Llc(sap) => write!(f, "LLC {sap:#04x}"),
            Self::Snap([a, b, c]) => write!(f, "SNAP {a:02x}-{b:02x}-{c:02x}"),
            Self::Ip => f.write_str("an IP header that is malformed or cut"),
            Self::Fragment => f.write_str("a later fragment of an IP datagram"),
            Self::Protocol(protocol) => write!(f, "IP protocol {protocol}"),
            Self::Port(port) => write!(f, "UDP port {port}"),
            Self::Nested => f.write_str("too many tunnels inside each other"),
        }
    }
}

impl NotRoce {
    /// Returns whether the packet is known to be other traffic. False means that it may have a RoCE packet in
    /// it that this crate does not find.
    #[must_use]
    pub fn is_other_traffic(&self) -> bool {
        match self {
            Self::EtherType(ether_type) => is_known_type(ether_type.0),
            // Spanning tree, IS-IS, IPX, NetBIOS, the global address.
            Self::Llc(sap) => matches!(sap, 0x42 | 0xfe | 0xe0 | 0xf0 | 0xff),
            // Cisco's and Extreme's discovery, AppleTalk. Those of IEEE 802.1 carry whole frames.
            Self::Snap(oui) => matches!(oui, [0, 0, 0x0c] | [0, 0xe0, 0x2b] | [8, 0, 7]),
            Self::Protocol(protocol) => is_known_protocol(*protocol),
            Self::Port(port) => is_known_port(*port),
            Self::LinkType(_) | Self::Link | Self::Ip | Self::Fragment | Self::Nested => false,
        }
    }

    /// Returns whether the front of a packet that the capture has cut may be all that is missing.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Link | Self::Ip)
    }
}

/// Ethernet types of protocols that carry no IP packets (IEEE, IANA).
fn is_known_type(ether_type: u16) -> bool {
    matches!(
        ether_type,
        // ARP, wake on LAN, RARP, AppleTalk, IPX; flow control, LACP, PPPoE discovery.
        0x0806 | 0x0842 | 0x8035 | 0x809b | 0x80f3 | 0x8137 | 0x8808 | 0x8809 | 0x8863
        // EAPOL, PROFINET, AoE, EtherCAT, GOOSE, LLDP, MVRP, MMRP, PTP, CFM, FCoE and FIP, loopback.
        | 0x888e | 0x8892 | 0x88a2 | 0x88a4 | 0x88b8 | 0x88ba | 0x88cc | 0x88f5
            ..=0x88f7 | 0x8902 | 0x8906 | 0x8914 | 0x9000
    )
}

/// IP protocols that carry no UDP (IANA): ICMP, IGMP, TCP, EGP, IGP, RSVP, ICMPv6, "no next header", EIGRP,
/// OSPF, PIM, VRRP, SCTP.
fn is_known_protocol(protocol: u8) -> bool {
    matches!(protocol, 1 | 2 | 6 | 8 | 9 | 46 | 58 | 59 | 88 | 89 | 103 | 112 | 132)
}

/// UDP ports of services that carry no packets of others (IANA).
pub(super) fn is_known_port(port: u16) -> bool {
    matches!(
        port,
        // DNS, DHCP, TFTP, portmap, NTP, NetBIOS, SNMP, LDAP, QUIC.
        53 | 67..=69 | 111 | 123 | 137 | 138 | 161 | 162 | 389 | 443
        // PTP, Kerberos, syslog, RIP, DHCPv6, IPMI, DNS over TLS.
        | 319 | 320 | 88 | 464 | 514 | 520..=522 | 546 | 547 | 623 | 853
        // RADIUS, HSRP, SSDP, NFS, STUN, SIP, mDNS, LLMNR.
        | 1645 | 1646 | 1812 | 1813 | 1985 | 2029 | 1900 | 2049 | 3478 | 5060 | 5061 | 5353 | 5355
        // BFD, IPFIX, NetFlow, sFlow, corosync, Serf, memcached.
        | 3784 | 3785 | 4784 | 4739 | 2055 | 6343 | 5404 | 5405 | 7946 | 11211
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_kinds_are_other_traffic() {
        for other in [
            NotRoce::EtherType(EtherType(0x0806)),
            NotRoce::Protocol(6),
            NotRoce::Port(53),
            NotRoce::Llc(0x42),
            NotRoce::Snap([0, 0, 0x0c]),
        ] {
            assert!(other.is_other_traffic(), "{other}");
        }
        for unknown in [
            NotRoce::LinkType(LinkType(147)),
            NotRoce::EtherType(EtherType(0x88e5)),
            NotRoce::EtherType(EtherType(0)),
            NotRoce::Llc(6),
            NotRoce::Snap([0, 0x80, 0xc2]),
            NotRoce::Protocol(50),
            NotRoce::Port(1021),
            NotRoce::Fragment,
            NotRoce::Nested,
        ] {
            assert!(!unknown.is_other_traffic(), "{unknown}");
        }
    }
}
