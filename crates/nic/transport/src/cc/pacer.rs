//! The pacer: turns a rate into a time for each packet.

use super::ReactionPoint;
use crate::time::Instant;

/// Unused sending time that may be made up at once: threads wake up to 70 us late, and each burst costs a
/// system call.
const CREDIT_NS: u64 = 100_000;
/// Bytes on the wire around a packet: IPv4, UDP, ICRC, and Ethernet with preamble, checksum and gap.
const OVERHEAD_BYTES: u64 = 20 + 8 + 4 + 38;

/// Holds packets back to keep a rate. Without a rate it lets everything pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer<C> {
    control: C,
    /// The limit of the application, in bits per second; 0 for none.
    limit_bps: u64,
    /// A rate is in force.
    is_active: bool,
    /// When everything that was sent has left at that rate.
    free_at: Instant,
    /// How long the last packet takes at that rate.
    packet_ns: u64,
    /// The next packet waits for `free_at`.
    is_holding: bool,
}

impl<C: ReactionPoint> Pacer<C> {
    /// A CNP arrived. Returns whether it counts.
    pub(crate) fn on_cnp(&mut self, now: Instant) -> bool {
        self.is_active = true;
        self.control.on_cnp(now)
    }

    /// Sets the limit in bits per second; 0 for no limit.
    pub(crate) fn set_limit(&mut self, limit_bps: u64) {
        self.limit_bps = limit_bps;
        (self.is_active, self.is_holding) = (true, false);
    }

    /// Whether a rate is in force. Only then the other methods must be called.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Whether a packet may be sent now; if not, the next may at [`deadline`](Self::deadline).
    pub(crate) fn lets_pass(&mut self, now: Instant) -> bool {
        if self.rate_bps(now).is_none() {
            (self.is_active, self.is_holding) = (false, false);
            return true;
        }
        self.is_holding = now < self.free_at;
        !self.is_holding
    }

    /// A packet of `len` bytes, BTH to pad, was sent.
    pub(crate) fn on_sent(&mut self, now: Instant, len: usize) {
        let Some(rate) = self.rate_bps(now) else { return };
        let bytes = len as u64 + OVERHEAD_BYTES;
        self.control.on_sent(bytes);
        let from = self.free_at.max(Instant(now.0.saturating_sub(CREDIT_NS)));
        self.packet_ns = (bytes * 8 * 1_000_000_000).div_ceil(rate);
        self.free_at = from.plus_ns(self.packet_ns);
    }

    /// Whether a packet takes longer than the pacer lets a thread be late.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_active && self.packet_ns > CREDIT_NS
    }

    /// Whether a packet is being held back.
    #[inline]
    pub(crate) fn is_holding(&self) -> bool {
        self.is_holding
    }

    /// When the packet that is being held back may be sent.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.is_holding.then_some(self.free_at)
    }

    /// Stops holding the packet back when its time has come.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.is_holding = self.is_holding && now < self.free_at;
    }

    pub(crate) fn rate_bps(&mut self, now: Instant) -> Option<u64> {
        match (self.control.rate_bps(now), self.limit_bps) {
            (rate, 0) => rate,
            (rate, limit) => Some(rate.map_or(limit, |rate| rate.min(limit))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Halves 8 Gbit/s with each CNP and never recovers.
    #[derive(Default)]
    struct Halving(u32);

    impl ReactionPoint for Halving {
        fn on_cnp(&mut self, _now: Instant) -> bool {
            self.0 += 1;
            true
        }
        fn on_sent(&mut self, _bytes: u64) {}
        fn rate_bps(&mut self, _now: Instant) -> Option<u64> {
            (self.0 > 0).then(|| 8_000_000_000 >> self.0)
        }
    }

    /// Packets of 1000 bytes on the wire that leave in this time; the owner polls every microsecond.
    fn sent(pacer: &mut Pacer<Halving>, from_us: u64, to_us: u64) -> u64 {
        let mut sent = 0;
        for us in from_us..to_us {
            let now = Instant(us * 1000);
            while sent < 100_000 && pacer.lets_pass(now) {
                pacer.on_sent(now, 1000 - OVERHEAD_BYTES as usize);
                sent += 1;
            }
        }
        sent
    }

    #[test]
    fn nothing_is_held_back_without_a_rate() {
        let mut pacer = Pacer::<Halving>::default();
        assert!(!pacer.is_active());
        assert_eq!(sent(&mut pacer, 0, 1), 100_000);
        assert_eq!(pacer.deadline(), None);
    }

    #[test]
    fn the_lower_of_congestion_rate_and_limit_is_kept() {
        let mut pacer = Pacer::<Halving>::default();
        pacer.set_limit(2_000_000_000);
        let (first, rest) = (sent(&mut pacer, 1000, 2000), sent(&mut pacer, 2000, 12_000));
        assert!((250..=280).contains(&first), "{first}: 4 us each, and a burst of 100 us");
        assert!((2499..=2501).contains(&rest), "{rest}");
        assert!(pacer.on_cnp(Instant(12_000_000)));
        assert_eq!(sent(&mut pacer, 12_000, 22_000).abs_diff(2500), 0, "4 Gbit/s are above the limit");
        pacer.on_cnp(Instant(22_000_000));
        pacer.on_cnp(Instant(22_000_000));
        assert!(sent(&mut pacer, 22_000, 32_000).abs_diff(1250) <= 1, "1 Gbit/s is below");
        assert_eq!(pacer.deadline().map(|at| at.0 / 1000), Some(32_000));
        pacer.handle_timeout(Instant(32_001_000));
        assert!(!pacer.is_holding());
    }

    #[test]
    fn a_limit_of_zero_removes_the_limit() {
        let mut pacer = Pacer::<Halving>::default();
        pacer.set_limit(1_000_000);
        assert!(pacer.lets_pass(Instant(0)));
        pacer.on_sent(Instant(0), 1000);
        assert!(!pacer.lets_pass(Instant(0)));
        pacer.set_limit(0);
        assert!(pacer.lets_pass(Instant(0)) && !pacer.is_active());
    }
}
