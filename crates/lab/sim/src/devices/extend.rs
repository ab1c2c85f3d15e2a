//! Extensions of a basic plan: hooks that impair packets, two processes on one host, connections made by the
//! connection manager. They have a random stream of their own, so they do not change what the basic plan
//! draws from a seed.

use super::extension::{CM_CALM_NS, CM_REPEAT_NS, CmPlan, LISTENS_LATE_NS};
use super::frame::{DREP, DREQ, REP, REQ, RTU};
use super::plan::{App, Connection, KINDS, Kind, Plan};
use crate::Rng;

/// The hooks, of which a process draws one, if the network of the run loses packets. None of them delays a
/// packet past an ACK timeout.
const IMPAIRMENTS: [&str; 5] = [
    "impair:delay=20us,seed=1",
    "impair:loss=1%,delay=50us,seed=2",
    "impair:loss=0.5%,jitter=30us,seed=3",
    "count+impair:delay=5us,duplicate=1%,seed=4+count",
    "impair:loss=0.1%,delay=200us,jitter=100us,seed=5",
];

/// Additional time (ns) of a calm run in which packets reach the wrong process of a host. While its
/// application polls, a process reads forwarded packets only every few milliseconds.
const MISROUTED_NS: u64 = 1_000_000_000;
/// Local ACK timeout of a calm run with misrouted packets, as IBA encodes it: 4.3 s, longer than the run, so
/// a packet that only a timeout would retransmit fails the run.
const MISROUTED_TIMEOUT: u8 = 20;

/// Longest inline message (bytes).
const INLINE_MAX: usize = 64;

/// Draws the extensions of a plan.
pub(super) fn extend(plan: &mut Plan, seed: u64) {
    let rng = &mut Rng::stream(seed, super::EXTENSION);
    if plan.faults.drop_ppm > 0 {
        for app in &mut plan.apps {
            if rng.chance(250) {
                app.hook = rng.pick(&IMPAIRMENTS);
            }
        }
    }
    plan.faults.gsi_drop_ppm = plan.faults.drop_ppm;
    // Only streams of applications without pauses end within the time of these runs. A rejected connection
    // would leave one end of a ping-pong waiting, and a misrouted packet of a ping-pong may wait for a
    // timeout.
    let has_plain_apps = plan.apps.iter().all(|app| app.pause_ns == 0) && !plan.share_cpu;
    if !has_plain_apps || plan.connections.iter().any(|connection| connection.is_ping_pong) {
        return;
    }
    if rng.chance(300) {
        share_host(plan, rng);
    }
    if rng.chance(300) {
        use_cm(plan, rng);
    }
}

/// Adds a process that shares the host of another one, with connections to some of the others.
fn share_host(plan: &mut Plan, rng: &mut Rng) {
    let number = plan.apps.len();
    let other = |rng: &mut Rng| rng.between(0, number as u64 - 1) as usize;
    plan.addresses.push(plan.addresses[other(rng)]);
    let kind = rng.pick(&KINDS);
    let depth = if kind == Kind::Rarely { 64 } else { rng.pick(&[1, 4, 16, 64]) };
    plan.apps.push(App {
        kind,
        threads: 1,
        depth,
        hook: "",
        pause_after: 0,
        pause_ns: 0,
        moderation: (0, 0),
    });
    for _ in 0..rng.between(1, 2) {
        let mut ends = [number, other(rng)];
        if rng.chance(500) {
            ends.reverse();
        }
        let drawn = loop {
            let drawn = Connection::draw(rng, &plan.apps);
            if !drawn.is_ping_pong {
                break drawn;
            }
        };
        plan.connections.push(Connection { ends, ..drawn });
    }
    plan.faults.misroute_ppm = rng.pick(&[0, 1_000, 20_000]);
    if plan.faults.misroute_ppm > 0 {
        plan.extension.calm_ns += MISROUTED_NS;
        plan.extension.calm_timeout = Some(MISROUTED_TIMEOUT);
    }
}

/// Lets the connection manager make all connections.
fn use_cm(plan: &mut Plan, rng: &mut Rng) {
    let connection = |_| CmPlan {
        active: rng.between(0, 1) as usize,
        at_ns: super::START_NS + rng.pick(&[50_000, 100_000, 400_000]),
        is_rejected: rng.chance(80),
        leaves_first: rng.pick(&[[true, false], [false, true], [true, true]]),
    };
    plan.extension.cm = Some(plan.connections.iter().map(connection).collect());
    // As libfabric injects its last message: without a completion, and if it is a reply without AckReq. The
    // end then waits until its peer leaves: if it left first, its own disconnect would flush the message.
    for connection in &mut plan.connections {
        let closes_early = connection.closes_early;
        for (end, work) in connection.work.iter_mut().enumerate() {
            let peer_leaves = closes_early[1 - end];
            if let Some(last) = work.last_mut().filter(|op| peer_leaves && op.len <= INLINE_MAX)
                && rng.chance(700)
                && !closes_early[end]
            {
                (last.is_signaled, last.is_inline) = (false, true);
            }
        }
    }
    plan.extension.calm_ns += CM_CALM_NS;
    if plan.faults.drop_ppm > 0 {
        plan.faults.gsi_drop_ppm = rng.pick(&[10_000, 100_000, 300_000]);
    }
    if plan.is_calm() {
        disturb_cm(plan, rng);
    }
}

/// Lets listeners begin after the requests for them, or lets the first messages of one kind be lost. The
/// connections must be made and ended all the same, at the first repetition that arrives.
fn disturb_cm(plan: &mut Plan, rng: &mut Rng) {
    if rng.chance(300) {
        plan.extension.listens_late_ns = LISTENS_LATE_NS;
        plan.extension.calm_ns += LISTENS_LATE_NS;
    }
    // A long ACK timeout would make these times longer, too.
    if plan.extension.calm_timeout.is_none() && rng.chance(500) {
        let (kind, count) = (rng.pick(&[REQ, REP, RTU, DREQ, DREP]), rng.pick(&[1, 1, 2]));
        plan.faults.gsi_lost = Some((kind, count));
        plan.extension.calm_ns += u64::from(count) * CM_REPEAT_NS;
    }
}
