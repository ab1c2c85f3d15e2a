//! Why a peer is silent: a packet was lost, or the peer waits for a CPU.
//!
//! On a host with more runnable threads than CPUs a peer answers some milliseconds late, although nothing is
//! lost (Linux runs a CPU-bound thread for 3 ms at a time). A probe then only adds packets to those that
//! wait. A probe cannot be told from the packet that it repeats, so RFC 6298 (section 3) measures nothing in
//! such a silence and its timer never learns how long the peer takes. The requester learns it from the probe
//! instead: the answer to a lost packet follows the first probe after a round trip, a peer without a CPU
//! answers at any time.
//!
//! While pauses are known, the first probe of a silence waits for twice the longest one, and at most for
//! 25.6 ms and a quarter of the local ACK timeout. A NAK, a gap report or a missing response shows that
//! packets are lost on this path; then probes are early again.
//!
//! # Why this takes no probe and no retry away
//! Let w be the wait by the round-trip time and T the local ACK timeout. Without pauses, probe n leaves
//! (2^n - 1) w after the silence began. A deferred first probe leaves after d <= T/4, and the waits behind
//! it start at w again: probe n leaves after d + (2^(n-1) - 1) w. If probe n left before T without pauses,
//! then 2^(n-1) w <= (T + w)/2, and the deferred one leaves before T/4 + T/2. (Where the waits no longer
//! double, each is longer than d.) So as many probes leave before each timeout as without pauses. Probes
//! never restart the ACK timer: timeouts come when they came before, and each uses up one retry as before.

use super::rtt::{DOUBLINGS, REPAIR_MIN_NS};
use crate::in_flight::PROBE_MIN_NS;
use crate::time::Instant;

/// How long a pause or a loss is remembered (1 s). Half: a path without loss is probed twice as often.
/// Double: when the host is idle again, the loss of the last packet of a burst is noticed late for longer.
const REMEMBERED_NS: u64 = 1_000_000_000;
/// The longest pause that counts (25 ms), eight slices of CPU-bound threads. Half: eight such threads for
/// each CPU cause probes. Double: the limit of the wait, `DEFERRED_MAX_NS`, is met by half of the pauses.
const PAUSE_MAX_NS: u64 = 25_000_000;
/// The first probe leaves within the local ACK timeout divided by this; the module documentation needs at
/// least 2. Half: the response to the last probe may come after the timeout. Double: pauses longer than 1/16
/// of the timeout are probed.
const TIMEOUT_SHARE: u64 = 4;

/// The first probe of a silence waits for this at most (25.6 ms), the longest wait between probes while
/// losses are repaired: the module documentation needs it.
const DEFERRED_MAX_NS: u64 = REPAIR_MIN_NS << DOUBLINGS;

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
    /// How long the first probe of a silence that began at `since` is deferred; 0 while no pause is known.
    /// `timeout_ns`: the local ACK timeout, if there is one.
    #[inline]
    pub(crate) fn first_probe_ns(&self, since: Instant, timeout_ns: Option<u64>) -> u64 {
        if since >= self.pause_until {
            return 0;
        }
        (2 * self.pause_ns).min(DEFERRED_MAX_NS).min(timeout_ns.map_or(u64::MAX, |ns| ns / TIMEOUT_SHARE))
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
#[path = "silence_tests.rs"]
mod tests;
