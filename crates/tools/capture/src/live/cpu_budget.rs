//! Limits the CPU time of the reader of a live capture.
//!
//! While a CPU is idle, the reader takes the CPU time it needs. While none is, the reader competes with the
//! captured programs. A low priority does not help them: the kernel gives each session the same share of a
//! CPU (autogroup). So the reader pauses once it has used its budget. Packets that find the buffer full
//! meanwhile are counted as dropped.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};
use sys::now_ns;

/// Default CPU limit for the reader while no CPU is idle, in percent of a CPU. `bench/capture` measures its
/// cost.
pub const PERCENT: u32 = 3;
/// Percentage that means no limit.
const NO_LIMIT: u32 = 100;
/// Time between two measurements of the idle time: ten ticks of the kernel's accounting.
const PERIOD_NS: u64 = 100_000_000;
/// Length of the first measurement, before the capture starts: four ticks.
const FIRST_NS: u64 = 40_000_000;
/// Unit of the kernel's accounting of idle time (USER_HZ is 100).
const TICK_NS: u64 = 10_000_000;
/// Shortest pause. Few long pauses disturb the captured programs less than many short ones, and packets are
/// then read in batches.
const PAUSE_MIN_NS: u64 = 20_000_000;
/// With this much of a CPU not used by other threads, a CPU counts as idle and the reader has no limit.
const FREE: f64 = 0.75;
/// Part of a CPU that is idle on a busy machine because the captured programs wait for each other. The reader
/// leaves it alone: CPU time taken from one program makes the other wait longer.
const IDLE_GAPS: f64 = 0.25;
/// The reader competes for its CPU if it waited longer than this part of the time it ran. Three threads on
/// two CPUs run for two thirds of the time each, and wait half as long as they run.
const COMPETES: f64 = 0.25;

/// Measures the CPU time of the calling thread and says when to pause.
pub(super) struct CpuBudget {
    /// Guaranteed part of a CPU; `None` for no limit.
    share: Option<f64>,
    /// Usage at the beginning of the present period.
    since: Usage,
    /// Allowed part of a CPU in the present period; `None` for no limit.
    allowed: Option<f64>,
    /// CPU time used in excess of the allowed part when the period began.
    excess_ns: f64,
    has_paused: bool,
}

/// CPU usage up to a moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    /// CLOCK_MONOTONIC.
    time: u64,
    /// CPU time of the calling thread.
    own: u64,
    /// Time that the calling thread was runnable and waited for a CPU.
    waited: u64,
    /// Idle time of the CPUs that the calling thread may run on.
    idle: u64,
}

impl CpuBudget {
    /// A budget of `percent` of a CPU while no CPU is idle. Sleeps for 40 ms to measure the idle time, unless
    /// the limit is 100, so that the capture does not disturb a busy machine from its beginning.
    pub(super) fn new(percent: u32) -> Self {
        let share = (percent < NO_LIMIT).then(|| f64::from(percent) / 100.0);
        let mut budget = Self {
            share,
            since: Usage::now().with_waited_and_idle(),
            allowed: None,
            excess_ns: 0.0,
            has_paused: false,
        };
        if share.is_some() {
            thread::sleep(Duration::from_nanos(FIRST_NS));
            budget.begin_period(Usage::now().with_waited_and_idle());
        }
        budget
    }

    /// Length of the pause due now; mostly 0.
    pub(super) fn pause_ns(&mut self) -> u64 {
        if self.share.is_none() {
            return 0;
        }
        self.pause(Usage::now(), Usage::with_waited_and_idle)
    }

    /// Whether a pause was ever due.
    pub(super) fn has_paused(&self) -> bool {
        self.has_paused
    }

    /// The pause due at `now`; `measure` adds the values that are read once in a period.
    fn pause(&mut self, now: Usage, measure: impl FnOnce(Usage) -> Usage) -> u64 {
        let (time, own) = (now.time.saturating_sub(self.since.time), now.own.saturating_sub(self.since.own));
        let beyond = |allowed: f64| (self.excess_ns + own as f64 - allowed * time as f64).max(0.0);
        let mut excess_ns = self.allowed.map_or(0.0, beyond);
        if time >= PERIOD_NS {
            self.begin_period(measure(now));
            excess_ns = if self.allowed.is_some() { excess_ns } else { 0.0 };
            self.excess_ns = excess_ns;
        }
        let due_ns = self.allowed.map_or(0, |allowed| (excess_ns / allowed) as u64);
        if due_ns < PAUSE_MIN_NS {
            return 0;
        }
        self.has_paused = true;
        // Afterwards the machine may have an idle CPU.
        due_ns.min(PERIOD_NS)
    }

    /// Sets the allowed part from `now` on, by the usage in the period that ends.
    fn begin_period(&mut self, now: Usage) {
        let Some(share) = self.share else { return };
        let time = now.time.saturating_sub(self.since.time);
        let part = |now: u64, before: u64| now.saturating_sub(before) as f64 / time as f64;
        let own = part(now.own, self.since.own);
        // The kernel counts a complete tick for a part of one.
        let idle = part(now.idle, self.since.idle + TICK_NS);
        let competes = part(now.waited, self.since.waited) > COMPETES * own;
        self.allowed = match idle + own {
            left if left >= FREE && !competes => None,
            // Half of the remainder: the next measurement shows whether other threads need more.
            left => Some(share.max((left - IDLE_GAPS) / 2.0)),
        };
        self.since = now;
    }
}

