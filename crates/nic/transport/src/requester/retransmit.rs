//! Retransmission of single packets: gaps that the peer reports, missing responses, and probes (IBA
//! 9.7.5.1.1).
//!
//! A NAK names the first gap only. A roxie responder reports further gaps by ACKs that name old packets,
//! which every other requester ignores (see [`gap_of`]). In the place of the MSN it has the PSN of the
//! furthest packet that has arrived. A gap report can cause a retransmission and opens the window, but never
//! acknowledges anything.

use wire::{Msn, Psn};

use super::segment::Part;
use super::{Fetch, Requester, Step};
use crate::emit::{Buffer, Transmit, psn_of};
use crate::endpoint::Endpoint;
use crate::in_flight::SPAN;
use crate::memory::Memory;
use crate::responder::REACH_MIN;
use crate::time::Instant;

/// A gap of n packets is reported by an ACK that names the packet n times this many before the gap. A
/// multiple of [`SPAN`], so that a late ACK is not taken for a report.
pub(crate) const GAP_UNIT: u64 = 2 * SPAN;
/// After this many probes without progress, and after each second one from then on, the requester repeats a
/// READ request up to the last packet of the READ: some responders repeat responses only for such a request.
/// After the other probes the repeated request ends where an earlier request for the same packets ended: a
/// responder that executed the earlier request as a READ of its own drops a duplicate that is longer.
const PROBES_FOR_TAIL: u8 = 3;

/// The gap (first packet, number of packets) that an ACK `back` packets before `una` reports; `None` if it
/// reports none.
pub(super) fn gap_of(una: u64, back: u64) -> Option<(u64, u64)> {
    let offset = (GAP_UNIT - back % GAP_UNIT) % GAP_UNIT;
    let packets = (offset + back) / GAP_UNIT;
    (offset + packets <= SPAN).then_some((una + offset, packets))
}

