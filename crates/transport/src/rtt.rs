//! The round-trip time, measured on packets that ask for an acknowledgement, and what follows from it (RFC 6298).

use crate::time::Instant;

/// An answer that takes less is not missing yet: it may wait for a request to leave with (50 us), for a thread to be
/// woken (40 us) or for another thread to take the device over (250 us).
const PROBE_MIN_NS: u64 = 1_000_000;
/// The wait between probes doubles so many times.
const DOUBLINGS: u8 = 8;
/// How long a repetition is given before its own loss is believed, while nothing was measured.
const PERIOD_NS: u64 = 1_000_000;
const PERIOD_MIN_NS: u64 = 50_000;

/// One path's estimate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    is_known: bool,
    /// The packet being timed, and when it was sent.
    timed: Option<(u64, Instant)>,
}

impl Rtt {
    /// A packet that asks for an acknowledgement leaves, for the first time.
    #[inline]
    pub(crate) fn sent(&mut self, position: u64, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((position, now));
        }
    }

    /// A packet is sent again: an acknowledgement of it, or past it, says nothing (Karn).
    pub(crate) fn sent_again(&mut self, position: u64) {
        if self.timed.is_some_and(|(timed, _)| timed >= position) {
            self.timed = None;
        }
    }

    /// Everything before `to` is acknowledged.
    #[inline]
    pub(crate) fn acknowledged(&mut self, to: u64, now: Instant) {
        if let Some((position, sent)) = self.timed
            && position < to
        {
            self.timed = None;
            self.sample(now.since(sent).as_nanos() as u64);
        }
    }

    fn sample(&mut self, ns: u64) {
        if self.is_known {
            self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(ns)) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
        } else {
            *self = Self { smoothed_ns: ns, variation_ns: ns / 2, is_known: true, timed: self.timed };
        }
    }

    /// How long nothing may happen before the peer is asked, after so many questions in vain; `None` before the first
    /// measurement.
    #[inline]
    pub(crate) fn probe_ns(&self, probes: u8) -> Option<u64> {
        let once = (self.smoothed_ns + 4 * self.variation_ns).max(PROBE_MIN_NS);
        self.is_known.then(|| once << probes.min(DOUBLINGS))
    }

    /// How long a packet that was sent again may be on its way, and the report of its loss back.
    pub(crate) fn period_ns(&self) -> u64 {
        if self.is_known { (self.smoothed_ns + self.variation_ns).max(PERIOD_MIN_NS) } else { PERIOD_NS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_what_is_measured() {
        let mut rtt = Rtt::default();
        assert_eq!((rtt.probe_ns(0), rtt.period_ns()), (None, PERIOD_NS));
        for round in 0..40 {
            rtt.sent(round, Instant(round * 10_000_000));
            rtt.acknowledged(round + 1, Instant(round * 10_000_000 + 2_000_000));
        }
        assert!((2_000_000..2_001_000).contains(&rtt.period_ns()), "{rtt:?}");
        assert_eq!(rtt.probe_ns(0), rtt.probe_ns(1).map(|ns| ns / 2));
        assert_eq!(rtt.probe_ns(200), rtt.probe_ns(8));
    }

    #[test]
    fn a_short_path_is_not_asked_more_often_than_threads_wake() {
        let mut rtt = Rtt::default();
        rtt.sent(1, Instant(0));
        rtt.acknowledged(2, Instant(9_000));
        assert_eq!((rtt.probe_ns(0), rtt.period_ns()), (Some(PROBE_MIN_NS), PERIOD_MIN_NS));
    }

    /// RFC 6298, section 3.
    #[test]
    fn a_packet_that_was_sent_again_is_not_timed() {
        let mut rtt = Rtt::default();
        rtt.sent(5, Instant(0));
        rtt.sent(9, Instant(50));
        rtt.sent_again(4);
        rtt.acknowledged(10, Instant(100));
        assert_eq!(rtt.probe_ns(0), None);
        rtt.sent(11, Instant(200));
        rtt.sent_again(12);
        rtt.acknowledged(11, Instant(250));
        assert_eq!(rtt.probe_ns(0), None, "not yet");
        rtt.acknowledged(12, Instant(300));
        assert!(rtt.probe_ns(0).is_some());
    }
}
