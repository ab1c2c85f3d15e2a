//! Hosts: queue pairs of the product's transport, and the order in which they send.
//!
//! A host asks its queue pairs in turns for packets while its port is free, so nothing waits in the host that
//! a pause or a rate could still hold back.

use std::cell::Cell;
use std::collections::VecDeque;

use transport::{
    Access, AccessFault, AddressVector, AtomicOp, Instant, MAX_PACKET, Memory, PacketSource, PathMtu, PdId,
    Qp, QpAttr, QpAttrMask, QpCap, QpConfig, QpCounters, QpEvent, QpState, QpType, ReorderBuffer, SendFlags,
    SendWr, Sge, WcStatus, WrOp,
};
use wire::{Gid, Lkey, Packet, Psn, Qpn, Rkey, udp};

use super::frame::{ECT_0, Frame, HEAD};
use super::network::Network;
use super::spec::{Recovery, Spec};
use super::topology::flow_hash;
use super::units::PS_PER_NS;
use crate::rng::Rng;

/// Bytes of the work requests that a flow is cut into; one is posted at a time.
const PIECE: u64 = 1 << 30;
const PIECES: u32 = 1;
/// QPNs 0 and 1 are special; numbers up to this are not used.
const FIRST_QPN: u32 = 16;
const QPN_MAX: u32 = 0xff_fff0;
/// The ACK timeout of most programs: 67 ms, 7 retries.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;
const ICRC_LEN: usize = 4;
/// A timer that is overdue fires again after this time: a microsecond.
const OVERDUE_PS: u64 = 1_000_000;

/// Memory of a queue pair without bytes: it counts what is written to it.
#[derive(Debug, Default)]
struct Count {
    written: Cell<u64>,
}

impl Memory for Count {
    fn read_inline(&self, _: u64, _: &mut [u8]) -> Result<(), AccessFault> {
        Ok(())
    }

    fn check_local(&self, _: PdId, _: Lkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
        Ok(())
    }

    /// Zeros, as far as a frame stores the payload. The rest of the buffer is never written.
    fn read_local(&self, _: PdId, _: Lkey, _: u64, dst: &mut [u8]) -> Result<(), AccessFault> {
        let stored = dst.len().min(HEAD);
        dst[..stored].fill(0);
        Ok(())
    }

    fn write_local(&self, _: PdId, _: Lkey, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }

    fn check_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
        Ok(())
    }

    fn read_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: &mut [u8]) -> Result<(), AccessFault> {
        Ok(())
    }

    fn write_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, src: &[u8]) -> Result<(), AccessFault> {
        self.written.set(self.written.get() + src.len() as u64);
        Ok(())
    }

    fn atomic_remote(&self, _: PdId, _: Qpn, _: Rkey, _: u64, _: AtomicOp) -> Result<u64, AccessFault> {
        Err(AccessFault::Permission)
    }

    fn invalidate(&self, _: PdId, _: Qpn, _: Rkey) -> Result<(), AccessFault> {
        Err(AccessFault::Permission)
    }
}

/// One end of a connection.
struct End {
    qp: Qp,
    memory: Count,
    host: u32,
    peer_host: u32,
    /// The end at the other host.
    peer: u32,
    src_port: u16,
    priority: u8,
    /// It is in the list of its host.
    is_listed: bool,
    /// A pending timer event.
    timer_at: u64,
    /// Bytes of each message that were not posted yet.
    outbox: VecDeque<u64>,
    /// Work requests that have not completed.
    posted: u32,
    /// What this end receives: flows, with the bytes written when each is complete.
    inbox: VecDeque<(u32, u64)>,
    /// Bytes of all flows in the inbox so far.
    expected: u64,
    /// The connection ends with its only flow.
    is_single: bool,
}

/// A host.
struct Host {
    /// Ends with packets to send, in order.
    ready: VecDeque<u32>,
    /// Ends that wait because their priority is paused.
    held: Vec<u32>,
    /// Frames that arrived since the last poll.
    arrived: VecDeque<u32>,
    is_polling: bool,
    reorder: ReorderBuffer,
}

/// Something that a workload learns.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Done {
    /// All bytes of the flow are at the receiver.
    Received(u32),
    /// The connection of the flow ended with an error.
    Failed(u32),
}

/// All hosts, with all ends of connections.
pub(super) struct Hosts {
    hosts: Vec<Host>,
    ends: Vec<Option<Box<End>>>,
    /// Numbers of ends that are free, oldest first, so that a late frame finds no new connection.
    free: VecDeque<u32>,
    pub(super) done: Vec<Done>,
    /// Counters of connections that have ended.
    counters: QpCounters,
    /// Frames for connections that have ended.
    pub(super) late: u64,
    /// Payload bytes written to memory.
    pub(super) received_bytes: u64,
    buf: Box<[u8; MAX_PACKET]>,
    scratch: Box<[u8; MAX_PACKET + ICRC_LEN]>,
    burst: u64,
    poll_ps: u64,
    mtu: PathMtu,
    ect: u8,
    rng: Rng,
}

