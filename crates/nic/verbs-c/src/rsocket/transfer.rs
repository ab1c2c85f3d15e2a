//! Transfers (rsend, rrecv and their variants).

use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use roxie_rsocket::Flags;

use super::socket::{Address, AddressRoom, count, no_buffer};
use super::table::{self, Socket};
use crate::errno::{minus1, set_errno};
use crate::handle::{FromC, typed};
use roxie::transport::{VerbsError, refuse};

/// Most parts of a message (UIO_MAXIOV of the kernel).
const PARTS_MAX: usize = 1024;

fn flags(bits: c_int) -> Flags {
    Flags {
        nonblocking: bits & libc::MSG_DONTWAIT != 0,
        peek: bits & libc::MSG_PEEK != 0,
        wait_all: bits & libc::MSG_WAITALL != 0,
    }
}

/// The parts of a message, each with its buffer; an errno for an unusable list.
struct Parts<'a>(Result<&'a [iovec], VerbsError>);

impl FromC<(*const iovec, usize)> for Parts<'_> {
    unsafe fn from_c((first, count): (*const iovec, usize)) -> Self {
        if count > PARTS_MAX {
            return Parts(Err(refuse!(EMSGSIZE, "message", "iovlen"; count;
                is "{count}, the largest number of parts is {PARTS_MAX}")));
        }
        // SAFETY: the contract is that of an array.
        Parts(unsafe { Option::from_c((first, count)) }.ok_or_else(|| no_buffer("iov")))
    }
}

impl<'a> Parts<'a> {
    fn to_send(&self) -> Result<Vec<IoSlice<'a>>, VerbsError> {
        // SAFETY: `typed` made this value, and its contract covers the buffers.
        let part = |part: &iovec| IoSlice::new(unsafe { typed((part.iov_base.cast_const(), part.iov_len)) });
        Ok(self.0?.iter().map(part).collect())
    }

    fn to_receive(&self) -> Result<Vec<IoSliceMut<'a>>, VerbsError> {
        // SAFETY: `typed` made this value, and its contract covers the buffers.
        let part = |part: &iovec| IoSliceMut::new(unsafe { typed((part.iov_base, part.iov_len)) });
        Ok(self.0?.iter().map(part).collect())
    }
}

/// A message without control data; an errno for another one.
struct Message<'a> {
    parts: Parts<'a>,
    /// The address to send to.
    address: Address<'a>,
    /// Room for the address of the sender.
    room: AddressRoom<'a>,
}

impl FromC<*mut msghdr> for Result<Message<'_>, VerbsError> {
    unsafe fn from_c(message: *mut msghdr) -> Self {
        // SAFETY: NULL or initialised. The message says how many parts there are and how long its address is.
        unsafe {
            let msg = message.as_ref().ok_or_else(|| no_buffer("msg"))?;
            if !msg.msg_control.is_null() && msg.msg_controllen != 0 {
                let len = msg.msg_controllen;
                return Err(refuse!(EOPNOTSUPP, "message", "msg_controllen"; len;
                    is "{len}; rsockets have no control data"));
            }
            let name_len = &raw mut (*message).msg_namelen;
            Ok(Message {
                parts: typed((msg.msg_iov.cast_const(), msg.msg_iovlen)),
                address: typed((msg.msg_name.cast_const().cast::<sockaddr>(), msg.msg_namelen)),
                room: typed((msg.msg_name.cast::<sockaddr>(), name_len)),
            })
        }
    }
}

#[track_caller]
fn transfer(socket: c_int, f: impl FnOnce(&Socket) -> io::Result<usize>) -> ssize_t {
    let moved = match table::find(socket) {
        Ok(socket) => count(f(&socket)),
        Err(errno) => minus1(errno) as ssize_t,
    };
    if moved == 0 {
        // At the end of a stream rstream looks at errno, and never ends if our own calls have left EAGAIN
        // there.
        set_errno(0);
    }
    moved
}

/// Returns whether a socket number is that of a datagram socket.
fn is_datagram(socket: c_int) -> bool {
    table::find(socket).is_ok_and(|socket| socket.stream().is_err())
}

pub(crate) unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: size_t, bits: c_int) -> ssize_t {
    // SAFETY: rsocket(7), recv(2).
    let buf: &mut [u8] = unsafe { typed((buf, len)) };
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
    // SAFETY: rsocket(7), recvfrom(2).
    let (buf, room): (&mut [u8], AddressRoom) = unsafe { typed(((buf, len), (addr, addr_len))) };
    transfer(socket, |socket| {
        let (received, from) = socket.rsocket.receive(&mut [IoSliceMut::new(buf)], flags(bits))?;
        if let Some(from) = from {
            room.give(from);
        }
        Ok(received)
    })
}

