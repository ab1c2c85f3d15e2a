//! What the responder sends, in this order: READ responses and atomic results, since responses leave in PSN
//! order (IBA 9.7.5.1); then a NAK; then an ACK; then gap reports.

use wire::{Aeth, AtomicAckEth, Msn, NakCode, Syndrome};

use super::Responder;
use super::replay::Response;
use crate::completion_counts::CountedOp;
use crate::emit::{Buffer, Emitter, Transmit, acknowledge, psn_of, read_response_opcode, response_bth};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::requester::GAP_UNIT;
use crate::time::Instant;
use crate::wc_status::WcStatus;

impl Responder {
    /// Whether a response, NAK, ACK or gap report is due.
    #[inline]
    pub(crate) fn has_reply(&self) -> bool {
        self.ack.due().is_some() || self.nak.is_due() || self.owes_responses() || self.early.has_report()
    }

    /// Whether READ responses or atomic results are due.
    #[inline]
    pub(crate) fn owes_responses(&self) -> bool {
        self.replay.is_pending()
    }

    /// Whether a NAK is due that leaves even in the error state.
    pub(crate) fn owes_fatal_nak(&self) -> bool {
        self.nak.is_fatal_due()
    }

    /// Packets of the READ response that is due, if nothing precedes or follows it and none of it was sent;
    /// else 0.
    #[inline]
    pub(crate) fn isolated_packets(&self) -> u64 {
        self.replay.isolated_packets()
    }

    /// Number of the packet that the next response is for.
    pub(crate) fn responding_to(&self) -> u64 {
        self.replay.current().map_or(self.expected, |(_, cursor)| cursor.at)
    }

    /// Drops all responses.
    pub(crate) fn clear_responses(&mut self) {
        self.replay.clear();
    }

    /// The request at `position` cannot be executed yet.
    pub(crate) fn nak_not_ready(&mut self, position: u64, timer: u8) {
        self.nak.not_ready(position, timer);
    }

    /// The request at `position` is refused for good.
    pub(crate) fn nak_fatal(&mut self, position: u64, code: NakCode) {
        self.nak.refuse(position, code);
    }

    /// The receive batch is over. `may_delay`: this side could send a request and has sent all that was
    /// posted. `is_polled`: an application thread received the batch by polling.
    #[inline]
    pub(crate) fn end_of_batch(&mut self, now: Instant, may_delay: bool, is_polled: bool, mtu: usize) {
        self.arrivals.note(now, self.expected);
        if self.early.is_beyond(self.expected) && !self.nak.is_rnr_sent() {
            self.early.report_progress(self.expected);
        }
        self.ack.end_of_batch(now, may_delay && !self.is_within_message(), is_polled, mtu);
    }

    /// Makes an ACK due of everything that was executed, unless it has left.
    pub(crate) fn release_ack(&mut self) {
        if self.msn != Msn::default() {
            self.ack.finish(self.expected.wrapping_sub(1));
        }
    }

    /// Writes the next packet that is due.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<Option<Transmit>, Fault> {
        if self.replay.is_pending() {
            return self.transmit_response(mem, ep, buf);
        }
        let (syndrome, position, msn) = if let Some(nak) = self.nak.take() {
            self.ack.sent();
            (nak.syndrome, nak.position, self.msn)
        } else if let Some(position) = self.ack.due() {
            self.ack.sent();
            (Syndrome::ACK, position, self.msn)
        } else if let Some((first, packets)) = self.early.next_gap(self.expected) {
            // A gap report (see `requester/retransmit.rs`), which other requesters ignore as an old ACK.
            ep.counters.send_gap_report += 1;
            let furthest = Msn::new(psn_of(self.early.furthest()).value());
            (Syndrome::ACK, first.wrapping_sub(packets * GAP_UNIT), furthest)
        } else {
            return Ok(None);
        };
        let len = acknowledge(buf, ep, syndrome, psn_of(position), msn);
        Ok(Some(Transmit { len, is_datagram: false }))
    }

    /// Writes the next packet of a READ response, or an atomic result. A fault means that the memory was
    /// deregistered since the request arrived.
    fn transmit_response(
        &mut self,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Result<Option<Transmit>, Fault> {
        let Some((entry, cursor)) = self.replay.current() else { return Ok(None) };
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: entry.msn };
        let mut packet = Emitter::new(buf);
        let opcode = match entry.response {
            Response::Atomic { original } => {
                aeth.emit(packet.header());
                AtomicAckEth { original }.emit(packet.header());
                wire::Opcode::RC_ATOMIC_ACKNOWLEDGE
            }
            Response::Done => {
                aeth.emit(packet.header());
                wire::Opcode::RC_READ_RESPONSE_ONLY
            }
            Response::Read { pd, va, r_key, .. } => {
                let (starts, ends) = (cursor.at == cursor.start, cursor.at + 1 == cursor.end);
                if starts || ends {
                    aeth.emit(packet.header());
                }
                let offset = (cursor.at - entry.first) * ep.mtu as u64;
                let bytes = u64::from(cursor.end_byte).saturating_sub(offset).min(ep.mtu as u64);
                let payload = packet.payload(bytes as usize);
                if !payload.is_empty() {
                    let read = mem.read_remote(pd, ep.qpn, r_key, va.wrapping_add(offset), payload);
                    if let Err(fault) = read {
                        ep.count_completion(Some(CountedOp::RemoteRead), 0, WcStatus::LocAccessErr);
                        return Err(Fault::from_access(fault));
                    }
                    self.saved.restore(&entry, offset, payload);
                }
                ep.counters.sent_bytes += bytes;
                read_response_opcode(starts, ends)
            }
        };
        if let (true, Response::Read { dma_len, .. }) = (self.replay.advance(), entry.response) {
            ep.count_completion(Some(CountedOp::RemoteRead), u64::from(dma_len), WcStatus::Success);
        }
        let len = packet.finish(response_bth(opcode, ep, psn_of(cursor.at)));
        Ok(Some(Transmit { len, is_datagram: false }))
    }
}
