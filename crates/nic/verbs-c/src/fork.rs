//! fork(2): holds the locks of this library while the process forks, so that no lock in the child is held by
//! a thread that the child does not have. The crate `roxie` has handlers of its own for the engine.

use std::any::Any;
use std::cell::RefCell;

use roxie::verbs::watch_forks;
use sys::{ForkHandlers, now_ns};

use crate::check;
use crate::ibv::{device, events, handles};
use crate::object::{BUFFERS, IDS};
use crate::rdma::channel;
use crate::rsocket::table;

/// Longest wait for each lock: if a signal handler forks, the thread that it interrupted may hold the lock.
const LOCK_MAX_NS: u64 = 1_000_000_000;

thread_local! {
    /// The locks that this thread holds while it forks.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Registers the handlers at the first call. Called before the list of devices is locked for the first time.
pub(crate) fn register() {
    static HANDLERS: ForkHandlers = ForkHandlers::new();
    // If memory is short, forks work without the handlers.
    watch_forks().and_then(|()| HANDLERS.register(prepare, release, release)).ok();
}

extern "C" fn prepare() {
    // The handlers may be registered twice, and then the second run of each does nothing.
    if HELD.try_with(|held| held.borrow().is_empty()) != Ok(true) {
        return;
    }
    let until = || now_ns() + LOCK_MAX_NS;
    let locks = vec![
        device::keep_locked(until()),
        table::keep_locked(until()),
        IDS.keep_locked(until()),
        channel::LIVING.keep_locked(until()),
        events::keep_locked(until()),
        handles::keep_locked(until()),
        BUFFERS.keep_locked(until()),
        check::keep_locked(until()),
    ];
    HELD.set(locks);
}

extern "C" fn release() {
    HELD.try_with(RefCell::take).ok();
}
