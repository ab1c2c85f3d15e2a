//! The thread that talks to the other processes of shared XRC domains, as borrower and as owner.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, PoisonError, Weak};

use sys::{EventFd, PollFd};
use transport::{Access, Wc, WcStatus};
use wire::Packet;

use super::borrowed::{Answer, ForeignQueue, Held, Output};
use super::lent::Loan;
use super::record::{DATA_MAX, HEAD_LEN, Kind, Record};
use crate::engine::Engine;
use crate::registry::identity::Relation;
use crate::registry::meeting::{self, ListenerKind, SocketFile};
use crate::srqs::slot_of;
use crate::verbs::{FileId, XrcDomain};

/// Connections to and from other processes.
const CONNECTIONS_MAX: usize = 1024;
/// Records taken from one connection before the next one is served.
const RECORDS_PER_ROUND: usize = 64;
/// Longest message to a shared receive queue of another process, in bytes: it is stored once. A longer
/// receive is borrowed as one of this length.
pub(super) const MESSAGE_MAX: u64 = 16 << 20;

/// The state of the thread.
pub(super) struct Peers {
    engine: Weak<Engine>,
    kick: Arc<EventFd>,
    /// The listener of the abstract name, and that of the private directory if there is one.
    listeners: Vec<Arc<OwnedFd>>,
    _file: Option<SocketFile>,
    connections: Vec<Connection>,
    next_token: u64,
    /// Receives one record.
    buffer: Vec<u8>,
    next_id: u64,
}

struct Connection {
    token: u64,
    fd: Arc<OwnedFd>,
    /// The slot at the other end, if this process has connected to it.
    slot: Option<u16>,
    /// Records that wait because the socket's send buffer is full.
    waiting: VecDeque<Vec<u8>>,
    has_ended: bool,
}

impl Peers {
    pub(super) fn new(
        engine: Weak<Engine>,
        kick: Arc<EventFd>,
        listeners: Vec<Arc<OwnedFd>>,
        file: Option<SocketFile>,
    ) -> Self {
        let buffer = vec![0; HEAD_LEN + DATA_MAX];
        let (connections, next_token, next_id) = (Vec::new(), 0, 0);
        Self { engine, kick, listeners, _file: file, connections, next_token, buffer, next_id }
    }

    pub(super) fn run(mut self) {
        loop {
            let mut fds = vec![PollFd::readable(self.kick.as_raw_fd())];
            fds.extend(self.listeners.iter().map(|fd| PollFd::readable(fd.as_raw_fd())));
            fds.extend(self.connections.iter().map(|connection| {
                let writable = if connection.waiting.is_empty() { 0 } else { libc::POLLOUT };
                PollFd::new(connection.fd.as_raw_fd(), libc::POLLIN | writable)
            }));
            // Fails without memory; then the sockets are tried.
            let _ready = sys::poll(&mut fds, None);
            let Some(engine) = self.engine.upgrade() else { return };
            let _none = self.kick.take();
            for output in engine.xrc_peers.take_output() {
                self.handle_output(&engine, output);
            }
            for (at, kind) in [ListenerKind::Public, ListenerKind::Private].into_iter().enumerate() {
                self.accept(&engine, at, kind);
            }
            let tokens: Vec<u64> = self.connections.iter().map(|connection| connection.token).collect();
            for token in tokens {
                self.serve(&engine, token);
            }
            self.end_broken(&engine);
        }
    }

    fn accept(&mut self, engine: &Engine, listener: usize, kind: ListenerKind) {
        let Some(listener) = self.listeners.get(listener).map(Arc::clone) else { return };
        while let Ok(socket) = sys::accept(listener.as_fd()) {
            let is_same = meeting::peer(&socket, kind).is_ok_and(|peer| peer.relation == Relation::Same);
            if is_same && self.connections.len() < CONNECTIONS_MAX {
                self.add(engine, socket, None);
            }
        }
    }

