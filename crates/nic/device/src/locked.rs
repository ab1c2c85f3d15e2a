//! A lock whose holder cannot be cancelled.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use sys::{Cancellation, NoWaiting};

/// A held lock. While it lives, the calling thread must not wait ([`NoWaiting`]) and is not cancelled
/// (pthread_cancel(3)): it would end in a system call and leave the mutex locked. In rdma-core the calls that
/// take this lock here are no cancellation points either.
///
/// [`new`](Self::new) disables cancellation. [`briefly`](Self::briefly), for posting and polling, does not:
/// `sys` sends and receives by calls that are no cancellation points. The rare calls on these paths that are
/// cancellation points (notices, files of a trace, protected pages) disable cancellation themselves.
#[derive(Debug)]
pub(crate) struct Locked<'a, T> {
    // Dropped first.
    guard: MutexGuard<'a, T>,
    _no_waiting: NoWaiting,
    cancellation: Option<Cancellation>,
}

impl<'a, T> Locked<'a, T> {
    /// Holds a mutex that the calling thread has just locked.
    #[inline]
    pub(crate) fn new(guard: MutexGuard<'a, T>) -> Self {
        Self { guard, _no_waiting: NoWaiting::begin(), cancellation: Some(Cancellation::disable()) }
    }

    /// As [`new`](Self::new), for a caller that makes no call that is a cancellation point.
    #[inline]
    pub(crate) fn briefly(guard: MutexGuard<'a, T>) -> Self {
        Self { guard, _no_waiting: NoWaiting::begin(), cancellation: None }
    }

    /// The thread can no longer be cancelled.
    pub(crate) fn forbid_cancellation(&mut self) {
        self.cancellation.get_or_insert_with(Cancellation::disable);
    }

    /// Releases the lock. The result keeps the thread from being cancelled, if `self` did.
    #[inline]
    pub(crate) fn unlock(self) -> Option<Cancellation> {
        self.cancellation
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    #[test]
    fn another_thread_gets_the_lock_after_unlock() {
        let mutex = Mutex::new(0);
        let mut locked = Locked::new(mutex.lock().expect("no panic"));
        *locked += 1;
        let _cancellation = locked.unlock();
        assert_eq!(
            thread::scope(|scope| scope.spawn(|| *mutex.lock().expect("no panic")).join()).ok(),
            Some(1)
        );
    }
}
