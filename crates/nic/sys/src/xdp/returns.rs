//! Numbers returned by any thread and collected by one: a lock-free list.
//!
//! Invariant: a number is in the list at most once, because it stands for a token that was dropped. So
//! only the thread that drops the token writes the link of its number, and a list of fixed links
//! suffices. The collector takes all numbers at once. No thread removes a single element, so the ABA
//! problem cannot occur.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, Ordering};

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Returns {
    head: AtomicU32,
    /// For each number in the list, the one that was added before it.
    links: Box<[AtomicU32]>,
}

/// End of the list.
const NONE: u32 = u32::MAX;

impl Returns {
    /// Creates an empty list for the numbers below `count`.
    pub(super) fn new(count: u32) -> Returns {
        Returns { head: AtomicU32::new(NONE), links: (0..count).map(|_| AtomicU32::new(NONE)).collect() }
    }

    /// Adds `number`, which must not be in the list.
    pub(super) fn push(&self, number: u32) {
        let Some(link) = self.links.get(number as usize) else {
            debug_assert!(false, "no number {number}");
            return;
        };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.store(head, Ordering::Relaxed);
            // Release: the collector sees the link, and the bytes of the unit that the number stands for.
            match self.head.compare_exchange_weak(head, number, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Removes all numbers, the last one first; returns how many.
    pub(super) fn take_all(&self, mut f: impl FnMut(u32)) -> usize {
        if self.head.load(Ordering::Relaxed) == NONE {
            return 0;
        }
        let mut next = self.head.swap(NONE, Ordering::Acquire);
        let mut count = 0;
        while let Some(link) = self.links.get(next as usize) {
            let number = next;
            next = link.load(Ordering::Relaxed);
            count += 1;
            f(number);
        }
        count
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_returned_number_is_collected_once() {
        let returns = Returns::new(4);
        [2, 0, 3].into_iter().for_each(|n| returns.push(n));
        let mut out = Vec::new();
        assert_eq!(returns.take_all(|n| out.push(n)), 3);
        assert_eq!(out, [3, 0, 2]);
        assert_eq!(returns.take_all(|_| panic!("nothing is left")), 0);
        returns.push(2);
        assert_eq!(returns.take_all(|n| assert_eq!(n, 2)), 1);
    }
}

/// Every interleaving of two threads that return numbers and one that collects them:
/// `RUSTFLAGS="--cfg loom" cargo test -p roxie-sys --lib loom`.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_each_number_comes_out_once_with_its_bytes() {
        loom::model(|| {
            let returns =
                Arc::new((Returns::new(3), [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)]));
            let pushers: Vec<_> = [vec![0, 1], vec![2]]
                .into_iter()
                .map(|numbers| {
                    let returns = Arc::clone(&returns);
                    thread::spawn(move || {
                        for number in numbers {
                            // Stands for bytes written by the holder of the token.
                            returns.1[number as usize].store(number + 10, Ordering::Relaxed);
                            returns.0.push(number);
                        }
                    })
                })
                .collect();
            let mut seen = [0; 3];
            let mut collect = || {
                returns.0.take_all(|n| {
                    seen[n as usize] += 1;
                    assert_eq!(returns.1[n as usize].load(Ordering::Relaxed), n + 10);
                })
            };
            collect();
            for pusher in pushers {
                pusher.join().unwrap();
            }
            collect();
            assert_eq!(seen, [1, 1, 1]);
        });
    }

    #[test]
    fn loom_a_number_can_be_returned_again_after_it_was_collected() {
        loom::model(|| {
            let returns = Arc::new(Returns::new(2));
            returns.push(0);
            let other = {
                let returns = Arc::clone(&returns);
                thread::spawn(move || returns.push(1))
            };
            let mut seen = [0; 2];
            // The collector reuses the number at once, while the other thread pushes.
            returns.take_all(|n| seen[n as usize] += 1);
            assert_eq!(seen[0], 1);
            returns.push(0);
            other.join().unwrap();
            returns.take_all(|n| seen[n as usize] += 1);
            assert_eq!(seen, [2, 1]);
        });
    }
}
