//! What the engine's lock protects besides the port: queue pairs, flows, timers, and what waits to be handed on.
//!
//! Invariant: a QP with something to send is in `ready`, or parked in the flow whose window holds it back.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use transport::{
    AsyncEventKind, Instant, Qp, QpAttr, QpAttrMask, QpCounters, QpEvent, QpState, QpType, ReorderBuffer,
    VerbsError,
};
use wire::{DropReason, Psn, Qpn};

use crate::cq::{Adding, CompletionQueue};
use crate::engine::timers::Timers;
use crate::events::EventQueue;
use crate::gid::GidTable;
use crate::keys::KeyTable;
use crate::multicast::Groups;
use crate::port::{FlowId, RxQueue, RxTrain, SOCKET_WINDOW_BYTES};
use crate::srqs::{SrqScope, Srqs};
use crate::verbs::{AsyncElement, AsyncEvent, Traffic};

/// Most QPs of one engine: the low 16 bits of a QPN, less the reserved 0..15 in slot 0.
pub(crate) const QP_MAX: usize = 65_000;
/// How often a port without room is looked at by a thread that sleeps: in that time a NIC at 10 Gbit/s sends 125 KB, less than
/// half of a send buffer.
const ROOM_INTERVAL_NS: u64 = 100_000;

/// A QP with what the engine must know to serve it.
pub(crate) struct QpEntry {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) srqs: SrqScope,
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    pub(crate) cookie: u64,
    /// Where an RC or UC QP sends; resolved when the address vector is set.
    pub(crate) flow: Option<FlowId>,
    pub(crate) in_flight: usize,
    pub(crate) ready: bool,
    pub(crate) touched: bool,
}

/// Packets in flight towards one destination and the QPs waiting for room there.
pub(crate) struct Flow {
    pub(crate) in_flight: usize,
    pub(crate) blocked: Vec<u16>,
    /// See [`Port::window_bytes`](crate::port::Port::window_bytes).
    pub(crate) window_bytes: usize,
}

impl Default for Flow {
    fn default() -> Self {
        Self { in_flight: 0, blocked: Vec::new(), window_bytes: SOCKET_WINDOW_BYTES }
    }
}

/// A management datagram that arrived on QP1, with the packet it came in should it have to be handed over.
pub(crate) struct Mad {
    pub(crate) bytes: [u8; wire::mad::MAD_LEN],
    pub(crate) packet: OwnedPacket,
}

/// A packet kept beyond its train.
#[derive(Debug)]
pub(crate) struct OwnedPacket {
    pub(crate) src: IpAddr,
    src_port: u16,
    pub(crate) dst: IpAddr,
    dst_port: u16,
    tos: u8,
    ttl: u8,
    /// Another process handed it to us: it is not handed on.
    pub(crate) forwarded: bool,
    bytes: Vec<u8>,
}

impl OwnedPacket {
    pub(crate) fn new(train: &RxTrain<'_>, bytes: &[u8]) -> Self {
        let RxTrain { src, src_port, dst, dst_port, tos, ttl, .. } = *train;
        let forwarded = train.queue == RxQueue::Forwarded;
        Self { src, src_port, dst, dst_port, tos, ttl, forwarded, bytes: bytes.to_vec() }
    }

    pub(crate) fn train(&self) -> RxTrain<'_> {
        let Self { src, src_port, dst, dst_port, tos, ttl, ref bytes, .. } = *self;
        let (segment, queue) = (bytes.len(), RxQueue::Forwarded);
        RxTrain { src, src_port, dst, dst_port, tos, ttl, segment, macs: None, ip_id: None, bytes, queue }
    }
}

