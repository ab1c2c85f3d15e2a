//! Completions that are late, come in batches, and overtake those of other queues; and late events.
//!
//! A CQ stages completions here until the application has polled so often, or until their time has come.
//! Invariant: the completions of one work queue stay in order, and a completion in error follows all
//! earlier ones of its queue pair.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use transport::chaos::{Chaos, Fault};
use transport::{Instant, Wc, WcStatus};

/// Longest time that a completion is staged, in nanoseconds.
const LATE_NS: u64 = 300_000;
/// Most polls that do not find a staged completion.
const POLLS_MAX: u64 = 64;
/// Longest delay of an event, in nanoseconds.
const EVENT_LATE_NS: u64 = 500_000;

/// A completion that the application cannot poll yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    pub(crate) wc: Wc,
    pub(crate) solicited: bool,
    /// When it was staged.
    pub(crate) at: Instant,
    queue: (u32, bool),
    polls: u64,
    due: Instant,
    /// Completions of other queues may overtake it.
    yields: bool,
}

/// When staged completions become visible.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Release {
    /// The application has polled so often, or the time has come.
    Ready(Instant),
    /// Now.
    All,
}

/// The staged completions of one CQ, and what its decisions depend on.
#[derive(Debug)]
pub(crate) struct LateCompletions {
    chaos: Arc<Chaos>,
    /// Number of the CQ in this process.
    number: u64,
    staged: VecDeque<Staged>,
    /// Completions so far of each queue.
    counts: HashMap<(u32, bool), u64>,
    arms: u64,
    /// The application has polled a completion since it armed the CQ last.
    has_polled: bool,
    /// When the event that is late is raised.
    event_due: Option<Instant>,
}

impl LateCompletions {
    pub(crate) fn new(chaos: &Arc<Chaos>) -> Box<Self> {
        Box::new(Self {
            chaos: Arc::clone(chaos),
            number: chaos.next_completion_queue(),
            staged: VecDeque::new(),
            counts: HashMap::new(),
            arms: 0,
            has_polled: false,
            event_due: None,
        })
    }

    /// Number of staged completions.
    pub(crate) fn len(&self) -> usize {
        self.staged.len()
    }

    /// Stages a completion. Returns when it becomes visible at the latest.
    pub(crate) fn stage(&mut self, wc: Wc, solicited: bool, now: Instant) -> Instant {
        let queue = (wc.qp_num, wc.is_receive());
        let count = self.counts.entry(queue).or_default();
        let nth = *count;
        *count += 1;
        let number = self.chaos.number(wc.qp_num) << 1 | u64::from(queue.1);
        let late = self.chaos.strikes(Fault::Completions, number, nth);
        let overtaken = self.chaos.strikes(Fault::CqOrder, number, nth);
        let yields = overtaken.is_some();
        let (mut polls, mut due) = (0, now);
        if let Some(mut draw) = late.or(overtaken) {
            (polls, due) = (1 + draw.below(POLLS_MAX), now.plus_ns(draw.below(LATE_NS)));
        }
        self.staged.push_back(Staged { wc, solicited, at: now, queue, polls, due, yields });
        due
    }

    /// The application polls.
    pub(crate) fn polled(&mut self) {
        for staged in &mut self.staged {
            staged.polls = staged.polls.saturating_sub(1);
        }
    }

    /// Removes the next staged completion that becomes visible.
    pub(crate) fn release(&mut self, release: Release) -> Option<Staged> {
        let is_ready = |staged: &Staged| match release {
            Release::Ready(now) => staged.polls == 0 || staged.due <= now,
            Release::All => true,
        };
        let mut waiting: Vec<(u32, bool)> = Vec::new();
        let at = self.staged.iter().position(|staged| {
            let is_error = staged.wc.status != WcStatus::Success;
            let follows =
                |queue: &(u32, bool)| *queue == staged.queue || (is_error && queue.0 == staged.queue.0);
            if is_ready(staged) && !waiting.iter().any(follows) {
                return true;
            }
            // Everything behind a completion that does not yield waits with it: no later one is ready either.
            waiting.push(staged.queue);
            false
        })?;
        let is_blocked = self.staged.iter().take(at).any(|earlier| !earlier.yields);
        if is_blocked { None } else { self.staged.remove(at) }
    }

    /// Forgets the completions of a queue pair.
    pub(crate) fn purge(&mut self, qp_num: u32) {
        self.staged.retain(|staged| staged.wc.qp_num != qp_num);
        self.counts.retain(|(known, _), _| *known != qp_num);
    }

    /// The application took completions.
    pub(crate) fn taken(&mut self) {
        self.has_polled = true;
    }

