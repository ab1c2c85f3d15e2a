//! Links and switches: queues, marks, pauses, losses.
//!
//! A switch stores a frame in the queue of the output port, by priority. CNPs and other traffic of priority 6
//! and 7 leave first; the other priorities leave in turns, a frame each. A frame is marked when it leaves, by
//! the queue behind it, as in the simulator of the DCQCN and HPCC papers. PFC counts the stored bytes of each
//! input port and priority.

use std::collections::VecDeque;

use super::events::{Event, Events};
use super::frame::Frames;
use super::mix::unit;
use super::spec::Spec;
use super::topology::{FRAME_MAX, Topology};
use super::units::Rate;
use crate::rng::Rng;

const PRIORITIES: usize = 8;
/// The priorities that leave before all others.
const STRICT: u8 = 0b1100_0000;
/// Bytes of a pause frame on the link.
const PAUSE_BYTES: u64 = 84;
/// The share of the free buffer that one input may take before it is paused (HPCC's simulator; DCQCN,
/// section 4: beta of 8).
const XOFF_SHARE: u64 = 8;

/// A port of a host or a switch.
#[derive(Debug, Default)]
struct Port {
    queues: [VecDeque<u32>; PRIORITIES],
    queued: [u64; PRIORITIES],
    /// Priorities with frames.
    waiting: u8,
    /// Priorities that the neighbour has paused, and since when.
    paused: u8,
    paused_at: [u64; PRIORITIES],
    paused_ps: u64,
    /// The priority that was served last, among those in turns.
    served: u8,
    free_at: u64,
    /// An event at `free_at` is pending.
    is_waking: bool,
    /// On the link, oldest first.
    flight: VecDeque<u32>,
    /// Bytes that entered the switch here and are stored.
    stored: [u64; PRIORITIES],
    /// Priorities of the neighbour that this port has paused.
    pausing: u8,
    longest: u64,
    ps_per_byte: u64,
    delay_ps: u64,
    /// Thresholds of marking in bytes.
    kmin: u64,
    kmax: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Switch {
    used: u64,
    /// Buffer without the headroom.
    shared: u64,
}

/// What has happened to frames.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Tally {
    /// Frames that hosts sent.
    pub sent: u64,
    /// Frames that arrived at their host.
    pub delivered: u64,
    /// Frames that a switch dropped because of a full queue or buffer.
    pub dropped: u64,
    /// Frames that a link lost by chance.
    pub lost: u64,
    /// Frames in queues and on links at the end.
    pub in_flight: u64,
    /// Frames that a switch marked.
    pub marked: u64,
    /// Pauses that switches sent to hosts and to switches.
    pub pauses_to_hosts: u64,
    /// See `pauses_to_hosts`.
    pub pauses_to_switches: u64,
}

/// The network.
pub(super) struct Network {
    pub(super) topology: Topology,
    ports: Vec<Port>,
    switches: Vec<Switch>,
    pub(super) frames: Frames,
    pub(super) events: Events,
    pub(super) tally: Tally,
    marks: Rng,
    losses: Rng,
    buffer: u64,
    queue: u64,
    ecn: bool,
    pmax: f64,
    pfc: bool,
    pfc_xoff: Option<u64>,
    loss: f64,
}

impl Network {
    pub(super) fn new(spec: &Spec, topology: Topology, seed: u64) -> Self {
        let Rate { bps: host_bps } = spec.rate;
        let part = |bytes: u64, bps: u64| (u128::from(bytes) * u128::from(bps) / u128::from(host_bps)) as u64;
        let port = |place: &super::topology::PortPlace| Port {
            ps_per_byte: place.rate.ps_per_byte(),
            delay_ps: place.delay.ps,
            kmin: part(spec.kmin.0, place.rate.bps),
            kmax: part(spec.kmax.0, place.rate.bps),
            ..Port::default()
        };
        let ports = topology.ports.iter().map(port).collect();
        let (first, priorities) = (topology.hosts() as u32, spec.priorities());
        let switch = |number: u32| {
            let headroom = if spec.pfc { topology.switch_headroom(number, priorities) } else { 0 };
            Switch { used: 0, shared: spec.buffer.0.saturating_sub(headroom) }
        };
        Self {
            ports,
            switches: (first..first + topology.switches() as u32).map(switch).collect(),
            topology,
            frames: Frames::default(),
            events: Events::default(),
            tally: Tally::default(),
            marks: Rng::stream(seed, 101),
            losses: Rng::stream(seed, 102),
            buffer: spec.buffer.0,
            queue: spec.queue.map_or(u64::MAX, |queue| queue.0),
            ecn: spec.ecn,
            pmax: spec.pmax,
            pfc: spec.pfc,
            pfc_xoff: spec.pfc_xoff.map(|xoff| xoff.0),
            loss: spec.loss,
        }
    }

