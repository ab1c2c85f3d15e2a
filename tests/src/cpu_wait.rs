//! How long programs waited for a CPU, by the kernel's measure (`/proc/PID/task/TID/schedstat`). A response
//! may then come after the requester's timeout without a fault of the device.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Interval of measurements. What a thread waits between the last one and its end is not seen.
const INTERVAL: Duration = Duration::from_millis(5);

/// A measurement of processes from [`begin`](Self::begin) to [`end`](Self::end).
#[derive(Debug)]
pub struct CpuWait {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl CpuWait {
    /// Begins to measure the threads of these processes, without their children.
    #[must_use]
    pub fn begin(pids: Vec<u32>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen_end = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            let (mut known, mut stalls_ms) = (HashMap::new(), 0);
            while !seen_end.load(Ordering::Relaxed) {
                stalls_ms += pids.iter().map(|pid| stalls(&mut known, *pid)).sum::<u64>();
                std::thread::sleep(INTERVAL);
            }
            stalls_ms
        });
        Self { ended, thread }
    }

    /// Ends the measurement. Returns how many whole milliseconds the threads waited for a CPU; less than one
    /// between two measurements does not count.
    #[must_use]
    pub fn end(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or(0)
    }
}

/// The whole milliseconds that each thread of a process has waited since the last call; together.
fn stalls(known: &mut HashMap<PathBuf, u64>, pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let grown = tasks.filter_map(|task| {
        let path = task.path().join("schedstat");
        let waited_ns = waited_ns(&fs::read_to_string(&path).ok()?)?;
        let before_ns = known.insert(path, waited_ns).unwrap_or(waited_ns);
        Some(waited_ns.saturating_sub(before_ns) / 1_000_000)
    });
    grown.sum()
}

/// The second number: time on a run queue.
fn waited_ns(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_of_a_thread_is_the_second_number() {
        assert_eq!(waited_ns("1500 2000000 7\n"), Some(2_000_000));
        assert_eq!(waited_ns(""), None);
    }

    #[test]
    fn threads_that_spin_on_fewer_cpus_wait_and_sleeping_ones_do_not() {
        let wait = |spins: bool| {
            let wait = CpuWait::begin(vec![std::process::id()]);
            let cpus = std::thread::available_parallelism().expect("a number of CPUs").get();
            std::thread::scope(|scope| {
                for _ in 0..3 * cpus {
                    scope.spawn(|| {
                        let start = std::time::Instant::now();
                        while start.elapsed() < Duration::from_millis(300) {
                            if !spins {
                                std::thread::sleep(Duration::from_millis(100));
                            }
                        }
                    });
                }
            });
            wait.end()
        };
        let (asleep, spinning) = (wait(false), wait(true));
        assert!(spinning > 100 && spinning > 3 * asleep, "{spinning} ms, {asleep} ms");
        assert_eq!(CpuWait::begin(Vec::new()).end(), 0);
    }
}
