//! How much of the machine the reader of a live capture takes.
//!
//! Where a CPU is idle it takes what it needs. Where none is, each packet it reads is one that those it looks at could not send, and
//! no priority would spare them: the kernel gives half of a CPU to any session that wants it (autogroup). So it stops for a while
//! once it has had its share, and what then finds no room is counted.

use std::fs;
use std::thread;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};
use sys::now_ns;

/// Percent of a CPU for the reader if no CPU is idle, unless somebody says otherwise. `bench/capture` shows what it costs.
pub(crate) const PERCENT: u32 = 3;
/// The percentage that stands for no limit.
const ALL: u32 = 100;
/// How long a look at the machine holds: ten of the kernel's ticks.
const PERIOD_NS: u64 = 100_000_000;
/// How long the look takes with which it begins.
const FIRST_NS: u64 = 40_000_000;
/// What the kernel counts in (USER_HZ is 100).
const TICK_NS: u64 = 10_000_000;
/// The shortest rest. Few long ones disturb less than many short ones, and packets that are taken stand side by side.
const REST_MIN_NS: u64 = 20_000_000;
/// As much of a CPU, if others leave it, is one that nobody else needs.
const FREE: f64 = 0.75;
/// So much of one is idle now and then although everybody would use it, because those that are looked at wait for each other: what is
/// taken from one then keeps the other waiting.
const BUBBLES: f64 = 0.25;
/// Waiting for longer than this part of the time that it had a CPU is competing for it. Three threads on two CPUs have two thirds of one
/// each, and wait for half as long.
const COMPETES: f64 = 0.25;

/// Counts what the calling thread uses, and tells it when to rest.
pub(super) struct Pace {
    /// Of a CPU; `None` for as much as it takes.
    share: Option<f64>,
    /// What the period at hand began with.
    since: Used,
    /// Of a CPU until it is over, if that is limited.
    allowed: Option<f64>,
    /// CPU time beyond that when it began.
    debt_ns: f64,
    has_rested: bool,
}

/// What has been used up to a moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    time: u64,
    /// By the calling thread.
    own: u64,
    /// By the calling thread, while it waited for a CPU.
    waited: u64,
    /// By nobody, of the CPUs that it may run on.
    idle: u64,
}

impl Pace {
    /// With so many percent of a CPU for what others would have used. Takes a moment, to see whether there is an idle one: what is looked at
    /// is not disturbed before that is known.
    pub(super) fn new(percent: u32) -> Self {
        let share = (percent < ALL).then(|| f64::from(percent) / 100.0);
        let mut pace =
            Self { share, since: Used::now().look(), allowed: None, debt_ns: 0.0, has_rested: false };
        if share.is_some() {
            thread::sleep(Duration::from_nanos(FIRST_NS));
            pace.begin_period(Used::now().look());
        }
        pace
    }

    /// How long to rest now; 0 mostly.
    pub(super) fn rest_ns(&mut self) -> u64 {
        if self.share.is_none() {
            return 0;
        }
        self.rest(Used::now(), Used::look)
    }

    /// Whether it has ever said so.
    pub(super) fn has_rested(&self) -> bool {
        self.has_rested
    }

    /// `look` adds what is asked for once in a period.
    fn rest(&mut self, now: Used, look: impl FnOnce(Used) -> Used) -> u64 {
        let (time, own) = (now.time.saturating_sub(self.since.time), now.own.saturating_sub(self.since.own));
        let beyond = |allowed: f64| (self.debt_ns + own as f64 - allowed * time as f64).max(0.0);
        let mut debt_ns = self.allowed.map_or(0.0, beyond);
        if time >= PERIOD_NS {
            self.begin_period(look(now));
            debt_ns = if self.allowed.is_some() { debt_ns } else { 0.0 };
            self.debt_ns = debt_ns;
        }
        let due_ns = self.allowed.map_or(0, |allowed| (debt_ns / allowed) as u64);
        if due_ns < REST_MIN_NS {
            return 0;
        }
        self.has_rested = true;
        // By then the machine may have an idle CPU.
        due_ns.min(PERIOD_NS)
    }

    /// Says what is allowed from `now` on, by what was used in the period that ends.
    fn begin_period(&mut self, now: Used) {
        let Some(share) = self.share else { return };
        let time = now.time.saturating_sub(self.since.time);
        let part = |now: u64, before: u64| now.saturating_sub(before) as f64 / time as f64;
        let own = part(now.own, self.since.own);
        // A tick is counted whole, of whatever it was a part.
        let idle = part(now.idle, self.since.idle + TICK_NS);
        let competes = part(now.waited, self.since.waited) > COMPETES * own;
        self.allowed = match idle + own {
            left if left >= FREE && !competes => None,
            // Half of the rest, so that it is seen whether others want more.
            left => Some(share.max((left - BUBBLES) / 2.0)),
        };
        self.since = now;
    }
}

impl Used {
    /// What costs little to ask for.
    fn now() -> Self {
        Self { time: now_ns(), own: own_ns(), ..Self::default() }
    }

    /// With the rest.
    fn look(self) -> Self {
        Self { waited: waited_ns(), idle: idle_ns(), ..self }
    }
}

