//! What the requester does with responses: ACK, NAK, READ data, atomic results (IBA 9.7.5, 9.9.2).
//!
//! A response never acknowledges past a READ or atomic that was not answered; one that tries is taken as the news that
//! the answer was lost ("implied NAK"). Answers behind a missing one are placed where they belong, because that memory is
//! ours until the work request completes; only the missing ones are asked for again.

use wire::{DropReason, NakCode, Operation, Packet, Position, Syndrome, rnr_timer_ns};

use crate::endpoint::Endpoint;
use crate::fault::status_of_nak;
use crate::memory::Memory;
use crate::peer::Remedy;
use crate::recv_queue::scatter;
use crate::requester::{Requester, Step, window_pkts};
use crate::resend::gap_of;
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
        let syndrome = packet.aeth().map(|aeth| aeth.syndrome);
        if distance < 0
            && self.peer.keeps()
            && matches!(syndrome, Some(Syndrome::Ack(_)))
            && let Some((first, packets)) = gap_of(self.una, u64::from(distance.unsigned_abs()))
        {
            ep.counters.rcvd_gap_report += 1;
            self.on_gap(now, first, first + packets);
            // The peer knows of it by the packet behind.
            self.reached = self.reached.max((first + packets + 1).min(self.cursor));
            return Ok(Step::Idle);
        }
        if distance < 0 || position >= self.next {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        }
        match packet.row().operation {
            Operation::Ack => match syndrome {
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
        let (before, sent) = (self.una, self.cursor);
        let news = self.progress(to, ep);
        if news {
            self.peer.on_ack(to, to - before, sent);
            self.rtt.acknowledged(to, now);
            self.reload_retries(ep);
            self.timer_base = now;
            self.probes = 0;
        }
        news
    }

    /// The peer executed everything before `to`: acknowledges that, up to the first answer that is missing. Returns whether
    /// there was news.
    #[inline]
    fn acknowledge_up_to(&mut self, now: Instant, to: u64, ep: &mut Endpoint) -> bool {
        let unanswered = self.first_unanswered();
        if unanswered < to {
            return self.implied_nak(now, to, ep);
        }
        self.acknowledge(now, to, ep)
    }

    #[inline]
    fn on_ack(&mut self, now: Instant, position: u64, ep: &mut Endpoint) -> Step {
        self.acknowledge_up_to(now, position + 1, ep);
        self.report_failure(ep)
    }

    /// Answers before `to` are missing: they are asked for again, once per loss.
    #[cold]
    fn implied_nak(&mut self, now: Instant, to: u64, ep: &mut Endpoint) -> bool {
        self.acked = self.acked.max(to);
        let news = self.advance(now, ep);
        let unanswered = self.first_unanswered();
        if unanswered < to && self.on_missing_answers(now, unanswered, to) {
            ep.counters.completer_retry_err += 1;
            ep.counters.implied_nak_seq_err += 1;
        }
        news
    }

    /// Acknowledges as far as answers are here, and what the peer has acknowledged lies between them.
    #[cold]
    fn advance(&mut self, now: Instant, ep: &mut Endpoint) -> bool {
        let mut news = false;
        loop {
            let unanswered = self.first_unanswered();
            let to = match self.fetches.front() {
                Some(fetch) if unanswered == self.una => self.board.first_missing(self.una, fetch.end),
                _ => self.acked.min(unanswered),
            };
            if !self.acknowledge(now, to, ep) {
                return news;
            }
            news = true;
        }
    }

    fn on_nak(&mut self, now: Instant, position: u64, code: NakCode, ep: &mut Endpoint) -> Step {
        if code == NakCode::PsnSequenceError {
            self.peer.hear_nak(position);
        }
        let news = self.acknowledge_up_to(now, position, ep);
        if let Some(status) = status_of_nak(code) {
            // Answers before it are missing: it is refused again when they are here.
            if self.una < position {
                return Step::Idle;
            }
            self.complete_head(status, ep);
            return Step::Fatal;
        }
        ep.counters.rcvd_seq_err += 1;
        // It will be sent anyway, or was said to be missing before it was sent again.
        if position >= self.cursor || self.rnr_until.is_some() || position < self.una {
            return self.report_failure(ep);
        }
        if self.peer.keeps() && !self.on_gap(now, position, position + 1) {
            return self.report_failure(ep);
        }
        if !news && self.peer.is_asked(position) && ep.attr.timeout != 0 {
            return self.ask_again(now, position, ep);
        }
        let numbers = self.fetch_at(position).map_or(1, |fetch| fetch.end - position);
        match self.peer.on_nak(position, numbers, self.next, window_pkts(ep.mtu)) {
            Remedy::Packets(packets) => {
                self.on_gap(now, position, position + packets);
                self.report_failure(ep)
            }
            Remedy::GoBack => self.resend_from(now, position, news, ep),
        }
    }

    /// Goes back. Without progress since the last time the ACK timeout goes on, and uses up the retries; without one, this does.
    fn resend_from(&mut self, now: Instant, position: u64, news: bool, ep: &mut Endpoint) -> Step {
        if news {
            self.timer_base = now;
        } else if ep.attr.timeout == 0 && !self.take_retry(ep) {
            return Step::Fatal;
        }
        self.probed_at = now;
        self.go_back(position, ep);
        Step::Idle
    }

    /// The packet that is on its way alone is still missed. One that keeps says so as often as later packets arrive, while this
    /// one may wait in a queue behind them. So it is sent again now and then, and how long that goes on is what `timeout` and
    /// `retry_cnt` say.
    fn ask_again(&mut self, now: Instant, position: u64, ep: &Endpoint) -> Step {
        if now >= self.timer_base.max(self.probed_at).plus_ns(self.rtt.period_ns()) {
            self.probed_at = now;
            self.go_back(position, ep);
        }
        Step::Idle
    }

    fn on_rnr_nak(&mut self, now: Instant, position: u64, code: u8, ep: &mut Endpoint) -> Step {
        ep.counters.rcvd_rnr_err += 1;
        self.acknowledge_up_to(now, position, ep);
        if self.rnr_until.is_some() || self.una < position {
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
        // It is there: how often it may be silent is counted anew.
        self.retry_left = ep.attr.retry_cnt;
        if self.peer.keeps() && position < self.cursor {
            self.board.lose(position);
        } else {
            self.go_back(position, ep);
        }
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
        if position != fetch.first.max(self.una) {
            return self.on_fetched_early(now, position, packet, mem, ep);
        }
        // It acknowledges everything before it, which makes its own work request the oldest.
        self.acknowledge(now, position, ep);
        if let Err(status) = self.place(self.sq.head, position, fetch.end, packet, mem, ep) {
            self.complete_head(status, ep);
            return Ok(Step::Fatal);
        }
        self.seen = self.seen.max(position + 1);
        let one_by_one = !self.peer.answers_parts();
        self.hear_part(position, packet);
        self.acknowledge(now, position + 1, ep);
        if self.board.is_in_use() || self.acked > self.una {
            self.advance(now, ep);
        }
        if one_by_one && self.board.is_in_use() && self.una < self.seen {
            self.on_missing_answers(now, self.una, self.seen);
        }
        Ok(self.report_failure(ep))
    }

    /// An answer while one before it is missing.
    #[cold]
    fn on_fetched_early(
        &mut self,
        now: Instant,
        position: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<Step, DropReason> {
        let fetch = self.fetch_at(position).filter(|_| !self.board.has_received(position));
        let Some(fetch) = fetch.filter(|_| position >= self.una && position < self.cursor) else {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        };
        // One that does not fit is an error when it is its turn; until then it has not come.
        if self.place(self.index_of(position), position, fetch.end, packet, mem, ep).is_err() {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::OutOfOrderResponse);
        }
        let one_by_one = !self.peer.answers_parts();
        self.hear_part(position, packet);
        self.board.receive(position);
        self.reached = self.reached.max(position + 1);
        // Whoever answers this has executed everything before it.
        self.acked = self.acked.max(fetch.first);
        self.advance(now, ep);
        let again = self.board.age(now, self.rtt.period_ns());
        let from = if again || one_by_one { self.una } else { self.seen.max(self.una) };
        self.seen = self.seen.max(position + 1);
        if from < position && self.on_missing_answers(now, from, position) {
            ep.counters.completer_retry_err += 1;
        }
        Ok(self.report_failure(ep))
    }

    /// How the part of a READ that was asked for last begins shows what the peer takes it for.
    fn hear_part(&mut self, position: u64, packet: &Packet<'_>) {
        if self.part != Some(position) {
            return;
        }
        self.part = None;
        if matches!(packet.row().position, Position::First | Position::Only) {
            self.peer.hear_part();
        }
    }

    /// Writes the data of one response to the memory of its work request.
    #[inline]
    fn place(
        &self,
        index: u32,
        position: u64,
        fetch_end: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<(), WcStatus> {
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
        let (ends, fetch_ends) = (row.position.ends(), position + 1 == fetch_end);
        if !matches!(wqe.op, WrOp::Read { .. })
            || row.operation != Operation::ReadResponse
            || (ends != fetch_ends && !(ends && self.board.may_end(position)))
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
