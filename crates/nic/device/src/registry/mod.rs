//! The process registry: several processes share one UDP port without a daemon.
//!
//! A *domain* is the set of processes of one user (or of users that trust each other) in one network
//! namespace. They all receive on UDP 4791 through one reuseport group. Socket 0 is the *GSI queue*,
//! which every process polls. Each other socket belongs to a *slot*, which is bits 23..12 of QPNs and
//! bits 31..20 of communication ids. So a classic-BPF program that never changes (`program.rs`) can
//! steer each datagram to its process. A process claims one slot per engine, and further ones when an
//! engine has more queue pairs than a slot has numbers (`slots.rs`).
//!
//! No socket of the group may close, because the kernel would renumber the group. So the sockets live in a
//! *socket set* (`group.rs`): unread messages with socket descriptors, of which each member peeks its own.
//! The socket set lives as long as one member lives, and grows by 64 slots when no slot is free. Abstract
//! Unix names record which process owns which slot: a process claims a name atomically, and the kernel
//! frees it when the process ends. Members answer JOIN with the socket set, and forward packets that
//! reached the wrong process as FRAME (`record.rs`). The names contain a random number that is new in
//! every group, so a process of another user cannot take them beforehand (`names.rs`). Which process may
//! be a member is decided in `identity.rs`.
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
mod holder;
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
mod slots;

pub use error::{JoinError, Stranger};
pub use failure::next_scan_ns;
pub use forward::ForwardOutcome;
pub use holder::PortHolder;
pub use identity::is_root;
pub use interface::{ClaimedService, Registry};
pub use join::{Found, members};
#[cfg(feature = "fuzz")]
pub use journal::check as check_journal;
#[cfg(feature = "fuzz")]
pub use record::check as check_record;
pub(crate) use rings::{RingEvent, RingLink, Rings};
pub use service::{ServiceAddress, ServiceClaim};
pub use slots::FurtherSlot;
pub use transport::numbering::SLOTS;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transport::cm::{DisconnectNotice, JournalChange};
use wire::{Gid, ROCE_PORT};

use crate::port::RxBatch;
use crate::variable::BadVariable;
use forward::{Links, OpenLinks};
use group::Common;
use identity::{Peer, Relation};
use join::Claim;
use journal::{Journal, JournalFile};
use record::Record;
use serve::{OwnSlot, Server, Sockets};
use sys::KeptLock;

/// First part of every abstract name of the default domain. The number is that of the layout of the
/// group and of its records: processes of two versions cannot share a port.
const DOMAIN: &str = "roxie/2";

/// Name, port and users of the domain that a process joins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainConfig {
    /// First part of every abstract Unix name, `roxie/2` by default.
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
        DomainConfig { name: DOMAIN.to_owned(), udp_port: ROCE_PORT, allow_uids: Vec::new() }
    }
}

impl DomainConfig {
    /// Returns the default domain, or a private one if `ROXIE_DOMAIN=name[:port]` is set. `ROXIE_USERS` lists
    /// the additional users.
    ///
    /// # Errors
    /// The variable that cannot be parsed.
    pub fn from_env() -> Result<DomainConfig, BadVariable> {
        const WORDS: &[&str] = &["NAME or NAME:PORT"];
        let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let domain = match text("ROXIE_DOMAIN") {
            None => DomainConfig::default(),
            Some(text) => {
                let parsed = DomainConfig::parse(&text);
                parsed.ok_or_else(|| BadVariable::new("ROXIE_DOMAIN", &text, WORDS))?
            }
        };
        let allow_uids = parse_users(&text("ROXIE_USERS").unwrap_or_default())?;
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
        Some(DomainConfig { name: format!("{DOMAIN}:{name}"), udp_port, ..DomainConfig::default() })
    }

