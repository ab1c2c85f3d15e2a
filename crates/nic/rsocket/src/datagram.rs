//! Datagram sockets: messages on a UD queue pair of each device on the route to a peer, and a UDP socket with
//! the same address, over which the ends exchange the numbers of their queue pairs.
//!
//! If the sender does not know the queue pair of the peer yet, the message goes over UDP, together with the
//! sender's QPN; the receiver answers with its own QPN. So the first message needs no handshake and no
//! listener.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

use transport::cm::UDP_QKEY;
use transport::{AddressVector, UdDest};
use wire::Gid;
use wire::rsocket::datagram::{Introduction, Source, canonical};

use crate::errno;
use crate::messages::{Arrived, Messages};
use crate::settings::{Settings, Sizes};
use crate::transfer::Flags;
use crate::wait::{Ready, Waitable, Waiters};
use roxie::cm::HOP_LIMIT;
use roxie::verbs::Context;
use sys::{Netlink, Opt, PollFd, SockAddr, generation};

/// Largest number of peers in the table. When it is full, the table is cleared, and peers introduce
/// themselves again.
const PEERS_MAX: usize = 4096;
/// Largest number of unread messages copied from UDP; further ones stay in the kernel's socket buffer.
const UDP_MAX: usize = 64;
/// Longest UDP datagram: a message of the device's largest path MTU, and an introduction.
const UDP_LEN_MAX: usize = 4096 + Introduction::LEN_MAX;

/// Returns the device with a local address; the first device for `None`.
type ChooseDevice = dyn Fn(Option<IpAddr>) -> io::Result<Context> + Send + Sync;

/// A datagram socket. This is a handle; [`close`](Self::close) closes the socket for all handles.
#[derive(Clone)]
pub struct Datagram(pub(super) Arc<Inner>);

pub(super) struct Inner {
    choose: Box<ChooseDevice>,
    /// Its descriptor is the socket's number.
    udp: UdpSocket,
    is_v6: bool,
    /// The process that created the socket.
    generation: u32,
    state: Mutex<State>,
    waiters: Waiters,
}

pub(super) struct State {
    /// The queue pairs, one for each device, in the order of their creation.
    devices: Vec<Messages>,
    peers: HashMap<SocketAddr, Peer>,
    /// Unread messages.
    arrived: VecDeque<(SocketAddr, Payload)>,
    /// Number of unread messages that came over UDP.
    over_udp: usize,
    connected: Option<SocketAddr>,
    sizes: Sizes,
    nonblocking: bool,
    closed: bool,
}

/// Where an unread message is stored.
enum Payload {
    /// A slot of the queue pair with this index.
    Slot(usize, Arrived),
    Own(Vec<u8>),
}

/// A known peer.
struct Peer {
    /// Local address on the route to the peer.
    local: IpAddr,
    /// Index of the queue pair on the device with this address.
    device: usize,
    /// GID index of the local address.
    sgid_index: u8,
    queue: Option<UdDest>,
}

impl Datagram {
    /// Creates a socket without an address.
    ///
    /// # Errors
    /// The errors of creating a UDP socket.
    pub fn new(context: &Context, is_v6: bool) -> io::Result<Self> {
        let context = context.clone();
        Self::of_any(Box::new(move |_| Ok(context.clone())), is_v6)
    }

    /// As [`new`](Self::new); `choose` returns the device with a local address, which that of the route to a
    /// peer is, or the first device for `None`: a wildcard address before there is a peer.
    ///
    /// # Errors
    /// The errors of creating a UDP socket.
    pub fn of_any(choose: Box<ChooseDevice>, is_v6: bool) -> io::Result<Self> {
        let udp = UdpSocket::from(sys::udp_socket(is_v6)?);
        udp.set_nonblocking(true)?;
        let state = State {
            devices: Vec::new(),
            peers: HashMap::new(),
            arrived: VecDeque::new(),
            over_udp: 0,
            connected: None,
            sizes: Settings::get().sizes,
            nonblocking: false,
            closed: false,
        };
        let (state, waiters) = (Mutex::new(state), Waiters::default());
        Ok(Self(Arc::new(Inner { choose, udp, is_v6, generation: generation(), state, waiters })))
    }

