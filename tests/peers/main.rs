//! Another stack as the peer: the same unmodified programs with roxie at one end and the kernel's Soft-RoCE at the other.
//!
//! The kernel runs in an emulated machine (`rxe-vm/`), so nothing here is fast. `ROXIE_PEER_IMAGE` names an image other than
//! that of the host's own Debian release. What cannot run here is named at the end: `skipped: needs X`.
#![forbid(unsafe_code)]

mod cases;
mod rxe;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};

use cases::Case;
use rxe::Rxe;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // One emulated CPU serves them all.
    args.test_threads = args.test_threads.or(Some(1));
    let cases = cases::all();
    if args.list {
        return libtest_mimic::run(&args, trials(cases, None)).exit_code();
    }
    if let Some(need) = Rxe::missing() {
        println!("skipped: needs {need}: {} cases", cases.len());
        println!("\n0 passed, 0 failed, {} skipped", cases.len());
        return ExitCode::SUCCESS;
    }
    let rxe = match Rxe::boot(logs()) {
        Ok(rxe) => Arc::new(rxe),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", rxe.said());
    let conclusion = libtest_mimic::run(&args, trials(cases, Some(&rxe)));
    println!(
        "{} passed, {} failed, {} skipped",
        conclusion.num_passed, conclusion.num_failed, conclusion.num_ignored
    );
    conclusion.exit_code()
}

fn trials(cases: Vec<Case>, rxe: Option<&Arc<Rxe>>) -> Vec<Trial> {
    let trial = |case: Case| {
        let rxe = rxe.cloned();
        Trial::test(case.name(), move || rxe.map_or(Ok(()), |rxe| case.run(&rxe).map_err(Failed::from)))
    };
    cases.into_iter().map(trial).collect()
}

/// Where the programs' output is kept.
fn logs() -> PathBuf {
    let dir = std::env::var_os("ROXIE_LOG_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    dir.join(format!("roxie-peers-{}", nix::unistd::Uid::effective()))
}
