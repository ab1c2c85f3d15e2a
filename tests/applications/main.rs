//! Applications as Debian packages them, on the device: MPI, storage, benchmarks, bindings.
//!
//! Every case checks data where the program can, and that the device's counters, which the programs print
//! with `ROXIE_STATS=1`, show the bytes: a program that chose another transport fails. Cases that cannot
//! run here are named at the end: `skipped: needs X`. `--full` (or `ROXIE_FULL=1`) adds more ranks and
//! places of Open MPI, and libfabric.
#![forbid(unsafe_code)]

mod case;
mod fio;
mod libfabric;
mod mpi;
mod pyverbs;
mod qperf;
mod ucx;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use roxie_tests::binaries;
use roxie_tests::harness::{Skipped, is_chosen, is_full, logs, without_binaries};
use roxie_tests::lab::{Lab, is_root};
use roxie_tests::place::{Topology, User};

use case::{Case, Need};

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    let full = is_full(&mut words);
    let mut args = Arguments::from_iter(words);
    // The programs poll, some on every CPU.
    args.test_threads = args.test_threads.or(Some(1));

    let (mut cases, mut skipped) = (cases(full), Skipped::default());
    if args.list {
        let listed = cases.into_iter().map(|case| Trial::test(case.name, || Ok(())));
        return libtest_mimic::run(&args, listed.collect()).exit_code();
    }
    cases.retain(|case| is_chosen(&args, &case.name));
    let lab = match Lab::new(logs("applications")) {
        Ok(lab) => Arc::new(lab),
        Err(error) => return without_binaries(&error.to_string(), cases.len()),
    };
    let trials = cases.into_iter().map(|case| trial(case, &lab, &mut skipped)).collect();
    let conclusion = libtest_mimic::run(&args, trials);
    skipped.summary(&conclusion)
}

fn cases(full: bool) -> Vec<Case> {
    let mut cases = mpi::cases(full);
    cases.extend(ucx::cases());
    cases.extend(fio::cases());
    cases.extend(qperf::cases());
    cases.extend(pyverbs::cases());
    if full {
        // One of 69 runs ended with signal 11 in a new thread of the device; the cause is not known.
        cases.extend(libfabric::cases());
    }
    cases
}

fn trial(case: Case, lab: &Arc<Lab>, skipped: &mut Skipped) -> Trial {
    let need = missing(&case);
    let lab = Arc::clone(lab);
    let ignored = need.is_some();
    if let Some(need) = need {
        skipped.add(need);
    }
    let (name, run) = (case.name.clone(), case.run);
    Trial::test(case.name, move || run(&lab, &name).map_err(Failed::from)).with_ignored_flag(ignored)
}

/// What this machine lacks for a case.
fn missing(case: &Case) -> Option<&'static str> {
    let lacks = |need: Need| match need {
        Need::Program(program) => binaries::find(program).is_none(),
        Need::File(file) => !Path::new(file).exists(),
    };
    if let Some((_, name)) = case.needs.iter().find(|(need, _)| lacks(*need)) {
        return Some(name);
    }
    let anywhere = case.place.topology == Topology::Loopback && case.place.user == User::Ordinary;
    (!is_root() && !anywhere).then_some("root (network namespaces)")
}
