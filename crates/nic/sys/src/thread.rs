//! Threads that do not disturb the application.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::thread::JoinHandleExt;

/// The number of the calling thread (gettid(2)). May be called in a signal handler.
#[must_use]
pub fn thread_id() -> i32 {
    // SAFETY: no arguments; cannot fail. glibc has the function from 2.30 on only.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Starts a named thread that blocks all signals but those of its own faults, so the application's
/// handlers run in the application's threads.
///
/// # Errors
/// `EAGAIN` when the system has no thread to spare.
pub fn spawn_without_signals(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(512 * 1024);
    // A new thread inherits the mask, so no signal can reach it between its start and a mask of its own.
    let thread = without_signals(|| builder.spawn(f))?;
    // The thread names itself when it first runs. A debugger may look before.
    if let Ok(name) = CString::new(name) {
        // SAFETY: the thread is neither joined nor detached while `thread` lives; the name is a C string.
        unsafe { libc::pthread_setname_np(thread.as_pthread_t(), name.as_ptr()) };
    }
    Ok(())
}

/// Calls `f` while no signal interrupts this thread but those of its own faults: a handler cannot wait for a
/// lock that `f` holds.
pub fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours; sigfillset initialises the first, pthread_sigmask the second.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGSEGV);
        libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = f();
    // SAFETY: `before` was initialised by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// While it lives, a write of the calling thread does not end the process: beyond the limit of file sizes
/// (RLIMIT_FSIZE) it fails with `EFBIG`, and without a reader with `EPIPE`, but raises neither SIGXFSZ nor
/// SIGPIPE. Both signals mean the thread that writes.
pub struct WriteSignals {
    before: libc::sigset_t,
    /// What a write may raise and was not pending before.
    raised: libc::sigset_t,
}

impl WriteSignals {
    /// Blocks the signals in the calling thread.
    #[must_use]
    pub fn block() -> Self {
        let (mut set, mut pending, mut before) =
            (MaybeUninit::uninit(), MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the sets are ours; each is initialised by the function that gets it first.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigemptyset(pending.as_mut_ptr());
            libc::sigpending(pending.as_mut_ptr());
            for signal in [libc::SIGXFSZ, libc::SIGPIPE] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            for signal in [libc::SIGXFSZ, libc::SIGPIPE] {
                if libc::sigismember(pending.as_ptr(), signal) == 1 {
                    libc::sigdelset(set.as_mut_ptr(), signal);
                }
            }
            Self { before: before.assume_init(), raised: set.assume_init() }
        }
    }
}

impl Drop for WriteSignals {
    /// Takes what the writes have raised: at most one signal of each kind is pending.
    fn drop(&mut self) {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let no_info: *mut libc::siginfo_t = std::ptr::null_mut();
        // SAFETY: both sets were initialised in `block`. The size of the kernel's signal mask is 8. Unlike
        // sigtimedwait(3) the system call is no cancellation point.
        unsafe {
            let (raised, limit) = (&raw const self.raised, &raw const at_once);
            while libc::syscall(libc::SYS_rt_sigtimedwait, raised, no_info, limit, 8_usize) > 0 {}
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

unsafe extern "C" {
    /// pthread_setcancelstate(3); the states are 0 (enable) and 1 (disable) on Linux.
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// While it lives, the calling thread cannot be cancelled (pthread_cancel(3)).
#[derive(Debug)]
pub struct Cancellation {
    before: libc::c_int,
}

impl Cancellation {
    const DISABLED: libc::c_int = 1;

    /// Disables the cancellation of the calling thread.
    #[must_use]
    pub fn disable() -> Self {
        Self { before: set_cancel_state(Self::DISABLED) }
    }
}

impl Drop for Cancellation {
    fn drop(&mut self) {
        set_cancel_state(self.before);
    }
}

/// Returns the state before.
fn set_cancel_state(state: libc::c_int) -> libc::c_int {
    let mut before = 0;
    // SAFETY: `before` is an int the function may write. An unknown state is refused.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// The scheduler slice of the calling thread: how long it runs at a time, and how soon it runs after a
/// wake-up. Linux lets a waking thread preempt those with longer slices (6.12; sched_setattr(2),
/// `sched_runtime` of SCHED_OTHER). Older kernels ignore it.
#[derive(Debug, Default)]
pub struct Slice {
    set_ns: Option<u64>,
}

impl Slice {
    /// Sets a slice of `ns` nanoseconds, 0.1 to 100 ms; `None` is the system's default. One value belongs
    /// to one thread.
    pub fn set(&mut self, ns: Option<u64>) {
        if self.set_ns != ns {
            self.set_ns = ns;
            // A sandbox may forbid the call; the slice then stays as it is.
            let _unchanged = set_slice(ns.unwrap_or(0));
        }
    }
}

/// Returns the scheduling attributes of the calling thread.
fn attributes() -> io::Result<libc::sched_attr> {
    let size = std::mem::size_of::<libc::sched_attr>() as libc::c_uint;
    let mut attr = MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the kernel writes at most `size` bytes to `attr`, which has as many. 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), size, 0) };
    super::check(got as libc::c_int)?;
    // SAFETY: all of it was zero, which is valid, before the kernel wrote.
    Ok(unsafe { attr.assume_init() })
}

fn set_slice(ns: u64) -> io::Result<()> {
    let mut attr = attributes()?;
    if attr.sched_policy != libc::SCHED_OTHER as u32 {
        // Real-time threads have no such slice, and must not be changed.
        return Ok(());
    }
    attr.sched_runtime = ns;
    // SAFETY: the kernel reads `attr.size` bytes, which sched_getattr(2) set to what it knows of the struct.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    super::check(set as libc::c_int).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_thread_has_its_name_before_it_runs() {
        let is_named = || {
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            let mut names = tasks.flat_map(|task| fs::read_to_string(task.path().join("comm")));
            names.any(|name| name == "roxie-named\n")
        };
        for _ in 0..200 {
            let (end, ended) = channel::<()>();
            spawn_without_signals("roxie-named", move || _ = ended.recv()).unwrap();
            assert!(is_named());
            drop(end);
            while is_named() {
                std::thread::yield_now();
            }
        }
    }

    /// Both signals end a process, so the test would not return.
    #[test]
    fn a_write_that_fails_ends_no_process() {
        let raise = |signal| {
            // SAFETY: the calling thread is alive, and blocks the signal.
            unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
        };
        let signals = WriteSignals::block();
        raise(libc::SIGXFSZ);
        // One that is pending stays pending.
        let inner = WriteSignals::block();
        raise(libc::SIGPIPE);
        drop(inner);
        let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigpending initialises the set.
        let is_pending = |signal| unsafe {
            libc::sigemptyset(pending.as_mut_ptr());
            libc::sigpending(pending.as_mut_ptr());
            libc::sigismember(pending.as_ptr(), signal) == 1
        };
        assert_eq!([libc::SIGXFSZ, libc::SIGPIPE].map(is_pending), [true, false]);
        drop(signals);
    }

    #[test]
    fn a_slice_changes_nothing_else_and_can_be_reset() {
        let attr = || attributes().expect("of a thread of ours");
        let before = attr();
        let mut slice = Slice::default();
        slice.set(Some(100_000));
        let short = attr();
        // Linux before 6.12 has no slices and reports 0.
        if before.sched_runtime != 0 {
            assert_eq!(short.sched_runtime, 100_000);
        }
        assert_eq!((short.sched_policy, short.sched_nice), (before.sched_policy, before.sched_nice));
        slice.set(None);
        assert_eq!(attr().sched_runtime, before.sched_runtime);
    }
}
