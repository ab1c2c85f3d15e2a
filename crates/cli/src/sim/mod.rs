//! `roxie sim`: simulated fabrics in virtual time, on all CPUs, until one has a violation.

pub(crate) mod args;
mod report;
mod trace;

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::sim::{Failed, Options};

use nix::sys::signal::Signal;

use crate::ending::Ending;
use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Progress, Terminal};
use args::SimArgs;
use report::Sum;

/// Fabrics when neither --seed nor --seeds is given.
const SEEDS: u64 = 1000;
/// Interval of the progress line.
const TICK: Duration = Duration::from_millis(200);

/// Exit code after Ctrl-C, as shells use for SIGINT.
const INTERRUPTED: u8 = 128 + 2;

/// Limit of --threads.
const THREADS_MAX: usize = 256;

thread_local! {
    /// The seed that this thread runs, for the message after a panic.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs the fabrics.
pub(crate) fn run(args: &SimArgs) -> Outcome {
    say_seed_after_panic(args);
    if let Some(file) = &args.trace {
        return trace::run(&options(args, args.seed.unwrap_or(1)), file);
    }
    // After an interrupt the results until then are shown.
    let ending = Ending::by(&[Signal::SIGINT, Signal::SIGTERM])?;
    let mut interrupted = false;
    let start = Instant::now();
    let work = Work::new(args);
    let progress = Progress::stderr();
    let threads = args.threads.or_else(|| thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get).min(THREADS_MAX);
    // No value is ever sent: the channel closes when the last thread ends, also by a panic.
    let (running, all_ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let work = &work;
        for running in vec![running; threads] {
            scope.spawn(move || {
                let _running = running;
                work.run();
            });
        }
        while let Err(RecvTimeoutError::Timeout) = all_ended.recv_timeout(TICK) {
            progress.show(&work.progress(start.elapsed()));
            if ending.has_come().unwrap_or(false) {
                interrupted = true;
                work.is_over.store(true, Ordering::Relaxed);
            }
        }
    });
    progress.done();
    let sum = work.sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = work.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if args.json {
        terminal::print(&report::json(&sum, start.elapsed(), failed.as_deref(), interrupted));
    } else if sum.has_any() {
        report::show(Terminal::stdout(), &sum, start.elapsed(), failed.is_none());
    }
    match failed {
        Some(failed) => Err(violation(&failed)),
        None if interrupted => Err(Failure::new("interrupted; no violation until then").code(INTERRUPTED)),
        None => Ok(()),
    }
}

fn options(args: &SimArgs, seed: u64) -> Options {
    Options { seed, nodes: args.nodes, faults: args.faults.clone() }
}

fn violation(failed: &Failed) -> Failure {
    Failure::new(failed.violation.to_string()).hint(failed.to_string())
}

/// Makes a panic print the command that repeats it.
fn say_seed_after_panic(args: &SimArgs) {
    let before = std::panic::take_hook();
    let nodes = args.nodes.map(|nodes| format!(" --nodes {nodes}")).unwrap_or_default();
    let faults = args.faults.as_ref().map(|faults| format!(" --faults {faults}")).unwrap_or_default();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if let Some(seed) = SEED.get() {
            eprintln!("roxie: it happened in: roxie sim --seed {seed:#x}{nodes}{faults}");
        }
    }));
}

/// The fabrics still to run, and the sum of the results.
struct Work<'a> {
    args: &'a SimArgs,
    first: u64,
    seeds: u64,
    /// Number of seeds handed out.
    taken: AtomicU64,
    frames: AtomicU64,
    is_over: AtomicBool,
    sum: Mutex<Sum>,
    failed: Mutex<Option<Box<Failed>>>,
}

impl<'a> Work<'a> {
    fn new(args: &'a SimArgs) -> Self {
        let seeds = match (args.seeds, args.packets) {
            (Some(seeds), _) => seeds,
            (None, Some(_)) => u64::MAX,
            (None, None) if args.seed.is_some() => 1,
            (None, None) => SEEDS,
        };
        Self {
            args,
            first: args.seed.unwrap_or(1),
            seeds,
            taken: AtomicU64::new(0),
            frames: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            sum: Mutex::new(Sum::default()),
            failed: Mutex::new(None),
        }
    }

    fn run(&self) {
        let mut own = Sum::default();
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            if number >= self.seeds {
                break;
            }
            let seed = self.first.wrapping_add(number);
            SEED.set(Some(seed));
            match ::sim::run(&options(self.args, seed), None) {
                Ok(outcome) => {
                    own.add(&outcome);
                    let before = self.frames.fetch_add(outcome.tally.sent, Ordering::Relaxed);
                    if self.args.packets.is_some_and(|packets| before + outcome.tally.sent >= packets) {
                        self.is_over.store(true, Ordering::Relaxed);
                    }
                }
                Err(failed) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    let mut first = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if first.as_ref().is_none_or(|first| failed.seed < first.seed) {
                        *first = Some(failed);
                    }
                }
            }
        }
        self.sum.lock().unwrap_or_else(PoisonError::into_inner).absorb(&own);
    }

    fn progress(&self, elapsed: Duration) -> String {
        let (fabrics, frames) = (self.taken.load(Ordering::Relaxed), self.frames.load(Ordering::Relaxed));
        let share = match self.args.packets {
            Some(packets) => 100 * u128::from(frames) / u128::from(packets),
            None => 100 * u128::from(fabrics) / u128::from(self.seeds),
        };
        let rate = frames as f64 / elapsed.as_secs_f64().max(0.001);
        format!(
            "{:>3} %  {fabrics} fabrics, {frames} frames, {:.0} k frames/s",
            share.min(100),
            rate / 1000.0
        )
    }
}
