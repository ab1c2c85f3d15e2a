//! `roxie check`: runs a command, of which the processes record their mistakes, and reports these with names
//! and lines.
//!
//! The libraries of the command write findings with addresses into a private directory (crate
//! `roxie-ibverbs`, module `check`). This process reads them while the command runs, looks the addresses up
//! in the debug information, and prints them.

mod ends;
mod finding;
mod findings;
mod races;
mod report;
mod suppress;
mod symbols;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use sys::Dir;

use crate::chaos::{self, Search};
use crate::command_dir::{CommandDir, Purpose};
use crate::failure::{During, Failure, Outcome};
use crate::run_args::RunArgs;
use crate::terminal::Stream;
use crate::words::{Word, one_of};
use crate::{output, supervised, trace};

use findings::Findings;
use report::Report;
use suppress::Suppressions;

/// Exit code if something was found and the command itself succeeded or failed in whatever way.
const FOUND: u8 = 66;
/// Events that each thread keeps for --races, about five for a work request: 16 MiB.
const EVENTS: usize = 1 << 18;
/// A process of a command that a signal has ended has so long to end, too. Half: on a busy machine its last
/// findings are lost. Double: a process that goes on delays the prompt by two seconds.
const LATER_MAX: Duration = Duration::from_secs(1);
/// Interval of looking whether it has ended.
const LATER_STEP: Duration = Duration::from_millis(10);

