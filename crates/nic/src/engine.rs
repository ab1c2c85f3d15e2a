//! The engine: one port, its QPs and their timers, behind one lock; whoever polls drives it.
//!
//! A thread that polls an empty CQ takes the lock if it is free and runs a batch inline ([`Engine::poll`]); the
//! background thread (`background.rs`) takes over when nobody has polled for a while. Invariant: completions,
//! events and datagrams for the connection manager are collected under the lock and delivered by the same call.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use transport::{
    AddressVector, AsyncEventKind, Instant, Qp, QpAttr, QpAttrMask, QpCounters, QpEvent, QpState, RecvQueue,
    VerbsError,
};
use wire::{DropReason, Gid, Psn, Qpn};

use crate::bag::Membership;
use crate::cm::CmDriver;
use crate::cq::CompletionQueue;
use crate::events::EventQueue;
use crate::gid::{GidTable, Gids};
use crate::gsi::Held;
use crate::mr::MrTable;
use crate::port::{FlowId, FlowKey, Port, RxQueue, RxQueues, RxTrain};
use crate::sys::{self, AddressMonitor, EventFd, now_ns};
use crate::timers::Timers;
use crate::verbs::{AsyncElement, AsyncEvent};

/// Most QPs of one engine: the low 16 bits of a QPN, less the reserved 0..15 in slot 0.
pub(crate) const QP_MAX: usize = 65_000;
/// Request bytes in flight towards one destination process. The peer's socket buffer is what overflows: an
/// unprivileged one holds about six 64 KiB trains (rmem_max 212992, doubled by the kernel).
pub(crate) const FLOW_WINDOW_BYTES: usize = 320 * 1024;
/// Packets one QP may send before the next one has its turn: two bursts.
pub(crate) const TX_QUOTA: usize = 124;
/// An inline poller looks at the GSI socket only this often; the background thread watches it otherwise.
const GSI_POLL_INTERVAL: u64 = 64;
/// Posted packets that are sent at once even while earlier ones are unacknowledged.
const DOORBELL_BATCH: usize = 64;

/// A QP with what the engine must know to serve it.
pub(crate) struct QpEntry {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    /// Index in the table of shared receive queues, and the name its owner gave it.
    pub(crate) srq: Option<(u32, u64)>,
    pub(crate) events: Arc<EventQueue<AsyncEvent>>,
    pub(crate) cookie: u64,
    /// Where an RC or UC QP sends; resolved when the address vector is set.
    pub(crate) flow: Option<FlowId>,
    pub(crate) in_flight: usize,
    pub(crate) ready: bool,
    pub(crate) touched: bool,
}

/// Packets in flight towards one destination and the QPs waiting for room there.
#[derive(Default)]
pub(crate) struct Flow {
    pub(crate) in_flight: usize,
    pub(crate) blocked: Vec<u16>,
}

/// A management datagram that arrived on QP1, with the packet it came in should it have to be handed over.
pub(crate) struct Mad {
    pub(crate) bytes: [u8; wire::mad::MAD_LEN],
    pub(crate) packet: OwnedPacket,
}

/// A packet kept beyond its train.
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
        RxTrain { src, src_port, dst, dst_port, tos, ttl, segment, ip_id: None, bytes, queue }
    }
}

/// Everything the engine's lock protects, except the port.
pub(crate) struct Tables {
    pub(crate) qps: Vec<Option<Box<QpEntry>>>,
    pub(crate) srqs: Vec<Option<RecvQueue>>,
    pub(crate) mrs: MrTable,
    pub(crate) flows: Vec<Flow>,
    pub(crate) ready: VecDeque<u16>,
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
    pub(crate) mtu_bytes: usize,
    next_qp: u16,
    gsi_psn: Psn,
}

/// What the lock protects.
pub(crate) struct Core {
    pub(crate) port: Box<dyn Port>,
    pub(crate) tables: Tables,
}

/// See the module documentation.
pub(crate) struct Engine {
    pub(crate) core: Mutex<Core>,
    pub(crate) cm: Arc<CmDriver>,
    pub(crate) bag: Membership,
    pub(crate) gids: Arc<Gids>,
    /// `None` in sandboxes that forbid netlink; the addresses then stay those of the start.
    pub(crate) monitor: Option<AddressMonitor>,
    /// See [`Port::prefers_equal_packets`].
    pub(crate) equal_packets: bool,
    /// Counts inline polls, so that the background thread can tell whether somebody drives.
    pub(crate) inline_polls: AtomicU64,
    pub(crate) held: Held,
    /// Armed CQs; see [`CompletionQueue`].
    pub(crate) armed_cqs: Arc<AtomicUsize>,
    /// The background thread leaves the sockets to inline pollers.
    pub(crate) watching: AtomicBool,
    /// When the sleeping background thread wakes by itself (nanoseconds).
    pub(crate) sleeps_until: AtomicU64,
    pub(crate) kick: EventFd,
    pub(crate) pd_ids: AtomicU32,
}