impl Requester {
    /// Sends the first lost packet. Lost packets that follow it in a READ are requested together with it.
    #[cold]
    pub(super) fn retransmit_lost(
        &mut self,
        now: Instant,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Step {
        let first = self.board.first_lost(self.window.una(), self.window.cursor());
        if first == self.window.cursor() {
            debug_assert!(false, "a lost packet outside the window");
            self.board.going_back(self.window.una(), self.window.una() + SPAN);
            return Step::Idle;
        }
        let index = self.index_of(first);
        let wqe = *self.sq.wqe(index);
        let fetch = self.fetches.at(first);
        let end = match fetch {
            None => first + 1,
            Some(fetch) if self.asks_for_tail() => fetch.end,
            Some(fetch) => {
                let end = self.board.first_not_lost(first, fetch.end);
                self.board.first_end(first, end)
            }
        };
        let part = Part { index, first, end };
        let written = match fetch {
            Some(fetch) => {
                self.board.set_end(end - 1);
                if first > fetch.first {
                    self.fetches.part = Some(first);
                }
                self.write_fetch(part, &wqe, mem, ep, buf)
            }
            None => self.write_message(part, &wqe, mem, true, ep, buf),
        };
        let len = match written {
            Ok(len) => len,
            Err(_) if self.leaves_out_probe(ep) => {
                self.board.retransmitted(first, end, self.window.next());
                return Step::Idle;
            }
            Err(status) => {
                // The memory was deregistered. Packets before this one may still succeed, those behind are
                // not needed.
                self.go_back(first, ep);
                return self.fail(status, ep);
            }
        };
        self.note_sent(now, end, true);
        self.board.age(now, self.rtt.period_ns());
        self.board.retransmitted(first, end, self.window.next());
        self.rtt.retransmitted(first, first == self.window.una(), now);
        ep.counters.retransmitted_pkts += 1;
        Step::Sent(Transmit { len, is_datagram: false })
    }

    /// Whether a READ is requested again up to its end, whatever was requested of it before.
    fn asks_for_tail(&self) -> bool {
        let probes = self.retry.probes();
        probes >= PROBES_FOR_TAIL && probes % 2 == PROBES_FOR_TAIL % 2
    }

    /// The furthest packet that has arrived at the peer, by the MSN of its report of a gap that ends before
    /// `behind`; `None` if that is not in flight behind the gap. Older versions of roxie sent the MSN there.
    pub(super) fn furthest_of(&self, msn: Msn, behind: u64) -> Option<u64> {
        let ahead = Psn::new(msn.value()).distance_from(psn_of(self.window.una()));
        let furthest = self.window.una().checked_add_signed(i64::from(ahead))?;
        (ahead >= 0 && (behind..self.window.cursor()).contains(&furthest)).then_some(furthest)
    }

    /// The peer reports `first..end` missing when `furthest` has arrived (0: unknown). Returns whether any of
    /// it is new.
    pub(super) fn on_gap(&mut self, now: Instant, first: u64, end: u64, furthest: u64) -> bool {
        self.retry.reported();
        self.board.age(now, self.rtt.period_ns());
        let mut is_new = false;
        let mut at = first.max(self.window.una());
        while at < end.min(self.window.cursor()) {
            // A READ or atomic is one request packet, however many packet numbers it takes.
            match self.fetches.at(at) {
                Some(fetch) => {
                    is_new |= self.miss(fetch, fetch.first.max(self.window.una()), fetch.end);
                    at = fetch.end;
                }
                None => {
                    is_new |= self.board.report(at, furthest);
                    at += 1;
                }
            }
        }
        is_new
    }

    /// Responses between `first` and `end` are missing although later ones arrived. Returns whether any of
    /// that is new.
    pub(super) fn on_missing_responses(&mut self, now: Instant, first: u64, end: u64) -> bool {
        self.board.age(now, self.rtt.period_ns());
        let (oldest, youngest) = self.fetches.in_flight.bounds();
        let mut is_new = false;
        for i in 0..youngest.wrapping_sub(oldest) {
            match self.fetches.in_flight.get(oldest.wrapping_add(i)).copied() {
                Some(fetch) if fetch.first < end => {
                    is_new |= self.miss(fetch, fetch.first.max(first), fetch.end.min(end));
                }
                _ => break,
            }
        }
        is_new
    }

    /// Reports those of `from..to` that are in flight missing. To a peer that may not respond to an earlier
    /// part of a READ after a later one, only the first gap of the READ is reported.
    fn miss(&mut self, fetch: Fetch, from: u64, to: u64) -> bool {
        let to = to.min(self.window.cursor());
        if !self.peer.responds_to_parts() {
            let first = self.board.first_missing(fetch.first.max(self.window.una()), fetch.end);
            let end = to.min(self.board.first_received(first, fetch.end));
            if first >= end || !self.board.report(first, 0) {
                return false;
            }
            (first + 1..end).for_each(|position| {
                self.board.lose(position);
            });
            return true;
        }
        let mut is_new = false;
        for position in from..to.max(from) {
            is_new |= self.board.report(position, 0);
        }
        is_new
    }

    /// The peer is silent: retransmits the oldest packet in case it was lost, and a later one so that the
    /// peer NAKs what it misses: the youngest that it keeps although nothing before it has arrived. If it
    /// drops the later one, it NAKs only the packet behind the oldest, and two packets arrive per timeout.
    pub(super) fn probe(&mut self, now: Instant) {
        let (una, cursor) = (self.window.una(), self.window.cursor());
        if una >= cursor {
            return;
        }
        self.lose(una);
        // Nothing else shows that responses were lost when no later one follows.
        self.on_missing_responses(now, una, self.fetches.seen);
        let kept = una + REACH_MIN - 1;
        // A READ that begins at `una` or before is requested again already, and covers all that is kept.
        let is_request = self.fetches.at(kept).is_none_or(|fetch| fetch.first > una);
        self.probe_at(if kept < cursor && is_request { kept } else { cursor - 1 });
    }

    /// Retransmits the youngest packet in flight, of which there is one: a retransmission sets AckReq.
    pub(super) fn probe_youngest(&mut self) {
        debug_assert!(self.window.una() < self.window.cursor());
        self.probe_at(self.window.cursor() - 1);
    }

    fn probe_at(&mut self, position: u64) {
        // Its responses are arriving: no probe is needed.
        let fetch = self.fetches.at(position);
        if fetch.is_none_or(|fetch| self.board.first_received(fetch.first, fetch.end) == fetch.end) {
            self.lose(position);
        }
    }

    /// Takes a packet for lost, however recently it was retransmitted; of a READ, all responses up to the
    /// next that is here.
    fn lose(&mut self, position: u64) {
        let (first, end) = match self.fetches.at(position) {
            None => (position, position + 1),
            Some(fetch) => {
                let first = fetch.first.max(self.window.una());
                (first, self.board.first_received(first, fetch.end.min(self.window.cursor())))
            }
        };
        for position in first..end {
            self.board.lose(position);
        }
    }

    /// Index of the work request that a packet between `una` and `cursor` belongs to.
    pub(super) fn index_of(&self, position: u64) -> u32 {
        let mut index = self.sq.head();
        while self.sq.wqe(index).end <= position && index.wrapping_add(1) != self.sq.tail() {
            index = index.wrapping_add(1);
        }
        index
    }
}

#[cfg(test)]
#[path = "retransmit_tests.rs"]
mod tests;
