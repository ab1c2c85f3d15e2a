//! Workloads: which host sends how much to which, and when.

use super::events::Event;
use super::frame::bytes_on_link;
use super::host::{Done, Hosts};
use super::mix::unit;
use super::network::Network;
use super::spec::{Kind, Spec, Workload};
use super::topology::flow_hash;
use crate::rng::Rng;

/// Bytes of a flow without end.
const ENDLESS: u64 = 1 << 50;
/// BTH and RETH: a long WRITE leaves as WRITE Only packets.
const HEADERS: u64 = 28;

/// A transfer from one host to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) workload: u16,
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) bytes: u64,
    pub(super) start_ps: u64,
    /// When the receiver had all bytes.
    pub(super) end_ps: Option<u64>,
    /// How long it takes in an empty network.
    pub(super) ideal_ps: u64,
    /// The sender's end of the connection.
    pub(super) end: u32,
    pub(super) is_failed: bool,
}

impl Flow {
    pub(super) fn is_endless(&self) -> bool {
        self.bytes == ENDLESS
    }
}

/// The parts of the world that a workload uses.
pub(super) struct Site<'a> {
    pub(super) hosts: &'a mut Hosts,
    pub(super) network: &'a mut Network,
    pub(super) now: u64,
}

/// What a workload remembers.
enum State {
    /// Flows to start, the next one last: time, sender, receiver.
    Listed(Vec<(u64, u32, u32)>),
    Random,
    /// For each host, how many others it has begun to send to.
    AllToAll(Vec<u32>),
    Ring {
        /// The end of each host towards the next.
        ends: Vec<u32>,
        received: Vec<u32>,
    },
    Tree {
        /// The end of each host but the root towards its parent, and of the parent towards it.
        up: Vec<u32>,
        down: Vec<u32>,
        /// Children from which no sum has arrived.
        awaited: Vec<u32>,
    },
}

struct Running {
    workload: Workload,
    state: State,
    rng: Rng,
    /// Messages of a collective that are still to arrive.
    left: u64,
}

/// A collective operation that is complete.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Collective {
    /// Which.
    pub kind: Kind,
    /// Bytes of the vector.
    pub bytes: u64,
    /// From its start to the last message.
    pub seconds: f64,
}

/// All workloads and their flows.
pub(super) struct Works {
    running: Vec<Running>,
    pub(super) flows: Vec<Flow>,
    /// Flows with an end that are not complete.
    pub(super) incomplete: u64,
    /// Start events to come.
    pub(super) to_start: u64,
    pub(super) collectives: Vec<Collective>,
    hosts: u32,
    host_bps: f64,
    mtu: u64,
    duration_ps: u64,
}

impl Works {
    pub(super) fn new(spec: &Spec, hosts: usize, seed: u64) -> Self {
        let running = spec.workload.iter().zip(200..).map(|(workload, purpose)| Running {
            state: State::Random,
            workload: workload.clone(),
            rng: Rng::stream(seed, purpose),
            left: 0,
        });
        Self {
            running: running.collect(),
            flows: Vec::new(),
            incomplete: 0,
            to_start: 0,
            collectives: Vec::new(),
            hosts: hosts as u32,
            host_bps: spec.rate.bps as f64,
            mtu: spec.mtu as u64,
            duration_ps: spec.duration.ps,
        }
    }

    /// Prepares all workloads and adds their first events.
    pub(super) fn begin(&mut self, hosts: &mut Hosts, network: &mut Network) {
        for index in 0..self.running.len() {
            let running = &mut self.running[index];
            let Workload { kind, start, dscp, .. } = running.workload;
            let mut connect = |from, to| hosts.connect(from, to, dscp, false).unwrap_or(u32::MAX);
            let count = self.hosts;
            running.state = match kind {
                Kind::Incast if running.workload.every.is_some() => State::Random,
                Kind::Poisson => State::Random,
                Kind::Incast => {
                    let senders = running.workload.senders.unwrap_or(count as usize - 1) as u64;
                    let at = |n: u64| start.ps + n * running.workload.stagger.ps;
                    State::Listed((0..senders).rev().map(|n| (at(n), n as u32, count - 1)).collect())
                }
                Kind::Permutation => {
                    let to = derangement(count, &mut running.rng);
                    State::Listed(to.into_iter().zip(0..).map(|(to, from)| (start.ps, from, to)).collect())
                }
                Kind::AllToAll => State::AllToAll(vec![0; count as usize]),
                Kind::RingAllReduce => {
                    running.left = 2 * u64::from(count) * u64::from(count - 1);
                    let ends = (0..count).map(|host| connect(host, (host + 1) % count)).collect();
                    State::Ring { ends, received: vec![0; count as usize] }
                }
                Kind::TreeAllReduce => {
                    running.left = 2 * u64::from(count - 1);
                    let children = |host| [2 * host + 1, 2 * host + 2].into_iter().filter(|n| *n < count);
                    State::Tree {
                        up: (1..count).map(|host| connect(host, (host - 1) / 2)).collect(),
                        down: (1..count).map(|host| connect((host - 1) / 2, host)).collect(),
                        awaited: (0..count).map(|host| children(host).count() as u32).collect(),
                    }
                }
            };
            self.schedule(index, start.ps, network);
        }
    }

