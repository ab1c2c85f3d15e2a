//! The socket: its state, and the calls that are not transfers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wire::rsocket::Control;

use super::Broken;
use super::endpoint::Endpoint;
use super::iomap::Iomaps;
use super::settings::{Settings, Sizes};
use super::wait::{Waits, Watchers};
use crate::cm::{EventChannel, Id, PortSpace};
use crate::verbs::Context;
use sys::{generation, lock_until, now_ns};

/// A stream socket. A handle; [`close`](Self::close) ends the socket for all of them.
#[derive(Clone)]
pub struct Stream(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) context: Context,
    /// Its descriptor is the socket's number.
    pub(super) channel: EventChannel,
    /// The process that made it.
    generation: u32,
    pub(super) state: Mutex<State>,
    pub(super) watchers: Watchers,
}

/// What the lock of a socket protects.
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) id: Id,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) sizes: Sizes,
    pub(super) nonblocking: bool,
    /// What SO_ERROR says next.
    pub(super) error: Option<i32>,
    pub(super) iomaps: Iomaps,
}

/// Where a socket is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    /// Between connect, or the acceptance of a request, and the connection.
    Opening,
    Connected {
        readable: bool,
        writable: bool,
    },
    /// Nothing more comes or goes; what has come can be read.
    Disconnected,
    /// There is no connection any more, or there never was one.
    Failed,
    Closed,
}

/// Which directions end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shutdown {
    /// Receiving.
    Read,
    /// Sending.
    Write,
    /// Both.
    Both,
}

impl Stream {
    /// A socket without an address.
    ///
    /// # Errors
    /// Those of starting the device's engine, or of having no descriptor left.
    pub fn new(context: &Context) -> io::Result<Self> {
        let channel = channel()?;
        let id = Id::new(context, &channel, PortSpace::Tcp, 0)?;
        Ok(Self::with_id(context, channel, id, Settings::get().sizes))
    }

    pub(super) fn with_id(context: &Context, channel: EventChannel, id: Id, sizes: Sizes) -> Self {
        let state = State {
            phase: Phase::Idle,
            id,
            endpoint: None,
            sizes,
            nonblocking: false,
            error: None,
            iomaps: Iomaps::default(),
        };
        let (context, watchers) = (context.clone(), Watchers::default());
        let generation = generation();
        Self(Arc::new(Inner { context, channel, generation, state: Mutex::new(state), watchers }))
    }

