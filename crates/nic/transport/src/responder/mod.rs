//! The receiving half of a connection: requests to memory and completions (IBA 9.7.4, 9.7.5).
//!
//! `transmit.rs` sends the responses, `early.rs` handles requests ahead of a missing one, `order.rs` those
//! that overwrite what an unsent READ response has to read, `unreliable.rs` is the UC variant.
//!
//! Invariant: everything before `expected` was executed exactly once and in order; `received` bytes of the
//! current message are placed. Order of checks: PSN, opcode sequence, access flags of the queue pair, receive
//! work request or replay slot, lengths, R_Key.

mod early;
mod flush;
mod nak;
mod order;
mod replay;
mod transmit;
mod unreliable;

use wire::{DropReason, Msn, Operation, Packet, Position, Reth, Rkey};

pub(crate) use early::REACH_MIN;
use early::{Arrivals, EarlyRequests};
use nak::NakState;
use order::SavedBytes;
use replay::{Entry, Replay, Response};

use crate::ack_policy::AckDelay;
use crate::attr::{MAX_MSG_SZ, QpType};
use crate::cause::Cause;
use crate::completion_counts::CountedOp;
use crate::emit::psn_of;
use crate::endpoint::{Endpoint, Refused};
use crate::fault::Fault;
use crate::memory::{Access, AtomicOp, Memory, PdId};
use crate::recv_queue::{RecvQueue, RecvWqe, SrqTable};
use crate::reorder::ReorderBuffer;
use crate::time::Instant;
use crate::trust::{self, GUESSES_MAX};
use crate::wc::{Wc, WcOpcode};
use crate::wc_status::WcStatus;

/// The message being received.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Message {
    /// Between messages.
    #[default]
    None,
    /// Inside a SEND.
    Send,
    /// Inside a WRITE.
    Write,
}

/// The message being received, or the last one.
#[derive(Debug, Default)]
struct Incoming {
    kind: Message,
    /// XRC: the shared receive queue that the message is for.
    srqn: Option<u32>,
    /// The protection domain that R_Keys must belong to: the queue pair's, on XRC that of the shared receive
    /// queue.
    pd: PdId,
    /// The receive work request that the message has taken, if `holds_wqe`.
    wqe: RecvWqe,
    holds_wqe: bool,
    /// Bytes of the message placed so far.
    received: u64,
    /// Where a WRITE goes (its RETH).
    va: u64,
    r_key: Rkey,
    dma_len: u32,
    /// UC: the rest of a damaged message is being skipped.
    is_skipped: bool,
}

