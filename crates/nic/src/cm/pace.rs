//! Keeps connection requests apart for programs that hand them from one thread to another.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::id::IdInner;

/// How long a request waits at most for the one before it. Long enough for a thread that is starved of CPU; a quarter of
/// the time after which Linux repeats a request (4.3 s), so nobody's retries are used up.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Time between two looks.
const LOOK: Duration = Duration::from_micros(100);

/// Withholds a connection request until the program has taken up the one before, by giving it a QP or an answer.
///
/// `rping -P` before rdma-core 57 keeps the latest request in one variable until its main thread has seen it; a second
/// one in the meantime is served twice and the first never, and its client waits for minutes. A program that answers in
/// the thread that reads never waits here; one that gathers requests waits once.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Weak<IdInner>,
    /// A request was not taken up in time: this program wants several before it answers.
    gathers: bool,
}

impl Pace {
    /// Returns when `request` may be shown; calls `meanwhile` now and then.
    pub(super) fn wait(&self, request: &Arc<IdInner>, meanwhile: impl Fn()) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut state.last, Arc::downgrade(request));
        let since = Instant::now();
        while !state.gathers && before.upgrade().is_some_and(|id| id.is_pending_request()) {
            meanwhile();
            std::thread::sleep(LOOK);
            state.gathers = since.elapsed() >= WAIT_MAX;
        }
    }
}
