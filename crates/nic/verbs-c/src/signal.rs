//! SIGHUP, SIGINT and SIGTERM of a program that does not handle them: the peers are told, then the program
//! ends as it would have ended without this library.
//!
//! Such a program runs no exit handlers, and no kernel driver cleans up for this device. So if a signal has
//! its default disposition when the device is opened, this library installs a handler. The handler wakes a
//! thread, which shuts the device down and then raises the signal with the default disposition. The parent
//! process sees a process killed by that signal. A second signal ends the process at once. A handler that the
//! program installs later replaces this one, and an ignored signal stays ignored.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use sys::{now_ns, spawn_without_signals};

use crate::check;
use crate::errno::{errno, set_errno};
use crate::exit;
use crate::exiting::HOLD_MS;
use crate::observer::observer;

/// The signals that users, shells and service managers send to end a program. The other signals that end a
/// program by default report its own faults or timers, or leave a core file that should show the original
/// state. With `roxie check` also SIGALRM: programs that wait too long end by their own alarm.
const ENDING: [c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// With `roxie check`, signals within this time count as one.
const ONE_NS: u64 = 1_000_000_000;

/// The process ID of the process that has the thread. A forked child has no thread until it opens the device
/// itself.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The signal that the handler got.
static CAUGHT: AtomicI32 = AtomicI32::new(0);
/// When the handler got it ([`now_ns`]).
static CAUGHT_NS: AtomicU64 = AtomicU64::new(0);
static WAKE: Semaphore = Semaphore(UnsafeCell::new(MaybeUninit::zeroed()));

/// A semaphore, which a signal handler may post (signal-safety(7)). It has no descriptor, which a program
/// that becomes a daemon would close.
struct Semaphore(UnsafeCell<MaybeUninit<libc::sem_t>>);

// SAFETY: semaphores are for several threads; `init` is called before any other use.
unsafe impl Sync for Semaphore {}

impl Semaphore {
    fn init(&self) {
        // SAFETY: no thread and no handler uses the semaphore yet, because `OWNER` names another process. The
        // call cannot fail with these arguments.
        unsafe { libc::sem_init(self.0.get().cast(), 0, 0) };
    }

    fn post(&self) {
        // SAFETY: initialised before `OWNER` named this process.
        unsafe { libc::sem_post(self.0.get().cast()) };
    }

    fn wait(&self) {
        // SAFETY: initialised before the thread was started. An interrupted wait is repeated.
        while unsafe { libc::sem_wait(self.0.get().cast()) } != 0 {}
    }
}

/// Installs the handlers and starts the thread; does nothing if this process has them already.
pub(crate) fn watch() {
    let own = process::id();
    // The kernel does not end the first process of a PID namespace by a signal that it does not handle.
    if own == 1 || OWNER.load(Ordering::Acquire) == own {
        return;
    }
    CAUGHT.store(0, Ordering::Relaxed);
    WAKE.init();
    // Without a thread the signals keep their default disposition.
    if spawn_without_signals("roxie-signals", shut_down_on_signal).is_ok() {
        OWNER.store(own, Ordering::Release);
        ENDING.into_iter().chain(observer().map(|_| libc::SIGALRM)).for_each(install);
    }
}

fn install(signal: c_int) {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `before` is a sigaction the kernel may write; zeros are a valid one.
    let before = unsafe {
        libc::sigaction(signal, ptr::null(), before.as_mut_ptr());
        before.assume_init()
    };
    if before.sa_sigaction == libc::SIG_DFL {
        // ONSTACK: the threads of some runtimes have small stacks. RESTART: a system call of the program that
        // the signal interrupts must not fail.
        let once = if observer().is_some() { 0 } else { libc::SA_RESETHAND };
        let flags = once | libc::SA_RESTART | libc::SA_ONSTACK;
        set_action(signal, on_signal as *const () as usize, flags);
    }
}

fn set_action(signal: c_int, handler: libc::sighandler_t, flags: c_int) {
    // SAFETY: zeros are a valid sigaction with an empty mask. The handler is SIG_DFL or `on_signal`, and the
    // library is never unloaded.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// The handler. It calls only functions that signal-safety(7) allows.
extern "C" fn on_signal(signal: c_int) {
    // SAFETY: has no arguments and cannot fail.
    let own = unsafe { libc::getpid() };
    if OWNER.load(Ordering::Acquire) != own as u32 {
        end_by(signal);
    }
    if observer().is_some() && CAUGHT.load(Ordering::Relaxed) != 0 {
        // `roxie check` and the terminal may both have sent it; the shutdown has begun.
        if now_ns().saturating_sub(CAUGHT_NS.load(Ordering::Relaxed)) < ONE_NS {
            return;
        }
        end_by(signal);
    }
    let errno = errno();
    CAUGHT_NS.store(now_ns(), Ordering::Relaxed);
    CAUGHT.store(signal, Ordering::Relaxed);
    WAKE.post();
    // SAFETY: no descriptors, so no pointer is followed.
    unsafe { libc::poll(ptr::null_mut(), 0, HOLD_MS) };
    set_errno(errno);
}

fn shut_down_on_signal() {
    WAKE.wait();
    check::interrupted(CAUGHT.load(Ordering::Relaxed));
    exit::shut_down();
    end_by(CAUGHT.load(Ordering::Relaxed));
}

/// Ends the process as the signal does by default.
fn end_by(signal: c_int) -> ! {
    set_action(signal, libc::SIG_DFL, 0);
    // SAFETY: sigemptyset initialises the set on this stack; the other calls take no pointer. All are
    // signal-safe.
    unsafe {
        let mut only = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut());
        libc::raise(signal);
        // The status that shells report for the signal. Not reached: raise ends the process.
        libc::_exit(128 + signal)
    }
}
