//! Serving other members: connections to our slot's name and to the services we have claimed.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::join::send_bag;
use super::record::{BadRecord, RECORD_MAX, Record, SHORT_MAX};
use super::{DomainConfig, SLOTS};
use crate::port::RxTrain;
use crate::sys::{self, Epoll};

/// What other members can connect to, and their connections.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) config: DomainConfig,
    /// Everything below that can be readable.
    pub(super) epoll: Epoll,
    slot: u8,
    pub(super) bag: OwnedFd,
    sockets: Mutex<HashMap<u64, Socket>>,
    next_token: AtomicU64,
    /// The buffer for records; whoever has it serves.
    buffer: Mutex<Vec<u8>>,
    /// The process that made this; a forked child shares `epoll` and must not change it.
    pid: u32,
}

#[derive(Clone, Debug)]
struct Socket {
    fd: Arc<OwnedFd>,
    role: Role,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Role {
    /// Our slot's name.
    Slot,
    /// The name of a service.
    Service(String),
    /// A connection accepted at the listener with this token.
    Connection(u64),
}

/// Every member has at most one connection to each of our names.
const CONNECTIONS_MAX: usize = 4 * SLOTS as usize;
/// Records taken from one connection before the next one's turn.
const RECORDS_PER_TURN: usize = 32;
/// Turns before returning to the caller, who has other things to do.
const TURNS_MAX: usize = 8;

impl Server {
    pub(super) fn new(config: DomainConfig, slot: u8, listener: OwnedFd, bag: OwnedFd) -> io::Result<Server> {
        let server = Server {
            config,
            epoll: Epoll::new()?,
            slot,
            bag,
            sockets: Mutex::new(HashMap::new()),
            next_token: AtomicU64::new(0),
            buffer: Mutex::new(vec![0; RECORD_MAX]),
            pid: std::process::id(),
        };
        server.add(listener, Role::Slot)?;
        Ok(server)
    }

    /// Serves whoever has something for us; one thread at a time.
    pub(super) fn poll(&self, f: &mut dyn FnMut(&RxTrain<'_>)) -> usize {
        let mut buffer = match self.buffer.try_lock() {
            Ok(buffer) => buffer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return 0,
        };
        let (mut tokens, mut trains) = ([0; 16], 0);
        for _ in 0..TURNS_MAX {
            let ready = self.epoll.ready(&mut tokens);
            if ready == 0 {
                break;
            }
            for &token in &tokens[..ready] {
                // It may have been removed since; nothing is locked while it is served, so `f` may do anything.
                let Some(socket) = self.lock().get(&token).cloned() else { continue };
                match socket.role {
                    Role::Slot | Role::Service(_) => self.accept(token, &socket.fd),
                    Role::Connection(_) => trains += self.serve(token, &socket.fd, &mut buffer, f),
                }
            }
        }
        trains
    }

    /// Starts listening on the name of a service; returns the token to stop with.
    pub(super) fn add_service(&self, name: String, listener: OwnedFd) -> io::Result<u64> {
        self.add(listener, Role::Service(name))
    }

    /// Stops listening, and closes the connections that came that way: their peers look the name up again.
    pub(super) fn remove_service(&self, token: u64) {
        if self.is_inherited() {
            // Another thread may have held the lock when it was made, and `epoll` is shared. Its
            // copies are closed with the server.
            return;
        }
        let mut sockets = self.lock();
        let gone = sockets.extract_if(|t, s| *t == token || s.role == Role::Connection(token));
        for (_, socket) in gone {
            self.forget(&socket);
        }
    }

    /// True in a forked child of the process that is the member.
    pub(super) fn is_inherited(&self) -> bool {
        std::process::id() != self.pid
    }

    /// True if `name` is one of our services.
    pub(super) fn owns(&self, name: &str) -> bool {
        self.lock().values().any(|s| matches!(&s.role, Role::Service(own) if own == name))
    }

    fn accept(&self, listener: u64, fd: &OwnedFd) {
        while let Ok(connection) = sys::accept(fd.as_fd()) {
            let admitted = sys::peer_credentials(connection.as_fd()).is_ok_and(|c| self.config.admits(c));
            if admitted && self.lock().len() < CONNECTIONS_MAX {
                // Out of memory: the connection is closed, and the peer tries again.
                let _token = self.add(connection, Role::Connection(listener));
            }
        }
    }

    /// Takes records from one connection.
    fn serve(&self, token: u64, fd: &OwnedFd, buffer: &mut [u8], f: &mut dyn FnMut(&RxTrain<'_>)) -> usize {
        let mut trains = 0;
        for _ in 0..RECORDS_PER_TURN {
            // Nobody passes us descriptors; any that come are closed.
            let received = match sys::recv_record(fd.as_fd(), buffer, &mut Vec::new(), false) {
                Ok(received) => received,
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => break,
                Err(_) => return self.hang_up(token, trains),
            };
            if received.len == 0 {
                return self.hang_up(token, trains);
            }
            match Record::parse(&buffer[..received.len], self.config.udp_port) {
                Ok(Record::Frame(train)) if !received.truncated => {
                    trains += 1;
                    f(&train);
                }
                Ok(Record::Join { .. }) => {
                    let answer = Record::Welcome { udp_port: self.config.udp_port };
                    let mut out = [0; SHORT_MAX];
                    let len = answer.emit(Some(self.slot), &mut out);
                    if let Err(e) = send_bag(fd, &out[..len], &self.bag) {
                        self.answer(fd, &Record::Refuse { errno: e.raw_os_error().unwrap_or(0) as u32 });
                    }
                }
                Ok(Record::Ping) => self.answer(fd, &Record::Pong),
                Ok(Record::Welcome { .. } | Record::Refuse { .. } | Record::Pong | Record::Frame(_)) => {}
                Err(BadRecord::Version) => {
                    self.answer(fd, &Record::Refuse { errno: libc::EPROTONOSUPPORT as u32 });
                }
                Err(BadRecord::Malformed) => return self.hang_up(token, trains),
            }
        }
        trains
    }

    fn answer(&self, fd: &OwnedFd, record: &Record<'_>) {
        let mut out = [0; SHORT_MAX];
        let len = record.emit(Some(self.slot), &mut out);
        // A peer that does not take its answer has gone or will ask again.
        let _gone = sys::send_record(fd.as_fd(), &out[..len], &[], &[]);
    }

    fn hang_up(&self, token: u64, trains: usize) -> usize {
        if let Some(socket) = self.lock().remove(&token) {
            self.forget(&socket);
        }
        trains
    }

    fn add(&self, fd: OwnedFd, role: Role) -> io::Result<u64> {
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let fd = Arc::new(fd);
        self.lock().insert(token, Socket { fd: Arc::clone(&fd), role });
        if let Err(e) = self.epoll.add(fd.as_fd(), token) {
            self.lock().remove(&token);
            return Err(e);
        }
        Ok(token)
    }

    fn forget(&self, socket: &Socket) {
        // It is there, unless the application closed descriptors that are not its own.
        let _absent = self.epoll.remove(socket.fd.as_fd());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