impl Engine {
    pub(crate) fn new(port: Box<dyn Port>, bag: Membership, gids: Arc<Gids>) -> std::io::Result<Arc<Self>> {
        let (slot, equal_packets) = (bag.slot(), port.prefers_equal_packets());
        // In this order, so that no change is missed; some time has gone since the device was opened.
        let monitor = AddressMonitor::new().ok();
        let table = gids.refresh().unwrap_or_else(|| gids.get());
        let tables = Tables {
            qps: Vec::new(),
            srqs: Vec::new(),
            mrs: MrTable::default(),
            flows: Vec::new(),
            ready: VecDeque::with_capacity(256),
            touched: Vec::with_capacity(256),
            timers: Timers::new(),
            gids: Arc::clone(&table),
            drops: [0; DropReason::COUNT],
            mads: Vec::new(),
            misrouted: Vec::new(),
            established: Vec::new(),
            retired: QpCounters::default(),
            slot,
            mtu_bytes: table.active_mtu().bytes(),
            next_qp: sys::random_u64() as u16,
            gsi_psn: Psn::default(),
        };
        Ok(Arc::new(Self {
            core: Mutex::new(Core { port, tables }),
            cm: Arc::new(CmDriver::new(slot, &table)),
            bag,
            gids,
            monitor,
            equal_packets,
            inline_polls: AtomicU64::new(0),
            held: Held::default(),
            armed_cqs: Arc::default(),
            watching: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(0),
            kick: EventFd::new()?,
            pd_ids: AtomicU32::new(1),
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One batch in the calling thread, unless another thread is at it.
    pub(crate) fn poll_inline(&self) {
        let polls = self.inline_polls.fetch_add(1, Ordering::Relaxed);
        let mut core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let gsi = polls.is_multiple_of(GSI_POLL_INTERVAL);
        core.poll(if gsi { RxQueues::ALL } else { RxQueues::SLOT });
        self.unlock_and_deliver(core);
    }

    /// One batch of everything, for the background thread; the number of trains received.
    pub(crate) fn poll_all(&self) -> usize {
        let mut core = self.lock();
        let trains = core.poll(RxQueues::ALL);
        self.unlock_and_deliver(core);
        self.offer_held();
        trains + self.cm.poll(now(), self)
    }

    /// Releases the lock, then hands on what must not be handled under it.
    fn unlock_and_deliver(&self, mut core: MutexGuard<'_, Core>) {
        let tables = &mut core.tables;
        if tables.mads.is_empty() && tables.misrouted.is_empty() && tables.established.is_empty() {
            return;
        }
        let mads = std::mem::take(&mut tables.mads);
        let misrouted = std::mem::take(&mut tables.misrouted);
        let established = std::mem::take(&mut tables.established);
        drop(core);
        for mad in mads {
            self.deliver_mad(mad);
        }
        for (slot, packet) in &misrouted {
            // A member that is gone or does not keep up loses the packet; the transport recovers.
            let _lost = self.bag.forward(*slot, &packet.train());
        }
        for qpn in established {
            self.cm.qp_established(qpn);
        }
        self.cm.poll(now(), self);
    }

    /// What the background thread sleeps on; the monitor of the netdev comes last.
    pub(crate) fn wait_fds(&self) -> Vec<RawFd> {
        let mut fds = self.lock().port.poll_fds();
        fds.push(self.bag.listener_fd());
        fds.push(self.kick.as_raw_fd());
        fds.push(self.monitor_fd());
        fds
    }

    /// Readable when [`follow_netdev`](Self::follow_netdev) has something to do; -1 where that cannot be known.
    pub(crate) fn monitor_fd(&self) -> RawFd {
        self.monitor.as_ref().map_or(-1, |monitor| monitor.as_fd().as_raw_fd())
    }

    /// Addresses have changed: from now on there are others to send from, and to be asked at.
    pub(crate) fn follow_netdev(&self) {
        if self.monitor.as_ref().is_some_and(AddressMonitor::take_news)
            && let Some(table) = self.gids.refresh()
        {
            self.cm.set_gids(&table);
            self.lock().tables.gids = table;
        }
    }

    /// Answers other processes of this host and takes the packets they hand over; how many records came.
    pub(crate) fn serve_members(&self) -> usize {
        let mut records = 0;
        self.bag.poll_listener(&mut |train| {
            records += 1;
            let mut core = self.lock();
            let now = now();
            core.tables.receive_train(now, train);
            core.tables.end_of_batch(now);
            core.transmit(now);
            self.unlock_and_deliver(core);
        });
        for farewell in self.bag.take_farewells() {
            self.cm.say_farewell(now(), farewell);
        }
        records
    }

    /// When the engine must run again even if nothing arrives.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let timer = self.lock().tables.timers.next();
        let deaths = self.bag.second_look_at().map(Instant);
        [timer, self.cm.poll_timeout(), self.held.next_offer(now()), deaths].into_iter().flatten().min()
    }

    /// Wakes the background thread if it would sleep past `deadline`.
    pub(crate) fn wake_before(&self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        if deadline.0 < self.sleeps_until.load(Ordering::Relaxed)
            && self.sleeps_until.swap(deadline.0, Ordering::Relaxed) > deadline.0
        {
            self.kick.signal(1);
        }
    }

    /// The caller stops driving: the background thread returns to the sockets at once.
    pub(crate) fn hand_over(&self) {
        if self.watching.load(Ordering::Relaxed) {
            self.kick.signal(1);
        }
    }

    /// Transmits what was posted to a QP: at once if nothing is unacknowledged or enough has gathered, else with
    /// the next poll or the acknowledgement that is under way.
    pub(crate) fn doorbell(&self, core: &mut Core, index: u16) {
        let now = now();
        let Some(entry) = core.tables.qp_mut(index) else { return };
        let eager = entry.qp.is_send_idle()
            || entry.qp.pending_packets() >= DOORBELL_BATCH
            || !matches!(entry.qp.ty(), transport::QpType::Rc);
        core.tables.settle(now, index);
        if eager {
            core.transmit(now);
        }
        let deadline = core.tables.timers.next();
        self.wake_before(deadline);
    }

    /// Sends one MAD from QP1.
    pub(crate) fn send_mad(&self, src: Gid, dst: Gid, mad: &[u8; wire::mad::MAD_LEN]) {
        let mut core = self.lock();
        core.send_mad(src, dst, mad);
    }

    /// Adds a QP and returns its index; the QPN is `slot << 16 | index`.
    pub(crate) fn insert_qp(
        &self,
        build: impl FnOnce(Qpn) -> Result<QpEntry, VerbsError>,
    ) -> Result<Qpn, VerbsError> {
        let mut core = self.lock();
        core.tables.insert_qp(build)
    }

    /// Destroys a QP; the peer gets the acknowledgement it is owed first.
    pub(crate) fn remove_qp(&self, qpn: Qpn) {
        let mut core = self.lock();
        core.release_ack(qpn.value() as u16);
        core.transmit(now());
        if let Some(flow) = core.tables.remove_qp(qpn) {
            core.port.close_flow(flow);
        }
    }

    /// The process is about to exit: peers get the acknowledgements they are owed.
    pub(crate) fn quiesce(&self) {
        let mut core = self.lock();
        for index in 0..core.tables.qps.len() {
            core.release_ack(index as u16);
        }
        core.transmit(now());
    }
}

/// The flow from `src` that an address vector and a destination QP mean.
pub(crate) fn flow_key(src: IpAddr, av: &AddressVector, dest_qp: Qpn) -> FlowKey {
    FlowKey {
        src,
        dst: av.dgid.ip(),
        dst_slot: (dest_qp.value() >> 16) as u8,
        tos: av.traffic_class,
        ttl: av.hop_limit.max(1),
    }
}

/// The engine's clock.
pub(crate) fn now() -> Instant {
    Instant(now_ns())
}

impl QpEntry {
    pub(crate) fn new(
        qp: Qp,
        cqs: (Arc<CompletionQueue>, Arc<CompletionQueue>),
        srq: Option<(u32, u64)>,
        events: Arc<EventQueue<AsyncEvent>>,
        cookie: u64,
    ) -> Self {
        let (send_cq, recv_cq) = cqs;
        Self {
            qp,
            send_cq,
            recv_cq,
            srq,
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

    fn insert_qp(
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
    fn remove_qp(&mut self, qpn: Qpn) -> Option<FlowId> {
        let index = qpn.value() as u16;
        let flow = self.move_to_flow(index, None);
        if let Some(entry) = self.qps.get_mut(usize::from(index)).and_then(Option::take) {
            self.retired.absorb(entry.qp.counters());
            entry.send_cq.purge(qpn.value());
            entry.recv_cq.purge(qpn.value());
        }
        self.timers.disarm(index);
        self.ready.retain(|i| *i != index);
        self.touched.retain(|i| *i != index);
        flow
    }

    /// The QP sends to `flow` from now on, and what it has in flight counts there. Returns the flow it held.
    fn move_to_flow(&mut self, index: u16, flow: Option<FlowId>) -> Option<FlowId> {
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
        let window = FLOW_WINDOW_BYTES / self.mtu_bytes;
        let used = flow.and_then(|f| self.flows.get(f.0 as usize)).map_or(0, |f| f.in_flight);
        window.saturating_sub(used)
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

    /// Delivers a QP's events, re-arms its timer and books its packets to its flow. True if it wants to transmit.
    pub(crate) fn book(&mut self, now: Instant, index: u16) -> bool {
        let Some(entry) = self.qps.get_mut(usize::from(index)).and_then(Option::as_deref_mut) else {
            return false;
        };
        while let Some(event) = entry.qp.poll_event() {
            let delivered = match event {
                QpEvent::SendWc(wc) => {
                    let failed = wc.status != transport::WcStatus::Success;
                    entry.send_cq.push(wc, failed).then_some(()).ok_or(&entry.send_cq)
                }
                QpEvent::RecvWc { wc, solicited } => {
                    entry.recv_cq.push(wc, solicited).then_some(()).ok_or(&entry.recv_cq)
                }
                QpEvent::Async(kind) => {
                    if kind == AsyncEventKind::CommEst {
                        self.established.push(entry.qp.qpn());
                    } else {
                        let element = match (kind, entry.srq) {
                            (AsyncEventKind::SrqLimitReached, Some((_, cookie))) => AsyncElement::Srq(cookie),
                            _ => AsyncElement::Qp(entry.cookie),
                        };
                        entry.events.push(AsyncEvent { kind, element });
                    }
                    Ok(())
                }
            };
            if let Err(cq) = delivered {
                let element = AsyncElement::Cq(cq.cookie());
                entry.events.push(AsyncEvent { kind: AsyncEventKind::CqErr, element });
                let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
                // Any state but RESET may go to ERR, and a QP in RESET completes nothing.
                let _done = entry.qp.modify(now, &error, QpAttrMask::STATE);
            }
        }
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
    fn expire(&mut self, now: Instant) {
        while let Some(index) = self.timers.expire(now) {
            let Some(entry) = self.qp_mut(index) else { continue };
            if entry.qp.poll_timeout().is_some_and(|due| due <= now) {
                entry.qp.handle_timeout(now);
            }
            self.settle(now, index);
        }
    }
}

impl Core {
    /// Receive, timers, transmit: one batch of each.
    fn poll(&mut self, queues: RxQueues) -> usize {
        let now = now();
        let trains = self.receive(now, queues);
        self.tables.expire(now);
        self.transmit(now);
        trains
    }

    /// Opens (or finds) the flow a QP's address vector means.
    pub(crate) fn bind_flow(&mut self, index: u16) -> Result<(), VerbsError> {
        let av = *self.tables.qp_mut(index).ok_or(VerbsError::Invalid)?.qp.av();
        let source = self.tables.source_ip(av.sgid_index);
        let entry = self.tables.qp_mut(index).ok_or(VerbsError::Invalid)?;
        let src = source.ok_or(VerbsError::Invalid)?;
        let key = flow_key(src, &av, entry.qp.dest_qpn());
        let flow = self.port.open_flow(&key).map_err(|_| VerbsError::Invalid)?;
        if self.tables.flows.len() <= flow.0 as usize {
            self.tables.flows.resize_with(flow.0 as usize + 1, Flow::default);
        }
        if let Some(old) = self.tables.move_to_flow(index, Some(flow)) {
            self.port.close_flow(old);
        }
        Ok(())
    }

    fn release_ack(&mut self, index: u16) {
        if let Some(entry) = self.tables.qp_mut(index) {
            entry.qp.release_ack();
            if entry.qp.wants_transmit() {
                self.tables.make_ready(index);
            }
        }
    }

    pub(crate) fn next_gsi_psn(&mut self) -> Psn {
        self.tables.gsi_psn = self.tables.gsi_psn.advance(1);
        self.tables.gsi_psn
    }
}