    fn add(&mut self, engine: &Engine, socket: OwnedFd, slot: Option<u16>) -> u64 {
        let (fd, token) = (Arc::new(socket), self.next_token);
        self.next_token += 1;
        engine.xrc_peers.add_socket(&fd);
        self.connections.push(Connection { token, fd, slot, waiting: VecDeque::new(), has_ended: false });
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
                Ok(token) => self.send(token, &Record::new(Kind::Ask, file, queue.srqn, 0), &[]),
                Err(error) => {
                    // Other errors pass: the owner accepts slowly, or this process has no descriptor left.
                    let is_final =
                        matches!(error.raw_os_error(), None | Some(libc::ECONNREFUSED | libc::EPERM));
                    let answer = if is_final { Answer::Refused } else { Answer::NotReady };
                    drop(handle_answer(engine, queue, answer));
                }
            },
            Output::Finish { file, queue, wc, solicited } => {
                self.finish(engine, file, queue, wc, solicited);
            }
        }
    }

    /// Passes a message that a borrowed receive has taken on to the owner.
    fn finish(&mut self, engine: &Engine, file: FileId, queue: ForeignQueue, wc: Wc, solicited: bool) {
        let id = wc.wr_id;
        let stored = domain_of(engine, file).and_then(|domain| domain.take_stored(queue.srqn, id));
        // The owner may have ended.
        let Ok(token) = self.connect(engine, queue) else { return };
        let Some(buffer) = stored else {
            // The application has closed the domain, and the message with it.
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
        let Some(connection) = self.connections.iter_mut().find(|known| known.token == token) else { return };
        let head = record.emit();
        if connection.waiting.is_empty() {
            match sys::send_record(connection.fd.as_fd(), &head, data, &[]) {
                Ok(()) => return,
                Err(error) if may_be_repeated(&error) => {}
                Err(_) => return connection.has_ended = true,
            }
        }
        connection.waiting.push_back([&head, data].concat());
    }

    /// Sends what waits, and takes some records from the connection.
    fn serve(&mut self, engine: &Engine, token: u64) {
        let Some(connection) = self.connections.iter_mut().find(|known| known.token == token) else { return };
        while let Some(first) = connection.waiting.front() {
            match sys::send_record(connection.fd.as_fd(), first, &[], &[]) {
                Ok(()) => drop(connection.waiting.pop_front()),
                Err(error) if may_be_repeated(&error) => break,
                Err(_) => return connection.has_ended = true,
            }
        }
        let (fd, slot) = (Arc::clone(&connection.fd), connection.slot);
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..RECORDS_PER_ROUND {
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
                match domain.store(srqn, id, room) {
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
            drop(domain.take_stored(srqn, unused));
            self.send(token, &Record::new(Kind::GiveBack, file, srqn, unused), &[]);
        }
    }

    fn handle_as_owner(&mut self, engine: &Engine, token: u64, record: &Record, data: &[u8]) {
        let Record { kind, file, srqn, id, value, wc, solicited } = *record;
        let lent = (token, id);
        let now = engine.now();
        match kind {
            Kind::Ask => {
                let id = self.next_id;
                self.next_id += 1;
                let loan = domain_of(engine, file).map_or(Loan::Refused, |domain| {
                    engine.lock().tables.lend((token, id), domain.id(), srqn)
                });
                let (kind, value) = match loan {
                    Loan::Lent(room) => (Kind::Lend, room),
                    Loan::NotReady => (Kind::NotReady, 0),
                    Loan::Refused => (Kind::Refuse, 0),
                };
                self.send(token, &Record { value, ..Record::new(kind, file, srqn, id) }, &[]);
            }
            Kind::Data => engine.lock().tables.write_lent(lent, value, data),
            Kind::Done => engine.lock().tables.finish_lent(now, lent, wc, solicited),
            Kind::GiveBack => engine.lock().tables.take_back(now, lent),
            Kind::Lend | Kind::NotReady | Kind::Refuse => self.mark_ended(token),
        }
    }

    /// Forgets the connections that have ended.
    fn end_broken(&mut self, engine: &Engine) {
        for connection in self.connections.extract_if(.., |connection| connection.has_ended) {
            match connection.slot {
                None => engine.lock().tables.take_back_all(engine.now(), connection.token),
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
    core.tables.end_of_batch(now);
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

impl XrcDomain {
    /// Allocates memory for a message of at most `room` bytes.
    fn store(&self, srqn: u32, id: u64, room: usize) -> Option<transport::Sge> {
        let buffer = self.pd().alloc_buffer(room.max(1), Access::LOCAL_WRITE).ok()?;
        let sge = buffer.sge(0, room);
        self.stored().insert((srqn, id), buffer);
        Some(sge)
    }
}
