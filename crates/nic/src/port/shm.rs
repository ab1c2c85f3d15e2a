//! Within a host: packets to another process of our user go through a ring in memory instead of the kernel.
//!
//! They are the same packets, in batches as a socket would hand them over, and pass the same hooks and taps. Only their ICRCs are not
//! made, because nothing on this way could damage what they cover; whoever else than the transport looks at what arrives finds them there.
//! Everything else, and all packets to a process with which there is no ring (yet, or any more), takes the port inside. Which process
//! has a destination QP is told by the slot in its number, and that the address is one of this host by the kernel's routes.
//!
//! A ring leads one way and is offered when a queue pair is connected (`registry/rings.rs`). What was sent through the kernel before it was
//! accepted is read before what is in it, so that the change is not seen as reordering.

mod inbound;
mod outbound;

use std::io;
use std::net::IpAddr;

use wire::icrc::ICRC_LEN;

use super::{
    FlowId, FlowKey, Headers, Port, PortCounters, PortProperties, PortReport, Readiness, RxBatch, RxQueues,
    RxScope, TxState,
};
use crate::registry::{RingEvent, Rings, SLOTS};
use inbound::Inbound;
use outbound::Outbound;
use sys::byte_ring::{Broken, LINE};
use sys::{Netlink, now_ns};

/// See the module documentation.
pub(crate) struct ShmPort {
    inner: Box<dyn Port>,
    rings: Rings,
    /// To ask whose address it is.
    netlink: Netlink,
    /// By number of the flow, which is that of the port inside.
    roads: Vec<Road>,
    /// By slot of the process they lead to.
    outbound: Vec<Option<Box<Outbound>>>,
    inbound: Vec<Inbound>,
    /// A batch, copied out of a ring: its writer may go on writing.
    buffer: Box<[u8]>,
    /// Slots whose ring holds what is not published.
    dirty: Vec<u8>,
    /// Slots whose ring is too full to be given more.
    crowded: Vec<u8>,
    /// Calls of `recv` since a ring brought something.
    lull: u32,
    sockets: Sockets,
    counters: PortCounters,
    broken: u64,
}

/// What is known of a flow.
#[derive(Debug, Default)]
struct Road {
    holders: u32,
    /// `None` where it leads out of the host, or to nobody's.
    way: Option<Way>,
}

/// A flow to a process of this host.
#[derive(Debug)]
struct Way {
    slot: u8,
    /// In front of its batches, but for their lengths.
    header: BatchHeader,
}

/// When the port inside is asked.
#[derive(Debug)]
struct Sockets {
    /// What is to be asked of it.
    owed: RxQueues,
    /// Calls for which it was not asked since the clock was looked at.
    skipped: u32,
    /// When it was asked last (nanoseconds).
    asked_at: u64,
    /// Calls for which it is asked each time, because it has brought something.
    watch: u32,
}

/// What is in front of a batch in a ring, little-endian:
///
/// ```text
/// 0   u32 bytes of the packets   4   u16 bytes of each but the last    6   u16 source port
/// 8   u16 destination port      10   u8 TOS, u8 TTL                   12   zeros
/// 16  source address            32   destination address               (IPv4 as IPv4-mapped)
/// ```
type BatchHeader = [u8; HEADER_LEN];
const HEADER_LEN: usize = 48;
/// Batches begin at multiples of this: who reads one does not take a line of the cache away from who writes the next.
const ALIGN: usize = LINE;
/// Most bytes of packets in a batch. The other side begins with one while the next is written, and both stay in the caches
/// next to their CPUs.
const BATCH_BYTES_MAX: usize = 16 * 1024;
/// Rings each way. Each is `RING_BYTES` of memory; processes beyond that are reached through the kernel.
const RINGS_MAX: usize = 64;
/// Rings push back, so this only keeps many queue pairs from queueing up behind each other: some windows of one.
const WINDOW_BYTES: usize = 4 << 20;
/// While rings are in use the sockets are asked when so many nanoseconds have passed since they were asked last, as an empty one
/// costs ten times what an empty ring does.
const INNER_INTERVAL_NS: u64 = 20_000;
/// Calls between two looks at the clock for that.
const INNER_INTERVAL: u32 = 32;
/// Calls after something came from a socket during which it is asked each time.
const INNER_WATCH: u32 = 64;
/// Rings count as in use for so many calls after they brought something.
const LULL_MAX: u32 = 4096;
/// Batches of the sockets that are read before the first batch of a ring.
const SOCKET_BATCHES_MAX: usize = 64;

impl ShmPort {
    /// # Errors
    /// What the kernel says about a netlink socket.
    pub(crate) fn new(inner: Box<dyn Port>, rings: Rings) -> io::Result<ShmPort> {
        Ok(ShmPort {
            inner,
            rings,
            netlink: Netlink::new()?,
            roads: Vec::new(),
            outbound: (0..SLOTS).map(|_| None).collect(),
            inbound: Vec::new(),
            buffer: vec![0; BATCH_BYTES_MAX].into_boxed_slice(),
            dirty: Vec::with_capacity(RINGS_MAX),
            crowded: Vec::with_capacity(RINGS_MAX),
            lull: LULL_MAX,
            sockets: Sockets { owed: RxQueues::NONE, skipped: 0, asked_at: 0, watch: 0 },
            counters: PortCounters::default(),
            broken: 0,
        })
    }