    /// The number of the socket: a descriptor that only this module can use.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.udp.as_raw_fd()
    }

    /// Binds to an address (rbind).
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let scope = if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 };
        sys::bind(self.0.udp.as_fd(), &SockAddr::ip(addr.ip(), addr.port(), scope))?;
        self.0.begin(&mut self.0.lock(), None)
    }

    /// Sets the peer of [`send`](Self::send); messages of other peers are dropped (rconnect).
    ///
    /// # Errors
    /// `ENETUNREACH` without a route; `ENODEV` if the source address on it does not belong to a device.
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        let mut state = self.0.lock();
        let to = canonical(to);
        self.0.begin(&mut state, Some(to))?;
        self.0.peer(&mut state, to)?;
        state.connected = Some(to);
        Ok(())
    }

    /// Returns the local address, if the socket has one (rgetsockname).
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let state = self.0.lock();
        let own = self.0.udp.local_addr().ok().filter(|own| own.port() != 0)?;
        let towards = state.connected.and_then(|to| state.peers.get(&to)).map(|peer| peer.local);
        let ip = if own.ip().is_unspecified() { towards.unwrap_or(own.ip()) } else { own.ip() };
        Some(self.0.of_family(SocketAddr::new(ip, own.port())))
    }

    /// Returns the address of the peer (rgetpeername).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.lock().connected.map(|peer| self.0.of_family(peer))
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

    /// Returns the sizes of buffers and queues.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.0.lock().sizes
    }

    /// Changes the sizes.
    ///
    /// # Errors
    /// `EINVAL` once the socket has an address.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> io::Result<()> {
        let mut state = self.0.lock();
        if !state.devices.is_empty() {
            return Err(errno(libc::EINVAL));
        }
        change(&mut state.sizes);
        Ok(())
    }

    /// Sends one message to `to`, or else to the connected peer. Waits for a free slot, unless non-blocking.
    ///
    /// # Errors
    /// `WouldBlock`; `EDESTADDRREQ` without a peer; `EMSGSIZE` if the message does not fit one packet; those
    /// of [`connect`](Self::connect).
    pub fn send(&self, parts: &[IoSlice<'_>], to: Option<SocketAddr>, flags: Flags) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut state = self.0.lock();
        let to = to.map(canonical).or(state.connected);
        let to = to.ok_or_else(|| errno(libc::EDESTADDRREQ))?;
        self.0.begin(&mut state, Some(to))?;
        self.0.peer(&mut state, to)?;
        let nonblocking = flags.nonblocking || state.nonblocking;
        drop(state);
        self.0.wait_for(nonblocking, |state| self.0.send(state, to, total, parts).transpose())?
    }

    /// Receives one message, truncated to the length of `parts`, and returns its length and source. Waits for
    /// a message, unless non-blocking.
    ///
    /// # Errors
    /// `WouldBlock`; `EBADF` if the socket is closed meanwhile; the errors of creating its queue pair.
    pub fn receive(&self, parts: &mut [IoSliceMut<'_>], flags: Flags) -> io::Result<(usize, SocketAddr)> {
        let mut state = self.0.lock();
        self.0.begin(&mut state, None)?;
        let nonblocking = flags.nonblocking || state.nonblocking;
        drop(state);
        self.0.wait_for(nonblocking, |state| {
            if state.closed {
                return Some(Err(errno(libc::EBADF)));
            }
            let len = state.peek(parts)?;
            let from = state.arrived.front().map(|(from, _)| self.0.of_family(*from))?;
            if !flags.peek
                && let Err(error) = state.discard()
            {
                return Some(Err(error));
            }
            Some(Ok((len, from)))
        })?
    }

    /// Closes the socket (rclose); waiting calls return `EBADF`.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.arrived.clear();
        let devices = std::mem::take(&mut state.devices);
        drop(state);
        drop(devices);
        self.0.waiters.notify();
    }

    /// True in a forked child: the queue pair belongs to the parent.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.generation != generation()
    }

    /// Selects IPv6 only, or both families (IPV6_V6ONLY).
    ///
    /// # Errors
    /// Those of setsockopt(2): `EINVAL` once the socket has an address.
    pub fn set_v6_only(&self, only: bool) -> io::Result<()> {
        sys::set_opt(self.0.udp.as_fd(), Opt::V6_ONLY, i32::from(only))
    }
}

