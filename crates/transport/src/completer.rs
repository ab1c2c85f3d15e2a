//! What the requester does with responses: ACK, NAK, READ data, atomic results (IBA 9.7.5, 9.9.2).
//!
//! A response never acknowledges past a READ or atomic that was not answered; one that tries is taken as the news that
//! the answer was lost ("implied NAK").

use wire::{DropReason, NakCode, Operation, Packet, Position, Syndrome, rnr_timer_ns};

use crate::endpoint::Endpoint;
use crate::fault::status_of_nak;
use crate::memory::Memory;
use crate::recv_queue::scatter;
use crate::requester::{Requester, Step};
use crate::time::Instant;
use crate::wc::WcStatus;
use crate::wr::WrOp;

/// `rnr_retry` of 7 means without end.
const RNR_RETRY_FOREVER: u8 = 7;

impl Requester {
    /// A response packet for this queue pair.
    #[inline]
    pub(crate) fn handle_response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<Step, DropReason> {
        let distance = packet.bth.psn.distance_from(crate::emit::psn_of(self.una));
        let position = self.una.wrapping_add_signed(i64::from(distance));
        if distance < 0 || position >= self.next {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        }
        match packet.row().operation {
            Operation::Ack => match packet.aeth().map(|aeth| aeth.syndrome) {
                Some(Syndrome::Ack(_)) => Ok(self.on_ack(now, position, ep)),
                Some(Syndrome::Nak(code)) => Ok(self.on_nak(now, position, code, ep)),
                Some(Syndrome::RnrNak(code)) => Ok(self.on_rnr_nak(now, position, code, ep)),
                Some(Syndrome::Reserved(_)) | None => {
                    ep.counters.ignored_responses += 1;
                    Err(DropReason::ReservedSyndrome)
                }
            },
            Operation::ReadResponse | Operation::AtomicAck => self.on_fetched(now, position, packet, mem, ep),
            _ => Err(DropReason::WrongService),
        }
    }

    /// The first packet that only a READ response or atomic ack can acknowledge.
    #[inline]
    fn first_unanswered(&self) -> u64 {
        self.fetches.front().map_or(u64::MAX, |fetch| fetch.first.max(self.una))
    }

    /// Acknowledges, reloads the retry counters and the timer. Returns whether it was news.
    #[inline]
    fn acknowledge(&mut self, now: Instant, to: u64, ep: &mut Endpoint) -> bool {
        let news = self.progress(to, ep);
        if news {
            self.reload_retries(ep);
            self.timer_base = now;
            self.restarted = false;
        }
        news
    }

    /// Acknowledges up to `to`, unless an answer before it is missing: then up to that, and goes back for it.
    /// Returns whether there was news; the error is the step to take when it went back, which may be fatal.
    #[inline]
    fn acknowledge_up_to(&mut self, now: Instant, to: u64, ep: &mut Endpoint) -> Result<bool, Step> {
        let unanswered = self.first_unanswered();
        if unanswered < to {
            Err(self.implied_nak(now, unanswered, ep))
        } else {
            Ok(self.acknowledge(now, to, ep))
        }
    }

    #[inline]
    fn on_ack(&mut self, now: Instant, position: u64, ep: &mut Endpoint) -> Step {
        match self.acknowledge_up_to(now, position + 1, ep) {
            Ok(_) => self.report_failure(ep),
            Err(step) => step,
        }
    }

    /// The answer at `position` is missing: once per loss, go back for it.
    fn implied_nak(&mut self, now: Instant, position: u64, ep: &mut Endpoint) -> Step {
        let news = self.acknowledge(now, position, ep);
        if self.restarted || self.rnr_until.is_some() {
            return Step::Idle;
        }
        ep.counters.completer_retry_err += 1;
        let step = self.resend_from(now, position, news, ep);
        self.restarted = true;
        step
    }

