//! How threads that post wait for the lock of an engine that another thread holds.

use std::hint;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

use sys::Cancellation;

use crate::runtime::Runtime;

/// Pauses between two attempts: some 0.2 us, so that the attempts of a waiting thread do not slow the holder.
const PAUSES: u32 = 8;

/// The threads that wait for one lock. A thread that sleeps is woken by the holder with a system call, which
/// takes longer than most batches; so threads spin first, unless a thread that has work would get their CPU.
#[derive(Debug, Default)]
pub(crate) struct Posters {
    waiting: AtomicUsize,
    cpus: OnceLock<usize>,
}

impl Posters {
    /// Locks `mutex`. While another thread holds it, the caller spins for up to `spin_ns`, then sleeps. It
    /// sleeps at once if the threads that want the lock, the holder among them, are more than the CPUs that
    /// the process may use.
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
        let cpus = *self.cpus.get_or_init(|| {
            // It reads files of the cgroup, which are cancellation points.
            let _cancellation = Cancellation::disable();
            thread::available_parallelism().map_or(1, usize::from)
        });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let end_ns = runtime.now_ns() + spin_ns;
        let spun = loop {
            if self.waiting.load(Ordering::Relaxed) >= cpus || runtime.now_ns() >= end_ns {
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
            let (posters, sum) =
                (Posters { cpus: OnceLock::from(cpus), ..Posters::default() }, Mutex::new(0));
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
