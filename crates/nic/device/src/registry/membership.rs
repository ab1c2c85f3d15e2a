//! The membership of this process: what the other files do, for one member.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use transport::cm::DisconnectNotice;

use super::domain::DomainConfig;
use super::forward::{Links, OpenLinks};
use super::group::{self, Common};
use super::join::{self, Claim};
use super::journal::{Journal, JournalFile};
use super::rings::Rings;
use super::serve::{OwnSlot, Server, Sockets};
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
    pub(super) fn disown(&self, own: &OwnSlot) {
        // Fails only for a descriptor that is not a socket.
        let _not_ours = group::disable_queue(own.queue.as_fd());
        self.journal_file.set_owner(own.slot, None);
    }

    /// Returns the shared-memory rings of this member. From now on the member accepts ring offers.
    pub(crate) fn rings(&self) -> Rings {
        Rings::new(Arc::clone(&self.server), Arc::clone(&self.journal_file), self.slot)
    }

    /// The first slots of all members.
    pub(super) fn members(&self) -> impl Iterator<Item = u16> {
        let owners = (0..).zip(self.journal_file.owners());
        owners.filter(|(slot, owner)| *owner == Some(*slot)).map(|(slot, _)| slot)
    }

    /// The first slots of all other members.
    pub(super) fn others(&self) -> impl Iterator<Item = u16> {
        self.members().filter(|slot| *slot != self.slot)
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
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
