//! Changes of links, neighbours and routes, as they happen (rtnetlink(7), multicast groups).

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::message::{HEADER_LEN, next_message};
use super::{BUFFER_LEN, Link, Neighbour, Netlink, link, neighbour, receive};
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

    /// Subscribes to changes of these interfaces and of the loopback interface, and of their addresses. The
    /// kernel filters, so changes of other interfaces wake no thread.
    ///
    /// # Errors
    /// Those of [`Netlink::new`].
    pub fn of_interfaces(indices: &[u32]) -> io::Result<NetEvents> {
        let netlink = Netlink::new()?;
        filter_messages(netlink.fd.as_fd(), &of_interfaces(indices))?;
        Self::subscribe(netlink, libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR)
    }

    /// Changes the interfaces of [`of_interfaces`](Self::of_interfaces). An interface that comes to lie above
    /// one of them causes a message about that one.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_interfaces(&self, indices: &[u32]) -> io::Result<()> {
        filter_messages(self.netlink.fd.as_fd(), &of_interfaces(indices))
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
            match receive(self.netlink.fd.as_fd(), &mut self.buf, libc::MSG_DONTWAIT) {
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

/// Most interfaces in a filter; with more, the first ones count. Half: changes of addresses above an
/// interface with 100 VLANs go unnoticed. Double: the jumps of the filter are too long.
const INTERFACES_MAX: usize = 120;

/// Returns a filter for messages about interfaces. `ifinfomsg` and `ifaddrmsg` have the index at the same
/// place: behind the header of the message and four bytes.
fn of_interfaces(indices: &[u32]) -> Vec<FilterInsn> {
    let insn = |code: u32, jt, jf, k| FilterInsn { code: code as u16, jt, jf, k };
    let wanted = indices.iter().take(INTERFACES_MAX - 1).chain([&LOOPBACK_IFINDEX]);
    let count = wanted.clone().count();
    let mut program = vec![insn(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, HEADER_LEN as u32 + 4)];
    // The load takes the bytes in network order. A match jumps over the later tests and the refusal.
    let test = |(number, index): (usize, &u32)| {
        insn(libc::BPF_JMP | libc::BPF_JEQ, (count - number) as u8, 0, index.to_be())
    };
    program.extend(wanted.enumerate().map(test));
    program.push(insn(libc::BPF_RET | libc::BPF_K, 0, 0, 0));
    program.push(insn(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX));
    program
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
        let mut events = NetEvents::of_interfaces(&[2, 3]).unwrap();
        events.set_interfaces(&(2..300).collect::<Vec<u32>>()).unwrap();
        events.drain(&mut |_| {});
        let program = of_interfaces(&[7, 8]);
        assert_eq!(program[0].k, 20, "the index in a message");
        let jumps: Vec<u8> = program[1..4].iter().map(|insn| insn.jt).collect();
        assert_eq!((jumps, program[4].k, program[5].k), (vec![3, 2, 1], 0, u32::MAX));
    }
}
