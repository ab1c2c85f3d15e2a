//! `roxie sim`: simulated fabrics or devices in virtual time, on all CPUs, until one has a violation.

pub(crate) mod args;
mod devices;
mod fabric;
mod fabrics;
mod trace;
mod values;

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Map, Value, json};

use crate::ending::{Ending, STOPPED};
use crate::failure::{Failure, Outcome};
use crate::terminal::{self, Progress, Terminal, Tone};
use args::{Part, SimArgs};
use devices::Devices;
use fabrics::Fabrics;

/// Runs when neither --seed nor --seeds is given.
const SEEDS: u64 = 1000;
/// Interval of the progress line.
const TICK: Duration = Duration::from_millis(200);

/// Limit of --threads.
const THREADS_MAX: usize = 256;

thread_local! {
    /// The seed that this worker thread runs, for the message after a panic.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// What is simulated from one seed: a fabric, or processes with devices.
trait Simulation: Sync {
    /// The results of runs without a violation.
    type Sum: Default + Send;
    /// A run with a violation.
    type Failed: Send;

    /// What one run is called, and what it counts, both in the plural.
    const UNITS: [&str; 2];

    /// Prepares the calling worker thread.
    fn prepare(&self, _worker: usize) {}
    /// Runs one seed, adds its results to `sum`, and returns the number of frames or packets sent.
    fn run(&self, seed: u64, sum: &mut Self::Sum) -> Result<u64, Self::Failed>;
    fn absorb(sum: &mut Self::Sum, other: &Self::Sum);
    fn has_any(sum: &Self::Sum) -> bool;
    /// Options that have to be repeated when a seed is replayed.
    fn options(&self) -> String;
    /// Prints the results as lines, below their heading.
    fn show(table: &Table, sum: &Self::Sum, seconds: f64);
    /// Adds the results to a JSON object.
    fn json(report: &mut Map<String, Value>, sum: &Self::Sum);
    /// The violation as a JSON object.
    fn violation_json(&self, failed: &Self::Failed) -> Value;
    fn violation(&self, failed: &Self::Failed) -> Failure;
    fn seed(failed: &Self::Failed) -> u64;
}

/// Runs the fabrics or the devices.
pub(crate) fn run(args: &SimArgs) -> Outcome {
    if let Some(Part::Fabric(args)) = &args.part {
        return fabric::run(args);
    }
    if args.devices {
        return run_all(args, &Devices::new(args));
    }
    let fabrics = Fabrics::new(args);
    match &args.trace {
        Some(file) => {
            print_seed_after_panic(fabrics.options(), Arc::default());
            trace::run(&fabrics.options_of(args.seed.unwrap_or(1)), file)
        }
        None => run_all(args, &fabrics),
    }
}

/// Runs a simulation from many seeds, with a progress line, and prints the sum of the results.
fn run_all<S: Simulation>(args: &SimArgs, simulation: &S) -> Outcome {
    let start = Instant::now();
    let work = Work::new(args, simulation);
    print_seed_after_panic(simulation.options(), Arc::clone(&work.running));
    let shown = || work.progress(start.elapsed());
    let interrupted = run_threads(args.threads, |worker| work.run(worker), &work.is_over, shown)?;
    let (sum, failed) = (&*lock(&work.sum), &*lock(&work.failed));
    if args.json {
        terminal::json(&json_report(simulation, sum, start.elapsed(), failed.as_ref(), interrupted));
    } else if S::has_any(sum) {
        let table = Table(Terminal::stdout());
        table.0.heading(if failed.is_none() { "No violation" } else { "Before the violation" });
        S::show(&table, sum, start.elapsed().as_secs_f64());
    }
    match failed {
        Some(failed) => Err(simulation.violation(failed)),
        None if interrupted => Err(Failure::new("interrupted; no violation until then").code(STOPPED)),
        None => Ok(()),
    }
}

/// Runs `work` on several threads until all have returned, with a progress line. An interrupt sets `is_over`,
/// so that the results until then can be shown; a second one ends the command. Returns whether one came.
fn run_threads(
    threads: Option<NonZeroUsize>,
    work: impl Fn(usize) + Sync,
    is_over: &AtomicBool,
    shown: impl Fn() -> String,
) -> Outcome<bool> {
    let ending = Ending::by(&[Signal::SIGINT, Signal::SIGTERM])?;
    let mut interrupted = false;
    let progress = Progress::stderr();
    let threads = threads.or_else(|| thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get).min(THREADS_MAX);
    // No value is ever sent: the channel closes when the last thread ends, also by a panic.
    let (running, all_ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let work = &work;
        for (worker, running) in vec![running; threads].into_iter().enumerate() {
            scope.spawn(move || {
                let _running = running;
                work(worker);
            });
        }
        while let Err(RecvTimeoutError::Timeout) = all_ended.recv_timeout(TICK) {
            progress.show(&shown());
            if ending.has_come().unwrap_or(false) {
                if interrupted {
                    progress.done();
                    std::process::exit(STOPPED.into());
                }
                interrupted = true;
                is_over.store(true, Ordering::Relaxed);
            }
        }
    });
    progress.done();
    Ok(interrupted)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a panic print the command that repeats it. A panic in a thread of a simulated process may have
/// happened in any of the runs in progress.
fn print_seed_after_panic(options: String, running: Arc<Mutex<Vec<u64>>>) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        let seeds = SEED.get().map_or_else(|| lock(&running).clone(), |seed| vec![seed]);
        let commands: Vec<_> = seeds.iter().map(|seed| replay_command(*seed, &options)).collect();
        if !commands.is_empty() {
            say!("roxie: it happened in: {}", commands.join(", or in: "));
        }
    }));
}

