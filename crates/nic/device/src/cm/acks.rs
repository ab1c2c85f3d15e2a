//! Events that were read and not acknowledged (rdma_ack_cm_event(3)).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counts events that were read and not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Acks {
    counts: Mutex<Counts>,
    none_left: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    unacknowledged: u64,
    /// Threads that wait: waking takes a system call, also if none waits.
    waiting: u32,
}

impl Acks {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event was read.
    pub(super) fn report(&self) {
        self.counts().unacknowledged += 1;
    }

    /// An event was acknowledged.
    pub(super) fn acknowledge(&self) {
        let mut counts = self.counts();
        counts.unacknowledged -= 1;
        if counts.unacknowledged == 0 && counts.waiting > 0 {
            self.none_left.notify_all();
        }
    }

    /// Returns how many events are not acknowledged after `timeout`, or as soon as there are none.
    pub(super) fn left_after(&self, timeout: Duration) -> u64 {
        let mut counts = self.counts();
        counts.waiting += 1;
        let left = |counts: &mut Counts| counts.unacknowledged > 0;
        let waited = self.none_left.wait_timeout_while(counts, timeout, left);
        let (mut counts, _) = waited.unwrap_or_else(PoisonError::into_inner);
        counts.waiting -= 1;
        counts.unacknowledged
    }

    /// Waits until all events are acknowledged.
    pub(super) fn wait(&self) {
        self.left_after(Duration::MAX);
    }
}