    fn schedule(&mut self, index: usize, at_ps: u64, network: &mut Network) {
        self.to_start += 1;
        network.events.add(at_ps, Event::Work(index as u32));
    }

    /// A workload starts its next flows.
    pub(super) fn start(&mut self, index: usize, site: &mut Site<'_>) {
        self.to_start -= 1;
        let count = self.hosts;
        let Workload { kind, size, every, .. } = self.running[index].workload;
        let running = &mut self.running[index];
        let size = size.map_or(ENDLESS, |size| size.0);
        match &mut running.state {
            State::Listed(flows) => {
                let mut due = Vec::new();
                while let Some(flow) = flows.pop_if(|(at, ..)| *at <= site.now) {
                    due.push(flow);
                }
                let next = flows.last().map(|(at, ..)| *at);
                for (_, from, to) in due {
                    self.begin_flow(index, from, to, size, site);
                }
                next.into_iter().for_each(|at| self.schedule(index, at, site.network));
            }
            State::Random if kind == Kind::Poisson => self.arrival(index, site),
            State::Random => {
                let senders = running.workload.senders.unwrap_or(count as usize - 1) as u32;
                let to = running.rng.between(0, u64::from(count) - 1) as u32;
                let first = running.rng.between(1, u64::from(count) - 1) as u32;
                // Different hosts, spread over the network.
                let step = (count - 1) / senders;
                let others = (0..senders).map(|n| 1 + (first - 1 + n * step) % (count - 1));
                for other in others {
                    self.begin_flow(index, (to + other) % count, to, size, site);
                }
                let next = site.now + every.map_or(0, |every| every.ps);
                if next < self.duration_ps {
                    self.schedule(index, next, site.network);
                }
            }
            State::AllToAll(_) => {
                let parallel = running.workload.parallel.unwrap_or(1).min(count as usize - 1);
                for host in 0..count {
                    (0..parallel).for_each(|_| self.next_of_all(index, host, site));
                }
            }
            State::Ring { ends, .. } => {
                for (host, end) in (0..).zip(ends.clone()) {
                    let part = size.div_ceil(u64::from(count));
                    self.message(index, [host, (host + 1) % count], part, end, site);
                }
            }
            State::Tree { .. } => {
                for host in (0..count).filter(|host| 2 * host + 1 >= count) {
                    self.send_up(index, host, site);
                }
            }
        }
    }

    /// The next flow of a Poisson workload.
    fn arrival(&mut self, index: usize, site: &mut Site<'_>) {
        let count = u64::from(self.hosts);
        let running = &mut self.running[index];
        let (Some(mix), Some(load)) = (running.workload.mix, running.workload.load) else { return };
        let per_second = load * self.host_bps * count as f64 / (mix.mean() * 8.0);
        let rng = &mut running.rng;
        if site.now > running.workload.start.ps {
            let from = rng.between(0, count - 1) as u32;
            let to = (from + rng.between(1, count - 1) as u32) % self.hosts;
            let bytes = mix.draw(rng);
            self.begin_flow(index, from, to, bytes, site);
        }
        let gap = -(1.0 - unit(&mut self.running[index].rng)).ln() / per_second;
        let next = site.now + (gap * 1e12) as u64 + 1;
        if next < self.duration_ps {
            self.schedule(index, next, site.network);
        }
    }

    /// A host of an all-to-all sends to its next peer.
    fn next_of_all(&mut self, index: usize, host: u32, site: &mut Site<'_>) {
        let count = self.hosts;
        let size = self.running[index].workload.size.map_or(ENDLESS, |size| size.0);
        if let State::AllToAll(begun) = &mut self.running[index].state
            && begun[host as usize] < count - 1
        {
            begun[host as usize] += 1;
            let to = (host + begun[host as usize]) % count;
            self.begin_flow(index, host, to, size, site);
        }
    }

