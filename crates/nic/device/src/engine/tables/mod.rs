//! The state that the engine's lock protects besides the port and the hooks: queue pairs, their timers and
//! transmit queue, keys, and packets and events that wait for delivery.

mod receive;
mod route;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use transport::numbering::SLOT_QPNS;
use transport::{
    Instant, PdId, QpAttr, QpAttrMask, QpCounters, QpState, QpType, ReorderBuffer, SendWr, VerbsError, refuse,
};
use wire::{DropReason, Psn, Qpn};

use crate::cq::CompletionQueue;
use crate::engine::entry::QpEntry;
use crate::engine::identification::Identifications;
use crate::engine::multicast::Groups;
use crate::engine::observer::Observer;
use crate::engine::outbox::Outbox;
use crate::engine::owners::Objects;
use crate::engine::timers::Timers;
use crate::gid::GidTable;
use crate::keys::KeyTable;
use crate::port::FlowId;
use crate::qp_numbers::{ENGINE_SLOTS_MAX, QpIndex, QpNumbers};
use crate::sched::TransmitQueue;
use crate::srqs::{SrqEntry, Srqs};
use crate::status::ObjectStatus;
use crate::trace;
use crate::traffic::Traffic;

/// Most queue pairs of one engine: the QPNs of its slots, less the reserved 0..15 in slot 0.
pub(crate) const QP_MAX: usize = ENGINE_SLOTS_MAX * SLOT_QPNS as usize - 16;

/// Probes of a queue pair without an ACK, after which the engine looks for ICMP messages. Half: more looks
/// because of single losses. Double: a look up to 20 ms later.
const SILENT_PROBES: u8 = 3;

/// Everything that the engine's lock protects, except the port and the hooks.
pub(crate) struct Tables {
    pub(super) qps: Vec<Option<Box<QpEntry>>>,
    pub(super) queue: TransmitQueue,
    pub(super) timers: Timers,
    /// What leaves after the lock is released.
    pub(super) outbox: Outbox,
    pub(super) identifications: Identifications,
    pub(crate) srqs: Srqs,
    pub(super) reorder: ReorderBuffer,
    pub(crate) mrs: KeyTable,
    pub(crate) groups: Groups,
    pub(crate) gids: Arc<GidTable>,
    pub(crate) traffic: Traffic,
    /// Queue pairs that received packets in this batch.
    pub(super) touched: Vec<QpIndex>,
    pub(crate) observer: Observer,
    drops: [u64; DropReason::COUNT],
    /// Counters of destroyed queue pairs.
    retired: QpCounters,
    /// The first slot.
    slot: u16,
    numbers: QpNumbers,
    gsi_psn: Psn,
}

/// The refusal of a call for a queue pair that does not exist.
#[cold]
pub(crate) fn no_queue_pair(index: QpIndex) -> VerbsError {
    refuse!(EINVAL, "queue pair", "index"; index; "there is no queue pair {index} in the engine")
}

impl Tables {
    pub(crate) fn new(slot: u16, gids: &Arc<GidTable>) -> Tables {
        let mtu = gids.active_mtu();
        Tables {
            qps: Vec::new(),
            queue: TransmitQueue::new(mtu.bytes()),
            timers: Timers::new(),
            outbox: Outbox::default(),
            identifications: Identifications::default(),
            srqs: Srqs::default(),
            reorder: ReorderBuffer::new(mtu),
            mrs: KeyTable::default(),
            groups: Groups::default(),
            gids: Arc::clone(gids),
            traffic: Traffic::default(),
            touched: Vec::with_capacity(256),
            observer: Observer::default(),
            drops: [0; DropReason::COUNT],
            retired: QpCounters::default(),
            slot,
            numbers: QpNumbers::random(slot),
            gsi_psn: Psn::default(),
        }
    }

    /// The first slot of this engine: bits 23..12 of its QPNs.
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// The queue pairs, each with its index.
    pub(crate) fn qps(&self) -> impl Iterator<Item = (QpIndex, &QpEntry)> {
        self.qps.iter().enumerate().filter_map(|(i, entry)| Some((i as QpIndex, entry.as_deref()?)))
    }

