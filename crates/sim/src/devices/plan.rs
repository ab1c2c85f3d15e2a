//! What a run is, drawn from the seed: hosts, links, connections, work and the applications that do it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use super::extension::Extension;
use super::network::Faults;
use crate::Rng;

/// Time of a calm run without work, and what a work request adds to it.
const CALM_NS: u64 = 10_000_000;
const REQUEST_NS: u64 = 30_000;
/// Time of a run with faults, stopped or killed processes.
const TIME_MAX_NS: u64 = 4_000_000_000;

/// How an application uses its device: models of real programs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// Polls in a loop (perftest).
    Poll,
    /// Takes up to 16 completions, leaves the others, posts up to 16 (UCX).
    Portions,
    /// Arms the CQ, sleeps until the event, drains the CQ.
    Events,
    /// Polls until its requests are complete, then spins on memory that the peer writes (perftest's latency tests).
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
    /// Posted in one list with the next one.
    pub(super) joins_next: bool,
}

/// A connection; `ends[i]` says which process has end `i`, `work[i]` what that end posts.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) ends: [usize; 2],
    pub(super) work: [Vec<Op>; 2],
    /// The end closes its queue pair as soon as it has what it waits for, without a word.
    pub(super) closes_early: [bool; 2],
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
}

/// What happens to a process on the way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Incident {
    None,
    /// SIGSTOP at the first time, SIGCONT at the second.
    Stop(u64, u64),
    /// SIGKILL.
    Kill(u64),
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
            misroute_ppm: 0,
            duplicate_ppm: if is_calm { 0 } else { rng.pick(&[0, 5_000]) },
            jitter_ns: if is_calm { 0 } else { rng.pick(&[0, 0, 10_000]) },
            delay_ns: rng.between(300, 20_000),
            byte_time: rng.pick(&[80, 800, 8_000]),
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
            // Two threads that sleep would take each other's events.
            let threads = if kind == Kind::Poll { rng.pick(&[1, 1, 2]) } else { 1 };
            let hook = if rng.chance(150) { "count" } else { "" };
            let depth = if kind == Kind::Rarely { 64 } else { rng.pick(&[1, 4, 16, 64]) };
            App { kind, threads, depth, hook }
        };
        let apps = (0..hosts).map(|_| app(rng)).collect();
        let connections = (0..rng.between(1, 4)).map(|_| Connection::draw(rng, hosts)).collect();
        Self {
            addresses,
            apps,
            connections,
            faults,
            victim: rng.between(0, hosts as u64 - 1) as usize,
            incident,
            port_limit_ns: rng.between(2_000, 50_000),
            window_bytes: rng.pick(&[16, 64, 320]) * 1024,
            extension: Extension::default(),
        }
    }

    /// No packet is dropped and no process disturbed, so that nothing has to wait for a timeout.
    pub(super) fn is_calm(&self) -> bool {
        self.faults.drop_ppm == 0 && self.incident == Incident::None
    }

    /// Virtual time (nanoseconds) in which a run ends. A calm one has a round trip and some polls for each work request,
    /// far less than its retransmission timeout: nothing that is repaired by one stays unseen.
    pub(super) fn time_ns(&self) -> u64 {
        if !self.is_calm() {
            return self.extension.time_max_ns().unwrap_or(TIME_MAX_NS);
        }
        let work = || self.connections.iter().flat_map(|connection| &connection.work).flatten();
        let (requests, bytes) = (work().count() as u64, work().map(|op| op.len as u64).sum::<u64>());
        CALM_NS
            + self.extension.calm_ns
            + requests * (2 * self.faults.delay_ns + REQUEST_NS)
            + ((2 * bytes * self.faults.byte_time) >> 10)
    }

    /// The local ACK timeout of every queue pair, as IBA encodes it: 134 ms or, so that a killed peer is noticed
    /// soon, 16.8 ms.
    pub(super) fn timeout(&self) -> u8 {
        match self.is_calm() {
            true => self.extension.calm_timeout.unwrap_or(15),
            false => 12,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, App { kind, threads, depth, hook }) in self.apps.iter().enumerate() {
            writeln!(f, "  process {number}: {kind:?}, {threads} threads, depth {depth}, hook {hook:?}")?;
        }
        for Connection { ends, work, closes_early } in &self.connections {
            let of = |verb| work.each_ref().map(|work| work.iter().filter(|op| op.verb == verb).count());
            let counts = [Verb::Send, Verb::Write, Verb::Read].map(of);
            writeln!(f, "  {ends:?}: SEND, WRITE, READ {counts:?}, closes early {closes_early:?}")?;
        }
        writeln!(f, "  {:?}", self.extension)?;
        write!(f, "  {:?}, process {}: {:?}", self.faults, self.victim, self.incident)
    }
}

impl Connection {
    pub(super) fn draw(rng: &mut Rng, hosts: usize) -> Self {
        let a = rng.between(0, hosts as u64 - 1) as usize;
        let b = (a + rng.between(1, hosts as u64 - 1) as usize) % hosts;
        let work = [Self::work(rng), if rng.chance(300) { Vec::new() } else { Self::work(rng) }];
        let only_sends = |work: &[Op]| work.iter().all(|op| op.verb == Verb::Send);
        // An end that leaves may take its responses to READs along, and cannot see when a WRITE has arrived.
        let closes_early = [1, 0].map(|peer: usize| only_sends(&work[peer]) && rng.chance(300));
        Self { ends: [a, b], work, closes_early }
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
                Op { verb, offset: at, len, is_signaled, joins_next }
            })
            .collect()
    }
}
