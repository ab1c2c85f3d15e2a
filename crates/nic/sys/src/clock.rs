//! The monotonic clock, the time of day, international atomic time, and CPU time.

/// Nanoseconds since a fixed moment, never decreasing (`CLOCK_MONOTONIC`).
#[must_use]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Converts a moment of [`now_ns`] to nanoseconds since 1970, by the present offset of `CLOCK_REALTIME`.
#[must_use]
pub fn time_of_day_ns(moment_ns: u64) -> u64 {
    let (now, day) = (now_ns(), read(libc::CLOCK_REALTIME));
    day.wrapping_sub(now).wrapping_add(moment_ns)
}

/// Nanoseconds since 1970 by `CLOCK_TAI`, the clock of the kernel's own time stamps of AF_XDP packets. It is
/// ahead of `CLOCK_REALTIME` by 37 s where a time service such as chrony has told the kernel the offset.
#[must_use]
pub fn tai_ns() -> u64 {
    read(libc::CLOCK_TAI)
}

/// CPU time of all threads of this process, in nanoseconds (`CLOCK_PROCESS_CPUTIME_ID`). Unlike the other
/// clocks, this one costs a system call.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
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
    fn a_spinning_thread_uses_cpu_time() {
        let before = super::process_cpu_ns();
        while super::process_cpu_ns() < before + 1_000_000 {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_moment_has_a_time_of_day() {
        let day = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
        let second = 1_000_000_000;
        assert!(super::time_of_day_ns(super::now_ns()).abs_diff(day) < second);
        let now = super::now_ns();
        let apart = super::time_of_day_ns(now + second).abs_diff(super::time_of_day_ns(now));
        assert!(apart.abs_diff(second) < second / 10);
    }
}
