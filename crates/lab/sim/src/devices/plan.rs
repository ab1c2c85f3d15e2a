//! The plan of a run, drawn from the seed: hosts, links, connections, work requests, and the applications
//! that post them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::deaths::Kills;
use super::extension::Extension;
use super::faults::Faults;
use crate::Rng;

/// Time (ns) of a calm run without work, and how much each work request adds to it.
const CALM_NS: u64 = 10_000_000;
const REQUEST_NS: u64 = 30_000;
/// Additional time (ns) for two applications on one CPU: they need some yields until they yield early.
const SHARED_NS: u64 = 20_000_000;
/// Shortest and longest pause (ns) of an application: longer than `Tuning::brief_for_ns`, so that the
/// progress thread begins a long sleep meanwhile.
const PAUSE_NS: (u64, u64) = (11_000_000, 16_000_000);
/// Time (ns) of a run with faults, stopped or killed processes.
const TIME_MAX_NS: u64 = 4_000_000_000;
/// Pauses in which a run with pauses must end, if that is longer.
const PAUSES_MAX: u64 = 100;

/// How an application uses its device: models of real programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Polls in a loop (perftest).
    Poll,
    /// Takes up to 16 completions, leaves the others, polls an empty CQ as well, posts up to 16 (UCX).
    Portions,
    /// Arms the CQ, sleeps until the event, drains the CQ.
    Events,
    /// Polls until its requests are complete, then spins on memory that the peer writes (perftest's latency
    /// tests).
    SpinOnMemory,
    /// Posts, and looks at its completions only now and then.
    Rarely,
}

pub(super) const KINDS: [Kind; 5] =
    [Kind::Poll, Kind::Portions, Kind::Events, Kind::SpinOnMemory, Kind::Rarely];

/// What a work request does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verb {
    Send,
    Write,
    Read,
}

/// One work request; messages of one direction lie one behind the other in the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) verb: Verb,
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) is_signaled: bool,
    /// Its payload is copied when it is posted.
    pub(super) is_inline: bool,
    /// Posted in one list with the next one.
    pub(super) joins_next: bool,
}

/// A connection; `ends[i]` says which process has end `i`, `work[i]` what that end posts.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) ends: [usize; 2],
    pub(super) work: [Vec<Op>; 2],
    /// The end destroys its queue pair as soon as its own work is complete and all expected messages have
    /// arrived, without a notice to the peer.
    pub(super) closes_early: [bool; 2],
    /// Each end posts one message for each message of the peer that has arrived; end 0 begins.
    pub(super) is_ping_pong: bool,
}

/// A process and its application.
#[derive(Clone, Copy, Debug)]
pub(super) struct App {
    pub(super) kind: Kind,
    /// Threads that share its completion queue.
    pub(super) threads: usize,
    /// Work requests that it keeps in flight on a connection.
    pub(super) depth: usize,
    pub(super) hook: &'static str,
    /// Work requests that a thread posts before it pauses: it computes and makes no call into the device.
    pub(super) pause_after: usize,
    /// Length of the pause (nanoseconds); 0 if the thread never pauses.
    pub(super) pause_ns: u64,
    /// The CQ delays its event until it has this many completions, or for this many microseconds; (0, 0)
    /// without moderation.
    pub(super) moderation: (u16, u16),
}

/// What happens to one process during a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Incident {
    None,
    /// SIGSTOP at the first time, SIGCONT at the second.
    Stop(u64, u64),
    /// SIGKILL.
    Kill(u64),
    /// The link of the host's device is down between these times.
    LinkDown(u64, u64),
    /// The netdev of the device is removed when one of its queue pairs can send or receive, between these
    /// times.
    NetdevLost(u64, u64),
    /// SIGKILL of several processes.
    Kills(Kills),
    /// It has a CPU for so long at a time, and then none for so long (nanoseconds).
    Pauses {
        run_ns: u64,
        pause_ns: u64,
        /// So has the other process, half a pause later.
        both: bool,
        /// The local ACK timeout, as IBA encodes it.
        timeout: u8,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) apps: Vec<App>,
    pub(super) connections: Vec<Connection>,
    pub(super) faults: Faults,
    /// The process that the incident happens to.
    pub(super) victim: usize,
    pub(super) incident: Incident,
    pub(super) port_limit_ns: u64,
    pub(super) window_bytes: usize,
    /// Of a million points where another thread may run, at this many the thread loses its CPU for some
    /// microseconds.
    pub(super) preempt_ppm: u64,
    /// The threads of applications 0 and 1 have one CPU; progress threads preempt them, as on Linux.
    pub(super) share_cpu: bool,
    pub(super) extension: Extension,
}

