//! Links, addresses, routes, neighbours, XDP features and sockets over netlink (rtnetlink(7), sock_diag(7)).
//! Queries need no privilege.
//!
//! Half a dozen requests do not justify a netlink crate and its dependencies in a library that is loaded
//! into every process.

mod classifier;
mod counters;
mod events;
mod link;
mod make;
mod message;
mod neighbour;
mod netdev;
mod route;
mod tcp;
mod xsk;

pub use classifier::Classifier;
pub use counters::LinkCounters;
pub use events::{NetEvent, NetEvents};
pub use link::{AttachedXdp, Link, XdpMode};
pub use make::{Impairment, VethConfig};
pub use neighbour::Neighbour;
pub use netdev::{NetdevFamily, XdpFeatures, xdp_features};
pub use route::{Address, Route};
pub use tcp::TcpUsers;
pub use xsk::{BoundXsk, bound_xsks};

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::{call, check};
use message::{each_attribute, next_message, text_of};

/// A netlink socket.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    /// Empty before the first answer.
    buffer: Vec<u8>,
    /// The kernel's explanation of the last refusal.
    explanation: Option<String>,
}

/// Largest message the kernel sends for a dump (it adapts to the buffer, up to 32 KiB).
const BUFFER_LEN: usize = 32 * 1024;
/// Dumps that raced with a change are repeated this often.
const DUMP_TRIES: usize = 5;
/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// linux/netlink.h: socket options, flag and attribute of explained refusals (since 4.12).
const NETLINK_CAP_ACK: libc::c_int = 10;
const NETLINK_EXT_ACK: libc::c_int = 11;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;

impl Netlink {
    /// Opens a socket.
    ///
    /// # Errors
    /// `EMFILE`; `EACCES` or `EPERM` in sandboxes that forbid netlink.
    pub fn new() -> io::Result<Netlink> {
        Netlink::open(libc::NETLINK_ROUTE)
    }

    fn open(protocol: libc::c_int) -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no pointer.
        let fd = check(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) })?;
        // SAFETY: `fd` is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        for option in [NETLINK_EXT_ACK, NETLINK_CAP_ACK] {
            let one: libc::c_int = 1;
            let len = std::mem::size_of_val(&one) as libc::socklen_t;
            // SAFETY: the kernel reads `len` bytes of `one`. An old kernel merely does not explain
            // refusals.
            unsafe {
                libc::setsockopt(fd.as_raw_fd(), libc::SOL_NETLINK, option, (&raw const one).cast(), len);
            }
        }
        Ok(Netlink { fd, sequence: 0, buffer: Vec::new(), explanation: None })
    }

    /// The kernel's explanation of the last refusal, if it gave one.
    #[must_use]
    pub fn explanation(&self) -> Option<&str> {
        self.explanation.as_deref()
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
        let message = message::request(request, flags, self.sequence, body);
        let (fd, bytes) = (self.fd.as_raw_fd(), message.as_ptr().cast());
        // SAFETY: the buffer is valid for its length. A message without an address goes to the kernel.
        let sent = unsafe { call::sendto(fd, bytes, message.len(), 0, std::ptr::null(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let is_dump = flags & libc::NLM_F_DUMP as u16 == libc::NLM_F_DUMP as u16;
        let mut is_consistent = true;
        self.buffer.resize(BUFFER_LEN, 0);
        loop {
            // The kernel has written the answer when the send returns, so this never waits.
            let len = receive(self.fd.as_fd(), &mut self.buffer, libc::MSG_DONTWAIT)?;
            let mut rest = &self.buffer[..len];
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
                        self.explanation = explanation(&header, body);
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
}

fn receive(fd: BorrowedFd<'_>, buf: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    loop {
        let (fd, bytes) = (fd.as_raw_fd(), buf.as_mut_ptr().cast());
        // SAFETY: the buffer is valid for its length, and null address pointers are allowed.
        let len = unsafe { call::recvfrom(fd, bytes, buf.len(), flags, ptr::null_mut(), ptr::null_mut()) };
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

/// Returns the explanation in a refusal: it follows the errno and the header of the request (or the
/// complete request).
fn explanation(header: &libc::nlmsghdr, body: &[u8]) -> Option<String> {
    if header.nlmsg_flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let request = body.get(4..)?;
    let request_len = if header.nlmsg_flags & NLM_F_CAPPED != 0 {
        message::HEADER_LEN
    } else {
        (message::u32_at(request, 0)? as usize).next_multiple_of(4)
    };
    let mut text = None;
    each_attribute(request.get(request_len..)?, |kind, value| {
        if kind == NLMSGERR_ATTR_MSG {
            text = Some(text_of(value));
        }
    });
    text
}
