//! Segmentation: one packet of a work request, from the headers that belong to its place in the message to the payload
//! (IBA 9.4, 9.7.3). The requester decides which packet, this file writes it.

use wire::{AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Opcode, PKey, Reth, Xrceth};

use crate::attr::QpState;
use crate::emit::{Buffer, Emitter, psn_of, rc_opcode};
use crate::endpoint::Endpoint;
use crate::memory::{Access, Memory};
use crate::requester::{Fetch, Requester, full_packets};
use crate::wc::WcStatus;
use crate::wqe::SendWqe;
use crate::wr::{SendFlags, WrOp};

/// A READ is issued in pieces of at most this many bytes, so that the requester paces the responder.
const READ_CHUNK: u64 = 64 * 1024;
/// ... and of at most this many response packets.
const READ_CHUNK_PKTS: u64 = 64;
/// An acknowledgement is asked for at least every so many packets, or full packets of so many bytes: every second burst.
const ACK_INTERVAL_PKTS: u64 = 124;
const ACK_INTERVAL_BYTES: u64 = 124 * 1024;

/// Packets from one that asks for an acknowledgement to the next at most.
#[inline]
pub(crate) fn ack_interval(mtu: usize) -> u64 {
    ACK_INTERVAL_PKTS.min(full_packets(ACK_INTERVAL_BYTES, mtu))
}

/// What one packet carries, or asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Index of its work request.
    pub(crate) index: u32,
    /// Number of the packet; of a READ request, that of the first response.
    pub(crate) first: u64,
    /// One past it; of a READ request, past the last response.
    pub(crate) end: u64,
}

