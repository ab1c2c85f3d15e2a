//! Timers of queue pairs: the time at which the engine must check each queue pair.
//!
//! The timers are a binary heap with lazy deletion. [`Timers::arm`] never moves a deadline to a later
//! time: the earlier entry stays, and its expiry has no effect. When a deadline moves to an earlier time or
//! is disarmed, its old entry becomes stale. Invariant: the heap has at most twice as many entries as armed
//! timers, plus [`STALE_MAX`]; otherwise it is rebuilt. A long ACK timeout (up to 2.4 h) that short timers
//! interrupt every 50 us therefore does not fill the heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use transport::Instant;

use crate::qp_numbers::QpIndex;

/// Stale entries that never cause a rebuild of the heap.
const STALE_MAX: usize = 64;

/// See the module documentation. Queue pairs are known by their index.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, QpIndex)>>,
    /// The current deadline of each queue pair.
    armed: Vec<Option<Instant>>,
    /// Number of armed timers.
    live: usize,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::with_capacity(256), armed: Vec::new(), live: 0 }
    }

    /// Makes the timer of a queue pair expire at `at` at the latest.
    #[inline]
    pub(crate) fn arm(&mut self, index: QpIndex, at: Instant) {
        match self.armed.get(index as usize).copied().flatten() {
            Some(armed) if armed <= at => {}
            armed => self.push(index, at, armed.is_none()),
        }
    }

    /// Disarms the timer of a destroyed queue pair.
    pub(crate) fn disarm(&mut self, index: QpIndex) {
        if let Some(armed) = self.armed.get_mut(index as usize)
            && armed.take().is_some()
        {
            self.live -= 1;
            self.tidy();
        }
    }

    /// Returns the earliest time at which a timer may expire.
    #[inline]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns a queue pair whose timer has expired, and disarms it.
    #[inline]
    pub(crate) fn expire(&mut self, now: Instant) -> Option<QpIndex> {
        while self.next().is_some_and(|at| at <= now) {
            let Reverse((at, index)) = self.heap.pop()?;
            let armed = &mut self.armed[index as usize];
            if *armed == Some(at) {
                *armed = None;
                self.live -= 1;
                self.tidy();
                return Some(index);
            }
        }
        None
    }

    fn push(&mut self, index: QpIndex, at: Instant, is_new: bool) {
        let place = index as usize;
        if self.armed.len() <= place {
            self.armed.resize(place + 1, None);
        }
        self.armed[place] = Some(at);
        self.live += usize::from(is_new);
        self.heap.push(Reverse((at, index)));
        self.tidy();
    }

    /// Rebuilds the heap if most entries are stale. Before a heap of n entries is rebuilt there were at least
    /// n/2 calls since the previous time.
    #[inline]
    fn tidy(&mut self) {
        if self.heap.len() > 2 * self.live + STALE_MAX {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.retain(|Reverse((at, index))| self.armed[*index as usize] == Some(*at));
            // A deadline that was armed again after a shorter one has two entries.
            entries.sort_unstable();
            entries.dedup();
            self.heap = entries.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::random_u64;

    /// Goal: the same timers expire as in a plain table, and the heap stays small. Method: random calls for a
    /// few queue pairs, most deadlines near, some far.
    #[test]
    fn timers_expire_as_in_a_plain_table_and_the_heap_stays_small() {
        let mut timers = Timers::new();
        let mut table = [None::<Instant>; 8];
        let mut now = Instant(0);
        let seed = random_u64() | 1;
        let mut random = seed;
        let mut draw = move |below: u64| {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for step in 0..200_000 {
            let index = draw(8) as QpIndex;
            let row = &mut table[index as usize];
            match draw(8) {
                0 => {
                    timers.disarm(index);
                    *row = None;
                }
                1..=2 => now = now.plus_ns(draw(100)),
                n => {
                    // Every second deadline is a retransmission timer of one hour, armed again and again.
                    let at = if n % 2 == 0 { Instant(3_600_000_000_000) } else { now.plus_ns(draw(200)) };
                    timers.arm(index, at);
                    *row = Some(row.map_or(at, |armed| armed.min(at)));
                }
            }
            let due = table.iter().flatten().filter(|at| **at <= now).count();
            let expired: Vec<QpIndex> = std::iter::from_fn(|| timers.expire(now)).collect();
            assert_eq!(expired.len(), due, "step {step}, seed {seed}");
            for index in expired {
                let at = table[index as usize].take();
                assert!(at.is_some_and(|at| at <= now), "step {step}, seed {seed}");
            }
            let live = table.iter().flatten().count();
            assert!(timers.heap.len() <= 2 * live + STALE_MAX, "step {step}, seed {seed}");
            let first = table.iter().flatten().min();
            assert!(first.is_none_or(|first| timers.next() <= Some(*first)), "step {step}, seed {seed}");
        }
    }

    #[test]
    fn a_far_deadline_interrupted_by_near_ones_expires_once() {
        let mut timers = Timers::new();
        let far = Instant(1 << 40);
        for n in 0..100_000 {
            timers.arm(3, far);
            timers.arm(3, Instant(n));
            assert_eq!(timers.expire(Instant(n)), Some(3));
        }
        timers.arm(3, far);
        assert!(timers.heap.len() <= 2 + STALE_MAX);
        assert_eq!((timers.expire(far), timers.expire(far)), (Some(3), None));
    }
}
