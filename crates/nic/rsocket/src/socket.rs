//! An rsocket of either kind.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::datagram::Datagram;
use crate::errno;
use crate::settings::Sizes;
use crate::stream::Stream;
use crate::transfer::Flags;
use crate::wait::{Ready, Waitable, Waiters};
use sys::PollFd;

/// An rsocket. This is a handle; [`close`](Self::close) closes the socket for all handles.
#[derive(Clone)]
pub enum Socket {
    /// SOCK_STREAM.
    Stream(Stream),
    /// SOCK_DGRAM.
    Datagram(Datagram),
}

/// Evaluates the same expression for both kinds.
macro_rules! either {
    ($socket:expr, $either:ident => $same:expr) => {
        match $socket {
            Socket::Stream($either) => $same,
            Socket::Datagram($either) => $same,
        }
    };
}

impl Socket {
    /// Returns the stream.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a datagram socket.
    pub fn stream(&self) -> io::Result<&Stream> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Datagram(_) => Err(errno(libc::EOPNOTSUPP)),
        }
    }

    /// The number of the socket: a descriptor that only this module can use.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        either!(self, socket => socket.fd())
    }

    /// Binds to an address (rbind).
    ///
    /// # Errors
    /// Those of [`Stream::bind`] and [`Datagram::bind`].
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        either!(self, socket => socket.bind(addr))
    }

    /// Connects to a peer (rconnect).
    ///
    /// # Errors
    /// Those of [`Stream::connect`] and [`Datagram::connect`].
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        either!(self, socket => socket.connect(to))
    }

    /// Returns the local address, if the socket has one (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        either!(self, socket => socket.local_addr())
    }

    /// Returns the address of the peer (rgetpeername).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        either!(self, socket => socket.peer_addr())
    }

    /// True if calls return `WouldBlock` instead of waiting (O_NONBLOCK).
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        either!(self, socket => socket.is_nonblocking())
    }

    /// Sets or clears O_NONBLOCK.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        either!(self, socket => socket.set_nonblocking(nonblocking));
    }

    /// Returns the sizes of buffers and queues.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        either!(self, socket => socket.sizes())
    }

    /// Changes the sizes.
    ///
    /// # Errors
    /// `EINVAL` once a stream is or was connected, or a datagram socket has an address.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> io::Result<()> {
        either!(self, socket => socket.set_sizes(change))
    }

    /// Sends; a datagram socket to `to` if it is given.
    ///
    /// # Errors
    /// `EISCONN` for a stream with `to`; those of [`Stream::send`] and [`Datagram::send`].
    pub fn send(&self, parts: &[IoSlice<'_>], to: Option<SocketAddr>, flags: Flags) -> io::Result<usize> {
        match self {
            Self::Stream(_) if to.is_some() => Err(errno(libc::EISCONN)),
            Self::Stream(stream) => stream.send(parts, flags),
            Self::Datagram(datagram) => datagram.send(parts, to, flags),
        }
    }

    /// Receives; returns the number of bytes and the sender.
    ///
    /// # Errors
    /// Those of [`Stream::receive`] and [`Datagram::receive`].
    pub fn receive(
        &self,
        parts: &mut [IoSliceMut<'_>],
        flags: Flags,
    ) -> io::Result<(usize, Option<SocketAddr>)> {
        match self {
            Self::Stream(stream) => Ok((stream.receive(parts, flags)?, stream.peer_addr())),
            Self::Datagram(datagram) => datagram.receive(parts, flags).map(|(len, from)| (len, Some(from))),
        }
    }

    /// Closes the socket (rclose); waiting calls return `EBADF`.
    pub fn close(&self) {
        either!(self, socket => socket.close());
    }

    /// At the end of the process: a stream waits up to `time` until sent data has arrived, and disconnects.
    pub fn abandon(&self, lock_until_ns: u64, time: Duration) {
        if let Self::Stream(stream) = self {
            stream.abandon(lock_until_ns, time);
        }
    }

    /// True in a forked child: the connection or queue pair belongs to the parent.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        either!(self, socket => socket.is_inherited())
    }

    pub(super) fn poll_ready(&self, events: Ready) -> Ready {
        either!(self, socket => socket.0.poll_ready(events))
    }

    pub(super) fn waiters(&self) -> &Waiters {
        either!(self, socket => socket.0.waiters())
    }

    pub(super) fn arm(&self, events: Ready) -> (Vec<PollFd>, Ready) {
        either!(self, socket => socket.0.arm(events))
    }
}
