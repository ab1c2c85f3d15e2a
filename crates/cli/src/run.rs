//! `roxie run`: replaces itself with a program that loads roxie's verbs libraries.

use std::process::ExitCode;

use crate::chaos::Chosen;
use crate::command_dir::{CommandDir, Purpose};
use crate::failure::Outcome;
use crate::program::{become_command, blind_to_us, found, is_in_another_run};
use crate::run_args::RunArgs;
use crate::{chaos, need, supervised};

/// Descriptors that making the environment of a command takes: the standard streams, two directories, a file.
/// With fewer a failure is a matter of the limit.
const DESCRIPTORS_MIN: u64 = 6;

/// Executes the command; returns only if that failed, or with `--capture` at its end.
pub(crate) fn run(args: &RunArgs) -> Outcome<ExitCode> {
    match args.recording.is_wanted() {
        true => captured(args),
        false => execute(args).map(|()| ExitCode::SUCCESS),
    }
}

/// Runs the command to its end, and writes its packets to a file.
fn captured(args: &RunArgs) -> Outcome<ExitCode> {
    let hint = "search first, then add --capture to the command that replays the failure";
    args.chaos.refuse_search("--capture has the packets of one run", hint)?;
    let ended = supervised::supervise(args, &args.variables()?, || Ok(()))?;
    Ok(ended.exit_code(false))
}

fn execute(args: &RunArgs) -> Outcome {
    let mut variables = match args.variables() {
        // A command that needs no device starts all the same.
        Err(failure) if sys::descriptor_limit() < DESCRIPTORS_MIN => {
            say!("roxie: {failure}: the command starts without the device (raise ulimit -n)");
            return become_command(&args.command, Vec::new());
        }
        variables => variables?,
    };
    let may_load_us = found(&args.command).is_some_and(|program| blind_to_us(&program).is_none());
    let is_silent = need::only_shows(&args.command) || is_in_another_run();
    let tells = !args.is_quiet() && may_load_us && !is_silent;
    let report = tells.then(|| CommandDir::new(Purpose::Run)).transpose()?;
    variables.extend(report.iter().map(|dir| ("ROXIE_RUN", dir.path().into())));
    // Drops `report`, which removes its directory, only if the command could not be started.
    args.provide_device_files().and_then(|()| match &args.chaos.chaos {
        Some(Chosen::Search(search)) => {
            chaos::search::search(search, &args.command, &variables, args.chaos.timeout)
        }
        Some(Chosen::Plan(_)) | None => become_command(&args.command, variables),
    })
}
