//! Seeds of whole devices that once found a bug.

use roxie::sched::Tuning;
use roxie_sim::{DeviceOptions, run_devices};

const SEEDS: [u64; 2] = [730, 1141];

#[test]
fn seeds_that_found_a_bug_keep_every_promise() {
    for seed in SEEDS {
        let options = DeviceOptions { seed, tuning: Tuning::default() };
        run_devices(&options).unwrap_or_else(|failed| panic!("{}\n{failed}", failed.what));
    }
}
