//! Packets within a host: packets to another process of the same user go through a ring in shared memory
//! instead of the kernel.
//!
//! They are the same packets, in batches like those of a socket, and pass the same hooks and taps. Only
//! their ICRCs are not computed, because nothing can damage the packets in memory. If a hook or tap
//! reads received packets, the receiver fills in the ICRCs first. All other packets take the inner port,
//! among them those to a process with which there is no ring (yet, or any more). The registry knows
//! which process has the slot in the destination QPN; the kernel's routes say whether the address is one
//! of this host.
//!
//! A ring has one direction. It is offered when a queue pair is connected (`registry/rings.rs`). Packets
//! that were sent through the kernel before the ring was accepted are read before those in the ring, so
//! the switch does not reorder packets.

mod inbound;
mod outbound;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use wire::icrc::ICRC_LEN;

use crate::port::{
    Destination, FlowId, FlowKey, Headers, Port, PortCounters, PortProperties, PortReport, Readiness,
    RefusedKind, RxBatch, RxQueues, RxScope, TxRoom, TxState,
};
use crate::registry::{RingEvent, Rings, SLOTS};
use inbound::Inbound;
#[cfg(feature = "fuzz")]
pub use inbound::check as check_ring;
use outbound::Outbound;
use sys::byte_ring::{Broken, LINE};
use sys::{Cancellation, now_ns};

/// See the module documentation.
pub(crate) struct ShmPort {
    inner: Box<dyn Port>,
    rings: Rings,
    /// By number of the flow; the inner port has the same numbers.
    flows: Vec<ShmFlow>,
    /// By first slot of the destination process.
    outbound: Vec<Option<Box<Outbound>>>,
    inbound: Vec<Inbound>,
    /// A copy of a batch from a ring: the producer could change the original while it is read.
    buffer: Box<[u8]>,
    /// Rings that were accepted and are not open yet, by their tokens.
    accepted: Vec<u64>,
    /// Slots of rings with unpublished bytes.
    dirty: Vec<u16>,
    /// Slots of rings that are too full for more packets.
    crowded: Vec<u16>,
    /// Number of `recv` calls since a ring had a batch.
    idle_polls: u32,
    inner_poll: InnerPoll,
    counters: PortCounters,
    broken: u64,
}

/// State of a flow.
#[derive(Debug, Default)]
struct ShmFlow {
    holders: u32,
    /// `None` where the destination is no process of this host.
    route: Option<ShmRoute>,
}

/// The route of a flow to a process of this host.
#[derive(Debug)]
struct ShmRoute {
    /// The first slot of the destination process.
    slot: u16,
    /// Header of its batches, except for the lengths.
    header: BatchHeader,
}

/// When the inner port is polled.
#[derive(Debug)]
struct InnerPoll {
    /// Queues to read at its next poll.
    pending: RxQueues,
    /// Calls without a poll since the clock was last read.
    skipped: u32,
    /// Time of its last poll (nanoseconds).
    polled_at: u64,
    /// Calls that poll it each time, because it had packets.
    busy_polls: u32,
}

/// Header of a batch in a ring, little-endian:
///
/// ```text
/// 0   u32 bytes of the packets   4   u16 bytes of each but the last    6   u16 source port
/// 8   u16 destination port      10   u8 TOS, u8 TTL                   12   zeros
/// 16  source address            32   destination address               (IPv4 as IPv4-mapped)
/// ```
type BatchHeader = [u8; HEADER_LEN];
const HEADER_LEN: usize = 48;
/// Batches begin at multiples of this: a reader of one batch does not take a cache line from the writer
/// of the next.
const ALIGN: usize = LINE;
/// Most bytes of packets in a batch. The reader starts on one while the next is written, and both stay in
/// the caches next to their CPUs.
const BATCH_BYTES_MAX: usize = 16 * 1024;
/// Rings in each direction. Each is `RING_BYTES` of memory; further processes are reached through the
/// kernel.
const RINGS_MAX: usize = 64;
/// Full rings apply back-pressure, so this only limits how far many queue pairs queue up behind each
/// other: several windows of one.
const WINDOW_BYTES: usize = 4 << 20;
/// While rings are in use, the sockets are polled only after this time since their last poll: polling an
/// empty socket costs ten times as much as polling an empty ring.
const INNER_INTERVAL_NS: u64 = 20_000;
/// Calls between two readings of the clock for that.
const INNER_INTERVAL: u32 = 32;
/// Calls that poll the sockets each time, after they had packets.
const INNER_BUSY_POLLS: u32 = 64;
/// Rings count as in use for this many calls after they had a batch.
const IDLE_POLLS_MAX: u32 = 4096;
/// Batches of the sockets that are read before the first batch of a ring.
const SOCKET_BATCHES_MAX: usize = 64;

