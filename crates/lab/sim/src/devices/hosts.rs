//! Runs with hosts that have several devices: one process of a host listens on all of them.
//!
//! Goal: a request to any address of such a host is delivered once, by the device that has the address. A
//! link that is down for less than the time of all retries loses nothing. After a netdev is lost, the queue
//! pairs of its device fail, and those of the other devices go on. Method: each device has an address, a slot
//! and an application; the devices of a host share its QP1 socket and its process registry. One thread of a
//! host listens on the wildcard address, and connects by routes or by a source address
//! ([`roxie::cm::Id::of_any`]). It knows the first device only; the others are found, and opened, when a
//! request for them comes, or when they are looked for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roxie::cm::Devices;
use roxie::runtime::World;
use roxie::verbs::{Context, Device};
use sys::Route;
use transport::QpState;

use super::app::Process;
use super::extension::{CM_CALM_NS, CM_REPEAT_NS, CmPlan, Extension, Hosts, LISTENS_LATE_NS};
use super::faults::Faults;
use super::frame::{REP, REQ};
use super::kills::{app, connection};
use super::plan::{App, Connection, Incident, Plan};
use super::threads::Threads;
use crate::Rng;

/// The seeds with such hosts, of 1000: none of those that failed before there were such runs.
const SHARE: Range<u64> = 500..620;
/// Devices of the two hosts.
const SIZES: [[usize; 2]; 6] = [[1, 2], [1, 2], [2, 2], [1, 4], [4, 1], [2, 4]];
/// What the opening of a further device takes (nanoseconds): without another process, with some, and with
/// many that answer slowly.
const OPENINGS_NS: [u64; 4] = [10_000, 300_000, 10_000_000, 300_000_000];
/// The local ACK timeout of every queue pair, as IBA encodes it: 67 ms.
const TIMEOUT: u8 = 14;
/// How long a link is down (nanoseconds): at most half of the time after which a requester gives up.
const DOWN_NS: [u64; 5] = [100_000, 2_000_000, 30_000_000, 100_000_000, 250_000_000];
/// Longest wait for a connection before the netdev is removed, and the interval of the checks (nanoseconds):
/// the attempts of a run begin within 20 ms.
const CONNECTED_NS: u64 = 100_000_000;
const LOOK_NS: u64 = 10_000;

/// The devices of a host, as the identifiers of a process see them.
pub(super) struct HostDevices {
    processes: Vec<Arc<Process>>,
    /// The address of each.
    addresses: Vec<IpAddr>,
    threads: Arc<Threads>,
    opening_ns: u64,
    /// The devices after the first have been looked for.
    knows_all: AtomicBool,
}

impl HostDevices {
    pub(super) fn new(plan: &Plan, hosts: &Hosts, processes: &[Arc<Process>]) -> Self {
        let threads = Arc::clone(&processes[0].threads);
        let addresses = processes.iter().map(|process| plan.addresses[process.number]).collect();
        let (processes, opening_ns) = (processes.to_vec(), hosts.opening_ns);
        Self { processes, addresses, threads, opening_ns, knows_all: AtomicBool::new(false) }
    }

    /// The source address that the route to `dst` has: networks of the peer are spread over the devices.
    fn source_to(&self, dst: IpAddr) -> IpAddr {
        let network = if let IpAddr::V4(v4) = dst { v4.octets()[2] } else { 0 };
        self.addresses[usize::from(network) % self.addresses.len()]
    }

    /// The source address that a connection from a device to `dst` must name; `None` if the route already
    /// selects it.
    pub(super) fn source(&self, process: usize, dst: IpAddr) -> Option<SocketAddr> {
        let of = self.processes.iter().position(|known| known.number == process)?;
        let is_by_route = !self.addresses.contains(&dst) && self.source_to(dst) == self.addresses[of];
        (!is_by_route).then(|| SocketAddr::new(self.addresses[of], 0))
    }
}

impl Devices for HostDevices {
    fn devices(&self, again: bool) -> io::Result<Vec<Device>> {
        if again && !self.knows_all.load(Ordering::Relaxed) {
            self.threads.compute(self.opening_ns);
            self.knows_all.store(true, Ordering::Relaxed);
        }
        let known = if self.knows_all.load(Ordering::Relaxed) { self.processes.len() } else { 1 };
        let known = self.processes[..known].iter();
        Ok(known.map(|process| process.channel.context().device().clone()).collect())
    }

