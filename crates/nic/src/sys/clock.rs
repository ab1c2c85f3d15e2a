//! The monotonic clock.

/// Nanoseconds since some fixed moment, never going back (`CLOCK_MONOTONIC`).
#[must_use]
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid timespec the kernel may write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_does_not_go_back() {
        let a = super::now_ns();
        assert!(a > 0 && super::now_ns() >= a);
    }
}