impl Plan {
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::stream(seed, super::PLAN);
        let hosts = rng.pick(&[2, 2, 2, 3, 4]);
        let addresses = (0..hosts).map(|i| IpAddr::V4(Ipv4Addr::new(10, 0, 0, i as u8 + 1))).collect();
        let is_calm = rng.chance(600);
        let faults = Faults {
            drop_ppm: if is_calm { 0 } else { rng.pick(&[1_000, 10_000, 30_000]) },
            gsi_drop_ppm: 0,
            gsi_lost: None,
            misroute_ppm: 0,
            icmp_drop_ppm: None,
            duplicate_ppm: if is_calm { 0 } else { rng.pick(&[0, 5_000]) },
            jitter_ns: if is_calm { 0 } else { rng.pick(&[0, 0, 10_000]) },
            delay_ns: rng.between(300, 20_000),
            byte_time: rng.pick(&[80, 800, 8_000]),
            is_trusted: false,
        };
        let incident = match rng.between(0, 9) {
            0 => {
                let at = rng.between(1_050_000, 1_400_000);
                Incident::Stop(at, at + rng.between(10_000, 3_000_000))
            }
            1 => Incident::Kill(rng.between(1_050_000, 1_400_000)),
            _ => Incident::None,
        };
        let app = |rng: &mut Rng| {
            let kind = rng.pick(&KINDS);
            // Of two threads that sleep on one channel, either could get the other one's event.
            let threads = if kind == Kind::Poll { rng.pick(&[1, 1, 2]) } else { 1 };
            let hook = if rng.chance(150) { "count" } else { "" };
            let depth = match kind {
                Kind::Rarely => 64,
                // Deep enough that the application leaves completions in its CQ.
                Kind::Portions => rng.pick(&[16, 64, 64, 64]),
                _ => rng.pick(&[1, 4, 16, 64]),
            };
            let pauses = rng.chance(300);
            let pause_ns = if pauses { rng.between(PAUSE_NS.0, PAUSE_NS.1) } else { 0 };
            let is_moderated = kind == Kind::Events && rng.chance(500);
            let moderation = if is_moderated { rng.pick(&[(4, 10), (4, 100), (16, 50)]) } else { (0, 0) };
            App { kind, threads, depth, hook, pause_after: rng.pick(&[1, 8, 40]), pause_ns, moderation }
        };
        let apps: Vec<App> = (0..hosts).map(|_| app(rng)).collect();
        let only_polls = |app: &App| {
            matches!(app.kind, Kind::Poll | Kind::Portions) && app.threads == 1 && app.pause_ns == 0
        };
        let share_cpu = is_calm && incident == Incident::None && apps[..2].iter().all(only_polls);
        let connections = (0..rng.between(1, 4)).map(|_| Connection::draw(rng, &apps)).collect();
        let victim = rng.between(0, hosts as u64 - 1) as usize;
        let port_limit_ns = rng.between(2_000, 50_000);
        let window_bytes = rng.pick(&[16, 64, 320]) * 1024;
        let preempt_ppm = rng.pick(&[0, 2_000, 20_000]);
        Self {
            addresses,
            apps,
            connections,
            faults,
            victim,
            incident,
            port_limit_ns,
            window_bytes,
            preempt_ppm,
            share_cpu: share_cpu && preempt_ppm == 0,
            extension: Extension::default(),
        }
    }

    /// Whether no packet is dropped and no process is stopped or killed, so that no work request has to wait
    /// for a timeout.
    pub(super) fn is_calm(&self) -> bool {
        self.faults.drop_ppm == 0 && self.incident == Incident::None
    }

    /// Virtual time (nanoseconds) in which a run must end. A calm run has a round trip and some polls for
    /// each work request and each window of bytes, far less than the retransmission timeout, so work that
    /// only a retransmission would complete fails the run.
    pub(super) fn time_ns(&self) -> u64 {
        if let Incident::Pauses { run_ns, pause_ns, .. } = self.incident {
            return TIME_MAX_NS.max(PAUSES_MAX * (run_ns + pause_ns));
        }
        if !self.is_calm() {
            return self.extension.time_max_ns().unwrap_or(TIME_MAX_NS);
        }
        let work = || self.connections.iter().flat_map(|connection| &connection.work).flatten();
        let (requests, bytes) = (work().count() as u64, work().map(|op| op.len as u64).sum::<u64>());
        let held_us = self.apps.iter().map(|app| u64::from(app.moderation.1)).max().unwrap_or(0);
        CALM_NS
            + self.extension.calm_ns
            + (requests + bytes / self.window_bytes as u64) * (2 * self.faults.delay_ns + REQUEST_NS)
            + requests * 1_000 * held_us
            + self.apps.iter().map(|app| app.pause_ns).sum::<u64>()
            + if self.share_cpu { SHARED_NS } else { 0 }
            + ((2 * bytes * self.faults.byte_time) >> 10)
    }

    /// The local ACK timeout of every queue pair, as IBA encodes it: 134 ms in a calm run (longer with
    /// misrouted packets), 16.8 ms in other runs, so that a killed peer is noticed soon.
    pub(super) fn timeout(&self) -> u8 {
        match &self.incident {
            Incident::Kills(kills) => kills.timeout,
            Incident::Pauses { timeout, .. } => *timeout,
            _ if self.is_calm() || self.extension.hosts.is_some() => {
                self.extension.calm_timeout.unwrap_or(15)
            }
            _ => 12,
        }
    }

    /// The host of a process or device.
    pub(super) fn host_of(&self, process: usize) -> usize {
        if let Some(hosts) = &self.extension.hosts {
            return hosts.of[process];
        }
        let is_same = |address: &IpAddr| *address == self.addresses[process];
        self.addresses.iter().position(is_same).unwrap_or(process)
    }

    /// The process with the thread that makes the connections of `process`.
    pub(super) fn listener_of(&self, process: usize) -> usize {
        self.extension.hosts.as_ref().map_or(process, |hosts| hosts.listener_of(process))
    }

    /// The netdev of this device is removed in the run.
    pub(super) fn loses_netdev(&self, device: usize) -> bool {
        device == self.victim && matches!(self.incident, Incident::NetdevLost(..))
    }

    /// The processes that are killed, if there may be several.
    pub(super) fn kills(&self) -> Option<&Kills> {
        if let Incident::Kills(kills) = &self.incident { Some(kills) } else { None }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, app) in self.apps.iter().enumerate() {
            writeln!(f, "  process {number}: {app:?}")?;
        }
        for Connection { ends, work, closes_early, is_ping_pong } in &self.connections {
            let of = |verb| work.each_ref().map(|work| work.iter().filter(|op| op.verb == verb).count());
            let counts = [Verb::Send, Verb::Write, Verb::Read].map(of);
            let pattern = if *is_ping_pong { "ping-pong" } else { "streams" };
            writeln!(
                f,
                "  {ends:?}: {pattern}, SEND, WRITE, READ {counts:?}, closes early {closes_early:?}"
            )?;
        }
        let place = if self.share_cpu { "applications 0 and 1 share a CPU, " } else { "" };
        writeln!(f, "  {place}{} of 1000000 points preempt a thread", self.preempt_ppm)?;
        writeln!(f, "  {:?}", self.extension)?;
        write!(f, "  {:?}, process {}: {:?}", self.faults, self.victim, self.incident)
    }
}