    /// Calls `count` with the domain of each queue pair and shared receive queue, and of each region if
    /// `has_regions`.
    pub(crate) fn count_users(&self, has_regions: bool, mut count: impl FnMut(PdId)) {
        self.qps().for_each(|(_, entry)| count(entry.qp.pd()));
        self.srqs.entries.iter().flatten().for_each(|entry| count(entry.queue.pd()));
        let regions = self.mrs.regions(0).filter(|_| has_regions);
        regions.filter_map(|region| region.pd()).for_each(|pd| count(PdId(pd)));
    }

    /// Returns the status of the first `most` shared receive queues with numbers from `from` on, in order;
    /// `number` is that of a completion queue.
    pub(crate) fn srq_status(
        &self,
        from: u32,
        most: usize,
        number: impl Fn(&Arc<CompletionQueue>) -> Option<u32>,
    ) -> Vec<ObjectStatus> {
        let mut entries: Vec<(u32, &SrqEntry)> = (0..)
            .zip(&self.srqs.entries)
            .filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
            .collect();
        entries.retain(|(_, entry)| entry.id >= from);
        entries.sort_unstable_by_key(|(_, entry)| entry.id);
        entries.truncate(most);
        if entries.is_empty() {
            return Vec::new();
        }
        // One pass over the queue pairs, of which there may be a million.
        let mut users: HashMap<u32, Vec<Qpn>> =
            entries.iter().map(|(index, _)| (*index, Vec::new())).collect();
        for (_, entry) in self.qps() {
            if let Some(qps) = entry.srqs.own.and_then(|index| users.get_mut(&index))
                && qps.len() < ObjectStatus::SRQ_QPS_MAX
            {
                qps.push(entry.qp.qpn());
            }
        }
        let status = |(index, entry): (u32, &SrqEntry)| {
            let mut qps = users.remove(&index).unwrap_or_default();
            qps.sort_by_key(|qpn| qpn.value());
            let cq = entry.xrc.as_ref().and_then(|scope| number(&scope.cq));
            ObjectStatus::Srq { id: entry.id, pd: entry.queue.pd().0, cq, qps }
        };
        entries.into_iter().map(status).collect()
    }

    pub(crate) fn qps_mut(&mut self) -> impl Iterator<Item = (QpIndex, &mut QpEntry)> {
        self.qps.iter_mut().enumerate().filter_map(|(i, entry)| Some((i as QpIndex, entry.as_deref_mut()?)))
    }

    #[inline]
    pub(crate) fn qp(&self, index: QpIndex) -> Option<&QpEntry> {
        self.qps.get(index as usize)?.as_deref()
    }

    /// Counts a packet that is dropped.
    #[inline]
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Dropped packets by reason.
    pub(crate) fn drops(&self) -> &[u64; DropReason::COUNT] {
        &self.drops
    }

    /// The sum of the counters of all queue pairs, destroyed ones included.
    pub(crate) fn qp_counters(&self) -> QpCounters {
        let mut sum = self.retired;
        self.qps().for_each(|(_, entry)| sum.absorb(entry.qp.counters()));
        sum
    }

    /// Drops datagrams, packets and events that were collected and not delivered.
    pub(crate) fn forget_undelivered(&mut self) {
        self.outbox.clear();
    }

    /// Posts a work request to a queue pair.
    #[inline]
    pub(crate) fn post_send(&mut self, index: QpIndex, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let Self { qps, mrs, .. } = self;
        let entry = qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        entry.ok_or_else(|| no_queue_pair(index))?.qp.post_send(wr, mrs)
    }

    /// How often the port's transmit queue became full.
    pub(crate) fn port_full_count(&self) -> u64 {
        self.queue.port_full_count()
    }

    #[inline]
    pub(crate) fn qp_mut(&mut self, index: QpIndex) -> Option<&mut QpEntry> {
        self.qps.get_mut(index as usize)?.as_deref_mut()
    }

    /// The local address of a GID index.
    pub(crate) fn source_ip(&self, sgid_index: u8) -> Option<IpAddr> {
        self.gids.address(sgid_index)
    }

