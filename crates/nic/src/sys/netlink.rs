//! Links, addresses and routes, asked over netlink (rtnetlink(7)). Needs no privilege.
//!
//! Three questions do not justify a netlink crate and its dependencies in a library that is loaded into every
//! process; messages are a fixed header and attributes of (length, type, bytes), padded to four bytes.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;

/// A network interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Ethernet address; zeros if it has none.
    pub mac: [u8; 6],
    /// Administratively up.
    pub is_up: bool,
    /// The loopback interface.
    pub is_loopback: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Address {
    /// Interface it belongs to.
    pub ifindex: u32,
    /// The address.
    pub ip: IpAddr,
    /// Not yet, or no longer, usable: duplicate address detection is running or has failed.
    pub is_tentative: bool,
    /// IPv6 privacy address, which comes and goes.
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

/// A netlink socket.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
}

/// Largest message the kernel sends for a dump (it adapts to the buffer, up to 32 KiB).
const BUFFER_LEN: usize = 32 * 1024;
const HEADER_LEN: usize = mem::size_of::<libc::nlmsghdr>();
/// Dumps that raced with a change are repeated this often.
const DUMP_TRIES: usize = 5;
/// linux/if_addr.h
const IFA_FLAGS: u16 = 8;

impl Netlink {
    /// A new socket.
    ///
    /// # Errors
    /// `EMFILE`; `EACCES` or `EPERM` in sandboxes that forbid netlink.
    pub fn new() -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no pointer.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: `fd` is new and nobody else owns it.
        Ok(Netlink { fd: unsafe { OwnedFd::from_raw_fd(fd) }, sequence: 0 })
    }

    /// All interfaces.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn links(&mut self) -> io::Result<Vec<Link>> {
        // ifinfomsg, all zero: everything.
        self.dump(libc::RTM_GETLINK, &[0; 16], libc::RTM_NEWLINK, parse_link)
    }

    /// All addresses, IPv4 first, in the kernel's order.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn addresses(&mut self) -> io::Result<Vec<Address>> {
        // ifaddrmsg, all zero: every family.
        let mut all = self.dump(libc::RTM_GETADDR, &[0; 8], libc::RTM_NEWADDR, parse_address)?;
        all.sort_by_key(|a| a.ip.is_ipv6());
        Ok(all)
    }

    /// The route to `dst`, from `src` if given, through interface `oif` if not 0.
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

    fn dump<T>(
        &mut self,
        request: u16,
        body: &[u8],
        answer: u16,
        parse: fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut all = Vec::new();
        for _ in 0..DUMP_TRIES {
            all.clear();
            let is_consistent = self.ask(request, libc::NLM_F_DUMP as u16, body, &mut |kind, bytes| {
                if kind == answer {
                    all.extend(parse(bytes));
                }
            })?;
            if is_consistent {
                break;
            }
        }
        Ok(all)
    }

    /// Sends one request and hands over the body of each answer; false if a dump raced with a change.
    fn ask(
        &mut self,
        request: u16,
        flags: u16,
        body: &[u8],
        f: &mut dyn FnMut(u16, &[u8]),
    ) -> io::Result<bool> {
        self.sequence += 1;
        let flags = flags | libc::NLM_F_REQUEST as u16;
        let mut message = Vec::with_capacity(HEADER_LEN + body.len());
        message.extend(((HEADER_LEN + body.len()) as u32).to_ne_bytes());
        message.extend(request.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        // SAFETY: the buffer is valid for its length. Without an address it goes to the kernel.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let is_dump = flags & libc::NLM_F_DUMP as u16 == libc::NLM_F_DUMP as u16;
        let mut is_consistent = true;
        let mut buf = vec![0; BUFFER_LEN];
        loop {
            let len = self.receive(&mut buf)?;
            let mut rest = &buf[..len];
            while let Some((header, body, next)) = next_message(rest) {
                rest = next;
                if header.nlmsg_seq != self.sequence {
                    continue;
                }
                is_consistent &= header.nlmsg_flags & libc::NLM_F_DUMP_INTR as u16 == 0;
                match i32::from(header.nlmsg_type) {
                    libc::NLMSG_DONE => return Ok(is_consistent),
                    libc::NLMSG_ERROR => {
                        let errno = body.first_chunk().map_or(-libc::EPROTO, |e| i32::from_ne_bytes(*e));
                        return if errno == 0 {
                            Ok(is_consistent)
                        } else {
                            Err(io::Error::from_raw_os_error(-errno))
                        };
                    }
                    _ => f(header.nlmsg_type, body),
                }
                if !is_dump {
                    return Ok(true);
                }
            }
        }
    }

    fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            // SAFETY: the buffer is valid for its length.
            let len = unsafe { libc::recv(self.fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), 0) };
            match usize::try_from(len) {
                Ok(len) => return Ok(len),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Tells that addresses of this network namespace have changed.
#[derive(Debug)]
pub struct AddressMonitor(OwnedFd);

impl AddressMonitor {
    /// Listens from now on.
    ///
    /// # Errors
    /// As [`Netlink::new`].
    pub fn new() -> io::Result<AddressMonitor> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: socket takes no pointer.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
        // SAFETY: `fd` is new and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: sockaddr_nl is plain data, for which zeros are valid.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = (libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
        let len = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is valid for `len` bytes.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
        Ok(AddressMonitor(fd))
    }

    /// Whether anything has changed since the last call. Does not wait.
    pub fn take_news(&self) -> bool {
        let mut any = false;
        loop {
            // SAFETY: a buffer of length zero is never written; the message is cut to it.
            let len = unsafe { libc::recv(self.0.as_raw_fd(), std::ptr::null_mut(), 0, libc::MSG_TRUNC) };
            // ENOBUFS: there was more than the socket holds.
            if len < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ENOBUFS) {
                return any;
            }
            any = true;
        }
    }
}

impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn parse_link(body: &[u8]) -> Option<Link> {
    // ifinfomsg: family, padding, u16 type, i32 index, u32 flags, u32 change.
    let (header, attributes) = body.split_first_chunk::<16>()?;
    let flags = u32_at(header, 8)?;
    let mut link = Link {
        index: u32_at(header, 4)?,
        name: String::new(),
        mtu: 0,
        mac: [0; 6],
        is_up: flags & libc::IFF_UP as u32 != 0,
        is_loopback: flags & libc::IFF_LOOPBACK as u32 != 0,
    };
    each_attribute(attributes, |kind, value| match kind {
        libc::IFLA_IFNAME => {
            link.name = String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned();
        }
        libc::IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
        libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
        _ => {}
    });
    Some(link)
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
    // On point-to-point links `address` is the peer's and `local` ours; else they are equal or `local` is missing.
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

/// Splits off the first message: header, body, rest.
fn next_message(bytes: &[u8]) -> Option<(libc::nlmsghdr, &[u8], &[u8])> {
    let header = libc::nlmsghdr {
        nlmsg_len: u32_at(bytes, 0)?,
        nlmsg_type: u16_at(bytes, 4)?,
        nlmsg_flags: u16_at(bytes, 6)?,
        nlmsg_seq: u32_at(bytes, 8)?,
        nlmsg_pid: u32_at(bytes, 12)?,
    };
    let len = header.nlmsg_len as usize;
    let body = bytes.get(HEADER_LEN..len)?;
    Some((header, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

fn each_attribute<'a>(mut bytes: &'a [u8], mut f: impl FnMut(u16, &'a [u8])) {
    while let (Some(len), Some(kind)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let len = usize::from(len);
        let Some(value) = bytes.get(4..len) else { return };
        // The two top bits are flags.
        f(kind & 0x3fff, value);
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
}

fn put_ip(out: &mut Vec<u8>, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => put_attribute(out, kind, &ip.octets()),
        IpAddr::V6(ip) => put_attribute(out, kind, &ip.octets()),
    }
}

/// Appends an attribute whose length is a multiple of four, as all of ours are.
fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|v6| Ipv6Addr::from(v6).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|v| u32::from_ne_bytes(*v))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|v| u16::from_ne_bytes(*v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_loopback_interface_is_as_everywhere() {
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
    }

    #[test]
    fn a_destination_that_cannot_be_is_an_error() {
        let dst = "240.0.0.1".parse().unwrap();
        let mut netlink = Netlink::new().unwrap();
        // From loopback nothing leaves the host.
        assert!(netlink.route(dst, None, 1).is_err() || netlink.route(dst, None, 1).unwrap().oif == 1);
        // The socket is in step again afterwards.
        assert!(!netlink.links().unwrap().is_empty());
    }

    #[test]
    fn cut_messages_are_not_read_beyond_their_end() {
        assert!(next_message(&[16, 0, 0, 0]).is_none());
        assert!(parse_link(&[0; 15]).is_none() && parse_address(&[0; 7]).is_none());
        each_attribute(&[9, 0, 1, 0, 1], |_, _| panic!("longer than its bytes"));
        each_attribute(&[0, 0, 0, 0, 0, 0, 0, 0], |_, _| panic!("shorter than its header"));
    }
}
