//! Requests that arrived ahead of a missing one, kept until their turn.
//!
//! They are kept whole and executed in order, instead of being placed at once: a WRITE placed early would show its last
//! byte before its first, could be undone by an older WRITE to the same bytes that is still missing, and would stay if
//! the missing packet turned out to be an error. The copy costs nothing while nothing is lost.
//!
//! Keeping is a favour, not a promise: a packet that is not found when its turn comes is missing like any other. That is
//! why one buffer of fixed size can serve all queue pairs of a device, without accounts.
//!
//! A requester that sends only the missing packet again is told of the gaps behind it as well, in a way that others ignore
//! (`resend.rs` says how it reads them). Whether it is one shows when the first gap is closed: one that goes back sends what
//! follows next, although that is here.

use wire::{DropReason, Packet};

use crate::attr::{MAX_PACKET, PathMtu};
use crate::emit::psn_of;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::recv_queue::SrqTable;
use crate::responder::Responder;
use crate::scoreboard::{PacketSet, SPAN};
use crate::time::Instant;

/// Packets ahead of the expected one that may be kept; further ones are dropped. More than the window of our requester.
pub(crate) const REACH: u64 = SPAN;
/// A requester that sends single packets is told of a gap again when it takes longer than others took, but not before this:
/// then the report or the repetition was lost. Each report costs both sides a packet.
const REPORT_MIN_NS: u64 = 25_000;
/// ... and not after this.
const REPORT_MAX_NS: u64 = 2_000_000;
/// So many packets that a requester had sent and did not send again show that it does not go back. A go-back-N requester
/// shows the same if just these are lost a second time.
const PROOF: u64 = 8;
/// Memory of the buffer: six windows of 320 KiB.
const BYTES: usize = 2 << 20;

/// Requests that arrived too early, of all queue pairs of a device. Direct-mapped: whoever comes later takes the place.
#[derive(Debug)]
pub struct ReorderBuffer {
    slots: Box<[Slot]>,
    bytes: Box<[u8]>,
    packet_max: usize,
    episodes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    episode: u64,
    position: u64,
    len: u32,
}

impl ReorderBuffer {
    /// About 2 MiB, touched only as far as it is used, for packets of up to this path MTU.
    #[must_use]
    pub fn new(path_mtu: PathMtu) -> Self {
        // Headers, pad and ICRC take as much as they may in a transmit buffer.
        let packet_max = MAX_PACKET - PathMtu::M4096.bytes() + path_mtu.bytes();
        Self::with_slots((BYTES / packet_max).next_power_of_two(), packet_max)
    }

    /// One that keeps nothing: its queue pairs answer as plain go-back-N responders do.
    #[must_use]
    pub fn none() -> Self {
        Self::with_slots(0, 0)
    }

    fn with_slots(slots: usize, packet_max: usize) -> Self {
        Self {
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            bytes: vec![0; slots * packet_max].into_boxed_slice(),
            packet_max,
            episodes: 0,
        }
    }

    /// A number for the packets of one queue pair from its first gap until that is closed.
    fn begin_episode(&mut self) -> u64 {
        self.episodes += 1;
        self.episodes
    }

    /// Where a packet has its place. Neighbours have neighbouring places; episodes start anywhere (Fibonacci hashing).
    fn place(&self, episode: u64, position: u64) -> usize {
        let start = episode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (start.wrapping_add(position)) as usize & self.slots.len().wrapping_sub(1)
    }

    fn keep(&mut self, episode: u64, position: u64, packet: &[u8]) -> bool {
        let place = self.place(episode, position);
        let Some(slot) = self.slots.get_mut(place).filter(|_| packet.len() <= self.packet_max) else {
            return false;
        };
        *slot = Slot { episode, position, len: packet.len() as u32 };
        self.bytes[place * self.packet_max..][..packet.len()].copy_from_slice(packet);
        true
    }

    fn get(&self, episode: u64, position: u64) -> Option<&[u8]> {
        let place = self.place(episode, position);
        let slot =
            self.slots.get(place).filter(|slot| (slot.episode, slot.position) == (episode, position))?;
        Some(&self.bytes[place * self.packet_max..][..slot.len as usize])
    }

    fn reach(&self) -> u64 {
        REACH.min(self.slots.len() as u64)
    }
}

/// What a responder has in the buffer, and has told of what it has not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ahead {
    episode: u64,
    /// One past the furthest packet kept; nothing is kept unless this is ahead of the expected packet.
    end: u64,
    kept: PacketSet,
    /// The packet behind one that closed a gap, and how many after that packet were here.
    behind: Option<(u64, u64)>,
    /// Packets that were not sent again because they were here.
    proof: u64,
    /// Gaps that are to be reported, between two packets: those reported before, and new ones.
    reports: [(u64, u64); 2],
    /// When the gaps before `reported` are reported again.
    report_at: Instant,
    reported: u64,
    /// A packet that was reported missing, and when.
    timed: Option<(u64, Instant)>,
    /// From a report to the repetition, smoothed; 0 before the first sample.
    repair_ns: u64,
}

