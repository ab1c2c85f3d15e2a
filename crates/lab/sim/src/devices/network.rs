//! The network between simulated hosts: links with a rate, a delay and faults.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roxie::port::{RefusedKind, RxQueue, RxQueues};
use sys::EventFd;

use super::faults::Faults;
use super::forger::Forger;
use super::frame::{DREQ, FIRST_ID, Frame};
use super::icmp::Icmp;
use super::members::Members;
use super::plan::Plan;
use crate::Rng;

/// Frames that a receive queue holds, as a socket buffer would.
const QUEUE_MAX: usize = 512;

/// Frames that a socket has received, and the descriptor that is readable while there are some.
#[derive(Debug)]
struct Socket {
    /// Each with the time of its arrival.
    queue: VecDeque<(u64, Frame)>,
    arrived: EventFd,
    /// Frames that were taken.
    taken: u64,
}

impl Socket {
    fn new() -> Self {
        Self { queue: VecDeque::new(), arrived: EventFd::new().expect("descriptors"), taken: 0 }
    }

    fn take(&mut self, max: usize) -> Vec<Frame> {
        let taken: Vec<_> = self.queue.drain(..max.min(self.queue.len())).map(|(_, frame)| frame).collect();
        self.taken += taken.len() as u64;
        if self.queue.is_empty() {
            // The descriptor is level-triggered: it is readable while there is something.
            let _empty = self.arrived.take();
        }
        taken
    }
}

/// A process: the socket of its slot, and the GSI socket of its host.
#[derive(Debug)]
struct Process {
    address: IpAddr,
    host: usize,
    /// Its link is up; packets within a host take no link.
    is_up: bool,
    socket: usize,
    gsi: usize,
    /// When its link has sent everything.
    busy_until: u64,
    /// Packets that its port has got and not sent.
    unflushed: usize,
}

