//! The stream socket: its state, and the calls that do not transfer data.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wire::rsocket::Control;

use crate::Broken;
use crate::endpoint::Endpoint;
use crate::errno;
use crate::iomap::Iomaps;
use crate::settings::{Settings, Sizes};
use crate::wait::{Waitable, Waiters};
use roxie::cm::{Devices, EventChannel, Id, PortSpace};
use roxie::verbs::Context;
use sys::{generation, lock_until, now_ns};
use transport::QpType;

/// A stream socket. This is a handle; [`close`](Self::close) closes the socket for all handles.
#[derive(Clone)]
pub struct Stream(pub(super) Arc<Inner>);

pub(super) struct Inner {
    /// Its descriptor is the socket's number.
    pub(super) channel: EventChannel,
    /// The process that created the socket.
    generation: u32,
    pub(super) state: Mutex<State>,
    pub(super) waiters: Waiters,
}

/// Protected by the socket's lock.
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) id: Id,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) sizes: Sizes,
    pub(super) nonblocking: bool,
    /// The next value of SO_ERROR.
    pub(super) error: Option<i32>,
    pub(super) iomaps: Iomaps,
}

/// State of the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    Idle,
    Bound,
    Listening,
    /// Connecting or accepting.
    Opening,
    Connected {
        readable: bool,
        writable: bool,
    },
    /// The connection has ended; received data can be read.
    Disconnected,
    /// The connection failed or was never made.
    Failed,
    Closed,
}

