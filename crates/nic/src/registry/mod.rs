//! Several processes on one UDP port, without a daemon.
//!
//! All processes of a *domain* (one user, or some who trust each other; one network namespace) receive on UDP 4791 through one fixed
//! reuseport group of 252 sockets. Socket 0 is the *GSI queue*, which everybody polls; socket 1 + s belongs to
//! *slot* s, and a process claims one slot, or one for each of its engines. Slot numbers are bits 23..16 of QPNs and 31..24 of communication
//! ids, so that a constant classic-BPF program (`program.rs`) can steer each datagram to its process.
//!
//! The group must never change, because the kernel moves indices when a socket of it closes. So the sockets
//! live in a *socket set*: one unread message with 252 descriptors, of which members peek their two. As long as one
//! member lives, the socket set does. Abstract Unix names are the registry: a name is claimed atomically and freed
//! when its owner dies, however it dies. Members answer JOIN with the socket set, and forward trains that reached the
//! wrong process as FRAME (`record.rs`).
//!
//! What a member leaves to be said to its peers should it die is written in a book that lies in the socket set, too (`will.rs`);
//! the others see it die, because its connection to one of them breaks (`departed.rs`).
//!
//! Two members of one user may go without the kernel: one offers the other a ring in memory (`rings.rs`), which lasts as long as
//! the connection it was offered on.
//!
//! Start with `join.rs`, then `serve.rs` and `forward.rs`.

mod error;
mod failure;
mod forward;
mod group;
mod interface;
mod join;
mod journal;
mod program;
mod record;
mod rings;
mod serve;
mod service;

pub use error::JoinError;
pub use forward::ForwardOutcome;
pub use interface::{ClaimedService, Registry};
#[cfg(feature = "fuzz")]
pub use record::check as check_record;
pub(crate) use rings::{RingEvent, RingLink, Rings};
pub use service::{ServiceAddress, ServiceClaim};

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transport::cm::{Farewell, WillChange};
use wire::{Gid, ROCE_PORT};

use crate::port::{BadVariable, RxBatch};
use crate::verbs::Refusal;
use forward::{Links, OpenLinks};
use group::Contents;
use join::Claim;
use journal::{Journal, JournalFile};
use serve::{Server, Sockets};
use sys::{Credentials, KeptLock};

/// Slots of a domain.
pub const SLOTS: u8 = 251;

/// Which domain to join.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainConfig {
    /// First part of every abstract name, `roxie/1` by default.
    pub name: String,
    /// The UDP port the domain receives on.
    pub udp_port: u16,
    /// Users besides our own and root that may be members, each of whom must name the others. They can then read and
    /// disturb our traffic.
    pub allow_uids: Vec<u32>,
}

impl Default for DomainConfig {
    fn default() -> DomainConfig {
        DomainConfig { name: "roxie/1".to_owned(), udp_port: ROCE_PORT, allow_uids: Vec::new() }
    }
}

impl DomainConfig {
    /// The default domain, or a private one if `ROXIE_DOMAIN=name[:port]` is set; the users are those of `ROXIE_USERS`.
    ///
    /// # Errors
    /// Kind `InvalidInput`, with a [`Refusal`] inside, if a variable makes no sense.
    pub fn from_env() -> io::Result<DomainConfig> {
        let domain = match std::env::var_os("ROXIE_DOMAIN") {
            None => DomainConfig::default(),
            Some(value) => value
                .to_str()
                .and_then(DomainConfig::parse)
                .ok_or_else(|| Refusal::BadDomain(value.to_string_lossy().into_owned()))?,
        };
        let users = std::env::var_os("ROXIE_USERS").unwrap_or_default().to_string_lossy().into_owned();
        let allow_uids = parse_users(&users).map_err(Refusal::BadVariable)?;
        Ok(DomainConfig { allow_uids, ..domain })
    }