/// CPU time of the calling thread.
fn own_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// Time that the calling thread has waited for a CPU: the second number of its schedstat (`Documentation/scheduler/sched-stats.rst` of the kernel);
/// 0 where the kernel does not tell.
fn waited_ns() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0)
}

/// Time that the CPUs have been idle on which the calling thread may run; 0 where the kernel does not tell.
fn idle_ns() -> u64 {
    let Ok(stat) = fs::read_to_string("/proc/stat") else { return 0 };
    let ours = sched_getaffinity(Pid::from_raw(0)).ok();
    let ticks = idle_ticks(&stat, |cpu| ours.is_none_or(|ours| is_in(&ours, cpu)));
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100) as u64;
    ticks * (1_000_000_000 / per_second.max(1))
}

fn is_in(set: &CpuSet, cpu: usize) -> bool {
    set.is_set(cpu).unwrap_or(false)
}

/// proc_stat(5): idle and waiting for a device, the fourth and fifth number of a CPU.
fn idle_ticks(stat: &str, ours: impl Fn(usize) -> bool) -> u64 {
    let cpu = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split(' ');
        let number = words.next()?.parse().ok()?;
        let ticks = words.skip(3).take(2).filter_map(|word| word.parse::<u64>().ok()).sum::<u64>();
        ours(number).then_some(ticks)
    };
    stat.lines().map_while(|line| line.starts_with("cpu").then_some(line)).filter_map(cpu).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A reader that would need a whole CPU, a millisecond at a time, on a machine of which `left` of a CPU is not used by others: how much
    /// of a second it has.
    fn share_taken(percent: u32, left: f64) -> f64 {
        let start = Used::default();
        let share = (percent < ALL).then(|| f64::from(percent) / 100.0);
        let mut pace = Pace { share, since: start, allowed: None, debt_ns: 0.0, has_rested: false };
        let (mut time, mut own, mut taken) = (0, 0, 0);
        while time < 2_000 * MS {
            // A CPU that it shares with a busy thread is its own half of the time.
            let step = if left < 0.5 { 2 * MS } else { MS };
            (time, own) = (time + step, own + MS);
            taken += if time > 1_000 * MS { MS } else { 0 };
            let idle = |time: u64, own| ((time as f64 * left) as u64).saturating_sub(own);
            time += pace.rest(Used { time, own, ..start }, |now| Used { idle: idle(time, own), ..now });
        }
        taken as f64 / (1_000 * MS) as f64
    }

    #[test]
    fn where_nobody_leaves_anything_it_keeps_to_its_share() {
        for percent in [1, 5, 20] {
            let taken = share_taken(percent, 0.0) * 100.0;
            let percent = f64::from(percent);
            assert!((percent * 0.8..percent * 1.2 + 1.0).contains(&taken), "{percent}: {taken}");
        }
    }

    /// Three threads on two CPUs, and ticks that happen to look idle.
    #[test]
    fn who_waits_for_a_cpu_has_none_of_its_own() {
        let start = Used::default();
        let mut pace =
            Pace { share: Some(0.05), since: start, allowed: None, debt_ns: 0.0, has_rested: false };
        let now = Used { time: 100 * MS, own: 67 * MS, ..start };
        pace.rest(now, |now| Used { waited: 33 * MS, idle: 10 * MS, ..now });
        assert!(pace.allowed.is_some_and(|allowed| allowed < 0.5), "{:?}", pace.allowed);
        // The same without waiting is a CPU that nobody else wants.
        let mut pace =
            Pace { share: Some(0.05), since: start, allowed: None, debt_ns: 0.0, has_rested: false };
        pace.rest(now, |now| Used { waited: MS, idle: 33 * MS, ..now });
        assert_eq!(pace.allowed, None);
    }

    #[test]
    fn of_an_idle_cpu_it_takes_all() {
        assert!(share_taken(5, 1.0) > 0.99);
        assert!(share_taken(5, 4.0) > 0.99);
        assert!(share_taken(100, 0.0) > 0.49);
    }

    #[test]
    fn of_some_idle_time_it_takes_some() {
        let taken = share_taken(5, 0.49);
        assert!((0.06..0.2).contains(&taken), "{taken}");
        assert!(share_taken(5, 0.3) < 0.07, "bubbles");
    }

    #[test]
    fn idle_time_is_that_of_the_cpus_in_reach() {
        let stat = "cpu  9 9 9 99 99 9\ncpu0 1 2 3 40 5 6 7 8 9 10\ncpu1 1 2 3 400 50 6\nintr 7 cpu1\ncpu7 0 0 0 1 1\n";
        assert_eq!(idle_ticks(stat, |_| true), 495);
        assert_eq!(idle_ticks(stat, |cpu| cpu == 1), 450);
        assert_eq!(idle_ticks(stat, |_| false), 0);
        assert_eq!(idle_ticks("", |_| true), 0);
    }

    #[test]
    fn the_kernel_tells_what_is_used() {
        let before = own_ns();
        assert!(before > 0);
        while own_ns() < before + MS {}
        assert!(idle_ns() < now_ns().saturating_mul(8192) && waited_ns() < now_ns());
    }
}