impl Requester {
    /// One packet of a SEND or WRITE; returns its length.
    #[inline]
    pub(crate) fn write_message(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ack_req: bool,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, WcStatus> {
        let at = part.first - wqe.first;
        let last = part.end == wqe.end;
        let offset = at * ep.mtu as u64;
        let bytes = (u64::from(wqe.length) - offset).min(ep.mtu as u64) as usize;
        let whole = ep.equal_writes && ep.ty.is_reliable() && matches!(wqe.op, WrOp::Write { .. });
        let (starts, ends) = (whole || at == 0, whole || last);
        let mut packet = self.request(part, buf);
        match wqe.op {
            WrOp::Write { remote_addr, r_key } | WrOp::WriteImm { remote_addr, r_key, .. } if starts => {
                let (va, dma_len) = if whole {
                    (remote_addr.wrapping_add(offset), bytes as u32)
                } else {
                    (remote_addr, wqe.length)
                };
                Reth { va, r_key, dma_len }.emit(packet.header());
            }
            _ => {}
        }
        match wqe.op {
            WrOp::SendImm(imm) | WrOp::WriteImm { imm, .. } if ends => ImmDt(imm).emit(packet.header()),
            WrOp::SendInv(r_key) if ends => Ieth { r_key }.emit(packet.header()),
            _ => {}
        }
        self.sq
            .read_payload(part.index, mem, ep.pd, offset, packet.payload(bytes))
            .map_err(|_| WcStatus::LocProtErr)?;
        let opcode = ep.ty.opcode(rc_opcode(&wqe.op, starts, ends));
        let solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
        ep.counters.sent_bytes += bytes as u64;
        Ok(packet.finish(Bth { opcode, solicited, ack_req, ..bth(part.first, ep) }))
    }

    /// A request on a connection, behind the header that XRC adds.
    #[inline]
    fn request<'a>(&self, part: Part, buf: &'a mut Buffer) -> Emitter<'a> {
        let mut packet = Emitter::new(buf);
        if let Some(srqn) = self.sq.srqn(part.index) {
            Xrceth { srqn }.emit(packet.header());
        }
        packet
    }

    /// Whether this packet asks for an acknowledgement: now and then, and when nothing follows it at once but somebody waits.
    /// Each costs both sides a small packet's way through the kernel, so the end of a message alone is no reason.
    #[inline]
    pub(crate) fn ask(&mut self, wqe: &SendWqe, last: bool, budget: usize, ep: &Endpoint) -> bool {
        self.unasked += 1;
        if last {
            self.unasked_wrs += 1;
            self.is_awaited |= wqe.is_signaled(ep);
        }
        let full = budget <= 1 || self.in_flight() + 1 >= self.window(ep.mtu);
        let asks = full
            || (last && self.is_answer_wanted() && !self.is_followed(ep))
            || u64::from(self.unasked) >= ack_interval(ep.mtu);
        if asks {
            (self.unasked, self.unasked_wrs, self.is_awaited) = (0, 0, false);
        }
        self.is_answering &= !last;
        asks
    }

    /// Whether somebody waits to hear of what was sent since the last AckReq: the application for a completion, the send queue for
    /// room, or this side for what it sends again. And unless it answers the peer, a message may be one of many, which gather
    /// until an acknowledgement comes. All else is asked about after a while (`retry.rs`).
    #[inline]
    fn is_answer_wanted(&self) -> bool {
        self.is_awaited || !self.is_answering || self.cursor < self.next || self.sq.is_half(self.unasked_wrs)
    }

    /// Whether the work request behind the one at the cursor is a message that may be sent straight away.
    #[inline]
    fn is_followed(&self, ep: &Endpoint) -> bool {
        let next = self.cursor_index.wrapping_add(1);
        if next == self.sq.tail || ep.attr.state != QpState::Rts {
            return false;
        }
        let wqe = self.sq.wqe(next);
        let is_message = !wqe.op.is_fetch() && !wqe.op.is_local();
        is_message && wqe.fault.is_none() && !wqe.flags.contains(SendFlags::FENCE)
    }

    /// A READ request, atomic or FLUSH for the first time, or again after going back.
    pub(crate) fn begin_fetch(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, WcStatus> {
        if ep.attr.max_rd_atomic == 0 {
            return Err(WcStatus::LocQpOpErr);
        }
        if part.first == wqe.first && wqe.op.scatters() {
            for sge in self.sq.sges(part.index).iter().filter(|sge| sge.length > 0) {
                mem.check_local(ep.pd, sge.lkey, sge.addr, u64::from(sge.length), Access::LOCAL_WRITE)
                    .map_err(|_| WcStatus::LocProtErr)?;
            }
        }
        let len = self.write_fetch(part, wqe, mem, ep, buf)?;
        // One that is sent again is still in the ring.
        let fetch = Fetch { first: part.first, end: part.end };
        if self.cursor >= self.next && !self.fetches.push(fetch) {
            return Err(WcStatus::LocQpOpErr);
        }
        Ok(len)
    }

    /// A READ request for a part of a message, an atomic, or a FLUSH.
    pub(crate) fn write_fetch(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ep: &Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, WcStatus> {
        let mut packet = self.request(part, buf);
        match wqe.op {
            WrOp::Read { remote_addr, r_key } => {
                let offset = (part.first - wqe.first) * ep.mtu as u64;
                let bytes = bytes_before(wqe, part.end, ep.mtu) - offset;
                let va = remote_addr.wrapping_add(offset);
                Reth { va, r_key, dma_len: bytes as u32 }.emit(packet.header());
            }
            WrOp::CompareSwap { remote_addr, r_key, compare, swap } => {
                AtomicEth { va: remote_addr, r_key, swap_or_add: swap, compare }.emit(packet.header());
            }
            WrOp::FetchAdd { remote_addr, r_key, add } => {
                AtomicEth { va: remote_addr, r_key, swap_or_add: add, compare: 0 }.emit(packet.header());
            }
            WrOp::Flush { remote_addr, r_key, length, placement, selectivity } => {
                Feth { placement, selectivity }.emit(packet.header());
                Reth { va: remote_addr, r_key, dma_len: length }.emit(packet.header());
            }
            WrOp::AtomicWrite { remote_addr, r_key } => {
                Reth { va: remote_addr, r_key, dma_len: 8 }.emit(packet.header());
                self.sq
                    .read_payload(part.index, mem, ep.pd, 0, packet.payload(8))
                    .map_err(|_| WcStatus::LocProtErr)?;
            }
            _ => return Err(WcStatus::LocQpOpErr),
        }
        self.unasked = 0;
        let opcode = ep.ty.opcode(rc_opcode(&wqe.op, true, true));
        Ok(packet.finish(Bth { opcode, ack_req: true, ..bth(part.first, ep) }))
    }

    /// A whole datagram.
    pub(crate) fn write_datagram(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, WcStatus> {
        let dest = self.sq.destination(part.index).ok_or(WcStatus::LocQpOpErr)?;
        let controlled = dest.remote_qkey.is_controlled();
        let q_key = if controlled { ep.attr.q_key } else { dest.remote_qkey };
        let mut packet = Emitter::new(buf);
        Deth { q_key, src_qp: ep.qpn }.emit(packet.header());
        let opcode = match wqe.op {
            WrOp::SendImm(imm) => {
                ImmDt(imm).emit(packet.header());
                Opcode::UD_SEND_ONLY_IMM
            }
            _ => Opcode::UD_SEND_ONLY,
        };
        let bytes = wqe.length as usize;
        self.sq
            .read_payload(part.index, mem, ep.pd, 0, packet.payload(bytes))
            .map_err(|_| WcStatus::LocProtErr)?;
        ep.counters.sent_bytes += bytes as u64;
        let solicited = wqe.flags.contains(SendFlags::SOLICITED);
        Ok(packet.finish(Bth { opcode, solicited, dest_qp: dest.remote_qpn, ..bth(part.first, ep) }))
    }
}

#[inline]
fn bth(position: u64, ep: &Endpoint) -> Bth {
    Bth { p_key: PKey::DEFAULT, dest_qp: ep.attr.dest_qp, psn: psn_of(position), ..Bth::default() }
}

/// Bytes of a message in its packets before `end`.
#[inline]
fn bytes_before(wqe: &SendWqe, end: u64, mtu: usize) -> u64 {
    ((end - wqe.first) * mtu as u64).min(u64::from(wqe.length))
}

/// Where the READ request at `cursor` ends and how many bytes it asks for. Boundaries are multiples of the chunk from
/// the start of the message, so that a request that is sent again is a tail of the first one.
#[inline]
pub(crate) fn chunk(wqe: &SendWqe, cursor: u64, mtu: usize) -> (u64, u64) {
    let packets = full_packets(READ_CHUNK, mtu).clamp(1, READ_CHUNK_PKTS);
    let at = cursor - wqe.first;
    let end = ((at / packets + 1) * packets).min(wqe.end - wqe.first);
    (wqe.first + end, bytes_before(wqe, wqe.first + end, mtu) - at * mtu as u64)
}

#[cfg(test)]
#[path = "unsignaled_tests.rs"]
mod tests;