/// Run a program and report its mistakes in the use of RDMA
///
/// Starts COMMAND as 'roxie run' does, and watches its calls of verbs and rdma_cm and what the device does
/// for them: use of destroyed objects, leaks, failed work requests, receives that are too small, send buffers
/// that change before their completion, queues that can never drain, peers without receives, hangs. Each
/// finding is printed once, with the call stacks of the places that matter. The command needs no
/// recompilation; lines need debug information (gcc -g).
///
/// The processes that the command starts are checked, too, as long as they end before it does. The output of
/// the command stays as it is; findings go to standard error.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/check.txt"))]
pub(crate) struct CheckArgs {
    /// Print findings as JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Write the findings to FILE instead of standard error; '-': standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Leave out the findings that FILE names
    #[arg(long, value_name = "FILE")]
    suppress: Vec<PathBuf>,
    /// Seconds without progress after which a waiting send or thread is reported; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    hang: u64,
    /// Report also what works but is risky: receives and READs that share memory, programs that poll it
    #[arg(long)]
    strict: bool,
    /// Report also operations of NICs that use the same memory in no order
    ///
    /// Records each work request of the processes, and compares them when the command has ended. Both ends
    /// must be processes of the command. READs without a fence and operations that ran at the same time are
    /// certain; the findings unordered-... do not know what sockets and shared memory order.
    #[arg(long)]
    races: bool,
    /// Protect the memory of work requests, and name the instruction that uses it too early
    ///
    /// An instruction that writes to a posted send is reported with its call stack, once for each place; the
    /// program goes on. By default the pages are protected that belong to one send entirely. 'receives' also
    /// protects those of receives and of results of READs and atomics, which may not even be read before
    /// their completion; 'targets' the memory that WRITEs and READs of peers use, while they are executed;
    /// 'shared' also protects the pages that sends and targets share with other data. A system call that uses
    /// a protected page fails with EFAULT.
    #[arg(long, value_name = "WHAT", value_parser = one_of(&PAGES), num_args = 0..=1, require_equals = true)]
    #[arg(value_delimiter = ',', default_missing_value = "sends")]
    pages: Vec<&'static str>,
    /// Check the command with each of the --chaos seeds 1 to N, up to the first finding or failure
    ///
    /// Then looks for the fewest faults that lead to one, shows the last lines of that run, and prints the
    /// command that replays it, as 'roxie run --chaos seeds=1..N' does. The command is checked without faults
    /// first. The exit status is 67 if a seed leads to a finding or failure, and 0 if none does.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with_all = ["chaos", "output", "capture"])]
    seeds: Option<u64>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// What `--pages` protects, as the libraries name it.
const PAGES: [Word<&str>; 4] = [
    ("sends", "pages", "Whole pages of sends"),
    ("receives", "pages-receives", "Also of receives and of results of READs and atomics"),
    ("targets", "pages-targets", "Also of WRITEs and READs of peers, while the device executes them"),
    ("shared", "pages-shared", "Also pages that sends and targets share with other data"),
];

impl CheckArgs {
    /// The words of ROXIE_CHECK_OPTIONS.
    fn options(&self) -> Outcome<String> {
        if !self.pages.is_empty() {
            let is_off = std::env::var_os("ROXIE_GUARD").is_some_and(|value| value == "off");
            if is_off || !sys::guarded::AVAILABLE {
                let why = if is_off { "ROXIE_GUARD=off forbids that" } else { "not on this machine" };
                return Err(Failure::new(format!("--pages needs a handler of SIGSEGV: {why}")).code(2));
            }
        }
        let mut words = vec![format!("hang={}", self.hang)];
        words.extend(self.strict.then(|| "strict".to_owned()));
        words.extend(self.races.then(|| "races".to_owned()));
        words.extend(self.pages.iter().map(|what| (*what).to_owned()));
        Ok(words.join(","))
    }
}

/// Runs the command to its end.
pub(crate) fn run(args: &CheckArgs) -> Outcome<ExitCode> {
    if let Some(seeds) = args.seeds {
        return search(args, seeds).map(|()| ExitCode::SUCCESS);
    }
    let hint = "use --chaos seed=N, or --seeds N to search";
    args.run.chaos.refuse_search("roxie check runs the command once", hint)?;
    let options = args.options()?;
    let suppressions = Suppressions::read(&args.suppress)?;
    let output: Box<dyn io::Write> = match &args.output {
        Some(path) if path.as_os_str() == "-" => Box::new(Stream::Stdout),
        Some(path) => Box::new(output::create(path)?),
        None => Box::new(Stream::Stderr),
    };
    let mut variables = args.run.variables()?;
    let dir = CommandDir::new(Purpose::Check)?;
    variables.push(("ROXIE_CHECK", dir.path().into()));
    variables.push(("ROXIE_CHECK_OPTIONS", options.into()));
    let events = args.races.then(|| CommandDir::new(Purpose::Trace)).transpose()?;
    if let Some(events) = &events {
        variables.push((roxie::trace::VARIABLE, events.path().into()));
        variables.push((roxie::trace::EVENTS_VARIABLE, EVENTS.to_string().into()));
    }
    let path = args.output.clone().filter(|path| path.as_os_str() != "-");
    let report = Report::new(output, path, args.json, suppressions);
    let events = events.as_ref().map(CommandDir::dir);
    supervise(args, &variables, (Findings::new(dir.reopen()?), events), report)
}

/// Searches the seeds with `roxie check` as the command.
fn search(args: &CheckArgs, seeds: u64) -> Outcome {
    let own = std::env::current_exe().during("the path of this program")?;
    let words: Vec<OsString> = std::env::args_os().collect();
    let (options, program) = words.split_at(words.len().saturating_sub(args.run.command.len()));
    let mut command = vec![own.into_os_string()];
    command.extend(chaos::search::seeded(options.get(1..).unwrap_or_default(), None));
    command.extend_from_slice(program);
    chaos::search::search(&Search::first(seeds), &command, &[], args.run.chaos.timeout)
}

fn supervise(
    args: &CheckArgs,
    variables: &[(&'static str, OsString)],
    (mut findings, events): (Findings, Option<&Dir>),
    mut report: Report,
) -> Outcome<ExitCode> {
    let read = || findings.read(|finding| report.finding(finding));
    let ended = supervised::supervise(&args.run, variables, read)?;
    // Processes that got the same signal still write what they waited for.
    let until = Instant::now() + LATER_MAX;
    while ended.is_by_signal() && findings.has_running()? && Instant::now() < until {
        thread::sleep(LATER_STEP);
    }
    findings.read_rest(|finding| report.finding(finding))?;
    if findings.strange() > 0 {
        let strange = findings.strange();
        say!("roxie check: {strange} lines or files of findings could not be read and are left out");
    }
    if let Some(events) = events {
        let recordings = trace::read(events, EVENTS, findings.numbers())?;
        let (races, compared) = races::races(&recordings, &findings);
        races.into_iter().try_for_each(|race| report.finding(race))?;
        if !args.run.quiet {
            say!("roxie check --races: {compared}");
        }
    }
    let found = report.end(findings.processes(), !ended.is_success())?;
    if findings.processes() == 0 {
        say!("roxie check: no process of the command opened the device: nothing was checked");
    }
    if let Some(signal) = ended.signal() {
        say!("roxie check: {signal} has ended the command");
    }
    let code = ended.exit_code(found > 0);
    Ok(if found > 0 { ExitCode::from(FOUND) } else { code })
}

/// Fuzz target: lines that two processes of a checked command wrote are reported or left out.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn check_findings(bytes: &[u8]) {
    let suppressions = Suppressions::read(&[]).expect("there are none");
    let mut report = Report::new(Box::new(io::sink()), None, false, suppressions);
    let mut findings = Findings::in_memory();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = String::from_utf8_lossy(line);
        findings.line(1 + index as u32 % 2, &line, &mut |finding| report.finding(finding)).expect("a sink");
    }
    findings.rest(|finding| report.finding(finding)).expect("a sink takes all");
    report.end(findings.processes(), true).expect("a sink takes all");
}
