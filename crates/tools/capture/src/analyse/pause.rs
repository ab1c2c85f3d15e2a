//! Finds times without packets: inside a message, and between messages of a busy connection.

use wire::Position;

use super::Analysis;
use super::direction::Inside;
use super::finding::{At, Kind};
use super::times::SLOW_NS;
use crate::clock;

/// Fewest requests before and after a pause.
const BUSY_MIN: u64 = 8;
/// A pause is this many times as long as all others: a program that sends once a second does not pause.
const OUTSTANDING: u64 = 20;

impl Analysis {
    /// Looks at the time between the request packet `at` and the one before.
    pub(super) fn check_pause(&mut self, index: usize, at: At, position: Position) {
        let direction = &mut self.directions[index];
        let before = direction.last_request;
        let was_open = direction.awaits_answer();
        let pauses = &mut direction.pauses;
        pauses.requests += 1;
        if before.number == 0 {
            return;
        }
        let gap = at.ns.saturating_sub(before.ns);
        if gap > pauses.longest {
            pauses.second = pauses.longest;
            pauses.longest = gap;
            pauses.around = (before, at);
            pauses.before = pauses.requests - 1;
            pauses.was_open = was_open;
        } else {
            pauses.second = pauses.second.max(gap);
        }
        if gap > SLOW_NS && direction.inside == Inside::Begun && !position.starts() {
            let src = direction.key.src;
            let text = format!(
                "{src} sent no packet for {} inside a message, between packets {} and {}. Check whether its \
                 program waits for a CPU, or whether the sender is throttled.",
                clock::span(gap),
                before.number,
                at.number
            );
            self.report_on(index, Kind::Slow, before, at.number, text);
        }
    }

    /// Reports the pause of a connection that was busy before and after.
    pub(super) fn conclude_pauses(&mut self, index: usize) {
        let direction = &self.directions[index];
        let pauses = direction.pauses;
        let is_busy = pauses.before >= BUSY_MIN && pauses.requests - pauses.before >= BUSY_MIN;
        let stands_out = pauses.longest > SLOW_NS && pauses.longest / OUTSTANDING > pauses.second;
        if !is_busy || !stands_out || pauses.was_open {
            return;
        }
        let (first, last) = pauses.around;
        let text = format!(
            "{} sent no request for {} between packets {} and {}, after {} and before {} more. No request \
             was open: its program posted nothing, or its packets were not captured.",
            direction.key.src,
            clock::span(pauses.longest),
            first.number,
            last.number,
            pauses.before,
            pauses.requests - pauses.before
        );
        self.report_on(index, Kind::Pause, first, last.number, text);
    }
}