    /// True if names show members of another version of roxie in this network namespace.
    fn is_used_by_another_version(&self) -> bool {
        let Some(suffix) = self.name.strip_prefix(DOMAIN) else { return false };
        let is_member = |name: &String| {
            let rest = name.strip_prefix("roxie/").and_then(|rest| rest.split_once('/'));
            let Some((domain, _)) = rest.filter(|(_, rest)| rest.contains("/slot/")) else { return false };
            let is_number = |version: &str| version.parse::<u32>().is_ok();
            let has_suffix = domain.strip_suffix(suffix).is_some_and(is_number);
            has_suffix && !name.starts_with(&format!("{}/", self.name))
        };
        sys::abstract_names("roxie/").iter().any(is_member)
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
    slot: u16,
    gsi: OwnedFd,
    queue: OwnedFd,
    journal_file: Arc<JournalFile>,
    journal: Mutex<Journal>,
    /// Disconnect notices that the last owner of the slot left.
    inherited: Mutex<Vec<DisconnectNotice>>,
    /// When the last death was noticed (nanoseconds).
    noticed_at: AtomicU64,
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
        let Claim { group, slot, queue, common, listener, socket_set, neighbour } = join::join(config)?;
        let Common { gsi, journal_file } = common;
        group::enable_queue(queue.as_fd())?;
        journal_file.set_owner(slot, Some(slot));
        let journal_file = Arc::new(journal_file);
        let (journal, inherited) = Journal::open(&journal_file, slot);
        let server = Arc::new(Server::new(config.clone(), group, slot, listener, socket_set)?);
        let links = Arc::new(Links::new(Arc::clone(&server), slot));
        let (journal, inherited) = (Mutex::new(journal), Mutex::new(inherited));
        let (noticed_at, rescan_at) = (AtomicU64::new(0), AtomicU64::new(0));
        let member = Membership {
            slot,
            gsi,
            queue,
            journal_file,
            journal,
            inherited,
            noticed_at,
            rescan_at,
            server,
            links,
        };
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

    /// The first slot of this engine: bits 23..12 of its QPNs, bits 31..20 of its communication ids.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// The UDP port of the domain.
    #[must_use]
    pub fn udp_port(&self) -> u16 {
        self.server.config.udp_port
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

    /// Claims another slot, for more QPNs; takes some milliseconds. It is released with the membership, or by
    /// [`release_slot`](Self::release_slot).
    ///
    /// # Errors
    /// A [`JoinError`] inside if no slot is free and the group cannot grow; `EMFILE`.
    pub fn claim_slot(&self) -> io::Result<FurtherSlot> {
        let Server { group, socket_set, config, .. } = &*self.server;
        let (slot, name, queue) =
            slots::take(group, socket_set, &self.journal_file, config.udp_port, sys::bind_seqpacket)?;
        let further = FurtherSlot { slot, queue: queue.try_clone()? };
        group::enable_queue(queue.as_fd())?;
        self.journal_file.set_owner(slot, Some(self.slot));
        self.server.further().push(OwnSlot { slot, name, queue });
        Ok(further)
    }

    /// Releases a slot that [`claim_slot`](Self::claim_slot) has claimed.
    pub fn release_slot(&self, slot: u16) {
        let mut further = self.server.further();
        further.extract_if(.., |own| own.slot == slot).for_each(|own| self.disown(&own));
    }

    /// Makes a slot free; the caller closes its name next.
    fn disown(&self, own: &OwnSlot) {
        // Fails only for a descriptor that is not a socket.
        let _not_ours = group::disable_queue(own.queue.as_fd());
        self.journal_file.set_owner(own.slot, None);
    }

    /// Returns the shared-memory rings of this member. From now on the member accepts ring offers.
    pub(crate) fn rings(&self) -> Rings {
        Rings::new(Arc::clone(&self.server), Arc::clone(&self.journal_file), self.slot)
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

    /// Forwards a GRO batch to the member that has `slot`, and returns what became of it. Does not wait.
    ///
    /// # Errors
    /// `EPERM` if the slot's name belongs to a user that the domain does not admit, `EMFILE`.
    pub fn forward(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        // Packets from the network name any slot, so the table is read before a name is searched for.
        match self.journal_file.owner(slot) {
            Some(first) => self.links.forward(first, batch),
            None => Ok(ForwardOutcome::NoMember),
        }
    }

    /// Forwards a batch to the member that has `slot`. The names decide if there is one, and not the table of
    /// owners or an earlier search. The member may have died; its journal is then taken over.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    pub fn forward_by_name(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        let outcome = self.links.send(self.server.group.slot(slot), &Record::Frame(*batch))?;
        if outcome == ForwardOutcome::NoMember && self.journal_file.has_rows(slot) {
            self.server.suspect(slot);
        }
        Ok(outcome)
    }

    /// Tells all other members that the host `dst` answers no probes from `src`.
    pub fn tell_silent_host(&self, src: Gid, dst: Gid) {
        let record = Record::SilentHost { src: src.ip(), dst: dst.ip() };
        for slot in self.others() {
            // A member that does not get it finds out by its own probes.
            let _untold = self.links.send(self.server.group.slot(slot), &record);
        }
    }

    /// Takes the pairs of addresses that other members have told of.
    pub fn take_silent_hosts(&self) -> Vec<(Gid, Gid)> {
        self.server.take_silent_hosts()
    }

    /// The first slots of all other members.
    fn others(&self) -> impl Iterator<Item = u16> {
        let owners = (0..).zip(self.journal_file.owners());
        owners.filter(|(slot, owner)| *owner == Some(*slot) && *slot != self.slot).map(|(slot, _)| slot)
    }

    /// Forwards a GRO batch to all other members; returns how many received it.
    pub fn forward_to_all(&self, batch: &RxBatch<'_>) -> usize {
        // A member that cannot be connected to counts like an empty slot.
        let delivered = |slot| matches!(self.links.forward(slot, batch), Ok(ForwardOutcome::Delivered));
        self.others().filter(|slot| delivered(*slot)).count()
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
            if !self.server.owns(&name)
                && self.links.send(name, &Record::Frame(*batch))? != ForwardOutcome::NoMember
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The locks that guard a membership's descriptors; held while the process forks.
pub(crate) struct RegistryLocks {
    sockets: KeptLock<Server, Sockets>,
    further: KeptLock<Server, Vec<OwnSlot>>,
    // Unlocked last.
    _links: KeptLock<Links, OpenLinks>,
}

impl Membership {
    /// Takes the locks, or returns `None` if that lasts until `until_ns`.
    pub(crate) fn keep_locked(&self, until_ns: u64) -> Option<RegistryLocks> {
        let links = KeptLock::take(&self.links, |links| &links.open, until_ns)?;
        let further = KeptLock::take(&self.server, |server| &server.further, until_ns)?;
        let sockets = KeptLock::take(&self.server, |server| &server.sockets, until_ns)?;
        Some(RegistryLocks { sockets, further, _links: links })
    }

    /// Detaches a forked child's copies of the names, sockets and connections.
    pub(crate) fn release_in_child(&self, locks: &mut RegistryLocks) {
        [&self.gsi, &self.queue].into_iter().for_each(sys::disconnect);
        self.server.socket_set.ends().into_iter().for_each(sys::disconnect);
        for own in &*locks.further {
            [&own.name, &own.queue].into_iter().for_each(sys::disconnect);
        }
        sys::disconnect(self.journal_file.file());
        sys::disconnect(&self.server.epoll);
        locks.sockets.values().for_each(|socket| sys::disconnect(&socket.fd));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // The names of the slots still belong to this process. Fails only for a descriptor that is not a
            // socket.
            let _not_ours = group::disable_queue(self.queue.as_fd());
            self.journal_file.set_owner(self.slot, None);
            self.server.further().iter().for_each(|own| self.disown(own));
        }
    }
}

#[cfg(test)]
mod slots_tests;
#[cfg(test)]
mod strangers_tests;
#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod domain_tests {
    use super::*;

    #[test]
    fn users_are_user_ids_separated_by_commas() {
        let users = |text| parse_users(text).ok();
        assert_eq!(
            [users(""), users("0"), users("1000, 1001")],
            [vec![], vec![0], vec![1000, 1001]].map(Some)
        );
        for bad in [",", "1000,", "root", "-1", "4294967296"] {
            assert_eq!(users(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_environment_names_a_private_domain() {
        let domain = DomainConfig::parse("test-1:9999").unwrap();
        assert_eq!((domain.name.as_str(), domain.udp_port), ("roxie/2:test-1", 9999));
        assert_eq!(DomainConfig::parse("x").unwrap().udp_port, 4791);
        for bad in ["", ":1", "a/b", "x:0", "x:65536", "x:", &"x".repeat(33)] {
            assert_eq!(DomainConfig::parse(bad), None, "{bad}");
        }
    }
}
