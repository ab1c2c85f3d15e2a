//! Sockets and their addresses (rsocket, rbind, rlisten, raccept, rconnect, rshutdown, rclose).

use std::ffi::c_int;
use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use libc::{sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use roxie_rsocket::{Datagram, Shutdown, Socket as Rsocket, Stream};

use super::epoll;
use super::option::Options;
use super::table::{self, Socket};
use crate::errno::{Failure, done, errno, minus1, set_errno};
use crate::handle::{FromC, typed};
use crate::rdma::addr::to_c;
use crate::rdma::device::{AllDevices, context_at};
use roxie::transport::refusal::Os;
use roxie::transport::{VerbsError, refuse, rule};

pub(crate) unsafe extern "C" fn rsocket(domain: c_int, ty: c_int, protocol: c_int) -> c_int {
    let flags = ty & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let is_stream = match (ty & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => true,
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => false,
        _ => {
            return minus1(refuse!(EOPNOTSUPP, "rsocket", "type"; ty as i32, protocol as i32;
                "there are no rsockets of type {ty} and protocol {protocol}"));
        }
    };
    if !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return minus1(refuse!(EOPNOTSUPP, "rsocket", "domain"; domain as i32;
            is "{domain}; rsockets are of AF_INET or AF_INET6"));
    }
    let made = if is_stream {
        Stream::of_any(Arc::new(AllDevices)).map(Rsocket::Stream)
    } else {
        Datagram::of_any(Box::new(context_at), domain == libc::AF_INET6).map(Rsocket::Datagram)
    };
    match made {
        Ok(rsocket) => {
            rsocket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
            let cloexec = flags & libc::SOCK_CLOEXEC != 0;
            table::insert(rsocket, domain, Options::new(cloexec))
        }
        Err(error) => minus1(refused(&error)),
    }
}

/// The failure of a call for a socket.
#[cold]
pub(super) fn refused(error: &io::Error) -> Failure {
    Failure::of_io(error, rule!("rsocket", "call"; os as Os; "the socket refuses the call: {os}"))
}

/// The refusal of a NULL pointer to data, with the errno that the socket calls have for it.
#[cold]
pub(super) fn no_buffer(name: &'static str) -> VerbsError {
    let null = 0;
    match name {
        "addr" => refuse!(EFAULT, "argument", "addr"; null; is "NULL, with a length"),
        "msg" => refuse!(EFAULT, "argument", "msg"; null; is "NULL"),
        "iov" => refuse!(EFAULT, "argument", "iov"; null; is "NULL, with a number of parts"),
        "fds" => refuse!(EFAULT, "argument", "fds"; null; is "NULL, with a number of descriptors"),
        "event" => refuse!(EFAULT, "argument", "event"; null; is "NULL"),
        _ => refuse!(EFAULT, "argument", "optval"; null; is "NULL"),
    }
}

/// Calls `f` with a socket. Returns 0, or -1 with `errno` set if there is no such socket or `f` fails.
#[track_caller]
pub(super) fn call(socket: c_int, f: impl FnOnce(&Socket) -> io::Result<()>) -> c_int {
    let socket = done!(minus1; table::find(socket));
    done!(minus1; f(&socket).map_err(|error| refused(&error)));
    0
}

/// An address of the application and its length.
pub(super) struct Address<'a> {
    addr: *const sockaddr,
    len: socklen_t,
    bytes: PhantomData<&'a sockaddr>,
}

impl FromC<(*const sockaddr, socklen_t)> for Address<'_> {
    unsafe fn from_c((addr, len): (*const sockaddr, socklen_t)) -> Self {
        Address { addr, len, bytes: PhantomData }
    }
}

impl Address<'_> {
    /// Returns whether the application names no address.
    pub(super) fn is_absent(&self) -> bool {
        self.addr.is_null() && self.len == 0
    }

    /// Returns the address; `EINVAL` if it is shorter than its family says.
    pub(super) fn get(&self) -> io::Result<SocketAddr> {
        let len = self.len as usize;
        let known = !self.addr.is_null() && len >= size_of::<sockaddr_in>();
        // SAFETY: this value was made by `typed`: there are `len` bytes, and they are converted only if they
        // are as long as their family says.
        let addr: Option<SocketAddr> = unsafe {
            let fits = known
                && (c_int::from((*self.addr).sa_family) != libc::AF_INET6
                    || len >= size_of::<sockaddr_in6>());
            if fits { typed(self.addr) } else { None }
        };
        let len = self.len;
        addr.ok_or_else(|| {
            refuse!(EINVAL, "argument", "addr"; len;
                is "NULL, not of IPv4 or IPv6, or longer than its {len} bytes")
            .into()
        })
    }
}

