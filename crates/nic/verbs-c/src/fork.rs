//! fork(2): holds the locks of this library while the process forks, so that no lock in the child is held by
//! a thread that the child does not have. The crate `roxie` has handlers of its own for the engine.

use std::any::Any;
use std::cell::RefCell;
use std::hint;

use roxie::verbs::watch_forks;
use sys::ForkHandlers;

use crate::check;
use crate::ibv::{device, events, handles};
use crate::object::{BUFFERS, IDS};
use crate::rdma::channel;
use crate::rsocket::table;

thread_local! {
    /// The locks that this thread holds while it forks.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Registers the handlers. Called when the library is loaded: a fork that has begun does not run handlers
/// that another thread registers meanwhile, and that thread may then hold a lock.
pub(crate) fn register() {
    // The allocator's handlers are registered with its first allocation, and must hold its locks after these
    // handlers have allocated memory: what is registered first prepares last.
    drop(hint::black_box(Box::new(0_u8)));
    static HANDLERS: ForkHandlers = ForkHandlers::new();
    // If memory is short, forks work without the handlers.
    watch_forks().and_then(|()| HANDLERS.register(prepare, release, release)).ok();
}

extern "C" fn prepare() {
    // The handlers may be registered twice, and then the second run of each does nothing.
    if HELD.try_with(|held| held.borrow().is_empty()) != Ok(true) {
        return;
    }
    // If a signal handler forks, the thread that it interrupted may hold a lock.
    let until_ns = sys::fork_deadline();
    let locks = vec![
        device::keep_locked(until_ns),
        table::keep_locked(until_ns),
        IDS.keep_locked(until_ns),
        channel::LIVING.keep_locked(until_ns),
        events::keep_locked(until_ns),
        handles::keep_locked(until_ns),
        BUFFERS.keep_locked(until_ns),
        check::keep_locked(until_ns),
    ];
    HELD.set(locks);
}

extern "C" fn release() {
    HELD.try_with(RefCell::take).ok();
}
