//! Whole devices in virtual time: engine, scheduler, hooks and verbs, with applications that use them as
//! real programs do.
//!
//! Goal: with every interleaving of threads, each work request completes, no thread sleeps past work that is
//! due, and no queue pair starves. Method: each process has a real device ([`roxie::verbs::Device`]) whose
//! clock, threads and network are simulated. Exactly one thread runs at a time; the seed decides which one
//! runs next at each lock, wake-up, sleep and yield.
//!
//! ```text
//! plan ──► app, connections ──► roxie (verbs, cm, hooks, engine, sched) ──► port ──► network, members
//!           └────────────► threads: clock, turns, lost wake-ups ◄──┘
//! ```

mod app;
mod connections;
mod deaths;
mod endpoint;
mod extend;
mod extension;
mod faults;
mod forger;
mod frame;
mod hosts;
mod icmp;
mod incident;
mod kills;
mod lost;
mod members;
mod network;
mod pauses;
mod plan;
mod port;
mod registry;
mod threads;

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use roxie::runtime::{Runtime, World};
use roxie::sched::Tuning;
use roxie::verbs::{Device, HookConfig, Simulated};
use sys::EventFd;
use wire::Gid;

use app::Process;
use connections::Connections;
use endpoint::Endpoint;
use network::Network;
pub use pauses::{PausedSide, PausedVerb, Pauses, run_pauses};
use plan::{Incident, Plan};
use port::SimPort;
use registry::SimMember;
use threads::Threads;

/// Numbers of the random streams that one seed gives; see [`Rng::stream`](crate::Rng::stream).
const PLAN: u64 = 11;
const SCHEDULE: u64 = 12;
const CHANCE: u64 = 13;
const EXTENSION: u64 = 14;
const NUMBERS: u64 = 15;
const FORGER: u64 = 16;
const KILLS: u64 = 17;
const HOSTS: u64 = 18;
/// MTU of every netdev: path MTU 1024.
const MTU: u32 = 1500;
/// When a run begins (nanoseconds). Not 0: some fields of the device use 0 for "no time".
const START_NS: u64 = 1_000_000;
/// Steps of all threads; more is a livelock.
const STEPS_MAX: u64 = 3_000_000;

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Everything in the run is drawn from the seed.
    pub seed: u64,
    /// Tunables of every device.
    pub tuning: Tuning,
}

/// A run that kept every promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceOutcome {
    /// Processes, each with a device.
    pub processes: u64,
    /// Connections between them.
    pub connections: u64,
    /// Packets sent, and how many of these were dropped.
    pub packets: (u64, u64),
    /// Packets that a forger sent.
    pub forged: u64,
    /// Virtual time (nanoseconds).
    pub elapsed_ns: u64,
    /// Times that a thread was scheduled.
    pub steps: u64,
    /// What the requesters retransmitted, in runs with pauses.
    pub retransmissions: Retransmissions,
}

/// What requesters retransmitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retransmissions {
    /// Times that a silent peer was probed.
    pub probes: u64,
    /// Packets retransmitted.
    pub packets: u64,
    /// READ responses that arrived although they had arrived before.
    pub stale_responses: u64,
}

/// A run with a broken promise; shown as the command that replays it.
#[derive(Clone, Debug)]
pub struct DeviceFailed {
    /// The seed.
    pub seed: u64,
    /// Which promise was broken, and how.
    pub what: String,
}

impl fmt::Display for DeviceFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "roxie sim --devices --seed {:#x}", self.seed)
    }
}

impl std::error::Error for DeviceFailed {}

/// Runs devices from one seed to their end.
///
/// # Errors
/// The first broken promise.
pub fn run_devices(options: &DeviceOptions) -> Result<DeviceOutcome, DeviceFailed> {
    let mut plan = Plan::draw(options.seed);
    extend::extend(&mut plan, options.seed);
    if let Some(other) = kills::draw(options.seed).or_else(|| hosts::draw(options.seed)) {
        plan = other;
    }
    run_plan(options, &plan)
}

fn run_plan(options: &DeviceOptions, plan: &Plan) -> Result<DeviceOutcome, DeviceFailed> {
    let failed = |what: String| DeviceFailed { seed: options.seed, what: format!("{what}\n{plan}") };
    let network = Arc::new(Network::new(options.seed, plan));
    let end_ns = START_NS + plan.time_ns();
    let threads = Threads::new(options.seed, plan.apps.len(), network, plan, (end_ns, STEPS_MAX));
    let processes = open(plan, &threads, options.tuning);
    connect(plan, &processes);
    for process in &processes {
        for thread in 0..process.app.threads {
            let body = Arc::clone(process);
            threads.start(process.number, false, Box::new(move || body.run(thread)));
        }
    }
    if plan.extension.cm.is_some() {
        for process in processes.iter().filter(|process| plan.listener_of(process.number) == process.number) {
            let is_here = |other: &&Arc<Process>| plan.listener_of(other.number) == process.number;
            let connections = Connections::new(plan, processes.iter().filter(is_here).cloned().collect());
            threads.start(process.number, false, Box::new(move || connections.run()));
        }
    }
    if plan.extension.hosts.is_some() {
        hosts::start_incident(plan, &threads, &processes[plan.victim]);
    }
    drop(processes);
    incident::start(&threads, plan);
    let (elapsed_ns, steps) = threads.run().map_err(failed)?;
    if let Some(what) = threads.network.lost_in_host().filter(|_| plan.is_calm()) {
        return Err(failed(what));
    }
    Ok(DeviceOutcome {
        processes: plan.apps.len() as u64,
        connections: plan.connections.len() as u64,
        packets: threads.network.tally(),
        forged: threads.network.forged(),
        elapsed_ns: elapsed_ns - START_NS,
        steps,
        retransmissions: threads.retransmissions(),
    })
}

