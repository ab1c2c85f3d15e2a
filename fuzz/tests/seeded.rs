//! Runs the fuzz targets as ordinary tests: every input of the checked-in corpus, mutations of each, and
//! generated inputs.
//!
//! `ROXIE_FUZZ_INPUTS=n` runs n generated inputs per target (default 3000), `ROXIE_FUZZ_SEED=n` uses another
//! sequence.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns random bytes. In half of the inputs many bytes are small, which select the common choices.
    fn input(&mut self) -> Vec<u8> {
        let len = 1 + self.below(1500);
        let tame = self.below(2) == 0;
        (0..len)
            .map(|_| {
                let byte = self.next() as u8;
                if tame && self.below(2) == 0 { byte & 3 } else { byte }
            })
            .collect()
    }

    /// Returns the input with a few bytes changed, removed or repeated.
    fn mutate(&mut self, input: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..1 + self.below(6) {
            let at = self.below(out.len() + 1);
            match self.below(4) {
                0 => out.insert(at, self.next() as u8),
                1 if at < out.len() => drop(out.remove(at)),
                2 if at < out.len() => {
                    let again = out[at..(at + 1 + self.below(64)).min(out.len())].to_vec();
                    out.splice(at..at, again);
                }
                _ if at < out.len() => out[at] = self.next() as u8,
                _ => {}
            }
        }
        out
    }
}

fn setting(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => otherwise,
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable directory").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a readable input")).collect()
}

fn check(target: &str, run: fn(&[u8])) {
    let checked = |input: &[u8]| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(input))) {
            let path = std::env::temp_dir().join(format!("{target}-{}", std::process::id()));
            let kept = fs::write(&path, input);
            eprintln!("{target}: the failing input is in {} ({kept:?})", path.display());
            resume_unwind(panic);
        }
    };
    let mut rng = Rng(setting("ROXIE_FUZZ_SEED", 0));
    let seeds = corpus(target);
    for seed in &seeds {
        checked(seed);
    }
    for i in 0..setting("ROXIE_FUZZ_INPUTS", 3000) {
        let input = match seeds.get(i as usize % (2 * seeds.len().max(1))) {
            Some(seed) => rng.mutate(seed),
            None => rng.input(),
        };
        checked(&input);
    }
}

#[test]
fn an_arbitrary_datagram_is_parsed_or_refused() {
    check("packet", roxie_fuzz::packet::run);
}

#[test]
fn an_arbitrary_mad_is_parsed_or_refused() {
    check("mad", roxie_fuzz::mad::run);
}

#[test]
fn a_queue_pair_survives_a_hostile_peer() {
    check("qp_packets", roxie_fuzz::qp_packets::run);
}

#[test]
fn the_connection_manager_survives_a_hostile_peer() {
    check("cm", roxie_fuzz::cm::run);
}

#[test]
fn an_arbitrary_capture_file_is_read_decoded_and_analysed() {
    check("capture", roxie_fuzz::capture::run);
}

#[test]
fn an_arbitrary_program_is_refused_or_ends() {
    check("program", roxie_fuzz::program::run);
}

#[test]
fn an_arbitrary_message_of_another_process_is_decoded_or_ignored() {
    check("messages", roxie_fuzz::messages::run);
}

#[test]
fn an_arbitrary_object_file_is_read_or_refused() {
    check("object", roxie_fuzz::object::run);
}

#[test]
fn arbitrary_shared_memory_is_read_or_given_up() {
    check("siblings", roxie_fuzz::siblings::run);
}

#[test]
fn an_arbitrary_rsocket_message_is_decoded_or_ignored() {
    check("rsocket", roxie_fuzz::rsocket::run);
}
