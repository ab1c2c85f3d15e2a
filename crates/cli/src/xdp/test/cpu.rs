//! Who runs where: sender and receiver on CPUs of their own, so that figures do not depend on the scheduler's moods.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The CPU that packets are sent from, and the one of whoever receives: the first and the last this process may use.
pub(super) fn pair() -> [u32; 2] {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return [0, 0] };
    let usable = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    let (first, last) = ((0..CpuSet::count()).find(usable), (0..CpuSet::count()).rev().find(usable));
    [first, last].map(|cpu| cpu.unwrap_or(0) as u32)
}

/// Keeps the calling thread on a CPU. Where that is not allowed, it runs anywhere.
pub(super) fn stay_on(cpu: u32) {
    let mut set = CpuSet::new();
    if set.set(cpu as usize).is_ok() {
        let _anywhere = sched_setaffinity(Pid::from_raw(0), &set);
    }
}
