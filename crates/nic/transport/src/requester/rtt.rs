//! The round-trip time, measured on packets that ask for an acknowledgement, and the timers derived from it
//! (RFC 6298).

use crate::in_flight::PROBE_MIN_NS;
use crate::time::Instant;

/// Wait before the first probe while nothing was measured: ten times what a LAN takes.
const PROBE_FIRST_NS: u64 = 4_000_000;
/// Shortest wait while packets are being retransmitted: the peer is awake then and delays nothing.
pub(crate) const REPAIR_MIN_NS: u64 = 100_000;
/// The wait between probes doubles at most this many times.
pub(crate) const DOUBLINGS: u8 = 8;
/// Time for a retransmission to take effect before it counts as lost itself, while nothing was measured, and
/// the shortest.
const PERIOD_NS: u64 = 1_000_000;
const PERIOD_MIN_NS: u64 = 20_000;

/// Round-trip estimates of one path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    /// From a new packet to its acknowledgement; a READ response waits for the responses before it.
    ack: Estimate,
    /// From a retransmission to the progress that it causes.
    repair: Estimate,
    /// Shortest sample of a packet that was sent once, plus 1; 0 before the first.
    least_plus_ns: u64,
    /// The packet being timed, when it was sent, and whether again.
    timed: (u64, Instant, Timed),
}

/// Which transmission of a packet is timed, if any.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Timed {
    #[default]
    None,
    First,
    Again,
}

#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    smoothed_ns: u64,
    /// One more than the variation; 0 before the first sample.
    variation_plus_ns: u64,
}

impl Estimate {
    fn sample(&mut self, ns: u64) {
        let (smoothed_ns, variation_ns) = match self.known() {
            Some((smoothed, variation)) => {
                ((7 * smoothed + ns) / 8, (3 * variation + smoothed.abs_diff(ns)) / 4)
            }
            None => (ns, ns / 2),
        };
        *self = Self { smoothed_ns, variation_plus_ns: variation_ns + 1 };
    }

    /// This estimate, or else the other.
    fn or(self, other: Self) -> Option<(u64, u64)> {
        self.known().or_else(|| other.known())
    }

    /// Smoothed time and variation, once there was a sample.
    fn known(&self) -> Option<(u64, u64)> {
        Some((self.smoothed_ns, self.variation_plus_ns.checked_sub(1)?))
    }
}

impl Rtt {
    /// A packet that asks for an acknowledgement leaves, for the first time.
    #[inline]
    pub(crate) fn sent(&mut self, position: u64, now: Instant) {
        if self.timed.2 == Timed::None {
            self.timed = (position, now, Timed::First);
        }
    }

    /// A packet is retransmitted, the oldest one or another. The oldest one is timed from here, so that a
    /// path with frequent loss is measured at all; an ACK of the earlier transmission makes the estimate too
    /// short, which costs a probe.
    pub(crate) fn retransmitted(&mut self, position: u64, is_oldest: bool, now: Instant) {
        if is_oldest {
            self.timed = (position, now, Timed::Again);
        } else if self.timed.0 >= position {
            self.timed.2 = Timed::None;
        }
    }

    /// Everything before `to` is acknowledged.
    #[inline]
    pub(crate) fn acknowledged(&mut self, to: u64, now: Instant) {
        let (position, sent, timed) = self.timed;
        if timed != Timed::None && position < to {
            self.timed.2 = Timed::None;
            let estimate = if timed == Timed::Again { &mut self.repair } else { &mut self.ack };
            let ns = now.since(sent).as_nanos() as u64;
            estimate.sample(ns);
            if timed == Timed::First {
                self.least_plus_ns = self.least_plus_ns.wrapping_sub(1).min(ns) + 1;
            }
        }
    }

    /// Shortest time from a packet to its acknowledgement; 0 while nothing was measured.
    pub(crate) fn least_ns(&self) -> u64 {
        self.least_plus_ns.saturating_sub(1)
    }

