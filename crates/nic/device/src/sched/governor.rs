//! The governor of CPU time: decides how the CPU is shared by the application threads that poll an
//! engine inline and its progress thread.
//!
//! [`Governor`] chooses the state of the progress thread:
//!
//! ```text
//!              application polls often                  CPU time lost in yields
//!   Background ───────────────────────► Inline     Background ───────────────────────► Crowded
//!              ◄───────────────────────                       ◄───────────────────────
//!              rarely since the last check                    after `crowded_ns`
//! ```
//!
//! - `Inline`: application threads poll and so run the engine; the progress thread only checks that they
//!   continue to poll. Threads that wait for the CPU poll as soon as they get it: their CPU time counts.
//! - `Background`: the progress thread serves the port; after traffic it spins and yields, then it sleeps.
//! - `Crowded`: as `Background`, but it sleeps at once: the kernel runs a thread that wakes up before
//!   CPU-bound threads, and a thread that yields after them.
//!
//! [`InlineYield`] decides how many empty polls an application thread makes before it yields: a peer process
//! may wait for the same CPU.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use sys::Usage;

use super::Tuning;

/// What the progress thread does. See the module documentation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    Inline,
    Background,
    Crowded,
}

/// The progress thread's half of the governor. Times are nanoseconds of one clock.
#[derive(Debug, Default)]
pub(crate) struct Governor {
    tuning: Tuning,
    /// The work of inline polls when the present mean began, when that was, and the usage of the threads.
    seen_work: u64,
    seen_at: u64,
    seen_usage: Usage,
    /// The thread was in `Inline` when it ran last.
    was_inline: bool,
    /// Checks in a row that found frequent polling.
    steady_watches: u8,
    /// Checks that ended `Inline` and found unread packets, since steady polling or a takeover.
    unread_rounds: u8,
    /// Takeovers in a row without steady polling between them.
    takeovers: u32,
    takeover_until: u64,
    spin_until: u64,
    crowded_until: u64,
    /// CPU time (ns) lost in long yields, less the tolerated share since `lost_at`.
    lost_ns: u64,
    lost_at: u64,
    /// Sleeps are short until this time.
    brief_until: u64,
    /// Short sleeps since the last packet.
    brief_sleeps: u8,
}

impl Governor {
    pub(crate) fn new(tuning: Tuning) -> Self {
        Self { tuning, ..Self::default() }
    }

    /// The state in which the thread runs now. `work` counts the inline polls of application threads, their
    /// rounds and batches; `has_sleeper`: an application sleeps until a completion; `usage`: of the other
    /// threads of the process.
    pub(crate) fn next_state(
        &mut self,
        work: u64,
        has_sleeper: bool,
        now: u64,
        usage: impl FnOnce() -> Usage,
    ) -> State {
        if !has_sleeper && self.leaves_to_pollers(work, now, usage) {
            State::Inline
        } else if now < self.crowded_until {
            State::Crowded
        } else {
            State::Background
        }
    }

    /// Whether the progress thread leaves the port to application threads: they have polled often since the
    /// last check, and no takeover is in progress.
    fn leaves_to_pollers(&mut self, work: u64, now: u64, usage: impl FnOnce() -> Usage) -> bool {
        if !self.are_frequent(work, now, usage) || now < self.takeover_until {
            return false;
        }
        if std::mem::replace(&mut self.was_inline, true) {
            self.steady_watches = self.steady_watches.saturating_add(1);
            if self.steady_watches >= self.tuning.steady_watches {
                (self.unread_rounds, self.takeovers) = (0, 0);
            }
        }
        true
    }

    /// Whether application threads have polled often since the present mean began. Outside of `Inline`, the
    /// mean needs at least `poller_work` units of work; fewer count as rare. In `Inline`, half as many are
    /// enough, so that a thread at the limit does not change the state at each check.
    ///
    /// A progress thread would take the CPU from threads that wait for it: the mean is of their CPU time.
    fn are_frequent(&mut self, work: u64, now: u64, usage: impl FnOnce() -> Usage) -> bool {
        let Tuning { poll_gap_ns, poller_work, .. } = self.tuning;
        let (made, elapsed) = (work.wrapping_sub(self.seen_work), now.saturating_sub(self.seen_at));
        if !self.was_inline && made < poller_work && elapsed <= poller_work * poll_gap_ns {
            return false;
        }
        let (gap_ns, fewest) =
            if self.was_inline { (2 * poll_gap_ns, 1) } else { (poll_gap_ns, poller_work) };
        let usage = usage();
        let used = usage.since(self.seen_usage);
        let waits = used.involuntary > used.voluntary;
        let is_frequent = if waits { used.cpu_ns } else { elapsed } <= made.saturating_mul(gap_ns);
        if waits && is_frequent && made < fewest {
            // Undecided: the work goes on counting, and the next look at the usage comes later.
            self.seen_at = now;
            return false;
        }
        (self.seen_work, self.seen_at, self.seen_usage) = (work, now, usage);
        is_frequent && made >= fewest
    }

