//! DCQCN, the reaction point (Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015,
//! sections 3 and 5).
//!
//! A CNP cuts the rate by half of `alpha`, the estimate of how congested the path is. Then the rate rises in
//! steps, one for each period of a timer and one for each `BYTE_COUNTER` bytes: five times half-way back to
//! the old rate (fast recovery), then by a constant (additive increase), and by growing amounts once timer
//! and counter are both beyond five steps (hyper increase).

use super::ReactionPoint;
use crate::time::Instant;

/// Rate at which a flow starts, in bits per second: throughput of the UDP port.
const LINE_RATE_BPS: u64 = 40_000_000_000;
/// Lowest rate: one packet of 1 KiB in 0.9 ms (mlx5: `rp_min_rate`).
const RATE_MIN_BPS: u64 = 10_000_000;
/// `alpha` of 1.
const ONE: u64 = 1 << 24;
/// g of 1/256 (section 5; mlx5: `rp_dce_tcp_g`).
const G: u64 = 256;
/// Period in which `alpha` shrinks without CNPs (section 5; mlx5: `rp_dce_tcp_rtt`).
const ALPHA_NS: u64 = 55_000;
/// T, the timer of rate increase (section 5; mlx5: `rp_time_reset`).
const INCREASE_NS: u64 = 55_000;
/// B, the byte counter (section 5; mlx5: `rp_byte_reset`).
const BYTE_COUNTER: u64 = 10_000_000;
/// F, steps of fast recovery (section 5; mlx5: `rp_threshold`).
const FAST_STEPS: u64 = 5;
/// R_AI (section 5; mlx5: `rp_ai_rate`).
const ADDITIVE_BPS: u64 = 40_000_000;
/// R_HAI (the authors' simulator; mlx5: `rp_hai_rate`).
const HYPER_BPS: u64 = 200_000_000;
/// At most one cut in this time (mlx5: `rp_rate_reduce_monitor_period`).
const MONITOR_NS: u64 = 4_000;

/// The reaction point of one queue pair. It is in its initial state again when the rate is back at the line
/// rate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dcqcn {
    limited: Option<Limited>,
}

#[derive(Clone, Copy, Debug)]
struct Limited {
    /// R_C and R_T.
    current_bps: u64,
    target_bps: u64,
    /// In units of 1/[`ONE`].
    alpha: u64,
    alpha_due: Instant,
    increase_due: Instant,
    /// Bytes sent towards the next step.
    bytes: u64,
    /// Steps of the timer and of the byte counter since the last cut.
    timer_steps: u64,
    byte_steps: u64,
    cut_at: Instant,
}

impl ReactionPoint for Dcqcn {
    fn on_cnp(&mut self, now: Instant) -> bool {
        self.rate_bps(now);
        if self.limited.is_some_and(|limited| now < limited.cut_at.plus_ns(MONITOR_NS)) {
            return false;
        }
        let (rate, alpha) =
            self.limited.map_or((LINE_RATE_BPS, ONE), |limited| (limited.current_bps, limited.alpha));
        self.limited = Some(Limited {
            current_bps: (rate - rate / 2 * alpha / ONE).max(RATE_MIN_BPS),
            target_bps: rate,
            alpha: alpha - alpha / G + ONE / G,
            alpha_due: now.plus_ns(ALPHA_NS),
            increase_due: now.plus_ns(INCREASE_NS),
            bytes: 0,
            timer_steps: 0,
            byte_steps: 0,
            cut_at: now,
        });
        true
    }

    fn on_sent(&mut self, bytes: u64) {
        let Some(limited) = &mut self.limited else { return };
        limited.bytes += bytes;
        while limited.bytes >= BYTE_COUNTER {
            limited.bytes -= BYTE_COUNTER;
            limited.byte_steps += 1;
            limited.increase();
        }
    }

    fn rate_bps(&mut self, now: Instant) -> Option<u64> {
        let limited = self.limited.as_mut()?;
        while limited.alpha_due <= now && limited.alpha >= G {
            limited.alpha -= limited.alpha / G;
            limited.alpha_due = limited.alpha_due.plus_ns(ALPHA_NS);
        }
        while limited.increase_due <= now && limited.current_bps < LINE_RATE_BPS {
            limited.timer_steps += 1;
            limited.increase_due = limited.increase_due.plus_ns(INCREASE_NS);
            limited.increase();
        }
        if limited.current_bps >= LINE_RATE_BPS {
            self.limited = None;
        }
        self.limited.map(|limited| limited.current_bps)
    }
}