    /// The application arms the CQ. Returns whether the staged completions become visible before, so they
    /// raise no event, and whether an event comes at once for completions that were polled before.
    pub(crate) fn arm(&mut self) -> (bool, bool) {
        self.arms += 1;
        // Numbers of queue pairs are smaller.
        let queue = u64::MAX - self.number;
        let is_first =
            !self.staged.is_empty() && self.chaos.strikes(Fault::Completions, queue, self.arms).is_some();
        let spurious = std::mem::take(&mut self.has_polled)
            && self.chaos.strikes(Fault::WakeUps, self.number, self.arms).is_some();
        (is_first, spurious)
    }

    /// Whether an event is late; returns when it comes. `None`: it comes now.
    pub(crate) fn delay_event(&mut self, now: Instant) -> Option<Instant> {
        let mut draw = self.chaos.strikes(Fault::Events, self.number, self.arms)?;
        let due = now.plus_ns(1 + draw.below(EVENT_LATE_NS));
        self.event_due = Some(due);
        self.event_due
    }

    /// Whether an event waits for its time.
    pub(crate) fn is_event_late(&self) -> bool {
        self.event_due.is_some()
    }

    /// Whether the late event is due; then it is late no longer.
    pub(crate) fn take_due_event(&mut self, now: Instant) -> bool {
        self.event_due.take_if(|due| *due <= now).is_some()
    }

    /// Drops the late event, because the CQ is disarmed.
    pub(crate) fn forget_event(&mut self) {
        self.event_due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transport::WcOpcode;

    fn late(seed: u64, faults: &str) -> Box<LateCompletions> {
        let plan = format!("seed={seed},faults={faults}").parse().expect("a plan");
        LateCompletions::new(&Arc::new(Chaos::new(plan)))
    }

    fn wc(qp_num: u32, wr_id: u64, opcode: WcOpcode) -> Wc {
        Wc { qp_num, wr_id, opcode, ..Wc::default() }
    }

    /// Stages completions of two queue pairs, and polls until all are visible. Returns them in this order.
    fn order(seed: u64, faults: &str, completions: &[Wc]) -> Vec<Wc> {
        let mut late = late(seed, faults);
        let mut seen = Vec::new();
        for wc in completions {
            late.stage(*wc, false, Instant(1000));
            seen.extend(std::iter::from_fn(|| late.release(Release::Ready(Instant(1000)))).map(|s| s.wc));
        }
        for _ in 0..=POLLS_MAX {
            late.polled();
            seen.extend(std::iter::from_fn(|| late.release(Release::Ready(Instant::ZERO))).map(|s| s.wc));
        }
        assert_eq!((seen.len(), late.len()), (completions.len(), 0));
        seen
    }

    fn ids(completions: &[Wc], qp_num: u32) -> Vec<u64> {
        completions.iter().filter(|wc| wc.qp_num == qp_num).map(|wc| wc.wr_id).collect()
    }

    #[test]
    fn only_completions_of_different_queues_overtake_each_other() {
        let mut overtaken = 0;
        let sent: Vec<Wc> = (0..40).map(|n| wc(1 + (n % 2) as u32, n, WcOpcode::Send)).collect();
        for seed in 0..20 {
            assert_eq!(order(seed, "completions", &sent), sent, "without cq-order nothing overtakes");
            let seen = order(seed, "completions+cq-order", &sent);
            overtaken += u32::from(seen != sent);
            for qp_num in [1, 2] {
                assert_eq!(ids(&seen, qp_num), ids(&sent, qp_num), "seed {seed}");
            }
        }
        assert!(overtaken > 10, "{overtaken}");
    }

    #[test]
    fn a_completion_in_error_follows_all_earlier_ones_of_its_queue_pair() {
        // The opcode of a completion in error is not valid, so it does not tell the queue.
        let flushed = Wc { status: WcStatus::WrFlushErr, ..wc(1, 3, WcOpcode::Send) };
        let sent = [wc(1, 1, WcOpcode::Recv), wc(1, 2, WcOpcode::Send), flushed];
        for seed in 0..50 {
            let seen = order(seed, "completions+cq-order", &sent);
            assert_eq!(seen[2], flushed, "seed {seed}");
        }
    }

    #[test]
    fn a_staged_completion_becomes_visible_at_its_time_without_polls() {
        let mut late = late(3, "completions");
        let dues: Vec<Instant> =
            (0..64).map(|n| late.stage(wc(1, n, WcOpcode::Send), false, Instant(5))).collect();
        let last = dues.into_iter().max().expect("some");
        assert!(last > Instant(5) && last <= Instant(5 + LATE_NS));
        while late.release(Release::Ready(last)).is_some() {}
        assert_eq!(late.len(), 0);
    }

    #[test]
    fn an_event_without_completion_comes_only_after_polled_ones() {
        let mut late = late(1, "wake-ups");
        assert!((0..500).all(|_| !late.arm().1), "nothing was polled");
        let wakes = (0..500).filter(|_| {
            late.taken();
            late.arm().1
        });
        assert!(wakes.count() > 10);
    }
}