impl ShmPort {
    /// Adds rings to the port `inner`.
    pub(crate) fn new(inner: Box<dyn Port>, rings: Rings) -> ShmPort {
        ShmPort {
            inner,
            rings,
            flows: Vec::new(),
            outbound: (0..SLOTS).map(|_| None).collect(),
            inbound: Vec::new(),
            buffer: vec![0; BATCH_BYTES_MAX].into_boxed_slice(),
            accepted: Vec::new(),
            dirty: Vec::with_capacity(RINGS_MAX),
            crowded: Vec::with_capacity(RINGS_MAX),
            idle_polls: IDLE_POLLS_MAX,
            inner_poll: InnerPoll { pending: RxQueues::NONE, skipped: 0, polled_at: 0, busy_polls: 0 },
            counters: PortCounters::default(),
            broken: 0,
        }
    }

    /// Offers the process with `slot` a ring, unless it has been offered one.
    fn offer_ring(&mut self, slot: u16) {
        let there = self.outbound.iter().flatten().count();
        let Some(place) = self.outbound.get_mut(usize::from(slot)) else { return };
        // No process there, one of another user, or no memory: its packets go through the kernel.
        if place.is_none()
            && there < RINGS_MAX
            && let Ok((ring, link)) = self.rings.offer(slot)
        {
            *place = Some(Box::new(Outbound::new(ring, link)));
        }
    }

    /// Handles rings that were offered, were accepted, or have ended.
    fn follow_ring_events(&mut self) {
        let events = self.rings.take_events();
        let _cancellation = (!events.is_empty()).then(keep_while_closing);
        for event in events {
            match event {
                RingEvent::Offered { token, ring } => {
                    let link = self.rings.link(token);
                    if self.inbound.len() < RINGS_MAX {
                        self.inbound.push(Inbound::new(*ring, link));
                    }
                }
                RingEvent::Accepted { token } => self.accepted.push(token),
                RingEvent::Ended { token } => {
                    for place in &mut self.outbound {
                        place.take_if(|out| out.link.token() == token);
                    }
                    let found = self.inbound.iter_mut().find(|inbound| inbound.link.token() == token);
                    found.into_iter().for_each(|inbound| inbound.has_ended = true);
                }
            }
        }
        if !self.accepted.is_empty() {
            self.open_accepted();
        }
    }

    /// Opens the rings that were accepted, unless packets that were committed before still wait for a send
    /// buffer.
    #[cold]
    fn open_accepted(&mut self) {
        self.inner.flush();
        if !self.inner.has_unsent() {
            for token in self.accepted.drain(..) {
                let found = self.outbound.iter_mut().flatten().find(|out| out.link.token() == token);
                found.into_iter().for_each(|out| out.is_open = true);
            }
        }
    }

    /// Whether a ring had packets recently.
    #[inline]
    fn is_in_use(&self) -> bool {
        self.idle_polls < IDLE_POLLS_MAX && !self.inbound.is_empty()
    }

    /// Drops a ring after its consumer has written invalid values.
    #[cold]
    fn drop_broken(&mut self, slot: u16) {
        self.broken += 1;
        let _cancellation = keep_while_closing();
        if let Some(place) = self.outbound.get_mut(usize::from(slot)) {
            *place = None;
        }
    }

    fn publish(&mut self, slot: u16) -> usize {
        let Some(Some(out)) = self.outbound.get_mut(usize::from(slot)) else { return 0 };
        let packets = out.publish();
        self.counters.tx_packets += packets as u64;
        if out.is_crowded() && !self.crowded.contains(&slot) {
            self.crowded.push(slot);
        }
        packets
    }

    #[cold]
    fn rings_have_room(&mut self) -> bool {
        let Self { crowded, outbound, .. } = self;
        crowded.retain(|slot| {
            let out = outbound.get_mut(usize::from(*slot)).and_then(Option::as_deref_mut);
            out.is_some_and(Outbound::is_crowded)
        });
        crowded.is_empty()
    }