    /// A host of a tree sends its sum to its parent.
    fn send_up(&mut self, index: usize, host: u32, site: &mut Site<'_>) {
        let size = self.running[index].workload.size.map_or(ENDLESS, |size| size.0);
        if host == 0 {
            return self.send_down(index, 0, site);
        }
        if let State::Tree { up, .. } = &self.running[index].state {
            let end = up[host as usize - 1];
            self.message(index, [host, (host - 1) / 2], size, end, site);
        }
    }

    /// A host of a tree sends the result to its children.
    fn send_down(&mut self, index: usize, host: u32, site: &mut Site<'_>) {
        let size = self.running[index].workload.size.map_or(ENDLESS, |size| size.0);
        for child in [2 * host + 1, 2 * host + 2].into_iter() {
            if child < self.hosts
                && let State::Tree { down, .. } = &self.running[index].state
            {
                let end = down[child as usize - 1];
                self.message(index, [host, child], size, end, site);
            }
        }
    }

    /// Starts a flow on a new connection.
    fn begin_flow(&mut self, index: usize, from: u32, to: u32, bytes: u64, site: &mut Site<'_>) {
        let dscp = self.running[index].workload.dscp;
        let Some(end) = site.hosts.connect(from, to, dscp, true) else { return };
        self.message(index, [from, to], bytes, end, site);
    }

    /// Starts a flow on this connection.
    fn message(&mut self, index: usize, [from, to]: [u32; 2], bytes: u64, end: u32, site: &mut Site<'_>) {
        let number = self.flows.len() as u32;
        let ideal_ps = self.ideal_ps(site.network, from, to, bytes);
        let workload = index as u16;
        let flow = Flow {
            workload,
            from,
            to,
            bytes,
            start_ps: site.now,
            end_ps: None,
            ideal_ps,
            end,
            is_failed: false,
        };
        self.incomplete += u64::from(!flow.is_endless());
        self.flows.push(flow);
        site.hosts.send(end, number, bytes, site.network, site.now);
    }

    /// A flow ended: its workload goes on.
    pub(super) fn done(&mut self, done: Done, site: &mut Site<'_>) {
        let (Done::Received(number) | Done::Failed(number)) = done;
        let flow = &mut self.flows[number as usize];
        match done {
            Done::Received(_) => flow.end_ps = Some(site.now),
            Done::Failed(_) => flow.is_failed = true,
        }
        let Flow { from, to, bytes, workload, .. } = *flow;
        self.incomplete -= u64::from(!flow.is_endless());
        let (count, index) = (self.hosts, usize::from(workload));
        let running = &mut self.running[index];
        running.left = running.left.saturating_sub(1);
        if running.left == 0 && matches!(running.state, State::Ring { .. } | State::Tree { .. }) {
            let Workload { kind, size, start, .. } = running.workload;
            let bytes = size.map_or(0, |size| size.0);
            self.collectives.push(Collective { kind, bytes, seconds: (site.now - start.ps) as f64 / 1e12 });
            return;
        }
        match &mut running.state {
            State::Listed(_) | State::Random => {}
            State::AllToAll(_) => self.next_of_all(index, from, site),
            State::Ring { ends, received } => {
                received[to as usize] += 1;
                if received[to as usize] < 2 * (count - 1) {
                    let end = ends[to as usize];
                    self.message(index, [to, (to + 1) % count], bytes, end, site);
                }
            }
            State::Tree { awaited, .. } => {
                if from < to {
                    return self.send_down(index, to, site);
                }
                awaited[to as usize] -= 1;
                if awaited[to as usize] == 0 {
                    self.send_up(index, to, site);
                }
            }
        }
    }

    /// How long so many bytes take from one host to another in an empty network.
    fn ideal_ps(&self, network: &Network, from: u32, to: u32, bytes: u64) -> u64 {
        let whole = bytes.div_ceil(self.mtu).max(1);
        let first = bytes_on_link(bytes.min(self.mtu).next_multiple_of(4) + HEADERS);
        let all = bytes + whole * bytes_on_link(HEADERS);
        let (mut slowest, mut ps) = (0, 0);
        for port in network.topology.path(from, to, flow_hash(from, to, 0)) {
            let place = network.topology.ports[port as usize];
            let ps_per_byte = place.rate.ps_per_byte();
            slowest = slowest.max(ps_per_byte);
            ps += place.delay.ps + first * ps_per_byte;
        }
        ps + all.saturating_sub(first) * slowest
    }
}

/// For each number another one, so that each occurs once and none is itself.
fn derangement(count: u32, rng: &mut Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    // A random cycle through all (Sattolo).
    for last in (1..count as usize).rev() {
        order.swap(last, rng.between(0, last as u64 - 1) as usize);
    }
    order
}
