//! Runs in which processes are killed (SIGKILL), and the time in which their peers must be told.
//!
//! Goal: the peers of a killed process hear of its death soon, whichever processes of its host die with it.
//! Method: the processes of one host have connections to those of another; the connection manager makes them.
//! Some processes of the second host are killed, at once or one soon after another. Each peer waits until it
//! is told, by an event or by a completion with an error.
//!
//! A peer is told within 3 s from the time at which the kernel has ended the killed process. If no process of
//! its host is left, this is the time at which the last one has released the port: only then the kernel sends
//! ICMP messages. A stopped survivor and a network that loses many messages of the connection manager have
//! more time: each message that tells of a death is sent once per second. Without ICMP messages and without
//! another process on the host of the killed one nothing tells an idle peer, as with hardware.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;

use super::deaths::{Death, Kills};
use super::extension::{CmPlan, Extension};
use super::faults::Faults;
use super::plan::{App, Connection, Incident, KINDS, Kind, Plan};
use crate::Rng;

/// The seeds with killed processes, of 1000: none of those that failed before there were such runs.
const SHARE: Range<u64> = 50..250;
/// A peer is told in this time (nanoseconds), or in the longer one if 10 % of the messages are lost.
const TOLD_NS: u64 = 3_000_000_000;
const LOSSY_NS: u64 = 6_000_000_000;
/// How late the connection manager's thread of an application may see what it is told (nanoseconds).
pub(super) const LATE_NS: u64 = 10_000_000;
/// A killed process exits after this time (nanoseconds): its connections to other processes break. On a busy
/// host the kernel takes longer, as for a process with much memory.
const EXITS_NS: [u64; 5] = [0, 0, 1_000_000, 50_000_000, 700_000_000];
/// Its names and sockets are closed so much later.
const RELEASES_NS: [u64; 4] = [0, 1_000_000, 50_000_000, 400_000_000];
/// Between two kills: 0, and the times in which the first death is noticed and its journal is scanned.
const GAPS_NS: [u64; 8] = [0, 0, 0, 20_000, 200_000, 2_000_000, 100_000_000, 300_000_000];

/// Draws a run with killed processes for some of the seeds.
pub(super) fn draw(seed: u64) -> Option<Plan> {
    let rng = &mut Rng::stream(seed, super::KILLS);
    if !SHARE.contains(&rng.between(0, 999)) {
        return None;
    }
    let (peers, victims) = (rng.pick(&[1, 1, 2, 3]), rng.pick(&[1, 2, 2, 3]));
    let survivors = rng.pick(&[0, 0, 1, 1, 2]);
    let has_late = survivors == 0 && rng.chance(400);
    let host = |number, count| vec![IpAddr::V4(Ipv4Addr::new(10, 0, 0, number)); count];
    let there = victims + survivors + usize::from(has_late);
    let addresses = [host(1, peers), host(2, there)].concat();
    let apps: Vec<App> = addresses.iter().map(|_| app(rng)).collect();
    let busy = rng.chance(500);
    let connections: Vec<Connection> = pairs(rng, peers, victims, survivors)
        .into_iter()
        .map(|ends| Connection { ends, ..connection(rng, busy, &apps) })
        .collect();
    let kills = kills(rng, (peers, victims, survivors, has_late), busy);
    let cm = connections.iter().map(|connection| cm_plan(rng, kills.kills(connection.ends[1]))).collect();
    let is_lossy = rng.chance(250);
    let gsi_drop_ppm = if is_lossy { rng.pick(&[10_000, 100_000]) } else { 0 };
    // A firewall may drop all ICMP messages.
    let icmp_drop_ppm = if is_lossy { rng.pick(&[0, 100_000, 1_000_000]) } else { 0 };
    let faults = Faults {
        drop_ppm: if is_lossy { 10_000 } else { 0 },
        gsi_drop_ppm,
        icmp_drop_ppm: Some(icmp_drop_ppm),
        delay_ns: rng.between(300, 20_000),
        byte_time: rng.pick(&[80, 800]),
        is_trusted: true,
        ..Faults::default()
    };
    let told_ns = if gsi_drop_ppm.max(icmp_drop_ppm) >= 100_000 { LOSSY_NS } else { TOLD_NS };
    let has_witness = icmp_drop_ppm < 1_000_000 || survivors > 0;
    let told_ns = has_witness.then_some(told_ns + kills.stop.map_or(0, |(_, from, to)| to - from));
    Some(Plan {
        addresses,
        apps,
        connections,
        faults,
        victim: 0,
        incident: Incident::Kills(Kills { told_ns, ..kills }),
        port_limit_ns: rng.between(2_000, 50_000),
        window_bytes: rng.pick(&[16, 64, 320]) * 1024,
        preempt_ppm: rng.pick(&[0, 2_000]),
        share_cpu: false,
        extension: Extension { cm: Some(cm), ..Extension::default() },
    })
}