impl Usage {
    /// The values that are cheap to read.
    fn now() -> Self {
        Self { time: now_ns(), own: own_ns(), ..Self::default() }
    }

    /// Adds the values from /proc.
    fn with_waited_and_idle(self) -> Self {
        Self { waited: waited_ns(), idle: idle_ns(), ..self }
    }
}

/// CPU time of the calling thread.
fn own_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Time that the calling thread was runnable and waited for a CPU: the second number of its schedstat
/// (kernel's `Documentation/scheduler/sched-stats.rst`); 0 if the kernel has no such file.
fn waited_ns() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0)
}

/// Idle time of the CPUs on which the calling thread may run; 0 if the kernel does not tell.
fn idle_ns() -> u64 {
    let Ok(stat) = fs::read_to_string("/proc/stat") else { return 0 };
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok();
    let ticks = idle_ticks(&stat, |cpu| allowed.is_none_or(|allowed| is_in(&allowed, cpu)));
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as u64;
    ticks * (1_000_000_000 / per_second.max(1))
}

fn is_in(set: &CpuSet, cpu: usize) -> bool {
    set.is_set(cpu).unwrap_or(false)
}

/// Ticks that the `allowed` CPUs were idle or waited for I/O: the fourth and fifth number of each
/// (proc_stat(5)).
fn idle_ticks(stat: &str, allowed: impl Fn(usize) -> bool) -> u64 {
    let cpu = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let number = words.next()?.parse().ok()?;
        let ticks = words.skip(3).take(2).filter_map(|word| word.parse::<u64>().ok()).sum::<u64>();
        allowed(number).then_some(ticks)
    };
    stat.lines().map_while(|line| line.starts_with("cpu").then_some(line)).filter_map(cpu).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The part of a second in which a reader runs that needs a complete CPU, on a machine with `left` of a
    /// CPU not used by other threads.
    fn share_taken(percent: u32, left: f64) -> f64 {
        let start = Usage::default();
        let share = (percent < NO_LIMIT).then(|| f64::from(percent) / 100.0);
        let mut budget = CpuBudget { share, since: start, allowed: None, excess_ns: 0.0, has_paused: false };
        let (mut time, mut own, mut taken) = (0, 0, 0);
        while time < 2_000 * MS {
            // On a CPU shared with a busy thread it runs half of the time.
            let step = if left < 0.5 { 2 * MS } else { MS };
            (time, own) = (time + step, own + MS);
            taken += if time > 1_000 * MS { MS } else { 0 };
            let idle = |time: u64, own| ((time as f64 * left) as u64).saturating_sub(own);
            time += budget.pause(Usage { time, own, ..start }, |now| Usage { idle: idle(time, own), ..now });
        }
        taken as f64 / (1_000 * MS) as f64
    }

    #[test]
    fn on_a_busy_machine_the_reader_keeps_its_limit() {
        for percent in [1, 5, 20] {
            let taken = share_taken(percent, 0.0) * 100.0;
            let percent = f64::from(percent);
            assert!((percent * 0.8..percent * 1.2 + 1.0).contains(&taken), "{percent}: {taken}");
        }
    }

    /// Three threads on two CPUs, with ticks that count as idle by chance.
    #[test]
    fn a_reader_that_waits_for_its_cpu_is_limited() {
        let start = Usage::default();
        let mut budget =
            CpuBudget { share: Some(0.05), since: start, allowed: None, excess_ns: 0.0, has_paused: false };
        let now = Usage { time: 100 * MS, own: 67 * MS, ..start };
        budget.pause(now, |now| Usage { waited: 33 * MS, idle: 10 * MS, ..now });
        assert!(budget.allowed.is_some_and(|allowed| allowed < 0.5), "{:?}", budget.allowed);
        // Without waiting, no other thread needs the CPU.
        let mut budget =
            CpuBudget { share: Some(0.05), since: start, allowed: None, excess_ns: 0.0, has_paused: false };
        budget.pause(now, |now| Usage { waited: MS, idle: 33 * MS, ..now });
        assert_eq!(budget.allowed, None);
    }

    #[test]
    fn an_idle_cpu_is_used_without_limit() {
        assert!(share_taken(5, 1.0) > 0.99);
        assert!(share_taken(5, 4.0) > 0.99);
        assert!(share_taken(100, 0.0) > 0.49);
    }

    #[test]
    fn some_idle_time_is_used_in_part() {
        let taken = share_taken(5, 0.49);
        assert!((0.06..0.2).contains(&taken), "{taken}");
        assert!(share_taken(5, 0.3) < 0.07, "gaps between the captured programs");
    }

    #[test]
    fn idle_time_counts_only_the_allowed_cpus() {
        let stat = "cpu  9 9 9 99 99 9\ncpu0 1 2 3 40 5 6 7 8 9 10\ncpu1 1 2 3 400 50 6\n\
                    intr 7 cpu1\ncpu7 0 0 0 1 1\n";
        assert_eq!(idle_ticks(stat, |_| true), 495);
        assert_eq!(idle_ticks(stat, |cpu| cpu == 1), 450);
        assert_eq!(idle_ticks(stat, |_| false), 0);
        assert_eq!(idle_ticks("", |_| true), 0);
    }

    #[test]
    fn the_kernel_reports_the_usage() {
        let before = own_ns();
        assert!(before > 0);
        while own_ns() < before + MS {}
        assert!(idle_ns() < now_ns().saturating_mul(8192) && waited_ns() < now_ns());
    }
}
