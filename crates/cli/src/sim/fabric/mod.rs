//! `roxie sim fabric`: a data centre in virtual time, several runs side by side.

pub(crate) mod file;
mod page;
mod table;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ::sim::{Results, RunProgress, run_datacentre};
use clap::Args as ClapArgs;
use serde_json::{Value, json};

use super::values::{seed, threads};
use super::{lock, run_threads};
use crate::ending::STOPPED;
use crate::failure::{During, Failure, Outcome};
use crate::output;
use crate::terminal::{self, Terminal};
use file::{Variant, Vary};

/// Exit code if the description is wrong or the output cannot be written.
const USAGE: u8 = 2;
/// Most runs of one command: each keeps its results.
const RUNS_MAX: usize = 1000;

/// Simulate a data centre: hosts with this transport on switches with ECMP, ECN and PFC
///
/// Each host runs the transport of roxie with its pacer and congestion control. Links, queues, marks, pauses
/// and losses are simulated, in virtual time. FILE describes the network and the work in TOML; docs/fabric.md
/// has its keys. A PRESET is a description that roxie has: incast, dumbbell, leaf-spine, all-reduce, and the
/// settings of papers, dcqcn-fairness, dcqcn-incast, irn, hpcc-incast, hpcc-web-search.
///
/// The result has completion times and slow-downs by flow size, goodput, fairness, queues, pauses,
/// retransmissions and CNPs. A slow-down is the completion time divided by that in an empty network.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../../help/sim-fabric.txt"))]
pub(crate) struct FabricArgs {
    /// The description, a file or a preset
    #[arg(value_name = "FILE|PRESET")]
    description: PathBuf,
    /// Run with each of these values of a key, side by side, such as ecn=on,off; several keys: all
    /// combinations
    #[arg(long, value_name = "KEY=VALUE,...")]
    vary: Vec<Vary>,
    /// Seed of the first run [default: 1]
    #[arg(long, value_name = "N", value_parser = seed)]
    seed: Option<u64>,
    /// Runs of each variant, with the seeds after the first; the table has medians [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Number of runs at the same time [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = threads)]
    threads: Option<NonZeroUsize>,
    /// Write a page with plots to FILE, or - for standard output
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// The runs of one variant.
struct Column {
    name: String,
    runs: Vec<Results>,
}

/// Simulates, and prints what there is.
pub(super) fn run(args: &FabricArgs) -> Outcome {
    let seeds = args.seeds.unwrap_or(1) as usize;
    let count = args.vary.iter().fold(1, |count: usize, key| count.saturating_mul(key.count()));
    // Before the variants are made: each has a description of its own.
    if count.saturating_mul(seeds) > RUNS_MAX {
        let what = format!("{count} variants with {seeds} seeds are more than {RUNS_MAX} runs");
        return Err(Failure::new(what).hint("vary fewer values, or use fewer seeds").code(USAGE));
    }
    let variants = file::variants(&args.description, &args.vary)?;
    // Created first: an error must not come after a long run.
    let page = args.html.as_deref().map(output::create_or_stdout).transpose();
    let page = page.map_err(|failure| failure.hint("give --html a file that can be created").code(USAGE))?;
    let first = args.seed.unwrap_or(1);
    let start = Instant::now();
    let jobs = Jobs::new(&variants, first, seeds);
    let is_interrupted = run_threads(args.threads, |_| jobs.work(), &jobs.is_over, || jobs.progress())?;
    let columns = jobs.columns();
    let seconds = start.elapsed().as_secs_f64();
    let name = args.description.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into());
    if let Some(mut page) = page {
        let text = page::html(&name, &variants[0].spec, &columns);
        let what = || format!("writing {}", args.html.as_deref().unwrap_or(&args.description).display());
        page.write_all(text.as_bytes()).and_then(|()| page.flush()).during(&what())?;
    }
    let is_page_on_stdout = args.html.as_deref().is_some_and(output::is_standard);
    if args.json {
        terminal::json(&report(&name, &columns, is_interrupted, seconds)?);
    } else if !is_page_on_stdout {
        table::show(Terminal::stdout(), &name, &columns, seconds);
    }
    if is_interrupted {
        return Err(Failure::new("interrupted; the results are those until then").code(STOPPED));
    }
    Ok(())
}

/// The results as a JSON object.
fn report(name: &str, columns: &[Column], is_interrupted: bool, seconds: f64) -> Outcome<String> {
    let variant = |column: &Column| {
        let runs: Result<Vec<_>, _> = column.runs.iter().map(serde_json::to_value).collect();
        runs.map(|runs| json!({ "variant": column.name, "runs": runs }))
    };
    let variants: Vec<Value> = columns.iter().map(variant).collect::<Result<_, _>>().during("JSON")?;
    let report = json!({
        "fabric": name, "interrupted": is_interrupted, "variants": variants, "seconds": seconds,
    });
    Ok(format!("{report:#}"))
}

/// One run.
struct Job<'a> {
    variant: &'a Variant,
    seed: u64,
    progress: Mutex<Option<RunProgress>>,
    results: Mutex<Option<Results>>,
}

/// All runs.
struct Jobs<'a> {
    jobs: Vec<Job<'a>>,
    seeds: usize,
    taken: AtomicUsize,
    is_over: AtomicBool,
}

impl<'a> Jobs<'a> {
    fn new(variants: &'a [Variant], first: u64, seeds: usize) -> Self {
        let job = |variant: &'a Variant, number: usize| Job {
            variant,
            seed: first.wrapping_add(number as u64),
            progress: Mutex::new(None),
            results: Mutex::new(None),
        };
        let jobs = variants.iter().flat_map(|variant| (0..seeds).map(move |number| job(variant, number)));
        Self { jobs: jobs.collect(), seeds, taken: AtomicUsize::new(0), is_over: AtomicBool::new(false) }
    }

    fn work(&self) {
        while !self.is_over.load(Ordering::Relaxed)
            && let Some(job) = self.jobs.get(self.taken.fetch_add(1, Ordering::Relaxed))
        {
            let mut watch = |progress| {
                *lock(&job.progress) = Some(progress);
                !self.is_over.load(Ordering::Relaxed)
            };
            // The description was checked before.
            *lock(&job.results) = run_datacentre(&job.variant.spec, job.seed, &mut watch).ok();
        }
    }

    fn progress(&self) -> String {
        let done = self.jobs.iter().filter(|job| lock(&job.results).is_some()).count();
        let running = self.jobs.iter().filter(|job| lock(&job.results).is_none());
        let now: Vec<String> = running
            .filter_map(|job| {
                let RunProgress { now, flows, incomplete, frames } = (*lock(&job.progress))?;
                let until = job.variant.spec.duration;
                Some(format!("{now} of {until}, {incomplete} of {flows} flows incomplete, {frames} frames"))
            })
            .collect();
        format!("{done} of {} runs; {}", self.jobs.len(), now.join("; "))
    }

    /// The results that there are, by variant.
    fn columns(&self) -> Vec<Column> {
        let column = |jobs: &[Job<'_>]| Column {
            name: jobs.first().map_or_else(String::new, |job| job.variant.name.clone()),
            runs: jobs.iter().filter_map(|job| lock(&job.results).take()).collect(),
        };
        self.jobs.chunks(self.seeds).map(column).filter(|column| !column.runs.is_empty()).collect()
    }
}