    /// Whether packets to this address stay on this host.
    fn is_here(&mut self, dst: IpAddr) -> bool {
        self.netlink.route(dst, None, 0).is_ok_and(|route| route.is_local)
    }

    /// Offers the process with `slot` a ring, unless that was done.
    fn meet(&mut self, slot: u8) {
        let there = self.outbound.iter().flatten().count();
        let Some(place) = self.outbound.get_mut(usize::from(slot)) else { return };
        // Nobody there, somebody else's, no memory: packets take the kernel's way, and fare as they fare there.
        if place.is_none()
            && there < RINGS_MAX
            && let Ok((ring, link)) = self.rings.offer(slot)
        {
            *place = Some(Box::new(Outbound::new(ring, link)));
        }
    }

    /// Rings that have come, were accepted, or have ended.
    fn follow_news(&mut self) {
        for event in self.rings.take_events() {
            match event {
                RingEvent::Offered { token, ring } => {
                    let link = self.rings.link(token);
                    if self.inbound.len() < RINGS_MAX {
                        self.inbound.push(Inbound::new(*ring, link));
                    }
                }
                RingEvent::Accepted { token } => {
                    // What waits here was committed before.
                    self.inner.flush();
                    let found = self.outbound.iter_mut().flatten().find(|out| out.link.token() == token);
                    found.into_iter().for_each(|out| out.is_open = true);
                }
                RingEvent::Ended { token } => {
                    for place in &mut self.outbound {
                        place.take_if(|out| out.link.token() == token);
                    }
                    let found = self.inbound.iter_mut().find(|inbound| inbound.link.token() == token);
                    found.into_iter().for_each(|inbound| inbound.has_ended = true);
                }
            }
        }
    }

    /// Whether rings have brought something lately.
    #[inline]
    fn is_in_use(&self) -> bool {
        self.lull < LULL_MAX && !self.inbound.is_empty()
    }

    /// The other side of a ring is not what it should be.
    #[cold]
    fn give_up(&mut self, slot: u8) {
        self.broken += 1;
        if let Some(place) = self.outbound.get_mut(usize::from(slot)) {
            *place = None;
        }
    }

    fn publish(&mut self, slot: u8) -> usize {
        let Some(Some(out)) = self.outbound.get_mut(usize::from(slot)) else { return 0 };
        let packets = out.publish();
        self.counters.tx_packets += packets as u64;
        if out.is_crowded() && !self.crowded.contains(&slot) {
            self.crowded.push(slot);
        }
        packets
    }

    #[cold]
    fn finds_room(&mut self) -> bool {
        let Self { crowded, outbound, .. } = self;
        crowded.retain(|slot| {
            let out = outbound.get_mut(usize::from(*slot)).and_then(Option::as_deref_mut);
            out.is_some_and(Outbound::is_crowded)
        });
        crowded.is_empty()
    }

    /// One turn of every ring; the number of batches.
    fn receive_from_rings(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let Self { inbound, buffer, inner, counters, broken, .. } = self;
        let (mut batches, mut is_over) = (0, false);
        for ring in inbound.iter_mut() {
            if ring.is_fresh && ring.has_something() {
                ring.is_fresh = false;
                // What was sent before through the kernel.
                let read = (0..SOCKET_BATCHES_MAX)
                    .map(|_| inner.recv(RxScope { queues: RxQueues::SLOT, ..scope }, f));
                batches += read.take_while(|got| *got > 0).sum::<usize>();
            }
            let taken = ring.turn(buffer, scope.with_icrc, &mut |batch: &RxBatch<'_>| {
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
            inbound.retain_mut(|ring| !ring.is_broken && (!ring.has_ended || ring.has_something()));
        }
        batches
    }
}

impl Port for ShmPort {
    fn open_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        let flow = self.inner.open_flow(key)?;
        let is_here = key.dst_slot < SLOTS && self.is_here(key.dst);
        let headers = if is_here { self.inner.headers(flow) } else { None };
        if self.roads.len() <= flow.0 as usize {
            self.roads.resize_with(flow.0 as usize + 1, Road::default);
        }
        let road = &mut self.roads[flow.0 as usize];
        road.holders += 1;
        // An address may have left this host since another queue pair opened the flow, or come to it.
        road.way = headers.and_then(|headers| Way::new(key, &headers));
        if road.way.is_some() {
            self.meet(key.dst_slot);
        }
        Ok(flow)
    }

