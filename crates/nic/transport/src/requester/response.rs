//! What the requester does with responses: ACK, NAK, READ data, atomic results (IBA 9.7.5, 9.9.2).
//!
//! An ACK does not acknowledge a READ or atomic without its response; an ACK beyond one shows that the
//! response was lost ("implied NAK"). Responses behind a missing one are placed at once, because the
//! application leaves that memory alone until the work request completes; only the missing responses are
//! requested again.

use wire::{DropReason, NakCode, Operation, Packet, Position, Syndrome, rnr_timer_ns};

use super::peer::Remedy;
use super::retransmit::gap_of;
use super::{Requester, Step, window_pkts};
use crate::cause::Cause;
use crate::emit::psn_of;
use crate::endpoint::Endpoint;
use crate::in_flight::PROBE_MIN_NS;
use crate::memory::Memory;
use crate::recv_queue::scatter;
use crate::time::Instant;
use crate::trust::{self, Half};
use crate::wr::WrOp;

impl Requester {
    /// Handles a response packet.
    #[inline]
    pub(crate) fn handle_response(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<Step, DropReason> {
        let distance = packet.bth.psn.distance_from(psn_of(self.window.una()));
        let position = self.window.una().wrapping_add_signed(i64::from(distance));
        let aeth = packet.aeth();
        let syndrome = aeth.map(|aeth| aeth.syndrome);
        if distance < 0
            && self.peer.repeats_selectively()
            && matches!(syndrome, Some(Syndrome::Ack(_)))
            && let Some((first, packets)) = gap_of(self.window.una(), u64::from(distance.unsigned_abs()))
        {
            ep.counters.rcvd_gap_report += 1;
            self.silence.lost(now);
            let behind = first + packets;
            let furthest = aeth.and_then(|aeth| self.furthest_of(aeth.msn, behind)).unwrap_or(0);
            self.on_gap(now, first, behind, furthest);
            // The peer found the gap when the packet behind it arrived. When a READ request has arrived, its
            // responses are still in flight.
            self.window.reach(behind + 1);
            if self.fetches.at(furthest).is_none() {
                self.window.reach(furthest + 1);
            }
            return Ok(Step::Idle);
        }
        if distance < 0 || position >= self.window.next() {
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
            Operation::ReadResponse | Operation::AtomicAck => {
                self.on_response_data(now, position, packet, mem, ep)
            }
            _ => Err(DropReason::WrongService),
        }
    }

    /// Decides about a response from a UDP source port that the peer has not used for responses. It is
    /// believed, and the port is the peer's from then on, if it names the oldest or the youngest packet in
    /// flight, or any packet in flight for the second time in a row. The first response of a connection may
    /// name any packet in flight.
    ///
    /// # Errors
    /// The response is not believed.
    #[cold]
    pub(crate) fn admit_foreign(
        &self,
        now: Instant,
        packet: &Packet<'_>,
        port: u16,
        ep: &mut Endpoint,
    ) -> Result<(), DropReason> {
        let distance = packet.bth.psn.distance_from(psn_of(self.window.una()));
        let last = self.window.next().wrapping_sub(self.window.una()) as i64 - 1;
        let is_in_flight = (0..=last).contains(&i64::from(distance));
        let is_exact = is_in_flight && (distance == 0 || i64::from(distance) == last);
        let is_believed = ep.trust.knows_from_other(Half::Responses, port)
            || if ep.trust.is_new(Half::Responses) {
                is_in_flight
            } else {
                is_in_flight && !ep.trust.is_distrustful(now) && (ep.trust.is_repeated(port) || is_exact)
            };
        if is_believed {
            ep.trust.learn(Half::Responses, port);
            return Ok(());
        }
        let is_guess = trust::is_foreign_guess(distance);
        if is_guess {
            ep.on_guess(now, 1);
        }
        if ep.trust.is_new(Half::Responses) {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        }
        ep.counters.foreign_port += 1;
        Err(if is_guess { DropReason::GuessedPsn } else { DropReason::ForeignPort })
    }

    /// The first packet that only a READ response or atomic ack can acknowledge.
    #[inline]
    fn first_without_response(&self) -> u64 {
        self.fetches.in_flight.front().map_or(u64::MAX, |fetch| fetch.first.max(self.window.una()))
    }

    /// Acknowledges everything before `to`; restarts the retry counters and the timer if that is new, and
    /// returns whether it is.
    #[inline]
    fn acknowledge(&mut self, now: Instant, to: u64, ep: &mut Endpoint) -> bool {
        let (before, sent) = (self.window.una(), self.window.cursor());
        let is_new = self.progress(to, ep);
        if is_new {
            self.peer.on_ack(to, to - before, sent);
            self.rtt.acknowledged(to, now);
            if now > self.retry.timer_base().plus_ns(PROBE_MIN_NS) {
                self.silence_ended(now);
            }
            self.retry.progress(now, ep);
        }
        is_new
    }

    /// The peer executed everything before `to`: acknowledges that up to the first missing response. Returns
    /// whether any of it is new.
    #[inline]
    fn acknowledge_up_to(&mut self, now: Instant, to: u64, ep: &mut Endpoint) -> bool {
        let awaited = self.first_without_response();
        if awaited < to {
            return self.implied_nak(now, to, ep);
        }
        self.acknowledge(now, to, ep)
    }

    #[inline]
    fn on_ack(&mut self, now: Instant, position: u64, ep: &mut Endpoint) -> Step {
        self.acknowledge_up_to(now, position + 1, ep);
        self.report_failure(ep)
    }

    /// Responses before `to` are missing: requests them again, once per loss.
    #[cold]
    fn implied_nak(&mut self, now: Instant, to: u64, ep: &mut Endpoint) -> bool {
        self.fetches.executed = self.fetches.executed.max(to);
        let is_new = self.advance(now, ep);
        let awaited = self.first_without_response();
        if awaited < to && self.on_missing_responses(now, awaited, to) {
            ep.counters.completer_retry_err += 1;
            ep.counters.implied_nak_seq_err += 1;
            self.silence.lost(now);
        }
        is_new
    }

    /// Acknowledges as far as the responses are here and the peer has executed the requests between them.
    #[cold]
    fn advance(&mut self, now: Instant, ep: &mut Endpoint) -> bool {
        let mut is_new = false;
        loop {
            let awaited = self.first_without_response();
            let to = match self.fetches.in_flight.front() {
                Some(fetch) if awaited == self.window.una() => {
                    self.board.first_missing(self.window.una(), fetch.end)
                }
                _ => self.fetches.executed.min(awaited),
            };
            if !self.acknowledge(now, to, ep) {
                return is_new;
            }
            is_new = true;
        }
    }

    fn on_nak(&mut self, now: Instant, position: u64, code: NakCode, ep: &mut Endpoint) -> Step {
        if code == NakCode::PsnSequenceError {
            self.peer.on_sequence_nak(position);
        }
        let is_new = self.acknowledge_up_to(now, position, ep);
        if let Some(cause) = Cause::of_nak(code) {
            // Responses before it are missing. The peer refuses the request again when these have arrived.
            if self.window.una() < position {
                return Step::Idle;
            }
            self.complete_head(Err(cause), ep);
            return Step::Fatal;
        }
        ep.counters.rcvd_seq_err += 1;
        self.retry.reported();
        self.silence.lost(now);
        // The packet is about to be sent anyway, or the NAK is older than its retransmission.
        if position >= self.window.cursor() || self.retry.is_rnr_wait() || position < self.window.una() {
            return self.report_failure(ep);
        }
        if self.peer.repeats_selectively() && !self.on_gap(now, position, position + 1, 0) {
            return self.report_failure(ep);
        }
        if !is_new && self.peer.is_probe(position) && ep.attr.timeout != 0 {
            return self.repeat_probe(now, position, ep);
        }
        let numbers = self.fetches.at(position).map_or(1, |fetch| fetch.end - position);
        match self.peer.remedy(position, numbers, self.window.next(), window_pkts(ep.mtu)) {
            Remedy::Packets(packets) => {
                self.on_gap(now, position, position + packets, 0);
                self.report_failure(ep)
            }
            Remedy::GoBack => self.resend_from(now, position, is_new, ep),
        }
    }

    /// Goes back to `position`. Without progress (`is_new` is false) the ACK timeout goes on and uses up the
    /// retries; where there is no ACK timeout, each return without progress uses up one.
    fn resend_from(&mut self, now: Instant, position: u64, is_new: bool, ep: &mut Endpoint) -> Step {
        if is_new {
            self.retry.restart_timer(now);
        } else if ep.attr.timeout == 0 && !self.take_retry(ep) {
            return Step::Fatal;
        }
        self.retry.probed(now);
        self.go_back(position, ep);
        Step::Idle
    }

    /// The probe was NAKed again. A selective-repeat peer repeats its NAK for each later packet, while the
    /// probe may wait in a queue behind them. So the probe is repeated once per round-trip time, until
    /// `timeout` and `retry_cnt` end it.
    fn repeat_probe(&mut self, now: Instant, position: u64, ep: &Endpoint) -> Step {
        if now >= self.retry.quiet_since().plus_ns(self.rtt.period_ns()) {
            self.retry.probed(now);
            self.go_back(position, ep);
        }
        Step::Idle
    }

    fn on_rnr_nak(&mut self, now: Instant, position: u64, code: u8, ep: &mut Endpoint) -> Step {
        ep.counters.rcvd_rnr_err += 1;
        self.retry.reported();
        self.acknowledge_up_to(now, position, ep);
        if self.retry.is_rnr_wait() || self.window.una() < position {
            return Step::Idle;
        }
        if !self.retry.begin_rnr_wait(now.plus_ns(rnr_timer_ns(code)), ep) {
            ep.counters.retry_rnr_exceeded_err += 1;
            self.complete_head(Err(Cause::NotReady), ep);
            return Step::Fatal;
        }
        if self.peer.repeats_selectively() && position < self.window.cursor() {
            self.board.lose(position);
        } else {
            self.go_back(position, ep);
        }
        Step::Idle
    }

    /// READ data or the result of an atomic.
    #[inline]
    fn on_response_data(
        &mut self,
        now: Instant,
        position: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<Step, DropReason> {
        let Some(fetch) = self.fetches.in_flight.front().copied() else {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        };
        if position != fetch.first.max(self.window.una()) {
            return self.on_early_response(now, position, packet, mem, ep);
        }
        // The response acknowledges everything before it, which makes its own work request the oldest.
        self.acknowledge(now, position, ep);
        if let Err(cause) = self.place(self.sq.head(), position, fetch.end, packet, mem, ep) {
            self.complete_head(Err(cause), ep);
            return Ok(Step::Fatal);
        }
        self.fetches.seen = self.fetches.seen.max(position + 1);
        let one_by_one = !self.peer.responds_to_parts();
        self.note_part_response(position, packet);
        self.acknowledge(now, position + 1, ep);
        if self.board.is_in_use() || self.fetches.executed > self.window.una() {
            self.advance(now, ep);
        }
        if one_by_one && self.board.is_in_use() && self.window.una() < self.fetches.seen {
            self.on_missing_responses(now, self.window.una(), self.fetches.seen);
        }
        Ok(self.report_failure(ep))
    }

    /// READ data or the result of an atomic, while a response before it is missing.
    #[cold]
    fn on_early_response(
        &mut self,
        now: Instant,
        position: u64,
        packet: &Packet<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<Step, DropReason> {
        let fetch = self.fetches.at(position).filter(|_| !self.board.has_received(position));
        let Some(fetch) = fetch.filter(|_| position >= self.window.una() && position < self.window.cursor())
        else {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::StaleResponse);
        };
        // A response that does not fit is an error when it is next in order; here it is dropped.
        if self.place(self.index_of(position), position, fetch.end, packet, mem, ep).is_err() {
            ep.counters.ignored_responses += 1;
            return Err(DropReason::OutOfOrderResponse);
        }
        let one_by_one = !self.peer.responds_to_parts();
        self.note_part_response(position, packet);
        self.board.receive(position);
        self.window.reach(position + 1);
        // The peer executed everything before the request that it responds to.
        self.fetches.executed = self.fetches.executed.max(fetch.first);
        self.advance(now, ep);
        let again = self.board.age(now, self.rtt.period_ns());
        let from =
            if again || one_by_one { self.window.una() } else { self.fetches.seen.max(self.window.una()) };
        self.fetches.seen = self.fetches.seen.max(position + 1);
        if from < position && self.on_missing_responses(now, from, position) {
            ep.counters.completer_retry_err += 1;
            self.silence.lost(now);
        }
        Ok(self.report_failure(ep))
    }

    /// The opcode of the first response to a part of a READ shows whether the peer treats the part as a READ
    /// of its own.
    fn note_part_response(&mut self, position: u64, packet: &Packet<'_>) {
        if self.fetches.part != Some(position) {
            return;
        }
        self.fetches.part = None;
        if matches!(packet.row().position, Position::First | Position::Only) {
            self.peer.responded_to_part();
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
    ) -> Result<(), Cause> {
        let wqe = self.sq.wqe(index);
        let sges = self.sq.sges(index);
        if wqe.op.is_atomic() {
            let Some(result) = packet.atomic_ack_eth() else { return Err(Cause::ResponseKind) };
            return scatter(mem, ep.pd, sges, 0, &result.original.to_ne_bytes()).map_err(Cause::of_send);
        }
        let row = packet.row();
        if !wqe.op.scatters() {
            let done = row.operation == Operation::ReadResponse
                && row.position == Position::Only
                && packet.payload().is_empty();
            return if done { Ok(()) } else { Err(Cause::ResponseKind) };
        }
        let (ends, fetch_ends) = (row.position.ends(), position + 1 == fetch_end);
        if !matches!(wqe.op, WrOp::Read { .. })
            || row.operation != Operation::ReadResponse
            || (ends != fetch_ends && !(ends && self.board.may_end(position)))
        {
            return Err(Cause::ResponseKind);
        }
        let offset = (position - wqe.first) * ep.mtu as u64;
        let expected = (u64::from(wqe.length) - offset).min(ep.mtu as u64);
        let payload = packet.payload();
        if payload.len() as u64 != expected {
            return Err(Cause::ResponseLength);
        }
        ep.counters.rcvd_bytes += payload.len() as u64;
        scatter(mem, ep.pd, sges, offset, payload).map_err(Cause::of_send)
    }
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
