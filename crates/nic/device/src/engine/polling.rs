//! Two kinds of threads run an engine: application threads, which poll it inline, and its progress thread.
//! [`Polling`] is what each kind knows of the other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use transport::Instant;

use super::sleep::Sleeper;
use crate::port::RxQueues;
use crate::runtime::{Point, Runtime};
use crate::sched::{InlineYield, Tuning};

/// See the module documentation.
pub(crate) struct Polling {
    /// Counts inline polls, so that the progress thread can tell whether application threads poll.
    polls: AtomicU64,
    /// Rounds and batches of inline polls.
    steps: AtomicU64,
    /// Inline polls at the last [`hand_over`](Self::hand_over).
    polls_at_hand_over: AtomicU64,
    yields: InlineYield,
    /// Inline polls look at the clock when their number and this mask have no bit in common.
    clock_mask: u64,
    /// Inline polls read the GSI socket when their number and this mask have no bit in common.
    gsi_mask: u64,
    /// The progress thread leaves the sockets to polling threads.
    is_watching: AtomicBool,
    /// Armed CQs of the device; see `cq.rs`.
    armed_cqs: Arc<AtomicUsize>,
    /// The progress thread.
    pub(crate) progress: Sleeper,
}

impl Polling {
    /// No thread has polled yet. `armed_cqs`: the count of the device's first engine, which all engines
    /// share.
    pub(super) fn new(tuning: &Tuning, armed_cqs: Option<&Arc<AtomicUsize>>) -> io::Result<Self> {
        Ok(Self {
            polls: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            polls_at_hand_over: AtomicU64::new(0),
            yields: InlineYield::new(tuning),
            // A division for each empty poll would cost as much as the rest of it.
            clock_mask: tuning.clock_polls.next_power_of_two() - 1,
            gsi_mask: tuning.gsi_polls.next_power_of_two() - 1,
            is_watching: AtomicBool::new(false),
            armed_cqs: armed_cqs.map(Arc::clone).unwrap_or_default(),
            progress: Sleeper::new()?,
        })
    }

    /// The number of armed CQs. CQs may be served by any engine of the device.
    pub(crate) fn armed_cqs(&self) -> &Arc<AtomicUsize> {
        &self.armed_cqs
    }

    /// An inline poll begins; returns its number.
    #[inline]
    pub(super) fn begin(&self) -> u64 {
        self.polls.fetch_add(1, Ordering::Relaxed)
    }

    /// An inline poll has run rounds and received batches. The caller holds the engine's lock, so this is no
    /// atomic addition.
    #[inline]
    pub(super) fn add_steps(&self, steps: usize) {
        let before = self.steps.load(Ordering::Relaxed);
        self.steps.store(before + steps as u64, Ordering::Relaxed);
    }

    /// Inline polls so far.
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Inline polls so far, their rounds, and the batches that they received. A poll with more rounds and
    /// batches takes longer, so it counts as several.
    pub(crate) fn work(&self) -> u64 {
        self.polls().wrapping_add(self.steps.load(Ordering::Relaxed))
    }

    /// Whether inline poll `number` looks at the clock although nothing has arrived.
    #[inline]
    pub(super) fn looks_at_clock(&self, number: u64) -> bool {
        number & self.clock_mask == 0
    }

    /// The queues that inline poll `number` reads.
    #[inline]
    pub(super) fn queues(&self, number: u64) -> RxQueues {
        if number & self.gsi_mask == 0 { RxQueues::ALL } else { RxQueues::SLOT }
    }

    /// Gives the CPU away after an inline poll, if that pays.
    #[inline]
    pub(super) fn end(&self, found: bool, runtime: &Runtime, tuning: &Tuning) {
        if self.yields.polled(found, tuning) {
            let before = runtime.now_ns();
            runtime.yield_now();
            let away_ns = runtime.now_ns().saturating_sub(before);
            self.yields.yielded(away_ns, tuning);
        }
    }

    /// Whether the progress thread leaves the sockets to polling threads.
    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        self.is_watching.load(Ordering::Relaxed)
    }

    pub(crate) fn set_watching(&self, is_watching: bool) {
        self.is_watching.store(is_watching, Ordering::SeqCst);
    }

    /// Whether an application thread sleeps until a completion, or may be about to: a CQ is armed, and the
    /// application has polled at most [`Tuning::awake_polls`] times since then. (UCX keeps the CQ of its
    /// datagrams armed and polls the others.)
    pub(crate) fn has_sleeper(&self, tuning: &Tuning) -> bool {
        // First: `hand_over` stores it after the other two changed, so this thread sees those as well.
        let polls_then = self.polls_at_hand_over.load(Ordering::SeqCst);
        self.armed_cqs.load(Ordering::Relaxed) > 0
            && self.polls().wrapping_sub(polls_then) <= tuning.awake_polls
    }

    /// The calling thread stops polling: wakes the progress thread, which then serves the sockets.
    pub(crate) fn hand_over(&self, runtime: &Runtime) {
        // Either `watch` sees this change, or this thread sees that it watches. The larger number remains:
        // another thread may have polled and handed over meanwhile.
        self.polls_at_hand_over.fetch_max(self.polls(), Ordering::SeqCst);
        runtime.reach(Point::Wake);
        if self.is_watching.load(Ordering::SeqCst) {
            self.progress.wake();
        }
    }

    /// Wakes the progress thread if it would sleep past `deadline`.
    pub(crate) fn wake_before(&self, deadline: Option<Instant>, runtime: &Runtime) {
        let Some(deadline) = deadline else { return };
        runtime.reach(Point::Wake);
        self.progress.wake_before(deadline);
    }
}
