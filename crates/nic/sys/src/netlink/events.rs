//! Changes of links, neighbours and routes, as they happen (rtnetlink(7), multicast groups).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::message::next_message;
use super::{BUFFER_LEN, Link, Neighbour, Netlink, link, neighbour};
use crate::check;

/// One change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NetEvent {
    /// An interface is new or has changed.
    Link(Link),
    /// An interface was removed.
    LinkGone(u32),
    /// A neighbour is new, has changed, or was removed (then without an Ethernet address).
    Neighbour(Neighbour),
    /// Some route or address has changed.
    Routes,
    /// The socket's buffer overflowed and changes were lost: what was learned so far may be outdated.
    Lost,
}

/// A subscription to [`NetEvent`]s.
#[derive(Debug)]
pub struct NetEvents {
    netlink: Netlink,
    buf: Box<[u8]>,
}

impl NetEvents {
    /// Subscribes to changes from now on.
    ///
    /// # Errors
    /// Those of [`Netlink::new`].
    pub fn new() -> io::Result<NetEvents> {
        let netlink = subscribe(
            libc::RTMGRP_LINK
                | libc::RTMGRP_NEIGH
                | libc::RTMGRP_IPV4_ROUTE
                | libc::RTMGRP_IPV6_ROUTE
                | libc::RTMGRP_IPV4_IFADDR
                | libc::RTMGRP_IPV6_IFADDR,
        )?;
        Ok(NetEvents { netlink, buf: vec![0; BUFFER_LEN].into_boxed_slice() })
    }

    /// Hands over all changes since the last call, without waiting; returns the number of messages.
    pub fn drain(&mut self, f: &mut dyn FnMut(NetEvent)) -> usize {
        let mut count = 0;
        loop {
            match self.netlink.receive(&mut self.buf, libc::MSG_DONTWAIT) {
                Ok(len) => {
                    let mut rest = &self.buf[..len];
                    while let Some((header, body, next)) = next_message(rest) {
                        rest = next;
                        count += 1;
                        if let Some(event) = event(header.nlmsg_type, body) {
                            f(event);
                        }
                    }
                }
                // The socket's buffer has overflowed.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    count += 1;
                    f(NetEvent::Lost);
                }
                Err(_) => return count,
            }
        }
    }
}

/// Readable when there are changes.
impl AsFd for NetEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.fd.as_fd()
    }
}

/// Reports that addresses of this network namespace have changed.
#[derive(Debug)]
pub struct AddressMonitor(Netlink);

impl AddressMonitor {
    /// Subscribes to changes from now on.
    ///
    /// # Errors
    /// As [`Netlink::new`].
    pub fn new() -> io::Result<AddressMonitor> {
        subscribe(libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR).map(AddressMonitor)
    }

    /// Whether anything has changed since the last call. Does not wait.
    pub fn take_news(&self) -> bool {
        let mut any = false;
        loop {
            match self.0.receive(&mut [], libc::MSG_TRUNC | libc::MSG_DONTWAIT) {
                Ok(_) => any = true,
                // The socket's buffer has overflowed.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(_) => return any,
            }
        }
    }
}

impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// Opens a socket that receives the messages of these groups (RTMGRP_*).
fn subscribe(groups: libc::c_int) -> io::Result<Netlink> {
    let netlink = Netlink::new()?;
    // SAFETY: sockaddr_nl is plain data, for which zeros are valid.
    let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = groups as u32;
    let len = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is valid for its length.
    check(unsafe { libc::bind(netlink.fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(netlink)
}

fn event(kind: u16, body: &[u8]) -> Option<NetEvent> {
    Some(match kind {
        libc::RTM_NEWLINK => NetEvent::Link(link::parse(body)?),
        libc::RTM_DELLINK => NetEvent::LinkGone(link::parse(body)?.index),
        libc::RTM_NEWNEIGH => NetEvent::Neighbour(neighbour::parse(body)?),
        libc::RTM_DELNEIGH => NetEvent::Neighbour(Neighbour { mac: None, ..neighbour::parse(body)? }),
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE | libc::RTM_NEWADDR | libc::RTM_DELADDR => NetEvent::Routes,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_ends_without_events() {
        let mut events = NetEvents::new().unwrap();
        // Other programs of this machine may change things meanwhile; draining ends all the same.
        events.drain(&mut |_| {});
        assert_eq!(event(libc::RTM_NEWROUTE, &[]), Some(NetEvent::Routes));
        assert_eq!(event(libc::RTM_NEWLINK, &[0; 3]), None);
    }
}
