//! fork(2): handlers (pthread_atfork(3)), locks held across it, and descriptors that the child
//! disconnects.

use std::fs::OpenOptions;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::now_ns;

/// Number of forks of this process and its ancestors since they first called [`at_fork`].
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks that led to this process; an object that an ancestor made has a smaller
/// one.
#[must_use]
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Marks the child as another process; called in the child's handler.
pub fn next_generation() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    TOKEN.store(0, Ordering::Relaxed);
}

/// Random number of this process, or 0 if it is not drawn yet.
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// A random number that no other process has: processes of different PID namespaces may have equal numbers
/// (getpid(2)). Another program that this process executes has another one.
#[must_use]
pub fn process_token() -> u64 {
    match TOKEN.load(Ordering::Relaxed) {
        0 => {
            let fresh = super::random_u64() | 1;
            // Another thread may have been first.
            TOKEN
                .compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|it| it, |_| fresh)
        }
        token => token,
    }
}

/// Registers handlers for every fork of this process, run by the forking thread: `prepare` before it,
/// `parent` and `child` after it.
///
/// # Errors
/// `ENOMEM`.
pub fn at_fork(prepare: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> io::Result<()> {
    // SAFETY: the handlers live as long as the library, which is never unloaded, and do not unwind.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Locks a mutex; returns `None` if that takes until `until_ns`. The calling thread may hold it itself:
/// it may be in a signal handler that forks.
pub fn lock_until<T>(mutex: &Mutex<T>, until_ns: u64) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(e)) => return Some(e.into_inner()),
            Err(TryLockError::WouldBlock) if now_ns() < until_ns => crate::pause(PAUSE),
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

/// Time between two attempts.
const PAUSE: Duration = Duration::from_micros(50);

/// A locked mutex inside a shared object. The lock is not bound to a scope: it is held from before a fork
/// until after it.
pub struct KeptLock<O, T: 'static> {
    // Fields are dropped in this order.
    guard: MutexGuard<'static, T>,
    _owner: Arc<O>,
}

impl<O, T> KeptLock<O, T> {
    /// Locks `mutex` of `owner`; `None` if that takes until `until_ns`.
    pub fn take(owner: &Arc<O>, mutex: impl Fn(&O) -> &Mutex<T>, until_ns: u64) -> Option<Self> {
        let guard = lock_until(mutex(owner), until_ns)?;
        // SAFETY: the mutex lies in the object behind `owner`, because `mutex` gets nothing else to take
        // it from (or it is static). That object stays at its address as long as the field `_owner`
        // lives, and `guard` is dropped before it and never given away.
        let guard = unsafe { mem::transmute::<MutexGuard<'_, T>, MutexGuard<'static, T>>(guard) };
        Some(Self { guard, _owner: Arc::clone(owner) })
    }
}

impl<O, T> Deref for KeptLock<O, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<O, T> DerefMut for KeptLock<O, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Redirects an inherited descriptor to /dev/null. Its number stays in use, so its owner can still use
/// it, without effect, and close it.
pub fn disconnect(fd: impl AsFd) {
    // Without a free descriptor at this moment, nothing can be done.
    let Ok(nowhere) = OpenOptions::new().read(true).write(true).open("/dev/null") else { return };
    // SAFETY: both are descriptors of ours; dup3 takes no pointer.
    unsafe { libc::dup3(nowhere.as_raw_fd(), fd.as_fd().as_raw_fd(), libc::O_CLOEXEC) };
}
