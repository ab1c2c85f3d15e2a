//! Why a peer is silent: a packet was lost, or the peer waits for a CPU.
//!
//! On a host with more runnable threads than CPUs a peer answers some milliseconds late, although nothing is
//! lost (Linux runs a CPU-bound thread for 3 ms at a time). A probe then only adds packets to those that
//! wait. A probe cannot be told from the packet that it repeats, so RFC 6298 (section 3) measures nothing in
//! such a silence and its timer never learns how long the peer takes. The requester learns it from the probe
//! instead: the answer to a lost packet follows the first probe after a round trip, a peer without a CPU
//! answers at any time.
//!
//! While pauses are known, the requester waits for twice the longest one before it probes. A NAK, a gap
//! report or a missing response shows that packets are lost on this path; then probes are early again.

use super::rtt::{PROBE_MIN_NS, REPAIR_MIN_NS};
use crate::time::Instant;

/// How long a pause or a loss is remembered (1 s). Half: a path without loss is probed twice as often.
/// Double: when the host is idle again, the loss of the last packet of a burst is noticed late for longer.
const REMEMBERED_NS: u64 = 1_000_000_000;
/// The longest pause that counts (25 ms), eight slices of CPU-bound threads. Half: eight such threads for
/// each CPU cause probes. Double: a lost last packet costs up to 100 ms.
const PAUSE_MAX_NS: u64 = 25_000_000;

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// Longest pause of the peer that was not due to a loss, until it is forgotten.
    pause_ns: u64,
    pause_until: Instant,
    /// Packets were lost; pauses do not count until then.
    lossy_until: Instant,
}

impl Silence {
    /// How long to wait before the next probe of a silence that began at `since`, if the round-trip time
    /// alone allows `wait_ns`.
    #[inline]
    pub(crate) fn probe_ns(&self, wait_ns: u64, since: Instant) -> u64 {
        if since < self.pause_until { wait_ns.max(2 * self.pause_ns) } else { wait_ns }
    }

    /// The peer, or a missing response, shows that a packet was lost.
    pub(crate) fn lost(&mut self, now: Instant) {
        (self.pause_ns, self.pause_until) = (0, Instant::default());
        self.lossy_until = now.plus_ns(REMEMBERED_NS);
    }

    /// The peer made progress after a silence without a probe.
    pub(crate) fn ended_by_itself(&mut self, silent_ns: u64, now: Instant) {
        if now < self.pause_until {
            self.paused(silent_ns, now);
        }
    }

    /// The peer made progress `silent_ns` after the silence began and `answer_ns` after its first probe.
    /// `least_ns`: the shortest round trip of the path.
    pub(crate) fn ended_after_probe(&mut self, silent_ns: u64, answer_ns: u64, least_ns: u64, now: Instant) {
        if answer_ns > 2 * least_ns + PROBE_MIN_NS {
            if now >= self.lossy_until {
                self.paused(silent_ns, now);
            }
        } else if answer_ns <= 2 * least_ns + REPAIR_MIN_NS {
            // Probably a loss, possibly a coincidence.
            self.pause_ns /= 2;
        }
    }

    fn paused(&mut self, ns: u64, now: Instant) {
        let known_ns = if now < self.pause_until { self.pause_ns } else { 0 };
        self.pause_ns = known_ns.max(ns).min(PAUSE_MAX_NS);
        self.pause_until = now.plus_ns(REMEMBERED_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RTT: u64 = 30_000;

    fn at(ms: u64) -> Instant {
        Instant(ms * MS)
    }

    #[test]
    fn a_peer_that_answers_long_after_the_probe_is_probed_after_twice_that_pause() {
        let mut silence = Silence::default();
        assert_eq!(silence.probe_ns(MS, at(10)), MS);
        silence.ended_after_probe(3 * MS, 2 * MS, RTT, at(10));
        assert_eq!(silence.probe_ns(MS, at(10)), 6 * MS);
        silence.ended_by_itself(5 * MS, at(500));
        silence.ended_by_itself(2 * MS, at(600));
        assert_eq!(silence.probe_ns(MS, at(1500)), 10 * MS, "the longest within a second");
        assert_eq!(silence.probe_ns(MS, at(1600)), MS, "forgotten");
        silence.ended_by_itself(5 * MS, at(1700));
        assert_eq!(silence.probe_ns(MS, at(1700)), MS, "no probe has shown a pause");
        silence.ended_after_probe(900 * MS, 800 * MS, RTT, at(1800));
        assert_eq!(silence.probe_ns(MS, at(1800)), 2 * PAUSE_MAX_NS);
    }

    #[test]
    fn a_loss_makes_probes_early_again() {
        let mut silence = Silence::default();
        silence.ended_after_probe(4 * MS, 2 * MS, RTT, at(10));
        silence.ended_after_probe(MS / 2, 2 * RTT, RTT, at(20));
        assert_eq!(silence.probe_ns(MS, at(20)), 4 * MS, "one prompt answer may be a coincidence");
        silence.lost(at(30));
        assert_eq!(silence.probe_ns(MS, at(30)), MS);
        silence.ended_after_probe(4 * MS, 2 * MS, RTT, at(40));
        assert_eq!(silence.probe_ns(MS, at(40)), MS, "the probe may have been lost as well");
        silence.ended_after_probe(4 * MS, 2 * MS, RTT, at(1040));
        assert_eq!(silence.probe_ns(MS, at(1040)), 8 * MS);
    }
}
