//! ICMP port unreachable: what the kernel of a host without a process answers, and how often.
//!
//! The limits are those of Linux (net/ipv4/icmp.c, inet_peer_xrlim_allow): each host sends 1000 messages per
//! second and 50 at once, and to each destination one per second and 6 at once (icmp_msgs_per_sec,
//! icmp_msgs_burst, icmp_ratelimit).

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use roxie::port::RefusedKind;

/// Time (ns) that one message costs, and the most that is saved for later: of a host, and to one destination.
const HOST: (u64, u64) = (1_000_000, 50_000_000);
const DESTINATION: (u64, u64) = (1_000_000_000, 6_000_000_000);

/// A budget of time that grows as time passes.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    saved_ns: u64,
    at_ns: u64,
}

impl Budget {
    /// Whether one more message may leave; counts it.
    fn take(&mut self, now: u64, (cost_ns, most_ns): (u64, u64)) -> bool {
        self.saved_ns = (self.saved_ns + (now - self.at_ns)).min(most_ns);
        self.at_ns = now;
        let may = self.saved_ns >= cost_ns;
        self.saved_ns -= if may { cost_ns } else { 0 };
        may
    }
}

/// A message that waits in the error queue of its process: when it arrives, the destination of the packet,
/// and the packet.
#[derive(Debug)]
struct Refused {
    at_ns: u64,
    kind: RefusedKind,
    packet: (IpAddr, Vec<u8>),
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Icmp {
    hosts: BTreeMap<IpAddr, Budget>,
    destinations: BTreeMap<(IpAddr, IpAddr), Budget>,
    queues: Vec<VecDeque<Refused>>,
}

impl Icmp {
    pub(super) fn new(processes: usize) -> Self {
        let queues = (0..processes).map(|_| VecDeque::new()).collect();
        Self { hosts: BTreeMap::new(), destinations: BTreeMap::new(), queues }
    }

    /// Whether host `pair.0` may send one more message to `pair.1`; counts it.
    pub(super) fn may_send(&mut self, now: u64, pair: (IpAddr, IpAddr)) -> bool {
        let idle = |(_, most_ns)| Budget { saved_ns: most_ns, at_ns: now };
        self.hosts.entry(pair.0).or_insert_with(|| idle(HOST)).take(now, HOST)
            && self.destinations.entry(pair).or_insert_with(|| idle(DESTINATION)).take(now, DESTINATION)
    }

    pub(super) fn send(&mut self, process: usize, at_ns: u64, kind: RefusedKind, packet: (IpAddr, Vec<u8>)) {
        self.queues[process].push_back(Refused { at_ns, kind, packet });
    }

    /// Takes the messages of one kind that have arrived at a process.
    pub(super) fn take(&mut self, process: usize, now: u64, kind: RefusedKind) -> Vec<(IpAddr, Vec<u8>)> {
        let queue = &mut self.queues[process];
        let (taken, left) = std::mem::take(queue)
            .into_iter()
            .partition(|refused| refused.kind == kind && refused.at_ns <= now);
        *queue = left;
        let taken: VecDeque<Refused> = taken;
        taken.into_iter().map(|refused| refused.packet).collect()
    }
}
