//! The environment of an engine: a clock, and threads that yield, sleep and wake.
//!
//! An engine uses the clock and the threads of its [`Runtime`] only. [`Runtime::Kernel`] is the operating
//! system. [`Runtime::Virtual`] is a simulation with its own clock and threads, which decides at each
//! [`Point`] which thread runs next.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use sys::{PollFd, Usage, now_ns};
use transport::Instant;

/// Most descriptors that a thread waits for: the sockets of the port, the registry, the kick, the control
/// socket and the monitor of the netdev.
const WAIT_FDS_MAX: usize = 8;
/// Sleep of a thread if poll(2) refuses so many descriptors; the engine then only polls at this interval.
const POLL_REFUSED: Duration = Duration::from_millis(1);

/// Where a simulation may let another thread run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Point {
    /// Before a lock is taken.
    Lock,
    /// Before a sleeping thread may be woken.
    Wake,
    /// Before a thread publishes when its sleep ends, and before it falls asleep.
    Sleep,
}

/// A simulation's clock and threads. The calling thread is always one of the simulation's own.
pub trait World: Send + Sync {
    /// Virtual time (nanoseconds).
    fn now_ns(&self) -> u64;
    /// The usage of the other threads of the caller's process.
    fn usage(&self) -> Usage;
    /// 64 random bits.
    fn random_u64(&self) -> u64;
    /// Another thread may run here.
    fn reach(&self, point: Point);
    /// The caller gives up its CPU and runs again later.
    fn yield_now(&self);
    /// The caller waits until another thread has released a lock.
    fn wait_for_lock(&self);
    /// The caller sleeps until one of `fds` is readable or the clock shows `until_ns`.
    fn sleep(&self, fds: &[RawFd], until_ns: u64);
    /// Starts a thread of the caller's process.
    fn spawn(&self, body: Box<dyn FnOnce() + Send>);
}

/// See the module documentation.
#[derive(Clone)]
pub enum Runtime {
    /// The kernel's clock and threads.
    Kernel,
    /// The clock and threads of a simulation.
    Virtual(Arc<dyn World>),
}

impl Runtime {
    /// The time now (nanoseconds of a monotonic clock).
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match self {
            Self::Kernel => now_ns(),
            Self::Virtual(world) => world.now_ns(),
        }
    }

    /// The time now.
    #[inline]
    pub fn now(&self) -> Instant {
        Instant(self.now_ns())
    }

    /// The usage of the other threads of this process.
    pub(crate) fn usage(&self) -> Usage {
        match self {
            Self::Kernel => Usage::of_other_threads(),
            Self::Virtual(world) => world.usage(),
        }
    }

    /// 64 random bits; in a simulation, those of its seed.
    pub(crate) fn random_u64(&self) -> u64 {
        match self {
            Self::Kernel => sys::random_u64(),
            Self::Virtual(world) => world.random_u64(),
        }
    }

    /// Lets a simulation run another thread here; does nothing with the kernel's threads.
    #[inline]
    pub(crate) fn reach(&self, point: Point) {
        if let Self::Virtual(world) = self {
            world.reach(point);
        }
    }

    pub(crate) fn yield_now(&self) {
        match self {
            Self::Kernel => std::thread::yield_now(),
            Self::Virtual(world) => world.yield_now(),
        }
    }

    /// Locks `mutex`; a thread that panicked with it does not poison it.
    #[inline]
    pub(crate) fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        match self {
            Self::Kernel => mutex.lock().unwrap_or_else(PoisonError::into_inner),
            Self::Virtual(world) => loop {
                if let Some(guard) = self.try_lock(mutex) {
                    return guard;
                }
                world.wait_for_lock();
            },
        }
    }

    /// Locks `mutex` if no other thread holds it.
    #[inline]
    pub(crate) fn try_lock<'a, T>(&self, mutex: &'a Mutex<T>) -> Option<MutexGuard<'a, T>> {
        self.reach(Point::Lock);
        match mutex.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sleeps until one of `fds` is readable or the time is `until`. Returns whether the last of them is
    /// readable. Descriptors of -1 are skipped.
    pub fn sleep(&self, fds: &[RawFd], until: Instant) -> bool {
        let mut polled: [PollFd; WAIT_FDS_MAX] =
            std::array::from_fn(|i| PollFd::readable(fds.get(i).copied().unwrap_or(-1)));
        let timeout_ns = match self {
            Self::Kernel => until.0.saturating_sub(now_ns()),
            Self::Virtual(world) => {
                world.sleep(fds, until.0);
                0
            }
        };
        if sys::poll(&mut polled, Some(timeout_ns)).is_err() {
            // The limit of descriptors (RLIMIT_NOFILE) is below `WAIT_FDS_MAX`.
            sys::pause(POLL_REFUSED);
        }
        debug_assert!(fds.len() <= WAIT_FDS_MAX);
        let last = fds.len().checked_sub(1).and_then(|last| polled.get(last));
        last.is_some_and(PollFd::is_ready)
    }

    /// Starts a thread.
    ///
    /// # Errors
    /// The error of the kernel, if it refuses another thread.
    pub(crate) fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        match self {
            Self::Kernel => sys::spawn_without_signals(name, body),
            Self::Virtual(world) => {
                world.spawn(Box::new(body));
                Ok(())
            }
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Kernel => "Kernel",
            Self::Virtual(_) => "Virtual",
        })
    }
}
