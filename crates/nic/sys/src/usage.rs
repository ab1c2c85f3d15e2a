//! What threads used of the CPU, and how they left it.

/// CPU time of threads, and their context switches.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Nanoseconds, in steps of a microsecond.
    pub cpu_ns: u64,
    /// Context switches because a thread slept or waited for something.
    pub voluntary: u64,
    /// Context switches because another thread took the CPU, also by sched_yield(2).
    pub involuntary: u64,
}

impl Usage {
    /// The usage of all threads of this process, of those that have ended too, without the calling thread
    /// (getrusage(2)). Costs two system calls, and may be less than before by what lies between them.
    #[must_use]
    pub fn of_other_threads() -> Self {
        let own = read(libc::RUSAGE_THREAD);
        read(libc::RUSAGE_SELF).since(own)
    }

    /// What was used since `before`, at least 0.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
        }
    }
}

fn read(who: libc::c_int) -> Usage {
    // SAFETY: all-zero bytes are a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel may write the whole of `usage`.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    Usage {
        cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
        voluntary: usage.ru_nvcsw as u64,
        involuntary: usage.ru_nivcsw as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_threads_use_the_cpu_and_sleep() {
        let before = Usage::of_other_threads();
        let other = std::thread::spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let begun = read(libc::RUSAGE_THREAD).cpu_ns;
            while read(libc::RUSAGE_THREAD).cpu_ns < begun + 2_000_000 {
                std::hint::spin_loop();
            }
        });
        other.join().expect("it does not panic");
        let used = Usage::of_other_threads().since(before);
        assert!(used.cpu_ns >= 2_000_000 && used.voluntary > 0, "{used:?}");
    }
}