#[derive(Debug)]
struct Links {
    processes: Vec<Process>,
    /// The sockets of all processes by number, then the GSI sockets of all hosts, which are no more.
    sockets: Vec<Socket>,
    /// Frames that are in flight, by arrival, with the socket that gets them.
    in_flight: Vec<(u64, u64, usize, Frame)>,
    rng: Rng,
    faults: Faults,
    /// Messages of the connection manager that were lost because of [`Faults::gsi_lost`], by their sender's
    /// communication ID.
    gsi_lost: BTreeMap<u32, u8>,
    forger: Option<Forger>,
    icmp: Icmp,
    sent: u64,
    dropped: u64,
    forged: u64,
    /// Packets that a process has received for another one of its host.
    misrouted: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Network {
    links: Mutex<Links>,
    pub(super) members: Arc<Members>,
}

impl Network {
    pub(super) fn new(seed: u64, plan: &Plan) -> Self {
        let (addresses, faults) = (&plan.addresses[..], plan.faults);
        let process = |(number, address): (usize, &IpAddr)| {
            let host = plan.host_of(number);
            Process {
                address: *address,
                host,
                is_up: true,
                socket: number,
                gsi: addresses.len() + host,
                busy_until: 0,
                unflushed: 0,
            }
        };
        let processes: Vec<_> = addresses.iter().enumerate().map(process).collect();
        let sockets = (0..2 * addresses.len()).map(|_| Socket::new()).collect();
        let rng = Rng::stream(seed, super::CHANCE);
        let links = Links {
            processes,
            sockets,
            in_flight: Vec::new(),
            rng,
            faults,
            gsi_lost: BTreeMap::new(),
            // A connection that distrusts repairs losses more slowly than a run has time for.
            forger: Forger::draw(Rng::stream(seed, super::FORGER))
                .filter(|_| faults.drop_ppm == 0 && !faults.is_trusted),
            icmp: Icmp::new(addresses.len()),
            sent: 0,
            dropped: 0,
            forged: 0,
            misrouted: 0,
        };
        Self { links: Mutex::new(links), members: Arc::new(Members::new(plan)) }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packets that were sent, and those of them that were dropped.
    pub(super) fn tally(&self) -> (u64, u64) {
        let links = self.links();
        (links.sent, links.dropped)
    }

    /// Packets that a forger sent.
    pub(super) fn forged(&self) -> u64 {
        self.links().forged
    }

    /// Descriptors that are readable while a process has frames.
    pub(super) fn fds(&self, process: usize) -> Vec<RawFd> {
        let links = self.links();
        let Process { socket, gsi, .. } = links.processes[process];
        [socket, gsi].map(|socket| links.sockets[socket].arrived.as_raw_fd()).into()
    }

    /// Nanoseconds until the link of a process has sent everything.
    pub(super) fn backlog_ns(&self, process: usize, now: u64) -> u64 {
        self.links().processes[process].busy_until.saturating_sub(now)
    }

    /// A process sends a frame.
    pub(super) fn send(&self, process: usize, now: u64, frame: Frame) {
        let links = &mut *self.links();
        let Faults { drop_ppm, gsi_drop_ppm, duplicate_ppm, jitter_ns, delay_ns, byte_time, .. } =
            links.faults;
        links.sent += 1;
        links.forge(now);
        let from = &mut links.processes[process];
        from.busy_until = from.busy_until.max(now) + ((frame.bytes.len() as u64 * byte_time) >> 10);
        let left = from.busy_until;
        let to = links.socket_of(&frame);
        let is_dropped = !links.has_link(&frame)
            || links.rng.chance_ppm(if frame.is_gsi() { gsi_drop_ppm } else { drop_ppm })
            || links.loses_first(&frame);
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
        let arrival = self.links().in_flight.iter().map(|(at, ..)| *at).min();
        arrival.into_iter().chain(self.members.next_ns()).min()
    }

    /// Frames whose time has come are in their receivers' queues.
    pub(super) fn deliver(&self, now: u64) {
        self.members.advance(now);
        let links = &mut *self.links();
        if links.in_flight.iter().all(|(at, ..)| *at > now) {
            return;
        }
        let mut due: Vec<_> = links.in_flight.extract_if(.., |(at, ..)| *at <= now).collect();
        // A link without jitter keeps the order; the sort is stable.
        due.sort_by_key(|(at, ..)| *at);
        for (_, _, to, frame) in due {
            if links.faults.icmp_drop_ppm.is_some() && !self.members.has_sockets(frame.dst, now) {
                links.refuse(now, &frame);
                continue;
            }
            let has_link = links.has_link(&frame);
            let socket = &mut links.sockets[to];
            if socket.queue.len() >= QUEUE_MAX || !has_link {
                links.dropped += 1;
                continue;
            }
            socket.queue.push_back((now, frame));
            socket.arrived.signal(1);
        }
    }

    /// Takes up to `max` frames of the sockets that `queues` names, each with the socket that it came from.
    pub(super) fn receive(&self, process: usize, max: usize, queues: RxQueues) -> Vec<(RxQueue, Frame)> {
        let links = &mut *self.links();
        let Process { socket, gsi, .. } = links.processes[process];
        let mut taken = Vec::new();
        for (socket, queue, is_wanted) in
            [(socket, RxQueue::Slot, queues.slot), (gsi, RxQueue::Gsi, queues.gsi)]
        {
            if is_wanted {
                let frames = links.sockets[socket].take(max - taken.len());
                let is_misrouted = |frame: &&Frame| {
                    let is_of_other = |slot| usize::from(slot) != process + 1;
                    queue == RxQueue::Slot && frame.sender.is_some() && frame.slot().is_some_and(is_of_other)
                };
                links.misrouted += frames.iter().filter(is_misrouted).count() as u64;
                taken.extend(frames.into_iter().map(|frame| (queue, frame)));
            }
        }
        taken
    }

    /// Passes the packets of a process that were refused by ICMP to `f`: the destination, and BTH to ICRC.
    pub(super) fn take_refused(
        &self,
        process: usize,
        now: u64,
        kind: RefusedKind,
        f: &mut dyn FnMut(IpAddr, &[u8]),
    ) {
        let refused = self.links().icmp.take(process, now, kind);
        refused.iter().for_each(|(dst, bytes)| f(*dst, bytes));
    }

    /// The link of a device goes up or down.
    pub(super) fn set_link(&self, process: usize, is_up: bool) {
        self.links().processes[process].is_up = is_up;
    }

    pub(super) fn is_up(&self, process: usize) -> bool {
        self.links().processes[process].is_up
    }

    /// How many packets the port of a process has got and not sent.
    pub(super) fn set_unflushed(&self, process: usize, packets: usize) {
        self.links().processes[process].unflushed = packets;
    }

    pub(super) fn unflushed(&self, process: usize) -> usize {
        self.links().processes.get(process).map_or(0, |process| process.unflushed)
    }

    /// Describes packets that a process has received for another one of its host, and has not forwarded.
    pub(super) fn lost_in_host(&self) -> Option<String> {
        let (misrouted, forwarded) = (self.links().misrouted, self.members.forwarded());
        let what = || format!("{misrouted} packets were for other processes, {forwarded} were forwarded");
        (forwarded < misrouted).then(what)
    }

    /// When the oldest frame has arrived that a process has not received.
    pub(super) fn waits_since(&self, process: usize) -> Option<u64> {
        let links = self.links();
        let Process { socket, gsi, .. } = *links.processes.get(process)?;
        let first = |socket: usize| Some(links.sockets[socket].queue.front()?.0);
        [socket, gsi].into_iter().filter_map(first).min()
    }

    /// Frames that the processes of a host have taken from the GSI socket that they share: each of them wakes
    /// all, and one gets it.
    pub(super) fn taken_by_host(&self, process: usize) -> u64 {
        let links = self.links();
        links.processes.get(process).map_or(0, |process| links.sockets[process.gsi].taken)
    }

    /// Whether a process has frames to receive.
    pub(super) fn has_frames(&self, process: usize) -> bool {
        let links = self.links();
        let Some(Process { socket, gsi, .. }) = links.processes.get(process) else { return false };
        [*socket, *gsi].into_iter().any(|socket| !links.sockets[socket].queue.is_empty())
    }
}

impl Links {
    /// Whether the links of both ends are up, as far as a frame takes them.
    fn has_link(&self, frame: &Frame) -> bool {
        let end = |address| self.processes.iter().find(|process| process.address == address);
        match (end(frame.src), end(frame.dst)) {
            (Some(from), Some(to)) => from.host == to.host || (from.is_up && to.is_up),
            _ => true,
        }
    }