/// The receiving half of a connected queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// Number of the packet that comes next; its low 24 bits are the expected PSN.
    expected: u64,
    /// Request messages completed.
    msn: Msn,
    message: Incoming,
    replay: Replay,
    saved: SavedBytes,
    pub(crate) ack: AckDelay,
    nak: NakState,
    early: EarlyRequests,
    arrivals: Arrivals,
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            expected: 0,
            msn: Msn::new(0),
            message: Incoming::default(),
            replay: Replay::new(0),
            saved: SavedBytes::new(),
            ack: AckDelay::new(),
            nak: NakState::default(),
            early: EarlyRequests::default(),
            arrivals: Arrivals::default(),
        }
    }

    /// Starts to expect `rq_psn` (INIT to RTR).
    pub(crate) fn start(&mut self, ep: &Endpoint) {
        self.reset();
        self.expected = u64::from(ep.attr.rq_psn.value());
        self.arrivals = Arrivals::new(self.expected);
        self.replay = Replay::new(usize::from(ep.attr.max_dest_rd_atomic));
    }

    /// Sets how many READs and atomics are kept for replay; those kept so far are dropped.
    pub(crate) fn set_fetch_limit(&mut self, limit: u8) {
        self.replay = Replay::new(usize::from(limit));
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        self.expected = 0;
        self.msn = Msn::new(0);
        self.message = Incoming::default();
        self.early = EarlyRequests::default();
        self.silence();
    }

    /// Drops every response, NAK and ACK that was not sent.
    pub(crate) fn silence(&mut self) {
        self.replay.clear();
        self.saved.clear();
        self.ack = AckDelay::new();
        self.nak = NakState::default();
    }

    /// Number of the packet that comes next.
    pub(crate) fn expected(&self) -> u64 {
        self.expected
    }

    /// Whether a receive work request is in use.
    #[inline]
    pub(crate) fn holds_wqe(&self) -> bool {
        self.message.holds_wqe
    }

    /// Completes the receive work request in use in error. Returns whether there was one.
    pub(crate) fn fail_wqe(&mut self, cause: Cause, ep: &mut Endpoint) -> bool {
        if !core::mem::take(&mut self.message.holds_wqe) {
            return false;
        }
        ep.fail_recv(self.message.srqn, self.message.wqe.wr_id, cause);
        true
    }

    /// Handles a request packet on a reliable connection. The outer error is a fault of the connection or of
    /// the request, the inner one the reason why the packet was dropped.
    #[inline]
    pub(crate) fn handle_request(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        reorder: &mut ReorderBuffer,
        ep: &mut Endpoint,
    ) -> Result<Result<(), DropReason>, Fault> {
        let distance = packet.bth.psn.distance_from(psn_of(self.expected));
        let position = self.expected.wrapping_add_signed(i64::from(distance));
        self.early.watch(position);
        if distance < 0 {
            if trust::is_far(distance) {
                ep.on_guess(now, GUESSES_MAX);
            }
            return Ok(self.handle_duplicate(position, packet, mem, srqs, ep));
        }
        if distance > 0 {
            return Ok(self.handle_early(now, position, packet, reorder, ep));
        }
        self.nak.expected_arrived();
        match self.execute_next(packet, mem, srqs, ep) {
            Err(Fault::UnsentRead) => return Ok(self.postpone(ep)),
            executed => executed?,
        }
        if self.early.is_beyond(self.expected) {
            self.execute_kept(now, reorder, mem, srqs, ep)?;
        }
        Ok(Ok(()))
    }

    /// Executes the packet that is next in order, and notes whether it asks for an acknowledgement.
    #[inline]
    fn execute_next(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let position = self.expected;
        self.execute(packet, mem, srqs, ep)?;
        if packet.bth.ack_req && !packet_is_fetch(packet) {
            self.ack.asked(position);
        }
        Ok(())
    }

    /// Executes the packet that is next in order, after checking it. A refused packet changes nothing, except
    /// that a receive work request may have been taken.
    #[inline]
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let executed = self.execute_in_order(packet, mem, srqs, ep);
        if let Err(fault) = &executed {
            self.note_failure(packet, *fault, ep);
        }
        executed
    }

    #[inline]
    fn execute_in_order(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let row = packet.row();
        let rq = self.choose_queue(packet, srqs, ep)?;
        match row.operation {
            Operation::Write | Operation::WriteImm => {
                self.check_order(row.position, Message::Write)?;
                self.write(packet, mem, rq, ep)
            }
            Operation::Send | Operation::SendImm | Operation::SendInv => {
                self.check_order(row.position, Message::Send)?;
                self.receive(packet, mem, rq, ep)
            }
            Operation::ReadRequest => {
                self.check_order(row.position, Message::None)?;
                self.read(packet, mem, ep)
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                self.check_order(row.position, Message::None)?;
                self.atomic(packet, mem, ep)
            }
            Operation::AtomicWrite => {
                self.check_order(row.position, Message::None)?;
                self.atomic_write(packet, mem, ep)
            }
            Operation::Flush => {
                self.check_order(row.position, Message::None)?;
                self.flush(packet, mem, ep)
            }
            _ => Err(Fault::Opcode),
        }
    }

    /// The queue that a message takes its receive work request from. On XRC every packet of a message names
    /// the same one.
    #[inline]
    fn choose_queue<'a>(
        &mut self,
        packet: &Packet<'_>,
        srqs: &'a mut impl SrqTable,
        ep: &Endpoint,
    ) -> Result<&'a mut RecvQueue, Fault> {
        if ep.ty != QpType::XrcTgt {
            self.message.pd = ep.pd;
            return srqs.own().ok_or(Fault::NoReceiveWqe);
        }
        let srqn = packet.xrceth().map(|header| header.srqn);
        if self.message.kind != Message::None && srqn != self.message.srqn {
            return Err(Fault::Opcode);
        }
        let rq = srqn.and_then(|srqn| srqs.xrc(srqn)).ok_or(Fault::XrcSrq)?;
        (self.message.srqn, self.message.pd) = (srqn, rq.pd());
        Ok(rq)
    }

    /// Counts a WRITE or READ of the peer that ends the connection, and keeps what it asked for.
    #[cold]
    fn note_failure(&self, packet: &Packet<'_>, fault: Fault, ep: &mut Endpoint) {
        let operation = packet.row().operation;
        let op = match operation {
            Operation::Write | Operation::WriteImm => Some(CountedOp::RemoteWrite),
            Operation::ReadRequest => Some(CountedOp::RemoteRead),
            _ => None,
        };
        let Some(cause) = fault.row().completion else { return };
        if ep.ty.is_reliable() {
            ep.count_completion(op, 0, cause.status());
        }
        if matches!(fault, Fault::RemoteAccess | Fault::QpAccess) {
            let Incoming { va, r_key, dma_len, .. } = self.message;
            let atomic = packet.atomic_eth().map(|at| Reth { va: at.va, r_key: at.r_key, dma_len: 8 });
            let asked = packet.reth().or(atomic).unwrap_or(Reth { va, r_key, dma_len });
            ep.refused = Some(Refused::Request(operation, asked, cause));
        }
    }

    /// First and Only start a message, Middle and Last continue one of the same kind.
    #[inline]
    fn check_order(&self, position: Position, kind: Message) -> Result<(), Fault> {
        let fits = self.message.kind == if position.starts() { Message::None } else { kind };
        if fits { Ok(()) } else { Err(Fault::Opcode) }
    }

    /// Executes a SEND packet.
    fn receive(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        rq: &mut RecvQueue,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let position = packet.row().position;
        let payload = packet.payload();
        if position.starts() {
            self.take_wqe(rq, ep)?;
            self.message.received = 0;
        }
        check_payload(packet, ep.mtu)?;
        if self.message.received + payload.len() as u64 > self.message.wqe.room {
            return Err(Fault::RecvTooLong);
        }
        self.message.wqe.write(mem, self.message.received, payload).map_err(Fault::from_receive)?;
        self.message.received += payload.len() as u64;
        ep.counters.rcvd_bytes += payload.len() as u64;
        if !position.ends() {
            self.message.kind = Message::Send;
            self.expected += 1;
            return Ok(());
        }
        let mut wc = Wc { opcode: WcOpcode::Recv, ..self.recv_wc(packet, ep) };
        if let Some(r_key) = packet.ieth() {
            mem.invalidate(self.message.pd, ep.qpn, r_key).map_err(|_| Fault::Invalidate)?;
            wc.imm_data = r_key.0.to_ne_bytes();
            wc.wc_flags |= Wc::WITH_INV;
        }
        self.message_done(false);
        self.deliver(wc, packet, ep);
        Ok(())
    }

    /// Executes a WRITE packet. Bytes are placed in order, the last one last.
    #[inline]
    fn write(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        rq: &mut RecvQueue,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let row = packet.row();
        let payload = packet.payload();
        let length = payload.len() as u64;
        if !ep.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(Fault::QpAccess);
        }
        if row.operation == Operation::WriteImm {
            self.take_wqe(rq, ep)?;
        }
        check_payload(packet, ep.mtu)?;
        if row.position.starts() {
            let reth = packet.reth().ok_or(Fault::Length)?;
            let whole = u64::from(reth.dma_len);
            let ends = row.position.ends();
            if whole > MAX_MSG_SZ || (ends && whole != length) || (!ends && whole <= length) {
                return Err(Fault::Length);
            }
            if !ends {
                mem.check_remote(self.message.pd, ep.qpn, reth.r_key, reth.va, whole, Access::REMOTE_WRITE)
                    .map_err(Fault::from_access)?;
            }
            let (pd, access) = (self.message.pd, Access::REMOTE_WRITE);
            mem.message_begins(pd, ep.qpn, reth.r_key, reth.va, whole, access);
            let message = &mut self.message;
            (message.va, message.r_key) = (reth.va, reth.r_key);
            (message.dma_len, message.received) = (reth.dma_len, 0);
        } else {
            let left = u64::from(self.message.dma_len) - self.message.received;
            let ends = row.position.ends();
            if (ends && length != left) || (!ends && length >= left) {
                return Err(Fault::Length);
            }
        }
        // IBA C9-88: key and address of a zero-length message are not checked.
        if !payload.is_empty() {
            let Incoming { pd, r_key, va, received, .. } = self.message;
            self.before_write(va.wrapping_add(received), payload.len(), mem, ep)?;
            mem.write_remote(pd, ep.qpn, r_key, va.wrapping_add(received), payload)
                .map_err(Fault::from_access)?;
        }
        self.message.received += length;
        ep.counters.rcvd_bytes += length;
        if !row.position.ends() {
            self.message.kind = Message::Write;
            self.expected += 1;
            return Ok(());
        }
        self.message_done(row.operation == Operation::Write);
        ep.count_completion(Some(CountedOp::RemoteWrite), self.message.received, WcStatus::Success);
        if row.operation == Operation::WriteImm {
            let wc = Wc { opcode: WcOpcode::RecvRdmaWithImm, ..self.recv_wc(packet, ep) };
            self.deliver(wc, packet, ep);
        }
        Ok(())
    }

    /// Accepts a READ request. Its response is made from memory when it is sent.
    fn read(&mut self, packet: &Packet<'_>, mem: &impl Memory, ep: &Endpoint) -> Result<(), Fault> {
        if !ep.attr.access.contains(Access::REMOTE_READ) {
            return Err(Fault::QpAccess);
        }
        if !self.replay.has_room() {
            return Err(Fault::TooManyReads);
        }
        let reth = packet.reth().ok_or(Fault::Length)?;
        let length = u64::from(reth.dma_len);
        if !packet.payload().is_empty() || length > MAX_MSG_SZ {
            return Err(Fault::Length);
        }
        if length > 0 {
            let (pd, access) = (self.message.pd, Access::REMOTE_READ);
            mem.check_remote(pd, ep.qpn, reth.r_key, reth.va, length, access).map_err(Fault::from_access)?;
            mem.message_begins(pd, ep.qpn, reth.r_key, reth.va, length, access);
        }
        let packets = length.div_ceil(ep.mtu as u64).max(1);
        let response =
            Response::Read { pd: self.message.pd, va: reth.va, r_key: reth.r_key, dma_len: reth.dma_len };
        self.push_response(packets, response);
        Ok(())
    }

    /// Executes an atomic. Its result is sent in request order.
    fn atomic(&mut self, packet: &Packet<'_>, mem: &impl Memory, ep: &Endpoint) -> Result<(), Fault> {
        if !ep.attr.access.contains(Access::REMOTE_ATOMIC) {
            return Err(Fault::QpAccess);
        }
        if !self.replay.has_room() {
            return Err(Fault::TooManyReads);
        }
        let eth = packet.atomic_eth().ok_or(Fault::Length)?;
        if !packet.payload().is_empty() {
            return Err(Fault::Length);
        }
        if !eth.va.is_multiple_of(8) {
            return Err(Fault::Misaligned);
        }
        let op = match packet.row().operation {
            Operation::CompareSwap => AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add },
            _ => AtomicOp::FetchAdd { add: eth.swap_or_add },
        };
        self.before_write(eth.va, size_of::<u64>(), mem, ep)?;
        let original =
            mem.atomic_remote(self.message.pd, ep.qpn, eth.r_key, eth.va, op).map_err(Fault::from_access)?;
        self.push_response(1, Response::Atomic { original });
        Ok(())
    }

    /// Queues the response to a request; the response takes `packets` packet numbers.
    fn push_response(&mut self, packets: u64, response: Response) {
        let first = self.expected;
        self.expected += packets;
        self.msn = self.msn.advance(1);
        self.replay.push(Entry::new(first, self.expected, self.msn, response));
        self.ack.covered_by_response(first);
    }

    /// Handles a request that was executed before: it gets its response again, and is not executed again.
    fn handle_duplicate(
        &mut self,
        position: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), DropReason> {
        ep.counters.duplicate_request += 1;
        let has_response = match packet.row().operation {
            Operation::ReadRequest => packet.reth().is_some_and(|reth| {
                let length = u64::from(reth.dma_len);
                let pd = match packet.xrceth() {
                    Some(header) => srqs.xrc(header.srqn).map(|rq| rq.pd()),
                    None => Some(ep.pd),
                };
                let valid = length == 0
                    || pd.is_some_and(|pd| {
                        mem.check_remote(pd, ep.qpn, reth.r_key, reth.va, length, Access::REMOTE_READ).is_ok()
                    });
                valid && self.replay.repeat_read(position, ep.mtu, reth.va, reth.r_key, reth.dma_len)
            }),
            Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite | Operation::Flush => {
                self.replay.repeat_atomic(position)
            }
            _ => {
                self.ack.asked_by_duplicate(self.expected.wrapping_sub(1));
                true
            }
        };
        if has_response { Ok(()) } else { Err(DropReason::Duplicate) }
    }

    /// Takes a receive work request for the current message, unless it has one.
    #[inline]
    fn take_wqe(&mut self, rq: &mut RecvQueue, ep: &mut Endpoint) -> Result<(), Fault> {
        if self.message.holds_wqe {
            return Ok(());
        }
        if !ep.events.has_recv_room() {
            return Err(Fault::NoReceiveWqe);
        }
        let taken = rq.take(&mut self.message.wqe).ok_or(Fault::NoReceiveWqe)?;
        self.message.holds_wqe = true;
        if taken.limit_reached && (ep.srq || self.message.srqn.is_some()) {
            ep.events.push_limit(self.message.srqn);
        }
        Ok(())
    }

    #[inline]
    fn recv_wc(&self, packet: &Packet<'_>, ep: &Endpoint) -> Wc {
        let imm = packet.imm();
        Wc {
            wr_id: self.message.wqe.wr_id,
            byte_len: self.message.received as u32,
            imm_data: imm.unwrap_or_default(),
            wc_flags: if imm.is_some() { Wc::WITH_IMM } else { 0 },
            qp_num: ep.qpn.value(),
            src_qp: ep.attr.dest_qp.value(),
            ..Wc::default()
        }
    }

    /// Whether a message is half received.
    #[inline]
    fn is_within_message(&self) -> bool {
        self.message.kind != Message::None
    }

    /// The message is complete. `is_silent`: the application learns of it only from its memory.
    #[inline]
    fn message_done(&mut self, is_silent: bool) {
        self.expected += 1;
        self.msn = self.msn.advance(1);
        self.message.kind = Message::None;
        self.ack.message_arrived(is_silent);
    }

    #[inline]
    fn deliver(&mut self, wc: Wc, packet: &Packet<'_>, ep: &mut Endpoint) {
        self.message.holds_wqe = false;
        ep.counters.rdma_recvs += 1;
        ep.complete_recv(self.message.srqn, wc, packet.bth.solicited);
    }
}

#[inline]
fn packet_is_fetch(packet: &Packet<'_>) -> bool {
    matches!(
        packet.row().operation,
        Operation::ReadRequest
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush
    )
}

/// The length rules of SEND and WRITE packets: First and Middle are full, Last is not empty, pad is minimal.
#[inline]
fn check_payload(packet: &Packet<'_>, mtu: usize) -> Result<(), Fault> {
    let length = packet.payload().len();
    let fits = match packet.row().position {
        Position::First | Position::Middle => length == mtu,
        Position::Last => length > 0 && length <= mtu,
        Position::Only => length <= mtu,
    };
    let pad_cnt = length.wrapping_neg() as u8 & 3;
    if fits && packet.bth.pad_cnt == pad_cnt { Ok(()) } else { Err(Fault::Length) }
}

#[cfg(test)]
mod tests;
