//! What an engine needs from the process registry; a simulation provides one of its own.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use transport::cm::{DisconnectNotice, JournalChange};
use wire::Gid;

use super::forward::ForwardOutcome;
use super::group;
use super::membership::Membership;
use super::record::Record;
use super::serve::{OwnSlot, Server};
use super::service::{self, ServiceAddress, ServiceRequest};
use super::slots::{self, FurtherSlot};
use crate::port::RxBatch;

/// A claimed service name; dropping it releases the name.
pub type ClaimedService = Box<dyn Any + Send>;

/// The processes of one host that share an address: which slot this engine has, and how it reaches the
/// others. All methods may be called by any thread, and none waits.
pub trait Registry: Send + Sync {
    /// The first slot of this engine: bits 23..12 of its QPNs, 31..20 of its communication ids.
    fn slot(&self) -> u16;
    /// Readable when [`poll_listener`](Self::poll_listener) has something to do; -1 if it never has.
    fn listener_fd(&self) -> RawFd;
    /// Serves the other members, and gives the batches that they forwarded to `f`; returns their number, 0
    /// also if another thread is serving.
    fn poll_listener(&self, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize;
    /// Forwards a batch to the member with `slot`.
    ///
    /// # Errors
    /// `EPERM` if a process of another user holds the slot's name, `EMFILE`.
    fn forward(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome>;
    /// Forwards a batch to the member with `slot`, of which no more is known than that a packet named it. The
    /// member may have died; its journal is then taken over.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    fn forward_by_name(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        self.forward(slot, batch)
    }
    /// Whether this process is known to be the only member. A member can be seen before it claims a service.
    fn is_alone(&self) -> bool {
        false
    }
    /// Whether a member may have `slot`, also one of its further slots.
    fn has_member(&self, slot: u16) -> bool {
        let _unknown = slot;
        true
    }
    /// Forwards a batch to all other members; returns how many took it.
    fn forward_to_all(&self, batch: &RxBatch<'_>) -> usize;
    /// Forwards a batch to the process that listens on (`port_space`, `port`) at `dst`; false if no other
    /// process does; true also if the listener's queue is full and the batch is dropped.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    fn forward_to_service(
        &self,
        port_space: u16,
        port: u16,
        dst: Gid,
        batch: &RxBatch<'_>,
    ) -> io::Result<bool>;
    /// Tells all other members that the host `dst` answers no probes from `src`, if they can be told.
    fn tell_silent_host(&self, src: Gid, dst: Gid) {
        let _no_members = (src, dst);
    }
    /// Takes the pairs of addresses that other members have told of.
    fn take_silent_hosts(&self) -> Vec<(Gid, Gid)> {
        Vec::new()
    }
    /// Claims a service (port space, port, address) for this process.
    /// [`poll_listener`](Self::poll_listener) passes on the requests that other members receive for it.
    ///
    /// # Errors
    /// `EADDRINUSE` if another process has the same address, `EADDRNOTAVAIL` if a wildcard and an address,
    /// or two wildcards, collide.
    fn claim_service(
        &self,
        port_space: u16,
        port: u16,
        request: ServiceRequest,
    ) -> io::Result<ClaimedService>;
    /// Writes down what the other members tell this process's peers if it dies.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn update_journal(&self, change: JournalChange) -> io::Result<()>;
    /// What dead members left to be told to their peers. To be called after every
    /// [`poll_listener`](Self::poll_listener), and at [`rescan_at`](Self::rescan_at).
    fn take_disconnect_notices(&self) -> Vec<DisconnectNotice>;
    /// When to look for dead members again (nanoseconds).
    fn rescan_at(&self) -> Option<u64>;
    /// Sets the slots of all engines of this device.
    fn set_sibling_slots(&self, slots: Vec<u16>);
    /// Claims another slot for this engine, which has no QPNs left; takes some milliseconds. The slot is
    /// released with the registry, or by [`release_slot`](Self::release_slot).
    ///
    /// # Errors
    /// A [`JoinError`](super::JoinError) inside if no slot is free and the group cannot grow; `EMFILE`;
    /// `EOPNOTSUPP` in a simulation.
    fn claim_slot(&self) -> io::Result<FurtherSlot> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
    /// Releases a slot that was claimed and is not used.
    fn release_slot(&self, slot: u16) {
        let _never_claimed = slot;
    }
    /// Connections to other members that were tried.
    fn connects(&self) -> u64;
    /// The kernel's side of it; `None` in a simulation.
    fn membership(&self) -> Option<&Membership>;
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

    fn has_member(&self, slot: u16) -> bool {
        self.journal_file.owner(slot).is_some()
    }

    fn forward_to_all(&self, batch: &RxBatch<'_>) -> usize {
        // A member that cannot be connected to counts like an empty slot.
        let delivered = |slot| matches!(self.links.forward(slot, batch), Ok(ForwardOutcome::Delivered));
        self.others().filter(|slot| delivered(*slot)).count()
    }

    fn forward_to_service(&self, ps: u16, port: u16, dst: Gid, batch: &RxBatch<'_>) -> io::Result<bool> {
        for address in ServiceAddress::candidates(dst, batch.ifindex) {
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
            slots::take(group, socket_set, &self.journal_file, config, sys::bind_seqpacket)?;
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
