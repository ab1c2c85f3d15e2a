//! Threads that the application does not notice.

use std::io;
use std::mem::MaybeUninit;

/// Starts a named thread that takes no signals but those of its own faults: the application's handlers run in its own
/// threads.
///
/// # Errors
/// `EAGAIN` when no thread can be had.
pub fn spawn_without_signals(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours; sigfillset initialises the first, pthread_sigmask the second. A new thread
    // inherits the mask, so no signal can reach it between its start and a mask of its own.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigdelset(all.as_mut_ptr(), libc::SIGSEGV);
        libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let spawned = std::thread::Builder::new().name(name.to_owned()).stack_size(512 * 1024).spawn(f);
    // SAFETY: `before` was initialised by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    spawned.map(drop)
}
