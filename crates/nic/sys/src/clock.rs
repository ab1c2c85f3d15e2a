//! The monotonic clock, the time of day, and international atomic time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds since a fixed moment, never decreasing (`CLOCK_MONOTONIC`).
#[must_use]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Returns by how much `CLOCK_REALTIME` is ahead of [`now_ns`], in nanoseconds: the same number until the
/// time of day is set. An adjustment of the rate (adjtimex) changes both clocks alike.
#[must_use]
pub fn day_offset_ns() -> u64 {
    static KEPT: AtomicU64 = AtomicU64::new(0);
    /// The best of this many is kept: an interruption between two clocks makes a measurement wrong.
    const TRIES: usize = 8;
    /// Two uninterrupted readings differ by some 50 ns. Half of it would take noise for a new time of day on
    /// a slow machine; with double of it, a step of 2 us goes unnoticed.
    const NOISE_NS: u64 = 1000;
    let (offset, took) = measured_offset();
    let kept = KEPT.load(Ordering::Relaxed);
    if offset.wrapping_sub(kept).cast_signed().unsigned_abs() <= took + NOISE_NS {
        return kept;
    }
    let tries = std::iter::repeat_with(measured_offset).take(TRIES);
    let best = tries.min_by_key(|(_, took)| *took).map_or(offset, |(offset, _)| offset);
    // A thread that has measured at the same time has set it already.
    KEPT.compare_exchange(kept, best, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|other| other, |_| best)
}

/// Returns the offset of the time of day, and how long measuring took. It is wrong by half of that at most.
fn measured_offset() -> (u64, u64) {
    let (before, day, after) = (now_ns(), read(libc::CLOCK_REALTIME), now_ns());
    let took = after - before;
    (day.wrapping_sub(before + took / 2), took)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec the kernel may write.
    unsafe { libc::clock_gettime(clock, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_does_not_go_back() {
        let a = super::now_ns();
        assert!(a > 0 && super::now_ns() >= a);
    }

    #[test]
    fn the_time_of_day_is_ahead_by_the_same_until_it_is_set() {
        let day = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
        let offset = super::day_offset_ns();
        assert!(offset.wrapping_add(super::now_ns()).abs_diff(day) < 1_000_000_000);
        assert!((0..100_000).all(|_| super::day_offset_ns() == offset));
    }
}