/// One device for each process.
fn open(plan: &Plan, threads: &Arc<Threads>, tuning: Tuning) -> Vec<Arc<Process>> {
    roxie_hook::register();
    let killed = matches!(plan.incident, Incident::Kill(_) | Incident::Kills(_));
    let closes_early = plan.connections.iter().any(|connection| connection.closes_early.contains(&true));
    let uses_cm = plan.extension.cm.is_some();
    let is_one_device = plan.extension.hosts.is_none();
    let may_fail = killed || (!plan.is_calm() && is_one_device && (closes_early || uses_cm));
    let open = |(number, app): (usize, &plan::App)| {
        Threads::enter_process(number);
        let address = plan.addresses[number];
        let world: Arc<dyn World> = Arc::clone(threads) as _;
        let device = Device::open_simulated(Simulated {
            address,
            mtu: MTU,
            port: Box::new(SimPort::new(threads, number, address, plan.port_limit_ns, plan.window_bytes)),
            registry: Box::new(SimMember::new(threads, number)),
            runtime: Runtime::Virtual(world),
            tuning,
            hooks: HookConfig { ingress: app.hook.to_owned(), egress: app.hook.to_owned() },
        });
        let device = device.expect("descriptors");
        let context = device.context().expect("descriptors");
        let channel = context.create_comp_channel().expect("descriptors");
        channel.set_nonblocking().expect("an open descriptor");
        let cq = context.create_cq(4096, Some(&channel), number as u64).expect("a completion queue");
        let recv_cq = match number % 2 {
            0 => cq.clone(),
            _ => context.create_cq(4096, Some(&channel), number as u64).expect("a completion queue"),
        };
        let empty_cq = context.create_cq(1, None, 0).expect("a completion queue");
        for cq in [&cq, &recv_cq] {
            cq.moderate(app.moderation.0, app.moderation.1);
            cq.record_times();
        }
        threads.watch_device(number, device.clone());
        Arc::new(Process {
            number,
            app: *app,
            threads: Arc::clone(threads),
            device: Mutex::new(Some(device)),
            cq,
            recv_cq,
            empty_cq,
            channel,
            endpoints: Mutex::default(),
            running: AtomicUsize::new(app.threads + usize::from(uses_cm)),
            work_ended: EventFd::new().expect("descriptors"),
            shares_cpu: plan.share_cpu && number < 2,
            may_fail,
            may_wait: may_fail || !plan.is_calm(),
            uses_cm,
            is_counted: matches!(plan.incident, Incident::Pauses { .. }),
        })
    };
    plan.apps.iter().enumerate().map(open).collect()
}

/// The queue pairs of every connection, connected to each other.
fn connect(plan: &Plan, processes: &[Arc<Process>]) {
    for (n, connection) in plan.connections.iter().enumerate() {
        let end = |i: usize| {
            let process = &processes[connection.ends[i]];
            let pd = process.channel.context().alloc_pd().expect("a protection domain");
            let number = 2 * n as u64 + i as u64;
            let (work, expected) = (&connection.work[i], &connection.work[1 - i]);
            let cqs = (process.cq.clone(), process.recv_cq.clone());
            Endpoint::new(number, &pd, cqs, work, expected, process.app.threads == 1)
        };
        let mut ends = [end(0), end(1)];
        let (qpns, remotes) =
            (ends.each_ref().map(|end| end.qp.qpn()), ends.each_ref().map(Endpoint::remote));
        let outsides = ends.each_ref().map(|end| Arc::clone(&end.own));
        for (i, end) in ends.iter_mut().enumerate() {
            let peer = 1 - i;
            match &plan.extension.cm {
                Some(cm) => {
                    let loses_netdev = connection.ends.iter().any(|end| plan.loses_netdev(*end));
                    (end.remote, end.may_break) = (remotes[peer], cm[n].is_rejected || loses_netdev);
                }
                None => {
                    let dgid = Gid::from(plan.addresses[connection.ends[peer]]);
                    end.connect(qpns[peer], dgid, remotes[peer], plan.timeout());
                }
            }
            end.peer = Arc::clone(&outsides[peer]);
            end.peer_process = connection.ends[peer];
            end.closes_early = connection.closes_early[i];
            (end.is_ping_pong, end.starts) = (connection.is_ping_pong, i == 0);
        }
        for (i, end) in ends.into_iter().enumerate() {
            processes[connection.ends[i]].endpoints.lock().expect("no thread runs yet").push(end);
        }
    }
}

#[cfg(test)]
mod forwarded_tests;