    /// Reads `name[:port]`; the name is 1 to 32 letters, digits, `-`, `_` or `.`.
    #[must_use]
    pub fn parse(text: &str) -> Option<DomainConfig> {
        let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 32 || !name.chars().all(is_plain) {
            return None;
        }
        let udp_port = match port {
            None => ROCE_PORT,
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        };
        Some(DomainConfig { name: format!("roxie/1:{name}"), udp_port, ..DomainConfig::default() })
    }

    fn boot_name(&self) -> String {
        format!("{}/boot", self.name)
    }

    fn slot_name(&self, slot: u8) -> String {
        format!("{}/slot/{slot}", self.name)
    }

    /// May a process of this user be a member?
    fn admits(&self, peer: Credentials) -> bool {
        peer.uid == 0 || peer.uid == sys::effective_uid() || self.allow_uids.contains(&peer.uid)
    }
}

/// Numbers of users between commas; none are none.
fn parse_users(text: &str) -> Result<Vec<u32>, BadVariable> {
    const WORDS: &[&str] = &["a list of user ids, such as 1000,1001"];
    let words = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    let users = words.map(|word| word.parse::<u32>().ok()).collect::<Option<_>>();
    users.ok_or_else(|| BadVariable::new("ROXIE_USERS", text, WORDS))
}

/// A membership of this process in a domain: a slot and its receive queue. All methods may be called by any
/// thread. A forked child's copy is of no use; dropping it disturbs nobody.
#[derive(Debug)]
pub struct Membership {
    slot: u8,
    gsi: OwnedFd,
    queue: OwnedFd,
    journal_file: JournalFile,
    journal: Mutex<Journal>,
    /// What the last owner of the slot left to be said.
    inherited: Mutex<Vec<Farewell>>,
    /// Nanoseconds; 0: not wanted.
    rescan_at: AtomicU64,
    server: Arc<Server>,
    links: Arc<Links>,
}

impl Membership {
    /// Joins the domain, or founds it. May take a few milliseconds, and seconds if members do not answer.
    ///
    /// # Errors
    /// A [`JoinError`] inside; kind `AddrInUse` if somebody else has the port. What the kernel says otherwise.
    pub fn join(config: &DomainConfig) -> io::Result<Membership> {
        let Claim { slot, contents: Contents { gsi, queue, journal_file }, listener, socket_set, neighbour } =
            join::join(config)?;
        group::enable_queue(queue.as_fd())?;
        let (journal, inherited) = Journal::open(&journal_file, slot);
        let server = Arc::new(Server::new(config.clone(), slot, listener, socket_set)?);
        let links = Arc::new(Links::new(Arc::clone(&server), slot));
        let (journal, inherited) = (Mutex::new(journal), Mutex::new(inherited));
        let rescan_at = AtomicU64::new(0);
        let member =
            Membership { slot, gsi, queue, journal_file, journal, inherited, rescan_at, server, links };
        if let Some(neighbour) = neighbour {
            let slot = neighbour.slot;
            // It has died since; then its will may be ours to execute.
            if member.server.watch_neighbour(neighbour).is_err() {
                member.server.suspect(slot);
            }
        }
        Ok(member)
    }