fn gid(host: u32) -> Gid {
    std::net::Ipv4Addr::from(0x0a00_0001 + host).into()
}

impl Hosts {
    pub(super) fn new(spec: &Spec, hosts: usize, seed: u64) -> Self {
        let mtu = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() == spec.mtu).unwrap_or(PathMtu::M4096);
        let host = |_| Host {
            ready: VecDeque::new(),
            held: Vec::new(),
            arrived: VecDeque::new(),
            is_polling: false,
            reorder: match spec.recovery {
                Recovery::SelectiveRepeat => ReorderBuffer::new(mtu),
                Recovery::GoBackN => ReorderBuffer::none(),
            },
        };
        Self {
            hosts: (0..hosts).map(host).collect(),
            ends: Vec::new(),
            free: VecDeque::new(),
            done: Vec::new(),
            counters: QpCounters::default(),
            late: 0,
            received_bytes: 0,
            buf: Box::new([0; MAX_PACKET]),
            scratch: Box::new([0; MAX_PACKET + ICRC_LEN]),
            burst: spec.burst.0,
            poll_ps: spec.poll.ps,
            mtu,
            ect: if spec.ecn { ECT_0 } else { 0 },
            rng: Rng::stream(seed, 103),
        }
    }

    /// Connects two hosts. Returns the end of the first, which sends.
    pub(super) fn connect(&mut self, from: u32, to: u32, dscp: u8, is_single: bool) -> Option<u32> {
        let [one, other] = [self.number()?, self.number()?];
        let [qpn, dest_qp] = [one, other].map(|end| Qpn::new(end + FIRST_QPN));
        let src_port = udp::src_port(udp::flow_label(qpn, dest_qp));
        let psns = [self.rng.next() as u32, self.rng.next() as u32].map(Psn::new);
        let sides = [(one, from, other, to, psns), (other, to, one, from, [psns[1], psns[0]])];
        for (end, host, peer, peer_host, [sq_psn, rq_psn]) in sides {
            let attr = QpAttr {
                path_mtu: self.mtu,
                dest_qp: Qpn::new(peer + FIRST_QPN),
                sq_psn,
                rq_psn,
                access: Access::REMOTE_WRITE,
                av: AddressVector {
                    dgid: gid(peer_host),
                    traffic_class: dscp << 2 | self.ect,
                    ..AddressVector::default()
                },
                port_num: 1,
                timeout: TIMEOUT,
                retry_cnt: RETRIES,
                rnr_retry: 7,
                ..QpAttr::default()
            };
            let slot = self.ends.get_mut(end as usize)?;
            *slot = Some(Box::new(End {
                qp: queue_pair(end, self.mtu, &attr),
                memory: Count::default(),
                host,
                peer_host,
                peer,
                src_port,
                priority: dscp >> 3,
                is_listed: false,
                timer_at: u64::MAX,
                outbox: VecDeque::new(),
                posted: 0,
                inbox: VecDeque::new(),
                expected: 0,
                is_single,
            }));
        }
        Some(one)
    }

    /// A free number for an end.
    fn number(&mut self) -> Option<u32> {
        // A number is used again after many others.
        const RESERVE: usize = 4096;
        if self.free.len() > RESERVE || self.ends.len() as u32 >= QPN_MAX - FIRST_QPN {
            return self.free.pop_front();
        }
        self.ends.push(None);
        Some((self.ends.len() - 1) as u32)
    }

    /// Sends so many bytes as flow `flow` over the connection of this end.
    pub(super) fn send(&mut self, end: u32, flow: u32, bytes: u64, network: &mut Network, now: u64) {
        let Some(Some(sender)) = self.ends.get_mut(end as usize) else { return };
        sender.outbox.push_back(bytes);
        let peer = sender.peer;
        if let Some(Some(receiver)) = self.ends.get_mut(peer as usize) {
            receiver.expected += bytes;
            receiver.inbox.push_back((flow, receiver.expected));
        }
        self.follow(end, network, now);
    }

    /// A frame arrives.
    pub(super) fn arrived(&mut self, host: u32, frame: u32, network: &mut Network, now: u64) {
        if self.poll_ps == 0 {
            let end = self.handle(network.frames.remove(frame), now);
            if let Some(end) = end {
                self.end_of_batch(end, network, now);
            }
            return;
        }
        let state = &mut self.hosts[host as usize];
        state.arrived.push_back(frame);
        if !state.is_polling {
            state.is_polling = true;
            network.events.add(now + self.poll_ps, super::events::Event::Poll(host));
        }
    }

    /// The host handles what has arrived.
    pub(super) fn poll(&mut self, host: u32, network: &mut Network, now: u64) {
        let state = &mut self.hosts[host as usize];
        state.is_polling = false;
        let mut touched = Vec::new();
        for frame in std::mem::take(&mut state.arrived) {
            touched.extend(self.handle(network.frames.remove(frame), now));
        }
        touched.sort_unstable();
        touched.dedup();
        for end in touched {
            self.end_of_batch(end, network, now);
        }
    }

    fn end_of_batch(&mut self, number: u32, network: &mut Network, now: u64) {
        if let Some(Some(end)) = self.ends.get_mut(number as usize) {
            end.qp.end_of_batch(Instant(now / PS_PER_NS), false);
        }
        self.follow(number, network, now);
    }

    /// Passes a frame to its queue pair. Returns the end.
    fn handle(&mut self, frame: Frame, now: u64) -> Option<u32> {
        let len = usize::from(frame.len);
        self.scratch[..HEAD].copy_from_slice(&frame.head);
        // The owner of a frame made it, so it parses; the ICRC is not simulated.
        let packet = Packet::parse(&self.scratch[..len + ICRC_LEN]).ok()?;
        let number = packet.bth.dest_qp.value().wrapping_sub(FIRST_QPN);
        let end = self.ends.get_mut(number as usize).and_then(Option::as_deref_mut);
        let Some(end) = end.filter(|end| (end.host, end.peer_host) == (frame.to, frame.from)) else {
            self.late += 1;
            return None;
        };
        let from = PacketSource {
            src: gid(frame.from),
            src_port: frame.src_port,
            dst: gid(frame.to),
            tos: frame.tos,
            ttl: 64,
        };
        let reorder = &mut self.hosts[frame.to as usize].reorder;
        let before = end.memory.written.get();
        // Why a packet was dropped is in the counters of the queue pair.
        let _counted: Result<(), wire::DropReason> =
            end.qp.handle_packet(Instant(now / PS_PER_NS), &packet, &from, &end.memory, None, reorder);
        self.received_bytes += end.memory.written.get() - before;
        Some(number)
    }

    /// A timer event of an end is due.
    pub(super) fn timer(&mut self, number: u32, network: &mut Network, now: u64) {
        let Some(Some(end)) = self.ends.get_mut(number as usize) else { return };
        if end.timer_at == now {
            end.timer_at = u64::MAX;
            end.qp.handle_timeout(Instant(now / PS_PER_NS));
            self.follow(number, network, now);
        }
    }

    /// After any input to a queue pair: posts, takes completions, arms the timer, lists it.
    fn follow(&mut self, number: u32, network: &mut Network, now: u64) {
        let Some(Some(end)) = self.ends.get_mut(number as usize) else { return };
        let mut is_failed = false;
        while let Some(event) = end.qp.poll_event() {
            if let QpEvent::SendWc(wc) = event {
                end.posted -= 1;
                is_failed |= wc.status != WcStatus::Success;
            }
        }
        while let Some((flow, _)) = end.inbox.pop_front_if(|(_, until)| *until <= end.memory.written.get()) {
            self.done.push(Done::Received(flow));
        }
        end.post();
        if is_failed || (end.is_single && end.posted == 0 && end.outbox.is_empty() && end.has_sent()) {
            return self.close(number);
        }
        if end.qp.wants_transmit() && !end.is_listed {
            end.is_listed = true;
            self.hosts[end.host as usize].ready.push_back(number);
        }
        end.arm(number, network, now);
        let host = end.host;
        self.transmit(host, network, now);
    }

    /// Both ends of a connection end.
    fn close(&mut self, number: u32) {
        let peer = self.ends[number as usize].as_ref().map(|end| end.peer);
        for number in [Some(number), peer].into_iter().flatten() {
            if let Some(end) = self.ends[number as usize].take() {
                self.counters.absorb(end.qp.counters());
                self.done.extend(end.inbox.iter().map(|(flow, _)| Done::Failed(*flow)));
                self.free.push_back(number);
            }
        }
    }

    /// Lets the queue pairs of a host send while its port is free.
    pub(super) fn transmit(&mut self, host: u32, network: &mut Network, now: u64) {
        let port = network.topology.host_port(host);
        let list = &mut self.hosts[host as usize];
        while network.is_open(port, now)
            && let Some(number) = list.ready.pop_front()
        {
            let Some(Some(end)) = self.ends.get_mut(number as usize) else { continue };
            // The number may have been given to an end of another host.
            if end.host != host || !end.is_listed {
                continue;
            }
            if network.is_paused(port, end.priority) {
                list.held.push(number);
                continue;
            }
            let mut quantum = end.qp.transmit_quantum(Instant(now / PS_PER_NS), usize::MAX);
            let mut sent = 0;
            while sent == 0 || sent < self.burst {
                let Some(packet) = quantum.poll(&end.memory, &mut self.buf[..]) else { break };
                let qp = quantum.qp();
                let av = if packet.is_datagram { &qp.datagram_dest().av } else { qp.av() };
                let mut head = [0; HEAD];
                let stored = packet.len.min(HEAD);
                head[..stored].copy_from_slice(&self.buf[..stored]);
                let frame = Frame {
                    from: host,
                    to: end.peer_host,
                    src_port: end.src_port,
                    tos: av.traffic_class,
                    len: packet.len as u16,
                    hash: flow_hash(host, end.peer_host, end.src_port),
                    in_port: 0,
                    head,
                };
                sent += u64::from(frame.bytes());
                let frame = network.frames.add(frame);
                network.tally.sent += 1;
                network.enqueue(port, frame, now);
            }
            end.is_listed = end.qp.wants_transmit();
            if end.is_listed {
                list.ready.push_back(number);
            }
            end.arm(number, network, now);
        }
        if !list.ready.is_empty() {
            network.wake_when_free(port);
        }
    }

    /// A pause of a host's port has ended.
    pub(super) fn resumed(&mut self, host: u32, network: &mut Network, now: u64) {
        let list = &mut self.hosts[host as usize];
        list.ready.extend(list.held.drain(..));
        self.transmit(host, network, now);
    }

    /// The sum of the counters of all connections.
    pub(super) fn counters(&self) -> QpCounters {
        let mut counters = self.counters;
        self.ends.iter().flatten().for_each(|end| counters.absorb(end.qp.counters()));
        counters
    }

    /// Bytes that the peer of this end has received.
    pub(super) fn received(&self, end: u32) -> u64 {
        let peer = self.ends.get(end as usize).and_then(Option::as_ref).map(|end| end.peer);
        let peer = peer.and_then(|peer| self.ends.get(peer as usize)).and_then(Option::as_ref);
        peer.map_or(0, |peer| peer.memory.written.get())
    }
}