    /// Reads one round of every ring; returns the number of batches.
    fn receive_from_rings(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let Self { inbound, buffer, inner, counters, broken, .. } = self;
        let (mut batches, mut is_over) = (0, false);
        for ring in inbound.iter_mut() {
            if ring.is_unread && ring.has_data() {
                ring.is_unread = false;
                // Packets sent through the kernel before the ring was accepted.
                let read = (0..SOCKET_BATCHES_MAX)
                    .map(|_| inner.recv(RxScope { queues: RxQueues::SLOT, ..scope }, f));
                batches += read.take_while(|got| *got > 0).sum::<usize>();
            }
            let taken = ring.receive_round(buffer, scope.with_icrc, &mut |batch: &RxBatch<'_>| {
                counters.rx_packets += batch.bytes.len().div_ceil(batch.segment) as u64;
                counters.rx_bytes += batch.bytes.len() as u64;
                f(batch);
            });
            match taken {
                Ok(taken) => {
                    counters.rx_batches += taken as u64;
                    batches += taken;
                    is_over |= taken == 0 && ring.has_ended;
                }
                Err(Broken) => {
                    *broken += 1;
                    ring.has_ended = true;
                    ring.is_broken = true;
                    is_over = true;
                }
            }
        }
        if is_over {
            let _cancellation = keep_while_closing();
            inbound.retain_mut(|ring| !ring.is_broken && (!ring.has_ended || ring.has_data()));
        }
        batches
    }
}

/// Keeps the calling thread, which holds the lock of the engine, from being cancelled while a ring is
/// dropped: closing its connection is a cancellation point.
#[cold]
fn keep_while_closing() -> Cancellation {
    Cancellation::disable()
}

impl Port for ShmPort {
    fn open_flow(&mut self, key: &FlowKey, to: Destination) -> io::Result<FlowId> {
        let flow = self.inner.open_flow(key, to)?;
        let owner = if key.dst_slot < SLOTS && to == Destination::ThisHost {
            self.rings.owner(key.dst_slot)
        } else {
            None
        };
        let headers = owner.and_then(|_| self.inner.headers(flow));
        if self.flows.len() <= flow.0 as usize {
            self.flows.resize_with(flow.0 as usize + 1, ShmFlow::default);
        }
        let state = &mut self.flows[flow.0 as usize];
        state.holders += 1;
        // The address may have moved to or from this host since another queue pair opened the flow.
        state.route = owner.zip(headers).and_then(|(owner, headers)| ShmRoute::new(owner, key, &headers));
        if let Some(route) = &state.route {
            let slot = route.slot;
            self.offer_ring(slot);
        }
        Ok(flow)
    }

    fn close_flow(&mut self, flow: FlowId) {
        if let Some(state) = self.flows.get_mut(flow.0 as usize) {
            state.holders = state.holders.saturating_sub(1);
            if state.holders == 0 {
                // The number may be reused for another flow.
                state.route = None;
            }
        }
        self.inner.close_flow(flow);
    }

    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        self.inner.datagram_flow(key)
    }

    fn headers(&mut self, flow: FlowId) -> Option<Headers> {
        self.inner.headers(flow)
    }

    fn tx_slot(&mut self) -> &mut [u8] {
        self.inner.tx_slot()
    }

    fn identification(&mut self, flow: FlowId, len: usize) -> u16 {
        match open_route(&self.flows, &mut self.outbound, flow) {
            Some((_, out)) => out.identification(flow, len + ICRC_LEN),
            None => self.inner.identification(flow, len),
        }
    }

    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        let Some((route, out)) = open_route(&self.flows, &mut self.outbound, flow) else {
            return self.inner.tx_commit(flow, len);
        };
        let Some(packet) = self.inner.tx_slot().get_mut(..len + ICRC_LEN) else { return };
        let (slot, outcome) = (route.slot, out.commit(flow, &route.header, packet));
        if !self.dirty.contains(&slot) {
            self.dirty.push(slot);
        }
        match outcome {
            Ok(Some(packets)) => {
                self.counters.tx_bytes += (len + ICRC_LEN) as u64;
                self.counters.tx_packets += packets as u64;
            }
            Ok(None) => self.counters.tx_no_buffer += 1,
            Err(Broken) => self.drop_broken(slot),
        }
    }

    fn tx_state(&mut self, flow: Option<FlowId>) -> TxState {
        let inner = self.inner.tx_state(flow);
        let route = flow.and_then(|flow| self.flows.get(flow.0 as usize)?.route.as_ref());
        let out = route.and_then(|route| self.outbound.get(usize::from(route.slot))?.as_deref());
        let window_bytes = if out.is_some_and(|out| out.is_open) { WINDOW_BYTES } else { inner.window_bytes };
        let is_full = !self.crowded.is_empty() && !self.rings_have_room();
        TxState { room: if is_full { TxRoom::PortFull } else { inner.room }, window_bytes }
    }

    fn flush(&mut self) -> usize {
        let mut packets = 0;
        while let Some(slot) = self.dirty.pop() {
            packets += self.publish(slot);
        }
        packets + self.inner.flush()
    }

    fn has_unsent(&self) -> bool {
        self.inner.has_unsent()
    }

    fn recv(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        self.follow_ring_events();
        if scope.everything {
            (self.inner_poll.skipped, self.inner_poll.polled_at) = (INNER_INTERVAL, 0);
        }
        let mut batches = 0;
        if scope.queues.slot && !self.inbound.is_empty() {
            batches = self.receive_from_rings(scope, f);
            self.idle_polls = if batches > 0 { 0 } else { self.idle_polls.saturating_add(1) };
        }
        let in_use = self.is_in_use();
        let Some(due) = self.inner_poll.due(scope.queues, in_use) else { return batches };
        let received = self.inner.recv(RxScope { queues: due, ..scope }, f);
        if received > 0 {
            self.inner_poll.busy_polls = INNER_BUSY_POLLS;
        }
        batches + received
    }

    #[inline]
    fn is_quiet(&mut self) -> bool {
        let is_quiet = self.is_in_use()
            && !self.rings.has_events()
            && self.inner_poll.skips_poll()
            && !self.inbound.iter_mut().any(Inbound::has_data);
        self.idle_polls += u32::from(is_quiet);
        is_quiet
    }

    fn set_need_wakeup(&mut self, needed: bool) -> Readiness {
        if !needed {
            self.inbound.iter_mut().for_each(Inbound::withdraw_wakeup);
            return self.inner.set_need_wakeup(false);
        }
        self.follow_ring_events();
        if !self.inbound.iter_mut().all(Inbound::request_wakeup) {
            return Readiness::Pending;
        }
        self.inner.set_need_wakeup(true)
    }

    fn take_refused(&mut self, kind: RefusedKind, f: &mut dyn FnMut(IpAddr, &[u8])) {
        self.inner.take_refused(kind, f);
    }

    fn hear_groups(&mut self, hear: bool) -> io::Result<()> {
        self.inner.hear_groups(hear)
    }

    fn add_slot(&mut self, slot: u16, queue: OwnedFd) -> io::Result<()> {
        self.inner.add_slot(slot, queue)
    }

    fn properties(&self) -> PortProperties {
        PortProperties { tells_destinations_apart: true, ..self.inner.properties() }
    }

    fn report(&self) -> PortReport {
        let mut report = self.inner.report();
        report.counters = self.counters.plus(&report.counters);
        report.rows.extend([
            ("shm_rx_packets", self.counters.rx_packets),
            ("shm_tx_packets", self.counters.tx_packets),
            ("shm_tx_no_room", self.counters.tx_no_buffer),
            ("shm_rings_broken", self.broken),
        ]);
        let open = self.outbound.iter().flatten().filter(|out| out.is_open).count();
        match open {
            0 => {}
            1 => report.description.push_str(", shm to 1 process"),
            _ => report.description.push_str(&format!(", shm to {open} processes")),
        }
        report
    }
}

