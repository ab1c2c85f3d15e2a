//! Data centres in virtual time: thousands of hosts with the product's transport on switches with ECN and
//! PFC.
//!
//! Goal: how connections of roxie share a network, in numbers that published simulations have as well.
//! Method: each host has queue pairs of `roxie-transport`, with its pacer and congestion control. Only links,
//! switches and the adapter's order of sending are modelled. Payload bytes are not stored.
//!
//! ```text
//! work -> host: Qp -> network: queues, ECN, PFC -> host: Qp -> work
//!            events: virtual time        measure: results
//! ```
//!
//! The seed determines everything, so one seed gives one result.

mod check;
mod events;
mod frame;
mod host;
mod measure;
mod mix;
mod network;
mod spec;
#[cfg(test)]
mod tests;
mod topology;
mod units;
mod work;

pub use measure::{Percentiles, Results, Series, SizeClass};
pub use mix::Mix;
pub use network::Tally;
pub use spec::{Kind, Recovery, Shape, Spec, SpecError, Workload};
pub use units::{Bytes, Rate, Time};
pub use work::Collective;

use events::Event;
use host::Hosts;
use measure::{Raw, SAMPLES, Samples, TRACED_FLOWS};
use network::Network;
use work::{Site, Works};

/// Events from one report of the progress to the next.
const PROGRESS_EVENTS: u64 = 1 << 16;

/// State of a run, for its observer.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress {
    /// Virtual time.
    pub now: Time,
    /// Flows that have started, and those that are not complete.
    pub flows: u64,
    /// See `flows`.
    pub incomplete: u64,
    /// Frames that hosts have sent.
    pub frames: u64,
}

struct World {
    network: Network,
    hosts: Hosts,
    works: Works,
    samples: Samples,
    now: u64,
}

/// Simulates a data centre. `watch` is called now and then; the run ends early when it returns false.
///
/// # Errors
/// The description cannot be simulated.
pub fn run_datacentre(
    spec: &Spec,
    seed: u64,
    watch: &mut dyn FnMut(RunProgress) -> bool,
) -> Result<Results, SpecError> {
    let mut world = World::new(spec, seed)?;
    let is_stopped = !world.run(spec, watch);
    Ok(world.results(seed, is_stopped))
}

impl World {
    fn new(spec: &Spec, seed: u64) -> Result<Self, SpecError> {
        let topology = spec.checked_topology()?;
        let count = topology.hosts();
        Ok(Self {
            network: Network::new(spec, topology, seed),
            hosts: Hosts::new(spec, count, seed),
            works: Works::new(spec, count, seed),
            samples: Samples::default(),
            now: 0,
        })
    }

    /// Runs until all work is done or the time is over. Returns false if the observer stopped it.
    fn run(&mut self, spec: &Spec, watch: &mut dyn FnMut(RunProgress) -> bool) -> bool {
        let period = (spec.duration.ps / SAMPLES).max(1);
        self.works.begin(&mut self.hosts, &mut self.network);
        self.network.events.add(period, Event::Sample);
        let (end, mut until_progress) = (spec.end().ps, PROGRESS_EVENTS);
        while !self.is_complete(spec) {
            let Some((at, event)) = self.network.events.take() else { break };
            if at > end {
                self.now = end;
                break;
            }
            self.now = at;
            self.handle(event, period);
            until_progress -= 1;
            if until_progress == 0 {
                until_progress = PROGRESS_EVENTS;
                if !watch(self.progress()) {
                    return false;
                }
            }
        }
        true
    }

    fn is_complete(&self, spec: &Spec) -> bool {
        let has_endless = spec.workload.iter().any(|workload| workload.is_endless());
        self.works.to_start == 0
            && self.works.incomplete == 0
            && (!has_endless || self.now >= spec.duration.ps)
    }

    fn progress(&self) -> RunProgress {
        RunProgress {
            now: Time { ps: self.now },
            flows: self.works.flows.len() as u64,
            incomplete: self.works.incomplete,
            frames: self.network.tally.sent,
        }
    }

    fn handle(&mut self, event: Event, period: u64) {
        let Self { network, hosts, works, now, .. } = self;
        let now = *now;
        match event {
            Event::Arrive(port) => {
                if let Some((host, frame)) = network.arrive(port, now) {
                    hosts.arrived(host, frame, network, now);
                }
            }
            Event::Free(port) => {
                network.freed(port, now);
                let node = network.topology.ports[port as usize].node;
                if network.topology.is_host(node) {
                    hosts.transmit(node, network, now);
                }
            }
            Event::Pause { port, priority, is_on } => {
                network.paused(port, priority, is_on, now);
                let node = network.topology.ports[port as usize].node;
                if !is_on && network.topology.is_host(node) {
                    hosts.resumed(node, network, now);
                }
            }
            Event::Poll(host) => hosts.poll(host, network, now),
            Event::Timer(end) => hosts.timer(end, network, now),
            Event::Work(index) => works.start(index as usize, &mut Site { hosts, network, now }),
            Event::Sample => self.sample(period),
        }
        while let Some(done) = self.hosts.done.pop() {
            let site = &mut Site { hosts: &mut self.hosts, network: &mut self.network, now };
            self.works.done(done, site);
        }
    }

    fn sample(&mut self, period: u64) {
        let first = self.works.flows.iter().take(TRACED_FLOWS);
        let flows: Vec<u64> = first.map(|flow| received(&self.hosts, flow)).collect();
        self.samples.add(&self.network, self.now, period, self.hosts.received_bytes, &flows);
        self.network.events.add(self.now + period, Event::Sample);
    }

    fn results(self, seed: u64, is_stopped: bool) -> Results {
        Results::new(Raw {
            seed,
            now: self.now,
            is_stopped,
            network: &self.network,
            flows: &self.works.flows,
            collectives: &self.works.collectives,
            received: &|flow| received(&self.hosts, flow),
            counters: self.hosts.counters(),
            received_bytes: self.hosts.received_bytes,
            late: self.hosts.late,
            samples: self.samples,
        })
    }
}

/// Bytes of a flow that its receiver has; on a connection of many flows, those of all of them.
fn received(hosts: &Hosts, flow: &work::Flow) -> u64 {
    if flow.end_ps.is_some() { flow.bytes } else { hosts.received(flow.end) }
}