/// Neither end leaves a connection with a victim, but for some that are ended just then.
fn cm_plan(rng: &mut Rng, is_of_victim: bool) -> CmPlan {
    let may_leave = if is_of_victim { 100 } else { 500 };
    CmPlan {
        active: rng.between(0, 1) as usize,
        at_ns: super::START_NS + rng.pick(&[50_000, 100_000, 400_000]),
        is_rejected: false,
        leaves_first: [rng.chance(may_leave) || !is_of_victim, rng.chance(may_leave)],
    }
}

/// The processes of each connection: every victim has one, and some have more; so have some survivors.
fn pairs(rng: &mut Rng, peers: usize, victims: usize, survivors: usize) -> Vec<[usize; 2]> {
    let mut pairs = Vec::new();
    let mut add = |rng: &mut Rng, there| pairs.push([rng.between(0, peers as u64 - 1) as usize, there]);
    for victim in peers..peers + victims {
        // A process without connections may be the one that would tell the peers of another.
        for _ in 0..if victim == peers { 1 } else { rng.pick(&[0, 1, 1, 2]) } {
            add(rng, victim);
        }
    }
    for survivor in peers + victims..peers + victims + survivors {
        if rng.chance(300) {
            add(rng, survivor);
        }
    }
    pairs
}

pub(super) fn app(rng: &mut Rng) -> App {
    let kind = rng.pick(&KINDS);
    let depth = if kind == Kind::Rarely { 64 } else { rng.pick(&[1, 4, 16]) };
    App { kind, threads: 1, depth, hook: "", pause_after: 0, pause_ns: 0, moderation: (0, 0) }
}

/// Streams in one or both directions if it is busy; else a few messages or none.
pub(super) fn connection(rng: &mut Rng, busy: bool, apps: &[App]) -> Connection {
    let mut drawn = loop {
        let drawn = Connection::draw(rng, apps);
        if !drawn.is_ping_pong {
            break drawn;
        }
    };
    for work in &mut drawn.work {
        if !busy || rng.chance(300) {
            work.clear();
        }
    }
    Connection { closes_early: [false; 2], ..drawn }
}

fn kills(
    rng: &mut Rng,
    (peers, victims, survivors, has_late): (usize, usize, usize, bool),
    busy: bool,
) -> Kills {
    // Work ends after some milliseconds. Connections are made in 0.2 ms.
    let first_ns = if busy || rng.chance(300) {
        rng.between(1_050_000, 1_600_000)
    } else {
        rng.pick(&[3_000_000, 500_000_000, 1_500_000_000]) + rng.between(0, 999_000)
    };
    let mut victims_in_order: Vec<usize> = (peers..peers + victims).collect();
    shuffle(rng, &mut victims_in_order);
    let (mut at_ns, mut deaths) = (first_ns, Vec::new());
    for process in victims_in_order {
        let (exits_ns, releases_ns) = (rng.pick(&EXITS_NS), rng.pick(&RELEASES_NS));
        deaths.push(Death { process, at_ns, exits_ns, releases_ns });
        at_ns += rng.pick(&GAPS_NS);
    }
    let there: Vec<usize> = (peers..peers + victims + survivors).collect();
    // Each process has joined through an earlier one; the order is drawn.
    let mut joined = there.clone();
    shuffle(rng, &mut joined);
    let through = |n: usize, rng: &mut Rng| joined[rng.between(0, n as u64 - 1) as usize];
    let neighbours = (1..joined.len()).map(|n| (joined[n], through(n, rng))).collect();
    let stop = (survivors > 0 && rng.chance(250)).then(|| {
        let from = first_ns.saturating_sub(rng.pick(&[0, 100_000])).max(super::START_NS);
        let survivor = peers + victims + rng.between(0, survivors as u64 - 1) as usize;
        (survivor, from, from + rng.pick(&[1_000_000, 100_000_000, 500_000_000]))
    });
    let starts =
        has_late.then(|| (peers + victims, first_ns + rng.pick(&[100_000, 50_000_000, 400_000_000])));
    let timeout = rng.pick(&[14, 17, 17]);
    let survives = survivors > 0;
    Kills { deaths, stop, neighbours, starts, survives, peers, timeout, told_ns: None }
}

fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, rng.between(0, at as u64) as usize);
    }
}
