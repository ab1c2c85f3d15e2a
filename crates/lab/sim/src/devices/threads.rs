//! Virtual threads: operating-system threads of which exactly one runs at a time, in an order drawn from the
//! seed, on a virtual clock.
//!
//! A thread stops at each point where another thread could run in reality: before a lock, before
//! a wake-up, around a sleep, at a yield. Time advances with each step, and jumps when every thread sleeps.
//! Before it jumps, the engines are asked for work that is due (`lost.rs`).

mod process;
mod world;

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};

use roxie::runtime::Point;
use roxie::verbs::Device;
use sys::PollFd;

use self::process::Process;
use super::Retransmissions;
use super::lost::Sleeper;
use super::network::Network;
use super::plan::Plan;
use crate::Rng;

/// What a step costs (nanoseconds): some tens of instructions up to a system call.
const STEP_NS: (u64, u64) = (20, 400);
/// How long a thread that is preempted is without its CPU (nanoseconds).
const PREEMPTED_NS: (u64, u64) = (1_000, 30_000);
/// A sleep of a progress thread may end so often in a row although nothing else of its process has run and
/// no packet has arrived.
const VAIN_MAX: u32 = 16;
/// Time slice of a thread that shares its CPU and does not yield: Linux's default.
const SLICE_NS: u64 = 3_000_000;
/// A yield with its system call.
const YIELD_NS: u64 = 500;
/// No thread has this number.
const NONE: usize = usize::MAX;

thread_local! {
    /// The virtual thread that this thread is.
    static SELF: Cell<usize> = const { Cell::new(NONE) };
    /// The process that opens its device.
    static PROCESS: Cell<usize> = const { Cell::new(0) };
}

/// What a virtual thread waits for.
#[derive(Debug)]
enum Run {
    Ready,
    /// Computes until then, without a call into the device.
    Computes(u64),
    /// Has lost its CPU until then, at any place.
    Preempted(u64),
    Sleeps {
        fds: Vec<RawFd>,
        until_ns: u64,
    },
    WaitsForLock,
    Ended,
}

#[derive(Debug)]
struct Virtual {
    run: Run,
    process: usize,
    is_progress: bool,
    /// It runs on the CPU that two applications share.
    shares_cpu: bool,
    handle: Option<Thread>,
}

struct State {
    rng: Rng,
    /// Random numbers of the devices.
    numbers: Rng,
    threads: Vec<Virtual>,
    processes: Vec<Process>,
    /// For each device, the first one of those with threads that call into it. Other threads call into all.
    groups: Vec<usize>,
    steps: u64,
    /// The run is over: dead processes run again, to clean up.
    is_over: bool,
    violation: Option<String>,
    /// What the devices counted that have been closed.
    retransmissions: Retransmissions,
    /// The thread that has the shared CPU, and when its slice ends.
    cpu_owner: Option<(usize, u64)>,
    candidates: Candidates,
}

/// What [`State::find_ready`] fills at each step, kept for its memory.
#[derive(Default)]
struct Candidates {
    /// Threads that may run.
    ready: Vec<usize>,
    /// Descriptors of sleeping threads, and the thread of each.
    fds: Vec<PollFd>,
    owners: Vec<usize>,
}

/// See the module documentation.
pub(super) struct Threads {
    state: Mutex<State>,
    pub(super) network: Arc<Network>,
    now_ns: AtomicU64,
    /// The thread that runs.
    current: AtomicUsize,
    /// The thread that waits for the end of the run.
    director: Mutex<Option<Thread>>,
    preempt_ppm: u64,
    share_cpu: bool,
    steps_max: u64,
    pub(super) end_ns: u64,
    own: Weak<Self>,
}

