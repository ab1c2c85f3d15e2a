//! Connecting and accepting byte streams.

use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use crate::errno;
use crate::reactor::Reactor;
use crate::stream::RdmaStream;
use crate::waiting::Interest;
use roxie::verbs::Context as Device;
use roxie_rsocket::Stream;

/// Requests that wait for [`RdmaListener::accept`]; as the default of most TCP libraries.
const BACKLOG: i32 = 1024;

/// Sizes of a stream, and its local address. The defaults are those of rsocket(7).
#[derive(Clone)]
pub struct StreamBuilder<R: Reactor> {
    context: Device,
    send_buffer: Option<u32>,
    receive_buffer: Option<u32>,
    local: Option<SocketAddr>,
    reactor: PhantomData<R>,
}

impl<R: Reactor> RdmaStream<R> {
    /// Connects to a listener, and completes when the listener's program has accepted.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `EHOSTUNREACH`; the device cannot start.
    pub async fn connect(context: &Device, to: SocketAddr) -> io::Result<Self> {
        StreamBuilder::new(context).connect(to).await
    }

    /// Begins a stream or listener with other than the default sizes.
    #[must_use]
    pub fn builder(context: &Device) -> StreamBuilder<R> {
        StreamBuilder::new(context)
    }
}

impl<R: Reactor> StreamBuilder<R> {
    pub(super) fn new(context: &Device) -> Self {
        let context = context.clone();
        Self { context, send_buffer: None, receive_buffer: None, local: None, reactor: PhantomData }
    }

    /// Bytes that were written and not acknowledged, from 4096 to 1 GiB (default 128 KiB).
    #[must_use]
    pub fn send_buffer(mut self, bytes: u32) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// Bytes that the peer may send before they are read, from 2 to 1 GiB (default 128 KiB). The second half
    /// only becomes usable when a task waits for the stream.
    #[must_use]
    pub fn receive_buffer(mut self, bytes: u32) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// The address to connect from.
    #[must_use]
    pub fn local_addr(mut self, address: SocketAddr) -> Self {
        self.local = Some(address);
        self
    }

    fn stream(&self) -> io::Result<Stream> {
        let stream = Stream::new(&self.context)?;
        stream.set_nonblocking(true);
        stream.set_sizes(|sizes| {
            self.send_buffer.into_iter().for_each(|bytes| sizes.set_send_buffer(bytes));
            self.receive_buffer.into_iter().for_each(|bytes| sizes.set_receive_buffer(bytes));
        })?;
        self.local.map_or(Ok(()), |address| stream.bind(address))?;
        Ok(stream)
    }

    /// Connects to a listener.
    ///
    /// # Errors
    /// As [`RdmaStream::connect`].
    pub async fn connect(self, to: SocketAddr) -> io::Result<RdmaStream<R>> {
        let stream = RdmaStream::new(self.stream()?)?;
        match stream.stream.connect(to) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        poll_fn(|cx| stream.poll(cx, Interest::Write, || stream.stream.try_connected())).await?;
        Ok(stream)
    }

    /// Listens on an address; port 0 selects a free one. Accepted streams have the sizes of this builder.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` for an address that the device does not have.
    pub fn listen(mut self, address: SocketAddr) -> io::Result<RdmaListener<R>> {
        self.local = Some(address);
        let stream = RdmaStream::new(self.stream()?)?;
        stream.stream.listen(BACKLOG)?;
        Ok(RdmaListener(stream))
    }
}

/// Accepts byte streams.
#[derive(Debug)]
pub struct RdmaListener<R: Reactor>(RdmaStream<R>);

impl<R: Reactor> RdmaListener<R> {
    /// Listens on an address; port 0 selects a free one.
    ///
    /// # Errors
    /// As [`StreamBuilder::listen`].
    pub fn bind(context: &Device, address: SocketAddr) -> io::Result<Self> {
        StreamBuilder::new(context).listen(address)
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None while it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Accepts the next connection. Any number of tasks may wait.
    ///
    /// # Errors
    /// `EMFILE`; `ENETDOWN` if the interface was removed.
    pub async fn accept(&self) -> io::Result<(RdmaStream<R>, SocketAddr)> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// As [`accept`](Self::accept).
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(RdmaStream<R>, SocketAddr)>> {
        self.0.poll(cx, Interest::Read, || {
            let stream = RdmaStream::new(self.0.stream.accept()?)?;
            let peer = stream.stream.peer_addr().ok_or_else(|| errno(libc::ENOTCONN))?;
            Ok((stream, peer))
        })
    }
}
