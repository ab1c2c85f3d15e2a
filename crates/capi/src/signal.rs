//! SIGHUP, SIGINT and SIGTERM of a program that does not handle them: peers are told before it ends as it would have
//! ended.
//!
//! Such a program runs no exit handlers, and unlike the kernel's own devices this one has nobody to clean up after it. So
//! where the disposition is the default one when the device is opened, a handler wakes a thread of ours, which says
//! the farewell and then lets the signal do what it came for: whoever waits for the process sees it killed by that
//! signal. A second one ends it at once. A handler that the program installs later replaces ours; what it ignores stays
//! ignored.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use sys::spawn_without_signals;

use crate::errno::{errno, set_errno};
use crate::exit;

/// What people, shells and service managers send to end a program. The others that end it by default are its own faults
/// or its own timers, or leave a core that should show what happened.
const ENDING: [c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// How long the handler waits for the end. The farewell takes about 1 ms, unless the interrupted thread holds a lock
/// that it needs; then it has to go on until it has released it.
pub(crate) const HOLD_MS: c_int = 20;

/// The process whose thread waits at the bell; a forked child has none until it opens the device itself.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The signal that came.
static CAUGHT: AtomicI32 = AtomicI32::new(0);
static BELL: Bell = Bell(UnsafeCell::new(MaybeUninit::zeroed()));

/// A semaphore, which a signal handler may post (signal-safety(7)). No descriptor: programs that become daemons close
/// those.
struct Bell(UnsafeCell<MaybeUninit<libc::sem_t>>);

// SAFETY: semaphores are made for several threads; `init` comes before any other use.
unsafe impl Sync for Bell {}

impl Bell {
    fn init(&self) {
        // SAFETY: nobody uses the semaphore yet in this process: `OWNER` is another one, and so the handler leaves it
        // alone. With these arguments the call cannot fail.
        unsafe { libc::sem_init(self.0.get().cast(), 0, 0) };
    }

    fn ring(&self) {
        // SAFETY: initialised before `OWNER` named this process.
        unsafe { libc::sem_post(self.0.get().cast()) };
    }

    fn wait(&self) {
        // SAFETY: initialised before the thread was started. Interruptions are repeated.
        while unsafe { libc::sem_wait(self.0.get().cast()) } != 0 {}
    }
}

/// Watches from now on; does nothing if this process does already.
pub(crate) fn watch() {
    let own = process::id();
    // The kernel spares the first process of a pid namespace what it does not handle.
    if own == 1 || OWNER.load(Ordering::Acquire) == own {
        return;
    }
    CAUGHT.store(0, Ordering::Relaxed);
    BELL.init();
    // Without a thread for it the program ends as it always did.
    if spawn_without_signals("roxie-signals", wait_for_the_end).is_ok() {
        OWNER.store(own, Ordering::Release);
        ENDING.into_iter().for_each(install);
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
        // ONSTACK for runtimes whose threads have small stacks, RESTART so that a call of the program that
        // the signal interrupts does not look failed.
        let flags = libc::SA_RESETHAND | libc::SA_RESTART | libc::SA_ONSTACK;
        set_action(signal, on_signal as *const () as usize, flags);
    }
}

fn set_action(signal: c_int, handler: libc::sighandler_t, flags: c_int) {
    // SAFETY: zeros are a valid sigaction with an empty mask. The handler is SIG_DFL or `on_signal`, which the library,
    // never unloaded, keeps in place.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// Calls only what signal-safety(7) allows.
extern "C" fn on_signal(signal: c_int) {
    // SAFETY: takes nothing, cannot fail.
    let own = unsafe { libc::getpid() };
    if OWNER.load(Ordering::Acquire) != own as u32 {
        end_by(signal);
    }
    let errno = errno();
    CAUGHT.store(signal, Ordering::Relaxed);
    BELL.ring();
    // SAFETY: no descriptors, so no pointer is followed.
    unsafe { libc::poll(ptr::null_mut(), 0, HOLD_MS) };
    set_errno(errno);
}

fn wait_for_the_end() {
    BELL.wait();
    exit::take_leave();
    end_by(CAUGHT.load(Ordering::Relaxed));
}

/// Ends the process as the signal does by default.
fn end_by(signal: c_int) -> ! {
    set_action(signal, libc::SIG_DFL, 0);
    // SAFETY: the set is ours and initialised by sigemptyset; the others take no pointer. All are signal-safe.
    unsafe {
        let mut only = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, only.as_ptr(), ptr::null_mut());
        libc::raise(signal);
        // What a shell would say of it; nobody ever gets here.
        libc::_exit(128 + signal)
    }
}