impl Threads {
    pub(super) fn new(
        seed: u64,
        processes: usize,
        network: Arc<Network>,
        plan: &Plan,
        (end_ns, steps_max): (u64, u64),
    ) -> Arc<Self> {
        let state = State {
            rng: Rng::stream(seed, super::SCHEDULE),
            numbers: Rng::stream(seed, super::NUMBERS),
            threads: Vec::new(),
            processes: vec![Process::default(); processes],
            groups: (0..processes).map(|process| plan.listener_of(process)).collect(),
            steps: 0,
            is_over: false,
            violation: None,
            retransmissions: Retransmissions::default(),
            cpu_owner: None,
            candidates: Candidates::default(),
        };
        Arc::new_cyclic(|own| Self {
            state: Mutex::new(state),
            network,
            now_ns: AtomicU64::new(1_000_000),
            current: AtomicUsize::new(NONE),
            director: Mutex::default(),
            preempt_ppm: plan.preempt_ppm,
            share_cpu: plan.share_cpu,
            steps_max,
            end_ns,
            own: Weak::clone(own),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what this thread opens belong to `process`.
    pub(super) fn enter_process(process: usize) {
        PROCESS.set(process);
    }

    /// The device of a process, which is asked for due work.
    pub(super) fn watch_device(&self, process: usize, device: Device) {
        self.state().processes[process].device = Some(device);
    }

    /// The process has closed its device.
    pub(super) fn forget_device(&self, process: usize) {
        let device = self.state().processes[process].device.take();
        drop(device);
    }

    /// Adds the counters of a device that is about to be closed.
    pub(super) fn count(&self, counters: &[(&'static str, u64)]) {
        let value = |name| counters.iter().filter(|(known, _)| *known == name).map(|(_, n)| n).sum::<u64>();
        let total = &mut self.state().retransmissions;
        total.probes += value("probes");
        total.packets += value("retransmitted_pkts");
        total.stale_responses += value("rx_stale_response");
    }

    /// What the closed devices counted.
    pub(super) fn retransmissions(&self) -> Retransmissions {
        self.state().retransmissions
    }

    /// Stops a process until then.
    pub(super) fn stop(&self, process: usize, until_ns: u64) {
        self.state().processes[process].stopped_until = until_ns;
    }

    /// Kills a process; see [`Members::end`](super::members::Members::end).
    pub(super) fn kill(&self, process: usize, exit_ns: (u64, u64)) {
        let now = self.now();
        self.state().processes[process].is_dead = true;
        self.network.members.end(process, now, exit_ns);
    }

    pub(super) fn is_dead(&self, process: usize) -> bool {
        self.state().processes[process].is_dead
    }

    /// Whether a process is or was stopped, or the run is over.
    pub(super) fn was_disturbed(&self, process: usize) -> bool {
        let state = self.state();
        state.is_over || state.processes[process].stopped_until > 0
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().is_over
    }

    /// Dead processes run again and find that the run is over.
    pub(super) fn finish(&self) {
        self.state().end();
    }

    /// The first broken promise ends the run.
    pub(super) fn fail(&self, what: String) {
        self.state().violation.get_or_insert(what);
        self.finish();
    }

    /// Starts a thread of a process of its own, which is neither stopped nor killed.
    pub(super) fn start_outside(self: &Arc<Self>, body: Box<dyn FnOnce() + Send>) {
        let outside = {
            let processes = &mut self.state().processes;
            processes.push(Process::default());
            processes.len() - 1
        };
        self.start(outside, false, body);
    }

    /// An application thread of a living process, one of the first `processes`, has not ended.
    pub(super) fn has_living(&self, processes: usize) -> bool {
        let state = self.state();
        let lives = |thread: &Virtual| {
            let is_app = !thread.is_progress && thread.process < processes;
            is_app && !state.processes[thread.process].is_dead && !matches!(thread.run, Run::Ended)
        };
        state.threads.iter().any(lives)
    }

    /// Starts a virtual thread. It runs when the scheduler chooses it.
    pub(super) fn start(&self, process: usize, is_progress: bool, body: Box<dyn FnOnce() + Send>) {
        let mut state = self.state();
        let number = state.threads.len();
        let shares_cpu = self.share_cpu && !is_progress && process < 2;
        state.threads.push(Virtual { run: Run::Ready, process, is_progress, shares_cpu, handle: None });
        drop(state);
        let Some(threads) = self.own.upgrade() else { return };
        let started = thread::Builder::new().stack_size(512 * 1024).spawn(move || {
            SELF.set(number);
            PROCESS.set(process);
            threads.state().threads[number].handle = Some(thread::current());
            threads.wait_for_turn(number);
            body();
            threads.switch(number, Run::Ended);
        });
        let handle = started.expect("the machine starts some threads").thread().clone();
        self.state().threads[number].handle = Some(handle);
    }

    /// Runs all threads to their end; the violation, if there is one.
    pub(super) fn run(&self) -> Result<(u64, u64), String> {
        *self.director.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        if let Some(first) = self.choose() {
            self.give_turn(first);
        }
        while !self.state().threads.iter().all(|thread| matches!(thread.run, Run::Ended)) {
            thread::park();
        }
        let state = self.state();
        state.violation.clone().map_or_else(|| Ok((self.now(), state.steps)), Err)
    }

    fn now(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    /// The calling thread does without the CPU for a while.
    pub(super) fn compute(&self, ns: u64) {
        let me = SELF.get();
        if me != NONE {
            self.state().processes[PROCESS.get()].usage.cpu_ns += ns;
            let until = self.now() + ns;
            self.switch(me, Run::Computes(until));
        }
    }

    fn switch(&self, me: usize, run: Run) {
        let is_end = matches!(run, Run::Ended);
        {
            let mut state = self.state();
            if matches!(run, Run::Sleeps { .. } | Run::WaitsForLock | Run::Ended) {
                state.release_cpu(me);
            }
            let Virtual { is_progress, process, .. } = state.threads[me];
            state.processes[process].count_switch(is_progress, &run);
            state.threads[me].run = run;
        }
        match self.choose() {
            Some(next) if next == me => {}
            Some(next) => {
                self.give_turn(next);
                if !is_end {
                    self.wait_for_turn(me);
                }
            }
            None => {
                self.current.store(NONE, Ordering::Release);
                if let Some(director) = &*self.director.lock().unwrap_or_else(PoisonError::into_inner) {
                    director.unpark();
                }
            }
        }
    }

    fn give_turn(&self, next: usize) {
        self.current.store(next, Ordering::Release);
        // The lock is free before the thread wakes: it would wait for it at once.
        let handle = self.state().threads[next].handle.clone();
        // A thread that has not started yet looks for itself.
        if let Some(handle) = handle {
            handle.unpark();
        }
    }

    fn wait_for_turn(&self, me: usize) {
        while self.current.load(Ordering::Acquire) != me {
            thread::park();
        }
    }

    /// The thread that runs next; `None` when all have ended.
    fn choose(&self) -> Option<usize> {
        loop {
            let due_check = {
                let mut state = self.state();
                let now = self.now();
                self.network.deliver(now);
                state.find_ready(now);
                let count = state.candidates.ready.len();
                if count > 0 {
                    let at = (state.rng.next() % count as u64) as usize;
                    let next = state.candidates.ready[at];
                    if !state.is_over && !self.network.has_frames(state.threads[next].process) {
                        let taken = self.network.taken_by_host(state.threads[next].process);
                        state.count_vain_sleep(next, now, taken);
                    }
                    state.begin(next, &self.now_ns, self.steps_max, self.end_ns);
                    return Some(next);
                }
                if state.threads.iter().all(|thread| matches!(thread.run, Run::Ended)) {
                    return None;
                }
                state.sleepers(&self.network)
            };
            // All sleep: is there work that one of them should do?
            if let Some(what) = self.lost_wake_up(&due_check) {
                self.fail(what);
            }
            let state = self.state();
            let next = state.next_event().into_iter().chain(self.network.next_ns()).min();
            drop(state);
            match next {
                Some(next) => self.now_ns.store(next.max(self.now() + 1), Ordering::Relaxed),
                None => {
                    self.fail("every thread sleeps for ever".to_owned());
                    self.now_ns.store(self.end_ns, Ordering::Relaxed);
                }
            }
        }
    }

    /// Asks the devices of sleeping progress threads for work, outside of every virtual thread.
    fn lost_wake_up(&self, sleepers: &[Sleeper]) -> Option<String> {
        let me = SELF.replace(NONE);
        let now = self.now();
        let found = sleepers.iter().find_map(|sleeper| sleeper.late_work(now));
        SELF.set(me);
        found
    }
}

impl State {
    fn is_held(&self, thread: &Virtual, now: u64) -> bool {
        let process = &self.processes[thread.process];
        process.is_dead || process.stopped_until > now
    }

    /// When a thread gets the CPU that another has; 0 if no other has it.
    fn cpu_is_taken_until(&self, index: usize) -> u64 {
        match self.cpu_owner {
            Some((owner, until_ns)) if owner != index && self.threads[index].shares_cpu => until_ns,
            _ => 0,
        }
    }

    fn release_cpu(&mut self, index: usize) {
        self.cpu_owner = self.cpu_owner.filter(|(owner, _)| *owner != index);
    }

    fn take_cpu(&mut self, index: usize, now: u64) {
        let has_slice = self.cpu_owner.is_some_and(|(owner, until_ns)| owner == index && until_ns > now);
        if self.threads[index].shares_cpu && !has_slice {
            self.cpu_owner = Some((index, now + SLICE_NS));
        }
    }

    /// Finds the threads that may run now.
    fn find_ready(&mut self, now: u64) {
        let mut found = std::mem::take(&mut self.candidates);
        let Candidates { ready, fds, owners } = &mut found;
        ready.clear();
        fds.clear();
        owners.clear();
        for (index, thread) in self.threads.iter().enumerate() {
            if self.is_held(thread, now) || self.cpu_is_taken_until(index) > now {
                continue;
            }
            match &thread.run {
                Run::Ready | Run::WaitsForLock => ready.push(index),
                Run::Computes(until_ns) | Run::Preempted(until_ns) if *until_ns <= now => ready.push(index),
                Run::Sleeps { until_ns, .. } if *until_ns <= now || self.is_over => ready.push(index),
                Run::Sleeps { fds: waits, .. } => {
                    fds.extend(waits.iter().map(|fd| PollFd::readable(*fd)));
                    owners.extend(waits.iter().map(|_| index));
                }
                Run::Computes(_) | Run::Preempted(_) | Run::Ended => {}
            }
        }
        if !fds.is_empty() && sys::poll(fds, Some(0)).is_ok_and(|readable| readable > 0) {
            // As in the kernel, a thread that sleeps is not woken by the closing of a descriptor.
            let wakes = |(fd, _): &(&PollFd, &usize)| fd.is_ready() && !fd.is_closed();
            let readable = fds.iter().zip(&*owners).filter(wakes).map(|(_, owner)| *owner);
            ready.extend(readable);
            ready.dedup();
        }
        self.candidates = found;
    }

    /// Whether a thread loses its CPU here, and for how long.
    fn draw_preemption(&mut self, preempt_ppm: u64, point: Point) -> Option<u64> {
        // Sleeps are rare, and what happens just before one is easily lost.
        let preempt_ppm = if point == Point::Sleep { 10 * preempt_ppm } else { preempt_ppm };
        self.rng.chance_ppm(preempt_ppm).then(|| self.rng.between(PREEMPTED_NS.0, PREEMPTED_NS.1))
    }

    /// Counts sleeps of a progress thread that end although neither a packet nor another thread has woken it.
    fn count_vain_sleep(&mut self, next: usize, now: u64, taken: u64) {
        let Virtual { run, process, is_progress, .. } = &self.threads[next];
        let Process { vain, taken_by_host, .. } = &mut self.processes[*process];
        if std::mem::replace(taken_by_host, taken) != taken {
            *vain = 0;
        }
        match run {
            Run::Sleeps { until_ns, .. } if *is_progress && *until_ns > now => *vain += 1,
            _ if *is_progress => {}
            _ => *vain = 0,
        }
        if *vain > VAIN_MAX {
            let what = format!("process {process}: the progress thread does not fall asleep, at {now}");
            self.violation.get_or_insert(what);
            self.end();
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        for process in &mut self.processes {
            (process.is_dead, process.stopped_until) = (false, 0);
        }
    }

    /// The thread runs: time passes.
    fn begin(&mut self, next: usize, now_ns: &AtomicU64, steps_max: u64, end_ns: u64) {
        let cost = self.rng.between(STEP_NS.0, STEP_NS.1);
        let now = now_ns.fetch_add(cost, Ordering::Relaxed) + cost;
        self.take_cpu(next, now);
        let process = self.threads[next].process;
        if !self.threads[next].is_progress {
            self.processes[process].usage.cpu_ns += cost;
        }
        self.threads[next].run = Run::Ready;
        self.steps += 1;
        if (self.steps > steps_max || now > end_ns) && !self.is_over {
            let what = format!("no end after {} steps and {} us: {:?}", self.steps, now / 1000, self.runs());
            self.violation.get_or_insert(what);
            self.end();
        }
    }

    fn runs(&self) -> Vec<String> {
        let show =
            |t: &Virtual| format!("{}{} {:?}", t.process, if t.is_progress { "p" } else { "a" }, t.run);
        self.threads.iter().map(show).collect()
    }

    /// Progress threads that sleep, with their devices.
    fn sleepers(&self, network: &Network) -> Vec<Sleeper> {
        let of = |thread: &Virtual| {
            let process = &self.processes[thread.process];
            let device = process.device.clone().filter(|_| !process.is_dead && process.stopped_until == 0)?;
            // A thread that lost its CPU may be about to wake another, or hold the lock.
            let group = |process: usize| self.groups.get(process);
            let is_preempted = |other: &Virtual| {
                let calls_here = group(other.process).is_none_or(|of| Some(of) == group(thread.process));
                calls_here && matches!(other.run, Run::Preempted(_))
            };
            if self.threads.iter().any(is_preempted) {
                return None;
            }
            match thread.run {
                Run::Sleeps { until_ns, .. } if thread.is_progress => Some(Sleeper {
                    process: thread.process,
                    until_ns,
                    device,
                    unflushed: network.unflushed(thread.process),
                }),
                _ => None,
            }
        };
        if self.is_over { Vec::new() } else { self.threads.iter().filter_map(of).collect() }
    }

    fn next_event(&self) -> Option<u64> {
        let wake = |(index, thread): (usize, &Virtual)| {
            let process = &self.processes[thread.process];
            let at = match thread.run {
                Run::Sleeps { until_ns, .. } | Run::Computes(until_ns) | Run::Preempted(until_ns) => {
                    Some(until_ns)
                }
                Run::Ready | Run::WaitsForLock => Some(0),
                Run::Ended => None,
            };
            at.filter(|at| !process.is_dead && *at != u64::MAX)
                .map(|at| at.max(process.stopped_until).max(self.cpu_is_taken_until(index)))
        };
        self.threads.iter().enumerate().filter_map(wake).min()
    }
}