impl Inner {
    /// Creates a queue pair, and binds an ephemeral port if the socket has none.
    fn begin(&self, state: &mut State, to: Option<SocketAddr>) -> io::Result<()> {
        if state.closed {
            return Err(errno(libc::EBADF));
        }
        if state.devices.is_empty() {
            if self.udp.local_addr()?.port() == 0 {
                let any: IpAddr =
                    if self.is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
                sys::bind(self.udp.as_fd(), &SockAddr::ip(any, 0, 0))?;
            }
            let context = (self.choose)(self.local_address(to).ok())?;
            state.devices.push(Messages::new(&context, &state.sizes)?);
        }
        Ok(())
    }

    /// Returns the index of the queue pair on the device with a local address, and the index of its GID.
    /// Creates the queue pair if there is none.
    fn device(&self, state: &mut State, local: IpAddr) -> io::Result<(usize, u8)> {
        let gid_of = |context: &Context| context.device().gids().index_of(&Gid::from(local));
        let known = |(index, messages): (usize, &Messages)| Some((index, gid_of(messages.context())?));
        if let Some(found) = state.devices.iter().enumerate().find_map(known) {
            return Ok(found);
        }
        let context = (self.choose)(Some(local))?;
        let sgid_index = gid_of(&context).ok_or_else(|| errno(libc::ENODEV))?;
        state.devices.push(Messages::new(&context, &state.sizes)?);
        Ok((state.devices.len() - 1, sgid_index))
    }

    /// Converts an address to the socket's family.
    fn of_family(&self, addr: SocketAddr) -> SocketAddr {
        match addr.ip() {
            IpAddr::V4(ip) if self.is_v6 => (ip.to_ipv6_mapped(), addr.port()).into(),
            _ => addr,
        }
    }

