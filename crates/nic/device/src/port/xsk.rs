//! The AF_XDP port: packets between the driver and memory of this process, past the network stack.
//!
//! A program on the interface steers RoCE packets for this process's QPN slot to its AF_XDP sockets, one
//! per receive queue; all other packets go on to the network stack. The inner [`UdpPort`] handles QP 1
//! and connection management, traffic with other processes on this host, and every neighbour that the
//! kernel has not resolved yet. Routes, neighbours and the interface are the kernel's, and changes to
//! them are followed (`paths.rs`).
//!
//! Start with `transmit.rs` and `receive.rs`; `sockets.rs` has the memory.

mod bursts;
mod error;
mod open;
mod owner;
mod paths;
mod program;
mod queue;
mod receive;
mod segment;
mod sockets;
mod transmit;

pub use bursts::BurstPath;
pub use error::{XskError, XskStep};
pub use open::XskPortConfig;
pub(crate) use open::preferred_mode;
pub use sockets::Teardown;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use wire::IcrcHeader;

use super::flow_table::FlowTable;
use super::headers::Headers;
use super::{
    Destination, FlowId, FlowKey, GSI_FLOW_SLOT, Port, PortCounters, PortProperties, PortReport, RefusedKind,
    RxBatch, RxQueues, RxScope, TxRoom, TxState, UdpPort,
};
use crate::notice::notice;
use crate::page_pool::Audit;
use crate::xdp::Steering;
use bursts::Bursts;
use owner::Owner;
use paths::{HopId, Paths};
use program::ProgramWatch;
use segment::Segments;
use sockets::Sockets;
use sys::xdp::Chunk;
use sys::{Epoll, now_ns};

/// See the module documentation.
#[derive(Debug)]
pub struct XskPort {
    inner: UdpPort,
    /// This process's slots, which the program steers to the sockets.
    slots: Vec<u16>,
    udp_port: u16,
    hasher: RandomState,
    /// This process's claim to the interface, released after the program was detached.
    owner: Owner,
    steering: Option<Steering>,
    program: ProgramWatch,
    sockets: Sockets,
    paths: Paths,
    /// The addresses origin packets are steered to the sockets.
    addresses: Vec<IpAddr>,
    flows: Vec<Flow>,
    table: FlowTable,
    /// The flow that was looked up last in the UDP port, and its number there. No later look-up has replaced
    /// that flow by another one.
    last_inner: Option<(FlowId, FlowId)>,
    staging: Staging,
    /// Packets pushed since the last flush.
    pushed: usize,
    /// Bursts leave through the UDP port.
    bursts_by_udp: bool,
    /// Number of flushes.
    round: u64,
    segments: Segments,
    /// A packet of several pieces, joined; the longest are the GRO batches of generic mode.
    joined: Vec<u8>,
    /// Number of `recv` calls; some sources are read only every so many calls.
    calls: u32,
    /// Calls that read the slot's UDP socket each time, because it had packets.
    inner_busy_polls: u32,
    routes_changed: bool,
    /// Times of the last route look-up and of the last confirmation of stale neighbours.
    refreshed_ns: u64,
    confirmed_ns: u64,
    epoll: Epoll,
    counters: PortCounters,
    extra: Extra,
    /// Fork generation of the process that opened the port.
    generation: u32,
}

/// A destination.
#[derive(Debug)]
struct Flow {
    key: FlowKey,
    hop: Option<HopId>,
    headers: Headers,
    icrc: IcrcHeader,
    queue: usize,
    /// Packets leave through the AF_XDP socket of `queue`: the neighbour is resolved.
    is_direct: bool,
    /// A packet was sent since the last confirmation of neighbours.
    is_used: bool,
    bursts: Bursts,
}

/// Where the next packet, handed out by [`Port::tx_slot`], is written.
#[derive(Debug)]
struct Staging {
    chunk: Option<Chunk>,
    /// Used when there is no free chunk.
    scratch: Box<[u8]>,
    place: Place,
    /// The last packet went through the UDP port, and the next one probably will.
    prefers_inner: bool,
    /// There was no free chunk even after waiting.
    is_dry: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Chunk,
    Inner,
    Scratch,
}

