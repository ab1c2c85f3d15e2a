//! Datagram sockets: messages of UD queue pairs, and a UDP socket of the same address by which ends learn each other's.
//!
//! What goes to a peer whose queue pair is not known goes over UDP, together with the number of ours; who gets that answers with
//! its own. So the first message needs no handshake, and nobody has to listen for one.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

use transport::cm::UDP_QKEY;
use transport::{AddressVector, UdDest};
use wire::Gid;
use wire::rsocket::datagram::{Introduction, Source, canonical};

use super::messages::{Arrived, Messages};
use super::settings::{Settings, Sizes};
use super::transfer::Flags;
use super::wait::{Ready, Waits, Watchers};
use crate::cm::HOP_LIMIT;
use crate::verbs::Context;
use sys::{Netlink, Opt, PollFd, SockAddr, generation};

/// Peers that are remembered; beyond that all are forgotten, and introduce themselves again.
const PEERS_MAX: usize = 4096;
/// Messages from UDP that are kept beyond those in slots; the socket keeps the others.
const UDP_MAX: usize = 64;
/// Longest UDP datagram: what the device's longest path MTU leaves, and an introduction.
const UDP_LEN_MAX: usize = 4096 + Introduction::LEN_MAX;

/// A datagram socket. A handle; [`close`](Self::close) ends the socket for all of them.
#[derive(Clone)]
pub struct Datagram(pub(super) Arc<Inner>);

pub(super) struct Inner {
    context: Context,
    /// Its descriptor is the socket's number.
    udp: UdpSocket,
    is_v6: bool,
    /// The process that made it.
    generation: u32,
    state: Mutex<State>,
    watchers: Watchers,
}

pub(super) struct State {
    /// From the first use on.
    messages: Option<Messages>,
    peers: HashMap<SocketAddr, Peer>,
    /// Messages to read.
    arrived: VecDeque<(SocketAddr, Payload)>,
    /// Those of them that came over UDP.
    over_udp: usize,
    connected: Option<SocketAddr>,
    sizes: Sizes,
    nonblocking: bool,
    closed: bool,
}

/// Where a message lies.
enum Payload {
    Slot(Arrived),
    Own(Vec<u8>),
}

/// What is known of a peer.
struct Peer {
    /// Our address towards it.
    local: IpAddr,
    /// The GID of that.
    sgid_index: u8,
    queue: Option<UdDest>,
}

fn error<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

impl Datagram {
    /// A socket without an address.
    ///
    /// # Errors
    /// Those of making a UDP socket.
    pub fn new(context: &Context, is_v6: bool) -> io::Result<Self> {
        let udp = UdpSocket::from(sys::udp_socket(is_v6)?);
        udp.set_nonblocking(true)?;
        let state = State {
            messages: None,
            peers: HashMap::new(),
            arrived: VecDeque::new(),
            over_udp: 0,
            connected: None,
            sizes: Settings::get().sizes,
            nonblocking: false,
            closed: false,
        };
        let (context, state, watchers) = (context.clone(), Mutex::new(state), Watchers::default());
        Ok(Self(Arc::new(Inner { context, udp, is_v6, generation: generation(), state, watchers })))
    }

