//! Real runs with a planted fault, recorded on an interface: `roxie capture analyse` must name the fault,
//! and must find none in healthy runs. tshark must show the same fields in every stored recording.
//!
//! Each scenario has two hosts. The fault is in a hook of one side, in a program on its interface, or in
//! the programs: unmodified ones, or [`actor`]. A recording of each is in `captures/`, and is analysed in
//! every check. Some scenarios also run live, all of them with `--full`: several times,
//! and a stated number of these runs must show the planted fault. `ROXIE_BLESS=1` runs the chosen scenarios
//! live once, and stores each recording that gives the expected verdict. Scenarios that cannot run here are
//! named at the end: `skipped: needs X`.
#![forbid(unsafe_code)]

mod actor;
mod healthy;
mod planted;
mod scenario;
mod wire_faults;

use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;

use libtest_mimic::{Arguments, Failed, Trial};
use roxie_tests::binaries;
use roxie_tests::harness::{Skipped, is_chosen, is_full, logs, without_binaries};
use roxie_tests::lab::{Lab, is_root};
use roxie_tests::wireshark;

use scenario::Scenario;

/// Scenarios at a time; most of them wait for a timeout.
const THREADS: usize = 3;

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == "--actor") {
        return match actor::run(&words[2..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let full = is_full(&mut words);
    let blesses = std::env::var_os("ROXIE_BLESS").is_some();
    let mut args = Arguments::from_iter(words);
    args.test_threads = args.test_threads.or(Some(THREADS));
    let scenarios: Vec<_> =
        [planted::scenarios(), healthy::scenarios()].into_iter().flatten().map(Arc::new).collect();
    let lab = if args.list { None } else { Some(Lab::new(logs("scenarios"))) };
    let lab = match lab.transpose() {
        Ok(lab) => lab.map(Arc::new),
        Err(error) => return without_binaries(&error.to_string(), scenarios.len()),
    };
    let (quiet, mut skipped) = (Arc::new(RwLock::new(())), Skipped::default());
    let (mut trials, mut compared) = (Vec::new(), Vec::new());
    for scenario in scenarios {
        let name = format!("{}, stored", scenario.name);
        if !blesses && is_chosen(&args, &name) {
            compared.extend(scenario.is_compared().then(|| Arc::clone(&scenario)));
            let (lab, scenario) = (lab.clone(), Arc::clone(&scenario));
            trials.push(Trial::test(name, move || {
                lab.map_or(Ok(()), |lab| scenario.replay(&lab)).map_err(Failed::from)
            }));
        }
        let name = format!("{}, live", scenario.name);
        if (full || blesses || scenario.live.always) && is_chosen(&args, &name) {
            let need = if args.list { None } else { missing(&scenario, blesses) };
            if let Some(need) = &need {
                skipped.add(need);
            }
            let (lab, quiet) = (lab.clone(), Arc::clone(&quiet));
            let run = move || match &lab {
                Some(lab) => live(&scenario, lab, &quiet, blesses).map_err(Failed::from),
                None => Ok(()),
            };
            trials.push(Trial::test(name, run).with_ignored_flag(need.is_some()));
        }
    }
    let mut conclusion = libtest_mimic::run(&args, trials);
    if args.list {
        return conclusion.exit_code();
    }
    match lab.filter(|_| !compared.is_empty()).map(|lab| fields(&lab, &compared)) {
        None => {}
        Some(Ok(Some(compared))) => {
            println!("test tshark sees the same {compared} fields ... ok");
            conclusion.num_passed += 1;
        }
        Some(Ok(None)) => {
            skipped.add("tshark");
            conclusion.num_ignored += 1;
        }
        Some(Err(why)) => {
            println!("test tshark sees the same fields ... FAILED\n{why}");
            conclusion.num_failed += 1;
        }
    }
    skipped.summary(&conclusion)
}

/// Compares the fields of every packet of the stored captures with tshark's: all captures in one file, since
/// tshark takes a second to start.
fn fields(lab: &Lab, scenarios: &[Arc<Scenario>]) -> Result<Option<usize>, String> {
    let joined = lab.logs().join("all.pcapng.gz");
    let mut bytes = Vec::new();
    for scenario in scenarios {
        bytes.extend(std::fs::read(scenario.stored()).unwrap_or_default());
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let made = std::fs::create_dir_all(lab.logs()).and_then(|()| std::fs::write(&joined, bytes));
    made.map_err(|error| error.to_string())?;
    wireshark::compare(&lab.roxie(), &joined)
}

/// Healthy runs run alone: where three programs share two CPUs, a response may arrive after the requester's
/// timeout.
fn live(scenario: &Scenario, lab: &Lab, quiet: &RwLock<()>, blesses: bool) -> Result<(), String> {
    let run = || if blesses { scenario.bless(&lab.apart()) } else { scenario.run(lab) };
    if scenario.is_healthy() {
        let _alone = quiet.write().unwrap_or_else(PoisonError::into_inner);
        return run();
    }
    let _others = quiet.read().unwrap_or_else(PoisonError::into_inner);
    run()
}

/// What this machine lacks for a scenario. A run that is stored needs no CPUs: a wrong verdict is not stored.
fn missing(scenario: &Scenario, blesses: bool) -> Option<String> {
    if !is_root() {
        return Some("root (network namespaces)".to_owned());
    }
    if !blesses && thread::available_parallelism().map_or(1, usize::from) < scenario.cpus {
        return Some(format!("{} CPUs", scenario.cpus));
    }
    let program = scenario.program().filter(|program| binaries::find(program).is_none());
    program.map(str::to_owned)
}
