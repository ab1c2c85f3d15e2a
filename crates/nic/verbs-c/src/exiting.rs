//! What the other modules do while the process ends ([`exit`](crate::exit)).

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Milliseconds that the signal handler stops the interrupted thread. The shutdown takes about 1 ms, unless
/// it needs a lock that the interrupted thread holds; then that thread continues after this time and releases
/// the lock.
pub(crate) const HOLD_MS: c_int = 20;

/// Longest delay of an event that the disconnection of the peers makes (`withhold_event`): more than the exit
/// handler takes. An application that ends later than this gets its events then.
const WITHHELD_MAX: Duration = Duration::from_secs(3);
/// Interval of looking whether the application calls rdma_cm again; the event is that much late.
const WITHHELD_STEP: Duration = Duration::from_millis(1);

/// The thread that ends the process, once it disconnects the peers: destructors of the application run on it.
static EXITING: OnceLock<ThreadId> = OnceLock::new();
/// Whether that thread has used rdma_cm since.
static USED: AtomicBool = AtomicBool::new(false);

/// The process ends, by this thread; returns whether it is the first one.
pub(crate) fn begin() -> bool {
    EXITING.set(thread::current().id()).is_ok()
}

/// Delays an event for which a thread of the application has waited since before the exit.
///
/// With the kernel such a thread gets no event any more: connections end after the process. The memory that
/// belongs to the connection may be freed already (libiscsi). If the application uses rdma_cm after the exit
/// handler, in a destructor for example, it wants the event.
pub(crate) fn withhold_event() {
    let start = Instant::now();
    while EXITING.get().is_some() && !USED.load(Ordering::Relaxed) && start.elapsed() < WITHHELD_MAX {
        sys::pause(WITHHELD_STEP);
    }
}

/// Notes that the application uses rdma_cm; if the exiting thread does, events are not withheld any more.
pub(crate) fn note_use() {
    if EXITING.get().is_some_and(|exiting| *exiting == thread::current().id()) {
        USED.store(true, Ordering::Relaxed);
    }
}
