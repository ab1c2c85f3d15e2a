//! Segmentation: writes one packet of a work request, with the headers that its place in the message needs
//! (IBA 9.4, 9.7.3). `transmit.rs` decides which packet.

use wire::{AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Opcode, PKey, Reth, Xrceth};

use super::send_queue::SendWqe;
use super::{Fetch, Requester};
use crate::cause::Cause;
use crate::emit::{Buffer, Emitter, psn_of, rc_opcode};
use crate::endpoint::Endpoint;
use crate::in_flight::full_packets;
use crate::memory::{Access, Memory};
use crate::wr::{SendFlags, WrOp};

/// A READ request asks for at most this many bytes, so that the requester paces the responder.
const READ_REQUEST_BYTES: u64 = 64 * 1024;
/// A READ request asks for at most this many response packets.
const READ_REQUEST_PKTS: u64 = 64;

/// The part of a work request that one packet carries or asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Index of its work request.
    pub(super) index: u32,
    /// Number of the packet; for a READ request, of its first response.
    pub(super) first: u64,
    /// One past it; for a READ request, past its last response.
    pub(super) end: u64,
}

impl Requester {
    /// Writes one packet of a SEND or WRITE and returns its length.
    #[inline]
    pub(super) fn write_message(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ack_req: bool,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, Cause> {
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
            .map_err(Cause::of_send)?;
        let opcode = ep.ty.opcode(rc_opcode(&wqe.op, starts, ends));
        let solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
        ep.counters.sent_bytes += bytes as u64;
        Ok(packet.finish(Bth { opcode, solicited, ack_req, ..bth(part.first, ep) }))
    }

    /// Starts a request on a connection, with the header that XRC adds.
    #[inline]
    fn request<'a>(&self, part: Part, buf: &'a mut Buffer) -> Emitter<'a> {
        let mut packet = Emitter::new(buf);
        if let Some(srqn) = self.sq.srqn(part.index) {
            Xrceth { srqn }.emit(packet.header());
        }
        packet
    }

    /// Writes a READ request, atomic or FLUSH for the first time, or again after going back.
    pub(super) fn begin_fetch(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, Cause> {
        if ep.attr.max_rd_atomic == 0 {
            return Err(Cause::NoReads);
        }
        if part.first == wqe.first && wqe.op.scatters() {
            for sge in self.sq.sges(part.index).iter().filter(|sge| sge.length > 0) {
                mem.check_local(ep.pd, sge.lkey, sge.addr, u64::from(sge.length), Access::LOCAL_WRITE)
                    .map_err(Cause::of_send)?;
            }
        }
        let len = self.write_fetch(part, wqe, mem, ep, buf)?;
        // A retransmitted request is still in the ring.
        if !self.window.is_resending() {
            self.acks.asked();
            if !self.fetches.in_flight.push(Fetch { first: part.first, end: part.end }) {
                return Err(Cause::NotPossible);
            }
        }
        Ok(len)
    }

    /// Writes a READ request for a part of a message, an atomic, or a FLUSH.
    pub(super) fn write_fetch(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ep: &Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, Cause> {
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
                self.sq.read_payload(part.index, mem, ep.pd, 0, packet.payload(8)).map_err(Cause::of_send)?;
            }
            _ => return Err(Cause::NotPossible),
        }
        let opcode = ep.ty.opcode(rc_opcode(&wqe.op, true, true));
        Ok(packet.finish(Bth { opcode, ack_req: true, ..bth(part.first, ep) }))
    }

    /// Writes a datagram.
    pub(super) fn write_datagram(
        &mut self,
        part: Part,
        wqe: &SendWqe,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<usize, Cause> {
        let dest = self.sq.destination(part.index).ok_or(Cause::NotPossible)?;
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
        self.sq.read_payload(part.index, mem, ep.pd, 0, packet.payload(bytes)).map_err(Cause::of_send)?;
        ep.counters.sent_bytes += bytes as u64;
        ep.datagram_dest = dest;
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

/// One past the last response packet of the READ request at `cursor`, and how many bytes the request asks
/// for. Requests end at fixed places of the message, so that a retransmitted request is a tail of the first
/// one.
#[inline]
pub(super) fn read_request_end(wqe: &SendWqe, cursor: u64, mtu: usize) -> (u64, u64) {
    let packets = full_packets(READ_REQUEST_BYTES, mtu).clamp(1, READ_REQUEST_PKTS);
    let at = cursor - wqe.first;
    let end = ((at / packets + 1) * packets).min(wqe.end - wqe.first);
    (wqe.first + end, bytes_before(wqe, wqe.first + end, mtu) - at * mtu as u64)
}
