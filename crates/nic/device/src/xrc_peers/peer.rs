//! The thread that talks to the other processes of shared XRC domains, as borrower and as owner.

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, PoisonError, Weak};

use sys::{EventFd, PollFd, now_ns};
use transport::{Wc, WcStatus};
use wire::Packet;

use super::BACKLOG;
use super::borrowed::{Answer, ForeignQueue, Held, Output};
use super::lent::NotABorrower;
use super::record::{DATA_MAX, HEAD_LEN, Kind, Record};
use crate::engine::Engine;
use crate::registry::identity::Relation;
use crate::registry::meeting::{self, Listener, ListenerKind, SocketFile};
use crate::srqs::slot_of;
use crate::verbs::{Buffer, FileId, XrcDomain};

/// Connections to and from other processes.
const CONNECTIONS_MAX: usize = 1024;
/// Connections accepted before the others are served.
const ACCEPTS_PER_ROUND: usize = BACKLOG as usize;
/// Records taken from one connection before the next one is served.
const RECORDS_PER_ROUND: usize = 64;
/// How long a listener is left out after an error, which lasts while no descriptor is free (nanoseconds).
/// Half: the thread wakes twice as often meanwhile. Double: a process waits 0.2 s to be accepted.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;
/// Bytes that wait for the other end of a connection. With more, nothing is read from it and no receive is
/// borrowed over it: the peers of this process get RNR NAKs. Half: two of the longest messages. Double: twice
/// the memory for an owner that is stopped.
const WAITING_MAX: usize = 64 << 20;
/// Longest message to a shared receive queue of another process, in bytes: it is stored once. A longer
/// receive is borrowed as one of this length.
pub(super) const MESSAGE_MAX: u64 = 16 << 20;

/// The state of the thread.
pub(super) struct Peers {
    engine: Weak<Engine>,
    kick: Arc<EventFd>,
    /// The listener of the abstract name, and that of the private directory if there is one.
    listeners: Vec<Listening>,
    _file: Option<SocketFile>,
    connections: Vec<Connection>,
    next_token: u64,
    /// Receives one record.
    buffer: Vec<u8>,
    next_id: u64,
}

struct Listening {
    fd: Arc<OwnedFd>,
    kind: ListenerKind,
    /// When connections are accepted again after an error.
    resumes_ns: u64,
}

struct Connection {
    token: u64,
    fd: Arc<OwnedFd>,
    /// The slot at the other end, if this process has connected to it.
    slot: Option<u16>,
    /// Records that wait because the socket's send buffer is full.
    waiting: VecDeque<Vec<u8>>,
    /// Bytes in them.
    waiting_bytes: usize,
    has_ended: bool,
}

impl Connection {
    fn is_full(&self) -> bool {
        self.waiting_bytes > WAITING_MAX
    }

    /// What poll(2) must report.
    fn events(&self) -> i16 {
        let readable = if self.is_full() { 0 } else { libc::POLLIN };
        let writable = if self.waiting.is_empty() { 0 } else { libc::POLLOUT };
        readable | writable
    }

    /// Sends a record, or keeps it until the socket has room.
    fn send(&mut self, head: &[u8], data: &[u8]) {
        if self.waiting.is_empty() {
            match sys::send_record(self.fd.as_fd(), head, data, &[]) {
                Ok(()) => return,
                Err(error) if may_be_repeated(&error) => {}
                Err(_) => return self.has_ended = true,
            }
        }
        self.waiting_bytes += head.len() + data.len();
        self.waiting.push_back([head, data].concat());
    }

    /// Sends what waits, as far as the socket has room.
    fn send_waiting(&mut self) {
        while let Some(first) = self.waiting.front() {
            match sys::send_record(self.fd.as_fd(), first, &[], &[]) {
                Ok(()) => {
                    self.waiting_bytes -= first.len();
                    self.waiting.pop_front();
                }
                Err(error) if may_be_repeated(&error) => break,
                Err(_) => return self.has_ended = true,
            }
        }
    }
}

