//! Sockets and their addresses (rsocket, rbind, rlisten, raccept, rconnect, rshutdown, rclose).

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use roxie::rsocket::{Datagram, Shutdown, Socket as Rsocket, Stream};

use super::epoll;
use super::option::Options;
use super::table::{self, Socket};
use crate::errno::{errno, minus1, of_io, set_errno};
use crate::ibv::device::ContextObject;
use crate::rdma::addr::{from_c, to_c};
use crate::rdma::device::cm_device;

pub(crate) unsafe extern "C" fn rsocket(domain: c_int, ty: c_int, protocol: c_int) -> c_int {
    let flags = ty & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let is_stream = match (ty & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => false,
        _ => return minus1(libc::ENOTSUP),
    };
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return minus1(libc::ENOTSUP);
    }
    let Some(device) = cm_device() else { return minus1(libc::ENODEV) };
    // SAFETY: the shared context is never closed.
    let Some(context) = (unsafe { ContextObject::from_ptr(device.context) }) else {
        return minus1(libc::ENODEV);
    };
    let context = &context.tail.context;
    let made = if is_stream {
        Stream::new(context).map(Rsocket::Stream)
    } else {
        Datagram::new(context, domain == libc::AF_INET6).map(Rsocket::Datagram)
    };
    match made {
        Ok(rsocket) => {
            rsocket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
            let cloexec = flags & libc::SOCK_CLOEXEC != 0;
            table::insert(rsocket, domain, Options::new(cloexec))
        }
        Err(error) => minus1(of_io(&error)),
    }
}

/// Does something with a socket; -1 and `errno` if there is none or it fails.
pub(super) fn call(socket: c_int, f: impl FnOnce(&Socket) -> io::Result<()>) -> c_int {
    match table::find(socket) {
        Ok(socket) => f(&socket).map_or_else(|error| minus1(of_io(&error)), |()| 0),
        Err(errno) => minus1(errno),
    }
}

/// The program's address, if it is long enough for its family.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
pub(super) unsafe fn address(addr: *const sockaddr, len: socklen_t) -> io::Result<SocketAddr> {
    // SAFETY: upheld by the caller.
    let (known, family) = unsafe {
        let long = !addr.is_null() && len as usize >= size_of::<sockaddr_in>();
        (long, if long { c_int::from((*addr).sa_family) } else { 0 })
    };
    let fits = family != libc::AF_INET6 || len as usize >= size_of::<sockaddr_in6>();
    // SAFETY: as long as its family says.
    let addr = if known && fits { unsafe { from_c(addr) } } else { None };
    addr.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

pub(crate) unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's address.
    call(socket, |socket| socket.rsocket.bind(unsafe { address(addr, len) }?))
}

pub(crate) unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    call(socket, |socket| socket.stream()?.listen(backlog))
}

pub(crate) unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's address.
    call(socket, |socket| socket.rsocket.connect(unsafe { address(addr, len) }?))
}

pub(crate) unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let listener = match table::find(socket) {
        Ok(listener) => listener,
        Err(errno) => return minus1(errno),
    };
    match listener.stream().and_then(Stream::accept) {
        Ok(connection) => {
            if let Some(peer) = connection.peer_addr() {
                // SAFETY: room for an address, or NULL.
                unsafe { give_address(peer, addr, len) };
            }
            table::insert(Rsocket::Stream(connection), listener.family, Options::default())
        }
        Err(error) => minus1(of_io(&error)),
    }
}

pub(crate) unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return minus1(libc::EINVAL),
    };
    call(socket, |socket| socket.stream()?.shutdown(how))
}

pub(crate) unsafe extern "C" fn rclose(socket: c_int) -> c_int {
    if epoll::close(socket) {
        return 0;
    }
    match table::remove(socket) {
        Ok(socket) if !socket.rsocket.is_inherited() => {
            socket.rsocket.close();
            0
        }
        Ok(_) => 0,
        Err(errno) => minus1(errno),
    }
}

/// Copies an address to the program, as much of it as there is room for, and says how long it is.
///
/// # Safety
/// Room for `*len` bytes, or NULL.
pub(super) unsafe fn give_address(from: SocketAddr, to: *mut sockaddr, len: *mut socklen_t) {
    let whole = if from.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
    let from = to_c(from);
    // SAFETY: upheld by the caller; the address is longer than `whole`.
    unsafe {
        if to.is_null() || len.is_null() {
            return;
        }
        let room = (*len as usize).min(whole);
        ptr::from_ref(&from).cast::<u8>().copy_to_nonoverlapping(to.cast(), room);
        len.write(whole as socklen_t);
    }
}

/// # Safety
/// Room for `*len` bytes, or NULL.
unsafe fn give(
    socket: c_int,
    to: *mut sockaddr,
    len: *mut socklen_t,
    which: impl FnOnce(&Socket) -> io::Result<SocketAddr>,
) -> c_int {
    call(socket, |socket| {
        let addr = which(socket)?;
        if to.is_null() || len.is_null() {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        // SAFETY: upheld by the caller.
        unsafe { give_address(addr, to, len) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let peer = |socket: &Socket| {
        socket.rsocket.peer_addr().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTCONN))
    };
    // SAFETY: as the caller's.
    unsafe { give(socket, addr, len, peer) }
}

pub(crate) unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let own = |socket: &Socket| {
        let any: SocketAddr = match socket.family {
            libc::AF_INET => (Ipv4Addr::UNSPECIFIED, 0).into(),
            _ => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        Ok(socket.rsocket.local_addr().unwrap_or(any))
    };
    // SAFETY: as the caller's.
    unsafe { give(socket, addr, len, own) }
}

/// The result of a transfer as C has it.
pub(super) fn count(result: io::Result<usize>) -> isize {
    let before = errno();
    match result {
        Ok(count) => {
            // What was tried on the way is nobody's business.
            set_errno(before);
            isize::try_from(count).unwrap_or(isize::MAX)
        }
        Err(error) => minus1(of_io(&error)) as isize,
    }
}
