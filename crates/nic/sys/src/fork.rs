//! fork(2): handlers (pthread_atfork(3)), locks held across it, and descriptors that the child
//! disconnects.

use std::cell::Cell;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::now_ns;

/// Number of forks of this process and its ancestors since they first called [`ForkHandlers::register`].
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
    read_once(&TOKEN, || super::random_u64() | 1)
}

/// Returns `known`, or if that is 0 sets it to what `read` returns, which is not 0. All threads get the same
/// number. Not a `OnceLock`, in which a forked child could wait for a thread that it does not have.
pub fn read_once(known: &AtomicU64, read: impl FnOnce() -> u64) -> u64 {
    if known.load(Ordering::Relaxed) == 0 {
        // Another thread may have been first.
        let _ = known.compare_exchange(0, read(), Ordering::Relaxed, Ordering::Relaxed);
    }
    known.load(Ordering::Relaxed)
}

/// Whether the handlers of a module are registered.
pub struct ForkHandlers(AtomicU32);

impl Default for ForkHandlers {
    fn default() -> Self {
        Self::new()
    }
}

impl ForkHandlers {
    const REGISTERING: u32 = 1;
    const REGISTERED: u32 = 2;
    /// Longest wait for another thread that registers them; a process that was forked meanwhile does not have
    /// that thread.
    const WAIT_NS: u64 = 100_000_000;

    /// Creates the state of handlers that are not registered.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Registers handlers for every fork of this process. Later calls do nothing. The forking thread runs
    /// the handlers: `prepare` before the fork, `parent` and `child` after it. Handlers that were registered
    /// later prepare earlier.
    ///
    /// The handlers must bear to be registered twice, and then run twice for a fork: a child does not know
    /// whether the thread of its parent that was registering them had done so.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn register(
        &self,
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> io::Result<()> {
        // SAFETY: the handlers live as long as the library, which is never unloaded, and do not unwind.
        self.register_by(Self::WAIT_NS, || unsafe {
            libc::pthread_atfork(Some(prepare), Some(parent), Some(child))
        })
    }

    /// Calls `atfork`, which returns 0 or an errno, until it has succeeded once.
    fn register_by(&self, wait_ns: u64, atfork: impl FnOnce() -> libc::c_int) -> io::Result<()> {
        let until = now_ns() + wait_ns;
        loop {
            match self.0.compare_exchange(0, Self::REGISTERING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(Self::REGISTERED) => return Ok(()),
                Err(_) if now_ns() < until => crate::pause(PAUSE),
                Err(_) => break,
            }
        }
        let errno = atfork();
        self.0.store(if errno == 0 { Self::REGISTERED } else { 0 }, Ordering::Release);
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
    }
}

/// Longest time that a fork waits for all its locks together. A thread that starts an engine holds its slot
/// for up to about 3 s while other members of its domain do not answer. With half of that, the child keeps
/// the descriptors of such an engine. With twice that, a signal handler that forks while its thread holds a
/// lock stops the program for 6 s.
const LOCKS_MAX_NS: u64 = 3_000_000_000;

thread_local! {
    /// The deadline of the fork that this thread prepares; 0: it prepares none.
    static LOCKS_UNTIL: Cell<u64> = const { Cell::new(0) };
}

/// Returns when the locks of the fork that this thread prepares are given up (nanoseconds of [`now_ns`]). All
/// handlers of a fork get the same time.
#[must_use]
pub fn fork_deadline() -> u64 {
    if LOCKS_UNTIL.get() == 0 {
        LOCKS_UNTIL.set(now_ns() + LOCKS_MAX_NS);
    }
    LOCKS_UNTIL.get()
}

/// The next fork of this thread has another deadline; called in the handlers after a fork.
pub fn end_fork_deadline() {
    LOCKS_UNTIL.set(0);
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

/// A mutex that each process has for itself: in a forked child it is unlocked and has the default value, even
/// if another thread of the parent held it during the fork.
pub struct ProcessMutex<T>(AtomicPtr<OfProcess<T>>);

struct OfProcess<T> {
    generation: u32,
    mutex: Mutex<T>,
}

impl<T: Default> ProcessMutex<T> {
    /// A mutex with the default value.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the mutex of this process.
    pub fn get(&self) -> &Mutex<T> {
        let generation = generation();
        let mut newest = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: NULL or from `Box::into_raw`, and freed with `self` at the earliest.
            if let Some(own) = unsafe { newest.as_ref() }
                && own.generation == generation
            {
                return &own.mutex;
            }
            let fresh = Box::into_raw(Box::new(OfProcess { generation, mutex: Mutex::default() }));
            match self.0.compare_exchange(newest, fresh, Ordering::AcqRel, Ordering::Acquire) {
                // The mutex of the parent stays: the child cannot know whether its value is whole.
                Ok(_) => newest = fresh,
                Err(other) => {
                    // SAFETY: no other thread has seen it.
                    drop(unsafe { Box::from_raw(fresh) });
                    newest = other;
                }
            }
        }
    }

    /// Locks the mutex of this process.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.get().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex of this process, unless a thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.get().try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T: Default> Default for ProcessMutex<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for ProcessMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessMutex")
    }
}

// SAFETY: as `Mutex`, of which it owns one.
unsafe impl<T: Send> Send for ProcessMutex<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for ProcessMutex<T> {}

impl<T> Drop for ProcessMutex<T> {
    fn drop(&mut self) {
        let newest = *self.0.get_mut();
        // SAFETY: as in `get`; no reference is left.
        if unsafe { newest.as_ref() }.is_some_and(|newest| newest.generation == generation()) {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(newest) });
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn threads_that_read_at_once_get_one_number() {
        let known = AtomicU64::new(0);
        let numbers: Vec<u64> = thread::scope(|scope| {
            let read = |number| read_once(&known, || number);
            let threads: Vec<_> = (1..=8).map(|number| scope.spawn(move || read(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!((1..=8).contains(&numbers[0]) && numbers.iter().all(|number| *number == numbers[0]));
        assert_eq!(read_once(&known, || unreachable!()), numbers[0]);
    }

    #[test]
    fn threads_that_waited_for_a_failed_registration_register_the_handlers_once() {
        let (handlers, successes) = (ForkHandlers::new(), AtomicUsize::new(0));
        // Longer than this machine can delay a thread.
        let wait_ns = 60_000_000_000;
        let waiter = || {
            handlers.register_by(wait_ns, || {
                thread::sleep(Duration::from_millis(1));
                successes.fetch_add(1, Ordering::Relaxed);
                0
            })
        };
        thread::scope(|scope| {
            let failed = handlers.register_by(wait_ns, || {
                scope.spawn(waiter);
                scope.spawn(waiter);
                thread::sleep(Duration::from_millis(2));
                libc::ENOMEM
            });
            assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        });
        assert_eq!(successes.into_inner(), 1);
    }
}