/// Counters that the UDP port does not have.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    /// Packets sent through the UDP port because the flow is not direct.
    tx_inner: u64,
    /// Packets of a direct flow that were sent through the UDP port: bursts, and packets longer than a chunk.
    tx_bursts: u64,
    /// Packets lost because there was no free chunk.
    tx_no_chunk: u64,
    /// Packets lost because the transmit ring was full.
    tx_ring_full: u64,
    /// Packets received in several pieces.
    rx_joined: u64,
    /// Frames that contained several packets.
    rx_unjoined: u64,
    /// Flows that changed between AF_XDP and UDP.
    redirected: u64,
    /// Further slots that receive over UDP.
    slots_over_udp: u64,
}

/// Calls of `recv` between two checks for changes of routes, neighbours and the interface.
const CHECK_INTERVAL: u32 = 256;
/// Calls of `recv` between two reads of the slot's UDP socket while it is empty.
const INNER_INTERVAL: u32 = 32;
/// Calls of `recv` that read the slot's UDP socket each time, after it had packets.
const INNER_BUSY_POLLS: u32 = 4096;
/// Shortest time between two look-ups of all routes, however often they change.
const REFRESH_NS: u64 = 100_000_000;
/// Time between two confirmations of stale neighbours in use; the kernel itself confirms within 30 s.
const CONFIRM_NS: u64 = 10_000_000_000;

impl Port for XskPort {
    fn open_flow(&mut self, key: &FlowKey, to: Destination) -> io::Result<FlowId> {
        let id = self.datagram_flow(key)?;
        // The inner port holds it too: it detects invalid addresses, and opens its sockets now.
        self.last_inner = None;
        self.inner.open_flow(key, to)?;
        self.table.hold(id.0);
        Ok(id)
    }

    fn close_flow(&mut self, flow: FlowId) {
        self.table.release(flow.0);
        self.last_inner = None;
        if let Some(flow) = self.flows.get(flow.0 as usize)
            && let Ok(inner) = self.inner.datagram_flow(&flow.key)
        {
            self.inner.close_flow(inner);
        }
    }

    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        match self.table.find(key) {
            Some(index) => Ok(FlowId(index)),
            None => self.add_flow(key),
        }
    }

    fn headers(&mut self, flow: FlowId) -> Option<Headers> {
        if self.takes_ring(flow) {
            return self.flows.get(flow.0 as usize).map(|flow| flow.headers);
        }
        let inner = self.inner_flow(flow).ok()?;
        self.inner.headers(inner)
    }

    fn tx_slot(&mut self) -> &mut [u8] {
        self.next_slot()
    }

    fn identification(&mut self, flow: FlowId, len: usize) -> u16 {
        if self.takes_ring(flow) {
            return 0;
        }
        self.inner_flow(flow).map_or(0, |flow| self.inner.identification(flow, len))
    }

    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        self.commit(flow, len);
    }

    fn tx_state(&mut self, flow: Option<FlowId>) -> TxState {
        let inner = self.inner.tx_state(flow);
        let takes_ring = flow.is_none_or(|flow| self.takes_ring(flow));
        let queue = flow.and_then(|flow| self.flows.get(flow.0 as usize)).map(|flow| flow.queue);
        match inner.room {
            TxRoom::Open if takes_ring => TxState { room: self.sockets.room(queue), ..inner },
            _ => inner,
        }
    }

    fn flush(&mut self) -> usize {
        let inner = self.inner.flush();
        self.sockets.flush();
        self.round += 1;
        std::mem::take(&mut self.pushed) + inner
    }

    fn has_unsent(&self) -> bool {
        self.inner.has_unsent()
    }

    fn recv(&mut self, scope: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let RxScope { queues, everything, .. } = scope;
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(CHECK_INTERVAL) || queues.gsi {
            self.follow_changes();
        }
        let mut batches = 0;
        if queues.slot {
            batches += self.receive(f);
            if self.sockets.is_stalled() {
                self.sockets.kick();
            }
        }
        let slot = queues.slot
            && (queues.gsi
                || everything
                || self.inner_busy_polls > 0
                || self.calls.is_multiple_of(INNER_INTERVAL));
        self.inner_busy_polls = self.inner_busy_polls.saturating_sub(1);
        if slot {
            let received = self.inner.recv(RxQueues::SLOT.into(), f);
            if received > 0 {
                self.inner_busy_polls = INNER_BUSY_POLLS;
            }
            batches += received;
        }
        if queues.gsi {
            batches += self.inner.recv(RxQueues::GSI.into(), f);
        }
        batches
    }

    fn take_refused(&mut self, kind: RefusedKind, f: &mut dyn FnMut(IpAddr, &[u8])) {
        self.inner.take_refused(kind, f);
    }

    fn hear_groups(&mut self, hear: bool) -> io::Result<()> {
        self.inner.hear_groups(hear)
    }

    fn add_slot(&mut self, slot: u16, queue: OwnedFd) -> io::Result<()> {
        self.inner.add_slot(slot, queue)?;
        self.slots.push(slot);
        let steered = self.steering.as_ref().map_or(Ok(()), |steering| steering.set_slot(slot, true));
        if let Err(error) = steered {
            // The slot is in use all the same: its UDP socket receives the packets.
            self.extra.slots_over_udp += 1;
            notice(format_args!(
                "the queue pairs of slot {slot} receive over UDP instead of AF_XDP: the XDP program's map \
                 of slots cannot be changed: {error}"
            ));
        }
        Ok(())
    }

    fn properties(&self) -> PortProperties {
        let mut poll_fds = self.inner.properties().poll_fds;
        poll_fds.push(self.epoll.as_raw_fd());
        PortProperties { poll_fds, prefers_equal_packets: self.bursts_by_udp, ..PortProperties::default() }
    }

    fn report(&self) -> PortReport {
        PortReport {
            description: self.description(),
            counters: self.counters.plus(&self.inner.counters()),
            rows: self.rows(),
        }
    }
}

