//! The netlink family NETLINK_RDMA for the program `rdma` of iproute2 (rdma(8)).
//!
//! The socket calls of that program, and of no other, come here (libroxie_preload.so). A socket of the family
//! is a netlink socket of the kernel that sends nothing; requests on it are answered in this process
//! ([`answer`]). Other sockets are the kernel's.

mod answer;
mod attribute;
mod entry;
mod message;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::{mem, ptr};

use libc::{iovec, msghdr, size_t, sockaddr_nl, socklen_t, ssize_t};

use crate::errno;
use message::Request;

/// `NETLINK_RDMA` (linux/netlink.h).
const NETLINK_RDMA: c_int = 20;

/// The sockets of the family by descriptor, each with the messages that the program has not read. A socket
/// that was closed stays until its number is used again.
static SOCKETS: Mutex<BTreeMap<c_int, VecDeque<Vec<u8>>>> = Mutex::new(BTreeMap::new());

fn sockets() -> std::sync::MutexGuard<'static, BTreeMap<c_int, VecDeque<Vec<u8>>>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// socket(2).
pub(crate) unsafe extern "C" fn roxie_nl_socket(domain: c_int, ty: c_int, protocol: c_int) -> c_int {
    let is_ours = domain == libc::AF_NETLINK && protocol == NETLINK_RDMA;
    let protocol = if is_ours { libc::NETLINK_ROUTE } else { protocol };
    // SAFETY: numbers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, domain, ty, protocol) } as c_int;
    let mut sockets = sockets();
    sockets.remove(&fd);
    if is_ours && fd >= 0 {
        sockets.insert(fd, VecDeque::new());
    }
    fd
}

/// sendto(2). A request is answered before this returns.
pub(crate) unsafe extern "C" fn roxie_nl_sendto(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const c_void,
    address_len: socklen_t,
) -> ssize_t {
    if !sockets().contains_key(&fd) {
        // SAFETY: the arguments are those of sendto(2).
        return unsafe {
            libc::syscall(libc::SYS_sendto, fd, bytes, len, flags, address, address_len) as ssize_t
        };
    }
    // SAFETY: sendto(2): `len` bytes, or NULL.
    let request: &[u8] = unsafe { crate::handle::typed((bytes, len)) };
    let port_id = port_id(fd);
    let (mut rest, mut replies) = (request, Vec::new());
    while let Some((request, behind)) = Request::parse(rest) {
        replies.extend(answer::answer(&request, port_id));
        rest = behind;
    }
    if let Some(unread) = sockets().get_mut(&fd) {
        unread.extend(replies);
    }
    len as ssize_t
}

/// recvmsg(2). The family sends no notifications, so a wait for one fails at once.
pub(crate) unsafe extern "C" fn roxie_nl_recvmsg(fd: c_int, message: *mut c_void, flags: c_int) -> ssize_t {
    let mut sockets = sockets();
    let Some(unread) = sockets.get_mut(&fd) else {
        drop(sockets);
        // SAFETY: the arguments are those of recvmsg(2).
        return unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags) as ssize_t };
    };
    // SAFETY: recvmsg(2): a `msghdr`, or NULL.
    let message: Option<&mut msghdr> = unsafe { crate::handle::typed(message.cast::<msghdr>()) };
    let (Some(message), Some(next)) = (message, unread.front()) else {
        errno::set_errno(libc::EOPNOTSUPP);
        return -1;
    };
    // SAFETY: recvmsg(2): so many elements, each with room for so many bytes.
    let (copied, len) = (unsafe { scatter(message, next) }, next.len());
    message.msg_flags = if copied < len { libc::MSG_TRUNC } else { 0 };
    message.msg_controllen = 0;
    // SAFETY: recvmsg(2): room for so many bytes of the address.
    unsafe { write_sender(message) };
    if flags & libc::MSG_PEEK == 0 {
        unread.pop_front();
    }
    (if flags & libc::MSG_TRUNC == 0 { copied } else { len }) as ssize_t
}

/// Copies `bytes` to the elements of the message; returns how many there was room for.
///
/// # Safety
/// The elements are those of recvmsg(2).
unsafe fn scatter(message: &msghdr, bytes: &[u8]) -> usize {
    let mut rest = bytes;
    // SAFETY: the caller's.
    let elements: Option<&[iovec]> =
        unsafe { crate::handle::typed((message.msg_iov.cast_const(), message.msg_iovlen)) };
    for element in elements.unwrap_or_default() {
        let count = element.iov_len.min(rest.len());
        // SAFETY: the caller's: room for `iov_len` bytes, which is no memory of this library.
        unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), element.iov_base.cast(), count) };
        rest = &rest[count..];
    }
    bytes.len() - rest.len()
}

/// Writes the kernel's address as the sender.
///
/// # Safety
/// `msg_name` is NULL or has room for `msg_namelen` bytes.
unsafe fn write_sender(message: &mut msghdr) {
    const LEN: usize = mem::size_of::<sockaddr_nl>();
    if message.msg_name.is_null() || (message.msg_namelen as usize) < LEN {
        return;
    }
    let mut bytes = [0_u8; LEN];
    bytes[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
    // SAFETY: the caller's.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), message.msg_name.cast(), LEN) };
    message.msg_namelen = LEN as socklen_t;
}

/// The port id of the socket, which the kernel has chosen; 0 before that.
fn port_id(fd: c_int) -> u32 {
    // SAFETY: all zero is a value of this structure.
    let mut address: sockaddr_nl = unsafe { mem::zeroed() };
    let mut len = mem::size_of::<sockaddr_nl>() as socklen_t;
    // SAFETY: room for `len` bytes.
    let done = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    if done == 0 { address.nl_pid } else { 0 }
}