impl End {
    /// Posts as much as the send queue takes.
    fn post(&mut self) {
        while self.posted < PIECES
            && let Some(left) = self.outbox.front_mut()
        {
            let length = PIECE.min(*left);
            *left -= length;
            if *left == 0 {
                self.outbox.pop_front();
            }
            let sge = [Sge { addr: 0, length: length as u32, lkey: Lkey(1) }];
            let op = WrOp::Write { remote_addr: 0, r_key: Rkey(1) };
            let wr = SendWr { wr_id: 0, op, sg_list: &sge, flags: SendFlags::SIGNALED, dest: None };
            let posted = self.qp.post_send(&wr, &self.memory);
            debug_assert!(posted.is_ok(), "{posted:?}");
            self.posted += 1;
        }
    }

    /// Whether this end has sent something, so that an empty outbox means that all is acknowledged.
    fn has_sent(&self) -> bool {
        self.qp.counters().rdma_sends > 0
    }

    /// Adds an event for the next deadline, unless one is pending that is not later.
    fn arm(&mut self, number: u32, network: &mut Network, now: u64) {
        if let Some(deadline) = self.qp.poll_timeout() {
            // A deadline that has passed concerns packets that wait for the port.
            let at = deadline.0.saturating_mul(PS_PER_NS);
            let at = if at > now { at } else { now + OVERDUE_PS };
            if at < self.timer_at {
                self.timer_at = at;
                network.events.add(at, super::events::Event::Timer(number));
            }
        }
    }
}

/// Creates a queue pair in RTS.
fn queue_pair(end: u32, mtu: PathMtu, attr: &QpAttr) -> Qp {
    let cap = QpCap { max_send_wr: PIECES, max_recv_wr: 0, max_send_sge: 1, ..QpCap::default() };
    let config = QpConfig {
        qpn: Qpn::new(end + FIRST_QPN),
        ty: QpType::Rc,
        pd: PdId(1),
        cap,
        sq_sig_all: true,
        srq: false,
        max_path_mtu: mtu,
        equal_writes: true,
    };
    let mut qp = Qp::new(config).expect("the sizes are within the limits");
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let mask = QpAttrMask::required(QpType::Rc, state);
        qp.modify(Instant::ZERO, &QpAttr { state, ..attr.clone() }, mask).expect("permitted");
    }
    qp
}