    /// True in a forked child of the process that joined.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.server.is_inherited()
    }

    /// Its slot: bits 23..16 of its QPNs, 31..24 of its communication ids.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The UDP port of the domain.
    #[must_use]
    pub fn udp_port(&self) -> u16 {
        self.server.config.udp_port
    }

    /// A duplicate of the socket shared by all members.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn gsi_socket(&self) -> io::Result<OwnedFd> {
        self.gsi.try_clone()
    }

    /// A duplicate of this slot's socket.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn slot_socket(&self) -> io::Result<OwnedFd> {
        self.queue.try_clone()
    }

    /// Rings between this member and others; from now on offers are taken.
    pub(crate) fn rings(&self) -> Rings {
        Rings::new(Arc::clone(&self.server), self.slot)
    }

    /// Readable when [`poll_listener`](Membership::poll_listener) has something to do.
    #[must_use]
    pub fn listener_fd(&self) -> RawFd {
        self.server.epoll.as_raw_fd()
    }

    /// Serves other members without waiting: answers JOIN and PING, hands forwarded trains to `f`. Returns the
    /// number of trains; 0 also if another thread is at it.
    pub fn poll_listener(&self, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        self.server.poll(f)
    }

    /// Forwards a GRO batch to the member with `slot`, and returns what became of it. Does not wait.
    ///
    /// # Errors
    /// `EPERM` if the slot's name belongs to a process of a user that the domain does not admit, `EMFILE`.
    pub fn forward(&self, slot: u8, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        self.links.forward(slot, batch)
    }

    /// Hands a train to all other members; returns how many took it.
    pub fn forward_to_all(&self, batch: &RxBatch<'_>) -> usize {
        // A member that cannot be connected to counts like an empty slot.
        let delivered = |slot| matches!(self.forward(slot, batch), Ok(ForwardOutcome::Delivered));
        (0..SLOTS).filter(|slot| *slot != self.slot && delivered(*slot)).count()
    }

    /// Connections to other members that were tried, whether somebody was there or not.
    #[must_use]
    pub fn connects(&self) -> u64 {
        self.links.connects()
    }

    /// Writes down what others shall say if this process dies.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn update_journal(&self, change: WillChange) -> io::Result<()> {
        self.journal().change(&self.journal_file, change)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a service (port space, port, address) for this process; trains that others get for it arrive in
    /// [`poll_listener`](Membership::poll_listener).
    ///
    /// # Errors
    /// `EADDRINUSE` if somebody has the same name, `EADDRNOTAVAIL` if a wildcard and an address collide.
    pub fn claim_service(&self, ps: u16, port: u16, address: ServiceAddress) -> io::Result<ServiceClaim> {
        service::claim(&self.server, ps, port, address)
    }

    /// Hands a train to whoever listens on (`ps`, `port`) at `dst`, or else at the wildcard of its family;
    /// false if no *other* process does. A listener that does not keep up loses the train, and it is still true.
    ///
    /// # Errors
    /// `EPERM` if a stranger has the name, `EMFILE`.
    pub fn forward_to_service(&self, ps: u16, port: u16, dst: Gid, batch: &RxBatch<'_>) -> io::Result<bool> {
        for address in ServiceAddress::candidates(dst) {
            let name = address.name(&self.server.config, ps, port);
            if !self.server.owns(&name) && self.links.forward_to_name(name, batch)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The locks that guard a membership's descriptors, held while the process forks.
pub(crate) struct RegistryLocks {
    sockets: KeptLock<Server, Sockets>,
    // Unlocked last.
    _links: KeptLock<Links, OpenLinks>,
}

impl Membership {
    /// `None` if it takes until `until_ns`.
    pub(crate) fn keep_locked(&self, until_ns: u64) -> Option<RegistryLocks> {
        let links = KeptLock::take(&self.links, |links| &links.open, until_ns)?;
        let sockets = KeptLock::take(&self.server, |server| &server.sockets, until_ns)?;
        Some(RegistryLocks { sockets, _links: links })
    }

    /// A forked child gives up its copies of everything: names, sockets, connections.
    pub(crate) fn release_in_child(&self, locks: &mut RegistryLocks) {
        for fd in [&self.gsi, &self.queue, &self.server.socket_set] {
            sys::disconnect(fd);
        }
        sys::disconnect(self.journal_file.file());
        sys::disconnect(&self.server.epoll);
        locks.sockets.values().for_each(|socket| sys::disconnect(&socket.fd));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // While the slot's name is still ours. Only for a descriptor that is no socket can it fail.
            let _not_ours = group::disable_queue(self.queue.as_fd());
        }
    }
}

#[cfg(test)]
mod tests;
