//! roxie in and beside emulated machines: against the kernel's Soft-RoCE, with the same unmodified programs at both ends, and
//! on drivers that the host does not have.
//!
//! The kernels run in QEMU (`rxe-vm/`), so nothing here is fast. `ROXIE_PEER_IMAGE` names an image other than that of the
//! host's own Debian release. `--full` (or `ROXIE_FULL=1`) runs every program over every wire. What cannot run here is named
//! at the end: `skipped: needs X`.
#![forbid(unsafe_code)]

mod cases;
mod dispatcher;
mod end;
mod machine;
mod recorded;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Failed, Trial};

use end::Kind;
use machine::Machine;

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().collect();
    let before = words.len();
    words.retain(|word| word != "--full");
    let full = words.len() < before || std::env::var_os("ROXIE_FULL").is_some_and(|v| v == "1");
    let mut args = Arguments::from_iter(words);
    // One emulated CPU serves them all.
    args.test_threads = args.test_threads.or(Some(1));
    let needs = |kind| if args.list { None } else { Machine::missing(kind) };
    let needs = [Kind::Rxe, Kind::Wire].map(|kind| (kind, needs(kind)));
    let running: Running = Arc::default();
    let (mut trials, mut skipped) = (Vec::new(), BTreeMap::<&str, usize>::new());
    let mut add = |name: String, kind, run: Run| {
        let need = needs.iter().find(|(has, _)| *has == kind).and_then(|(_, need)| *need);
        if let Some(need) = need {
            *skipped.entry(need).or_default() += 1;
        }
        trials.push(trial(name, kind, run, &running).with_ignored_flag(need.is_some()));
    };
    for case in cases::all(full) {
        add(case.name(), case.kind(), Box::new(move |machine| case.run(machine)));
    }
    for (name, run) in recorded::CASES {
        add(name.to_owned(), Kind::Rxe, Box::new(move |machine| run(machine, name)));
    }
    for (name, run) in dispatcher::CASES {
        add(name.to_owned(), Kind::Wire, Box::new(move |machine| run(machine, name)));
    }
    let conclusion = libtest_mimic::run(&args, trials);
    if !args.list {
        for (need, count) in &skipped {
            println!("skipped: needs {need}: {count} cases");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            conclusion.num_passed, conclusion.num_failed, conclusion.num_ignored
        );
    }
    // A machine ends with its last user.
    running.lock().unwrap_or_else(PoisonError::into_inner).take();
    conclusion.exit_code()
}

/// The machine that runs: one at a time, booted for the first case that needs it.
type Running = Arc<Mutex<Option<Machine>>>;

/// What a case does.
type Run = Box<dyn FnOnce(&Machine) -> Result<(), String> + Send>;

fn trial(name: String, kind: Kind, run: Run, running: &Running) -> Trial {
    let running = Arc::clone(running);
    Trial::test(name, move || {
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = match running.take().filter(|machine| machine.kind() == kind) {
            Some(machine) => machine,
            None => Machine::boot(kind, logs())?,
        };
        run(running.insert(machine)).map_err(Failed::from)
    })
}

/// Where the programs' output is kept.
fn logs() -> PathBuf {
    let dir = std::env::var_os("ROXIE_LOG_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    dir.join(format!("roxie-peers-{}", nix::unistd::Uid::effective()))
}
