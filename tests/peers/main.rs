//! roxie in and beside emulated machines: against the kernel's Soft-RoCE with the same unmodified programs
//! at both ends, and on drivers that the host does not have.
//!
//! The kernels run in QEMU (`rxe-vm/`), so everything here is slow. `ROXIE_PEER_IMAGE` names an image other
//! than that of the host's Debian release. `--full` runs every program over every wire.
//! Cases that cannot run here are named at the end: `skipped: needs X`.
#![forbid(unsafe_code)]

mod cases;
mod consumers;
mod dispatcher;
mod end;
#[path = "../../crates/cli/src/interop/flows.rs"]
#[allow(dead_code, unreachable_pub, reason = "`roxie interop` uses the rest")]
mod flows;
mod interfaces;
mod machine;
mod peer_capture;
mod pvrdma;
mod recorded;
mod several;
mod vanish;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Failed, Trial};
use roxie_tests::harness::{Skipped, is_full, logs};

use end::Kind;
use machine::Machine;

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    let full = is_full(&mut words);
    let mut args = Arguments::from_iter(words);
    // One emulated CPU runs all programs.
    args.test_threads = args.test_threads.or(Some(1));
    let needs = |kind| if args.list { None } else { Machine::missing(kind) };
    let needs = [Kind::Rxe, Kind::Pvrdma, Kind::Wire].map(|kind| (kind, needs(kind)));
    let running: Running = Arc::default();
    let (mut trials, mut skipped) = (Vec::new(), Skipped::default());
    let mut add = |name: String, kind, lacks, run: Run| {
        let need = needs.iter().find(|(has, _)| *has == kind).and_then(|(_, need)| *need).or(lacks);
        if let Some(need) = need {
            skipped.add(need);
        }
        trials.push(trial(name, kind, run, &running).with_ignored_flag(need.is_some()));
    };
    for case in cases::all(full) {
        add(case.name(), case.kind(), None, Box::new(move |machine| case.run(machine)));
    }
    let on_rxe = peer_capture::CASES.into_iter().chain(recorded::CASES).chain(vanish::CASES);
    for (name, run) in on_rxe.chain(several::CASES).chain(interfaces::CASES) {
        add(name.to_owned(), Kind::Rxe, None, Box::new(move |machine| run(machine, name)));
    }
    let lacks = if args.list { None } else { consumers::missing() };
    for (name, run) in consumers::CASES {
        add(name.to_owned(), Kind::Rxe, lacks, Box::new(move |machine| run(machine, name)));
    }
    for (name, run) in pvrdma::CASES {
        add(name.to_owned(), Kind::Pvrdma, None, Box::new(move |machine| run(machine, name)));
    }
    for (name, run) in dispatcher::CASES {
        add(name.to_owned(), Kind::Wire, None, Box::new(move |machine| run(machine, name)));
    }
    let conclusion = libtest_mimic::run(&args, trials);
    let code = if args.list { conclusion.exit_code() } else { skipped.summary(&conclusion) };
    // A machine is stopped after its last case.
    running.lock().unwrap_or_else(PoisonError::into_inner).take();
    code
}

/// The running machine: one at a time, booted for the first case that needs it.
type Running = Arc<Mutex<Option<Machine>>>;

/// The function of a case.
type Run = Box<dyn FnOnce(&Machine) -> Result<(), String> + Send>;

fn trial(name: String, kind: Kind, run: Run, running: &Running) -> Trial {
    let running = Arc::clone(running);
    Trial::test(name, move || {
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = match running.take().filter(|machine| machine.kind() == kind) {
            Some(machine) => machine,
            None => Machine::boot(kind, logs("peers"))?,
        };
        run(running.insert(machine)).map_err(Failed::from)
    })
}
