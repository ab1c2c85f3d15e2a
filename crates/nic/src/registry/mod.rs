//! The process registry: several processes share one UDP port without a daemon.
//!
//! A *domain* is the set of processes of one user (or of users that trust each other) in one network
//! namespace. They all receive on UDP 4791 through one fixed reuseport group of 252 sockets. Socket 0 is the
//! *GSI queue*, which every process polls. Socket 1 + s belongs to *slot* s. A process claims one slot per
//! engine. Slot numbers are bits 23..16 of QPNs and bits 31..24 of communication ids, so a constant
//! classic-BPF program (`program.rs`) can steer each datagram to its process.
//!
//! The group must never change, because the kernel renumbers the group when one of its sockets closes. So the
//! sockets live in a *socket set*: one unread message with 252 socket descriptors, of which each member peeks
//! its two. The socket set lives as long as one member lives. Abstract Unix names record which process owns
//! which slot: a process claims a name atomically, and the kernel frees it when the process ends. Members
//! answer JOIN with the socket set, and forward packets that reached the wrong process as FRAME
//! (`record.rs`). The names contain a random number that is new in every group, so a process of another user
//! cannot take them beforehand (`names.rs`). Which process may be a member is decided in `identity.rs`.
//!
//! The socket set also contains the disconnect journal (`journal.rs`): the disconnect notices that the peers
//! of a member get if it dies. The other members notice the death because a connection breaks (`failure.rs`).
//!
//! Two members of one user can bypass the kernel: one offers the other a ring in shared memory (`rings.rs`),
//! which lasts as long as the connection that carried the offer.
//!
//! Start with `join.rs`, then `serve.rs` and `forward.rs`.

mod error;
mod failure;
mod forward;
mod group;
pub(crate) mod identity;
mod interface;
mod join;
mod journal;
pub(crate) mod meeting;
mod names;
mod program;
mod record;
mod rings;
mod serve;
mod service;

pub use error::{JoinError, Stranger};
pub use forward::ForwardOutcome;
pub use identity::is_root;
pub use interface::{ClaimedService, Registry};
pub use join::{Found, members};
#[cfg(feature = "fuzz")]
pub use journal::check as check_journal;
#[cfg(feature = "fuzz")]
pub use record::check as check_record;
pub(crate) use rings::{RingEvent, RingLink, Rings};
pub use service::{ServiceAddress, ServiceClaim};

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transport::cm::{DisconnectNotice, JournalChange};
use wire::{Gid, ROCE_PORT};

use crate::port::{BadVariable, RxBatch};
use crate::verbs::Refusal;
use forward::{Links, OpenLinks};
use group::Contents;
use identity::{Peer, Relation};
use join::Claim;
use journal::{Journal, JournalFile};
use serve::{Server, Sockets};
use sys::KeptLock;

/// Number of slots in a domain, and so the largest number of engines.
pub const SLOTS: u8 = 251;

/// Name, port and users of the domain that a process joins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainConfig {
    /// First part of every abstract Unix name, `roxie/1` by default.
    pub name: String,
    /// The UDP port on which the domain receives.
    pub udp_port: u16,
    /// Additional users (besides the process's own user and root) that may be members. Each user must name
    /// the others. Such users can read and disturb the traffic of this process. The process's own user may
    /// be in the list: then its processes in other user namespaces may be members, too.
    pub allow_uids: Vec<u32>,
}

impl Default for DomainConfig {
    fn default() -> DomainConfig {
        DomainConfig { name: "roxie/1".to_owned(), udp_port: ROCE_PORT, allow_uids: Vec::new() }
    }
}

impl DomainConfig {
    /// Returns the default domain, or a private one if `ROXIE_DOMAIN=name[:port]` is set. `ROXIE_USERS` lists
    /// the additional users.
    ///
    /// # Errors
    /// Kind `InvalidInput`, with a [`Refusal`] inside, if a variable cannot be parsed.
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

    /// Parses `name[:port]`; the name is 1 to 32 letters, digits, `-`, `_` or `.`.
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

    /// True if this process may be a member.
    fn admits(&self, peer: Peer) -> bool {
        match peer.relation {
            Relation::Same | Relation::Root => true,
            Relation::Other => self.allow_uids.contains(&peer.credentials.uid),
            Relation::Unknown => false,
        }
    }
}

/// Parses user ids separated by commas; an empty text is an empty list.
fn parse_users(text: &str) -> Result<Vec<u32>, BadVariable> {
    const WORDS: &[&str] = &["a list of user ids, such as 1000,1001"];
    let words = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    let users = words.map(|word| word.parse::<u32>().ok()).collect::<Option<_>>();
    users.ok_or_else(|| BadVariable::new("ROXIE_USERS", text, WORDS))
}

/// Membership of this process in a domain: one slot and its receive queue. Any thread may call any method. A
/// forked child cannot use its copy; dropping the copy does not disturb the parent.
#[derive(Debug)]
pub struct Membership {
    slot: u8,
    gsi: OwnedFd,
    queue: OwnedFd,
    journal_file: JournalFile,
    journal: Mutex<Journal>,
    /// Disconnect notices that the last owner of the slot left.
    inherited: Mutex<Vec<DisconnectNotice>>,
    /// When to scan the journal again (nanoseconds); 0: no scan is planned.
    rescan_at: AtomicU64,
    server: Arc<Server>,
    links: Arc<Links>,
}