impl XskPort {
    fn rows(&self) -> Vec<(&'static str, u64)> {
        let (statistics, sockets) = (self.sockets.statistics(), &self.sockets.counters);
        let pools = [&self.sockets.rx_pool, &self.sockets.tx_pool];
        let [rx_pool, tx_pool] = pools.map(|pool| (pool.len() as u64, pool.counters()));
        vec![
            ("xsk_rx_packets", self.counters.rx_packets),
            ("xsk_tx_packets", self.counters.tx_packets),
            ("xsk_tx_to_udp", self.extra.tx_inner),
            ("xsk_tx_bursts_by_udp", self.extra.tx_bursts),
            ("xsk_tx_no_chunk", self.extra.tx_no_chunk),
            ("xsk_tx_ring_full", self.extra.tx_ring_full),
            ("xsk_rx_pool_free", rx_pool.0),
            ("xsk_rx_pool_takes", rx_pool.1.takes),
            ("xsk_rx_pool_empty", rx_pool.1.empty),
            ("xsk_tx_pool_free", tx_pool.0),
            ("xsk_tx_pool_takes", tx_pool.1.takes),
            ("xsk_tx_pool_empty", tx_pool.1.empty),
            ("xsk_rx_joined", self.extra.rx_joined),
            ("xsk_rx_unjoined", self.extra.rx_unjoined),
            ("xsk_flows_redirected", self.extra.redirected),
            ("xsk_slots_over_udp", self.extra.slots_over_udp),
            ("xsk_kicks", sockets.kicks),
            ("xsk_kick_stalls", sockets.stalls),
            ("xsk_kick_interrupts", sockets.interrupts),
            ("xsk_link_down", sockets.down),
            ("xsk_kick_errors", sockets.errors),
            ("xsk_strays", self.sockets.strays()),
            ("xsk_program_lost", self.program.lost),
            ("xsk_program_put_back", self.program.put_back),
            ("xsk_rx_dropped", statistics.rx_dropped),
            ("xsk_rx_invalid_descs", statistics.rx_invalid_descs),
            ("xsk_tx_invalid_descs", statistics.tx_invalid_descs),
            ("xsk_rx_ring_full", statistics.rx_ring_full),
            ("xsk_rx_fill_ring_empty", statistics.rx_fill_ring_empty_descs),
        ]
    }