    fn on_nak(&mut self, now: Instant, position: u64, code: NakCode, ep: &mut Endpoint) -> Step {
        let news = match self.acknowledge_up_to(now, position, ep) {
            Ok(news) => news,
            Err(step) => return step,
        };
        let Some(status) = status_of_nak(code) else {
            ep.counters.rcvd_seq_err += 1;
            // Went back to it already and has not sent it again: the same loss reported twice.
            if self.cursor == position || self.rnr_until.is_some() {
                return self.report_failure(ep);
            }
            return self.resend_from(now, position, news, ep);
        };
        self.complete_head(status, ep);
        Step::Fatal
    }

    /// Goes back. Without progress since the last time it costs a retry, so that it ends some time.
    fn resend_from(&mut self, now: Instant, position: u64, news: bool, ep: &mut Endpoint) -> Step {
        if !news && !self.take_retry(ep) {
            return Step::Fatal;
        }
        self.go_back(position, ep);
        self.timer_base = now;
        Step::Idle
    }

    fn on_rnr_nak(&mut self, now: Instant, position: u64, code: u8, ep: &mut Endpoint) -> Step {
        ep.counters.rcvd_rnr_err += 1;
        if let Err(step) = self.acknowledge_up_to(now, position, ep) {
            return step;
        }
        if self.rnr_until.is_some() {
            return Step::Idle;
        }
        if ep.attr.rnr_retry != RNR_RETRY_FOREVER {
            let Some(left) = self.rnr_left.checked_sub(1) else {
                ep.counters.retry_rnr_exceeded_err += 1;
                self.complete_head(WcStatus::RnrRetryExcErr, ep);
                return Step::Fatal;
            };
            self.rnr_left = left;
        }
        self.go_back(position, ep);
        self.rnr_until = Some(now.plus_ns(rnr_timer_ns(code)));
        Step::Idle
    }

    /// READ data or the result of an atomic.
    #[inline]
    fn on_fetched(
        &mut self,
        now: Instant,
        position: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<Step, DropReason> {
        let Some(fetch) = self.fetches.front().copied() else {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        };
        let expected = fetch.first.max(self.una);
        if position < expected {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        }
        if position > expected {
            return match self.implied_nak(now, expected, ep) {
                Step::Idle => Err(DropReason::OutOfOrderResponse),
                step => Ok(step),
            };
        }
        // It acknowledges everything before it, which makes its own work request the oldest.
        self.acknowledge(now, position, ep);
        if let Err(status) = self.place(position, fetch.end, packet, mem, ep) {
            self.complete_head(status, ep);
            return Ok(Step::Fatal);
        }
        self.acknowledge(now, position + 1, ep);
        Ok(self.report_failure(ep))
    }

    /// Writes the data of one response to the memory of the oldest work request.
    #[inline]
    fn place(
        &self,
        position: u64,
        fetch_end: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<(), WcStatus> {
        let index = self.sq.head;
        let wqe = self.sq.wqe(index);
        let sges = self.sq.sges(index);
        if wqe.op.is_atomic() {
            let Some(result) = packet.atomic_ack_eth() else { return Err(WcStatus::BadRespErr) };
            return scatter(mem, ep.pd, sges, 0, &result.original.to_ne_bytes())
                .map_err(|_| WcStatus::LocProtErr);
        }
        let row = packet.row();
        if !wqe.op.scatters() {
            let done = row.operation == Operation::ReadResponse
                && row.position == Position::Only
                && packet.payload().is_empty();
            return if done { Ok(()) } else { Err(WcStatus::BadRespErr) };
        }
        let ends = position + 1 == fetch_end;
        if !matches!(wqe.op, WrOp::Read { .. })
            || row.operation != Operation::ReadResponse
            || row.position.ends() != ends
        {
            return Err(WcStatus::BadRespErr);
        }
        let offset = (position - wqe.first) * ep.mtu as u64;
        let expected = (u64::from(wqe.length) - offset).min(ep.mtu as u64);
        let payload = packet.payload();
        if payload.len() as u64 != expected {
            return Err(WcStatus::LocLenErr);
        }
        ep.counters.rcvd_bytes += payload.len() as u64;
        scatter(mem, ep.pd, sges, offset, payload).map_err(|_| WcStatus::LocProtErr)
    }
}

#[cfg(test)]
#[path = "completer_tests.rs"]
mod tests;
