//! Pollers that share a CPU take turns.
//!
//! Where two programs poll and have one CPU between them (a container with one CPU, a scheduler that has put them together),
//! each would spin through a whole slice, some 3 ms, before the other may answer it. So whoever has polled in vain for a while
//! yields: the shorter the more often an answer lay there afterwards, and the longer the more often somebody came in who only
//! computes. Where nobody else wants the CPU a yield returns at once, and none falls into a wait of ordinary length.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use sys::now_ns;

/// Polls in vain before the first yield: some 100 us, many round-trip times of a host or a rack.
const PATIENCE_START: u32 = 256;
/// With a peer on the same CPU: some microseconds.
const PATIENCE_MIN: u32 = 8;
/// Beside a program that computes: some 10 ms.
const PATIENCE_MAX: u32 = 32_768;
/// A yield that takes less has changed nothing: nobody else wanted the CPU.
const AT_ONCE_NS: u64 = 2_000;
/// One that takes longer has let somebody in who used his slice up; a peer would have yielded.
const SLICE_NS: u64 = 1_000_000;

/// How patient the inline pollers of a device are.
pub(crate) struct Turns {
    /// Polls in vain since the last packet.
    in_vain: AtomicU32,
    patience: AtomicU32,
    /// Somebody else has just had the CPU for a short time.
    gave_way: AtomicBool,
}

impl Turns {
    pub(crate) const fn new() -> Self {
        Self {
            in_vain: AtomicU32::new(0),
            patience: AtomicU32::new(PATIENCE_START),
            gave_way: AtomicBool::new(false),
        }
    }

    /// After each poll, without a lock held: `found` packets or nothing.
    pub(crate) fn polled(&self, found: bool) {
        if self.is_over(found) {
            let before = now_ns();
            std::thread::yield_now();
            self.came_back(now_ns().saturating_sub(before));
        }
    }

    /// Whether it is somebody else's turn. Threads that poll one device at a time may miscount, and yield a little sooner or
    /// later.
    fn is_over(&self, found: bool) -> bool {
        if self.gave_way.load(Relaxed) {
            self.gave_way.store(false, Relaxed);
            if found {
                self.patience.store((self.patience.load(Relaxed) / 2).max(PATIENCE_MIN), Relaxed);
            }
        }
        let in_vain = if found { 0 } else { self.in_vain.load(Relaxed) + 1 };
        let over = in_vain >= self.patience.load(Relaxed);
        self.in_vain.store(if over { 0 } else { in_vain }, Relaxed);
        over
    }

    fn came_back(&self, away_ns: u64) {
        let patience = self.patience.load(Relaxed);
        match away_ns {
            ..AT_ONCE_NS => self.patience.store(patience.max((2 * patience).min(PATIENCE_START)), Relaxed),
            AT_ONCE_NS..SLICE_NS => self.gave_way.store(true, Relaxed),
            _ => self.patience.store((2 * patience).min(PATIENCE_MAX), Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls in vain until it is somebody else's turn; how many that were.
    fn in_vain(turns: &Turns) -> u32 {
        (1..=PATIENCE_MAX).find(|_| turns.is_over(false)).expect("patience has an end")
    }

    #[test]
    fn packets_make_patience_anew() {
        let turns = Turns::new();
        for _ in 0..PATIENCE_START - 1 {
            assert!(!turns.is_over(false));
        }
        assert!(!turns.is_over(true));
        assert_eq!(in_vain(&turns), PATIENCE_START);
        assert_eq!(in_vain(&turns), PATIENCE_START, "and a turn does");
    }

    #[test]
    fn a_peer_that_answers_on_the_same_cpu_gets_it_sooner_and_sooner() {
        let turns = Turns::new();
        for _ in 0..10 {
            in_vain(&turns);
            turns.came_back(20_000);
            assert!(!turns.is_over(true));
        }
        assert_eq!(in_vain(&turns), PATIENCE_MIN);
        // It has a CPU of its own now.
        for _ in 0..10 {
            turns.came_back(AT_ONCE_NS - 1);
        }
        assert_eq!(in_vain(&turns), PATIENCE_START);
    }

    #[test]
    fn whoever_only_computes_gets_it_less_and_less() {
        let turns = Turns::new();
        turns.came_back(SLICE_NS);
        assert_eq!(in_vain(&turns), 2 * PATIENCE_START);
        for _ in 0..20 {
            turns.came_back(SLICE_NS);
        }
        assert_eq!(in_vain(&turns), PATIENCE_MAX);
        turns.came_back(AT_ONCE_NS - 1);
        assert_eq!(in_vain(&turns), PATIENCE_MAX, "a CPU that is free for a moment proves nothing");
    }

    #[test]
    fn a_turn_that_brought_nothing_changes_nothing() {
        let turns = Turns::new();
        in_vain(&turns);
        turns.came_back(20_000);
        assert!(!turns.is_over(false));
        assert!(!turns.is_over(true));
        assert_eq!(in_vain(&turns), PATIENCE_START);
    }
}
