//! Addresses and routes (rtnetlink(7)).

use std::io;
use std::net::IpAddr;

use super::Netlink;
use super::message::{each_attribute, ip_of, put_attribute, put_ip, u32_at};

/// An address of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Address {
    /// Interface it belongs to.
    pub ifindex: u32,
    /// The address.
    pub ip: IpAddr,
    /// Not usable, or not yet: duplicate address detection has failed or is running.
    pub is_tentative: bool,
    /// IPv6 privacy address, which is replaced from time to time.
    pub is_temporary: bool,
}

/// How packets to a destination leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// Interface they leave through.
    pub oif: u32,
    /// Source address they should have.
    pub prefsrc: Option<IpAddr>,
    /// Next hop, if the destination is not on the link.
    pub gateway: Option<IpAddr>,
    /// The destination is this host.
    pub is_local: bool,
}

/// linux/if_addr.h
const IFA_FLAGS: u16 = 8;

impl Netlink {
    /// Returns all addresses, IPv4 first, in the kernel's order.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn addresses(&mut self) -> io::Result<Vec<Address>> {
        // ifaddrmsg, all zero: every family.
        let mut all = self.dump(libc::RTM_GETADDR, &[0; 8], libc::RTM_NEWADDR, parse_address)?;
        all.sort_by_key(|a| a.ip.is_ipv6());
        Ok(all)
    }

    /// Returns the route to `dst`, from `src` if given, through interface `oif` if not 0.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EHOSTUNREACH` and the like if there is none.
    pub fn route(&mut self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> io::Result<Route> {
        let family = if dst.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        let bits = |ip: IpAddr| if ip.is_ipv6() { 128 } else { 32 };
        // rtmsg: family, lengths of destination and source, tos, table, protocol, scope, type, flags.
        let mut body = vec![family as u8, bits(dst), src.map_or(0, bits), 0, 0, 0, 0, 0, 0, 0, 0, 0];
        put_ip(&mut body, libc::RTA_DST, dst);
        if let Some(src) = src {
            put_ip(&mut body, libc::RTA_SRC, src);
        }
        if oif != 0 {
            put_attribute(&mut body, libc::RTA_OIF, &oif.to_ne_bytes());
        }
        let mut route = None;
        self.ask(libc::RTM_GETROUTE, 0, &body, &mut |kind, bytes| {
            if kind == libc::RTM_NEWROUTE {
                route = parse_route(bytes);
            }
        })?;
        route.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
    }
}

fn parse_address(body: &[u8]) -> Option<Address> {
    // ifaddrmsg: family, prefix length, flags, scope, u32 index.
    let (header, attributes) = body.split_first_chunk::<8>()?;
    let (mut flags, mut address, mut local) = (u32::from(header[2]), None, None);
    each_attribute(attributes, |kind, value| match kind {
        libc::IFA_ADDRESS => address = ip_of(value),
        libc::IFA_LOCAL => local = ip_of(value),
        IFA_FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
        _ => {}
    });
    // On point-to-point links `address` is the peer's and `local` this host's; else they are equal or
    // `local` is missing.
    let ip = local.or(address)?;
    Some(Address {
        ifindex: u32_at(header, 4)?,
        ip,
        is_tentative: flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0
            && flags & libc::IFA_F_OPTIMISTIC == 0,
        // The same bit means "secondary" for IPv4.
        is_temporary: ip.is_ipv6() && flags & libc::IFA_F_TEMPORARY != 0,
    })
}

fn parse_route(body: &[u8]) -> Option<Route> {
    // rtmsg, as in the request; byte 7 is the type.
    let (header, attributes) = body.split_first_chunk::<12>()?;
    let is_local = header[7] == libc::RTN_LOCAL;
    let mut route = Route { oif: 0, prefsrc: None, gateway: None, is_local };
    each_attribute(attributes, |kind, value| match kind {
        libc::RTA_OIF => route.oif = u32_at(value, 0).unwrap_or(0),
        libc::RTA_PREFSRC => route.prefsrc = ip_of(value),
        libc::RTA_GATEWAY => route.gateway = ip_of(value),
        // An IPv6 next hop of an IPv4 route: u16 family, address.
        libc::RTA_VIA => route.gateway = value.get(2..).and_then(ip_of),
        _ => {}
    });
    Some(route)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_loopback_interface_has_its_usual_addresses() {
        let mut netlink = Netlink::new().unwrap();
        let links = netlink.links().unwrap();
        let lo = links.iter().find(|l| l.is_loopback).unwrap();
        assert_eq!((lo.name.as_str(), lo.index, lo.mac), ("lo", 1, [0; 6]));
        if !lo.is_up {
            eprintln!("skipped: lo is down");
            return;
        }
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let addresses = netlink.addresses().unwrap();
        let found = addresses.iter().find(|a| a.ip == localhost).unwrap();
        assert_eq!((found.ifindex, found.is_tentative, found.is_temporary), (1, false, false));
        let route = netlink.route(localhost, None, 0).unwrap();
        assert_eq!((route.oif, route.prefsrc, route.is_local), (1, Some(localhost), true));
        assert!(parse_address(&[0; 7]).is_none());
    }

    #[test]
    fn an_unreachable_destination_is_an_error() {
        let dst = "240.0.0.1".parse().unwrap();
        let mut netlink = Netlink::new().unwrap();
        // Packets from loopback do not leave the host.
        assert!(netlink.route(dst, None, 1).is_err() || netlink.route(dst, None, 1).unwrap().oif == 1);
        // The socket is in step again afterwards.
        assert!(!netlink.links().unwrap().is_empty());
    }
}
