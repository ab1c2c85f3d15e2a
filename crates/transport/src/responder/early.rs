//! Requests that arrive ahead of a missing one: they go to the reorder buffer, and the gaps are reported to
//! the peer.
//!
//! The NAK names the first gap. A requester that repeats selectively gets reports of the further gaps, by
//! ACKs that other requesters ignore (`requester/retransmit.rs`). The responder recognizes such a requester
//! when the first gap is closed: a go-back-N requester then retransmits the packets behind the gap, although
//! they are here.

use wire::{DropReason, Packet};

use super::Responder;
use crate::emit::psn_of;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::recv_queue::SrqTable;
use crate::reorder::ReorderBuffer;
use crate::requester::PacketSet;
use crate::time::Instant;

/// A gap is reported again when its retransmission takes longer than others took: the report or the
/// retransmission was lost. Never sooner than this, because each report costs both sides a packet.
const REPORT_MIN_NS: u64 = 25_000;
/// A gap is reported again after this at the latest.
const REPORT_MAX_NS: u64 = 2_000_000;
/// Packets behind a gap that a requester must leave out before it counts as selective. A go-back-N requester
/// appears selective if exactly these packets are lost a second time.
const PROOF: u64 = 8;

/// The requests of one queue pair that are in the reorder buffer, and the gaps between them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyRequests {
    episode: u64,
    /// One past the furthest packet kept. Nothing is kept unless this is beyond the expected packet.
    end: u64,
    kept: PacketSet,
    /// The packet behind one that closed a gap, and how many after that packet were here.
    behind: Option<(u64, u64)>,
    /// Packets that the requester did not retransmit because they were here.
    proof: u64,
    /// Gaps to be reported, each from a packet to a packet: those reported before, and new ones.
    reports: [(u64, u64); 2],
    /// When the gaps before `reported` are reported again.
    report_at: Instant,
    reported: u64,
    /// A packet that was reported missing, and when.
    timed: Option<(u64, Instant)>,
    /// From a report to the retransmission, smoothed; 0 before the first sample.
    repair_ns: u64,
}

impl EarlyRequests {
    /// Whether packets beyond this one are kept.
    #[inline]
    pub(super) fn is_beyond(&self, expected: u64) -> bool {
        self.end > expected
    }

    /// Notes whether the first request after a gap was closed is one that was here already.
    #[inline]
    pub(super) fn watch(&mut self, position: u64) {
        if let Some((behind, packets)) = self.behind {
            self.behind = None;
            self.proof = if position == behind { 0 } else { self.proof.saturating_add(packets) };
        }
    }

    /// Whether a gap report is due.
    #[inline]
    pub(super) fn has_report(&self) -> bool {
        self.reports.iter().any(|(from, to)| from < to)
    }

    /// The next gap to report: where it begins and how many packets it has.
    pub(super) fn next_gap(&mut self, expected: u64) -> Option<(u64, u64)> {
        for (from, to) in &mut self.reports {
            let first = self.kept.first((*from).max(expected), (*to).max(expected), false);
            if first < *to {
                *from = self.kept.first(first, *to, true);
                return Some((first, *from - first));
            }
            *to = 0;
        }
        None
    }

    /// The packets between `end` and `position` are missing as well. The NAK reports the expected one.
    fn new_gap(&mut self, now: Instant, expected: u64, position: u64) {
        self.timed = self.timed.or(Some((self.end, now)));
        if self.proof >= PROOF {
            let (from, to) = &mut self.reports[1];
            *from = if *from < *to { *from } else { self.end.max(expected + 1) };
            *to = position;
        }
    }

    /// Whether the gaps reported before must be reported again; sets the next time for that.
    fn is_overdue(&mut self, now: Instant, expected: u64) -> bool {
        if now < self.report_at || self.proof < PROOF {
            return false;
        }
        self.reports[0] = (expected + 1, self.reported);
        self.report_later(now);
        true
    }

    fn report_later(&mut self, now: Instant) {
        self.report_at = now.plus_ns(self.repair_ns.clamp(REPORT_MIN_NS, REPORT_MAX_NS));
        self.reported = self.end;
    }

    /// Takes a sample if the timed packet is here.
    fn time(&mut self, now: Instant, is_here: impl FnOnce(u64) -> bool) {
        if let Some((position, since)) = self.timed
            && is_here(position)
        {
            self.timed = None;
            let ns = now.since(since).as_nanos() as u64;
            self.repair_ns = if self.repair_ns == 0 { ns } else { (7 * self.repair_ns + ns) / 8 };
        }
    }
}

impl Responder {
    /// Keeps a request that arrived ahead of a missing one, and reports the gap before it.
    #[cold]
    pub(super) fn handle_early(
        &mut self,
        now: Instant,
        position: u64,
        packet: &Packet<'_>,
        reorder: &mut ReorderBuffer,
        ep: &mut Endpoint,
    ) -> Result<(), DropReason> {
        ep.counters.out_of_seq_request += 1;
        if self.nak.is_rnr_sent() {
            // The requester retransmits everything behind a request that was not accepted. A packet kept
            // until then, and displaced meanwhile by another queue pair, would look like a loss.
            return Err(DropReason::OutOfSequence);
        }
        if !self.nak.is_sent() {
            self.nak_gap(ep);
        }
        if position - self.expected >= reorder.reach() {
            return Err(DropReason::OutOfSequence);
        }
        let early = &mut self.early;
        if !early.is_beyond(self.expected) {
            *early = EarlyRequests {
                episode: reorder.begin_episode(),
                end: self.expected,
                proof: early.proof,
                repair_ns: early.repair_ns,
                ..EarlyRequests::default()
            };
            early.report_later(now);
        }
        if !reorder.keep(early.episode, position, packet.bytes()) {
            return Err(DropReason::OutOfSequence);
        }
        if position > early.end {
            early.new_gap(now, self.expected, position);
        }
        early.time(now, |timed| timed == position);
        early.end = early.end.max(position + 1);
        early.kept.insert(position);
        ep.counters.kept_request += 1;
        if early.is_overdue(now, self.expected) {
            self.nak_gap(ep);
        }
        Ok(())
    }

    /// Executes the requests that were kept behind the one just executed, up to the next gap, and reports
    /// that gap.
    #[cold]
    pub(super) fn execute_kept(
        &mut self,
        now: Instant,
        reorder: &ReorderBuffer,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let behind = self.expected;
        self.early.time(now, |timed| timed < behind);
        while let Some(bytes) = reorder.get(self.early.episode, self.expected) {
            // It was parsed before it was kept.
            let Ok(packet) = Packet::parse(bytes) else { break };
            debug_assert_eq!(packet.bth.psn, psn_of(self.expected));
            self.execute_next(&packet, mem, srqs, ep)?;
        }
        self.early.kept.remove_range(behind - 1, self.expected + 1);
        if self.expected > behind {
            self.early.behind = Some((behind, self.expected - behind));
        }
        if self.early.is_beyond(self.expected) {
            self.nak_gap(ep);
        }
        Ok(())
    }

    fn nak_gap(&mut self, ep: &mut Endpoint) {
        ep.counters.send_seq_err += 1;
        self.nak.sequence_error(self.expected);
    }
}

#[cfg(test)]
#[path = "early_tests.rs"]
mod tests;
