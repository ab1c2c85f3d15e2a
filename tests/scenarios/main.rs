//! Real runs with a planted fault, recorded on an interface: `roxie capture analyse` must name the fault,
//! and must find none in healthy runs. tshark must show the same fields in every recording.
//!
//! Each scenario has two hosts. The fault is in a hook of one side, in a program on its interface, or in
//! the programs: unmodified ones, or [`actor`]. Scenarios that cannot run here are named at the end:
//! `skipped: needs X`.
#![forbid(unsafe_code)]

mod actor;
mod healthy;
mod planted;
mod scenario;
mod wire_faults;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};

use libtest_mimic::{Arguments, Failed, Trial};
use roxie_tests::binaries;
use roxie_tests::harness::{Skipped, is_chosen, logs, without_binaries};
use roxie_tests::lab::{Lab, is_root};
use roxie_tests::wireshark;

use scenario::Scenario;

/// Scenarios at a time; most of them wait for a timeout.
const THREADS: usize = 3;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == "--actor") {
        return match actor::run(&words[2..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut args = Arguments::from_iter(words);
    args.test_threads = args.test_threads.or(Some(THREADS));
    let mut scenarios = planted::scenarios();
    scenarios.extend(healthy::scenarios());
    let lab = if args.list { None } else { Some(Lab::new(logs("scenarios"))) };
    let lab = match lab.transpose() {
        Ok(lab) => lab,
        Err(error) => return without_binaries(&error.to_string(), scenarios.len()),
    };
    let (quiet, mut skipped) = (Arc::new(RwLock::new(())), Skipped::default());
    let (mut trials, mut files) = (Vec::new(), Vec::new());
    for scenario in scenarios.into_iter().filter(|scenario| is_chosen(&args, &scenario.name)) {
        let need = if args.list { None } else { missing(&scenario) };
        if let Some(need) = &need {
            skipped.add(need);
        }
        let (lab, quiet) = (lab.as_ref().map(Lab::apart), Arc::clone(&quiet));
        if let (None, Some(lab), true) = (&need, &lab, scenario.is_compared()) {
            files.push(scenario.file(lab));
        }
        let name = scenario.name.clone();
        let run = move || match &lab {
            Some(lab) => attempt(&scenario, lab, &quiet).map_err(Failed::from),
            None => Ok(()),
        };
        trials.push(Trial::test(name, run).with_ignored_flag(need.is_some()));
    }
    let mut conclusion = libtest_mimic::run(&args, trials);
    let Some(lab) = lab else { return conclusion.exit_code() };
    match fields(&lab, &files) {
        Ok(Some(compared)) => {
            println!("test tshark sees the same {compared} fields ... ok");
            conclusion.num_passed += 1;
        }
        Ok(None) => {
            skipped.add("tshark");
            conclusion.num_ignored += 1;
        }
        Err(why) => {
            println!("test tshark sees the same fields ... FAILED\n{why}");
            conclusion.num_failed += 1;
        }
    }
    skipped.summary(&conclusion)
}

/// Compares the fields of every recorded packet with tshark's: all recordings in one file, since tshark
/// takes a second to start.
fn fields(lab: &Lab, files: &[PathBuf]) -> Result<Option<usize>, String> {
    let joined = lab.logs().join("all.pcapng");
    let mut bytes = Vec::new();
    for file in files {
        bytes.extend(std::fs::read(file).unwrap_or_default());
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    std::fs::write(&joined, bytes).map_err(|error| error.to_string())?;
    wireshark::compare(&lab.roxie(), &joined)
}

/// Healthy runs run alone: where three programs share two CPUs, a response may arrive after the requester's
/// timeout.
fn attempt(scenario: &Scenario, lab: &Lab, quiet: &RwLock<()>) -> Result<(), String> {
    if scenario.is_healthy() {
        let _alone = quiet.write().unwrap_or_else(PoisonError::into_inner);
        return scenario.run(lab);
    }
    let _others = quiet.read().unwrap_or_else(PoisonError::into_inner);
    scenario.run(lab)
}

/// What this machine lacks for a scenario.
fn missing(scenario: &Scenario) -> Option<String> {
    if !is_root() {
        return Some("root (network namespaces)".to_owned());
    }
    let program = scenario.program().filter(|program| binaries::find(program).is_none());
    program.map(str::to_owned)
}
