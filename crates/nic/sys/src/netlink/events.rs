//! Changes of links, neighbours and routes, as they happen (rtnetlink(7), multicast groups).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::message::{HEADER_LEN, next_message};
use super::{BUFFER_LEN, Link, Neighbour, Netlink, link, neighbour};
use crate::check;
use crate::socket::{FilterInsn, filter_messages};

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
        Self::subscribe(
            Netlink::new()?,
            libc::RTMGRP_LINK
                | libc::RTMGRP_NEIGH
                | libc::RTMGRP_IPV4_ROUTE
                | libc::RTMGRP_IPV6_ROUTE
                | libc::RTMGRP_IPV4_IFADDR
                | libc::RTMGRP_IPV6_IFADDR,
        )
    }

    /// Subscribes to changes of an interface and of the loopback interface, and of addresses: those of an
    /// interface above it count, too, which may come later. The kernel filters, so changes of other
    /// interfaces wake no thread.
    ///
    /// # Errors
    /// Those of [`Netlink::new`].
    pub fn of_interface(index: u32) -> io::Result<NetEvents> {
        let netlink = Netlink::new()?;
        filter_messages(netlink.fd.as_fd(), &of_interfaces([index, LOOPBACK_IFINDEX]))?;
        Self::subscribe(netlink, libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR)
    }

    /// Makes a socket receive the messages of these groups (RTMGRP_*).
    fn subscribe(netlink: Netlink, groups: libc::c_int) -> io::Result<NetEvents> {
        // SAFETY: sockaddr_nl is plain data, for which zeros are valid.
        let mut address: libc::sockaddr_nl = unsafe { mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        address.nl_groups = groups as u32;
        let len = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is valid for its length.
        check(unsafe { libc::bind(netlink.fd.as_raw_fd(), (&raw const address).cast(), len) })?;
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

/// The index of the loopback interface of each network namespace (net/loopback.c, `LOOPBACK_IFINDEX`).
const LOOPBACK_IFINDEX: u32 = 1;

/// Returns a filter for messages about two interfaces, and about the addresses of all. `ifinfomsg` has the
/// index behind the header of the message and four bytes.
fn of_interfaces([first, second]: [u32; 2]) -> [FilterInsn; 8] {
    let insn = |code: u32, jt, jf, k| FilterInsn { code: code as u16, jt, jf, k };
    let load = |size, at: usize| insn(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, at as u32);
    // Loads take the bytes in network order.
    let is = |value: u32, jt, jf| insn(libc::BPF_JMP | libc::BPF_JEQ, jt, jf, value);
    let is_type = |ty: u16, jt| is(u32::from(ty.to_be()), jt, 0);
    [
        load(libc::BPF_H, mem::offset_of!(libc::nlmsghdr, nlmsg_type)),
        is_type(libc::RTM_NEWADDR, 4),
        is_type(libc::RTM_DELADDR, 3),
        load(libc::BPF_W, HEADER_LEN + 4),
        is(first.to_be(), 1, 0),
        is(second.to_be(), 0, 1),
        insn(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
        insn(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    ]
}

fn event(kind: u16, body: &[u8]) -> Option<NetEvent> {
    // A bridge reports an interface that leaves it as removed, in its own address family.
    let is_of_bridge = body.first().is_some_and(|family| i32::from(*family) == libc::AF_BRIDGE);
    Some(match kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK if is_of_bridge => return None,
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

    #[test]
    fn an_interface_that_leaves_a_bridge_is_not_removed() {
        let mut body = link::ifinfo(7);
        assert_eq!(event(libc::RTM_DELLINK, &body), Some(NetEvent::LinkGone(7)));
        body[0] = libc::AF_BRIDGE as u8;
        assert_eq!(event(libc::RTM_DELLINK, &body), None);
    }

    #[test]
    fn the_kernel_accepts_the_filter() {
        let mut events = NetEvents::of_interface(1).unwrap();
        events.drain(&mut |_| {});
        let [ty, _, _, index, ..] = of_interfaces([0x0102_0304, 1]);
        assert_eq!([ty.k, index.k], [4, 20], "type and index in a message");
    }
}