impl Ahead {
    /// Whether packets beyond this one are kept.
    #[inline]
    pub(crate) fn is_beyond(&self, expected: u64) -> bool {
        self.end > expected
    }

    /// The next request after a gap was closed: is it one that was here?
    #[inline]
    pub(crate) fn watch(&mut self, position: u64) {
        if let Some((behind, packets)) = self.behind {
            self.behind = None;
            self.proof = if position == behind { 0 } else { self.proof.saturating_add(packets) };
        }
    }

    /// Whether a report is due.
    #[inline]
    pub(crate) fn has_report(&self) -> bool {
        self.reports.iter().any(|(from, to)| from < to)
    }

    /// The next gap to report: where it begins and how many packets it has.
    pub(crate) fn next_gap(&mut self, expected: u64) -> Option<(u64, u64)> {
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

    /// The packets between `end` and this one are missing as well. The expected one has its NAK.
    fn new_gap(&mut self, now: Instant, expected: u64, position: u64) {
        self.timed = self.timed.or(Some((self.end, now)));
        if self.proof >= PROOF {
            let (from, to) = &mut self.reports[1];
            *from = if *from < *to { *from } else { self.end.max(expected + 1) };
            *to = position;
        }
    }

    /// Whether it is time to report again what is old; the next time follows.
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

    /// The packet that is timed may be here.
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
    /// A request whose predecessors are missing: kept, and the gap before it reported.
    #[cold]
    pub(crate) fn handle_early(
        &mut self,
        now: Instant,
        position: u64,
        packet: &Packet<'_>,
        reorder: &mut ReorderBuffer,
        ep: &mut Endpoint,
    ) -> Result<(), DropReason> {
        ep.counters.out_of_seq_request += 1;
        if self.reply.is_waiting() {
            // All that follows what was not accepted comes again with it: kept until then, and displaced by another queue
            // pair's packets, it would look like a loss.
            return Err(DropReason::OutOfSequence);
        }
        if !self.reply.is_nak_sent() {
            self.nak_gap(ep);
        }
        if position - self.expected >= reorder.reach() {
            return Err(DropReason::OutOfSequence);
        }
        let ahead = &mut self.ahead;
        if !ahead.is_beyond(self.expected) {
            *ahead = Ahead {
                episode: reorder.begin_episode(),
                end: self.expected,
                proof: ahead.proof,
                repair_ns: ahead.repair_ns,
                ..Ahead::default()
            };
            ahead.report_later(now);
        }
        if !reorder.keep(ahead.episode, position, packet.bytes()) {
            return Err(DropReason::OutOfSequence);
        }
        if position > ahead.end {
            ahead.new_gap(now, self.expected, position);
        }
        ahead.time(now, |timed| timed == position);
        ahead.end = ahead.end.max(position + 1);
        ahead.kept.insert(position);
        ep.counters.kept_request += 1;
        if ahead.is_overdue(now, self.expected) {
            self.nak_gap(ep);
        }
        Ok(())
    }

    /// The expected packet was executed: now those that waited for it are, up to the next gap, which is reported.
    #[cold]
    pub(crate) fn execute_kept(
        &mut self,
        now: Instant,
        reorder: &ReorderBuffer,
        mem: &impl Memory,
        srqs: &mut impl SrqTable,
        ep: &mut Endpoint,
    ) -> Result<(), Fault> {
        let behind = self.expected;
        self.ahead.time(now, |timed| timed < behind);
        while let Some(bytes) = reorder.get(self.ahead.episode, self.expected) {
            // It was a packet when it was kept.
            let Ok(packet) = Packet::parse(bytes) else { break };
            debug_assert_eq!(packet.bth.psn, psn_of(self.expected));
            self.execute_next(&packet, mem, srqs, ep)?;
        }
        self.ahead.kept.remove_range(behind - 1, self.expected + 1);
        if self.expected > behind {
            self.ahead.behind = Some((behind, self.expected - behind));
        }
        if self.ahead.is_beyond(self.expected) {
            self.nak_gap(ep);
        }
        Ok(())
    }

    fn nak_gap(&mut self, ep: &mut Endpoint) {
        ep.counters.send_seq_err += 1;
        self.reply.nak_sequence(self.expected);
    }
}

#[cfg(test)]
#[path = "reorder_tests.rs"]
mod tests;
