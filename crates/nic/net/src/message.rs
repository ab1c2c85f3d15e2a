//! Message sockets: connections with SEND and RECV.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::errno;
use crate::events::CmEvents;
use crate::link::{Link, Sizes};
use crate::reactor::Reactor;
use crate::waiting::{Interest, Waiting};
use roxie::cm::{CmEvent, CmEventKind, EventChannel, Id, PortSpace};
use roxie::verbs::{Buffer, Context as Device, Pd};
use transport::{Access, MAX_QP_WR};

/// Index of the descriptors in [`Waiting`].
const EVENTS: usize = 0;
const COMPLETIONS: usize = 1;
/// Time limit for resolving the neighbour of the peer; that of the kernel's ARP is 3 s.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
/// Requests that wait for [`MessageListener::accept`].
const BACKLOG: i32 = 1024;
/// Longest message. Both directions need `depth` slots of this length.
const MESSAGE_MAX: u32 = 16 << 20;

/// Sizes of a message socket, and its protection domain.
#[derive(Clone)]
pub struct MessageBuilder<R: Reactor> {
    context: Device,
    pd: Option<Pd>,
    sizes: Sizes,
    reactor: PhantomData<R>,
}

impl<R: Reactor> MessageBuilder<R> {
    fn new(context: &Device) -> Self {
        let sizes = Sizes { message_len: 16 << 10, depth: 16 };
        Self { context: context.clone(), pd: None, sizes, reactor: PhantomData }
    }

    /// Longest message in bytes, from 8 to 16 MiB (default 16 KiB). A longer READ or WRITE takes several
    /// calls.
    #[must_use]
    pub fn message_len(mut self, bytes: u32) -> Self {
        self.sizes.message_len = bytes.clamp(8, MESSAGE_MAX).next_multiple_of(8);
        self
    }

    /// Messages in flight in each direction, from 1 to 16384 (default 16). The socket holds
    /// `2 * depth * message_len` bytes. If all of the peer's receives are in use, the device retries until
    /// the peer's program receives.
    #[must_use]
    pub fn depth(mut self, messages: u16) -> Self {
        self.sizes.depth = messages.clamp(1, (MAX_QP_WR / 2) as u16);
        self
    }

    /// The protection domain. Memory of one domain can be exposed to the peers of all its sockets. The
    /// default is a new one for each connecting socket, and one for all sockets of a listener.
    #[must_use]
    pub fn pd(mut self, pd: &Pd) -> Self {
        self.pd = Some(pd.clone());
        self
    }

    fn domain(&self) -> io::Result<Pd> {
        self.pd.clone().map_or_else(|| self.context.alloc_pd(), Ok)
    }

    /// Connects to a listener: a [`MessageListener`], or any rdma_cm program that accepts without private
    /// data.
    ///
    /// # Errors
    /// `ConnectionRefused`, `TimedOut`, `EHOSTUNREACH`; the device cannot start.
    pub async fn connect(self, to: SocketAddr) -> io::Result<MessageSocket<R>> {
        let pd = self.domain()?;
        let channel = channel()?;
        let id = Id::new(&self.context, &channel, PortSpace::Tcp, 0)?;
        let socket = MessageSocket::new(id, channel, &pd, self.sizes)?;
        socket.link.id().resolve_addr(None, to, RESOLVE_MAX)?;
        poll_fn(|cx| socket.poll(cx, Interest::Write, || socket.link.connected())).await?;
        Ok(socket)
    }

    /// Listens on an address; port 0 selects a free one.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` for an address that the device does not have.
    pub fn listen(mut self, address: SocketAddr) -> io::Result<MessageListener<R>> {
        let pd = self.domain()?;
        self.pd = Some(pd.clone());
        let events = CmEvents::new()?;
        let id = Id::new(&self.context, events.channel(), PortSpace::Tcp, 0)?;
        id.bind_addr(address)?;
        id.listen(BACKLOG)?;
        Ok(MessageListener { id, events, pd, sizes: self.sizes })
    }
}

/// Accepts message sockets.
pub struct MessageListener<R: Reactor> {
    id: Id,
    events: CmEvents<R>,
    pd: Pd,
    sizes: Sizes,
}

impl<R: Reactor> MessageListener<R> {
    /// Listens on an address with the default sizes; port 0 selects a free one.
    ///
    /// # Errors
    /// As [`MessageBuilder::listen`].
    pub fn bind(context: &Device, address: SocketAddr) -> io::Result<Self> {
        MessageBuilder::new(context).listen(address)
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// None while it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.id.local_addr().ok_or_else(|| errno(libc::ENOTCONN))
    }

    /// Returns the protection domain of accepted sockets.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Allocates memory that the peers of accepted sockets may use as `access` permits.
    ///
    /// # Errors
    /// `ENOMEM`; a wrong combination of rights.
    pub fn expose(&self, len: usize, access: Access) -> io::Result<Buffer> {
        self.pd.alloc_buffer(len, access).map_err(io::Error::from)
    }

    /// Accepts the next connection. Any number of tasks may wait.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`: the request was rejected. `ENETDOWN` if the interface was removed.
    pub async fn accept(&self) -> io::Result<MessageSocket<R>> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// As [`accept`](Self::accept).
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<MessageSocket<R>>> {
        loop {
            let event = match self.events.poll_next(cx) {
                Poll::Ready(event) => event?,
                Poll::Pending => return Poll::Pending,
            };
            match event.kind {
                CmEventKind::ConnectRequest => return Poll::Ready(self.accept_request(event)),
                CmEventKind::DeviceRemoval => return Poll::Ready(Err(errno(libc::ENETDOWN))),
                _ => {}
            }
        }
    }