    /// The number of the socket: a descriptor of its own, of no use outside this module.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.channel.fd()
    }

    /// Gives it an address (rbind).
    ///
    /// # Errors
    /// Those of [`Id::bind_addr`].
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let mut state = self.0.lock();
        state.id.bind_addr(addr)?;
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Waits for connections from now on (rlisten); a second call does nothing.
    ///
    /// # Errors
    /// Those of [`Id::listen`].
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.phase == Phase::Listening {
            return Ok(());
        }
        state.id.listen(backlog)?;
        state.phase = Phase::Listening;
        Ok(())
    }

    /// Its own address (rgetsockname), once it has one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.lock().id.local_addr()
    }

    /// The peer's (rgetpeername).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.lock().id.peer_addr()
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(self.0.lock().phase, Phase::Connected { .. })
    }

    /// Whether calls return instead of waiting (O_NONBLOCK).
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.0.lock().nonblocking
    }

    /// Sets that.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.lock().nonblocking = nonblocking;
    }

    /// The error that ended the connection or the attempt; asking clears it (SO_ERROR).
    #[must_use]
    pub fn take_error(&self) -> Option<i32> {
        self.0.lock().error.take()
    }

    /// Its sizes.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.0.lock().sizes
    }

    /// Changes its sizes.
    ///
    /// # Errors
    /// `EINVAL` once it is or was connected.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> io::Result<()> {
        let mut state = self.0.lock();
        if !matches!(state.phase, Phase::Idle | Phase::Bound | Phase::Listening) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        change(&mut state.sizes);
        Ok(())
    }

    /// An option of the identifier under it (rdma_set_option(3)).
    ///
    /// # Errors
    /// Those of [`Id::set_option`].
    pub fn set_id_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        self.0.lock().id.set_option(level, name, value)
    }

    /// Largest payload of a packet on its path; `None` before there is one.
    #[must_use]
    pub fn path_mtu(&self) -> Option<u32> {
        self.0.lock().id.path().map(|path| path.mtu.bytes() as u32)
    }

    /// Ends receiving, sending, or both (rshutdown). Ending both waits until everything sent has arrived.
    ///
    /// # Errors
    /// `ENOTCONN` if there is no connection to end.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let mut state = self.0.lock();
        let Phase::Connected { readable, writable } = state.phase else {
            return match state.phase {
                Phase::Disconnected | Phase::Failed => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::ENOTCONN)),
            };
        };
        let readable_now = readable && how == Shutdown::Write;
        let writable_now = writable && how == Shutdown::Read;
        state.phase = Phase::Connected { readable: readable_now, writable: writable_now };
        drop(state);
        self.0.watchers.notify();
        // The peer need not know that nobody reads; what it sends waits where it is.
        if writable_now || (!writable && readable_now) {
            return Ok(());
        }
        let last = !readable_now;
        let control = if last { Control::Disconnect } else { Control::Shutdown };
        self.0.wait_for(None, |state| {
            if !matches!(state.phase, Phase::Connected { .. }) {
                return Some(());
            }
            let endpoint = state.endpoint.as_mut()?;
            if !endpoint.has_room_for_control() {
                return None;
            }
            let said = endpoint.control(control);
            state.note(said);
            Some(())
        })?;
        if last {
            self.0.wait_for(None, |state| {
                let over = !matches!(state.phase, Phase::Connected { .. });
                (over || state.endpoint.as_ref().is_none_or(Endpoint::is_idle)).then_some(())
            })?;
            self.0.lock().disconnected();
        }
        Ok(())
    }

    /// Ends the socket (rclose); calls that wait on it return `EBADF`.
    pub fn close(&self) {
        if matches!(self.0.lock().phase, Phase::Connected { .. }) {
            // It fails if the connection does, and then there is nobody to say goodbye to.
            let _over = self.shutdown(Shutdown::Both);
        }
        let mut state = self.0.lock();
        state.phase = Phase::Closed;
        let id = state.id.clone();
        let endpoint = state.endpoint.take();
        state.iomaps = Iomaps::default();
        drop(state);
        id.destroy();
        drop(endpoint);
        self.0.watchers.notify();
    }

    /// The process ends: waits a little for what was sent to arrive, and tells the peer. Does neither if another thread keeps the socket
    /// locked until `lock_until_ns`: a signal handler that exits may have interrupted it.
    pub fn abandon(&self, lock_until_ns: u64, time: Duration) {
        let Some(mut state) = lock_until(&self.0.state, lock_until_ns) else { return };
        let until = now_ns() + time.as_nanos() as u64;
        while matches!(state.phase, Phase::Connected { .. })
            && state.endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_idle())
            && now_ns() < until
        {
            self.0.progress(&mut state);
        }
        // There may be no connection.
        let _nobody_to_tell = state.id.disconnect();
    }

    /// Whether it is a forked child that looks at it: its connection is the parent's.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.generation != generation()
    }
}

/// A channel whose reader never waits in it.
pub(super) fn channel() -> io::Result<EventChannel> {
    let channel = EventChannel::new()?;
    channel.set_nonblocking()?;
    Ok(channel)
}

impl State {
    /// Something was done with the endpoint; if that failed, so has the connection.
    pub(super) fn note<T>(&mut self, done: Result<T, Broken>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(Broken(errno)) => {
                self.failed(errno);
                None
            }
        }
    }

    /// There is no connection, for this errno.
    pub(super) fn failed(&mut self, errno: i32) {
        self.phase = Phase::Failed;
        self.error = Some(errno);
        // The peer learns of it, if it is still there and there ever was a connection.
        let _nobody_to_tell = self.id.disconnect();
    }

    /// The connection has ended in order.
    pub(super) fn disconnected(&mut self) {
        if matches!(self.phase, Phase::Connected { .. }) {
            self.phase = Phase::Disconnected;
        }
    }

    /// The peer said something about the connection.
    pub(super) fn heard(&mut self, control: Control) {
        let Phase::Connected { writable, .. } = self.phase else { return };
        match control {
            Control::Disconnect => self.disconnected(),
            Control::Shutdown if writable => self.phase = Phase::Connected { readable: false, writable },
            Control::Shutdown => self.disconnected(),
            Control::KeepAlive => {}
        }
    }
}
