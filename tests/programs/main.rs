//! Unmodified Debian programs on the device: `roxie run -- PROGRAM`, two processes at every kind of place.
//!
//! `--full` (or `ROXIE_FULL=1`) runs every variant at every place; without it the core variants run
//! everywhere and the others at two places or one. A case runs once. Cases that cannot run here are named
//! at the end: `skipped: needs X`. `--minutes=N` sets the duration of the churn in `churn.rs`, instead of
//! ten seconds.
#![forbid(unsafe_code)]

mod addresses;
mod bundled;
mod capture;
mod case;
mod churn;
mod cli;
mod containers;
mod cycles;
mod devices;
mod engines;
mod holdings;
mod hooks;
mod kill;
mod lab;
mod mckey;
mod one_file;
mod perftest;
mod pingpong;
mod raw;
mod reasons;
mod rping;
mod rsocket;
mod strangers;
mod top;
mod ucmatose;
mod ucx;
mod udaddy;
mod xsk;

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use roxie_tests::binaries;
use roxie_tests::harness::{Skipped, is_chosen, is_full, logs, without_binaries};
use roxie_tests::lab::{Lab, is_root};
use roxie_tests::place::{Topology, User};

use case::{Case, Scale};

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    let scale = if is_full(&mut words) { Scale::Full } else { Scale::Quick };
    let minutes = words.iter().find_map(|word| word.strip_prefix("--minutes=")?.parse().ok());
    words.retain(|word| !word.starts_with("--minutes="));
    let mut args = Arguments::from_iter(words);
    // Both processes of a pair poll: a second pair would measure the scheduler.
    args.test_threads = args.test_threads.or(Some(1));

    let (mut cases, mut skipped) = (cases(scale, minutes), Skipped::default());
    if args.list {
        return libtest_mimic::run(
            &args,
            cases.into_iter().map(|c| Trial::test(c.name, || Ok(()))).collect(),
        )
        .exit_code();
    }
    cases.retain(|case| is_chosen(&args, &case.name));
    let lab = match Lab::new(logs("programs")) {
        Ok(lab) => Arc::new(lab),
        Err(error) => return without_binaries(&error.to_string(), cases.len()),
    };
    let trials = cases.into_iter().map(|case| trial(case, &lab, &mut skipped)).collect();
    let conclusion = libtest_mimic::run(&args, trials);
    skipped.summary(&conclusion)
}

fn cases(scale: Scale, minutes: Option<f64>) -> Vec<Case> {
    let mut cases = devices::cases();
    cases.extend(cli::cases());
    cases.extend(bundled::cases());
    cases.extend(reasons::cases());
    cases.extend(containers::cases());
    cases.extend(one_file::cases());
    cases.extend(strangers::cases());
    cases.extend(lab::cases());
    cases.extend(pingpong::cases(scale));
    cases.extend(rping::cases(scale));
    cases.extend(ucmatose::cases(scale));
    cases.extend(ucx::cases(scale));
    cases.extend(udaddy::cases(scale));
    cases.extend(mckey::cases(scale));
    cases.extend(rsocket::cases(scale));
    cases.extend(perftest::cases(scale));
    cases.extend(raw::cases());
    cases.extend(cycles::cases(scale));
    cases.extend(churn::cases(minutes));
    cases.extend(capture::cases());
    cases.extend(top::cases());
    cases.extend(kill::cases(scale));
    cases.extend(addresses::cases());
    cases.extend(engines::cases());
    cases.extend(xsk::cases());
    cases.extend(hooks::cases(scale));
    cases
}

fn trial(case: Case, lab: &Arc<Lab>, skipped: &mut Skipped) -> Trial {
    let need = missing(&case);
    let lab = Arc::clone(lab);
    let ignored = need.is_some();
    if let Some(need) = need {
        skipped.add(&need);
    }
    let run = case.run;
    Trial::test(case.name, move || run(&lab).map_err(Failed::from)).with_ignored_flag(ignored)
}

/// What this machine lacks for a case.
fn missing(case: &Case) -> Option<String> {
    if let Some(program) = case.programs.iter().find(|program| binaries::find(program).is_none()) {
        return Some((*program).to_owned());
    }
    let anywhere = case.place.topology == Topology::Loopback && case.place.user == User::Ordinary;
    (!is_root() && !anywhere).then(|| "root (network namespaces)".to_owned())
}