    /// Returns the queue pair with this number, if this engine has it.
    #[inline]
    pub(crate) fn by_qpn(&mut self, qpn: Qpn) -> Option<&mut QpEntry> {
        let index = self.index_of(qpn)?;
        self.qp_mut(index)
    }

    /// Returns the index of a queue pair with this number, if it is in a slot of this engine.
    #[inline]
    pub(crate) fn index_of(&self, qpn: Qpn) -> Option<QpIndex> {
        self.numbers.index_of(qpn)
    }

    /// Whether this engine should claim a further slot before the next queue pair.
    pub(crate) fn wants_slot(&self, now: Instant) -> bool {
        self.numbers.wants_slot(now)
    }

    /// Adds a slot that this engine has claimed.
    pub(crate) fn add_slot(&mut self, slot: u16) {
        self.numbers.add_slot(slot);
    }

    /// Whether there is a number for another queue pair.
    pub(crate) fn has_numbers(&self) -> bool {
        !self.numbers.is_full()
    }

    /// The queue pairs and shared receive queues.
    pub(crate) fn objects(&self) -> Objects {
        let srqs = self.srqs.entries.iter().filter(|entry| entry.is_some()).count();
        Objects {
            now: self.numbers.used() as usize + srqs,
            created: self.numbers.given() + self.srqs.created,
        }
    }

    /// Returns the queue pairs of this engine that are connected to one of `peers`.
    pub(crate) fn connected_to(&self, peers: &[Qpn]) -> Vec<Qpn> {
        let entries = self.qps.iter().flatten().filter(|entry| entry.qp.ty() != QpType::Ud);
        entries.filter(|entry| peers.contains(&entry.qp.dest_qpn())).map(|entry| entry.qp.qpn()).collect()
    }

    /// Makes the next queue pair get the lowest free index. The first index is random otherwise; a simulation
    /// needs the same numbers in each run, and small tables.
    pub(crate) fn number_qps_from_zero(&mut self) {
        self.numbers.ascend();
    }

    /// Adds a queue pair with the next number.
    ///
    /// # Errors
    /// `ENOMEM` if all numbers are in use; those of `build`.
    pub(crate) fn insert_qp(
        &mut self,
        now: Instant,
        build: impl FnOnce(Qpn) -> Result<QpEntry, VerbsError>,
    ) -> Result<(QpIndex, Qpn), VerbsError> {
        let Self { numbers, qps, .. } = self;
        let is_free = |index: QpIndex| qps.get(index as usize).is_none_or(Option::is_none);
        let (index, qpn) = numbers.draw(now, is_free).ok_or_else(|| {
            let used = numbers.used();
            refuse!(ENOMEM, "device", "queue pairs"; used;
                "no number is free for another queue pair: the engine has {used}")
        })?;
        self.observer.created(qpn);
        let at = index as usize;
        if qps.len() <= at {
            qps.resize_with(at + 1, || None);
        }
        match build(qpn) {
            Ok(entry) => qps[at] = Some(Box::new(entry)),
            Err(error) => {
                numbers.release();
                return Err(error);
            }
        }
        Ok((index, qpn))
    }

    /// Tells the reader of a capture about a queue pair that was used.
    #[cold]
    pub(super) fn tell_used(&mut self, now: Instant, index: QpIndex) {
        let Self { qps, observer, gids, .. } = self;
        if let Some(entry) = qps.get_mut(index as usize).and_then(Option::as_deref_mut) {
            observer.tell_used(now, entry, gids);
        }
    }

    /// Tells the reader of a capture which peer a queue pair has got, before its first packet.
    pub(crate) fn tell_peer(&mut self, now: Instant, index: QpIndex) {
        let Self { qps, observer, gids, .. } = self;
        if let Some(entry) = qps.get_mut(index as usize).and_then(Option::as_deref_mut) {
            observer.tell_peer(now, entry, gids);
        }
    }

