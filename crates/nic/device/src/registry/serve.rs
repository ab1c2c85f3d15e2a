//! Serving other members on the slot's name and on the names of claimed services.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use super::group::SocketSet;
use super::identity::Relation;
use super::join::{Neighbour, send_welcome};
use super::meeting::{self, Listener, ListenerKind, SocketFile};
use super::names::GroupNames;
use super::record::{BadRecord, RECORD_MAX, Record};
use super::ring_events::{RingEvent, RingEvents};
use super::{DomainConfig, SLOTS};
use crate::port::RxBatch;
use sys::Epoll;
use sys::byte_ring::Consumer;
use wire::Gid;

/// The listeners of this member, and its connections.
#[derive(Debug)]
pub(super) struct Server {
    /// That of the slot's private socket; removed before the slot's name is free.
    _file: Option<SocketFile>,
    pub(super) config: DomainConfig,
    pub(super) group: GroupNames,
    /// Watches all sockets below.
    pub(super) epoll: Epoll,
    slot: u16,
    pub(super) socket_set: SocketSet,
    /// The slots of this engine beside the first one.
    pub(super) further: Mutex<Vec<OwnSlot>>,
    pub(super) sockets: Mutex<Sockets>,
    next_token: AtomicU64,
    /// Locked by the thread that serves.
    state: Mutex<ServeState>,
    /// Slots with an owner that closed its connection to this member, and may be dead.
    suspects: Mutex<Vec<u16>>,
    /// Our address and that of a host that answers no probes of another member.
    silent_hosts: Mutex<Vec<(Gid, Gid)>>,
    /// Set when this member accepts ring offers.
    pub(super) ring_events: OnceLock<RingEvents>,
    /// The slots of this process; unset if it has one.
    pub(super) sibling_slots: Mutex<Vec<u16>>,
    /// The process that created this. A forked child shares `epoll` and must not change it.
    pid: u32,
}

/// State of the serving thread.
#[derive(Debug)]
struct ServeState {
    /// Receives one record.
    buffer: Vec<u8>,
    /// Listeners that are removed from `epoll`, and until when (nanoseconds).
    paused: Vec<u64>,
    paused_until: u64,
}

/// A slot beside the first one of an engine.
#[derive(Debug)]
pub(super) struct OwnSlot {
    pub(super) slot: u16,
    /// Bound to the name of the slot.
    pub(super) name: OwnedFd,
    pub(super) queue: OwnedFd,
}

/// By token.
pub(super) type Sockets = HashMap<u64, Socket>;

#[derive(Clone, Debug)]
pub(super) struct Socket {
    pub(super) fd: Arc<OwnedFd>,
    role: Role,
    /// The slot at the other end, once it has said that it watches this connection.
    peer: Option<u16>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Role {
    /// Listens on the name of this member's slot.
    Slot(ListenerKind),
    /// Listens on the name of a service.
    Service(ListenerKind, String),
    /// A connection accepted at the listener with this token.
    Connection(u64, Relation),
    /// A connection on which this member forwards batches ([`Links`](super::forward::Links)).
    Link,
    /// A connection to a neighbour. Each end notices the death of the other.
    Neighbour,
    /// A connection that carries a ring, from either end.
    Ring,
}

/// Every member has at most one connection to each name of this member.
const CONNECTIONS_MAX: usize = 4 * SLOTS as usize;
/// Records taken from one connection before the next one is served.
const RECORDS_PER_ROUND: usize = 32;
/// How long accepting stops when this process is out of descriptors. Meanwhile the listener would stay
/// readable, and a thread that sleeps until it is readable would spin.
const PAUSE_NS: u64 = 100_000_000;
/// Silent hosts that are kept until the engine takes them. Further ones are found by own probes.
const SILENT_HOSTS_MAX: usize = 256;
/// Rounds before `poll` returns to the caller, which has other work.
const ROUNDS_MAX: usize = 8;

impl Server {
    pub(super) fn new(
        config: DomainConfig,
        group: GroupNames,
        slot: u16,
        listener: Listener,
        socket_set: SocketSet,
    ) -> io::Result<Server> {
        let (private, file) = listener.private.map(|private| (private.socket, private.file)).unzip();
        let server = Server {
            _file: file,
            config,
            group,
            epoll: Epoll::new()?,
            slot,
            socket_set,
            further: Mutex::default(),
            sockets: Mutex::new(HashMap::new()),
            next_token: AtomicU64::new(0),
            state: Mutex::new(ServeState {
                buffer: vec![0; RECORD_MAX],
                paused: Vec::new(),
                paused_until: 0,
            }),
            suspects: Mutex::default(),
            silent_hosts: Mutex::default(),
            sibling_slots: Mutex::default(),
            ring_events: OnceLock::new(),
            pid: std::process::id(),
        };
        server.add(listener.public, Role::Slot(ListenerKind::Public), None)?;
        if let Some(private) = private {
            server.add(private, Role::Slot(ListenerKind::Private), None)?;
        }
        Ok(server)
    }

