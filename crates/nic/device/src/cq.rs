//! Completion queues: rings in ordinary memory. Polling one that is not empty takes no engine lock.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use transport::chaos::Chaos;
use transport::{Instant, VerbsError, Wc, refuse};

use crate::chaos::completions::{LateCompletions, Release};
use crate::events::EventQueue;
use crate::moderation::{Moderation, Moderator, Verdict};
use crate::trace;

/// Most entries one CQ may have.
pub(crate) const CQE_MAX: u32 = 1 << 20;

/// Which completion raises the next channel event (ibv_req_notify_cq(3)).
#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
enum Armed {
    No,
    Solicited,
    Next,
}

#[derive(Debug)]
struct Ring {
    entries: VecDeque<Wc>,
    /// When each entry was added (nanoseconds of the engine's clock); `None` unless the application requested
    /// timestamps.
    times: Option<VecDeque<u64>>,
    capacity: usize,
    armed: Armed,
    moderation: Moderation,
    /// Present under `--chaos`.
    late: Option<Box<LateCompletions>>,
}

impl Ring {
    /// Completions, visible and staged.
    fn held(&self) -> usize {
        self.entries.len() + self.late.as_ref().map_or(0, |late| late.len())
    }
}

/// A completion queue, shared by the engine (producer) and the application's threads.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: Mutex<Ring>,
    /// Mirrors `ring.entries.len()` so that an empty poll costs one load.
    len: AtomicUsize,
    /// Credits granted when a poll leaves entries in the CQ; an engine poll that holds messages spends one.
    /// While credits remain the CQ counts as backlogged, and sends keep batching.
    credits: AtomicU8,
    /// Number of the engine's poll that last spent a credit.
    spent_at: AtomicU64,
    /// Credits that a poll grants when it leaves entries.
    backlog_polls: u8,
    overflowed: AtomicBool,
    /// Whether completions may be staged. Set before the application has the queue.
    has_late: AtomicBool,
    channel: Option<Arc<EventQueue<u64>>>,
    cookie: u64,
    /// Armed CQs of the device. While there are any, the progress threads serve the sockets.
    armed_cqs: Arc<AtomicUsize>,
    moderator: Arc<Moderator>,
    own: Weak<Self>,
}

/// Adds completions under one lock. The application can poll them when this is dropped.
pub(crate) struct Adding<'a> {
    now: Instant,
    queue: &'a CompletionQueue,
    ring: MutexGuard<'a, Ring>,
}

impl Adding<'_> {
    /// Whether this adds completions to `queue`.
    #[inline]
    pub(crate) fn is_for(&self, queue: &CompletionQueue) -> bool {
        std::ptr::eq(self.queue, queue)
    }

    /// Adds a completion. False on the first overflow: the caller raises CQ_ERR and moves the QP to ERR.
    #[inline]
    #[must_use]
    pub(crate) fn push(&mut self, wc: Wc, solicited: bool) -> bool {
        let Self { now, queue, ring } = self;
        if ring.late.is_some() {
            return queue.stage(ring, wc, solicited, *now);
        }
        if ring.entries.len() == ring.capacity {
            return queue.overflowed.swap(true, Ordering::Relaxed);
        }
        queue.add(ring, wc, solicited, *now);
        true
    }
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        self.queue.len.store(self.ring.entries.len(), Ordering::Release);
    }
}

impl CompletionQueue {
    pub(crate) fn new(
        cqe: u32,
        channel: Option<Arc<EventQueue<u64>>>,
        cookie: u64,
        armed_cqs: Arc<AtomicUsize>,
        moderator: &Arc<Moderator>,
        backlog_polls: u8,
    ) -> Arc<Self> {
        let capacity = cqe as usize;
        let (entries, late) = (VecDeque::with_capacity(capacity), None);
        let ring = Ring {
            entries,
            times: None,
            capacity,
            armed: Armed::No,
            moderation: Moderation::default(),
            late,
        };
        let (ring, len) = (Mutex::new(ring), AtomicUsize::new(0));
        let (credits, spent_at) = (AtomicU8::new(0), AtomicU64::new(0));
        let (overflowed, has_late) = (AtomicBool::new(false), AtomicBool::new(false));
        let moderator = Arc::clone(moderator);
        Arc::new_cyclic(|own| Self {
            ring,
            len,
            credits,
            spent_at,
            backlog_polls,
            overflowed,
            has_late,
            channel,
            cookie,
            armed_cqs,
            moderator,
            own: Weak::clone(own),
        })
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cookie(&self) -> u64 {
        self.cookie
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.ring().capacity as u32
    }

    /// Begins to add completions at `now`.
    pub(crate) fn adding(&self, now: Instant) -> Adding<'_> {
        Adding { now, queue: self, ring: self.ring() }
    }

