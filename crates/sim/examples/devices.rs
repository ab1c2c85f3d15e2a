//! Runs whole devices from some seeds: `cargo run -p roxie-sim --example devices -- FIRST COUNT`.

use roxie::sched::Tuning;
use roxie_sim::{DeviceOptions, run_devices};

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let (first, count) = (words.next().unwrap_or(0), words.next().unwrap_or(1));
    for seed in first..first + count {
        match run_devices(&DeviceOptions { seed, tuning: Tuning::default() }) {
            Ok(outcome) => println!("{seed}: {outcome:?}"),
            Err(failed) => println!("{failed}: {}", failed.what),
        }
    }
}
