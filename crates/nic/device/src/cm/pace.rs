//! Delays connection requests for programs that hand them from one thread to another.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::id::IdInner;

/// Longest delay of a request. Long enough for a thread that gets little CPU time; a quarter of the time
/// after which Linux retransmits a request (4.6 s), so no retries are lost.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// How long the reader sleeps at most: it misses a notification just before it begins to sleep.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// Interval between two calls of `meanwhile`, which costs time for each unread request.
const MEANWHILE_INTERVAL: Duration = Duration::from_millis(1);

/// Wakes the readers of the channels of a process after the program has handled a request.
#[derive(Debug, Default)]
pub(super) struct Handled {
    /// Threads that wait: waking takes a system call, also if none waits.
    waiting: Mutex<u32>,
    handled: Condvar,
}

impl Handled {
    fn waiting(&self) -> MutexGuard<'_, u32> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        if *self.waiting() > 0 {
            self.handled.notify_all();
        }
    }

    pub(super) fn wait(&self) {
        let mut waiting = self.waiting();
        *waiting += 1;
        let woken = self.handled.wait_timeout(waiting, CHECK_INTERVAL);
        *woken.unwrap_or_else(PoisonError::into_inner).0 -= 1;
    }
}

/// Delays a connection request until the program has handled the one before, by giving it a QP or an answer.
///
/// `rping -P` before rdma-core 57 keeps the latest request in one variable until its main thread reads it. If
/// a second request overwrites it, the program serves the second one twice and the first never, so one client
/// waits for minutes. A program that answers in the thread that reads is never delayed; one that collects
/// requests is delayed once.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Weak<IdInner>,
    /// A request was not handled in time: this program collects several requests before it answers.
    collects: bool,
    called_at: Option<Instant>,
}

impl Pace {
    /// Returns when the application may see `request`; calls `meanwhile` at times while waiting.
    pub(super) fn wait(&self, request: &Arc<IdInner>, meanwhile: impl Fn()) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut state.last, Arc::downgrade(request));
        let since = Instant::now();
        while !state.collects && before.upgrade().is_some_and(|id| id.is_pending_request()) {
            if state.called_at.is_none_or(|at| at.elapsed() >= MEANWHILE_INTERVAL) {
                meanwhile();
                state.called_at = Some(Instant::now());
            }
            request.wait_for_handled();
            state.collects = since.elapsed() >= DELAY_MAX;
        }
    }
}
