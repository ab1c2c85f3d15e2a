//! CPUs for sender and receiver, so that the rates do not depend on the scheduler.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The CPU that sends and the CPU that receives: the first and the last that this process may use.
pub(super) fn pair() -> [u32; 2] {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return [0, 0] };
    let usable = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    let (first, last) = ((0..CpuSet::count()).find(usable), (0..CpuSet::count()).rev().find(usable));
    [first, last].map(|cpu| cpu.unwrap_or(0) as u32)
}

/// Pins the calling thread to a CPU. Where that is not allowed, it stays unpinned.
pub(super) fn stay_on(cpu: u32) {
    let mut set = CpuSet::new();
    if set.set(cpu as usize).is_ok() {
        let _anywhere = sched_setaffinity(Pid::from_raw(0), &set);
    }
}
