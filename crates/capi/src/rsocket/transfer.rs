//! Transfers (rsend, rrecv and their variants).

use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::{ptr, slice};

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use roxie::rsocket::Flags;

use super::socket::{address, count, give_address};
use super::table::{self, Socket};
use crate::errno::{minus1, set_errno};

/// Most parts of a message (UIO_MAXIOV of the kernel).
const PARTS_MAX: usize = 1024;

/// No address.
const NAMELESS: (*const sockaddr, socklen_t) = (ptr::null(), 0);

fn flags(bits: c_int) -> Flags {
    Flags {
        nonblocking: bits & libc::MSG_DONTWAIT != 0,
        peek: bits & libc::MSG_PEEK != 0,
        wait_all: bits & libc::MSG_WAITALL != 0,
    }
}

/// The program's memory; empty for no bytes, whatever the address.
///
/// # Safety
/// `len` bytes at `from`.
unsafe fn bytes<'a>(from: *const c_void, len: usize) -> &'a [u8] {
    // SAFETY: upheld by the caller.
    if len == 0 || from.is_null() { &[] } else { unsafe { slice::from_raw_parts(from.cast(), len) } }
}

/// # Safety
/// `len` bytes at `from`, which nobody else uses.
unsafe fn bytes_mut<'a>(from: *mut c_void, len: usize) -> &'a mut [u8] {
    // SAFETY: upheld by the caller.
    if len == 0 || from.is_null() { &mut [] } else { unsafe { slice::from_raw_parts_mut(from.cast(), len) } }
}

/// # Safety
/// `parts` elements at `iov`, or NULL.
unsafe fn vector<'a>(iov: *const iovec, parts: usize) -> Result<&'a [iovec], c_int> {
    match parts {
        0 => Ok(&[]),
        1..=PARTS_MAX if !iov.is_null() => {
            // SAFETY: upheld by the caller.
            Ok(unsafe { slice::from_raw_parts(iov, parts) })
        }
        1..=PARTS_MAX => Err(libc::EFAULT),
        _ => Err(libc::EMSGSIZE),
    }
}

fn transfer(socket: c_int, f: impl FnOnce(&Socket) -> io::Result<usize>) -> ssize_t {
    let moved = match table::find(socket) {
        Ok(socket) => count(f(&socket)),
        Err(errno) => minus1(errno) as ssize_t,
    };
    if moved == 0 {
        // At the end of a stream rstream looks at errno, and goes on for ever if our own calls have left EAGAIN there.
        set_errno(0);
    }
    moved
}

pub(crate) unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: size_t, bits: c_int) -> ssize_t {
    // SAFETY: the caller's buffer.
    let buf = unsafe { bytes_mut(buf, len) };
    transfer(socket, |socket| Ok(socket.rsocket.receive(&mut [IoSliceMut::new(buf)], flags(bits))?.0))
}

pub(crate) unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    bits: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the caller's buffer.
    let buf = unsafe { bytes_mut(buf, len) };
    transfer(socket, |socket| {
        let (received, from) = socket.rsocket.receive(&mut [IoSliceMut::new(buf)], flags(bits))?;
        if let Some(from) = from {
            // SAFETY: room for an address, or NULL.
            unsafe { give_address(from, addr, addr_len) };
        }
        Ok(received)
    })
}

/// The address that a message goes to, if the program names one; a stream's has none.
///
/// # Safety
/// `addr` is NULL or has `len` bytes.
unsafe fn named(addr: *const sockaddr, len: socklen_t, socket: &Socket) -> io::Result<Option<SocketAddr>> {
    if addr.is_null() && len == 0 {
        return Ok(None);
    }
    if socket.stream().is_ok() {
        return Err(io::Error::from_raw_os_error(libc::EISCONN));
    }
    // SAFETY: upheld by the caller.
    unsafe { address(addr, len) }.map(Some)
}

/// Returns the number of bytes and whom they are from.
///
/// # Safety
/// Parts as [`vector`] wants them, each with its buffer.
unsafe fn receive_parts(
    socket: c_int,
    iov: *const iovec,
    parts: usize,
    bits: c_int,
) -> (ssize_t, Option<SocketAddr>) {
    // SAFETY: upheld by the caller.
    let parts = match unsafe { vector(iov, parts) } {
        Ok(parts) => parts,
        Err(errno) => return (minus1(errno) as ssize_t, None),
    };
    // SAFETY: upheld by the caller.
    let part = |part: &iovec| IoSliceMut::new(unsafe { bytes_mut(part.iov_base, part.iov_len) });
    let mut parts: Vec<IoSliceMut<'_>> = parts.iter().map(part).collect();
    let mut from = None;
    let received = transfer(socket, |socket| {
        let (received, sender) = socket.rsocket.receive(&mut parts, flags(bits))?;
        from = sender;
        Ok(received)
    });
    (received, from)
}

