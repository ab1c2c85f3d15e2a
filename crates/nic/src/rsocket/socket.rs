//! Sockets of either kind behind one number.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use super::datagram::Datagram;
use super::settings::Sizes;
use super::stream::Stream;
use super::transfer::Flags;
use super::wait::{Ready, Waits, Watchers};
use sys::PollFd;

/// A socket. A handle; [`close`](Self::close) ends the socket for all of them.
#[derive(Clone)]
pub enum Socket {
    /// SOCK_STREAM.
    Stream(Stream),
    /// SOCK_DGRAM.
    Datagram(Datagram),
}

/// The same of both.
macro_rules! either {
    ($socket:expr, $either:ident => $same:expr) => {
        match $socket {
            Socket::Stream($either) => $same,
            Socket::Datagram($either) => $same,
        }
    };
}

impl Socket {
    /// What only streams can do.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for the others.
    pub fn stream(&self) -> io::Result<&Stream> {
        match self {
            Self::Stream(stream) => Ok(stream),
            Self::Datagram(_) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    /// The number of the socket: a descriptor of its own, of no use outside this module.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        either!(self, socket => socket.fd())
    }

    /// Gives it an address (rbind).
    ///
    /// # Errors
    /// Those of [`Stream::bind`] and [`Datagram::bind`].
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        either!(self, socket => socket.bind(addr))
    }

    /// Gives it a peer (rconnect).
    ///
    /// # Errors
    /// Those of [`Stream::connect`] and [`Datagram::connect`].
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        either!(self, socket => socket.connect(to))
    }

    /// Its own address (rgetsockname), once it has one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        either!(self, socket => socket.local_addr())
    }

    /// The peer's (rgetpeername).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        either!(self, socket => socket.peer_addr())
    }

    /// Whether calls return instead of waiting (O_NONBLOCK).
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        either!(self, socket => socket.is_nonblocking())
    }

    /// Sets that.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        either!(self, socket => socket.set_nonblocking(nonblocking));
    }

    /// Its sizes.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        either!(self, socket => socket.sizes())
    }

    /// Changes its sizes.
    ///
    /// # Errors
    /// `EINVAL` once it is or was connected, or, for datagrams, has an address.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> io::Result<()> {
        either!(self, socket => socket.set_sizes(change))
    }

    /// Sends, datagrams to an address if one is given.
    ///
    /// # Errors
    /// `EISCONN` for an address and a stream; those of [`Stream::send`] and [`Datagram::send`].
    pub fn send(&self, parts: &[IoSlice<'_>], to: Option<SocketAddr>, flags: Flags) -> io::Result<usize> {
        match self {
            Self::Stream(_) if to.is_some() => Err(io::Error::from_raw_os_error(libc::EISCONN)),
            Self::Stream(stream) => stream.send(parts, flags),
            Self::Datagram(datagram) => datagram.send(parts, to, flags),
        }
    }

    /// Receives; how many bytes, and from whom.
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

    /// Ends the socket (rclose); calls that wait on it return `EBADF`.
    pub fn close(&self) {
        either!(self, socket => socket.close());
    }

    /// The process ends: a stream waits a little for what was sent to arrive, and tells the peer.
    pub fn abandon(&self, lock_until_ns: u64, time: Duration) {
        if let Self::Stream(stream) = self {
            stream.abandon(lock_until_ns, time);
        }
    }

    /// Whether it is a forked child that looks at it: what it stands for is the parent's.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        either!(self, socket => socket.is_inherited())
    }

    pub(super) fn look(&self, events: Ready) -> Ready {
        either!(self, socket => socket.0.look(events))
    }

    pub(super) fn watchers(&self) -> &Watchers {
        either!(self, socket => socket.0.watchers())
    }

    pub(super) fn arm(&self, events: Ready) -> (Vec<PollFd>, Ready) {
        either!(self, socket => socket.0.arm(events))
    }
}
