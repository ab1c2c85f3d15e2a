//! A byte stream.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use crate::errno;
use crate::reactor::Reactor;
use crate::waiting::{Interest, Waiting};
use roxie_rsocket::{Flags, Stream};
use sys::spawn_without_signals;

/// Index of the descriptors in [`Waiting`].
const EVENTS: usize = 0;
const COMPLETIONS: usize = 1;
const NONBLOCKING: Flags = Flags { nonblocking: true, peek: false, wait_all: false };

/// A connected byte stream over RDMA. It speaks the protocol of rsockets, so its peer may be a C program.
///
/// It implements `AsyncRead` and `AsyncWrite` of its executor. Writing copies the bytes, and completes when
/// they are posted. Shutting down completes when the peer's device has acknowledged all of them.
///
/// Dropping a connected stream sends what is still to be sent, on a thread of its own. A process that ends at
/// once should shut the stream down first.
pub struct RdmaStream<R: Reactor> {
    pub(super) stream: Stream,
    pub(super) waiting: Waiting<R>,
}

impl<R: Reactor> RdmaStream<R> {
    /// Takes over a non-blocking stream.
    pub(super) fn new(stream: Stream) -> io::Result<Self> {
        let waiting = Waiting::new();
        waiting.watch(EVENTS, stream.event_fd())?;
        stream.set_tasks(waiting.waker());
        Ok(Self { stream, waiting })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// `NotConnected` if the stream was never connected.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.stream.local_addr().ok_or_else(|| errno(libc::ENOTCONN))
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `NotConnected` if the stream was never connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr().ok_or_else(|| errno(libc::ENOTCONN))
    }

    /// Receives into the parts in order: `Ready(0)` at the end of the peer's stream.
    ///
    /// # Errors
    /// Once, the error that ended the connection.
    pub fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        parts: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, Interest::Read, || self.stream.receive(parts, NONBLOCKING))
    }

    /// Sends bytes of the parts in order, as many as there is space for.
    ///
    /// # Errors
    /// `BrokenPipe` after a shutdown; `ConnectionReset` if the peer has closed the connection.
    pub fn poll_send(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.poll(cx, Interest::Write, || self.stream.send(parts, NONBLOCKING))
    }

    /// Ends sending: the peer reads the end of the stream after all data. Ready when the peer's device has
    /// acknowledged everything.
    ///
    /// # Errors
    /// Once, the error that ended the connection.
    pub fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(cx, Interest::Write, || self.stream.try_finish())
    }

    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        attempt: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.waiting.poll(cx, interest, attempt, || {
            self.stream.rearm();
            self.stream.with_completion_fd(|fd| self.waiting.watch(COMPLETIONS, fd)).unwrap_or(Ok(()))
        })
    }
}

impl<R: Reactor> Drop for RdmaStream<R> {
    fn drop(&mut self) {
        if !self.stream.is_connected() {
            self.stream.close();
            return;
        }
        // Closing waits for the acknowledgement of the peer's device, and for all data before it.
        let stream = self.stream.clone();
        if spawn_without_signals("roxie-close", move || stream.close()).is_err() {
            self.stream.close();
        }
    }
}

impl<R: Reactor> fmt::Debug for RdmaStream<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaStream")
            .field("local", &self.stream.local_addr())
            .field("peer", &self.stream.peer_addr())
            .finish()
    }
}
