//! Requests that arrive ahead of a missing one: they go to the reorder buffer, and the gaps are reported to
//! the peer.
//!
//! How far ahead a request is kept depends on what the peer was seen to send ([`Responder::reach`]): each
//! further PSN is one more that a forger may hit.
//!
//! The NAK names the first gap. A requester that repeats selectively gets reports of the further gaps, and of
//! the first one while requests behind it arrive, by ACKs that other requesters ignore
//! (`requester/retransmit.rs`). The responder recognizes such a requester when the first gap is closed: a
//! go-back-N requester then retransmits the packets behind the gap, although they are here.

use core::ops::Range;

use wire::icrc::ICRC_LEN;
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
use crate::trust::{self, GUESSES_MAX, Half};

/// A gap is reported again when its retransmission takes longer than others took: the report or the
/// retransmission was lost. Never sooner than this, because each report costs both sides a packet.
const REPORT_MIN_NS: u64 = 25_000;
/// A gap is reported again after this at the latest.
const REPORT_MAX_NS: u64 = 2_000_000;
/// Bytes of the BTH that differ between copies of a request: FECN, BECN and reserved bits; AckReq.
const BTH_VARIANT: usize = 4;
const BTH_ACK_REQ: usize = 8;
/// A request is kept at least so far beyond the furthest one that is here: longer than a burst of 62, so that
/// a lost burst is a gap like any other. With half of it such a burst would cost its successors, too; with
/// the double a forger has the double target while the connection is idle. The probe of a requester goes as
/// far, so peers must agree.
pub(crate) const REACH_MIN: u64 = 64;
/// Time in which requests that arrived show how many the peer has in flight: at least this, at most the
/// double. Longer than the round trip of a local network; a forger's target is larger for as long.
const ARRIVALS_NS: u64 = 10_000_000;
/// A kept request is dropped when so many times the longest recent repair of a gap have passed, or earlier
/// together with an older one: the missing one was then lost several times, or none is missing and the kept
/// one is forged. At 5 % loss some of 310 packets are lost three times. Half: where both hosts wait 300 ms
/// for a CPU, all is dropped before it can be executed, and a few packets arrive per timeout. Double: a
/// forged request is kept for longer.
const KEPT_REPAIRS: u64 = 8;
/// But not before this, and after this in any case (nanoseconds): a forged request lengthens the repairs. The
/// latter is eight repairs of 600 ms. Half: as above, where hosts wait for longer than 300 ms. Double: a
/// forged request is kept for twice as long.
const KEPT_MIN_NS: u64 = 1_000_000_000;
const KEPT_MAX_NS: u64 = 5_000_000_000;
/// Requests that are kept after a report of the first gap, whereupon it is reported again, so that the
/// requester knows what has arrived. Half: twice the reports. Double: a small window stays closed for longer.
const PROGRESS: u32 = 32;
/// Packets behind a gap that a requester must leave out before it counts as selective. A go-back-N requester
/// appears selective if exactly these packets are lost a second time.
const PROOF: u64 = 8;

/// The requests of one queue pair that are in the reorder buffer, and the gaps between them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlyRequests {
    episode: u64,
    /// Not later than the arrival of any kept request before `renewed_by`.
    begun: Instant,
    /// When the request with this number is executed, all those are, and `begun` becomes the time when the
    /// first of the others arrived.
    renewed_by: u64,
    others_begun: Option<Instant>,
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
    /// Requests kept since the last report of the first gap.
    kept_since: u32,
    /// A packet that was reported missing, and when.
    timed: Option<(u64, Instant)>,
    /// From a report to the retransmission, smoothed; 0 before the first sample.
    repair_ns: u64,
    /// The longest of these times; halves in five samples.
    longest_repair_ns: u64,
}

/// How many requests arrived in order within the last 10 to 20 ms: about as many may be in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// The expected packet at the beginning of the period, and of the one before.
    from: u64,
    before: u64,
    since: Instant,
    /// The expected packet after the last batch.
    last: u64,
}

impl Arrivals {
    /// Begins at the first packet of a connection.
    pub(super) fn new(expected: u64) -> Self {
        Self { from: expected, before: expected, since: Instant::ZERO, last: expected }
    }

    /// Takes notice of the expected packet, once per batch.
    #[inline]
    pub(super) fn note(&mut self, now: Instant, expected: u64) {
        if now >= self.since.plus_ns(ARRIVALS_NS) {
            let is_adjacent = now < self.since.plus_ns(2 * ARRIVALS_NS);
            self.before = if is_adjacent { self.from } else { self.last };
            self.from = self.last;
            self.since = now;
        }
        self.last = expected;
    }