    fn context(&self, device: &Device) -> io::Result<Context> {
        let mut contexts = self.processes.iter().map(|process| process.channel.context());
        contexts.find(|context| context.device() == device).cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    fn route(&self, dst: IpAddr, _src: Option<IpAddr>, oif: u32) -> io::Result<Route> {
        let is_local = self.addresses.contains(&dst);
        Ok(Route { oif, prefsrc: Some(self.source_to(dst)), gateway: None, is_local })
    }
}

/// What happens to the link or the netdev of the victim.
pub(super) fn start_incident(plan: &Plan, threads: &Arc<Threads>, victim: &Arc<Process>) {
    let (incident, victim, threads) = (plan.incident.clone(), Arc::clone(victim), Arc::clone(threads));
    let of_victim = victim.number;
    let body = {
        let threads = Arc::clone(&threads);
        move || match incident {
            Incident::LinkDown(from, to) => {
                threads.sleep(&[], from);
                threads.network.set_link(of_victim, false);
                threads.sleep(&[], to);
                threads.network.set_link(of_victim, true);
            }
            Incident::NetdevLost(from, to) => {
                threads.sleep(&[], from);
                while !threads.is_over() && threads.now_ns() < to && working(&victim).is_none() {
                    threads.sleep(&[], threads.now_ns() + LOOK_NS);
                }
                threads.network.set_link(of_victim, false);
                victim.channel.context().device().lose_simulated_netdev();
                if let Some(end) = working(&victim) {
                    threads.fail(format!("end {end} works after its netdev was lost"));
                }
            }
            _ => {}
        }
    };
    threads.start_outside(Box::new(body));
}

/// Returns an end of the victim with a queue pair that can send or receive.
fn working(victim: &Process) -> Option<u64> {
    let qps: Vec<_> = victim.endpoints().iter().map(|end| (end.number, end.qp.clone())).collect();
    let works = |state| !matches!(state, QpState::Reset | QpState::Init | QpState::Err);
    qps.into_iter().find(|(_, qp)| works(qp.state())).map(|(end, _)| end)
}

/// Draws a run with such hosts for some of the seeds.
pub(super) fn draw(seed: u64) -> Option<Plan> {
    let rng = &mut Rng::stream(seed, super::HOSTS);
    if !SHARE.contains(&rng.between(0, 999)) {
        return None;
    }
    let sizes = rng.pick(&SIZES);
    let mut hosts = Hosts { of: Vec::new(), opening_ns: rng.pick(&OPENINGS_NS) };
    let mut addresses = Vec::new();
    for (host, size) in sizes.into_iter().enumerate() {
        for device in 0..size {
            hosts.of.push(host);
            addresses.push(IpAddr::V4(Ipv4Addr::new(10, 0, device as u8, host as u8 + 1)));
        }
    }
    let apps: Vec<App> = addresses.iter().map(|_| app(rng)).collect();
    let busy = rng.chance(500);
    let (mut connections, mut cm) = (Vec::new(), Vec::new());
    for (ends, active) in pairs(rng, &hosts) {
        connections.push(Connection { ends, ..connection(rng, busy, &apps) });
        cm.push(CmPlan {
            active,
            at_ns: super::START_NS + rng.pick(&[50_000, 100_000, 400_000, 20_000_000]),
            is_rejected: false,
            leaves_first: rng.pick(&[[true, false], [false, true], [true, true]]),
        });
    }
    let at = super::START_NS + rng.pick(&[50_000, 150_000, 400_000, 1_000_000, 21_000_000]);
    let incident = match rng.between(0, 3) {
        0 | 1 => Incident::LinkDown(at, at + rng.pick(&DOWN_NS)),
        2 => Incident::NetdevLost(at, at + rng.pick(&[0, CONNECTED_NS])),
        _ => Incident::None,
    };
    let listens_late_ns = rng.pick(&[0, 0, LISTENS_LATE_NS]);
    let gsi_lost = rng.pick(&[None, None, Some((REQ, 1)), Some((REP, 1))]);
    let repeats_ns = gsi_lost.map_or(0, |_| CM_REPEAT_NS);
    let calm_ns = CM_CALM_NS + 2 * hosts.opening_ns + listens_late_ns + repeats_ns + 20_000_000;
    let victim = rng.between(0, addresses.len() as u64 - 1) as usize;
    let (cm, hosts) = (Some(cm), Some(hosts));
    Some(Plan {
        addresses,
        apps,
        connections,
        faults: Faults {
            gsi_lost,
            delay_ns: rng.between(300, 20_000),
            byte_time: rng.pick(&[80, 800]),
            is_trusted: true,
            ..Faults::default()
        },
        victim,
        incident,
        port_limit_ns: rng.between(2_000, 50_000),
        window_bytes: rng.pick(&[16, 64, 320]) * 1024,
        preempt_ppm: rng.pick(&[0, 2_000]),
        share_cpu: false,
        extension: Extension { calm_ns, calm_timeout: Some(TIMEOUT), cm, listens_late_ns, hosts },
    })
}

/// The devices of each connection, and the end that sends the request: each further device gets a request
/// from another host, and some get more, also from their own host.
fn pairs(rng: &mut Rng, hosts: &Hosts) -> Vec<([usize; 2], usize)> {
    let last = hosts.of.len() as u64 - 1;
    let mut pairs = Vec::new();
    for device in 0..hosts.of.len() {
        let others: Vec<usize> = hosts.devices(1 - hosts.of[device]).collect();
        // The first device of each host keeps the port, so requests to the others are the interesting ones.
        if hosts.listener_of(device) != device || rng.chance(300) {
            pairs.push(([rng.pick(&others), device], 0));
        }
    }
    for _ in 0..rng.between(0, 2) {
        let a = rng.between(0, last) as usize;
        let b = (a + rng.between(1, last) as usize) % hosts.of.len();
        pairs.push(([a, b], rng.between(0, 1) as usize));
    }
    pairs
}
