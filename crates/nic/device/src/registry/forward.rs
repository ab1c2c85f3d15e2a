//! Forwarding GRO batches to the process that owns their slot or service.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::record::{Record, SHORT_MAX};
use super::serve::Server;
use super::{SLOTS, meeting};
use crate::port::RxBatch;
use sys::now_ns;

/// Connections to other members, made on first use.
#[derive(Debug)]
pub(super) struct Links {
    server: Arc<Server>,
    slot: u16,
    pub(super) open: Mutex<OpenLinks>,
    /// Until when a slot counts as empty (nanoseconds).
    empty_until: Box<[AtomicU64]>,
    /// Number of connection attempts.
    pub(super) connects: AtomicU64,
}

/// By abstract name. Contains only names that have a listener, so packets from the network cannot make it
/// grow. The server owns the connections: it notices their end and closes the descriptor.
pub(super) type OpenLinks = HashMap<String, Weak<OwnedFd>>;

/// How long a slot without an owner, or with one of another user, counts as empty. Without this limit, each
/// packet that goes to every slot would cost one connection attempt per empty slot. A process that starts
/// within this time misses a message, which its peer retransmits.
const EMPTY_NS: u64 = 100_000_000;

impl Links {
    pub(super) fn new(server: Arc<Server>, slot: u16) -> Links {
        Links {
            server,
            slot,
            open: Mutex::new(HashMap::new()),
            empty_until: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            connects: AtomicU64::new(0),
        }
    }

    /// Forwards a batch to the member with `slot`.
    pub(super) fn forward(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        let Some(empty_until) = self.empty_until.get(usize::from(slot)) else {
            return Ok(ForwardOutcome::NoMember);
        };
        if slot == self.slot || now_ns() < empty_until.load(Ordering::Relaxed) {
            return Ok(ForwardOutcome::NoMember);
        }
        let outcome = self.send(self.server.group.slot(slot), &Record::Frame(*batch));
        let is_stranger = |error: &io::Error| error.raw_os_error() == Some(libc::EPERM);
        if matches!(outcome, Ok(ForwardOutcome::NoMember)) || outcome.as_ref().is_err_and(is_stranger) {
            empty_until.store(now_ns() + EMPTY_NS, Ordering::Relaxed);
        }
        outcome
    }

    /// Sends a record, such as a batch, to the process that listens on `name`.
    pub(super) fn send(&self, name: String, record: &Record<'_>) -> io::Result<ForwardOutcome> {
        let mut head = [0; SHORT_MAX];
        let len = record.emit(Some(self.slot), &mut head);
        let packets = if let Record::Frame(batch) = record { batch.bytes } else { &[] };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection from earlier may lead to a process that has died; then connect once more.
        for _ in 0..2 {
            let connection = match open.get(&name).and_then(Weak::upgrade) {
                Some(connection) => connection,
                None => match self.connect(&name) {
                    Ok(connection) => {
                        open.retain(|_, link| link.strong_count() > 0);
                        open.insert(name.clone(), Arc::downgrade(&connection));
                        connection
                    }
                    Err(e) => {
                        return match e.raw_os_error() {
                            Some(libc::ECONNREFUSED) => Ok(ForwardOutcome::NoMember),
                            Some(libc::EAGAIN) => Ok(ForwardOutcome::Full),
                            _ => Err(e),
                        };
                    }
                },
            };
            match sys::send_record(connection.as_fd(), &head[..len], packets, &[]) {
                Ok(()) => return Ok(ForwardOutcome::Delivered),
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => return Ok(ForwardOutcome::Full),
                    Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN) => drop(open.remove(&name)),
                    _ => return Err(e),
                },
            }
        }
        Ok(ForwardOutcome::NoMember)
    }

    fn connect(&self, name: &str) -> io::Result<Arc<OwnedFd>> {
        self.connects.fetch_add(1, Ordering::Relaxed);
        let (connection, peer) = meeting::connect(name)?;
        if !self.server.config.admits(peer) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        self.server.watch(connection)
    }
}

/// What became of a forwarded batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ForwardOutcome {
    /// The member's socket has taken it.
    Delivered,
    /// The member exists but reads too slowly; the batch is dropped.
    Full,
    /// No member has the slot or name.
    NoMember,
}