    /// Whether a port would transmit a frame of its host at once.
    pub(super) fn is_open(&self, port: u32, now: u64) -> bool {
        let port = &self.ports[port as usize];
        port.waiting & !port.paused == 0 && port.free_at <= now
    }

    /// Whether the neighbour of a port has paused a priority.
    pub(super) fn is_paused(&self, port: u32, priority: u8) -> bool {
        self.ports[port as usize].paused & 1 << priority != 0
    }

    /// Adds an event at the time when the port has transmitted its frame.
    pub(super) fn wake_when_free(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        if !port.is_waking {
            port.is_waking = true;
            self.events.add(port.free_at, Event::Free(number));
        }
    }

    /// The port has transmitted its frame: it transmits the next.
    pub(super) fn freed(&mut self, number: u32, now: u64) {
        self.ports[number as usize].is_waking = false;
        self.transmit(number, now);
    }

    /// Queues a frame at a port.
    pub(super) fn enqueue(&mut self, number: u32, frame: u32, now: u64) {
        let (priority, bytes) = {
            let frame = self.frames.get(frame);
            (usize::from(frame.priority()), u64::from(frame.bytes()))
        };
        let port = &mut self.ports[number as usize];
        port.queues[priority].push_back(frame);
        port.queued[priority] += bytes;
        port.waiting |= 1 << priority;
        port.longest = port.longest.max(port.queued[priority]);
        self.transmit(number, now);
    }

    /// Transmits the next frame of a port, if it has one and is free.
    fn transmit(&mut self, number: u32, now: u64) {
        let port = &mut self.ports[number as usize];
        let ready = port.waiting & !port.paused;
        if ready == 0 {
            return;
        }
        if now < port.free_at {
            return self.wake_when_free(number);
        }
        let priority = next_priority(ready, port.served);
        let Some(frame) = port.queues[usize::from(priority)].pop_front() else { return };
        port.served = priority;
        let (bytes, on_link) = {
            let frame = self.frames.get(frame);
            (u64::from(frame.bytes()), u64::from(frame.bytes_on_link()))
        };
        let queued = &mut port.queued[usize::from(priority)];
        *queued -= bytes;
        let behind = *queued;
        if behind == 0 {
            port.waiting &= !(1 << priority);
        }
        port.free_at = now + on_link * port.ps_per_byte;
        port.flight.push_back(frame);
        self.events.add(port.free_at + port.delay_ps, Event::Arrive(number));
        let (kmin, kmax, is_more) = (port.kmin, port.kmax, port.waiting & !port.paused != 0);
        if is_more {
            self.wake_when_free(number);
        }
        let node = self.topology.ports[number as usize].node;
        if self.topology.is_host(node) {
            return;
        }
        if self.ecn && self.is_marked(behind, kmin, kmax) {
            self.tally.marked += u64::from(self.frames.get_mut(frame).mark());
        }
        self.release(node, frame, priority, bytes, now);
    }

    /// RED with the present queue.
    fn is_marked(&mut self, queue: u64, kmin: u64, kmax: u64) -> bool {
        if queue <= kmin {
            return false;
        }
        queue > kmax || unit(&mut self.marks) < self.pmax * (queue - kmin) as f64 / (kmax - kmin) as f64
    }

    /// A frame leaves the memory of a switch.
    fn release(&mut self, node: u32, frame: u32, priority: u8, bytes: u64, now: u64) {
        let switch = node as usize - self.topology.hosts();
        self.switches[switch].used -= bytes;
        let number = self.frames.get(frame).in_port;
        let xon = self.xoff(switch).saturating_sub(2 * FRAME_MAX);
        let input = &mut self.ports[number as usize];
        let stored = &mut input.stored[usize::from(priority)];
        *stored -= bytes;
        if input.pausing & 1 << priority != 0 && (*stored <= xon || *stored == 0) {
            self.pause(number, priority, false, now);
        }
    }

    /// Bytes of an input above which it is paused.
    fn xoff(&self, switch: usize) -> u64 {
        let Switch { used, shared } = self.switches[switch];
        self.pfc_xoff.unwrap_or_else(|| shared.saturating_sub(used) / XOFF_SHARE)
    }

    /// Sends a pause, or its end, to the neighbour of an input port.
    fn pause(&mut self, number: u32, priority: u8, is_on: bool, now: u64) {
        let port = &mut self.ports[number as usize];
        port.pausing ^= 1 << priority;
        // It waits for the end of the frame that is being transmitted.
        let at = port.free_at.max(now) + PAUSE_BYTES * port.ps_per_byte + port.delay_ps;
        let peer = self.topology.ports[number as usize].peer;
        if is_on && self.topology.is_host(self.topology.ports[peer as usize].node) {
            self.tally.pauses_to_hosts += 1;
        } else if is_on {
            self.tally.pauses_to_switches += 1;
        }
        self.events.add(at, Event::Pause { port: peer, priority, is_on });
    }

