//! A command that this process starts, looks after and outlives, as `roxie check` and `roxie trace` do.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitCode, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ending::Ending;
use crate::failure::{During, Failure, Outcome};
use crate::program;
use crate::recording::{Prepared, Recorded, Running};
use crate::run_args::RunArgs;

/// Milliseconds between two calls of the caller's function.
const STEP_MS: u16 = 200;
/// The command has so long to end after SIGTERM, if its output can be read no more; then it gets SIGKILL.
const END_MAX: Duration = Duration::from_secs(2);
/// Interval of looking whether it has ended.
const END_STEP: Duration = Duration::from_millis(10);
/// The signals that end the command: this process outlives it to report. SIGCHLD tells that it has ended.
const SIGNALS: [Signal; 5] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGCHLD];

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    status: ExitStatus,
    recorded: Option<Outcome<Recorded>>,
}

impl Ended {
    pub(crate) fn is_success(&self) -> bool {
        self.status.success()
    }

    /// Whether a signal has ended the command, or a program that it has run last, as shells report it.
    pub(crate) fn is_by_signal(&self) -> bool {
        self.status.code().is_none_or(|code| (SIGNALED + 1..=SIGNALED + 64).contains(&code))
    }

    /// The signal that has ended the command.
    pub(crate) fn signal(&self) -> Option<Signal> {
        self.status.signal().and_then(|signal| Signal::try_from(signal).ok())
    }

    /// The exit code of the command, as shells report it. Keeps the capture of `--capture`, with `--on-error`
    /// only if the command failed or `is_wrong`.
    pub(crate) fn exit_code(self, is_wrong: bool) -> ExitCode {
        let is_wrong = is_wrong || !self.status.success();
        let finished = self.recorded.map_or(Ok(()), |recorded| recorded?.finish(is_wrong));
        if let Err(failure) = finished {
            // The exit code stays that of the command.
            failure.print();
        }
        exit_code(self.status)
    }
}

/// Runs the command with `variables` in its environment to its end, and calls `step` meanwhile. An error of
/// `step` ends the command.
pub(crate) fn supervise(
    args: &RunArgs,
    variables: &[(&'static str, OsString)],
    mut step: impl FnMut() -> Outcome,
) -> Outcome<Ended> {
    let recording = args.recording.prepare(args.is_quiet())?;
    let mut variables = variables.to_vec();
    variables.extend(recording.iter().flat_map(Prepared::variables));
    args.provide_device_files()?;
    let mut process = program::process(&args.command, &variables)?;
    sys::unblock_signals(&mut process, &SIGNALS.map(|signal| signal as i32));
    // Blocked before the command starts, so that none is lost.
    let signals = Ending::by(&SIGNALS)?;
    let child = process.spawn().map_err(|error| program::not_started(&args.command, &error))?;
    let mut child = Supervised(child);
    // Not earlier: a process with several threads cannot make device files, and the thread must inherit the
    // blocked signals.
    let recording = recording.map(Prepared::start).transpose()?;
    loop {
        wait(&signals, STEP_MS);
        pass_on(&signals, &child.0)?;
        step()?;
        if let Some(status) = child.0.try_wait().during("waiting for the command")? {
            return Ok(Ended { status, recorded: recording.map(Running::end) });
        }
    }
}

/// Added to the number of a signal in the exit codes of shells.
const SIGNALED: i32 = 128;

/// The same as [`code`], for `main`.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(code(status))
}

/// The exit code of the command, as shells report it.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The command: it does not outlive this process, which may fail to read or to print what it has found.
pub(crate) struct Supervised(pub(crate) Child);

impl Drop for Supervised {
    fn drop(&mut self) {
        end(&mut self.0, END_MAX);
    }
}

/// Ends a process that still runs, by SIGTERM, and by SIGKILL if it has not ended after `most`.
pub(crate) fn end(child: &mut Child, most: Duration) {
    let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
    if !runs(child) {
        return;
    }
    // A launcher then ends the processes that it has started. The child may end at this moment.
    kill(pid(child), Signal::SIGTERM).ok();
    let until = Instant::now() + most;
    while runs(child) {
        if Instant::now() >= until {
            child.kill().and_then(|()| child.wait()).ok();
            return;
        }
        thread::sleep(END_STEP);
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32)
}

/// Waits for a signal, and so many milliseconds at most.
pub(crate) fn wait(signals: &Ending, most_ms: u16) {
    let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    // An error is an early end of the wait.
    poll(&mut fds, PollTimeout::from(most_ms)).ok();
}

/// Sends the command what a process has sent here. The terminal has sent its signals to both.
fn pass_on(signals: &Ending, child: &Child) -> Outcome {
    while let Some(info) = signals.next().during("signals")? {
        let by_process = info.ssi_code <= 0;
        let signal = Signal::try_from(info.ssi_signo as i32).ok();
        if let Some(signal) = signal.filter(|signal| by_process && *signal != Signal::SIGCHLD) {
            match kill(pid(child), signal) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => return Err(Failure::new(format!("{signal} to the command: {error}"))),
            }
        }
    }
    Ok(())
}
