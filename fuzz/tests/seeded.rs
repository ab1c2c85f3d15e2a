//! Runs the fuzz targets as ordinary tests: every input of the checked-in corpus, mutations of each, and
//! generated inputs.
//!
//! `ROXIE_FUZZ_INPUTS=n` runs n generated inputs per target (default 3000).

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use roxie_tests::random::Rng;

/// Returns random bytes. In half of the inputs many bytes are small, which select the common choices.
fn input(rng: &mut Rng) -> Vec<u8> {
    let len = 1 + rng.below(1500);
    let tame = rng.below(2) == 0;
    (0..len)
        .map(|_| {
            let byte = rng.next() as u8;
            if tame && rng.below(2) == 0 { byte & 3 } else { byte }
        })
        .collect()
}

fn inputs() -> u64 {
    let given = std::env::var("ROXIE_FUZZ_INPUTS").ok();
    given.map_or(3000, |text| text.parse().expect("ROXIE_FUZZ_INPUTS is a number"))
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
    let mut rng = Rng(0);
    let seeds = corpus(target);
    for seed in &seeds {
        checked(seed);
    }
    for i in 0..inputs() {
        let input = match seeds.get(i as usize % (2 * seeds.len().max(1))) {
            Some(seed) => rng.mutate(seed),
            None => input(&mut rng),
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
fn an_arbitrary_hook_is_built_or_refused() {
    check("hook", roxie_fuzz::hook::run);
}

#[test]
fn an_arbitrary_object_file_is_read_or_refused() {
    check("object", roxie_fuzz::object::run);
}

#[test]
fn what_arbitrary_processes_of_the_host_write_is_handled_or_given_up() {
    check("siblings", roxie_fuzz::siblings::run);
}

#[test]
fn an_arbitrary_rsocket_message_is_decoded_or_ignored() {
    check("rsocket", roxie_fuzz::rsocket::run);
}

#[test]
fn what_a_checked_command_writes_is_reported_or_left_out() {
    check("findings", roxie_fuzz::findings::run);
}

#[test]
fn what_a_traced_command_writes_becomes_a_trace() {
    check("trace", roxie_fuzz::trace::run);
}

#[test]
fn an_arbitrary_request_for_counters_is_parsed_or_refused() {
    check("scrape", roxie_fuzz::scrape::run);
}

#[test]
fn what_engines_of_a_command_send_becomes_a_capture() {
    check("command", roxie_fuzz::command::run);
}
