//! Sending single packets again: what the peer reports missing, answers that did not come, and probes (IBA 9.7.5.1.1).
//!
//! A peer of ours names, besides the first gap in a NAK, further gaps by acknowledging once more something old, which every
//! requester ignores (see [`gap_of`]). That can only make a packet be sent again, never count as acknowledged.

use crate::emit::{Buffer, Transmit};
use crate::endpoint::Endpoint;
use crate::memory::Memory;
use crate::requester::{Fetch, Requester, Step};
use crate::scoreboard::SPAN;
use crate::segment::Part;
use crate::time::Instant;

/// A gap of n packets is told by an ACK n times as many packets before its first one. A multiple of [`SPAN`], so that no
/// ACK that was merely late is taken for one.
pub(crate) const GAP_UNIT: u64 = 2 * SPAN;
/// After so many probes in vain the rest of a READ request is asked for to its end: some responders repeat only that.
const PROBES_FOR_TAIL: u8 = 3;

/// The gap that an ACK `back` packets before `una` tells: where it begins and how many packets it has, if it is one.
pub(crate) fn gap_of(una: u64, back: u64) -> Option<(u64, u64)> {
    let offset = (GAP_UNIT - back % GAP_UNIT) % GAP_UNIT;
    let packets = (offset + back) / GAP_UNIT;
    (offset + packets <= SPAN).then_some((una + offset, packets))
}

impl Requester {
    /// Sends the first packet that is to be sent again; what follows it in a READ is asked for in the same request.
    #[cold]
    pub(crate) fn send_again(
        &mut self,
        now: Instant,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Step {
        let first = self.board.first_lost(self.una, self.cursor);
        if first == self.cursor {
            debug_assert!(false, "a lost packet outside the window");
            self.board.going_back(self.una, self.una + SPAN);
            return Step::Idle;
        }
        let index = self.index_of(first);
        let wqe = *self.sq.wqe(index);
        let fetch = self.fetch_at(first);
        let end = match fetch {
            None => first + 1,
            Some(fetch) if self.probes >= PROBES_FOR_TAIL => fetch.end,
            Some(fetch) => (first..fetch.end).find(|&at| !self.board.is_lost(at)).unwrap_or(fetch.end),
        };
        let part = Part { index, first, end };
        let written = match fetch {
            Some(fetch) => {
                self.board.set_end(end - 1);
                if first > fetch.first {
                    self.part = Some(first);
                }
                self.write_fetch(part, &wqe, mem, ep, buf)
            }
            None => self.write_message(part, &wqe, mem, true, ep, buf),
        };
        let len = match written {
            Ok(len) => len,
            Err(status) => {
                // The memory is gone. What is behind it is not needed any more, what is before it may still succeed.
                self.go_back(first, ep);
                return self.fail(status, ep);
            }
        };
        self.note_sent(now, end, true);
        self.board.age(now, self.rtt.period_ns());
        self.board.sent_again(first, end);
        self.rtt.sent_again(first, first == self.una, now);
        ep.counters.retransmitted_pkts += 1;
        Step::Sent(Transmit { len, is_datagram: false })
    }

    /// The peer reports `first..end` missing. Returns whether that is news.
    pub(crate) fn on_gap(&mut self, now: Instant, first: u64, end: u64) -> bool {
        self.board.age(now, self.rtt.period_ns());
        let mut news = false;
        let mut at = first.max(self.una);
        while at < end.min(self.cursor) {
            // A READ or atomic is one packet, however many numbers it takes; it is asked for as a whole.
            match self.fetch_at(at) {
                Some(fetch) => {
                    news |= self.miss(fetch, fetch.first.max(self.una), fetch.end);
                    at = fetch.end;
                }
                None => {
                    news |= self.board.report(at);
                    at += 1;
                }
            }
        }
        news
    }

    /// Answers between `first` and `end` did not come, although later ones did. Returns whether that is news.
    pub(crate) fn on_missing_answers(&mut self, now: Instant, first: u64, end: u64) -> bool {
        self.board.age(now, self.rtt.period_ns());
        let (oldest, youngest) = self.fetches.bounds();
        let mut news = false;
        for i in 0..youngest.wrapping_sub(oldest) {
            let Some(fetch) = self.fetches.get(oldest.wrapping_add(i)).copied() else { break };
            if fetch.first >= end {
                break;
            }
            news |= self.miss(fetch, fetch.first.max(first), fetch.end.min(end));
        }
        news
    }

    /// Reports those of `from..to` that are on their way; only the first gap of the READ to a peer that may not answer an earlier
    /// part of it once it was asked for a later one.
    fn miss(&mut self, fetch: Fetch, from: u64, to: u64) -> bool {
        let to = to.min(self.cursor);
        if !self.peer.answers_parts() {
            let first = self.board.first_missing(fetch.first.max(self.una), fetch.end);
            let end = to.min(self.board.first_received(first, fetch.end));
            if first >= end || !self.board.report(first) {
                return false;
            }
            (first + 1..end).for_each(|position| {
                self.board.lose(position);
            });
            return true;
        }
        let mut news = false;
        for position in from..to.max(from) {
            news |= self.board.report(position);
        }
        news
    }

    /// Nothing comes back: the oldest packet is sent again in case it is what is missing, and the youngest so that the peer
    /// says what it misses.
    pub(crate) fn probe(&mut self, now: Instant) {
        if self.una >= self.cursor {
            return;
        }
        self.lose(self.una);
        // Of answers that come no more nothing else tells.
        self.on_missing_answers(now, self.una, self.seen);
        self.question();
    }

    /// Sends the youngest packet again: what is sent again asks for an answer. The caller knows that one is on its way.
    pub(crate) fn question(&mut self) {
        debug_assert!(self.una < self.cursor);
        let last = self.cursor - 1;
        // Answers that are coming in need no question.
        if self
            .fetch_at(last)
            .is_none_or(|fetch| self.board.first_received(fetch.first, fetch.end) == fetch.end)
        {
            self.lose(last);
        }
    }

    /// A packet is sent again however recently that was done; of a READ, all answers up to the next that is here.
    fn lose(&mut self, position: u64) {
        let (first, end) = match self.fetch_at(position) {
            None => (position, position + 1),
            Some(fetch) => {
                let first = fetch.first.max(self.una);
                (first, self.board.first_received(first, fetch.end.min(self.cursor)))
            }
        };
        for position in first..end {
            self.board.lose(position);
        }
    }

    /// Index of the work request that a packet between `una` and `cursor` belongs to.
    pub(crate) fn index_of(&self, position: u64) -> u32 {
        let mut index = self.sq.head;
        while self.sq.wqe(index).end <= position && index.wrapping_add(1) != self.sq.tail {
            index = index.wrapping_add(1);
        }
        index
    }

    /// The READ request or atomic that an answer with this number belongs to.
    pub(crate) fn fetch_at(&self, position: u64) -> Option<Fetch> {
        let (oldest, youngest) = self.fetches.bounds();
        (0..youngest.wrapping_sub(oldest))
            .map_while(|i| self.fetches.get(oldest.wrapping_add(i)).copied())
            .find(|fetch| position < fetch.end)
            .filter(|fetch| fetch.first <= position)
    }
}

#[cfg(test)]
#[path = "resend_tests.rs"]
mod tests;