    /// Smoothed time from a packet to its acknowledgement; of retransmissions if nothing else was measured.
    pub(crate) fn smoothed_ns(&self) -> Option<u64> {
        self.ack.or(self.repair).map(|(smoothed_ns, _)| smoothed_ns)
    }

    /// Whether anything was measured.
    #[inline]
    pub(crate) fn is_known(&self) -> bool {
        self.ack.or(self.repair).is_some()
    }

    /// How long the peer may be silent before the next probe. `probes` is how many were made without
    /// progress; `is_repairing`, whether the peer has reported a missing packet.
    #[inline]
    pub(crate) fn probe_ns(&self, probes: u8, is_repairing: bool) -> u64 {
        let once = if is_repairing && self.repair.known().is_some() {
            (2 * self.period_ns()).max(REPAIR_MIN_NS)
        } else if let Some((smoothed_ns, variation_ns)) = self.ack.or(self.repair) {
            (smoothed_ns + 4 * variation_ns).max(PROBE_MIN_NS)
        } else {
            PROBE_FIRST_NS
        };
        once << probes.min(DOUBLINGS)
    }

    /// How long a retransmission and the report of its loss may take together.
    pub(crate) fn period_ns(&self) -> u64 {
        let known = self.repair.or(self.ack);
        known.map_or(PERIOD_NS, |(smoothed_ns, variation_ns)| (smoothed_ns + variation_ns).max(PERIOD_MIN_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_measured_times() {
        let mut rtt = Rtt::default();
        assert_eq!((rtt.probe_ns(0, false), rtt.period_ns()), (PROBE_FIRST_NS, PERIOD_NS));
        for round in 0..40 {
            rtt.sent(round, Instant(round * 10_000_000));
            rtt.acknowledged(round + 1, Instant(round * 10_000_000 + 2_000_000));
        }
        assert!((2_000_000..2_001_000).contains(&rtt.period_ns()), "{rtt:?}");
        assert_eq!(rtt.smoothed_ns(), Some(2_000_000));
        assert_eq!(rtt.probe_ns(0, false), rtt.probe_ns(1, false) / 2);
        assert_eq!(rtt.probe_ns(200, false), rtt.probe_ns(8, false));
    }

    #[test]
    fn a_short_path_is_not_probed_more_often_than_threads_wake() {
        let mut rtt = Rtt::default();
        rtt.sent(1, Instant(0));
        rtt.acknowledged(2, Instant(9_000));
        assert_eq!((rtt.probe_ns(0, false), rtt.period_ns()), (PROBE_MIN_NS, PERIOD_MIN_NS));
        assert_eq!(rtt.probe_ns(0, true), PROBE_MIN_NS, "no repair was seen");
        rtt.retransmitted(2, true, Instant(10_000));
        rtt.acknowledged(3, Instant(20_000));
        assert_eq!(rtt.probe_ns(1, true), 2 * REPAIR_MIN_NS);
    }

    #[test]
    fn a_probe_waits_twice_the_time_of_a_repair() {
        let mut rtt = Rtt::default();
        rtt.retransmitted(1, true, Instant(0));
        rtt.acknowledged(2, Instant(1_000_000));
        assert_eq!((rtt.period_ns(), rtt.probe_ns(0, true)), (1_500_000, 3_000_000));
    }

    /// RFC 6298, section 3, but for the oldest packet.
    #[test]
    fn a_retransmission_is_timed_only_if_it_is_the_oldest_packet() {
        let mut rtt = Rtt::default();
        rtt.sent(9, Instant(0));
        rtt.retransmitted(8, false, Instant(50));
        rtt.acknowledged(10, Instant(100));
        assert_eq!(rtt.probe_ns(0, false), PROBE_FIRST_NS);
        rtt.sent(11, Instant(200));
        rtt.retransmitted(12, false, Instant(250));
        rtt.retransmitted(10, true, Instant(300));
        rtt.acknowledged(10, Instant(350));
        assert_eq!(rtt.probe_ns(0, false), PROBE_FIRST_NS, "not yet");
        rtt.acknowledged(12, Instant(60_300));
        assert_eq!(rtt.period_ns(), 90_000, "60 us, and half of that for variation");
    }
}