impl Peers {
    pub(super) fn new(engine: Weak<Engine>, kick: Arc<EventFd>, listener: Listener) -> Self {
        let (private, file) = listener.private.map(|private| (private.socket, private.file)).unzip();
        let listening = |(fd, kind)| Listening { fd: Arc::new(fd), kind, resumes_ns: 0 };
        let private = private.map(|private| (private, ListenerKind::Private));
        let listeners =
            iter::once((listener.public, ListenerKind::Public)).chain(private).map(listening).collect();
        let buffer = vec![0; HEAD_LEN + DATA_MAX];
        let (connections, next_token, next_id) = (Vec::new(), 0, 0);
        Self { engine, kick, listeners, _file: file, connections, next_token, buffer, next_id }
    }

    pub(super) fn listeners(&self) -> impl Iterator<Item = &Arc<OwnedFd>> {
        self.listeners.iter().map(|listener| &listener.fd)
    }

    pub(super) fn run(mut self) {
        loop {
            let (mut fds, timeout_ns) = self.poll_fds(now_ns());
            // Fails without memory; then the sockets are tried.
            let _ready = sys::poll(&mut fds, timeout_ns);
            let Some(engine) = self.engine.upgrade() else { return };
            let _none = self.kick.take();
            for output in engine.xrc_peers.take_output() {
                self.handle_output(&engine, output);
            }
            for listener in 0..self.listeners.len() {
                self.accept(&engine, listener, now_ns());
            }
            let tokens: Vec<u64> = self.connections.iter().map(|connection| connection.token).collect();
            for token in tokens {
                self.serve(&engine, token);
            }
            self.end_broken(&engine);
        }
    }

    /// The descriptors that the thread sleeps on, and how long (nanoseconds): a listener that had an error is
    /// left out until then.
    fn poll_fds(&self, now_ns: u64) -> (Vec<PollFd>, Option<u64>) {
        let mut fds = vec![PollFd::readable(self.kick.as_raw_fd())];
        let (paused, awake): (Vec<_>, Vec<_>) =
            self.listeners.iter().partition(|listener| listener.resumes_ns > now_ns);
        fds.extend(awake.iter().map(|listener| PollFd::readable(listener.fd.as_raw_fd())));
        let to_connections =
            |connection: &Connection| PollFd::new(connection.fd.as_raw_fd(), connection.events());
        fds.extend(self.connections.iter().map(to_connections));
        (fds, paused.iter().map(|listener| listener.resumes_ns - now_ns).min())
    }

    fn accept(&mut self, engine: &Engine, index: usize, now_ns: u64) {
        for _ in 0..ACCEPTS_PER_ROUND {
            let listener = &mut self.listeners[index];
            if listener.resumes_ns > now_ns {
                return;
            }
            let socket = match sys::accept(listener.fd.as_fd()) {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return listener.resumes_ns = now_ns + ACCEPT_PAUSE_NS,
            };
            let peer = meeting::peer(&socket, listener.kind);
            let is_same = peer.is_ok_and(|peer| peer.relation == Relation::Same);
            if is_same && self.connections.len() < CONNECTIONS_MAX {
                self.add(engine, socket, None);
            }
        }
    }

    fn add(&mut self, engine: &Engine, socket: OwnedFd, slot: Option<u16>) -> u64 {
        let (fd, token) = (Arc::new(socket), self.next_token);
        self.next_token += 1;
        engine.xrc_peers.add_socket(&fd);
        let (waiting, waiting_bytes, has_ended) = (VecDeque::new(), 0, false);
        self.connections.push(Connection { token, fd, slot, waiting, waiting_bytes, has_ended });
        token
    }