    /// A pause, or its end, arrives at a port.
    pub(super) fn paused(&mut self, number: u32, priority: u8, is_on: bool, now: u64) {
        let port = &mut self.ports[number as usize];
        let bit = 1 << priority;
        if is_on {
            port.paused |= bit;
            port.paused_at[usize::from(priority)] = now;
        } else if port.paused & bit != 0 {
            port.paused &= !bit;
            port.paused_ps += now - port.paused_at[usize::from(priority)];
            self.transmit(number, now);
        }
    }

    /// The oldest frame on the link of a port arrives. Returns it, with its host, if it is there.
    pub(super) fn arrive(&mut self, number: u32, now: u64) -> Option<(u32, u32)> {
        let frame = self.ports[number as usize].flight.pop_front()?;
        if self.loss > 0.0 && unit(&mut self.losses) < self.loss {
            self.frames.remove(frame);
            self.tally.lost += 1;
            return None;
        }
        let input = self.topology.ports[number as usize].peer;
        let node = self.topology.ports[input as usize].node;
        if self.topology.is_host(node) {
            self.tally.delivered += 1;
            return Some((node, frame));
        }
        let (to, hash, priority, bytes) = {
            let frame = self.frames.get_mut(frame);
            frame.in_port = input;
            (frame.to, frame.hash, frame.priority(), u64::from(frame.bytes()))
        };
        let output = self.topology.route(node, to, hash);
        let switch = node as usize - self.topology.hosts();
        let queued = self.ports[output as usize].queued[usize::from(priority)];
        let is_full = self.switches[switch].used + bytes > self.buffer;
        if is_full || (!self.pfc && queued + bytes > self.queue) {
            self.frames.remove(frame);
            self.tally.dropped += 1;
            return None;
        }
        self.switches[switch].used += bytes;
        let xoff = self.xoff(switch);
        let port = &mut self.ports[input as usize];
        port.stored[usize::from(priority)] += bytes;
        let stored = port.stored[usize::from(priority)];
        if self.pfc && port.pausing & 1 << priority == 0 && stored > xoff {
            self.pause(input, priority, true, now);
        }
        self.enqueue(output, frame, now);
        None
    }

    /// Bytes in the queues of each port of the switches.
    pub(super) fn queues(&self) -> impl Iterator<Item = u64> {
        let is_switch =
            |(place, _): &(&super::topology::PortPlace, &Port)| !self.topology.is_host(place.node);
        let ports = self.topology.ports.iter().zip(&self.ports).filter(is_switch);
        ports.map(|(_, port)| port.queued.iter().sum())
    }

    /// The longest queue of any port of a switch so far.
    pub(super) fn longest_queue(&self) -> u64 {
        let ports = self.topology.ports.iter().zip(&self.ports);
        let switches = ports.filter(|(place, _)| !self.topology.is_host(place.node));
        switches.map(|(_, port)| port.longest).max().unwrap_or(0)
    }

    /// Time that ports were paused, of hosts and of switches, summed over ports and priorities.
    pub(super) fn paused_ps(&self, now: u64) -> [u64; 2] {
        let mut sums = [0; 2];
        for (place, port) in self.topology.ports.iter().zip(&self.ports) {
            let open = (0..PRIORITIES).filter(|priority| port.paused & 1 << priority != 0);
            let open: u64 = open.map(|priority| now - port.paused_at[priority]).sum();
            sums[usize::from(!self.topology.is_host(place.node))] += port.paused_ps + open;
        }
        sums
    }

    /// Whether no frame is stored and nothing is paused; for tests.
    #[cfg(test)]
    pub(super) fn is_quiet(&self) -> bool {
        let is_quiet = |port: &Port| port.waiting == 0 && port.pausing == 0 && port.stored == [0; PRIORITIES];
        self.frames.len() == 0
            && self.ports.iter().all(is_quiet)
            && self.switches.iter().all(|switch| switch.used == 0)
    }
}

/// The priority that transmits next, of those in `ready`, after `served`.
fn next_priority(ready: u8, served: u8) -> u8 {
    if ready & STRICT != 0 {
        return 7 - ready.leading_zeros() as u8;
    }
    let after = ready & (0xfe_u8.wrapping_shl(served.into()));
    if after != 0 { after.trailing_zeros() as u8 } else { ready.trailing_zeros() as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_leave_in_turns_but_for_the_highest_two() {
        assert_eq!([0, 3, 5, 7].map(|served| next_priority(0b10_1001, served)), [3, 5, 0, 0]);
        assert_eq!(next_priority(0b0100_1000, 3), 6);
        assert_eq!(next_priority(0b1100_1000, 6), 7);
    }
}