    /// Serves the sockets that are readable; one thread at a time.
    pub(super) fn poll(&self, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        self.resume(&mut state);
        let (mut tokens, mut batches) = ([0; 16], 0);
        for _ in 0..ROUNDS_MAX {
            let ready = self.epoll.ready(&mut tokens);
            if ready == 0 {
                break;
            }
            for &token in &tokens[..ready] {
                // Another thread may have removed it. No lock is held while it is served, so `f` may call any
                // method.
                let Some(socket) = self.lock().get(&token).cloned() else { continue };
                match socket.role {
                    Role::Slot(kind) | Role::Service(kind, _) => {
                        self.accept(token, kind, &socket.fd, &mut state);
                    }
                    Role::Connection(..) | Role::Link | Role::Neighbour | Role::Ring => {
                        batches += self.serve(token, &socket.fd, &mut state.buffer, f);
                    }
                }
            }
        }
        batches
    }

    /// Keeps a connection to a neighbour while both live.
    pub(super) fn watch_neighbour(&self, neighbour: Neighbour) -> io::Result<()> {
        let Neighbour { slot, connection } = neighbour;
        // Tells the neighbour this member's slot.
        Record::Ping.send(&connection, Some(self.slot), &[])?;
        self.add(connection, Role::Neighbour, Some(slot)).map(drop)
    }

    /// Keeps a connection that forwards batches until the other end closes it.
    pub(super) fn watch(&self, connection: OwnedFd) -> io::Result<Arc<OwnedFd>> {
        let connection = Arc::new(connection);
        self.add(Arc::clone(&connection), Role::Link, None).map(|_token| connection)
    }

    /// Keeps a connection that carries a ring; returns its token, too.
    pub(super) fn watch_ring(&self, connection: OwnedFd) -> io::Result<(u64, Arc<OwnedFd>)> {
        let connection = Arc::new(connection);
        self.add(Arc::clone(&connection), Role::Ring, None).map(|token| (token, connection))
    }

    /// True if a member in another process watches a connection to this one.
    pub(super) fn has_neighbour(&self) -> bool {
        self.lock().values().filter_map(|socket| socket.peer).any(|slot| !self.is_sibling(slot))
    }

    /// True if the slot belongs to this process.
    pub(super) fn is_sibling(&self, slot: u16) -> bool {
        self.sibling_slots.lock().unwrap_or_else(PoisonError::into_inner).contains(&slot)
    }

    /// Records that the owner of a slot may have died.
    pub(super) fn suspect(&self, slot: u16) {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
    }

