//! Two queue pairs over a bad network, on a virtual clock.
//!
//! Goal: whatever the network does within the retry budget, each work request completes exactly once and in order, every
//! byte is where the model says, and nothing else was touched. Method: everything that happens is drawn from one `u64`.
//!
//! `ROXIE_SIM_SEEDS=n` runs n seeds, `ROXIE_SIM_SEED=0x..` replays one.

#[path = "sim/mod.rs"]
mod sim;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use roxie_transport::QpCounters;
use sim::world::World;

/// Seeds that failed once.
const SEEDS: &[u64] = &[];

fn run(seed: u64) -> QpCounters {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed);
        world.run();
        world.counters()
    }));
    match result {
        Ok(counters) => counters,
        Err(panic) => {
            eprintln!("replay with ROXIE_SIM_SEED={seed:#x} cargo test -p roxie-transport --test sim");
            resume_unwind(panic)
        }
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(number(&text).unwrap_or_else(|| panic!("{name} is not a number: {text}")))
}

#[test]
fn every_seed_ends_with_the_memory_of_the_model() {
    if let Some(seed) = setting("ROXIE_SIM_SEED") {
        run(seed);
        return;
    }
    let seeds = setting("ROXIE_SIM_SEEDS").unwrap_or(10_000);
    let mut sum = QpCounters::default();
    for seed in SEEDS.iter().copied().chain(0..seeds) {
        sum.absorb(&run(seed));
    }
    println!("{seeds} seeds");
    for (name, value) in sum.rows() {
        println!("{value:>12} {name}");
        // A run that never saw a fault proves nothing about it.
        let rare = ["retry_exceeded_err", "retry_rnr_exceeded_err", "send_err"];
        let datagrams = ["ud_send_too_long", "rcvd_no_wqe", "uc_dropped_messages"];
        if rare.contains(&name) {
            assert_eq!(value, 0, "{name}");
        } else if seeds >= 1000 && !datagrams.contains(&name) {
            assert_ne!(value, 0, "{name} never happened");
        }
    }
}