/// Returns the address that a message goes to, if the application names one; an error for a stream.
fn destination(address: &Address, socket: &Socket) -> io::Result<Option<SocketAddr>> {
    if address.is_absent() {
        return Ok(None);
    }
    if socket.stream().is_ok() {
        let fd = socket.rsocket.fd();
        return Err(refuse!(EISCONN, "argument", "addr"; fd as i32;
            "the socket {fd} is a stream, which sends to its peer and takes no address")
        .into());
    }
    address.get().map(Some)
}

/// Returns the number of bytes, and the address of the sender of a datagram.
#[track_caller]
fn receive_parts(socket: c_int, parts: &Parts, bits: c_int) -> (ssize_t, Option<SocketAddr>) {
    let mut parts = match parts.to_receive() {
        Ok(parts) => parts,
        Err(errno) => return (minus1(errno) as ssize_t, None),
    };
    let mut from = None;
    let received = transfer(socket, |socket| {
        let (received, sender) = socket.rsocket.receive(&mut parts, flags(bits))?;
        from = sender;
        Ok(received)
    });
    (received, from)
}

#[track_caller]
fn send_parts(socket: c_int, parts: &Parts, bits: c_int, address: Option<&Address>) -> ssize_t {
    let parts = match parts.to_send() {
        Ok(parts) => parts,
        Err(errno) => return minus1(errno) as ssize_t,
    };
    transfer(socket, |socket| {
        let to = address.map_or(Ok(None), |address| destination(address, socket))?;
        socket.rsocket.send(&parts, to, flags(bits))
    })
}

pub(crate) unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, bits: c_int) -> ssize_t {
    // SAFETY: rsocket(7), recvmsg(2).
    let message: Result<Message, VerbsError> = unsafe { typed(msg) };
    let message = match message {
        Ok(message) => message,
        Err(errno) => return minus1(errno) as ssize_t,
    };
    let (received, from) = receive_parts(socket, &message.parts, bits);
    if received >= 0 {
        // SAFETY: not NULL, or there would be no message; recvmsg(2) writes the flags.
        unsafe { (&raw mut (*msg).msg_flags).write(0) };
        // The application of a stream knows its peer, and may have no space for an address.
        if let Some(from) = from.filter(|_| is_datagram(socket)) {
            message.room.give(from);
        }
    }
    received
}

pub(crate) unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: rsocket(7), read(2).
    unsafe { rrecv(socket, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, parts: c_int) -> ssize_t {
    // SAFETY: rsocket(7), readv(2).
    let parts: Parts = unsafe { typed((iov, usize::try_from(parts).unwrap_or(usize::MAX))) };
    receive_parts(socket, &parts, 0).0
}

pub(crate) unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    bits: c_int,
) -> ssize_t {
    // SAFETY: rsocket(7), send(2).
    let buf: &[u8] = unsafe { typed((buf, len)) };
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
    // SAFETY: rsocket(7), sendto(2).
    let (buf, address): (&[u8], Address) = unsafe { typed(((buf, len), (addr, addr_len))) };
    transfer(socket, |socket| {
        let to = destination(&address, socket)?;
        socket.rsocket.send(&[IoSlice::new(buf)], to, flags(bits))
    })
}

pub(crate) unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, bits: c_int) -> ssize_t {
    // SAFETY: rsocket(7), sendmsg(2).
    let message: Result<Message, VerbsError> = unsafe { typed(msg.cast_mut()) };
    match message {
        Ok(message) => {
            // A stream has no use for an address; whatever the structure names is ignored.
            let address = is_datagram(socket).then_some(&message.address);
            send_parts(socket, &message.parts, bits, address)
        }
        Err(errno) => minus1(errno) as ssize_t,
    }
}

pub(crate) unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: rsocket(7), write(2).
    unsafe { rsend(socket, buf, len, 0) }
}

pub(crate) unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, parts: c_int) -> ssize_t {
    // SAFETY: rsocket(7), writev(2).
    let parts: Parts = unsafe { typed((iov, usize::try_from(parts).unwrap_or(usize::MAX))) };
    send_parts(socket, &parts, 0, None)
}