impl Limited {
    /// Raises the rate after one step of the timer or of the byte counter.
    fn increase(&mut self) {
        let (fewer, more) = (self.timer_steps.min(self.byte_steps), self.timer_steps.max(self.byte_steps));
        if fewer > FAST_STEPS {
            self.target_bps += (fewer - FAST_STEPS) * HYPER_BPS;
        } else if more >= FAST_STEPS {
            self.target_bps += ADDITIVE_BPS;
        }
        self.target_bps = self.target_bps.min(LINE_RATE_BPS);
        // Rounded up, so that the rate reaches the target.
        self.current_bps = (self.target_bps + self.current_bps).div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBPS: u64 = 1_000_000_000;

    fn at(us: u64) -> Instant {
        Instant(us * 1000)
    }

    #[test]
    fn the_first_cnp_halves_the_line_rate() {
        let mut flow = Dcqcn::default();
        assert_eq!(flow.rate_bps(at(0)), None);
        assert!(flow.on_cnp(at(10)));
        assert_eq!(flow.rate_bps(at(10)), Some(20 * GBPS));
        assert!(!flow.on_cnp(at(13)), "one cut in 4 us");
        assert!(flow.on_cnp(at(60)));
        assert_eq!(flow.rate_bps(at(60)), Some(10 * GBPS), "alpha is still 1");
    }

    /// By hand, from 40 Gbit/s cut to 20: half-way to 40 with each period of 55 us.
    #[test]
    fn fast_recovery_goes_half_way_back_five_times() {
        let mut flow = Dcqcn::default();
        flow.on_cnp(at(0));
        let rates: Vec<u64> =
            (1..=4).map(|step| flow.rate_bps(at(55 * step)).unwrap_or(0) / 1_000_000).collect();
        assert_eq!(rates, [30_000, 35_000, 37_500, 38_750]);
    }

    /// After 5 steps each step adds 40 Mbit/s to the target.
    #[test]
    fn additive_increase_follows_fast_recovery() {
        let mut flow = Dcqcn::default();
        for us in [0, 50, 100, 150, 200] {
            flow.on_cnp(at(us));
        }
        let start = Limited { current_bps: 2 * GBPS, target_bps: 2 * GBPS, ..flow.limited.unwrap() };
        flow.limited = Some(start);
        assert_eq!(flow.rate_bps(at(200 + 4 * 55)), Some(2 * GBPS));
        assert_eq!(flow.rate_bps(at(200 + 5 * 55)), Some(2 * GBPS + 20_000_000));
        flow.rate_bps(at(200 + 30 * 55));
        let Limited { target_bps, current_bps, .. } = flow.limited.unwrap();
        assert_eq!(target_bps, 2 * GBPS + 26 * ADDITIVE_BPS);
        assert!((1..=ADDITIVE_BPS).contains(&(target_bps - current_bps)));
    }

    /// Timer and byte counter beyond 5 steps both: the i-th step beyond adds i x 200 Mbit/s.
    #[test]
    fn hyper_increase_needs_both_the_timer_and_the_bytes() {
        let mut flow = Dcqcn::default();
        flow.on_cnp(at(0));
        let limited = flow.limited.as_mut().unwrap();
        (limited.current_bps, limited.target_bps) = (GBPS, GBPS);
        flow.rate_bps(at(55 * 8));
        let target = |flow: &Dcqcn| flow.limited.unwrap().target_bps;
        assert_eq!(target(&flow), GBPS + 4 * ADDITIVE_BPS);
        flow.on_sent(5 * BYTE_COUNTER);
        assert_eq!(target(&flow), GBPS + 9 * ADDITIVE_BPS, "the counter is not beyond");
        flow.on_sent(BYTE_COUNTER);
        assert_eq!(target(&flow), GBPS + 9 * ADDITIVE_BPS + HYPER_BPS);
        flow.on_sent(BYTE_COUNTER);
        assert_eq!(target(&flow), GBPS + 9 * ADDITIVE_BPS + 3 * HYPER_BPS);
    }

    #[test]
    fn alpha_shrinks_by_a_256th_each_period_so_that_a_rare_mark_costs_little() {
        let mut flow = Dcqcn::default();
        flow.on_cnp(at(0));
        let limited = flow.limited.as_mut().unwrap();
        (limited.current_bps, limited.target_bps) = (GBPS, GBPS);
        // 0.9961^256 is 1/e.
        flow.rate_bps(at(55 * 256));
        let alpha = flow.limited.unwrap().alpha as f64 / ONE as f64;
        assert!((alpha - 0.367).abs() < 0.001, "{alpha}");
        let before = flow.rate_bps(at(55 * 256)).unwrap();
        flow.on_cnp(at(55 * 256));
        let after = flow.rate_bps(at(55 * 256)).unwrap();
        assert!((after as f64 / before as f64 - (1.0 - alpha / 2.0)).abs() < 0.001);
    }

    #[test]
    fn the_rate_stays_above_its_minimum_and_ends_at_no_limit() {
        let mut flow = Dcqcn::default();
        for round in 0..100 {
            flow.on_cnp(at(50 * round));
        }
        assert_eq!(flow.rate_bps(at(4950)), Some(RATE_MIN_BPS));
        assert_eq!(flow.rate_bps(at(1_000_000)), None, "at 40 Mbit/s each 55 us");
        flow.on_cnp(at(1_000_000));
        assert_eq!(flow.rate_bps(at(1_000_000)), Some(20 * GBPS), "the initial state");
    }
}