    fn accept_request(&self, event: CmEvent) -> io::Result<MessageSocket<R>> {
        let (id, request) = (event.id.clone(), event.private_data.clone());
        // Migrating waits until all events of the identifier are acknowledged; dropping the event does that.
        drop(event);
        let channel = channel()?;
        id.migrate(&channel)?;
        let socket = MessageSocket::new(id, channel, &self.pd, self.sizes)?;
        socket.link.accept(&request)?;
        Ok(socket)
    }
}

/// A connection that keeps the boundaries of messages, and that can READ and WRITE memory of its peer.
///
/// All methods take `&self`; any number of tasks may use a socket at once. Dropping it disconnects at once:
/// messages that are not acknowledged yet are lost unless [`close`](Self::close) was awaited.
pub struct MessageSocket<R: Reactor> {
    pub(super) waiting: Waiting<R>,
    pub(super) link: Link,
}

impl<R: Reactor> MessageSocket<R> {
    /// Connects to a listener with the default sizes.
    ///
    /// # Errors
    /// As [`MessageBuilder::connect`].
    pub async fn connect(context: &Device, to: SocketAddr) -> io::Result<Self> {
        Self::builder(context).connect(to).await
    }

    /// Begins a socket or listener with other than the default sizes.
    #[must_use]
    pub fn builder(context: &Device) -> MessageBuilder<R> {
        MessageBuilder::new(context)
    }

    fn new(id: Id, channel: EventChannel, pd: &Pd, sizes: Sizes) -> io::Result<Self> {
        let waiting = Waiting::new();
        let link = Link::new(id, channel, pd, sizes, waiting.waker())?;
        waiting.watch(EVENTS, link.event_fd())?;
        waiting.watch(COMPLETIONS, link.completion_fd())?;
        Ok(Self { waiting, link })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// `NotConnected` if the socket was never connected.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.link.id().local_addr().ok_or_else(|| errno(libc::ENOTCONN))
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// `NotConnected` if the socket was never connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.link.id().peer_addr().ok_or_else(|| errno(libc::ENOTCONN))
    }

    /// Longest message that can be sent: the shorter of both sides' `message_len`.
    #[must_use]
    pub fn message_max(&self) -> usize {
        self.link.message_max()
    }

    /// Allocates memory that the peer may use as `access` permits.
    ///
    /// # Errors
    /// `ENOMEM`; a wrong combination of rights.
    pub fn expose(&self, len: usize, access: Access) -> io::Result<Buffer> {
        self.link.pd().alloc_buffer(len, access).map_err(io::Error::from)
    }

    /// Sends a message: waits for a free slot, copies the message and posts it.
    ///
    /// # Errors
    /// `EMSGSIZE` if it is longer than [`message_max`](Self::message_max); `BrokenPipe` after the end of the
    /// connection, and the error that ended it.
    pub async fn send(&self, message: &[u8]) -> io::Result<()> {
        poll_fn(|cx| self.poll_send(cx, message)).await
    }

    /// As [`send`](Self::send).
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn poll_send(&self, cx: &mut Context<'_>, message: &[u8]) -> Poll<io::Result<()>> {
        self.poll(cx, Interest::Write, || self.link.send(message))
    }

    /// Returns the next message; `None` after the peer has closed the connection.
    ///
    /// # Errors
    /// The error that ended the connection, after the messages that arrived before.
    pub async fn recv(&self) -> io::Result<Option<Vec<u8>>> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// As [`recv`](Self::recv).
    ///
    /// # Errors
    /// As [`recv`](Self::recv).
    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Vec<u8>>>> {
        self.poll(cx, Interest::Read, || {
            self.link.receive(|memory, offset, len| {
                let mut message = vec![0; len];
                memory.read(offset, &mut message);
                Ok(message)
            })
        })
    }

    /// Copies the next message to `to`, and returns its length; `None` after the end of the connection.
    ///
    /// # Errors
    /// `EMSGSIZE` if `to` is shorter than the message, which then stays; as [`recv`](Self::recv).
    pub async fn recv_into(&self, to: &mut [u8]) -> io::Result<Option<usize>> {
        poll_fn(|cx| {
            self.poll(cx, Interest::Read, || {
                self.link.receive(|memory, offset, len| {
                    memory.read(offset, to.get_mut(..len).ok_or_else(|| errno(libc::EMSGSIZE))?);
                    Ok(len)
                })
            })
        })
        .await
    }

    /// Waits until the peer's device has acknowledged everything that was sent.
    ///
    /// # Errors
    /// The error that ended the connection before that.
    pub async fn flush(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll(cx, Interest::Write, || self.link.flushed())).await
    }

    /// Waits as [`flush`](Self::flush), and disconnects. The peer receives all messages, then `None`.
    ///
    /// # Errors
    /// The error that ended the connection before.
    pub async fn close(&self) -> io::Result<()> {
        self.flush().await?;
        self.link.close();
        Ok(())
    }

    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        attempt: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        self.waiting.poll(cx, interest, attempt, || {
            self.link.arm();
            Ok(())
        })
    }
}

impl<R: Reactor> fmt::Debug for MessageSocket<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MessageSocket").field(self.link.id()).finish()
    }
}

/// Creates a non-blocking channel.
fn channel() -> io::Result<EventChannel> {
    let channel = EventChannel::new()?;
    channel.set_nonblocking()?;
    Ok(channel)
}