/// The command that replays one run.
fn replay_command(seed: u64, options: &str) -> String {
    format!("roxie sim{options} --seed {seed:#x}")
}

/// Lines of a name, a number and a note.
struct Table(Terminal);

impl Table {
    fn line(&self, name: &str, value: impl ToString, note: &str) {
        let (value, note) = (value.to_string(), self.0.paint(Tone::Faint, note));
        self.0.line(format!("  {name:<18}{value:>16}  {note}").trim_end());
    }
}

/// The results as a JSON object.
fn json_report<S: Simulation>(
    simulation: &S,
    sum: &S::Sum,
    took: Duration,
    failed: Option<&S::Failed>,
    interrupted: bool,
) -> String {
    let mut report = Map::new();
    report.insert("ok".to_owned(), json!(failed.is_none()));
    report.insert("interrupted".to_owned(), json!(interrupted));
    report.insert("violation".to_owned(), json!(failed.map(|failed| simulation.violation_json(failed))));
    S::json(&mut report, sum);
    report.insert("seconds".to_owned(), json!(took.as_secs_f64()));
    format!("{:#}", Value::Object(report))
}

/// The runs still to start, and the sum of the results.
struct Work<'a, S: Simulation> {
    simulation: &'a S,
    first: u64,
    seeds: u64,
    packets: Option<u64>,
    /// Number of seeds handed out.
    taken: AtomicU64,
    sent: AtomicU64,
    is_over: AtomicBool,
    /// Seeds of the runs in progress.
    running: Arc<Mutex<Vec<u64>>>,
    sum: Mutex<S::Sum>,
    failed: Mutex<Option<S::Failed>>,
}

impl<'a, S: Simulation> Work<'a, S> {
    fn new(args: &SimArgs, simulation: &'a S) -> Self {
        let seeds = match (args.seeds, args.packets) {
            (Some(seeds), _) => seeds,
            (None, Some(_)) => u64::MAX,
            (None, None) if args.seed.is_some() => 1,
            (None, None) => SEEDS,
        };
        Self {
            simulation,
            first: args.seed.unwrap_or(1),
            seeds,
            packets: args.packets,
            taken: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            running: Arc::default(),
            sum: Mutex::default(),
            failed: Mutex::default(),
        }
    }

    fn run(&self, worker: usize) {
        self.simulation.prepare(worker);
        let mut own = S::Sum::default();
        while !self.is_over.load(Ordering::Relaxed) {
            let number = self.taken.fetch_add(1, Ordering::Relaxed);
            if number >= self.seeds {
                break;
            }
            let seed = self.first.wrapping_add(number);
            SEED.set(Some(seed));
            lock(&self.running).push(seed);
            let result = self.simulation.run(seed, &mut own);
            lock(&self.running).retain(|running| *running != seed);
            match result {
                Ok(sent) => {
                    let before = self.sent.fetch_add(sent, Ordering::Relaxed);
                    if self.packets.is_some_and(|packets| before + sent >= packets) {
                        self.is_over.store(true, Ordering::Relaxed);
                    }
                }
                Err(failed) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    let mut first = lock(&self.failed);
                    if first.as_ref().is_none_or(|first| S::seed(&failed) < S::seed(first)) {
                        *first = Some(failed);
                    }
                }
            }
        }
        S::absorb(&mut lock(&self.sum), &own);
    }

    fn progress(&self, elapsed: Duration) -> String {
        let (runs, sent) = (self.taken.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed));
        let share = match self.packets {
            Some(packets) => 100 * u128::from(sent) / u128::from(packets),
            None => 100 * u128::from(runs) / u128::from(self.seeds),
        };
        let rate = sent as f64 / elapsed.as_secs_f64().max(0.001) / 1000.0;
        let [many_runs, packets] = S::UNITS;
        format!("{:>3} %  {runs} {many_runs}, {sent} {packets}, {rate:.0} k {packets}/s", share.min(100))
    }
}
