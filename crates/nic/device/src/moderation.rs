//! Completion moderation (ibv_modify_cq(3)): one channel event for several completions.
//!
//! The first completion that could raise the event starts a period. The event is raised with the last of
//! `count` completions, or when the period ends. Invariant: the [`Moderator`] has a deadline for each event
//! that is held back, so no event is lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use transport::Instant;

use crate::cq::CompletionQueue;

/// The moderation of one CQ: its limits, and the event that it holds back.
#[derive(Debug, Default)]
pub(crate) struct Moderation {
    count: u16,
    period_us: u16,
    /// Completions since the CQ was armed that could have raised the event.
    held: u16,
    deadline: Option<Instant>,
}

/// Whether a completion raises the event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Now,
    /// At this time at the latest; the caller must register the deadline with the [`Moderator`].
    By(Instant),
    /// At a deadline that is registered already.
    Later,
}

impl Moderation {
    /// Sets the limits. Returns whether an event is held back, which the caller then raises.
    pub(crate) fn set(&mut self, count: u16, period_us: u16) -> bool {
        (self.count, self.period_us) = (count, period_us);
        self.held > 0
    }

    pub(crate) fn completed(&mut self, now: Instant) -> Verdict {
        if self.count <= 1 || self.period_us == 0 {
            return Verdict::Now;
        }
        self.held += 1;
        if self.held >= self.count {
            return Verdict::Now;
        }
        if self.deadline.is_some() {
            return Verdict::Later;
        }
        let deadline = now.plus_ns(u64::from(self.period_us) * 1000);
        self.deadline = Some(deadline);
        Verdict::By(deadline)
    }

    /// Whether an event is held back until this deadline.
    pub(crate) fn is_over(&self, deadline: Instant) -> bool {
        self.deadline == Some(deadline)
    }

    /// Ends the period: the event was raised, or the CQ was disarmed.
    pub(crate) fn restart(&mut self) {
        (self.held, self.deadline) = (0, None);
    }
}

/// The deadlines of all CQs of a device.
#[derive(Debug)]
pub(crate) struct Moderator {
    waiting: Mutex<Vec<(Instant, Weak<CompletionQueue>)>>,
    /// The earliest deadline, so that a poll takes no lock if none has passed.
    next_ns: AtomicU64,
}

/// No deadline.
const NEVER: u64 = u64::MAX;

impl Default for Moderator {
    fn default() -> Self {
        Self { waiting: Mutex::default(), next_ns: AtomicU64::new(NEVER) }
    }
}

impl Moderator {
    fn waiting(&self) -> MutexGuard<'_, Vec<(Instant, Weak<CompletionQueue>)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the CQ's event at `deadline`, unless it was raised before.
    pub(crate) fn watch(&self, deadline: Instant, cq: Weak<CompletionQueue>) {
        self.waiting().push((deadline, cq));
        self.next_ns.fetch_min(deadline.0, Ordering::Relaxed);
    }

    /// When [`Self::expire`] must be called.
    pub(crate) fn next(&self) -> Option<Instant> {
        Some(self.next_ns.load(Ordering::Relaxed)).filter(|ns| *ns != NEVER).map(Instant)
    }

    /// Raises due events. The caller must not hold the lock of a CQ.
    #[inline]
    pub(crate) fn expire(&self, now: impl FnOnce() -> Instant) {
        let next = self.next_ns.load(Ordering::Relaxed);
        if next != NEVER {
            let now = now();
            if next <= now.0 {
                self.raise(now);
            }
        }
    }

    #[cold]
    fn raise(&self, now: Instant) {
        let mut waiting = self.waiting();
        let due: Vec<_> = waiting.extract_if(.., |(deadline, _)| *deadline <= now).collect();
        let next = waiting.iter().map(|(deadline, _)| deadline.0).min();
        self.next_ns.store(next.unwrap_or(NEVER), Ordering::Relaxed);
        drop(waiting);
        for (deadline, cq) in due {
            if let Some(cq) = cq.upgrade() {
                cq.moderation_is_over(deadline);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moderation(count: u16, period_us: u16) -> Moderation {
        let mut moderation = Moderation::default();
        assert!(!moderation.set(count, period_us));
        moderation
    }

    #[test]
    fn the_event_is_raised_with_the_last_of_count_completions() {
        let mut m = moderation(3, 10);
        for _ in 0..2 {
            assert_eq!(m.completed(Instant(5_000)), Verdict::By(Instant(15_000)));
            assert_eq!(m.completed(Instant(6_000)), Verdict::Later);
            assert_eq!(m.completed(Instant(7_000)), Verdict::Now);
            m.restart();
        }
    }

    #[test]
    fn only_the_deadline_of_the_event_that_is_held_back_counts() {
        let mut m = moderation(3, 10);
        let Verdict::By(first) = m.completed(Instant(0)) else { panic!("held back") };
        assert!(m.is_over(first));
        m.restart();
        assert!(!m.is_over(first), "the event was raised earlier");
        assert_eq!(m.completed(Instant(1)), Verdict::By(Instant(10_001)));
        assert!(!m.is_over(first) && m.set(0, 0), "the event that is held back must be raised");
    }

    #[test]
    fn without_both_limits_no_event_is_held_back() {
        for (count, period_us) in [(0, 0), (1, 10), (5, 0)] {
            assert_eq!(moderation(count, period_us).completed(Instant(0)), Verdict::Now);
        }
    }

    #[test]
    fn the_earliest_deadline_is_known_until_its_event_is_raised() {
        let moderator = Moderator::default();
        assert_eq!(moderator.next(), None);
        moderator.expire(|| panic!("the clock is read without a deadline"));
        for at in [30, 10, 20] {
            moderator.watch(Instant(at), Weak::new());
        }
        assert_eq!(moderator.next(), Some(Instant(10)));
        moderator.expire(|| Instant(9));
        assert_eq!(moderator.next(), Some(Instant(10)));
        moderator.expire(|| Instant(20));
        assert_eq!(moderator.next(), Some(Instant(30)));
        moderator.expire(|| Instant(30));
        assert_eq!(moderator.next(), None);
    }
}