/// Everything the engine's lock protects, except the port.
pub(crate) struct Tables {
    pub(crate) qps: Vec<Option<Box<QpEntry>>>,
    pub(crate) srqs: Srqs,
    pub(crate) reorder: ReorderBuffer,
    pub(crate) mrs: KeyTable,
    pub(crate) groups: Groups,
    pub(crate) flows: Vec<Flow>,
    pub(crate) ready: VecDeque<u16>,
    /// Set aside for a moment, and since when there are any; see `doorbell.rs`.
    pub(crate) gatherers: Vec<u16>,
    pub(crate) gathering_since: Option<Instant>,
    /// The port had no room for those that are ready.
    pub(crate) pushed_back: bool,
    /// How often that began.
    pub(crate) push_backs: u64,
    /// When packets left last.
    pub(crate) left_at: Instant,
    pub(crate) touched: Vec<u16>,
    pub(crate) timers: Timers,
    pub(crate) gids: Arc<GidTable>,
    pub(crate) drops: [u64; DropReason::COUNT],
    pub(crate) mads: Vec<Mad>,
    pub(crate) misrouted: Vec<(u8, OwnedPacket)>,
    pub(crate) established: Vec<Qpn>,
    /// Counters of QPs that are gone.
    pub(crate) retired: QpCounters,
    pub(crate) slot: u8,
    pub(crate) traffic: Traffic,
    pub(crate) mtu_bytes: usize,
    /// It was said that XRC queues of other processes are out of reach.
    pub(crate) told_of_foreign_queue: bool,
    next_qp: u16,
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
        Self {
            qp,
            send_cq,
            recv_cq,
            srqs,
            events,
            cookie,
            flow: None,
            in_flight: 0,
            ready: false,
            touched: false,
        }
    }
}

impl Tables {
    pub(crate) fn new(slot: u8, gids: &Arc<GidTable>) -> Tables {
        Tables {
            qps: Vec::new(),
            srqs: Srqs::default(),
            reorder: ReorderBuffer::new(gids.active_mtu()),
            mrs: KeyTable::default(),
            groups: Groups::default(),
            flows: Vec::new(),
            ready: VecDeque::with_capacity(256),
            gatherers: Vec::with_capacity(256),
            gathering_since: None,
            pushed_back: false,
            push_backs: 0,
            left_at: Instant::ZERO,
            touched: Vec::with_capacity(256),
            timers: Timers::new(),
            gids: Arc::clone(gids),
            drops: [0; DropReason::COUNT],
            mads: Vec::new(),
            misrouted: Vec::new(),
            established: Vec::new(),
            retired: QpCounters::default(),
            slot,
            traffic: Traffic::default(),
            mtu_bytes: gids.active_mtu().bytes(),
            told_of_foreign_queue: false,
            next_qp: sys::random_u64() as u16,
            gsi_psn: Psn::default(),
        }
    }

    #[inline]
    pub(crate) fn qp_mut(&mut self, index: u16) -> Option<&mut QpEntry> {
        self.qps.get_mut(usize::from(index))?.as_deref_mut()
    }

    /// The local address of a GID index.
    pub(crate) fn source_ip(&self, sgid_index: u8) -> Option<IpAddr> {
        self.gids.address(sgid_index)
    }

    /// The QP a number means, if it is ours and exists.
    #[inline]
    pub(crate) fn by_qpn(&mut self, qpn: Qpn) -> Option<&mut QpEntry> {
        if (qpn.value() >> 16) as u8 != self.slot {
            return None;
        }
        self.qp_mut(qpn.value() as u16)
    }

    /// The queue pairs here that are connected to one of these.
    pub(crate) fn connected_to(&self, peers: &[Qpn]) -> Vec<Qpn> {
        let entries = self.qps.iter().flatten().filter(|entry| entry.qp.ty() != QpType::Ud);
        entries.filter(|entry| peers.contains(&entry.qp.dest_qpn())).map(|entry| entry.qp.qpn()).collect()
    }

    /// When to look again whether the port has room, if somebody waits for it.
    pub(crate) fn retry_at(&self, now: Instant) -> Option<Instant> {
        self.pushed_back.then(|| now.plus_ns(ROOM_INTERVAL_NS))
    }

    pub(crate) fn insert_qp(
        &mut self,
        build: impl FnOnce(Qpn) -> Result<QpEntry, VerbsError>,
    ) -> Result<Qpn, VerbsError> {
        let first = if self.slot == 0 { 16 } else { 0 };
        for _ in 0..QP_MAX {
            let index = self.next_qp.max(first);
            self.next_qp = index.wrapping_add(1);
            let at = usize::from(index);
            if self.qps.len() <= at {
                self.qps.resize_with(at + 1, || None);
            }
            if self.qps[at].is_none() {
                let qpn = Qpn::new(u32::from(self.slot) << 16 | u32::from(index));
                self.qps[at] = Some(Box::new(build(qpn)?));
                return Ok(qpn);
            }
        }
        Err(VerbsError::NoMem)
    }