impl Connection {
    pub(super) fn draw(rng: &mut Rng, apps: &[App]) -> Self {
        let hosts = apps.len();
        let a = rng.between(0, hosts as u64 - 1) as usize;
        let b = (a + rng.between(1, hosts as u64 - 1) as usize) % hosts;
        if rng.chance(250) {
            return Self::ping_pong(rng, [a, b], apps);
        }
        let work = [Self::work(rng), if rng.chance(300) { Vec::new() } else { Self::work(rng) }];
        let only_sends = |work: &[Op]| work.iter().all(|op| op.verb == Verb::Send);
        // An end that closes early loses the READ responses that it still owes, and cannot see when the
        // peer's WRITEs have arrived. So the peer of such an end only SENDs.
        let closes_early = [1, 0].map(|peer: usize| only_sends(&work[peer]) && rng.chance(300));
        Self { ends: [a, b], work, closes_early, is_ping_pong: false }
    }

    /// As perftest's latency tests: the ends alternate with small messages of one kind.
    fn ping_pong(rng: &mut Rng, ends: [usize; 2], apps: &[App]) -> Self {
        // The arrival of a WRITE wakes no application that sleeps until a completion.
        let sleeps = ends.iter().any(|end| apps[*end].kind == Kind::Events);
        let verb = if sleeps { Verb::Send } else { rng.pick(&[Verb::Send, Verb::Write, Verb::Write]) };
        let (count, len) = (rng.pick(&[3, 20, 60]) as usize, rng.between(1, 64) as usize);
        let op =
            |i| Op { verb, offset: i * len, len, is_signaled: true, is_inline: false, joins_next: false };
        let work: Vec<Op> = (0..count).map(op).collect();
        // An end that spins on memory sees the last WRITE, although a WRITE generates no completion there.
        let sees_all = |end: usize| verb == Verb::Send || apps[end].kind == Kind::SpinOnMemory;
        let closes_early = ends.map(|end| sees_all(end) && rng.chance(500));
        Self { ends, work: [work.clone(), work], closes_early, is_ping_pong: true }
    }

    fn work(rng: &mut Rng) -> Vec<Op> {
        let only = rng.chance(400).then(|| rng.pick(&[Verb::Send, Verb::Write]));
        let (small, signal_every) = (rng.chance(600), rng.pick(&[1, 1, 4, 17]));
        let count = rng.pick(&[1, 3, 20, 60, 200]) as usize;
        let mut offset = 0;
        (0..count)
            .map(|i| {
                let verb =
                    only.unwrap_or_else(|| rng.pick(&[Verb::Send, Verb::Write, Verb::Write, Verb::Read]));
                let len =
                    if small { rng.between(1, 64) } else { rng.pick(&[8, 1_000, 1_025, 9_000, 70_000]) };
                let (len, at) = (len as usize, offset);
                offset += len;
                let is_signaled =
                    i + 1 == count || (i as u64 + 1).is_multiple_of(signal_every) || verb == Verb::Read;
                let joins_next = i + 1 < count && rng.chance(200);
                Op { verb, offset: at, len, is_signaled, is_inline: false, joins_next }
            })
            .collect()
    }
}