    fn close_flow(&mut self, flow: FlowId) {
        if let Some(road) = self.roads.get_mut(flow.0 as usize) {
            road.holders = road.holders.saturating_sub(1);
            if road.holders == 0 {
                // The number may be given to another flow.
                road.way = None;
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
        match way(&self.roads, &mut self.outbound, flow) {
            Some((_, out)) => out.identification(flow, len + ICRC_LEN),
            None => self.inner.identification(flow, len),
        }
    }

    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        let Some((way, out)) = way(&self.roads, &mut self.outbound, flow) else {
            return self.inner.tx_commit(flow, len);
        };
        let Some(packet) = self.inner.tx_slot().get_mut(..len + ICRC_LEN) else { return };
        let (slot, outcome) = (way.slot, out.commit(flow, &way.header, packet));
        if !self.dirty.contains(&slot) {
            self.dirty.push(slot);
        }
        match outcome {
            Ok(Some(packets)) => {
                self.counters.tx_bytes += (len + ICRC_LEN) as u64;
                self.counters.tx_packets += packets as u64;
            }
            Ok(None) => self.counters.tx_no_buffer += 1,
            Err(Broken) => self.give_up(slot),
        }
    }

    fn tx_state(&mut self, flow: Option<FlowId>) -> TxState {
        let inner = self.inner.tx_state(flow);
        let way = flow.and_then(|flow| self.roads.get(flow.0 as usize)?.way.as_ref());
        let out = way.and_then(|way| self.outbound.get(usize::from(way.slot))?.as_deref());
        let window_bytes = if out.is_some_and(|out| out.is_open) { WINDOW_BYTES } else { inner.window_bytes };
        TxState { has_room: inner.has_room && (self.crowded.is_empty() || self.finds_room()), window_bytes }
    }

    fn flush(&mut self) -> usize {
        let mut packets = 0;
        while let Some(slot) = self.dirty.pop() {
            packets += self.publish(slot);
        }
        packets + self.inner.flush()
    }

    fn recv(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        self.follow_news();
        if scope.everything {
            (self.sockets.skipped, self.sockets.asked_at) = (INNER_INTERVAL, 0);
        }
        let mut batches = 0;
        if scope.queues.slot && !self.inbound.is_empty() {
            batches = self.receive_from_rings(scope, f);
            self.lull = if batches > 0 { 0 } else { self.lull.saturating_add(1) };
        }
        let in_use = self.is_in_use();
        let Some(due) = self.sockets.due(scope.queues, in_use) else { return batches };
        let came = self.inner.recv(RxScope { queues: due, ..scope }, f);
        if came > 0 {
            self.sockets.watch = INNER_WATCH;
        }
        batches + came
    }

    #[inline]
    fn is_quiet(&mut self) -> bool {
        let is_quiet = self.is_in_use()
            && !self.rings.has_events()
            && self.sockets.are_left_out()
            && !self.inbound.iter_mut().any(Inbound::has_something);
        self.lull += u32::from(is_quiet);
        is_quiet
    }

    fn set_need_wakeup(&mut self, needed: bool) -> Readiness {
        if !needed {
            self.inbound.iter_mut().for_each(Inbound::wakes);
            return self.inner.set_need_wakeup(false);
        }
        self.follow_news();
        if !self.inbound.iter_mut().all(Inbound::may_sleep) {
            return Readiness::Pending;
        }
        self.inner.set_need_wakeup(true)
    }

    fn hear_groups(&mut self, hear: bool) -> io::Result<()> {
        self.inner.hear_groups(hear)
    }

    fn properties(&self) -> PortProperties {
        self.inner.properties()
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

impl Way {
    fn new(key: &FlowKey, headers: &Headers) -> Option<Way> {
        let (src_port, dst_port) = headers.ports();
        let is_one_family = key.src.is_ipv4() == key.dst.is_ipv4();
        let header = outbound::header(headers.key(), src_port, dst_port);
        is_one_family.then_some(Way { slot: key.dst_slot, header })
    }
}

impl Sockets {
    /// What to ask now of the port inside; `None` if it is not its turn yet, which it always is unless rings are `in_use`.
    #[inline]
    fn due(&mut self, queues: RxQueues, in_use: bool) -> Option<RxQueues> {
        self.owed.gsi |= queues.gsi;
        self.owed.slot |= queues.slot;
        if in_use && (self.are_left_out() || (self.watch == 0 && !self.is_time())) {
            return None;
        }
        self.watch = self.watch.saturating_sub(1);
        Some(std::mem::replace(&mut self.owed, RxQueues::NONE))
    }

    /// Whether this call, one more while rings are in use, is none of those that look at the clock.
    #[inline]
    fn are_left_out(&mut self) -> bool {
        self.skipped += 1;
        self.watch == 0 && self.skipped < INNER_INTERVAL
    }

    #[cold]
    fn is_time(&mut self) -> bool {
        self.skipped = 0;
        let now = now_ns();
        let is_time = now - self.asked_at >= INNER_INTERVAL_NS;
        if is_time {
            self.asked_at = now;
        }
        is_time
    }
}

/// The way of a flow, if there is a ring along it.
#[inline]
fn way<'a>(
    roads: &'a [Road],
    outbound: &'a mut [Option<Box<Outbound>>],
    flow: FlowId,
) -> Option<(&'a Way, &'a mut Outbound)> {
    let way = roads.get(flow.0 as usize)?.way.as_ref()?;
    let out = outbound.get_mut(usize::from(way.slot))?.as_deref_mut()?;
    out.is_open.then_some((way, out))
}

#[cfg(test)]
mod tests;
