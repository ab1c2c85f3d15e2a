//! The progress thread beside an application that sleeps on a completion queue, in virtual time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use sys::Usage;

use super::*;
use crate::engine::claims::tests::{TestPort, engine_in};
use crate::runtime::World;

/// Other threads have the CPU for `away_ns` after each yield.
struct Cpu {
    away_ns: u64,
    now_ns: AtomicU64,
    yields: AtomicU64,
    sleeps: AtomicU64,
}

impl World for Cpu {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(SeqCst)
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn random_u64(&self) -> u64 {
        0
    }

    fn reach(&self, _: Point) {}

    fn yield_now(&self) {
        self.yields.fetch_add(1, SeqCst);
        self.now_ns.fetch_add(self.away_ns, SeqCst);
    }

    fn wait_for_lock(&self) {}

    fn sleep(&self, _: &[RawFd], _until_ns: u64) {
        self.sleeps.fetch_add(1, SeqCst);
    }

    fn spawn(&self, _: Box<dyn FnOnce() + Send>) {}
}

/// Yields and sleeps of `rounds` rounds beside an armed completion queue.
fn yields_and_sleeps(away_ns: u64, rounds: usize) -> (u64, u64) {
    let none = || AtomicU64::new(0);
    let cpu = Arc::new(Cpu { away_ns, now_ns: AtomicU64::new(1), yields: none(), sleeps: none() });
    let runtime = Runtime::Virtual(Arc::clone(&cpu) as Arc<dyn World>);
    // One byte is no packet.
    let engine = engine_in(runtime.clone(), TestPort::receiving(&[0]));
    engine.polling.armed_cqs().fetch_add(1, SeqCst);
    assert!(engine.has_sleeper());
    let (governor, _kick) = (Governor::new(*engine.tuning()), engine.polling.progress.kick());
    let (fds, slice, slot) = (WaitFds::default(), Slice::default(), Weak::new());
    let mut progress = Progress { runtime, slot, governor, fds, _kick, slice, spins: 0, ran_ns: 0 };
    for _ in 0..rounds {
        progress.round(Arc::clone(&engine), &Arc::downgrade(&engine));
    }
    (cpu.yields.load(SeqCst), cpu.sleeps.load(SeqCst))
}

#[test]
fn a_yield_that_takes_long_beside_an_armed_completion_queue_ends_the_spinning() {
    assert_eq!(yields_and_sleeps(3_000_000, 10), (1, 9));
}

#[test]
fn a_progress_thread_beside_an_armed_completion_queue_spins_while_its_yields_are_short() {
    assert_eq!(yields_and_sleeps(1_000, 10), (10, 0));
}
