//! CPUs for threads that must not be moved by the kernel's scheduler.

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The CPU that sends and the CPU that receives: the first and the last that this process may use.
pub(crate) fn pair() -> [u32; 2] {
    let allowed = allowed();
    [allowed.first(), allowed.last()].map(|cpu| cpu.copied().unwrap_or(0))
}

/// The CPU for worker thread `worker` of this process. The workers take the allowed CPUs in turn, from the
/// one on which the process runs, so that two processes with one worker each rarely share a CPU.
pub(crate) fn of_worker(worker: usize) -> Option<u32> {
    // The CPU of the process, not of the worker that asks: two workers would otherwise meet on one CPU.
    static FIRST: OnceLock<u32> = OnceLock::new();
    let first = *FIRST.get_or_init(|| sched_getcpu().unwrap_or(0) as u32);
    static ALLOWED: OnceLock<Vec<u32>> = OnceLock::new();
    nth_from(ALLOWED.get_or_init(allowed), first, worker)
}

fn nth_from(allowed: &[u32], current: u32, n: usize) -> Option<u32> {
    let first = allowed.iter().position(|cpu| *cpu == current).unwrap_or(0);
    allowed.iter().cycle().skip(first).nth(n % allowed.len().max(1)).copied()
}

/// Pins the calling thread, and the threads that it starts afterwards, to a CPU. Where the kernel does not
/// permit that, the thread stays unpinned.
pub(crate) fn stay_on(cpu: u32) {
    let mut set = CpuSet::new();
    if set.set(cpu as usize).is_ok() {
        let _unpinned = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// The CPUs that this process may use, in order.
fn allowed() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).map(|cpu| cpu as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_take_the_allowed_cpus_in_turn_from_the_current_one() {
        let cpus = |current| [0, 1, 2, 3].map(|worker| nth_from(&[2, 3, 7], current, worker));
        assert_eq!(cpus(3), [Some(3), Some(7), Some(2), Some(3)]);
        assert_eq!(cpus(0), [Some(2), Some(3), Some(7), Some(2)], "the current CPU is no longer allowed");
        assert_eq!(nth_from(&[], 0, 1), None);
    }
}