impl Membership {
    /// Joins the domain, or creates it. Takes a few milliseconds, or seconds if members do not answer.
    ///
    /// # Errors
    /// A [`JoinError`] inside; kind `AddrInUse` if another program has the port. Other errors come from the
    /// kernel.
    pub fn join(config: &DomainConfig) -> io::Result<Membership> {
        let Claim { group, slot, contents, listener, socket_set, neighbour } = join::join(config)?;
        let Contents { gsi, queue, journal_file } = contents;
        group::enable_queue(queue.as_fd())?;
        let (journal, inherited) = Journal::open(&journal_file, slot);
        let server = Arc::new(Server::new(config.clone(), group, slot, listener, socket_set)?);
        let links = Arc::new(Links::new(Arc::clone(&server), slot));
        let (journal, inherited) = (Mutex::new(journal), Mutex::new(inherited));
        let rescan_at = AtomicU64::new(0);
        let member =
            Membership { slot, gsi, queue, journal_file, journal, inherited, rescan_at, server, links };
        if let Some(neighbour) = neighbour {
            let slot = neighbour.slot;
            // The neighbour has died since the join; this member may have to take over its journal.
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

    /// The slot of this process: bits 23..16 of its QPNs, bits 31..24 of its communication ids.
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The UDP port of the domain.
    #[must_use]
    pub fn udp_port(&self) -> u16 {
        self.server.config.udp_port
    }

    /// The name on which the engine with this slot shares XRC domains ([`crate::xrc_peers`]).
    pub(crate) fn xrc_name(&self, slot: u8) -> String {
        self.server.group.xrc(slot)
    }

    /// Returns a duplicate of the GSI socket, which all members share.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn gsi_socket(&self) -> io::Result<OwnedFd> {
        self.gsi.try_clone()
    }

    /// Returns a duplicate of this slot's socket.
    ///
    /// # Errors
    /// `EMFILE`.
    pub fn slot_socket(&self) -> io::Result<OwnedFd> {
        self.queue.try_clone()
    }

    /// Returns the shared-memory rings of this member. From now on the member accepts ring offers.
    pub(crate) fn rings(&self) -> Rings {
        Rings::new(Arc::clone(&self.server), self.slot)
    }

    /// Returns the descriptor that is readable when [`poll_listener`](Membership::poll_listener) has work.
    #[must_use]
    pub fn listener_fd(&self) -> RawFd {
        self.server.epoll.as_raw_fd()
    }

    /// Serves other members without waiting: answers JOIN and PING, and passes forwarded batches to `f`.
    /// Returns the number of batches; 0 also if another thread is serving.
    pub fn poll_listener(&self, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        self.server.poll(f)
    }

    /// Forwards a GRO batch to the member with `slot`, and returns what became of it. Does not wait.
    ///
    /// # Errors
    /// `EPERM` if the slot's name belongs to a user that the domain does not admit, `EMFILE`.
    pub fn forward(&self, slot: u8, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        self.links.forward(slot, batch)
    }

    /// Forwards a GRO batch to all other members; returns how many received it.
    pub fn forward_to_all(&self, batch: &RxBatch<'_>) -> usize {
        // A member that cannot be connected to counts like an empty slot.
        let delivered = |slot| matches!(self.forward(slot, batch), Ok(ForwardOutcome::Delivered));
        (0..SLOTS).filter(|slot| *slot != self.slot && delivered(*slot)).count()
    }

    /// Number of connection attempts to other members, successful or not.
    #[must_use]
    pub fn connects(&self) -> u64 {
        self.links.connects.load(Ordering::Relaxed)
    }

    /// Records a change of the disconnect notices that other members send if this process dies.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn update_journal(&self, change: JournalChange) -> io::Result<()> {
        self.journal().change(&self.journal_file, change)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a service (port space, port, address) for this process.
    /// [`poll_listener`](Membership::poll_listener) passes on the requests that other members receive for it.
    ///
    /// # Errors
    /// `EADDRINUSE` if another process has the same address, `EADDRNOTAVAIL` if a wildcard and an address,
    /// or two wildcards, collide.
    pub fn claim_service(&self, ps: u16, port: u16, address: ServiceAddress) -> io::Result<ServiceClaim> {
        service::claim(&self.server, ps, port, address)
    }

    /// Forwards a batch to the process that listens on (`ps`, `port`) at `dst`, or else at the wildcard of
    /// its address family. Returns false if no *other* process listens. Returns true also if the listener's
    /// queue is full and the batch is dropped.
    ///
    /// # Errors
    /// `EPERM` if the name belongs to a user that the domain does not admit, `EMFILE`.
    pub fn forward_to_service(&self, ps: u16, port: u16, dst: Gid, batch: &RxBatch<'_>) -> io::Result<bool> {
        for address in ServiceAddress::candidates(dst) {
            let name = address.name(&self.server.group, ps, port);
            if !self.server.owns(&name) && self.links.send(name, batch)? != ForwardOutcome::NoMember {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The locks that guard a membership's descriptors; held while the process forks.
pub(crate) struct RegistryLocks {
    sockets: KeptLock<Server, Sockets>,
    // Unlocked last.
    _links: KeptLock<Links, OpenLinks>,
}

impl Membership {
    /// Takes the locks, or returns `None` if that lasts until `until_ns`.
    pub(crate) fn keep_locked(&self, until_ns: u64) -> Option<RegistryLocks> {
        let links = KeptLock::take(&self.links, |links| &links.open, until_ns)?;
        let sockets = KeptLock::take(&self.server, |server| &server.sockets, until_ns)?;
        Some(RegistryLocks { sockets, _links: links })
    }

    /// Detaches a forked child's copies of the names, sockets and connections.
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
            // The slot's name still belongs to this process. Fails only for a descriptor that is not a
            // socket.
            let _not_ours = group::disable_queue(self.queue.as_fd());
        }
    }
}

#[cfg(test)]
mod strangers_tests;
#[cfg(test)]
mod tests;