/// Directions to shut down.
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
    /// Creates a socket without an address.
    ///
    /// # Errors
    /// The errors of starting the device's engine; `EMFILE`.
    pub fn new(context: &Context) -> io::Result<Self> {
        let channel = channel()?;
        let id = Id::new(context, &channel, PortSpace::Tcp, 0)?;
        Ok(Self::with_id(channel, id, Settings::get().sizes))
    }

    /// Creates a socket without an address, which chooses its device by its addresses.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn of_any(devices: Arc<dyn Devices>) -> io::Result<Self> {
        let channel = channel()?;
        let id = Id::of_any(devices, &channel, PortSpace::Tcp, QpType::Rc, 0)?;
        Ok(Self::with_id(channel, id, Settings::get().sizes))
    }

    pub(super) fn with_id(channel: EventChannel, id: Id, sizes: Sizes) -> Self {
        let state = State {
            phase: Phase::Idle,
            id,
            endpoint: None,
            sizes,
            nonblocking: false,
            error: None,
            iomaps: Iomaps::default(),
        };
        let (generation, waiters) = (generation(), Waiters::default());
        Self(Arc::new(Inner { channel, generation, state: Mutex::new(state), waiters }))
    }

    /// The number of the socket: a descriptor that only this module can use.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.channel.fd()
    }

    /// Binds to an address (rbind).
    ///
    /// # Errors
    /// Those of [`Id::bind_addr`].
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let mut state = self.0.lock();
        state.id.bind_addr(addr)?;
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Starts listening (rlisten); a second call does nothing.
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

    /// Returns the local address, if the socket has one (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.0.lock().id.local_addr()
    }

    /// Returns the address of the peer (rgetpeername).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.lock().id.peer_addr()
    }

    /// True if the socket is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        matches!(self.0.lock().phase, Phase::Connected { .. })
    }

    /// True if calls return `WouldBlock` instead of waiting (O_NONBLOCK).
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.0.lock().nonblocking
    }

    /// Sets or clears O_NONBLOCK.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.lock().nonblocking = nonblocking;
    }

    /// Returns and clears the error of the connection or the connection attempt (SO_ERROR).
    #[must_use]
    pub fn take_error(&self) -> Option<i32> {
        self.0.lock().error.take()
    }

    /// Returns the sizes of buffers and queues.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.0.lock().sizes
    }

    /// Changes the sizes.
    ///
    /// # Errors
    /// `EINVAL` once the socket is or was connected.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> io::Result<()> {
        let mut state = self.0.lock();
        if !matches!(state.phase, Phase::Idle | Phase::Bound | Phase::Listening) {
            return Err(errno(libc::EINVAL));
        }
        change(&mut state.sizes);
        Ok(())
    }

    /// Sets an option of the CM identifier (rdma_set_option(3)).
    ///
    /// # Errors
    /// Those of [`Id::set_option`].
    pub fn set_id_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        Ok(self.0.lock().id.set_option(level, name, value)?)
    }

    /// Returns the path MTU in bytes; `None` before the path is known.
    #[must_use]
    pub fn path_mtu(&self) -> Option<u32> {
        self.0.lock().id.path().map(|path| path.mtu.bytes() as u32)
    }

    /// Shuts down receiving, sending, or both (rshutdown). Shutting down both waits until all sent data has
    /// arrived.
    ///
    /// # Errors
    /// `ENOTCONN` without a connection.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let mut state = self.0.lock();
        let Phase::Connected { readable, writable } = state.phase else {
            return match state.phase {
                Phase::Disconnected | Phase::Failed => Ok(()),
                _ => Err(errno(libc::ENOTCONN)),
            };
        };
        let readable_now = readable && how == Shutdown::Write;
        let writable_now = writable && how == Shutdown::Read;
        state.phase = Phase::Connected { readable: readable_now, writable: writable_now };
        drop(state);
        self.0.waiters.notify();
        // The peer is not told that receiving has ended: further data stays in its granted memory.
        if writable_now || (!writable && readable_now) {
            return Ok(());
        }
        let last = !readable_now;
        let control = if last { Control::Disconnect } else { Control::Shutdown };
        self.0.wait_for(false, |state| {
            if !matches!(state.phase, Phase::Connected { .. }) {
                return Some(());
            }
            let endpoint = state.endpoint.as_mut()?;
            if !endpoint.has_room_for_control() {
                return None;
            }
            let sent = endpoint.control(control);
            state.ok_or_fail(sent);
            Some(())
        })?;
        if last {
            self.0.wait_for(false, |state| {
                let over = !matches!(state.phase, Phase::Connected { .. });
                (over || state.endpoint.as_ref().is_none_or(Endpoint::is_idle)).then_some(())
            })?;
            self.0.lock().disconnected();
        }
        Ok(())
    }

    /// Closes the socket (rclose); waiting calls return `EBADF`.
    pub fn close(&self) {
        if matches!(self.0.lock().phase, Phase::Connected { .. }) {
            // Fails only if the connection has failed; then there is no peer to tell.
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
        self.0.waiters.notify();
    }

    /// At the end of the process: waits up to `time` until sent data has arrived, and disconnects. Does
    /// neither if another thread keeps the socket locked until `lock_until_ns`: a signal handler that calls
    /// exit(3) may have interrupted that thread.
    pub fn abandon(&self, lock_until_ns: u64, time: Duration) {
        let Some(mut state) = lock_until(&self.0.state, lock_until_ns) else { return };
        let until = now_ns() + time.as_nanos() as u64;
        while matches!(state.phase, Phase::Connected { .. })
            && state.endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_idle())
            && now_ns() < until
        {
            self.0.progress(&mut state);
        }
        // Fails without a connection.
        let _not_connected = state.id.disconnect();
    }

    /// True in a forked child: the connection belongs to the parent.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.generation != generation()
    }
}

/// Creates a non-blocking channel.
pub(super) fn channel() -> io::Result<EventChannel> {
    let channel = EventChannel::new()?;
    channel.set_nonblocking()?;
    Ok(channel)
}

impl State {
    /// Returns the value of an endpoint's result; an error ends the connection.
    pub(super) fn ok_or_fail<T>(&mut self, done: Result<T, Broken>) -> Option<T> {
        match done {
            Ok(value) => Some(value),
            Err(Broken(errno)) => {
                self.failed(errno);
                None
            }
        }
    }

    /// Ends the connection or the attempt with this errno.
    pub(super) fn failed(&mut self, errno: i32) {
        self.phase = Phase::Failed;
        self.error = Some(errno);
        // Tells the peer; fails if there was no connection.
        let _not_connected = self.id.disconnect();
    }

    /// Ends a connection in order.
    pub(super) fn disconnected(&mut self) {
        if matches!(self.phase, Phase::Connected { .. }) {
            self.phase = Phase::Disconnected;
        }
    }

    /// Handles a control message of the peer.
    pub(super) fn handle_control(&mut self, control: Control) {
        let Phase::Connected { writable, .. } = self.phase else { return };
        match control {
            Control::Disconnect => self.disconnected(),
            Control::Shutdown if writable => self.phase = Phase::Connected { readable: false, writable },
            Control::Shutdown => self.disconnected(),
            Control::KeepAlive => {}
        }
    }
}