    /// Returns the table entry of a peer; creates it with the local address on the route.
    fn peer<'a>(&self, state: &'a mut State, to: SocketAddr) -> io::Result<&'a mut Peer> {
        if !state.peers.contains_key(&to) {
            let local = self.local_address(Some(to))?;
            let (device, sgid_index) = self.device(state, local)?;
            if state.peers.len() >= PEERS_MAX {
                state.peers.clear();
            }
            state.peers.insert(to, Peer { local, device, sgid_index, queue: None });
        }
        state.peers.get_mut(&to).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns the address that the socket is bound to, or that of the route to a peer.
    fn local_address(&self, to: Option<SocketAddr>) -> io::Result<IpAddr> {
        let bound = canonical(self.udp.local_addr()?).ip();
        let local = match to {
            Some(to) if bound.is_unspecified() => {
                let scope = if let SocketAddr::V6(v6) = to { v6.scope_id() } else { 0 };
                Netlink::new()?.route(to.ip(), None, scope)?.prefsrc
            }
            Some(to) => (bound.is_ipv4() == to.is_ipv4()).then_some(bound),
            None => Some(bound).filter(|bound| !bound.is_unspecified()),
        };
        local.ok_or_else(|| errno(libc::ENETUNREACH))
    }

    /// Sends one message; returns `None` if no slot is free.
    fn send(
        &self,
        state: &mut State,
        to: SocketAddr,
        total: usize,
        parts: &[IoSlice<'_>],
    ) -> io::Result<Option<usize>> {
        if state.closed {
            return Err(errno(libc::EBADF));
        }
        let &mut Peer { local, device, queue, .. } = self.peer(state, to)?;
        let Some(messages) = state.devices.get_mut(device) else { return Err(errno(libc::EBADF)) };
        if Source::len_of(local) + total > messages.len_max() {
            return Err(errno(libc::EMSGSIZE));
        }
        match queue {
            Some(_) if !messages.has_room() => return Ok(None),
            Some(queue) => {
                let from = SocketAddr::new(local, self.udp.local_addr()?.port());
                messages.send(from, queue, parts)?;
            }
            None => self.introduce(messages, local, to, Some(parts))?,
        }
        Ok(Some(total))
    }

    /// Sends the QPN to a peer over UDP, with or without a message.
    fn introduce(
        &self,
        messages: &Messages,
        local: IpAddr,
        to: SocketAddr,
        message: Option<&[IoSlice<'_>]>,
    ) -> io::Result<()> {
        let introduction = Introduction { with_message: message.is_some(), qpn: messages.qpn(), addr: local };
        let mut header = [0; Introduction::LEN_MAX];
        let len = introduction.emit(&mut header);
        let mut datagram = header[..len].to_vec();
        message.unwrap_or_default().iter().for_each(|part| datagram.extend_from_slice(part));
        match self.udp.send_to(&datagram, self.of_family(to)) {
            // A lost introduction, or one to a closed port, is repeated with the next message.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(())
            }
            sent => sent.map(drop),
        }
    }

    /// Reads the UDP socket; returns true if a datagram was there.
    fn receive_udp(&self, state: &mut State) -> bool {
        let mut any = false;
        let mut bytes = [0; UDP_LEN_MAX];
        while !state.devices.is_empty() && state.over_udp < UDP_MAX {
            let (len, from) = match self.udp.recv_from(&mut bytes) {
                Ok(received) => received,
                // The kernel reports a closed port of an earlier datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => break,
            };
            any = true;
            let from = canonical(from);
            if let Some((introduction, header_len)) = Introduction::parse(&bytes[..len]) {
                // An introduction that cannot be answered is ignored.
                let _unreachable = self.introduced(state, from, &introduction, &bytes[header_len..len]);
            }
        }
        any
    }

    fn introduced(
        &self,
        state: &mut State,
        from: SocketAddr,
        introduction: &Introduction,
        message: &[u8],
    ) -> io::Result<()> {
        let peer = self.peer(state, from)?;
        let dgid = Gid::from(introduction.addr);
        let (sgid_index, hop_limit) = (peer.sgid_index, HOP_LIMIT);
        let av = AddressVector { dgid, sgid_index, hop_limit, ..AddressVector::default() };
        peer.queue = Some(UdDest { av, remote_qpn: introduction.qpn, remote_qkey: UDP_QKEY });
        let (local, device) = (peer.local, peer.device);
        if !introduction.with_message {
            return Ok(());
        }
        if accepts_from(state.connected, from) {
            state.arrived.push_back((from, Payload::Own(message.to_vec())));
            state.over_udp += 1;
        }
        let Some(messages) = state.devices.get(device) else { return Ok(()) };
        self.introduce(messages, local, from, None)
    }
}

impl Waitable for Inner {
    type State = State;

