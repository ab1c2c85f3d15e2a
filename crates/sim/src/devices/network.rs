//! The network between simulated hosts: links with a rate, a delay and faults.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sys::EventFd;
use wire::{Bth, Qpn};

use crate::Rng;

/// Frames that a host's receive queue holds, as a socket buffer would.
const QUEUE_MAX: usize = 512;

/// A packet between two hosts, BTH to ICRC.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) src_port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    /// It is for the connection manager.
    pub(super) fn is_gsi(&self) -> bool {
        let head = self.bytes.first_chunk::<{ Bth::LEN }>();
        head.is_some_and(|head| Qpn::new(u32::from_be_bytes([0, head[5], head[6], head[7]])) == Qpn::GSI)
    }
}

/// What goes wrong on the way, in packets of a million, and how long the way is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) drop_ppm: u64,
    pub(super) duplicate_ppm: u64,
    /// Packets that are late by up to this (nanoseconds).
    pub(super) jitter_ns: u64,
    pub(super) delay_ns: u64,
    /// What a byte takes on the link, in nanoseconds times 1024.
    pub(super) byte_time: u64,
}

#[derive(Debug)]
struct Host {
    address: IpAddr,
    queue: VecDeque<Frame>,
    arrived: EventFd,
    /// When its link has sent everything.
    busy_until: u64,
}

#[derive(Debug)]
struct Links {
    hosts: Vec<Host>,
    /// Frames that are in flight, by arrival.
    in_flight: Vec<(u64, u64, usize, Frame)>,
    rng: Rng,
    faults: Faults,
    sent: u64,
    dropped: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Network(Mutex<Links>);

impl Network {
    pub(super) fn new(seed: u64, addresses: &[IpAddr], faults: Faults) -> Self {
        let host = |address: &IpAddr| Host {
            address: *address,
            queue: VecDeque::new(),
            arrived: EventFd::new().expect("descriptors"),
            busy_until: 0,
        };
        let hosts = addresses.iter().map(host).collect();
        let rng = Rng::stream(seed, super::CHANCE);
        Self(Mutex::new(Links { hosts, in_flight: Vec::new(), rng, faults, sent: 0, dropped: 0 }))
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packets that were sent, and those of them that were dropped.
    pub(super) fn tally(&self) -> (u64, u64) {
        let links = self.links();
        (links.sent, links.dropped)
    }

    /// Descriptor that is readable while a host has frames.
    pub(super) fn fd(&self, host: usize) -> std::os::fd::RawFd {
        use std::os::fd::AsRawFd;
        self.links().hosts[host].arrived.as_raw_fd()
    }

    /// Nanoseconds until the host's link has sent everything.
    pub(super) fn backlog_ns(&self, host: usize, now: u64) -> u64 {
        self.links().hosts[host].busy_until.saturating_sub(now)
    }

    /// A host sends a frame.
    pub(super) fn send(&self, host: usize, now: u64, frame: Frame) {
        let links = &mut *self.links();
        let Faults { drop_ppm, duplicate_ppm, jitter_ns, delay_ns, byte_time } = links.faults;
        links.sent += 1;
        let from = &mut links.hosts[host];
        from.busy_until = from.busy_until.max(now) + ((frame.bytes.len() as u64 * byte_time) >> 10);
        let left = from.busy_until;
        let to = links.hosts.iter().position(|host| host.address == frame.dst);
        let is_dropped = links.rng.chance_ppm(drop_ppm);
        let Some(to) = to.filter(|_| !is_dropped) else {
            links.dropped += 1;
            return;
        };
        let copies = 1 + u64::from(links.rng.chance_ppm(duplicate_ppm));
        for _ in 0..copies {
            let late = if jitter_ns > 0 { links.rng.between(0, jitter_ns) } else { 0 };
            let number = links.rng.0;
            links.in_flight.push((left + delay_ns + late, number, to, frame.clone()));
        }
    }

    /// When the next frame arrives.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.links().in_flight.iter().map(|(at, ..)| *at).min()
    }

    /// Frames whose time has come are in their receivers' queues.
    pub(super) fn deliver(&self, now: u64) {
        let links = &mut *self.links();
        if links.in_flight.iter().all(|(at, ..)| *at > now) {
            return;
        }
        let mut due: Vec<_> = links.in_flight.extract_if(.., |(at, ..)| *at <= now).collect();
        // A link without jitter keeps the order; the sort is stable.
        due.sort_by_key(|(at, ..)| *at);
        for (_, _, to, frame) in due {
            let host = &mut links.hosts[to];
            if host.queue.len() >= QUEUE_MAX {
                links.dropped += 1;
                continue;
            }
            host.queue.push_back(frame);
            host.arrived.signal(1);
        }
    }

    /// Takes up to `max` frames of one kind.
    pub(super) fn receive(&self, host: usize, max: usize, wanted: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let host = &mut self.links().hosts[host];
        let mut taken = Vec::new();
        host.queue.retain(|frame| {
            let takes = taken.len() < max && wanted(frame);
            if takes {
                taken.push(frame.clone());
            }
            !takes
        });
        if host.queue.is_empty() {
            // The descriptor is level-triggered: it is readable while there is something.
            let _empty = host.arrived.take();
        }
        taken
    }

    /// Whether a host has frames for its queue pairs.
    pub(super) fn has_frames(&self, host: usize) -> bool {
        self.links().hosts.get(host).is_some_and(|host| !host.queue.is_empty())
    }
}