/// Room for an address, and the place of its length; either may be NULL.
pub(super) struct AddressRoom<'a> {
    to: *mut sockaddr,
    len: *mut socklen_t,
    room: PhantomData<&'a mut sockaddr>,
}

impl FromC<(*mut sockaddr, *mut socklen_t)> for AddressRoom<'_> {
    unsafe fn from_c((to, len): (*mut sockaddr, *mut socklen_t)) -> Self {
        AddressRoom { to, len, room: PhantomData }
    }
}

impl AddressRoom<'_> {
    /// Without an address there is room if the length is 0: the application asks how long the address is.
    fn is_absent(&self) -> bool {
        // SAFETY: this value was made by `typed`: the length is null or readable.
        self.len.is_null() || self.to.is_null() && unsafe { *self.len } != 0
    }

    /// Copies as much of an address as there is room for, and says how long it is; does nothing without room.
    pub(super) fn give(&self, from: SocketAddr) {
        if self.is_absent() {
            return;
        }
        let length = if from.is_ipv4() { size_of::<sockaddr_in>() } else { size_of::<sockaddr_in6>() };
        let from = to_c(from);
        // SAFETY: this value was made by `typed`: there is room for `*len` bytes. `from` is longer than
        // `length`.
        unsafe {
            let room = (*self.len as usize).min(length);
            if room > 0 {
                std::ptr::from_ref(&from).cast::<u8>().copy_to_nonoverlapping(self.to.cast(), room);
            }
            self.len.write(length as socklen_t);
        }
    }
}

pub(crate) unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: rsocket(7), bind(2).
    let address: Address = unsafe { typed((addr, len)) };
    call(socket, |socket| socket.rsocket.bind(address.get()?))
}

pub(crate) unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    call(socket, |socket| socket.stream()?.listen(backlog))
}

pub(crate) unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: rsocket(7), connect(2).
    let address: Address = unsafe { typed((addr, len)) };
    call(socket, |socket| socket.rsocket.connect(address.get()?))
}

pub(crate) unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: rsocket(7), accept(2).
    let room: AddressRoom = unsafe { typed((addr, len)) };
    let listener = done!(minus1; table::find(socket));
    match listener.stream().and_then(Stream::accept) {
        Ok(connection) => {
            if let Some(peer) = connection.peer_addr() {
                room.give(peer);
            }
            table::insert(Rsocket::Stream(connection), listener.family, Options::default())
        }
        Err(error) => minus1(refused(&error)),
    }
}

pub(crate) unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => {
            return minus1(refuse!(EINVAL, "argument", "how"; how as i32; is "{how}: SHUT_RD, _WR or _RDWR"));
        }
    };
    call(socket, |socket| socket.stream()?.shutdown(how))
}

pub(crate) unsafe extern "C" fn rclose(socket: c_int) -> c_int {
    if epoll::close(socket) {
        return 0;
    }
    let socket = done!(minus1; table::remove(socket));
    if !socket.rsocket.is_inherited() {
        socket.rsocket.close();
    }
    0
}

/// Gives an address of a socket to the application.
#[track_caller]
fn give(socket: c_int, room: &AddressRoom, get: impl FnOnce(&Socket) -> io::Result<SocketAddr>) -> c_int {
    call(socket, |socket| {
        let addr = get(socket)?;
        if room.is_absent() {
            return Err(no_buffer("addr").into());
        }
        room.give(addr);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: rsocket(7), getpeername(2).
    let room: AddressRoom = unsafe { typed((addr, len)) };
    give(socket, &room, |socket| {
        socket.rsocket.peer_addr().ok_or_else(|| {
            let fd = socket.rsocket.fd();
            refuse!(ENOTCONN, "rsocket", "peer"; fd as i32; "the socket {fd} is not connected").into()
        })
    })
}

pub(crate) unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: rsocket(7), getsockname(2).
    let room: AddressRoom = unsafe { typed((addr, len)) };
    give(socket, &room, |socket| {
        let any: SocketAddr = match socket.family {
            libc::AF_INET => (Ipv4Addr::UNSPECIFIED, 0).into(),
            _ => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        Ok(socket.rsocket.local_addr().unwrap_or(any))
    })
}

/// Returns the result of a transfer in C: the number of bytes, or -1 with `errno` set.
#[track_caller]
pub(super) fn count(result: io::Result<usize>) -> isize {
    let before = errno();
    match result {
        Ok(count) => {
            // Errors of calls that succeeded in the end are not shown to the application.
            set_errno(before);
            isize::try_from(count).unwrap_or(isize::MAX)
        }
        Err(error) => minus1(refused(&error)) as isize,
    }
}
