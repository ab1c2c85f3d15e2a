//! Whole devices keep every promise with each tunable of the scheduler at half and at double its default.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use roxie::sched::Tuning;
use roxie_sim::{DeviceOptions, run_devices};

/// Seeds of each tunable and factor; `./check --full` runs [`OWN_SEEDS`].
const SEEDS: u64 = 4;
/// Each tunable has so many seeds of its own, so that more runs are seen.
const OWN_SEEDS: u64 = 12;

fn seeds() -> u64 {
    let Some(text) = std::env::var_os("ROXIE_SIM_SEEDS") else { return SEEDS };
    text.to_str().and_then(|text| text.parse().ok()).expect("ROXIE_SIM_SEEDS is a number")
}

/// Runs each tunable multiplied by `numerator / denominator`; `factor` is the same for the command line.
fn scale_each_tunable(numerator: u64, denominator: u64, factor: &str) {
    let seeds = seeds();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut broken = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let (index, nth) = (number as u64 / seeds, number as u64 % seeds);
            let seed = index * OWN_SEEDS.max(seeds) + nth;
            let Some(name) = Tuning::FIELDS.get(index as usize) else { return broken };
            let tuning = Tuning::default().scaled(name, numerator, denominator).expect("it is a field");
            if let Err(failed) = run_devices(&DeviceOptions { seed, tuning }) {
                broken.push(format!("{}\n{failed} --tuning {name}={factor}", failed.what));
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let broken: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("it reports failures")).collect()
    });
    assert!(broken.is_empty(), "{} runs broke a promise:\n{}", broken.len(), broken.join("\n\n"));
}

#[test]
fn devices_keep_every_promise_with_each_tunable_at_half() {
    scale_each_tunable(1, 2, "x0.5");
}

#[test]
fn devices_keep_every_promise_with_each_tunable_at_double() {
    scale_each_tunable(2, 1, "x2");
}