    /// Returns the flow the QP held.
    pub(crate) fn remove_qp(&mut self, qpn: Qpn) -> Option<FlowId> {
        let index = qpn.value() as u16;
        let flow = self.move_to_flow(index, None);
        if let Some(entry) = self.qps.get_mut(usize::from(index)).and_then(Option::take) {
            self.retired.absorb(entry.qp.counters());
            entry.send_cq.purge(qpn.value());
            entry.recv_cq.purge(qpn.value());
        }
        self.mrs.unbind_qp(qpn);
        self.groups.remove_qp(index);
        self.timers.disarm(index);
        self.ready.retain(|i| *i != index);
        self.touched.retain(|i| *i != index);
        flow
    }

    /// The QP sends to `flow` from now on, and what it has in flight counts there. Returns the flow it held.
    pub(crate) fn move_to_flow(&mut self, index: u16, flow: Option<FlowId>) -> Option<FlowId> {
        let entry = self.qp_mut(index)?;
        let (in_flight, old) = (entry.in_flight, std::mem::replace(&mut entry.flow, flow));
        if let Some(state) = old.and_then(|f| self.flows.get_mut(f.0 as usize)) {
            state.in_flight = state.in_flight.saturating_sub(in_flight);
            // It is looked at again, too: the new flow may have room.
            self.unblock(old);
        }
        if let Some(state) = flow.and_then(|f| self.flows.get_mut(f.0 as usize)) {
            state.in_flight += in_flight;
        }
        old
    }

    /// Packets that may still be sent towards a flow.
    #[inline]
    pub(crate) fn flow_budget(&self, flow: Option<FlowId>) -> usize {
        let state = flow.and_then(|f| self.flows.get(f.0 as usize));
        let (window, used) = state.map_or((SOCKET_WINDOW_BYTES, 0), |f| (f.window_bytes, f.in_flight));
        (window / self.mtu_bytes).saturating_sub(used)
    }

    /// Puts the QPs that waited for room in a flow back into the ready list.
    fn unblock(&mut self, flow: Option<FlowId>) {
        let Some(flow) = flow else { return };
        if self.flow_budget(Some(flow)) == 0 {
            return;
        }
        let Some(state) = self.flows.get_mut(flow.0 as usize) else { return };
        let mut blocked = std::mem::take(&mut state.blocked);
        for index in blocked.drain(..) {
            self.make_ready(index);
        }
        self.flows[flow.0 as usize].blocked = blocked;
    }

    pub(crate) fn make_ready(&mut self, index: u16) {
        if let Some(entry) = self.qp_mut(index)
            && !entry.ready
        {
            entry.ready = true;
            self.ready.push_back(index);
        }
    }

    /// After a QP was given input: [`Self::book`], and lists it for transmission.
    pub(crate) fn settle(&mut self, now: Instant, index: u16) {
        if self.book(now, index) {
            self.make_ready(index);
        }
    }

    /// Connected QPs whose own address is at an index that is `lost` complete what they have with errors; their owners
    /// learn that the device is gone.
    pub(crate) fn lose_addresses(&mut self, now: Instant, lost: impl Fn(u8) -> bool) {
        let mut told: Vec<Arc<EventQueue<AsyncEvent>>> = Vec::new();
        for index in 0..self.qps.len() {
            let Some(entry) = self.qp_mut(index as u16) else { continue };
            if entry.flow.is_none() || !lost(entry.qp.attr().av.sgid_index) {
                continue;
            }
            let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
            // Any state but RESET may go to ERR, and in RESET a QP has no flow.
            let _done = entry.qp.modify(now, &error, QpAttrMask::STATE);
            if !told.iter().any(|queue| Arc::ptr_eq(queue, &entry.events)) {
                told.push(Arc::clone(&entry.events));
            }
            self.settle(now, index as u16);
        }
        for queue in told {
            queue.push(AsyncEvent { kind: AsyncEventKind::DeviceFatal, element: AsyncElement::Port(1) });
        }
    }

