//! The receiving half of a connection: requests to memory and completions (IBA 9.7.4, 9.7.5). What is sent back is in
//! `reply.rs`, the unreliable variant in `uc.rs`.
//!
//! Invariant: everything before `expected` was executed exactly once and in order; `received` bytes of the current
//! message are placed. Order of checks: PSN, opcode sequence, access flags of the queue pair, receive work request or
//! replay slot, lengths, R_Key.

use wire::{DropReason, Msn, Operation, Packet, Position, Rkey};

use crate::attr::{MAX_MSG_SZ, QpType};
use crate::emit::psn_of;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::{Access, AtomicOp, Memory, PdId};
use crate::recv_queue::{RecvQueue, RecvWqe, SrqTable};
use crate::reorder::{Ahead, ReorderBuffer};
use crate::replay::{Answer, Entry, Replay};
use crate::reply::Reply;
use crate::time::Instant;
use crate::wc::{Wc, WcOpcode, WcStatus};

/// The message being received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    /// Between messages.
    None,
    /// Inside a SEND.
    Send,
    /// Inside a WRITE.
    Write,
}

/// The receiving half of a connected queue pair.
#[derive(Debug)]
pub(crate) struct Responder {
    /// Number of the packet that comes next; its low 24 bits are the expected PSN.
    pub(crate) expected: u64,
    /// Request messages completed.
    pub(crate) msn: Msn,
    pub(crate) message: Message,
    /// XRC: the shared receive queue that the current message, or the last one, is for.
    srqn: Option<u32>,
    /// The protection domain that R_Keys must be of: the queue pair's, on XRC that of the shared receive queue.
    pub(crate) pd: PdId,
    /// The receive work request that the current message has taken, if `holds_wqe`.
    wqe: RecvWqe,
    pub(crate) holds_wqe: bool,
    /// Bytes of the current message placed so far.
    received: u64,
    va: u64,
    r_key: Rkey,
    dma_len: u32,
    pub(crate) replay: Replay,
    pub(crate) reply: Reply,
    /// Packets that arrived before the expected one.
    pub(crate) ahead: Ahead,
    /// UC: the rest of a damaged message is being skipped.
    pub(crate) dropping: bool,
}

impl Responder {
    pub(crate) fn new() -> Self {
        Self {
            expected: 0,
            msn: Msn::new(0),
            message: Message::None,
            srqn: None,
            pd: PdId(0),
            wqe: RecvWqe::new(),
            holds_wqe: false,
            received: 0,
            va: 0,
            r_key: Rkey(0),
            dma_len: 0,
            replay: Replay::new(0),
            reply: Reply::new(),
            ahead: Ahead::default(),
            dropping: false,
        }
    }

    /// Starts to expect `rq_psn` (INIT to RTR).
    pub(crate) fn start(&mut self, ep: &Endpoint) {
        self.reset();
        self.expected = u64::from(ep.attr.rq_psn.value());
        self.replay = Replay::new(usize::from(ep.attr.max_dest_rd_atomic));
    }

    /// Sets how many READs and atomics are kept for replay, forgetting those that are.
    pub(crate) fn set_fetch_limit(&mut self, limit: u8) {
        self.replay = Replay::new(usize::from(limit));
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        self.expected = 0;
        self.msn = Msn::new(0);
        self.message = Message::None;
        self.holds_wqe = false;
        self.received = 0;
        self.ahead = Ahead::default();
        self.dropping = false;
        self.silence();
    }

    /// Forgets every answer that was not sent.
    pub(crate) fn silence(&mut self) {
        self.replay.clear();
        self.reply = Reply::new();
    }

    /// Completes the receive work request in hand with this status. Returns whether there was one.
    pub(crate) fn fail_wqe(&mut self, status: WcStatus, ep: &mut Endpoint) -> bool {
        if !core::mem::take(&mut self.holds_wqe) {
            return false;
        }
        ep.fail_recv(self.srqn, self.wqe.wr_id, status);
        true
    }

