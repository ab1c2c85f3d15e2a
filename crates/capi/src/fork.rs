//! fork(2): the child finds no lock of this library taken by a thread it does not have. What becomes of the engine is the
//! business of the crate `roxie`, which has handlers of its own.

use std::any::Any;
use std::cell::RefCell;

use sys::{at_fork, now_ns};

use crate::ibv::{device, events};
use crate::rdma::{channel, device as cm_device, id};
use crate::rsocket::table;

/// Longest that each lock is waited for: if a signal handler forks, the thread it interrupted may hold it.
const PATIENCE_NS: u64 = 100_000_000;

thread_local! {
    /// What this thread holds while it forks.
    static HELD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

/// Arranges for it, once the device is open.
pub(crate) fn register() {
    // Without memory for it forks are what they are without this.
    at_fork(prepare, release, release).ok();
}

extern "C" fn prepare() {
    let until = || now_ns() + PATIENCE_NS;
    let locks = vec![
        cm_device::keep_locked(until()),
        device::keep_locked(until()),
        table::keep_locked(until()),
        id::LIVING.keep_locked(until()),
        channel::LIVING.keep_locked(until()),
        events::keep_locked(until()),
    ];
    HELD.try_with(|held| held.replace(locks)).ok();
}

extern "C" fn release() {
    HELD.try_with(RefCell::take).ok();
}
