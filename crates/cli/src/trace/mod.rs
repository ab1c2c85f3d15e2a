//! `roxie trace`: runs a command, of which the processes record what happens to their work requests, and
//! writes it as a trace for Perfetto, with a summary.
//!
//! The threads of the command write events to files in a private directory ([`sys::trace`]); this process
//! reads them when the command has ended, however it did.

mod chrome;
mod cpus;
pub(crate) mod ends;
pub(crate) mod model;
pub(crate) mod rebuild;
mod summary;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use roxie::printable;
use roxie_capture::paint;
use sys::Dir;
use sys::trace::Recording;

use crate::command_dir::{CommandDir, Purpose};
use crate::failure::{During, Outcome};
use crate::processes::Processes;
use crate::run_args::RunArgs;
use crate::terminal::Stream;
use crate::{output, supervised};

use cpus::Cpus;
use model::Trace;
use summary::Summary;

/// Run a program and record the life of each work request, for Perfetto
///
/// Starts COMMAND as 'roxie run' does. Its processes record when each send is posted, leaves, is executed by
/// the peer, is acknowledged, completes and is polled; what the engines do meanwhile; retransmissions, NAKs
/// and timeouts; full queues; and the messages of connection management. At the end of the command a file for
/// https://ui.perfetto.dev or chrome://tracing is written, and a summary on standard error says where the
/// time of the median and of the p99 message went.
///
/// All processes of the command are in one file, so a command that starts both ends shows both. Ends that
/// were traced by separate commands on the same host are joined by 'roxie trace merge'.
#[derive(Debug, ClapArgs)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_long_help = include_str!("../help/trace.txt")
)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    merge: Option<Tool>,
    /// Write the trace to FILE
    #[arg(long, short, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Events that each thread keeps, the newest ones; rounded up to a power of two, 64 bytes each
    #[arg(long, value_name = "N", default_value_t = roxie::trace::EVENTS as u32,
          value_parser = clap::value_parser!(u32).range(1..=sys::trace::CAPACITY_MAX as i64))]
    events: u32,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Join traces of the same host, and print their summary
    Merge(MergeArgs),
}

#[derive(Debug, ClapArgs)]
struct MergeArgs {
    /// Write the joined trace to FILE
    #[arg(long, short, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Print the summary as one JSON object
    #[arg(long)]
    json: bool,
    /// Files that 'roxie trace' has written
    #[arg(required = true, value_name = "TRACE")]
    files: Vec<PathBuf>,
}

/// Traces a command, or merges traces.
pub(crate) fn run(args: &TraceArgs) -> Outcome<ExitCode> {
    match &args.merge {
        Some(Tool::Merge(merge)) => merge.run(),
        None => trace(args, &args.run),
    }
}

fn trace(args: &TraceArgs, run_args: &RunArgs) -> Outcome<ExitCode> {
    run_args.chaos.refuse_search("roxie trace runs the command once", "use --chaos seed=N")?;
    // Before the command runs: its trace would be in vain without the file.
    let output = output::create(&args.output)?;
    let mut variables = run_args.variables()?;
    let dir = CommandDir::new(Purpose::Trace)?;
    variables.push((roxie::trace::VARIABLE, dir.path().into()));
    variables.push((roxie::trace::EVENTS_VARIABLE, args.events.to_string().into()));
    let mut cpus = Cpus::default();
    let ended = supervised::supervise(run_args, &variables, || {
        cpus.sample(dir.dir());
        Ok(())
    });
    let recordings = read(dir.dir(), args.events as usize, &mut Processes::default());
    drop(dir);
    let (ended, recordings) = (ended?, recordings?);
    if recordings.is_empty() {
        say!("roxie trace: no process of the command opened the device: nothing was traced");
    }
    let mut trace = rebuild::rebuild(&recordings);
    ends::join(&mut trace);
    save(&trace, output, &args.output)?;
    let replaced = recordings.iter().map(|recording| recording.replaced).sum();
    let lost = recordings.iter().map(|recording| recording.lost).sum();
    let command = |pid: u32| {
        let process = trace.processes.iter().find(|process| process.pid == pid);
        process.map(|process| process.command.clone()).unwrap_or_default()
    };
    let summary = Summary::new(&trace, Some((replaced, lost)), cpus.waited(command));
    print(&summary, args.json, &args.output, Stream::Stderr)?;
    Ok(ended.exit_code(false))
}

impl MergeArgs {
    fn run(&self) -> Outcome<ExitCode> {
        let mut trace = Trace::default();
        for path in &self.files {
            let name = path.display().to_string();
            trace.add(chrome::read(&fs::read(path).reading(path)?, &name)?);
        }
        ends::join(&mut trace);
        save(&trace, output::create(&self.output)?, &self.output)?;
        print(&Summary::new(&trace, None, Vec::new()), self.json, &self.output, Stream::Stdout)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What the threads have recorded. The process of each is one of `processes`.
/// Each thread was to keep `events` of them.
pub(crate) fn read(dir: &Dir, events: usize, processes: &mut Processes) -> Outcome<Vec<Recording>> {
    let mut recordings = Vec::new();
    for name in dir.names().reading(dir.path())? {
        match dir.open(&name).and_then(|file| Recording::read(file, events)) {
            Ok(recording) => recordings.extend(recording),
            Err(error) => {
                say!("roxie trace: {}: {error}; it is left out", dir.path().join(&name).display());
            }
        }
    }
    for recording in &mut recordings {
        recording.process = processes.id(recording.process, recording.token);
    }
    recordings.sort_by_key(|recording| (recording.process, recording.thread));
    Ok(recordings)
}

fn save(trace: &Trace, file: File, path: &Path) -> Outcome {
    chrome::write(trace, BufWriter::new(file)).writing(path)
}

fn print(summary: &Summary, json: bool, path: &Path, mut to: Stream) -> Outcome {
    let text = match json {
        true => paint::json(&serde_json::to_string(summary).during("the summary")?).into_owned() + "\n",
        false => format!("roxie trace: {}: {summary}", printable(&path.to_string_lossy())),
    };
    to.write_all(text.as_bytes()).during("the summary")
}

/// Fuzz target: two files of a traced command become a trace and a summary.
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub fn check_recording(bytes: &[u8]) {
    const EVENTS: usize = 64;
    let (one, other) = bytes.split_at(bytes.len() / 2);
    let read = |file: &[u8]| Recording::parse(file, file.len() as u64, EVENTS).ok().flatten();
    let recordings: Vec<Recording> = [one, other, bytes].into_iter().filter_map(read).collect();
    assert!(recordings.iter().all(|recording| recording.events.len() <= EVENTS));
    let mut trace = rebuild::rebuild(&recordings);
    ends::join(&mut trace);
    chrome::write(&trace, std::io::sink()).expect("a sink takes all");
    let summary = Summary::new(&trace, Some((0, 0)), Vec::new());
    assert!(serde_json::to_string(&summary).is_ok() && !summary.to_string().is_empty());
}
