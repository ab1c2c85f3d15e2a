//! Events that were read and not acknowledged (rdma_ack_cm_event(3)).

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Counts events that were read and not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Acks {
    unacknowledged: Mutex<u64>,
    none_left: Condvar,
}

impl Acks {
    /// An event was read.
    pub(super) fn report(&self) {
        *self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// An event was acknowledged.
    pub(super) fn acknowledge(&self) {
        let mut count = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        if *count == 0 {
            self.none_left.notify_all();
        }
    }

    /// Returns how many events are not acknowledged after `timeout`, or as soon as there are none.
    pub(super) fn left_after(&self, timeout: Duration) -> u64 {
        let count = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.none_left.wait_timeout_while(count, timeout, |count| *count > 0);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until all events are acknowledged.
    pub(super) fn wait(&self) {
        let count = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.none_left.wait_while(count, |count| *count > 0);
        drop(done.unwrap_or_else(PoisonError::into_inner));
    }
}
