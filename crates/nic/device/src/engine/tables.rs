//! The state that the engine's lock protects besides the port and the hooks: queue pairs, their timers and
//! transmit queue, keys, and packets and events that wait for delivery.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use transport::chaos::Chaos;
use transport::numbering::SLOT_QPNS;
use transport::{
    AsyncEventKind, Instant, Qp, QpAttr, QpAttrMask, QpCounters, QpEvent, QpState, QpType, ReorderBuffer,
    SendWr, VerbsError, WcStatus,
};
use wire::{DropReason, Psn, Qpn};

use super::identification::Identifications;
use super::inbox::Inbox;
use super::qp_numbers::{ENGINE_SLOTS_MAX, QpIndex, QpNumbers};
use super::refused::RefusedPackets;
use super::timers::Timers;
use crate::chaos::EngineChaos;
use crate::chaos::late_writes::{LateWrites, Which};
use crate::comp_counter::AttachedCounters;
use crate::cq::{Adding, CompletionQueue};
use crate::engine::owners::Objects;
use crate::events::EventQueue;
use crate::gid::GidTable;
use crate::keys::KeyTable;
use crate::multicast::Groups;
use crate::port::FlowId;
use crate::recording::Recording;
use crate::sched::{FlowShare, TransmitQueue};
use crate::srqs::{SrqScope, Srqs};
use crate::status::QpStatus;
use crate::trace;
use crate::verbs::{AsyncElement, AsyncEvent, Traffic};

/// Most queue pairs of one engine: the QPNs of its slots, less the reserved 0..15 in slot 0.
pub(crate) const QP_MAX: usize = ENGINE_SLOTS_MAX * SLOT_QPNS as usize - 16;

/// Probes of a queue pair without an ACK, after which the engine looks for ICMP messages. Half: more looks
/// because of single losses. Double: a look up to 20 ms later.
const SILENT_PROBES: u8 = 3;

/// A queue pair with what the engine needs to serve it.
pub(crate) struct QpEntry {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) srqs: SrqScope,
    /// Present while a completion counter is attached.
    pub(crate) counters: Option<Box<AttachedCounters>>,
    events: Arc<EventQueue<AsyncEvent>>,
    /// The application's name for the queue pair in asynchronous events.
    cookie: u64,
    /// The flow that a connected queue pair sends to, from the address vector, and its packets in flight.
    pub(super) share: FlowShare,
    /// The queue pair received packets in this batch.
    pub(super) touched: bool,
}

/// Everything that the engine's lock protects, except the port and the hooks.
pub(crate) struct Tables {
    pub(super) qps: Vec<Option<Box<QpEntry>>>,
    pub(super) queue: TransmitQueue,
    pub(super) timers: Timers,
    pub(super) inbox: Inbox,
    pub(super) identifications: Identifications,
    pub(crate) srqs: Srqs,
    pub(super) reorder: ReorderBuffer,
    pub(crate) mrs: KeyTable,
    pub(crate) groups: Groups,
    pub(crate) gids: Arc<GidTable>,
    pub(crate) traffic: Traffic,
    /// Queue pairs that received packets in this batch.
    pub(super) touched: Vec<QpIndex>,
    /// A peer has left probes unanswered: its host may have refused them.
    pub(super) is_peer_silent: bool,
    /// Present under `--chaos`.
    pub(super) chaos: Option<Box<EngineChaos>>,
    /// Present under `roxie run --capture`.
    pub(crate) recording: Option<Recording>,
    drops: [u64; DropReason::COUNT],
    /// Counters of destroyed queue pairs.
    retired: QpCounters,
    /// The first slot.
    slot: u16,
    numbers: QpNumbers,
    gsi_psn: Psn,
}

impl QpEntry {
    pub(crate) fn new(
        qp: Qp,
        cqs: (Arc<CompletionQueue>, Arc<CompletionQueue>),
        srqs: SrqScope,
        events: Arc<EventQueue<AsyncEvent>>,
        cookie: u64,
    ) -> Self {
        let (send_cq, recv_cq) = cqs;
        let (share, touched, counters) = (FlowShare::default(), false, None);
        Self { qp, send_cq, recv_cq, srqs, counters, events, cookie, share, touched }
    }
}

impl Tables {
    pub(crate) fn new(slot: u16, gids: &Arc<GidTable>) -> Tables {
        let mtu = gids.active_mtu();
        Tables {
            qps: Vec::new(),
            queue: TransmitQueue::new(mtu.bytes()),
            timers: Timers::new(),
            inbox: Inbox::default(),
            identifications: Identifications::default(),
            srqs: Srqs::default(),
            reorder: ReorderBuffer::new(mtu),
            mrs: KeyTable::default(),
            groups: Groups::default(),
            gids: Arc::clone(gids),
            traffic: Traffic::default(),
            touched: Vec::with_capacity(256),
            is_peer_silent: false,
            chaos: None,
            recording: None,
            drops: [0; DropReason::COUNT],
            retired: QpCounters::default(),
            slot,
            numbers: QpNumbers::random(slot),
            gsi_psn: Psn::default(),
        }
    }