    /// Delivers a QP's events, re-arms its timer and books its packets to its flow. True if it wants to transmit.
    pub(crate) fn book(&mut self, now: Instant, index: u16) -> bool {
        let Some(entry) = self.qps.get_mut(usize::from(index)).and_then(Option::as_deref_mut) else {
            return false;
        };
        let QpEntry { qp, send_cq, recv_cq, srqs, events, cookie, .. } = entry;
        let mut adding: Option<Adding<'_>> = None;
        while let Some(event) = qp.poll_event() {
            let (cq, wc, solicited) = match event {
                QpEvent::SendWc(wc) => (&**send_cq, wc, wc.status != transport::WcStatus::Success),
                QpEvent::RecvWc { srqn: None, wc, solicited } => (&**recv_cq, wc, solicited),
                QpEvent::RecvWc { srqn: Some(srqn), wc, solicited } => {
                    let xrc = self.srqs.by_number(srqn).and_then(|entry| entry.xrc.as_ref());
                    // A completion of an XRC queue that was destroyed meanwhile has nowhere to go.
                    let Some(xrc) = xrc else { continue };
                    (&*xrc.cq, wc, solicited)
                }
                QpEvent::Async(kind) => {
                    // Whoever is told of it finds the completions before it.
                    adding = None;
                    if kind == AsyncEventKind::CommEst {
                        self.established.push(qp.qpn());
                    }
                    let srq = srqs.own.and_then(|index| self.srqs.get(index));
                    let element = match (kind, srq) {
                        (AsyncEventKind::SrqLimitReached, Some(srq)) => AsyncElement::Srq(srq.cookie),
                        _ => AsyncElement::Qp(*cookie),
                    };
                    events.push(AsyncEvent { kind, element });
                    continue;
                }
                QpEvent::XrcLimitReached(srqn) => {
                    adding = None;
                    if let Some(srq) = self.srqs.by_number(srqn) {
                        let element = AsyncElement::Srq(srq.cookie);
                        events.push(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, element });
                    }
                    continue;
                }
            };
            // One lock at a time, and once for a run of completions.
            adding = adding.filter(|adding| adding.is_for(cq));
            if !adding.get_or_insert_with(|| cq.adding()).push(wc, solicited) {
                adding = None;
                let element = AsyncElement::Cq(cq.cookie());
                events.push(AsyncEvent { kind: AsyncEventKind::CqErr, element });
                let element = AsyncElement::Qp(*cookie);
                events.push(AsyncEvent { kind: AsyncEventKind::QpFatal, element });
                let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
                // Any state but RESET may go to ERR, and a QP in RESET completes nothing.
                let _done = qp.modify(now, &error, QpAttrMask::STATE);
            }
        }
        drop(adding);
        if let Some(at) = entry.qp.poll_timeout() {
            self.timers.arm(index, at);
        }
        let in_flight = entry.qp.packets_in_flight();
        let (was, flow) = (entry.in_flight, entry.flow);
        entry.in_flight = in_flight;
        let more = entry.qp.wants_transmit();
        if was != in_flight
            && let Some(state) = flow.and_then(|f| self.flows.get_mut(f.0 as usize))
        {
            state.in_flight = (state.in_flight + in_flight).saturating_sub(was);
            if in_flight < was && !state.blocked.is_empty() {
                self.unblock(flow);
            }
        }
        more
    }

    /// Parks a QP until acknowledgements make room in its flow.
    pub(crate) fn block(&mut self, index: u16, flow: Option<FlowId>) {
        if let Some(state) = flow.and_then(|f| self.flows.get_mut(f.0 as usize))
            && !state.blocked.contains(&index)
        {
            state.blocked.push(index);
        }
    }

    /// Runs the timers that are due.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(index) = self.timers.expire(now) {
            let Some(entry) = self.qp_mut(index) else { continue };
            if entry.qp.poll_timeout().is_some_and(|due| due <= now) {
                entry.qp.handle_timeout(now);
            }
            self.settle(now, index);
        }
    }

    pub(crate) fn next_gsi_psn(&mut self) -> Psn {
        self.gsi_psn = self.gsi_psn.advance(1);
        self.gsi_psn
    }
}
