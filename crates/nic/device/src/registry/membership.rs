//! The membership of this process: what the other files do, for one member.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transport::cm::{DisconnectNotice, JournalChange};
use wire::Gid;

use super::domain::DomainConfig;
use super::forward::ForwardOutcome;
use super::forward::{Links, OpenLinks};
use super::group::{self, Common};
use super::interface::{ClaimedService, Registry};
use super::join::{self, Claim};
use super::journal::{Journal, JournalFile};
use super::record::Record;
use super::rings::Rings;
use super::serve::{OwnSlot, Server, Sockets};
use super::service::{self, ServiceAddress, ServiceRequest};
use super::slots::{self, FurtherSlot};
use crate::port::RxBatch;
use sys::KeptLock;

/// Membership of this process in a domain: one slot and its receive queue. Any thread may call any method. A
/// forked child cannot use its copy; dropping the copy does not disturb the parent.
#[derive(Debug)]
pub struct Membership {
    pub(super) slot: u16,
    pub(super) gsi: OwnedFd,
    pub(super) queue: OwnedFd,
    pub(super) journal_file: Arc<JournalFile>,
    pub(super) journal: Mutex<Journal>,
    /// Disconnect notices that the last owner of the slot left.
    pub(super) inherited: Mutex<Vec<DisconnectNotice>>,
    /// When the last death was noticed (nanoseconds).
    pub(super) noticed_at: AtomicU64,
    /// When to scan the journal again (nanoseconds); 0: no scan is planned.
    pub(super) rescan_at: AtomicU64,
    pub(super) server: Arc<Server>,
    pub(super) links: Arc<Links>,
}

impl Membership {
    /// Joins the domain, or creates it. Takes a few milliseconds, or seconds if members do not answer.
    ///
    /// # Errors A [`JoinError`](super::JoinError) inside; kind `AddrInUse` if another program has the port.
    /// Other errors come from the kernel.
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

    /// The first slots of all members.
    fn members(&self) -> impl Iterator<Item = u16> {
        let owners = (0..).zip(self.journal_file.owners());
        owners.filter(|(slot, owner)| *owner == Some(*slot)).map(|(slot, _)| slot)
    }

    /// The first slots of all other members.
    fn others(&self) -> impl Iterator<Item = u16> {
        self.members().filter(|slot| *slot != self.slot)
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry for Membership {
    fn slot(&self) -> u16 {
        self.slot
    }

    fn listener_fd(&self) -> RawFd {
        self.server.epoll.as_raw_fd()
    }

    fn poll_listener(&self, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        self.server.poll(f)
    }

    fn forward(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        // Packets from the network name any slot, so the table is read before a name is searched for.
        match self.journal_file.owner(slot) {
            Some(first) => self.links.forward(first, batch),
            None => Ok(ForwardOutcome::NoMember),
        }
    }

    fn forward_by_name(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        let outcome = self.links.send(self.server.group.slot(slot), &Record::Frame(*batch))?;
        if outcome == ForwardOutcome::NoMember && self.journal_file.has_rows(slot) {
            self.server.suspect(slot);
        }
        Ok(outcome)
    }

    fn tell_silent_host(&self, src: Gid, dst: Gid) {
        let record = Record::SilentHost { src, dst };
        for slot in self.others() {
            // A member that does not get it finds out by its own probes.
            let _untold = self.links.send(self.server.group.slot(slot), &record);
        }
    }

    fn take_silent_hosts(&self) -> Vec<(Gid, Gid)> {
        self.server.take_silent_hosts()
    }

    fn is_alone(&self) -> bool {
        self.members().eq([self.slot])
    }

    fn forward_to_all(&self, batch: &RxBatch<'_>) -> usize {
        // A member that cannot be connected to counts like an empty slot.
        let delivered = |slot| matches!(self.links.forward(slot, batch), Ok(ForwardOutcome::Delivered));
        self.others().filter(|slot| delivered(*slot)).count()
    }

    fn forward_to_service(&self, ps: u16, port: u16, dst: Gid, batch: &RxBatch<'_>) -> io::Result<bool> {
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

    fn claim_service(
        &self,
        port_space: u16,
        port: u16,
        request: ServiceRequest,
    ) -> io::Result<ClaimedService> {
        Ok(Box::new(service::claim(&self.server, port_space, port, &request)?))
    }

    fn update_journal(&self, change: JournalChange) -> io::Result<()> {
        self.journal().change(&self.journal_file, change)
    }

    fn take_disconnect_notices(&self) -> Vec<DisconnectNotice> {
        self.take_dead_notices()
    }

    fn rescan_at(&self) -> Option<u64> {
        Some(self.rescan_at.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    fn set_sibling_slots(&self, slots: Vec<u16>) {
        *self.server.sibling_slots.lock().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    fn claim_slot(&self) -> io::Result<FurtherSlot> {
        let Server { group, socket_set, config, .. } = &*self.server;
        let (slot, name, queue) =
            slots::take(group, socket_set, &self.journal_file, config.udp_port, sys::bind_seqpacket)?;
        let further = FurtherSlot { slot, queue: queue.try_clone()? };
        group::enable_queue(queue.as_fd())?;
        self.journal_file.set_owner(slot, Some(self.slot));
        self.server.further().push(OwnSlot { slot, name, queue });
        Ok(further)
    }

    fn release_slot(&self, slot: u16) {
        let mut further = self.server.further();
        further.extract_if(.., |own| own.slot == slot).for_each(|own| self.disown(&own));
    }

    fn connects(&self) -> u64 {
        self.links.connects.load(Ordering::Relaxed)
    }

    fn membership(&self) -> Option<&Membership> {
        Some(self)
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