    fn add_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let spread = spread(&self.hasher, key);
        // The range of RoCEv2 source ports (IBA Annex A17.9.2).
        let src_port = 0xc000 | spread as u16;
        let headers = Headers::new(key, src_port, self.udp_port).ok_or_else(invalid)?;
        let icrc = super::icrc_header(key.src, key.dst, src_port, self.udp_port).ok_or_else(invalid)?;
        let icrc = icrc.with_flush(key.flush_icrc);
        let hop = self.find_hop(key);
        let queue = (spread >> 16) as usize % self.sockets.queues.len().max(1);
        let bursts = Bursts::default();
        let flow = Flow { key: *key, hop, headers, icrc, queue, is_direct: false, is_used: false, bursts };
        // Packets in the rings do not need their flow any more, so no flow is busy.
        let index =
            self.table.add(*key, |_| false).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOBUFS))?;
        self.last_inner = None;
        match self.flows.get_mut(index as usize) {
            Some(place) => *place = flow,
            None => self.flows.push(flow),
        }
        self.direct(index as usize);
        Ok(FlowId(index))
    }

    /// Returns no hop for management datagrams. They take the UDP port: they are few, go to any address
    /// that sends a request, and make the kernel resolve the neighbour before there is data to send.
    fn find_hop(&mut self, key: &FlowKey) -> Option<HopId> {
        if key.dst_slot == GSI_FLOW_SLOT || key.above != 0 { None } else { self.paths.find(key.src, key.dst) }
    }

    /// Decides whether a flow goes through the AF_XDP socket.
    fn direct(&mut self, flow: usize) {
        let gone = self.sockets.gone;
        let Some(flow) = self.flows.get_mut(flow) else { return };
        let mac = flow.hop.and_then(|hop| self.paths.mac(hop)).filter(|_| !gone);
        if let Some(mac) = mac {
            flow.headers.set_macs(self.paths.link.mac, mac);
        }
        if flow.is_direct != mac.is_some() {
            flow.is_direct = mac.is_some();
            self.extra.redirected += 1;
        }
    }

    /// Whether the next packet of a flow leaves through the AF_XDP socket of its queue.
    #[inline]
    fn takes_ring(&mut self, flow: FlowId) -> bool {
        let XskPort { flows, sockets, paths, bursts_by_udp, round, inner, .. } = self;
        let Some(Flow { is_direct, bursts, queue, key, .. }) = flows.get_mut(flow.0 as usize) else {
            return false;
        };
        // The MTU may have grown since the sockets were opened.
        *is_direct
            && sockets.can_send(paths.link.mtu)
            && !(*bursts_by_udp
                && bursts.leave_by_udp(*round, || sockets.has_sent_all(*queue), || inner.has_sent_all(key)))
    }

    /// Returns the number of a flow in the UDP port, for its next packet.
    #[inline]
    fn inner_flow(&mut self, flow: FlowId) -> io::Result<FlowId> {
        if let Some((_, inner)) = self.last_inner.filter(|(last, _)| *last == flow) {
            return Ok(inner);
        }
        self.last_inner = None;
        let key =
            self.flows.get(flow.0 as usize).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?.key;
        let inner = self.inner.datagram_flow(&key)?;
        self.last_inner = Some((flow, inner));
        Ok(inner)
    }

    /// Steers packets to the addresses that the interface has now.
    fn follow_addresses(&mut self) {
        let (Some(steering), Ok(now)) = (&self.steering, self.paths.addresses()) else { return };
        let before = std::mem::replace(&mut self.addresses, now);
        let changed = |has: &[IpAddr], had: &[IpAddr], ours: bool| {
            for address in has.iter().filter(|address| !had.contains(address)) {
                // The map may be full: packets to that address then arrive at the UDP port.
                let _full = steering.set_address(*address, ours);
            }
        };
        changed(&self.addresses, &before, true);
        changed(&before, &self.addresses, false);
    }

    /// Applies the changes that the kernel reports.
    fn follow_changes(&mut self) {
        let changes = self.paths.poll();
        self.routes_changed |= changes.routes;
        let now = now_ns();
        if self.routes_changed && now - self.refreshed_ns > REFRESH_NS {
            (self.routes_changed, self.refreshed_ns) = (false, now);
            self.find_all_hops();
            self.follow_addresses();
        }
        if changes.hops || self.sockets.gone {
            (0..self.flows.len()).for_each(|flow| self.direct(flow));
        }
        if let Some(steering) = &mut self.steering {
            self.program.check(steering, &self.paths.link, now);
        }
        if now - self.confirmed_ns > CONFIRM_NS {
            self.confirmed_ns = now;
            self.owner.accept_waiting();
            if self.paths.is_full() {
                self.paths.clear();
                self.find_all_hops();
            }
            for flow in &mut self.flows {
                if let Some(hop) = flow.hop.filter(|_| std::mem::take(&mut flow.is_used)) {
                    self.paths.mark_used(hop);
                }
            }
            self.paths.confirm();
        }
    }

    fn find_all_hops(&mut self) {
        for flow in 0..self.flows.len() {
            let key = self.flows[flow].key;
            self.flows[flow].hop = self.find_hop(&key);
            self.direct(flow);
        }
    }

    /// Returns mode, queues and program, for people.
    #[must_use]
    pub fn description(&self) -> String {
        let Some(steering) = &self.steering else { return "xsk, closed".to_owned() };
        let copying = if self.sockets.zero_copy { "zero-copy" } else { "copy" };
        let queues = self.sockets.queues.len();
        let fragments = if self.sockets.fragments { ", multi-buffer" } else { "" };
        let plural = if queues == 1 { "queue" } else { "queues" };
        let (mode, id) = (steering.mode(), steering.id());
        let origin = match steering.dispatcher() {
            Some(dispatcher) => format!(" in dispatcher {dispatcher}"),
            None if steering.is_joined() => " loaded by others".to_owned(),
            None => String::new(),
        };
        let lost = if self.program.is_missing { ", which is not on the interface any more" } else { "" };
        let bursts = if self.bursts_by_udp { ", bursts by UDP" } else { "" };
        format!(
            "xsk, {mode} mode, {copying}{fragments}{bursts}, {queues} {plural}, program id {id}{origin}{lost}"
        )
    }

    /// Why the program does not run in the driver, if that was tried.
    #[must_use]
    pub fn not_native(&self) -> Option<&str> {
        self.steering.as_ref()?.not_native()
    }

    /// Why packets are copied although the driver reports zero-copy support.
    #[must_use]
    pub fn not_zero_copy(&self) -> Option<&XskError> {
        self.sockets.not_zero_copy.as_ref()
    }

    /// Returns the state of the receive chunks and of the transmit chunks.
    pub fn audit(&mut self) -> [Audit; 2] {
        self.sockets.audit()
    }

    /// Detaches the program, closes the sockets, and accounts for every chunk.
    pub fn close(&mut self) -> Teardown {
        if let Some(steering) = self.steering.take() {
            // From here on packets go to the UDP port. An error means that the interface was removed with
            // its program.
            for slot in &self.slots {
                let _gone = steering.set_slot(*slot, false);
            }
        }
        let teardown = self.sockets.close(self.staging.chunk.take());
        debug_assert_eq!(teardown.lost, 0, "{teardown:?}");
        teardown
    }
}

impl Drop for XskPort {
    fn drop(&mut self) {
        // A forked child only closes its descriptors; program, maps and rings belong to the parent.
        if self.generation == sys::generation() {
            self.close();
        }
    }
}

/// Spreads flows over source ports and queues, by the fields that distinguish them. The hasher has a random
/// key: a forger that knows the addresses must not know the source port.
fn spread(hasher: &RandomState, key: &FlowKey) -> u32 {
    hasher.hash_one((key.src, key.dst, key.dst_slot)) as u32
}

#[cfg(test)]
mod tests;