    /// Adds a completion that there is room for, and raises the event that it calls for.
    #[inline]
    fn add(&self, ring: &mut Ring, wc: Wc, solicited: bool, now: Instant) {
        ring.entries.push_back(wc);
        if let Some(times) = &mut ring.times {
            times.push_back(now.0);
        }
        let fires = match ring.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Next => true,
        };
        if fires {
            // The completion must be visible before the event wakes a thread.
            self.len.store(ring.entries.len(), Ordering::Release);
            match ring.moderation.completed(now) {
                Verdict::Now => self.fire_or_delay(ring, now),
                Verdict::By(deadline) => self.moderator.watch(deadline, Weak::clone(&self.own)),
                Verdict::Later => {}
            }
        }
    }

    /// From now on completions and events may be late.
    pub(crate) fn set_chaos(&self, chaos: &Arc<Chaos>) {
        self.ring().late = Some(LateCompletions::new(chaos));
        self.has_late.store(true, Ordering::Relaxed);
    }

    /// Stages a completion, which may become visible at once; see [`Adding::push`].
    #[cold]
    fn stage(&self, ring: &mut Ring, wc: Wc, solicited: bool, now: Instant) -> bool {
        if ring.held() == ring.capacity {
            return self.overflowed.swap(true, Ordering::Relaxed);
        }
        if let Some(late) = &mut ring.late {
            let due = late.stage(wc, solicited, now);
            if due > now {
                self.moderator.watch(due, Weak::clone(&self.own));
            }
        }
        self.release(ring, Release::Ready(now));
        true
    }

    /// Makes staged completions visible.
    #[cold]
    fn release(&self, ring: &mut Ring, release: Release) {
        while let Some(staged) = ring.late.as_mut().and_then(|late| late.release(release)) {
            self.add(ring, staged.wc, staged.solicited, staged.at);
        }
        self.len.store(ring.entries.len(), Ordering::Release);
    }

    /// The application polls: counts it for the staged completions, and makes visible what it may see.
    #[cold]
    fn polled(&self) {
        let mut ring = self.ring();
        if let Some(late) = &mut ring.late {
            late.polled();
        }
        self.release(&mut ring, Release::Ready(Instant::ZERO));
        if !ring.entries.is_empty()
            && let Some(late) = &mut ring.late
        {
            late.taken();
        }
    }

    #[inline]
    fn fire_or_delay(&self, ring: &mut Ring, now: Instant) {
        let Some(late) = &mut ring.late else { return self.fire(ring) };
        if late.is_event_late() {
            return;
        }
        match late.delay_event(now) {
            Some(due) => self.moderator.watch(due, Weak::clone(&self.own)),
            None => self.fire(ring),
        }
    }

    /// Adds a completion; see [`Adding::push`].
    #[cfg(test)]
    #[must_use]
    pub(crate) fn push(&self, wc: Wc, solicited: bool) -> bool {
        self.adding(Instant::ZERO).push(wc, solicited)
    }

    /// Raises the channel event and disarms the CQ.
    fn fire(&self, ring: &mut Ring) {
        self.disarm(ring);
        if let Some(channel) = &self.channel {
            channel.push(self.cookie);
        }
    }

    /// Sets the limits of [`Moderation`]; an event that is held back fires at once.
    pub(crate) fn moderate(&self, count: u16, period_us: u16) {
        let mut ring = self.ring();
        if ring.moderation.set(count, period_us) {
            self.fire(&mut ring);
        }
    }

    /// Fires the event that is held back until `deadline`.
    pub(crate) fn moderation_is_over(&self, deadline: Instant) {
        let mut ring = self.ring();
        let is_due = ring.late.as_mut().is_some_and(|late| late.take_due_event(deadline));
        if (ring.moderation.is_over(deadline) || is_due) && ring.armed != Armed::No {
            self.fire(&mut ring);
        }
        if ring.late.is_some() {
            self.release(&mut ring, Release::Ready(deadline));
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    pub(crate) fn waiting(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.ring().armed != Armed::No
    }

    pub(crate) fn is_armed_for_solicited(&self) -> bool {
        self.ring().armed == Armed::Solicited
    }

    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Whether the application has left entries here, judged by its last polls.
    #[inline]
    pub(crate) fn is_backlogged(&self) -> bool {
        self.credits.load(Ordering::Relaxed) > 0
    }

    /// Spends one credit, because the engine's poll with this number held messages. A poll spends one credit
    /// of a CQ, however many queue pairs complete here.
    #[inline]
    pub(crate) fn spend_poll(&self, poll: u64) {
        if self.spent_at.swap(poll, Ordering::Relaxed) != poll {
            let left = self.credits.load(Ordering::Relaxed).saturating_sub(1);
            self.credits.store(left, Ordering::Relaxed);
        }
    }

    /// Updates length and credits after a poll that left `left` entries.
    #[inline]
    fn taken(&self, left: usize) {
        self.credits.store(if left > 0 { self.backlog_polls } else { 0 }, Ordering::Relaxed);
        self.len.store(left, Ordering::Release);
    }

    /// Moves completions into `out`, oldest first; returns how many.
    #[inline]
    pub(crate) fn pop(&self, out: &mut [MaybeUninit<Wc>]) -> usize {
        if self.has_late.load(Ordering::Relaxed) {
            self.polled();
        }
        if self.is_empty() || out.is_empty() {
            return 0;
        }
        let mut ring = self.ring();
        let n = out.len().min(ring.entries.len());
        if sys::trace::is_on() {
            trace::polled(ring.entries.iter().take(n));
        }
        for (slot, wc) in out.iter_mut().zip(ring.entries.drain(..n)) {
            slot.write(wc);
        }
        if let Some(times) = &mut ring.times {
            times.drain(..n);
        }
        self.taken(ring.entries.len());
        n
    }

    /// Takes the oldest completion.
    pub(crate) fn pop_one(&self) -> Option<Wc> {
        self.pop_timed().map(|(wc, _time_ns)| wc)
    }

    /// Takes the oldest completion with the time when it was added, 0 if that is not recorded.
    pub(crate) fn pop_timed(&self) -> Option<(Wc, u64)> {
        if self.has_late.load(Ordering::Relaxed) {
            self.polled();
        }
        if self.is_empty() {
            return None;
        }
        let mut ring = self.ring();
        let wc = ring.entries.pop_front();
        let time_ns = ring.times.as_mut().and_then(VecDeque::pop_front);
        self.taken(ring.entries.len());
        if sys::trace::is_on() {
            trace::polled(wc.iter());
        }
        Some((wc?, time_ns.unwrap_or_default()))
    }

    /// Records the time of each completion from now on; present completions get the time `now`.
    pub(crate) fn record_times(&self, now: Instant) {
        let mut ring = self.ring();
        let mut times = VecDeque::with_capacity(ring.capacity);
        times.extend(std::iter::repeat_n(now.0, ring.entries.len()));
        ring.times = Some(times);
    }

    /// Arms the CQ for one event at the next completion; "any" supersedes "solicited".
    pub(crate) fn arm(&self, solicited_only: bool) {
        let mut ring = self.ring();
        let (is_first, is_spurious) = ring.late.as_mut().map_or((false, false), |late| late.arm());
        if is_first {
            self.release(&mut ring, Release::All);
        }
        // An application that is about to sleep does not post more.
        self.credits.store(0, Ordering::Relaxed);
        let want = if solicited_only { Armed::Solicited } else { Armed::Next };
        if ring.armed == Armed::No {
            self.armed_cqs.fetch_add(1, Ordering::Relaxed);
        }
        if want > ring.armed {
            ring.armed = want;
        }
        if is_spurious {
            self.fire(&mut ring);
        }
    }

    fn disarm(&self, ring: &mut Ring) {
        if ring.armed != Armed::No {
            ring.armed = Armed::No;
            ring.moderation.restart();
            if let Some(late) = &mut ring.late {
                late.forget_event();
            }
            self.armed_cqs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn resize(&self, cqe: u32) -> Result<(), VerbsError> {
        let mut ring = self.ring();
        let waiting = ring.held();
        if cqe == 0 || cqe > CQE_MAX || waiting > cqe as usize {
            return Err(refuse!(EINVAL, "completion queue", "cqe"; cqe, waiting;
                "a CQ of {cqe} entries; it has 1 to {CQE_MAX}, and {waiting} completions wait in it now"));
        }
        let missing = (cqe as usize).saturating_sub(ring.entries.len());
        ring.entries.reserve(missing);
        if let Some(times) = &mut ring.times {
            times.reserve(missing);
        }
        ring.capacity = cqe as usize;
        Ok(())
    }

    /// Forgets the completions of a QP that is being destroyed or reset, as hardware providers do.
    pub(crate) fn purge(&self, qp_num: u32) {
        let mut ring = self.ring();
        let Ring { entries, times, late, .. } = &mut *ring;
        if let Some(late) = late {
            late.purge(qp_num);
        }
        if let Some(times) = times {
            let mut entries = entries.iter();
            times.retain(|_| entries.next().is_some_and(|wc| wc.qp_num != qp_num));
        }
        entries.retain(|wc| wc.qp_num != qp_num);
        let left = entries.len();
        if left == 0 {
            self.credits.store(0, Ordering::Relaxed);
        }
        self.len.store(left, Ordering::Release);
    }

    /// Disarms the CQ and discards its unread channel events, because the application destroys it.
    pub(crate) fn close(&self) {
        self.disarm(&mut self.ring());
        if let Some(channel) = &self.channel {
            channel.retain(|cookie| *cookie != self.cookie);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKLOG_POLLS: u8 = 4;

    fn queue(cqe: u32) -> Arc<CompletionQueue> {
        CompletionQueue::new(cqe, None, 0, Arc::default(), &Arc::default(), BACKLOG_POLLS)
    }

    fn wc(qp_num: u32) -> Wc {
        Wc { qp_num, ..Wc::default() }
    }

    /// Two completions arrive, and the application takes one.
    fn leave_one(cq: &CompletionQueue) {
        assert!(cq.push(wc(1), false) && cq.push(wc(2), false) && cq.pop_one().is_some());
        assert!(cq.is_backlogged());
    }

    #[test]
    fn a_poll_that_leaves_entries_makes_the_cq_backlogged_until_the_last_is_taken() {
        let cq = queue(8);
        let mut out = [MaybeUninit::uninit(); 2];
        for n in 1..=4 {
            assert!(cq.push(wc(n), false) && !cq.is_backlogged(), "the application has not polled");
        }
        assert_eq!((cq.pop(&mut out), cq.is_backlogged()), (2, true));
        assert!(cq.pop_one().is_some() && cq.is_backlogged());
        assert!(cq.pop_one().is_some() && !cq.is_backlogged());
    }

    #[test]
    fn a_destroyed_queue_pair_and_an_armed_cq_end_the_backlog() {
        let cq = queue(8);
        leave_one(&cq);
        cq.purge(2);
        assert!(!cq.is_backlogged());
        leave_one(&cq);
        cq.arm(false);
        assert!(!cq.is_backlogged());
    }

    #[test]
    fn a_poll_of_the_engine_spends_one_credit_however_many_queue_pairs_it_holds() {
        let cq = queue(8);
        leave_one(&cq);
        for poll in 1..=u64::from(BACKLOG_POLLS) {
            assert!(cq.is_backlogged(), "poll {poll}");
            (0..100).for_each(|_queue_pair| cq.spend_poll(poll));
        }
        assert!(!cq.is_backlogged());
    }

    #[test]
    fn a_completion_keeps_its_time_when_others_are_purged_or_the_cq_is_resized() {
        let cq = queue(4);
        assert!(cq.push(wc(1), false));
        assert_eq!(cq.pop_timed(), Some((wc(1), 0)), "times are not recorded yet");
        cq.record_times(Instant(5));
        for (qp_num, at) in [(1, 10), (2, 20), (1, 30), (3, 40)] {
            assert!(cq.adding(Instant(at)).push(wc(qp_num), false));
        }
        cq.purge(1);
        cq.resize(8).expect("it holds two");
        assert_eq!((cq.pop_timed(), cq.pop_timed()), (Some((wc(2), 20)), Some((wc(3), 40))));
        let mut out = [MaybeUninit::uninit(); 1];
        assert!(cq.push(wc(4), false) && cq.push(wc(5), false));
        assert_eq!((cq.pop(&mut out), cq.pop_timed().map(|(wc, _)| wc.qp_num)), (1, Some(5)));
        assert_eq!(cq.pop_timed(), None);
    }
}