    fn state(&self) -> &Mutex<State> {
        &self.state
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    fn progress(&self, state: &mut State) {
        let State { devices, peers, arrived, connected, .. } = state;
        let mut any = false;
        for (device, messages) in devices.iter_mut().enumerate() {
            let mut ignored = Vec::new();
            let reaped = messages.reap(|from, message| match canonical(from) {
                from if accepts_from(*connected, from) => {
                    arrived.push_back((from, Payload::Slot(device, message)));
                }
                _ => ignored.push(message),
            });
            // The queue pair has failed; the next send reports the error.
            let reaped = reaped.unwrap_or(true);
            any |= reaped;
            if reaped && messages.has_failed() {
                // The next message to such a peer takes the route that there is then.
                peers.retain(|_, peer| peer.device != device);
            }
            for message in ignored {
                let _failed = messages.release(message);
            }
        }
        if self.receive_udp(state) || any {
            self.waiters.notify();
        }
    }

    fn prepare(&self, state: &mut State) -> Vec<PollFd> {
        let mut fds = vec![PollFd::readable(self.udp.as_raw_fd())];
        fds.extend(state.devices.iter().map(Messages::arm));
        self.progress(state);
        // While the limit of unread UDP messages is reached, the UDP socket is not read, so do not wait for
        // it.
        if state.over_udp >= UDP_MAX {
            fds.remove(0);
        }
        fds
    }

    fn ready(&self, state: &State, events: Ready) -> Ready {
        if state.closed {
            return libc::POLLNVAL;
        }
        let peer = state.connected.and_then(|to| state.peers.get(&to));
        let room = match peer.and_then(|peer| state.devices.get(peer.device)) {
            Some(messages) => messages.has_room(),
            // Before the first message there is no device.
            None => state.devices.is_empty() || state.devices.iter().any(Messages::has_room),
        };
        let (readable, writable) = (libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM);
        let requested = |event: Ready, is: bool| if is { events & event } else { 0 };
        requested(readable, !state.arrived.is_empty()) | requested(writable, room)
    }
}

impl State {
    /// Copies the oldest message to `to`; returns the number of bytes.
    fn peek(&self, to: &mut [IoSliceMut<'_>]) -> Option<usize> {
        match &self.arrived.front()?.1 {
            Payload::Slot(device, message) => Some(self.devices.get(*device)?.read(message, to)),
            Payload::Own(bytes) => {
                let mut left = bytes.as_slice();
                for part in to {
                    let (now, later) = left.split_at(part.len().min(left.len()));
                    part[..now.len()].copy_from_slice(now);
                    left = later;
                }
                Some(bytes.len() - left.len())
            }
        }
    }

    /// Drops the oldest message.
    fn discard(&mut self) -> io::Result<()> {
        match self.arrived.pop_front().map(|(_, payload)| payload) {
            Some(Payload::Slot(device, message)) => {
                self.devices.get(device).map_or(Ok(()), |messages| messages.release(message))
            }
            Some(Payload::Own(_)) => {
                self.over_udp -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// True if a socket with this peer accepts messages from `from`; a socket without peer accepts all.
fn accepts_from(connected: Option<SocketAddr>, from: SocketAddr) -> bool {
    connected.is_none_or(|peer| peer == from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::tests::context;

    #[test]
    fn a_full_queue_on_one_device_leaves_the_socket_writable_for_peers_on_another() {
        let context = context();
        let socket = Datagram::new(&context, false).unwrap();
        let writable = || socket.0.ready(&socket.0.lock(), libc::POLLOUT) == libc::POLLOUT;
        assert!(writable());
        let mut state = socket.0.lock();
        for _ in 0..2 {
            let messages = Messages::new(&context, &state.sizes).unwrap();
            state.devices.push(messages);
        }
        let (local, local_gid) = (IpAddr::from(Ipv4Addr::LOCALHOST), Gid::from(Ipv4Addr::LOCALHOST));
        let av = AddressVector { dgid: local_gid, hop_limit: HOP_LIMIT, ..AddressVector::default() };
        let to = UdDest { av, remote_qpn: state.devices[1].qpn(), remote_qkey: UDP_QKEY };
        while state.devices[0].send(SocketAddr::new(local, 1), to, &[]).is_ok() {}
        let on_device = |device: usize| {
            let addr = SocketAddr::new(local, 100 + device as u16);
            (addr, Peer { local, device, sgid_index: 0, queue: None })
        };
        state.peers = HashMap::from([0, 1].map(on_device));
        drop(state);
        assert!(writable());
        for (device, is_writable) in [(0, false), (1, true)] {
            socket.0.lock().connected = Some(on_device(device).0);
            assert_eq!(writable(), is_writable, "the peer of device {device}");
        }
    }
}