    /// The forger may send a frame, too; it arrives at once.
    fn forge(&mut self, now: u64) {
        let addresses: Vec<IpAddr> = self.processes.iter().map(|process| process.address).collect();
        let Some(frame) = self.forger.as_mut().and_then(|forger| forger.forge(&addresses)) else { return };
        let Some(to) = self.socket_of(&frame) else { return };
        self.forged += 1;
        self.in_flight.push((now + 1, self.sent, to, frame));
    }

    /// Whether a message of the connection manager is one of the first of its kind, which are lost.
    fn loses_first(&mut self, frame: &Frame) -> bool {
        let Some((kind, count)) = self.faults.gsi_lost else { return false };
        let is_probe = kind == DREQ && frame.slot().is_none();
        if !frame.is_gsi() || frame.attribute() != Some(kind) || is_probe {
            return false;
        }
        let lost = self.gsi_lost.entry(frame.word(FIRST_ID).unwrap_or(0)).or_default();
        *lost += u8::from(*lost <= count);
        *lost <= count
    }

    /// The kernel of the destination host refuses a frame, because no process there has the port.
    fn refuse(&mut self, now: u64, frame: &Frame) {
        self.dropped += 1;
        let (delay_ns, drop_ppm) = (self.faults.delay_ns, self.faults.icmp_drop_ppm.unwrap_or(0));
        let kind = if frame.is_gsi() { RefusedKind::Mads } else { RefusedKind::Packets };
        if let Some(sender) = frame.sender
            && self.icmp.may_send(now, (frame.dst, frame.src))
            && !self.rng.chance_ppm(drop_ppm)
        {
            self.icmp.send(sender, now + delay_ns, kind, (frame.dst, frame.bytes.clone()));
        }
    }

    /// The socket that a frame is steered to; `None` if no host has its destination address, or no process
    /// its slot.
    fn socket_of(&mut self, frame: &Frame) -> Option<usize> {
        let here = |process: &&Process| process.address == frame.dst;
        let Some(slot) = frame.slot() else { return self.processes.iter().find(here).map(|to| to.gsi) };
        let to = self.processes.get(usize::from(slot).checked_sub(1)?).filter(here)?.socket;
        // A GRO batch is steered by its first packet.
        let others: Vec<usize> = self
            .processes
            .iter()
            .filter(here)
            .map(|process| process.socket)
            .filter(|other| *other != to)
            .collect();
        let is_misrouted =
            !others.is_empty() && !frame.is_gsi() && self.rng.chance_ppm(self.faults.misroute_ppm);
        Some(if is_misrouted { self.rng.pick(&others) } else { to })
    }
}