    /// Returns the connection to the owner of a queue.
    fn connect(&mut self, engine: &Engine, queue: ForeignQueue) -> io::Result<u64> {
        let slot = slot_of(queue.srqn);
        let known = self.connections.iter().find(|known| known.slot == Some(slot) && !known.has_ended);
        if let Some(known) = known {
            return Ok(known.token);
        }
        let name = engine.registry.membership().map(|member| member.xrc_name(slot));
        let (socket, peer) = meeting::connect(&name.ok_or(io::ErrorKind::NotFound)?)?;
        if peer.relation != Relation::Same {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        if self.connections.len() >= CONNECTIONS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(self.add(engine, socket, Some(slot)))
    }

    fn handle_output(&mut self, engine: &Engine, output: Output) {
        match output {
            Output::Ask { file, queue } => match self.connect(engine, queue) {
                Ok(token) if self.is_full(token) => drop(handle_answer(engine, queue, Answer::NotReady)),
                Ok(token) => self.send(token, &Record::new(Kind::Ask, file, queue.srqn, 0), &[]),
                Err(error) => drop(handle_answer(engine, queue, answer_without_connection(&error))),
            },
            Output::Finish { file, queue, wc, solicited, stored } => {
                let stored = stored.take(queue.srqn, wc.wr_id);
                self.finish(engine, file, queue, (wc, solicited), stored);
            }
        }
    }

    /// Passes a message that a borrowed receive has taken on to the owner.
    fn finish(
        &mut self,
        engine: &Engine,
        file: FileId,
        queue: ForeignQueue,
        (wc, solicited): (Wc, bool),
        stored: Option<Buffer>,
    ) {
        let id = wc.wr_id;
        // The owner may have ended.
        let Ok(token) = self.connect(engine, queue) else { return };
        let Some(buffer) = stored else {
            // An owner that lends an id twice has the message of the first one already.
            return self.send(token, &Record::new(Kind::GiveBack, file, queue.srqn, id), &[]);
        };
        let record = |kind| Record::new(kind, file, queue.srqn, id);
        // The length of a WRITE with immediate data is that of the WRITE.
        let is_stored = wc.status == WcStatus::Success && wc.opcode == transport::WcOpcode::Recv;
        let length = if is_stored { (wc.byte_len as usize).min(buffer.len()) } else { 0 };
        let mut data = vec![0; length.min(DATA_MAX)];
        for offset in (0..length).step_by(DATA_MAX) {
            let part = &mut data[..(length - offset).min(DATA_MAX)];
            buffer.read(offset, part);
            self.send(token, &Record { value: offset as u64, ..record(Kind::Data) }, part);
        }
        self.send(token, &Record { wc, solicited, ..record(Kind::Done) }, &[]);
    }

    /// Sends a record, or keeps it until the socket has room.
    fn send(&mut self, token: u64, record: &Record, data: &[u8]) {
        if let Some(connection) = self.connections.iter_mut().find(|known| known.token == token) {
            connection.send(&record.emit(), data);
        }
    }

    fn is_full(&self, token: u64) -> bool {
        self.connections.iter().any(|known| known.token == token && known.is_full())
    }

    /// Sends what waits, and takes some records from the connection.
    fn serve(&mut self, engine: &Engine, token: u64) {
        let Some(connection) = self.connections.iter_mut().find(|known| known.token == token) else { return };
        connection.send_waiting();
        let (fd, slot) = (Arc::clone(&connection.fd), connection.slot);
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..RECORDS_PER_ROUND {
            if self.is_full(token) {
                break;
            }
            let received = match sys::recv_record(fd.as_fd(), &mut buffer, &mut Vec::new(), false) {
                Ok(received) => received,
                Err(error) if may_be_repeated(&error) => break,
                Err(_) => {
                    self.mark_ended(token);
                    break;
                }
            };
            let record = Record::parse(&buffer[..received.len]).filter(|_| !received.truncated);
            match record {
                Some((record, _)) if slot == Some(slot_of(record.srqn)) => {
                    self.handle_as_borrower(engine, token, &record);
                }
                Some((record, data)) if slot.is_none() => self.handle_as_owner(engine, token, &record, data),
                // The other end has closed the connection, or does not keep to the rules.
                _ => {
                    self.mark_ended(token);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    fn mark_ended(&mut self, token: u64) {
        for connection in self.connections.iter_mut().filter(|connection| connection.token == token) {
            connection.has_ended = true;
        }
    }

    fn handle_as_borrower(&mut self, engine: &Engine, token: u64, record: &Record) {
        let Record { kind, file, srqn, id, value, .. } = *record;
        let give_back = Record::new(Kind::GiveBack, file, srqn, id);
        let Some(domain) = domain_of(engine, file) else {
            if kind == Kind::Lend {
                self.send(token, &give_back, &[]);
            }
            return;
        };
        let queue = ForeignQueue { domain: domain.id(), srqn };
        if !engine.lock().tables.srqs.borrowed.is_asked(queue) {
            // The domain was closed and opened again.
            if kind == Kind::Lend {
                self.send(token, &give_back, &[]);
            }
            return;
        }
        let answer = match kind {
            Kind::Lend => {
                let room = value.min(MESSAGE_MAX) as usize;
                match domain.stored().add(domain.pd(), srqn, id, room) {
                    Some(sge) => Answer::Lent { id, sge },
                    None => {
                        self.send(token, &give_back, &[]);
                        Answer::NotReady
                    }
                }
            }
            Kind::NotReady => Answer::NotReady,
            Kind::Refuse => Answer::Refused,
            Kind::Ask | Kind::Data | Kind::Done | Kind::GiveBack => return self.mark_ended(token),
        };
        for unused in handle_answer(engine, queue, answer) {
            drop(domain.stored().take(srqn, unused));
            self.send(token, &Record::new(Kind::GiveBack, file, srqn, unused), &[]);
        }
    }

    fn handle_as_owner(&mut self, engine: &Engine, token: u64, record: &Record, data: &[u8]) {
        // Dropping the last reference to a domain takes the lock of the engine.
        let domain = domain_of(engine, record.file);
        let now = engine.now();
        let lent = (token, self.next_id);
        self.next_id += 1;
        let mut core = engine.lock();
        let domain_id = domain.as_ref().map(|domain| domain.id());
        let answer = core.tables.handle_borrower(now, lent, record, data, domain_id);
        engine.unlock_and_deliver(core);
        match answer {
            Ok(Some(answer)) => self.send(token, &answer, &[]),
            Ok(None) => {}
            Err(NotABorrower) => self.mark_ended(token),
        }
    }

    /// Forgets the connections that have ended.
    fn end_broken(&mut self, engine: &Engine) {
        for connection in self.connections.extract_if(.., |connection| connection.has_ended) {
            match connection.slot {
                None => {
                    let mut core = engine.lock();
                    core.tables.take_back_all(engine.now(), connection.token);
                    engine.unlock_and_deliver(core);
                }
                Some(slot) => {
                    let asked = engine.lock().tables.srqs.borrowed.asked_of(|srqn| slot_of(srqn) == slot);
                    for queue in asked {
                        handle_answer(engine, queue, Answer::Refused);
                    }
                }
            }
        }
    }
}

/// Handles the packets that waited for the owner's answer; returns the receives that they did not take.
fn handle_answer(engine: &Engine, queue: ForeignQueue, answer: Answer) -> Vec<u64> {
    let now = engine.now();
    let mut core = engine.lock();
    let held = core.tables.srqs.borrowed.begin_answer(queue, answer);
    for Held { index, bytes, from, .. } in held {
        if let Ok(packet) = Packet::parse(&bytes) {
            core.tables.deliver(now, index, &packet, &from);
        }
    }
    let unused = core.tables.srqs.borrowed.end_answer(queue);
    core.tables.end_of_batch(now, false);
    core.transmit(now);
    engine.unlock_and_deliver(core);
    unused
}

/// Returns the domain of a file, if it is open in this process.
fn domain_of(engine: &Engine, file: FileId) -> Option<Arc<XrcDomain>> {
    engine.xrc_files.lock().unwrap_or_else(PoisonError::into_inner).get(&file).and_then(Weak::upgrade)
}

fn may_be_repeated(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS))
}

/// The answer to packets that wait for an owner to which no connection can be made. Errors that pass count as
/// an empty queue: the owner accepts slowly, or this process has no descriptor left.
fn answer_without_connection(error: &io::Error) -> Answer {
    match error.raw_os_error() {
        None | Some(libc::ECONNREFUSED | libc::EPERM) => Answer::Refused,
        Some(_) => Answer::NotReady,
    }
}

#[cfg(test)]
#[path = "peer_tests.rs"]
mod tests;