    /// Removes a queue pair. Returns the flow that it used.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn) -> Option<FlowId> {
        let index = self.index_of(qpn)?;
        let flow = self.move_to_flow(index, None);
        self.queue.remove(index);
        if let Some(entry) = self.qps.get_mut(index as usize).and_then(Option::take) {
            self.numbers.release();
            self.retired.absorb(entry.qp.counters());
            entry.send_cq.purge(qpn.value());
            entry.recv_cq.purge(qpn.value());
        }
        self.mrs.unbind_qp(qpn);
        self.groups.remove_qp(index);
        self.timers.disarm(index);
        self.touched.retain(|i| *i != index);
        flow
    }

    /// Makes a queue pair send to `flow` from now on; its packets in flight count in the window of `flow`.
    /// Returns the flow that it used before.
    pub(super) fn move_to_flow(&mut self, index: QpIndex, flow: Option<FlowId>) -> Option<FlowId> {
        let entry = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut)?;
        let old = self.queue.move_to(&mut entry.share, flow);
        if old.is_some() {
            // The window of the new flow may have space.
            self.queue.list(index);
        }
        old
    }

    /// Replaces the GID table. Queue pairs keep the path MTU with which they were connected.
    pub(crate) fn set_gids(&mut self, gids: &Arc<GidTable>) {
        self.gids = Arc::clone(gids);
        self.queue.set_path_mtu(gids.active_mtu().bytes());
        self.reorder.set_path_mtu(gids.active_mtu());
    }

    /// Moves all queue pairs to ERR.
    pub(crate) fn fail_all(&mut self, now: Instant) {
        for index in 0..self.qps.len() as QpIndex {
            let Some(entry) = self.qp_mut(index).filter(|entry| entry.qp.state() != QpState::Reset) else {
                continue;
            };
            let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
            // Any state but RESET may go to ERR.
            let _done = entry.qp.modify(now, &error, QpAttrMask::STATE);
            self.update_after_input(now, index);
        }
    }

    /// Whether only a poll can send the packets of some queue pair on the ready list: the port accepts
    /// packets, and no ACK is expected that would wake the progress thread.
    pub(super) fn has_stranded_qp(&self) -> bool {
        let is_stranded =
            |index: QpIndex| self.qp(index).is_some_and(|entry| !entry.qp.backlog().is_ack_expected);
        !self.queue.is_port_full() && self.queue.ready().any(is_stranded)
    }

    /// Marks a queue pair as blocked by its flow.
    #[cfg(test)]
    pub(crate) fn block(&mut self, index: QpIndex) {
        let flow = self.qp(index).and_then(|entry| entry.share.flow());
        self.queue.block(index, flow);
    }

    /// Returns a queue pair that breaks the invariant of [`TransmitQueue`]: it has packets to send, and no
    /// event sends them. One that its flow blocks waits for an ACK, or for another one of the flow.
    pub(super) fn forgotten_qp(&self) -> Option<Qpn> {
        let is_forgotten = |(index, entry): &(QpIndex, &QpEntry)| {
            let is_ready = || self.queue.ready().any(|ready| ready == *index);
            let flow = entry.share.flow();
            let is_of_flow = |ready| self.qp(ready).is_some_and(|other| other.share.flow() == flow);
            let is_moving = || self.queue.is_in_flight(flow) || self.queue.ready().any(is_of_flow);
            let is_known = || is_ready() || (self.queue.is_blocked(*index) && is_moving());
            entry.qp.wants_transmit() && !is_known()
        };
        self.qps().find(is_forgotten).map(|(_, entry)| entry.qp.qpn())
    }

    /// Calls `handle_timeout` of each queue pair with a deadline that has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(index) = self.timers.expire(now) {
            let Some(entry) = self.qp_mut(index) else { continue };
            if entry.qp.poll_timeout().is_some_and(|due| due <= now) {
                entry.qp.handle_timeout(now);
                let is_silent = entry.qp.unanswered_probes() >= SILENT_PROBES;
                self.outbox.is_peer_silent |= is_silent;
            }
            self.update_after_input(now, index);
            if sys::trace::is_on() {
                self.qp(index).into_iter().for_each(|entry| trace::expired(now, &entry.qp));
            }
        }
    }

    pub(crate) fn next_gsi_psn(&mut self) -> Psn {
        self.gsi_psn = self.gsi_psn.advance(1);
        self.gsi_psn
    }
}
