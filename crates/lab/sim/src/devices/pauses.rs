//! A process that has no CPU from time to time, as on a host with more runnable threads than CPUs: how many
//! packets the requester retransmits although none is lost, and whether its retries last.

use std::net::{IpAddr, Ipv4Addr};

use super::plan::{App, Connection, Incident, Kind, Op, Plan, Verb};
use super::{DeviceFailed, DeviceOptions, DeviceOutcome, run_plan};
use crate::devices::extension::Extension;
use crate::devices::faults::Faults;

/// What the requester posts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PausedVerb {
    /// SENDs.
    Send,
    /// WRITEs.
    Write,
    /// READs.
    Read,
}

/// The process that pauses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PausedSide {
    /// The one that posts the messages.
    Requester,
    /// Its peer.
    Responder,
    /// Both, the peer half a pause later.
    Both,
}

/// The messages of the requester, and the pauses of one of the two processes.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// What the requester posts.
    pub verb: PausedVerb,
    /// Number of messages, and bytes of each.
    pub messages: (usize, usize),
    /// The process that pauses.
    pub side: PausedSide,
    /// It has a CPU for so long at a time, and then none for so long (nanoseconds).
    pub run_pause_ns: (u64, u64),
    /// Packets that are lost, of a million.
    pub drop_ppm: u64,
    /// The local ACK timeout of both queue pairs, as IBA encodes it.
    pub timeout: u8,
}

/// Runs two devices: process 0 posts messages to process 1, and one of them pauses, or both. The retry count
/// is 7. The outcome counts what the requester retransmitted.
///
/// # Errors
/// The first broken promise.
pub fn run_pauses(options: &DeviceOptions, pauses: &Pauses) -> Result<DeviceOutcome, DeviceFailed> {
    let verb = match pauses.verb {
        PausedVerb::Send => Verb::Send,
        PausedVerb::Write => Verb::Write,
        PausedVerb::Read => Verb::Read,
    };
    let (count, len) = pauses.messages;
    let op = |n| Op { verb, offset: n * len, len, is_signaled: true, is_inline: false, joins_next: false };
    let app = App {
        kind: Kind::Poll,
        threads: 1,
        depth: 4,
        hook: "",
        pause_after: 0,
        pause_ns: 0,
        moderation: (0, 0),
    };
    let (run_ns, pause_ns) = pauses.run_pause_ns;
    let plan = Plan {
        addresses: [1, 2].map(|i| IpAddr::V4(Ipv4Addr::new(10, 0, 0, i))).into(),
        apps: vec![app; 2],
        connections: vec![Connection {
            ends: [0, 1],
            work: [(0..count).map(op).collect(), Vec::new()],
            closes_early: [false; 2],
            is_ping_pong: false,
        }],
        // A veth pair: 10 us away, 1.3 GB/s.
        faults: Faults {
            drop_ppm: pauses.drop_ppm,
            delay_ns: 10_000,
            byte_time: 800,
            is_trusted: true,
            ..Faults::default()
        },
        victim: match pauses.side {
            PausedSide::Requester | PausedSide::Both => 0,
            PausedSide::Responder => 1,
        },
        incident: Incident::Pauses {
            run_ns,
            pause_ns,
            both: pauses.side == PausedSide::Both,
            timeout: pauses.timeout,
        },
        port_limit_ns: 50_000,
        window_bytes: 320 * 1024,
        preempt_ppm: 0,
        share_cpu: false,
        extension: Extension::default(),
    };
    run_plan(options, &plan)
}