impl ShmRoute {
    fn new(slot: u16, key: &FlowKey, headers: &Headers) -> Option<ShmRoute> {
        let (src_port, dst_port) = headers.ports();
        let is_one_family = key.src.is_ipv4() == key.dst.is_ipv4();
        let header = outbound::header(headers.key(), src_port, dst_port);
        is_one_family.then_some(ShmRoute { slot, header })
    }
}

impl InnerPoll {
    /// Returns the queues to read from the inner port now; `None` if it is not to be polled. Unless rings
    /// are `in_use`, it always is.
    #[inline]
    fn due(&mut self, queues: RxQueues, in_use: bool) -> Option<RxQueues> {
        self.pending.gsi |= queues.gsi;
        self.pending.slot |= queues.slot;
        if in_use && (self.skips_poll() || (self.busy_polls == 0 && !self.interval_is_over())) {
            return None;
        }
        self.busy_polls = self.busy_polls.saturating_sub(1);
        Some(std::mem::replace(&mut self.pending, RxQueues::NONE))
    }

    /// Whether this call, one more while rings are in use, neither polls the inner port nor reads the
    /// clock.
    #[inline]
    fn skips_poll(&mut self) -> bool {
        self.skipped += 1;
        self.busy_polls == 0 && self.skipped < INNER_INTERVAL
    }

    #[cold]
    fn interval_is_over(&mut self) -> bool {
        self.skipped = 0;
        let now = now_ns();
        let interval_is_over = now - self.polled_at >= INNER_INTERVAL_NS;
        if interval_is_over {
            self.polled_at = now;
        }
        interval_is_over
    }
}

/// Returns the route of a flow and its ring, if the ring was accepted.
#[inline]
fn open_route<'a>(
    flows: &'a [ShmFlow],
    outbound: &'a mut [Option<Box<Outbound>>],
    flow: FlowId,
) -> Option<(&'a ShmRoute, &'a mut Outbound)> {
    let route = flows.get(flow.0 as usize)?.route.as_ref()?;
    let out = outbound.get_mut(usize::from(route.slot))?.as_deref_mut()?;
    out.is_open.then_some((route, out))
}

#[cfg(test)]
mod tests;
