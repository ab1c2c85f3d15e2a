//! How threads that post wait for the lock of an engine that another thread holds.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use crate::runtime::Runtime;

/// Pauses between two attempts: some 0.2 us, so that the attempts of a waiting thread do not slow the holder.
const PAUSES: u32 = 8;

/// The threads that wait for one lock. The holder wakes a thread that sleeps by a system call, which takes
/// longer than most batches. So threads spin first, unless those that wait and the holder are more than the
/// CPUs.
#[derive(Debug)]
pub(crate) struct Posters {
    waiting: AtomicUsize,
    cpus: usize,
}

impl Posters {
    /// No thread waits. The CPUs are those of the calling thread.
    pub(crate) fn new() -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        Self { waiting: AtomicUsize::new(0), cpus }
    }

    /// Locks `mutex`. While another thread holds it, the caller spins for up to `spin_ns`, then sleeps. It
    /// sleeps at once if the threads that want the lock, the holder among them, are more than the CPUs.
    #[inline]
    pub(crate) fn lock<'a, T>(
        &self,
        runtime: &Runtime,
        mutex: &'a Mutex<T>,
        spin_ns: u64,
    ) -> MutexGuard<'a, T> {
        match runtime {
            Runtime::Kernel => runtime.try_lock(mutex).unwrap_or_else(|| self.wait(runtime, mutex, spin_ns)),
            Runtime::Virtual(_) => runtime.lock(mutex),
        }
    }

    #[cold]
    fn wait<'a, T>(&self, runtime: &Runtime, mutex: &'a Mutex<T>, spin_ns: u64) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let end_ns = runtime.now_ns() + spin_ns;
        let spun = loop {
            if self.waiting.load(Ordering::Relaxed) >= self.cpus || runtime.now_ns() >= end_ns {
                break None;
            }
            (0..PAUSES).for_each(|_| hint::spin_loop());
            let guard = runtime.try_lock(mutex);
            if guard.is_some() {
                break guard;
            }
        };
        let guard = spun.unwrap_or_else(|| runtime.lock(mutex));
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_gets_the_lock_whether_waiting_threads_spin_or_sleep() {
        const THREADS: usize = 4;
        const ROUNDS: usize = 2_000;
        for (cpus, spin_ns) in [(1, u64::MAX >> 1), (THREADS, 0), (THREADS, 1_000), (THREADS, 1_000_000)] {
            let (posters, sum) = (Posters { cpus, ..Posters::new() }, Mutex::new(0));
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        for _ in 0..ROUNDS {
                            *posters.lock(&Runtime::Kernel, &sum, spin_ns) += 1;
                        }
                    });
                }
            });
            assert_eq!(sum.into_inner().ok(), Some(THREADS * ROUNDS));
            assert_eq!(posters.waiting.into_inner(), 0);
        }
    }
}