    /// Returns how long to sleep in `Inline` before the next check (ns).
    pub(crate) fn watch_ns(&self) -> u64 {
        let doublings = (self.steady_watches / self.tuning.watch_steady).min(self.tuning.watch_doublings);
        self.tuning.watch_ns << doublings
    }

    /// Records that the progress thread served the port and received this many batches. `ran_ns`: CPU time
    /// that the other threads used during the last sleep in `Inline`.
    pub(crate) fn served(&mut self, batches: usize, ran_ns: u64, now: u64) {
        let Tuning { takeover_rounds, takeover_ns, takeover_max_ns, .. } = self.tuning;
        if std::mem::take(&mut self.was_inline) && batches > 0 && ran_ns >= self.tuning.ran_ns {
            self.unread_rounds += 1;
            if self.unread_rounds >= takeover_rounds {
                let takeover = takeover_ns.saturating_mul(1 << self.takeovers.min(31));
                self.takeover_until = now + takeover.min(takeover_max_ns);
                self.takeovers += 1;
                self.unread_rounds = 0;
            }
        }
        self.steady_watches = 0;
        if batches > 0 {
            (self.brief_until, self.brief_sleeps) = (now + self.tuning.brief_for_ns, 0);
            if now >= self.crowded_until {
                self.spin_until = now + self.tuning.spin_ns;
            }
        }
    }

    /// Whether the thread spins: it yields and serves the port again, without sleep.
    pub(crate) fn spins(&self, now: u64) -> bool {
        now < self.spin_until
    }

    /// Records that the progress thread yielded the CPU at `now` and ran again at `back`.
    pub(crate) fn yielded(&mut self, now: u64, back: u64) {
        let away = back.saturating_sub(now);
        if away <= self.tuning.crowded_yield_ns {
            return;
        }
        let forgiven = now.saturating_sub(self.lost_at) / self.tuning.forgiven_share;
        self.lost_ns = self.lost_ns.saturating_sub(forgiven) + away;
        self.lost_at = back;
        if self.lost_ns > self.tuning.crowded_loss_ns {
            (self.spin_until, self.crowded_until) = (0, back + self.tuning.crowded_ns);
            self.lost_ns = 0;
        }
    }

    /// Returns the latest end of a sleep that begins now. Each short sleep after a packet is twice as long as
    /// the one before it.
    pub(crate) fn sleep_until(&mut self, now: u64) -> u64 {
        let Tuning { brief_sleep_ns, brief_doublings, sleep_max_ns, .. } = self.tuning;
        if now >= self.brief_until {
            return now + sleep_max_ns;
        }
        let doublings = self.brief_sleeps.min(brief_doublings);
        self.brief_sleeps = doublings + 1;
        now + (brief_sleep_ns << doublings)
    }
}

/// How many empty polls an application thread makes before it yields the CPU.
///
/// Without yields, two programs that poll on one CPU would each spin through a slice of 3 ms before the other
/// can respond. Threads that poll one engine at the same time may miscount, and yield a little earlier or
/// later.
#[derive(Debug)]
pub(crate) struct InlineYield {
    /// Polls since the last packet.
    empty_polls: AtomicU32,
    /// Empty polls before the next yield.
    limit: AtomicU32,
    /// The last yield let another thread run for a short time.
    peer_ran: AtomicBool,
}

impl InlineYield {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        let limit = AtomicU32::new(tuning.yield_polls);
        Self { empty_polls: AtomicU32::new(0), limit, peer_ran: AtomicBool::new(false) }
    }

    /// Counts a poll; `found`: it received packets. Returns whether the thread must yield now, without a lock
    /// held.
    #[inline]
    pub(crate) fn polled(&self, found: bool, tuning: &Tuning) -> bool {
        if self.peer_ran.load(Relaxed) {
            self.peer_ran.store(false, Relaxed);
            if found {
                // A peer on this CPU responded while it ran, so the next yield comes earlier.
                let limit = (self.limit.load(Relaxed) / 2).max(tuning.yield_polls_min);
                self.limit.store(limit, Relaxed);
            }
        }
        let empty_polls = if found { 0 } else { self.empty_polls.load(Relaxed) + 1 };
        let yields = empty_polls >= self.limit.load(Relaxed);
        self.empty_polls.store(if yields { 0 } else { empty_polls }, Relaxed);
        yields
    }

    /// Adapts the limit to a yield that took `away_ns`.
    pub(crate) fn yielded(&self, away_ns: u64, tuning: &Tuning) {
        let limit = self.limit.load(Relaxed);
        let doubled = limit.saturating_mul(2);
        if away_ns < tuning.free_yield_ns {
            // No other thread wanted the CPU.
            self.limit.store(limit.max(doubled.min(tuning.yield_polls)), Relaxed);
        } else if away_ns < tuning.cpu_bound_yield_ns {
            self.peer_ran.store(true, Relaxed);
        } else {
            self.limit.store(doubled.min(tuning.yield_polls_max), Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "governor_tests.rs"]
mod tests;
