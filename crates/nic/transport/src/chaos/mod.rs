//! Decisions of an adversarial, legal NIC (`roxie run --chaos`).
//!
//! The owner asks [`Chaos::strikes`] at each place where the specification leaves a NIC a choice. The answer
//! depends on the seed, the fault and the logical position only: which queue, and the number of the packet,
//! message or completion in it. It does not depend on time, nor on other faults: a run with fewer faults
//! takes the same decisions for those that are left. So a seed replays a failure as far as the program
//! itself is deterministic, and a search can leave faults out one by one.

mod fault;
mod plan;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use fault::{Fault, Faults};
pub use plan::{ChaosPlan, PlanError};

use crate::split_mix64;

/// The queue pairs of the process by their order: queue pair numbers are random.
#[derive(Debug, Default)]
struct QueuePairs {
    /// The newest queue pair with each queue pair number.
    numbers: HashMap<u32, u64>,
    count: u64,
}

impl QueuePairs {
    fn add(&mut self, qpn: u32) -> u64 {
        let number = self.count;
        self.count += 1;
        self.numbers.insert(qpn, number);
        number
    }
}

/// The decisions of one process, and what they have done so far.
#[derive(Debug)]
pub struct Chaos {
    plan: ChaosPlan,
    counts: [AtomicU64; Fault::COUNT],
    /// Faults injected so far, all kinds.
    injected: AtomicU64,
    queue_pairs: Mutex<QueuePairs>,
    /// Completion queues created so far.
    completion_queues: AtomicU64,
}

impl Chaos {
    /// The decisions of a plan.
    #[must_use]
    pub fn new(plan: ChaosPlan) -> Self {
        Self {
            plan,
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            injected: AtomicU64::new(0),
            queue_pairs: Mutex::default(),
            completion_queues: AtomicU64::new(0),
        }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &ChaosPlan {
        &self.plan
    }

    /// Whether the plan has this fault.
    #[must_use]
    pub fn has(&self, fault: Fault) -> bool {
        self.plan.faults.contains(fault)
    }

    /// Returns random bits for the details if `fault` happens at this position, and counts it; otherwise
    /// `None`. `queue` is a number that the same queue has in each run, see [`number`](Self::number).
    #[must_use]
    pub fn strikes(&self, fault: Fault, queue: u64, position: u64) -> Option<Draw> {
        if !self.has(fault) {
            return None;
        }
        let mut draw = Draw::new(self.plan.seed, fault, queue, position);
        if draw.below(256) >= self.plan.share(fault) {
            return None;
        }
        let nth = self.injected.fetch_add(1, Ordering::Relaxed);
        if self.plan.first.is_some_and(|first| nth >= first) {
            return None;
        }
        self.counts[fault as usize].fetch_add(1, Ordering::Relaxed);
        Some(draw)
    }

    /// A queue pair was created: gives it the next number, also if a destroyed one had the same `qpn`.
    pub fn created(&self, qpn: u32) {
        self.queue_pairs().add(qpn);
    }

    /// Returns the number of a queue pair in this process, in the order of creation. One that was not
    /// [created](Self::created) gets the next number.
    #[must_use]
    pub fn number(&self, qpn: u32) -> u64 {
        let mut known = self.queue_pairs();
        known.numbers.get(&qpn).copied().unwrap_or_else(|| known.add(qpn))
    }

    fn queue_pairs(&self) -> MutexGuard<'_, QueuePairs> {
        self.queue_pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the next completion queue in this process.
    #[must_use]
    pub fn next_completion_queue(&self) -> u64 {
        self.completion_queues.fetch_add(1, Ordering::Relaxed)
    }

    /// How often each fault was injected; only those that were.
    #[must_use]
    pub fn counts(&self) -> Vec<(Fault, u64)> {
        let count = |fault: Fault| self.counts[fault as usize].load(Ordering::Relaxed);
        Fault::ALL.into_iter().map(|fault| (fault, count(fault))).filter(|(_, count)| *count > 0).collect()
    }
}

/// The random bits of one decision.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    fn new(seed: u64, fault: Fault, queue: u64, position: u64) -> Self {
        let mut draw = Self(seed);
        for word in [fault as u64, queue, position] {
            draw.0 = draw.bits() ^ word.wrapping_mul(0xd6e8_feb8_6659_fd93);
        }
        draw
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        split_mix64(&mut self.0)
    }

    /// A number in `0..limit`; 0 for a limit of 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The remainder of 64 bits is even enough for limits far below 2^32.
        self.bits().checked_rem(limit).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chaos(text: &str) -> Chaos {
        Chaos::new(text.parse().expect("a plan"))
    }

    fn struck(chaos: &Chaos, fault: Fault) -> Vec<u64> {
        (0..400).filter(|position| chaos.strikes(fault, 1, *position).is_some()).collect()
    }

    #[test]
    fn a_decision_depends_on_seed_queue_and_position_and_not_on_earlier_decisions() {
        let (all, again) = (chaos("seed=7,faults=loss+rnr"), chaos("seed=7,faults=loss"));
        let first = struck(&all, Fault::Loss);
        assert!(struck(&all, Fault::Rnr).len() > 1 && first.len() > 1 && first.len() < 300, "{first:?}");
        assert_eq!(struck(&again, Fault::Loss), first, "another fault has no influence");
        assert_eq!(struck(&again, Fault::Loss), first, "nor has an earlier run");
        assert_ne!(struck(&chaos("seed=8,faults=loss"), Fault::Loss), first);
        let other_queue: Vec<u64> =
            (0..400).filter(|at| again.strikes(Fault::Loss, 2, *at).is_some()).collect();
        assert_ne!(other_queue, first);
    }

    #[test]
    fn only_the_first_faults_of_a_limited_plan_happen_and_are_counted() {
        let all = struck(&chaos("seed=7,faults=loss"), Fault::Loss);
        let limited = chaos("seed=7,faults=loss,first=3");
        assert_eq!(struck(&limited, Fault::Loss), all[..3]);
        assert_eq!(limited.counts(), [(Fault::Loss, 3)]);
        assert!(struck(&limited, Fault::Rnr).is_empty(), "not in the plan");
    }

    #[test]
    fn queue_pairs_are_numbered_in_order() {
        let chaos = chaos("seed=1");
        assert_eq!([0x41, 0x17, 0x41, 0x99].map(|qpn| chaos.number(qpn)), [0, 1, 0, 2]);
        chaos.created(0x17);
        assert_eq!([0x41, 0x17, 0x99].map(|qpn| chaos.number(qpn)), [0, 3, 2], "0x17 is another queue pair");
    }
}