    /// A request packet on a reliable connection. An error is a fault that is not mended by dropping the packet.
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
        self.ahead.watch(position);
        if distance < 0 {
            return Ok(self.handle_duplicate(position, packet, mem, srqs, ep));
        }
        if distance > 0 {
            return Ok(self.handle_early(now, position, packet, reorder, ep));
        }
        self.reply.expected_arrived();
        self.execute_next(packet, mem, srqs, ep)?;
        if self.ahead.is_beyond(self.expected) {
            self.execute_kept(now, reorder, mem, srqs, ep)?;
        }
        Ok(Ok(()))
    }

    /// Executes the packet that is next in order, and acknowledges it if it asks for that.
    #[inline]
    pub(crate) fn execute_next(
        &mut self,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let position = self.expected;
        self.execute(packet, mem, srqs, ep)?;
        if packet.bth.ack_req && !packet_is_fetch(packet) {
            self.reply.request_ack(position);
        }
        Ok(())
    }

    /// Executes the packet that is next in order, checking it on the way. Nothing changes when it is refused, but a
    /// receive work request may have been taken.
    #[inline]
    pub(crate) fn execute(
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

    /// The queue that a message takes its receive from. On XRC the packet names it, all packets of a message the same one.
    #[inline]
    fn choose_queue<'a>(
        &mut self,
        packet: &Packet<'_>,
        srqs: &'a mut impl SrqTable,
        ep: &Endpoint,
    ) -> Result<&'a mut RecvQueue, Fault> {
        if ep.ty != QpType::XrcTgt {
            self.pd = ep.pd;
            return srqs.own().ok_or(Fault::NoReceiveWqe);
        }
        let srqn = packet.xrceth().map(|header| header.srqn);
        if self.message != Message::None && srqn != self.srqn {
            return Err(Fault::Opcode);
        }
        let rq = srqn.and_then(|srqn| srqs.xrc(srqn)).ok_or(Fault::XrcSrq)?;
        (self.srqn, self.pd) = (srqn, rq.pd());
        Ok(rq)
    }

    /// First and Only start a message, Middle and Last continue one of the same kind.
    #[inline]
    fn check_order(&self, position: Position, kind: Message) -> Result<(), Fault> {
        let fits = if position.starts() { self.message == Message::None } else { self.message == kind };
        if fits { Ok(()) } else { Err(Fault::Opcode) }
    }

    /// A SEND packet.
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
            self.received = 0;
        }
        check_payload(packet, ep.mtu)?;
        if self.received + payload.len() as u64 > self.wqe.room {
            return Err(Fault::RecvTooLong);
        }
        self.wqe.write(mem, self.received, payload).map_err(|_| Fault::RecvWqeProtection)?;
        self.received += payload.len() as u64;
        ep.counters.rcvd_bytes += payload.len() as u64;
        if !position.ends() {
            self.message = Message::Send;
            self.expected += 1;
            return Ok(());
        }
        let mut wc = Wc { opcode: WcOpcode::Recv, ..self.recv_wc(packet, ep) };
        if let Some(r_key) = packet.ieth() {
            mem.invalidate(self.pd, ep.qpn, r_key).map_err(|_| Fault::Invalidate)?;
            wc.imm_data = r_key.0.to_ne_bytes();
            wc.wc_flags |= Wc::WITH_INV;
        }
        self.message_done(false, position);
        self.deliver(wc, packet, ep);
        Ok(())
    }

    /// A WRITE packet. Bytes are placed in order, the last one last.
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
                mem.check_remote(self.pd, ep.qpn, reth.r_key, reth.va, whole, Access::REMOTE_WRITE)
                    .map_err(Fault::from_access)?;
            }
            (self.va, self.r_key, self.dma_len, self.received) = (reth.va, reth.r_key, reth.dma_len, 0);
        } else {
            let left = u64::from(self.dma_len) - self.received;
            let ends = row.position.ends();
            if (ends && length != left) || (!ends && length >= left) {
                return Err(Fault::Length);
            }
        }
        // IBA C9-88: neither key nor address of a zero-length message are looked at.
        if !payload.is_empty() {
            let va = self.va.wrapping_add(self.received);
            mem.write_remote(self.pd, ep.qpn, self.r_key, va, payload).map_err(Fault::from_access)?;
        }
        self.received += length;
        ep.counters.rcvd_bytes += length;
        if !row.position.ends() {
            self.message = Message::Write;
            self.expected += 1;
            return Ok(());
        }
        self.message_done(row.operation == Operation::Write, row.position);
        if row.operation == Operation::WriteImm {
            let wc = Wc { opcode: WcOpcode::RecvRdmaWithImm, ..self.recv_wc(packet, ep) };
            self.deliver(wc, packet, ep);
        }
        Ok(())
    }

    /// A READ request: its answer is made when it is sent.
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
            mem.check_remote(self.pd, ep.qpn, reth.r_key, reth.va, length, Access::REMOTE_READ)
                .map_err(Fault::from_access)?;
        }
        let packets = length.div_ceil(ep.mtu as u64).max(1);
        let answer = Answer::Read { pd: self.pd, va: reth.va, r_key: reth.r_key, dma_len: reth.dma_len };
        self.push_answer(packets, answer);
        Ok(())
    }

    /// An atomic: executed now, answered in turn.
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
        let original =
            mem.atomic_remote(self.pd, ep.qpn, eth.r_key, eth.va, op).map_err(Fault::from_access)?;
        self.push_answer(1, Answer::Atomic { original });
        Ok(())
    }

    pub(crate) fn push_answer(&mut self, packets: u64, answer: Answer) {
        let first = self.expected;
        self.expected += packets;
        self.msn = self.msn.advance(1);
        self.replay.push(Entry::new(first, self.expected, self.msn, answer));
        self.reply.answered_by_fetch(first);
    }

    /// A request that was executed before: it is not executed again, but answered.
    fn handle_duplicate(
        &mut self,
        position: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), DropReason> {
        ep.counters.duplicate_request += 1;
        let answered = match packet.row().operation {
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
                self.reply.repeat_ack(self.expected.wrapping_sub(1));
                true
            }
        };
        if answered { Ok(()) } else { Err(DropReason::Duplicate) }
    }

    /// Takes a receive work request for the current message, unless it has one.
    #[inline]
    fn take_wqe(&mut self, rq: &mut RecvQueue, ep: &mut Endpoint) -> Result<(), Fault> {
        if self.holds_wqe {
            return Ok(());
        }
        if !ep.events.has_recv_room() {
            return Err(Fault::NoReceiveWqe);
        }
        let taken = rq.take(&mut self.wqe).ok_or(Fault::NoReceiveWqe)?;
        self.holds_wqe = true;
        if taken.limit_reached && (ep.srq || self.srqn.is_some()) {
            ep.events.push_limit(self.srqn);
        }
        Ok(())
    }

    #[inline]
    fn recv_wc(&self, packet: &Packet<'_>, ep: &Endpoint) -> Wc {
        let imm = packet.imm();
        Wc {
            wr_id: self.wqe.wr_id,
            byte_len: self.received as u32,
            imm_data: imm.unwrap_or_default(),
            wc_flags: if imm.is_some() { Wc::WITH_IMM } else { 0 },
            qp_num: ep.qpn.value(),
            src_qp: ep.attr.dest_qp.value(),
            ..Wc::default()
        }
    }

    /// Whether the rest of a message is still to come.
    #[inline]
    pub(crate) fn is_within_message(&self) -> bool {
        self.message != Message::None
    }

    /// `silent`: the application learns of the message only by looking at its memory.
    #[inline]
    fn message_done(&mut self, silent: bool, position: Position) {
        self.expected += 1;
        self.msn = self.msn.advance(1);
        self.message = Message::None;
        self.reply.message_arrived(silent, position == Position::Only);
    }

    #[inline]
    fn deliver(&mut self, wc: Wc, packet: &Packet<'_>, ep: &mut Endpoint) {
        self.holds_wqe = false;
        ep.counters.rdma_recvs += 1;
        ep.events.push_recv(self.srqn, wc, packet.bth.solicited);
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
#[path = "responder_tests.rs"]
mod tests;