    /// From now on the queue pairs of this engine have the faults of `chaos`.
    pub(crate) fn set_chaos(&mut self, chaos: &Arc<Chaos>) {
        self.chaos = Some(EngineChaos::new(chaos));
        self.mrs.late = Some(LateWrites::new(chaos));
    }

    /// The first slot of this engine: bits 23..12 of its QPNs.
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// The queue pairs, each with its index.
    pub(crate) fn qps(&self) -> impl Iterator<Item = (QpIndex, &QpEntry)> {
        self.qps.iter().enumerate().filter_map(|(i, entry)| Some((i as QpIndex, entry.as_deref()?)))
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
        self.inbox.clear();
    }

    /// Posts a work request to a queue pair.
    #[inline]
    pub(crate) fn post_send(&mut self, index: QpIndex, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let Self { qps, mrs, .. } = self;
        let entry = qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        entry.ok_or(VerbsError::Invalid)?.qp.post_send(wr, mrs)
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
    /// `NoMem` if all numbers are in use; those of `build`.
    pub(crate) fn insert_qp(
        &mut self,
        now: Instant,
        build: impl FnOnce(Qpn) -> Result<QpEntry, VerbsError>,
    ) -> Result<(QpIndex, Qpn), VerbsError> {
        let Self { numbers, qps, .. } = self;
        let is_free = |index: QpIndex| qps.get(index as usize).is_none_or(Option::is_none);
        let (index, qpn) = numbers.draw(now, is_free).ok_or(VerbsError::NoMem)?;
        if let Some(chaos) = &self.chaos {
            chaos.chaos.created(qpn.value());
        }
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
    pub(super) fn tell_recording(&mut self, now: Instant, index: QpIndex) {
        let entry = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        let (Some(recording), Some(entry)) = (&mut self.recording, entry) else { return };
        if entry.qp.ty() != QpType::Gsi && entry.qp.counters().rows().any(|row| row.1 > 0) {
            recording.tell_queue_pair(&QpStatus::of(entry, &self.gids, now));
        }
    }

    /// Tells the reader of a capture which peer a queue pair has got, before its first packet.
    pub(crate) fn tell_peer(&mut self, now: Instant, index: QpIndex) {
        let entry = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut);
        let (Some(recording), Some(entry)) = (&mut self.recording, entry) else { return };
        recording.tell_peer(&QpStatus::of(entry, &self.gids, now));
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

    /// Follows an input to a queue pair (packets, a timeout, a state change). Calls
    /// [`drain_events`](Self::drain_events), and lists the queue pair if it has packets to send.
    pub(crate) fn update_after_input(&mut self, now: Instant, index: QpIndex) {
        if self.drain_events(now, index) {
            self.queue.list(index);
        }
    }

    /// Moves connected queue pairs whose own address is at a `lost` GID index to ERR, and raises
    /// DEVICE_FATAL for their contexts.
    pub(crate) fn lose_addresses(&mut self, now: Instant, lost: impl Fn(u8) -> bool) {
        let mut notified: Vec<Arc<EventQueue<AsyncEvent>>> = Vec::new();
        for index in 0..self.qps.len() {
            let Some(entry) = self.qp_mut(index as QpIndex) else { continue };
            if entry.share.flow().is_none() || !lost(entry.qp.attr().av.sgid_index) {
                continue;
            }
            let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
            // Any state but RESET may go to ERR, and in RESET a QP has no flow.
            let _done = entry.qp.modify(now, &error, QpAttrMask::STATE);
            if !notified.iter().any(|queue| Arc::ptr_eq(queue, &entry.events)) {
                notified.push(Arc::clone(&entry.events));
            }
            self.update_after_input(now, index as QpIndex);
        }
        for queue in notified {
            queue.push(AsyncEvent { kind: AsyncEventKind::DeviceFatal, element: AsyncElement::Port(1) });
        }
    }

    /// Delivers the queue pair's completions and events, arms its timer and updates its flow. True if it
    /// has packets to send.
    pub(super) fn drain_events(&mut self, now: Instant, index: QpIndex) -> bool {
        let Some(entry) = self.qps.get_mut(index as usize).and_then(Option::as_deref_mut) else {
            return false;
        };
        if self.chaos.is_some() && entry.qp.has_event() {
            // A completion counter counts WRITEs of the peer.
            self.mrs.place(if entry.counters.is_some() { Which::All } else { Which::Local });
        }
        // Takes the lock of one CQ at a time, once for consecutive completions.
        let mut adding: Option<Adding<'_>> = None;
        while let Some(event) = entry.qp.poll_event() {
            if let Some(recording) = &mut self.recording {
                recording.look(&event);
            }
            if self.chaos.is_some() && matches!(event, QpEvent::RecvWc { .. }) {
                self.mrs.place(Which::All);
            }
            let (cq, wc, solicited) = match event {
                QpEvent::SendWc(wc) => (&*entry.send_cq, wc, wc.status != WcStatus::Success),
                QpEvent::RecvWc { srqn: None, wc, solicited } => (&*entry.recv_cq, wc, solicited),
                QpEvent::RecvWc { srqn: Some(srqn), wc, solicited } => {
                    let xrc = self.srqs.by_number(self.slot, srqn).and_then(|srq| srq.xrc.as_ref());
                    // The XRC shared receive queue was destroyed meanwhile, and its CQ with it.
                    let Some(xrc) = xrc else { continue };
                    (&*xrc.cq, wc, solicited)
                }
                QpEvent::Async(kind) => {
                    // Releases the CQ's lock first: an application that gets the event must find all
                    // completions that precede it.
                    adding = None;
                    if kind == AsyncEventKind::CommEst {
                        self.inbox.established.push(entry.qp.qpn());
                    }
                    let srq = entry.srqs.own.and_then(|index| self.srqs.get(index));
                    let element = match (kind, srq) {
                        (AsyncEventKind::SrqLimitReached, Some(srq)) => AsyncElement::Srq(srq.cookie),
                        _ => AsyncElement::Qp(entry.cookie),
                    };
                    entry.events.push(AsyncEvent { kind, element });
                    continue;
                }
                QpEvent::XrcLimitReached(srqn) => {
                    adding = None;
                    if let Some(srq) = self.srqs.by_number(self.slot, srqn) {
                        let element = AsyncElement::Srq(srq.cookie);
                        entry.events.push(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, element });
                    }
                    continue;
                }
            };
            adding = adding.filter(|adding| adding.is_for(cq));
            if !adding.get_or_insert_with(|| cq.adding(now)).push(wc, solicited) {
                adding = None;
                let (cq_error, qp_fatal) = (AsyncElement::Cq(cq.cookie()), AsyncElement::Qp(entry.cookie));
                entry.events.push(AsyncEvent { kind: AsyncEventKind::CqErr, element: cq_error });
                entry.events.push(AsyncEvent { kind: AsyncEventKind::QpFatal, element: qp_fatal });
                let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
                // Any state but RESET may go to ERR, and a queue pair in RESET completes nothing.
                let _done = entry.qp.modify(now, &error, QpAttrMask::STATE);
            }
        }
        drop(adding);
        if let Some(counters) = &entry.counters {
            counters.update(&mut entry.qp);
        }
        if let Some(at) = entry.qp.poll_timeout() {
            self.timers.arm(index, at);
        }
        self.queue.set_in_flight(&mut entry.share, entry.qp.packets_in_flight());
        entry.qp.wants_transmit()
    }

    /// Whether only a poll can send the packets of some queue pair on the ready list: the port accepts
    /// packets, and no ACK is expected that would wake the progress thread.
    pub(super) fn has_stranded_qp(&self, now: Instant) -> bool {
        let is_stranded =
            |index: QpIndex| self.qp(index).is_some_and(|entry| !entry.qp.backlog().is_ack_expected);
        self.queue.retry_at(now, 0).is_none() && self.queue.ready().any(is_stranded)
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

    /// Returns the addresses, ours and the peer's, of the queue pairs that have one of `refused` in flight.
    pub(super) fn senders_of(&self, refused: &RefusedPackets) -> BTreeSet<(IpAddr, IpAddr)> {
        let is_sender = |qp: &Qp| {
            let dst = qp.av().dgid.ip();
            refused.psns(dst, qp.dest_qpn()).iter().any(|psn| qp.is_in_flight(*psn)).then_some(dst)
        };
        let senders = self.qps().filter_map(|(_, entry)| Some((&entry.qp, is_sender(&entry.qp)?)));
        senders.filter_map(|(qp, dst)| Some((self.source_ip(qp.av().sgid_index)?, dst))).collect()
    }

    /// Calls `handle_timeout` of each queue pair with a deadline that has passed.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(index) = self.timers.expire(now) {
            let Some(entry) = self.qp_mut(index) else { continue };
            if entry.qp.poll_timeout().is_some_and(|due| due <= now) {
                entry.qp.handle_timeout(now);
                let is_silent = entry.qp.unanswered_probes() >= SILENT_PROBES;
                self.is_peer_silent |= is_silent;
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
