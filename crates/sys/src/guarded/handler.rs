//! SIGSEGV and SIGBUS handlers: faults of guarded instructions are handled here, all others are passed to
//! the previous handler (sigaction(2)).

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::machine;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The action that was installed for each signal before `watch`; null before the first call. Never freed:
/// a handler may be reading it.
static BEFORE: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
/// Distance from this handler's frame to the context that the kernel puts above it; it is the same
/// whenever the kernel calls. When another handler passes a fault on to this one, that handler's frame
/// lies between.
static FROM_THE_KERNEL: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Installs the handlers; guarded accesses are safe from then on. If the application has installed
/// handlers of its own since, they are replaced and get the faults of all other instructions. Cheap
/// enough to call on every registration of memory.
pub fn watch() {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: `now` has room for the answer, and zero bytes are a valid value.
        let now = unsafe {
            libc::sigaction(signal, ptr::null(), now.as_mut_ptr());
            now.assume_init()
        };
        if now.sa_sigaction == handle as *const () as usize {
            continue;
        }
        before.store(Box::into_raw(Box::new(now)), Ordering::Release);
        // SAFETY: zero bytes are a valid `sigaction` with an empty mask; the handler lives as long as the
        // library, which is never unloaded, and calls nothing that is not async-signal-safe.
        unsafe {
            let mut ours: libc::sigaction = mem::zeroed();
            ours.sa_sigaction = handle as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const ours, ptr::null_mut());
        }
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context of the thread that was interrupted.
    let pc = unsafe { program_counter(context) };
    // SAFETY: as above; only the thread of the faulting instruction continues elsewhere.
    if let Some((pc, resume)) = pc.and_then(|pc| Some((pc, machine::resume_at(unsafe { *pc } as usize)?))) {
        // SAFETY: as above.
        unsafe { *pc = resume as _ };
        return;
    }
    let frame = (&raw const signal).addr();
    let distance = context.addr().wrapping_sub(frame);
    let passed_back = distance > FROM_THE_KERNEL.fetch_min(distance, Ordering::Relaxed);
    pass_on(signal, info, context, passed_back);
}

#[cfg(target_arch = "x86_64")]
unsafe fn program_counter(context: *mut c_void) -> Option<*mut i64> {
    let context: *mut libc::ucontext_t = context.cast();
    // SAFETY: upheld by the caller.
    Some(unsafe { &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] })
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn program_counter(_context: *mut c_void) -> Option<*mut i64> {
    None
}

/// Calls the previous handler. If that handler has passed the signal back, restores the default action,
/// which kills the process with a core dump of the place of the fault.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, passed_back: bool) {
    type WithInfo = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    type Plain = extern "C" fn(c_int);
    let index = usize::from(signal == libc::SIGBUS);
    // SAFETY: null or leaked by `watch`.
    let before = unsafe { BEFORE[index].load(Ordering::Acquire).as_ref() };
    match before {
        Some(before) if !passed_back && ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction) => {
            // SAFETY: the flags say which of the two types the application installed.
            unsafe {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    mem::transmute::<usize, WithInfo>(before.sa_sigaction)(signal, info, context);
                } else {
                    mem::transmute::<usize, Plain>(before.sa_sigaction)(signal);
                }
            }
        }
        _ => {
            // SAFETY: plain system calls. A fault happens again when this returns; a signal that a
            // process sent is queued once more, and arrives then.
            unsafe {
                let sent = (*info).si_code <= 0;
                if sent && before.is_some_and(|before| before.sa_sigaction == libc::SIG_IGN) {
                    return;
                }
                libc::signal(signal, libc::SIG_DFL);
                if sent {
                    libc::raise(signal);
                }
            }
        }
    }
}