    /// The number of the socket: a descriptor of its own, of no use outside this module.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.udp.as_raw_fd()
    }

    /// Gives it an address (rbind).
    ///
    /// # Errors
    /// Those of bind(2).
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        let scope = if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 };
        sys::bind(self.0.udp.as_fd(), &SockAddr::ip(addr.ip(), addr.port(), scope))?;
        self.0.begin(&mut self.0.lock())
    }

    /// Sets the peer of [`send`](Self::send), and the only one that is heard (rconnect).
    ///
    /// # Errors
    /// `ENETUNREACH` without a route; `ENODEV` if our address on it is not the device's.
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        let mut state = self.0.lock();
        self.0.begin(&mut state)?;
        let to = canonical(to);
        self.0.peer(&mut state, to)?;
        state.connected = Some(to);
        Ok(())
    }

    /// Its own address (rgetsockname), once it has one.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        let state = self.0.lock();
        let own = self.0.udp.local_addr().ok().filter(|own| own.port() != 0)?;
        let towards = state.connected.and_then(|to| state.peers.get(&to)).map(|peer| peer.local);
        let ip = if own.ip().is_unspecified() { towards.unwrap_or(own.ip()) } else { own.ip() };
        Some(self.0.of_family(SocketAddr::new(ip, own.port())))
    }

    /// The peer's (rgetpeername).
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.lock().connected.map(|peer| self.0.of_family(peer))
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

    /// Its sizes.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.0.lock().sizes
    }

    /// Changes its sizes.
    ///
    /// # Errors
    /// `EINVAL` once it has an address.
    pub fn set_sizes(&self, change: impl FnOnce(&mut Sizes)) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.messages.is_some() {
            return error(libc::EINVAL);
        }
        change(&mut state.sizes);
        Ok(())
    }

    /// Sends one message, to the connected peer if no other is named; waits for room, unless it shall not wait.
    ///
    /// # Errors
    /// `WouldBlock`; `EDESTADDRREQ` without a peer; `EMSGSIZE` for more than a packet holds; those of
    /// [`connect`](Self::connect).
    pub fn send(&self, parts: &[IoSlice<'_>], to: Option<SocketAddr>, flags: Flags) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut state = self.0.lock();
        let to = to.map(canonical).or(state.connected);
        let to = to.ok_or_else(|| io::Error::from_raw_os_error(libc::EDESTADDRREQ))?;
        self.0.begin(&mut state)?;
        self.0.peer(&mut state, to)?;
        let nonblocking = flags.nonblocking || state.nonblocking;
        drop(state);
        self.0
            .wait_for(nonblocking.then_some(()), |state| self.0.send(state, to, total, parts).transpose())?
    }

    /// Receives one message, of which what there is no room for is lost, and says from whom; waits for one, unless it shall not
    /// wait.
    ///
    /// # Errors
    /// `WouldBlock`; `EBADF` if it was closed meanwhile; those of making its queue pair.
    pub fn receive(&self, parts: &mut [IoSliceMut<'_>], flags: Flags) -> io::Result<(usize, SocketAddr)> {
        let mut state = self.0.lock();
        self.0.begin(&mut state)?;
        let nonblocking = flags.nonblocking || state.nonblocking;
        drop(state);
        self.0.wait_for(nonblocking.then_some(()), |state| {
            if state.closed {
                return Some(error(libc::EBADF));
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

    /// Ends the socket (rclose); calls that wait on it return `EBADF`.
    pub fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.arrived.clear();
        let messages = state.messages.take();
        drop(state);
        drop(messages);
        self.0.watchers.notify();
    }

    /// Whether it is a forked child that looks at it: its queue pair is the parent's.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.0.generation != generation()
    }

    /// A dual-stack socket, or one that has IPv6 only (IPV6_V6ONLY).
    ///
    /// # Errors
    /// Those of setsockopt(2): `EINVAL` once it has an address.
    pub fn set_v6_only(&self, only: bool) -> io::Result<()> {
        sys::set_opt(self.0.udp.as_fd(), Opt::V6_ONLY, i32::from(only))
    }
}

impl Inner {
    /// Makes its queue pair, and sees to it that it has a port.
    fn begin(&self, state: &mut State) -> io::Result<()> {
        if state.closed {
            return error(libc::EBADF);
        }
        if state.messages.is_none() {
            if self.udp.local_addr()?.port() == 0 {
                let any: IpAddr =
                    if self.is_v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
                sys::bind(self.udp.as_fd(), &SockAddr::ip(any, 0, 0))?;
            }
            state.messages = Some(Messages::new(&self.context, &state.sizes)?);
        }
        Ok(())
    }

    /// An address as the socket's family has it.
    fn of_family(&self, addr: SocketAddr) -> SocketAddr {
        match addr.ip() {
            IpAddr::V4(ip) if self.is_v6 => (ip.to_ipv6_mapped(), addr.port()).into(),
            _ => addr,
        }
    }

    /// What is known of a peer: at least our address towards it.
    fn peer<'a>(&self, state: &'a mut State, to: SocketAddr) -> io::Result<&'a mut Peer> {
        if !state.peers.contains_key(&to) {
            let bound = canonical(self.udp.local_addr()?).ip();
            let local = if bound.is_unspecified() {
                let scope = if let SocketAddr::V6(v6) = to { v6.scope_id() } else { 0 };
                Netlink::new()?.route(to.ip(), None, scope)?.prefsrc
            } else {
                (bound.is_ipv4() == to.is_ipv4()).then_some(bound)
            };
            let local = local.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?;
            let gids = self.context.gids();
            let own = gids.iter().find(|entry| entry.gid == Gid::from(local));
            let sgid_index = own.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?.index;
            if state.peers.len() >= PEERS_MAX {
                state.peers.clear();
            }
            state.peers.insert(to, Peer { local, sgid_index, queue: None });
        }
        state.peers.get_mut(&to).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// `None` if there is no room.
    fn send(
        &self,
        state: &mut State,
        to: SocketAddr,
        total: usize,
        parts: &[IoSlice<'_>],
    ) -> io::Result<Option<usize>> {
        if state.closed {
            return error(libc::EBADF);
        }
        let peer = self.peer(state, to)?;
        let (local, queue) = (peer.local, peer.queue);
        let Some(messages) = state.messages.as_mut() else { return error(libc::EBADF) };
        if Source::len_of(local) + total > messages.len_max() {
            return error(libc::EMSGSIZE);
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

    /// Tells a peer our queue pair over UDP, with a message or without.
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
            // Datagrams get lost, and a port that nobody has is told with the next one.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused) =>
            {
                Ok(())
            }
            sent => sent.map(drop),
        }
    }

    /// Reads what came over UDP; whether there was anything.
    fn listen(&self, state: &mut State) -> bool {
        let mut any = false;
        let mut bytes = [0; UDP_LEN_MAX];
        while state.messages.is_some() && state.over_udp < UDP_MAX {
            let (len, from) = match self.udp.recv_from(&mut bytes) {
                Ok(received) => received,
                // Nobody has the port that something was sent to.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => break,
            };
            any = true;
            let from = canonical(from);
            if let Some((introduction, header_len)) = Introduction::parse(&bytes[..len]) {
                // One that cannot be answered is of no use.
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
        let local = peer.local;
        if !introduction.with_message {
            return Ok(());
        }
        if hears(state.connected, from) {
            state.arrived.push_back((from, Payload::Own(message.to_vec())));
            state.over_udp += 1;
        }
        let Some(messages) = &state.messages else { return Ok(()) };
        self.introduce(messages, local, from, None)
    }
}

impl Waits for Inner {
    type State = State;

    fn state(&self) -> &Mutex<State> {
        &self.state
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    fn progress(&self, state: &mut State) {
        let State { messages, arrived, connected, .. } = state;
        let mut any = false;
        if let Some(messages) = messages {
            let mut unheard = Vec::new();
            let reaped = messages.reap(|from, message| match canonical(from) {
                from if hears(*connected, from) => arrived.push_back((from, Payload::Slot(message))),
                _ => unheard.push(message),
            });
            // A queue pair that takes nothing any more says so to whoever sends.
            any = reaped.unwrap_or(true);
            for message in unheard {
                let _as_above = messages.release(message);
            }
        }
        if self.listen(state) || any {
            self.watchers.notify();
        }
    }

    fn prepare(&self, state: &mut State) -> Vec<PollFd> {
        let mut fds = vec![PollFd::readable(self.udp.as_raw_fd())];
        if let Some(messages) = &state.messages {
            messages.arm();
            fds.push(PollFd::readable(messages.channel().fd()));
        }
        self.progress(state);
        // What waits there is not looked at before something is read.
        if state.over_udp >= UDP_MAX {
            fds.remove(0);
        }
        fds
    }

    fn ready(&self, state: &State, events: Ready) -> Ready {
        if state.closed {
            return libc::POLLNVAL;
        }
        let room = state.messages.as_ref().is_none_or(Messages::has_room);
        let (readable, writable) = (libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM);
        let asked = |event: Ready, is: bool| if is { events & event } else { 0 };
        asked(readable, !state.arrived.is_empty()) | asked(writable, room)
    }
}

impl State {
    /// Copies the oldest message; how many bytes of it.
    fn peek(&self, to: &mut [IoSliceMut<'_>]) -> Option<usize> {
        match &self.arrived.front()?.1 {
            Payload::Slot(message) => Some(self.messages.as_ref()?.read(message, to)),
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

    /// Forgets it.
    fn discard(&mut self) -> io::Result<()> {
        match self.arrived.pop_front().map(|(_, payload)| payload) {
            Some(Payload::Slot(message)) => {
                self.messages.as_ref().map_or(Ok(()), |messages| messages.release(message))
            }
            Some(Payload::Own(_)) => {
                self.over_udp -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Whether a socket that is connected so, or not at all, takes messages from there.
fn hears(connected: Option<SocketAddr>, from: SocketAddr) -> bool {
    connected.is_none_or(|peer| peer == from)
}