    /// Returns the slots with an owner that closed its connection since the last call.
    pub(super) fn take_suspects(&self) -> Vec<u16> {
        std::mem::take(&mut *self.suspects.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn hear_of_silent_host(&self, src: Gid, dst: Gid) {
        let mut silent = self.silent_hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.len() < SILENT_HOSTS_MAX {
            silent.push((src, dst));
        }
    }

    /// Returns what other members have told of since the last call.
    pub(super) fn take_silent_hosts(&self) -> Vec<(Gid, Gid)> {
        std::mem::take(&mut *self.silent_hosts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts listening on the name of a service; returns the tokens for [`remove`](Self::remove), that of
    /// the name first.
    pub(super) fn add_service(
        &self,
        name: &str,
        listener: Listener,
    ) -> io::Result<(Vec<u64>, Option<SocketFile>)> {
        let role = |kind| Role::Service(kind, name.to_owned());
        let (private, file) = listener.private.map(|private| (private.socket, private.file)).unzip();
        let mut tokens = vec![self.add(listener.public, role(ListenerKind::Public), None)?];
        // Without memory for it, processes in other user namespaces cannot reach the service.
        tokens.extend(private.and_then(|private| self.add(private, role(ListenerKind::Private), None).ok()));
        Ok((tokens, file))
    }

    /// Stops listening, and closes the connections that this listener accepted; their peers look the name up
    /// again.
    pub(super) fn remove(&self, token: u64) {
        if self.is_inherited() {
            // In a forked child another thread may have held the lock, and `epoll` is shared with the parent.
            // The child's copies are closed with the server.
            return;
        }
        let mut sockets = self.lock();
        let removed = sockets
            .extract_if(|t, s| *t == token || matches!(s.role, Role::Connection(at, _) if at == token));
        for (_, socket) in removed {
            self.unwatch(&socket);
        }
    }

    /// True in a forked child of the member, even if no fork handler has run in it.
    pub(super) fn is_inherited(&self) -> bool {
        std::process::id() != self.pid
    }

    /// True if `name` is a service of this member.
    pub(super) fn owns(&self, name: &str) -> bool {
        self.lock().values().any(|s| matches!(&s.role, Role::Service(_, own) if own == name))
    }

    fn accept(&self, listener: u64, kind: ListenerKind, fd: &OwnedFd, state: &mut ServeState) {
        loop {
            let connection = match sys::accept(fd.as_fd()) {
                Ok(connection) => connection,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // Interrupted, or the connection ended before it was accepted.
                Err(e) if e.kind() == io::ErrorKind::Interrupted || is_connection_error(&e) => continue,
                Err(_) => return self.pause(listener, fd, state),
            };
            let peer = match meeting::peer(&connection, kind) {
                Ok(peer) => peer,
                // Out of descriptors, as above. The peer sees a closed connection, and tries again.
                Err(_) => return self.pause(listener, fd, state),
            };
            if self.config.admits(peer) && self.lock().len() < CONNECTIONS_MAX {
                // If memory is short, the connection is closed, and the peer tries again.
                let _token = self.add(connection, Role::Connection(listener, peer.relation), None);
            }
        }
    }

    fn pause(&self, listener: u64, fd: &OwnedFd, state: &mut ServeState) {
        // The listener is there, unless the application closed descriptors that it does not own.
        let _absent = self.epoll.remove(fd.as_fd());
        state.paused.push(listener);
        state.paused_until = sys::now_ns() + PAUSE_NS;
    }

    fn resume(&self, state: &mut ServeState) {
        if state.paused.is_empty() || sys::now_ns() < state.paused_until {
            return;
        }
        for token in state.paused.drain(..) {
            // The service may have been released meanwhile.
            if let Some(socket) = self.lock().get(&token) {
                // If memory is too short for this, there is none for further connections either.
                let _deaf = self.epoll.add(socket.fd.as_fd(), token);
            }
        }
    }

    /// Takes records from one connection; returns the number of batches.
    fn serve(
        &self,
        token: u64,
        fd: &Arc<OwnedFd>,
        buffer: &mut [u8],
        f: &mut dyn FnMut(&RxBatch<'_>),
    ) -> usize {
        let mut batches = 0;
        for _ in 0..RECORDS_PER_ROUND {
            // Descriptors that no record needs are closed on drop.
            let mut passed = Vec::new();
            let received = match sys::recv_record(fd.as_fd(), buffer, &mut passed, false) {
                Ok(received) => received,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
                Err(_) => return self.close_connection(token, batches),
            };
            if received.len == 0 {
                return self.close_connection(token, batches);
            }
            match Record::parse(&buffer[..received.len], self.config.udp_port) {
                Ok(Record::Frame(batch)) if !received.truncated => {
                    batches += 1;
                    f(&batch);
                }
                Ok(Record::Join { .. }) => {
                    let udp_port = self.config.udp_port;
                    if let Err(e) = send_welcome(fd, self.slot, udp_port, &self.socket_set) {
                        self.reply(fd, &Record::Refuse { errno: e.raw_os_error().unwrap_or(0) as u32 });
                    }
                }
                Ok(Record::Ping) => {
                    self.set_peer_slot(token, Record::sender(&buffer[..received.len]));
                    self.reply(fd, &Record::Pong);
                }
                Ok(Record::Offer) => {
                    if !self.take_offer(token, &passed) {
                        return self.close_connection(token, batches);
                    }
                    self.reply(fd, &Record::Accept);
                }
                Ok(Record::Accept) => self.push_ring_event(RingEvent::Accepted { token }),
                Ok(Record::SilentHost { src, dst }) => self.hear_of_silent_host(src, dst),
                // Receiving the record has woken the thread.
                Ok(Record::Wake) => {}
                Ok(Record::Welcome { .. } | Record::Refuse { .. } | Record::Pong | Record::Frame(_)) => {}
                Err(BadRecord::Version) => {
                    self.reply(fd, &Record::Refuse { errno: libc::EPROTONOSUPPORT as u32 });
                }
                Err(BadRecord::Malformed) => return self.close_connection(token, batches),
            }
        }
        batches
    }

    /// Accepts a ring offer, or returns false. Only members of the same user may offer rings.
    fn take_offer(&self, token: u64, passed: &[OwnedFd]) -> bool {
        let [ring] = passed else { return false };
        if self.ring_events.get().is_none() {
            return false;
        }
        let Ok(ring) = Consumer::open(ring.as_fd()) else { return false };
        match self.lock().get_mut(&token) {
            // At most one ring per connection.
            Some(socket) if matches!(socket.role, Role::Connection(_, Relation::Same)) => {
                socket.role = Role::Ring;
            }
            _ => return false,
        }
        self.push_ring_event(RingEvent::Offered { token, ring: Box::new(ring) });
        true
    }

    fn push_ring_event(&self, event: RingEvent) {
        if let Some(ring_events) = self.ring_events.get() {
            ring_events.put(event);
        }
    }

    fn reply(&self, fd: &OwnedFd, record: &Record<'_>) {
        // A peer that does not take its answer has ended or will repeat its request.
        let _unsent = record.send(fd, Some(self.slot), &[]);
    }

    fn close_connection(&self, token: u64, batches: usize) -> usize {
        let removed = self.lock().remove(&token);
        if let Some(socket) = removed {
            self.unwatch(&socket);
            if socket.role == Role::Ring {
                self.push_ring_event(RingEvent::Ended { token });
            }
            socket.peer.into_iter().for_each(|slot| self.suspect(slot));
        }
        batches
    }

    /// Records the slot of the member that watches this connection from the other end.
    fn set_peer_slot(&self, token: u64, peer: Option<u16>) {
        if let Some(socket) = self.lock().get_mut(&token) {
            socket.peer = peer;
        }
    }

    fn add(&self, fd: impl Into<Arc<OwnedFd>>, role: Role, peer: Option<u16>) -> io::Result<u64> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let fd = fd.into();
        self.lock().insert(token, Socket { fd: Arc::clone(&fd), role, peer });
        if let Err(e) = self.epoll.add(fd.as_fd(), token) {
            self.lock().remove(&token);
            return Err(e);
        }
        Ok(token)
    }

    fn unwatch(&self, socket: &Socket) {
        // The socket is there, unless the application closed descriptors that it does not own.
        let _absent = self.epoll.remove(socket.fd.as_fd());
    }

    /// The slots of this engine beside the first one.
    pub(super) fn further(&self) -> MutexGuard<'_, Vec<OwnSlot>> {
        self.further.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if the connection ended before it was accepted; false if a resource is exhausted.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EPERM))
}