    fn recent(&self, now: Instant, expected: u64) -> u64 {
        if now < self.since.plus_ns(ARRIVALS_NS) {
            expected - self.before
        } else if now < self.since.plus_ns(2 * ARRIVALS_NS) {
            expected - self.from
        } else {
            0
        }
    }
}

impl EarlyRequests {
    /// Forgets what is kept, but not what is known of the peer.
    fn forget(&mut self) {
        let Self { proof, repair_ns, longest_repair_ns, .. } = *self;
        *self = Self { proof, repair_ns, longest_repair_ns, ..Self::default() };
    }

    /// Whether packets beyond this one are kept.
    #[inline]
    pub(super) fn is_beyond(&self, expected: u64) -> bool {
        self.end > expected
    }

    /// Notes when a request is kept, from which its age is counted.
    fn note_age(&mut self, now: Instant, position: u64) {
        if position >= self.renewed_by {
            self.others_begun.get_or_insert(now);
        }
    }

    /// All requests before this one are executed: those that remain are younger.
    fn renew(&mut self, now: Instant, expected: u64) {
        if expected >= self.renewed_by {
            self.begun = self.others_begun.take().unwrap_or(now);
            self.renewed_by = self.end;
        }
    }

    /// Whether what is kept is too old to be believed.
    fn is_stale(&self, now: Instant) -> bool {
        let kept_ns = (KEPT_REPAIRS * self.longest_repair_ns).clamp(KEPT_MIN_NS, KEPT_MAX_NS);
        now >= self.begun.plus_ns(kept_ns)
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
                if first == expected {
                    self.kept_since = 0;
                }
                return Some((first, *from - first));
            }
            *to = 0;
        }
        None
    }

    /// The furthest packet that is here, which a gap report names.
    pub(super) fn furthest(&self) -> u64 {
        self.end.wrapping_sub(1)
    }

    /// Reports the first gap again if many requests were kept since its last report.
    pub(super) fn report_progress(&mut self, expected: u64) {
        if self.kept_since >= PROGRESS && self.proof >= PROOF {
            let (from, to) = &mut self.reports[0];
            (*from, *to) = (expected, (*to).max(expected + 1));
        }
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
        self.reports[0] = (expected, self.reported);
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
            self.longest_repair_ns = ns.max(self.longest_repair_ns / 8 * 7);
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
        if trust::is_far((position - self.expected) as i32) {
            ep.on_guess(now, GUESSES_MAX);
        }
        if ep.trust.is_distrustful(now) {
            self.early.forget();
            return Err(DropReason::OutOfSequence);
        }
        if position - self.expected >= self.reach(now).min(reorder.reach()) {
            return Err(DropReason::OutOfSequence);
        }
        let early = &mut self.early;
        if !early.is_beyond(self.expected) || early.is_stale(now) {
            early.forget();
            early.episode = reorder.begin_episode();
            early.begun = now;
            early.renewed_by = position + 1;
            early.end = self.expected;
            early.report_later(now);
        }
        if early.kept.contains(position)
            && let Some(kept) = reorder.get(early.episode, position)
        {
            if are_copies([kept, packet.bytes()]) {
                // The requester repeats what is here: it has not learned which packets are missing.
                if early.is_overdue(now, self.expected) {
                    self.nak_gap(ep);
                }
                return Ok(());
            }
            // One of them is forged, or the requester sends something else now (the application has changed
            // the memory of a WRITE). The responder cannot know which one to execute. The requester
            // retransmits what neither is.
            early.kept.remove(position);
            reorder.discard(early.episode, position);
            ep.counters.conflicting_psn += 1;
            ep.on_guess(now, 1);
            return Err(DropReason::ConflictingPsn);
        }
        if !reorder.keep(early.episode, position, packet.bytes()) {
            return Err(DropReason::OutOfSequence);
        }
        if position > early.end {
            early.new_gap(now, self.expected, position);
        }
        early.time(now, |timed| timed == position);
        early.end = early.end.max(position + 1);
        early.note_age(now, position);
        early.kept.insert(position);
        early.kept_since += 1;
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
        if ep.trust.is_distrustful(now) || self.early.is_stale(now) {
            self.early.forget();
            return Ok(());
        }
        let behind = self.expected;
        self.early.time(now, |timed| timed < behind);
        while let Some(bytes) = reorder.get(self.early.episode, self.expected) {
            // It was parsed before it was kept.
            let Ok(packet) = Packet::parse(bytes) else { break };
            debug_assert_eq!(packet.bth.psn, psn_of(self.expected));
            match self.execute_next(&packet, mem, srqs, ep) {
                Err(Fault::UnsentRead) => break, // it is NAKed below
                executed => executed?,
            }
        }
        self.early.kept.remove_range(behind - 1, self.expected + 1);
        self.early.renew(now, self.expected);
        if self.expected > behind {
            self.early.behind = Some((behind, self.expected - behind));
        }
        if self.early.is_beyond(self.expected) {
            self.nak_gap(ep);
        }
        Ok(())
    }

    /// Distance from the expected packet up to which an early request is kept: twice the number of requests
    /// that arrived lately, or a burst beyond the furthest one that is here.
    fn reach(&self, now: Instant) -> u64 {
        let kept = self.early.end.saturating_sub(self.expected);
        (2 * self.arrivals.recent(now, self.expected)).max(kept + REACH_MIN)
    }

    /// Decides about a request from a UDP source port that the peer has not used for requests: only the
    /// expected packet is believed, unless it counts up from a guess, and the port is the peer's from then
    /// on. An early one is NAKed and not kept. A duplicate gets its response again, which goes to the
    /// peer's address: a peer that changed its port may have lost the ACK.
    ///
    /// # Errors
    /// The request is not believed.
    #[cold]
    pub(crate) fn admit_foreign(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        port: u16,
        ep: &mut Endpoint,
    ) -> Result<(), DropReason> {
        let distance = packet.bth.psn.distance_from(psn_of(self.expected));
        if ep.trust.knows_from_other(Half::Requests, port) {
            ep.trust.learn(Half::Requests, port);
            return Ok(());
        }
        let continues_guess = ep.trust.continues_guess(port, packet.bth.psn);
        let is_guess = trust::is_foreign_guess(distance);
        if is_guess && !continues_guess {
            ep.on_guess(now, 1);
            ep.trust.begin_guess(port, packet.bth.psn);
        }
        let is_believed = ep.trust.is_new(Half::Requests) || !ep.trust.is_distrustful(now);
        let is_executed = distance == 0 && !continues_guess;
        if (distance < 0 || is_executed) && is_believed && !trust::is_far(distance) {
            if distance == 0 {
                ep.trust.learn(Half::Requests, port);
            }
            return Ok(());
        }
        if is_guess {
            ep.counters.foreign_port += 1;
            return Err(DropReason::GuessedPsn);
        }
        if is_believed && !self.nak.is_sent() {
            self.nak_gap(ep);
        }
        if ep.trust.is_new(Half::Requests) {
            ep.counters.out_of_seq_request += 1;
            return Err(DropReason::OutOfSequence);
        }
        ep.counters.foreign_port += 1;
        Err(DropReason::ForeignPort)
    }

    /// The expected request cannot be executed before the READ responses have left: it is dropped as if it
    /// were missing. The NAK follows the responses, so the retransmission finds them sent.
    #[cold]
    pub(super) fn postpone(&mut self, ep: &mut Endpoint) -> Result<(), DropReason> {
        ep.counters.out_of_seq_request += 1;
        self.nak_gap(ep);
        Err(DropReason::OutOfSequence)
    }

    fn nak_gap(&mut self, ep: &mut Endpoint) {
        ep.counters.send_seq_err += 1;
        self.nak.sequence_error(self.expected);
    }
}

/// Whether a retransmission may differ so: in the bits that the ICRC does not cover, in AckReq, and therefore
/// in the ICRC.
fn are_copies(copies: [&[u8]; 2]) -> bool {
    let [kept, again] = copies.map(|bytes| bytes.split_last_chunk::<ICRC_LEN>());
    let (Some((kept, _)), Some((again, _))) = (kept, again) else { return false };
    let is_equal = |range: Range<usize>| kept.get(range.clone()) == again.get(range);
    kept.len() == again.len()
        && is_equal(0..BTH_VARIANT)
        && is_equal(BTH_VARIANT + 1..BTH_ACK_REQ)
        && is_equal(BTH_ACK_REQ + 1..kept.len())
}

#[cfg(test)]
#[path = "early_tests.rs"]
mod tests;