/// # Safety
/// Parts as [`vector`] wants them, each with its buffer; an address as [`named`] wants it.
unsafe fn send_parts(
    socket: c_int,
    iov: *const iovec,
    parts: usize,
    bits: c_int,
    (addr, addr_len): (*const sockaddr, socklen_t),
) -> ssize_t {
    // SAFETY: upheld by the caller.
    let parts = match unsafe { vector(iov, parts) } {
        Ok(parts) => parts,
        Err(errno) => return minus1(errno) as ssize_t,
    };
    // SAFETY: upheld by the caller.
    let part = |part: &iovec| IoSlice::new(unsafe { bytes(part.iov_base, part.iov_len) });
    let parts: Vec<IoSlice<'_>> = parts.iter().map(part).collect();
    transfer(socket, |socket| {
        // SAFETY: upheld by the caller.
        let to = unsafe { named(addr, addr_len, socket) }?;
        socket.rsocket.send(&parts, to, flags(bits))
    })
}

/// The parts of a message without control data, of which there is none here.
///
/// # Safety
/// The caller's message or NULL.
unsafe fn message<'a>(message: *const msghdr) -> Result<&'a msghdr, c_int> {
    // SAFETY: upheld by the caller.
    let message = unsafe { message.as_ref() }.ok_or(libc::EFAULT)?;
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        Ok(message)
    } else {
        Err(libc::ENOTSUP)
    }
}

pub(crate) unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, bits: c_int) -> ssize_t {
    // SAFETY: the caller's message, whose parts have buffers.
    unsafe {
        match message(msg) {
            Ok(parts) => {
                let (received, from) = receive_parts(socket, parts.msg_iov, parts.msg_iovlen, bits);
                if received >= 0 {
                    (*msg).msg_flags = 0;
                    // A stream's program knows its peer, and may not have room for an address.
                    let datagram = table::find(socket).is_ok_and(|socket| socket.stream().is_err());
                    if let Some(from) = from.filter(|_| datagram) {
                        give_address(from, (*msg).msg_name.cast(), &raw mut (*msg).msg_namelen);
                    }
                }
                received
            }
            Err(errno) => minus1(errno) as ssize_t,
        }
    }
}

pub(crate) unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: as the caller's.
    unsafe { rrecv(socket, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, parts: c_int) -> ssize_t {
    // SAFETY: as the caller's.
    unsafe { receive_parts(socket, iov, usize::try_from(parts).unwrap_or(usize::MAX), 0).0 }
}

pub(crate) unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    bits: c_int,
) -> ssize_t {
    // SAFETY: the caller's buffer.
    let buf = unsafe { bytes(buf, len) };
    transfer(socket, |socket| socket.rsocket.send(&[IoSlice::new(buf)], None, flags(bits)))
}

pub(crate) unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    bits: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's buffer.
    let buf = unsafe { bytes(buf, len) };
    transfer(socket, |socket| {
        // SAFETY: the caller's address, or NULL.
        let to = unsafe { named(addr, addr_len, socket) }?;
        socket.rsocket.send(&[IoSlice::new(buf)], to, flags(bits))
    })
}

pub(crate) unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, bits: c_int) -> ssize_t {
    // SAFETY: the caller's message, whose parts have buffers.
    unsafe {
        match message(msg) {
            Ok(parts) => {
                // A stream's has none, whatever is in its place.
                let datagram = table::find(socket).is_ok_and(|socket| socket.stream().is_err());
                let name =
                    if datagram { (parts.msg_name.cast_const().cast(), parts.msg_namelen) } else { NAMELESS };
                send_parts(socket, parts.msg_iov, parts.msg_iovlen, bits, name)
            }
            Err(errno) => minus1(errno) as ssize_t,
        }
    }
}

pub(crate) unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as the caller's.
    unsafe { rsend(socket, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, parts: c_int) -> ssize_t {
    // SAFETY: as the caller's.
    unsafe { send_parts(socket, iov, usize::try_from(parts).unwrap_or(usize::MAX), 0, NAMELESS) }
}
