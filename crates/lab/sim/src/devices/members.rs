//! The processes of each simulated host, as its process registry knows them: forwarded packets, claimed
//! services, and the disconnect journals of processes that died.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roxie::port::{RxBatch, RxQueue};
use roxie::registry::{ForwardOutcome, ServiceAddress, next_scan_ns};
use sys::EventFd;
use transport::cm::{DisconnectNotice, JournalChange};
use wire::Gid;

use super::plan::Plan;

/// Forwarded batches that a process has not read; more are dropped.
const FORWARDED_MAX: usize = 256;
/// How long the kernel takes to release the names of every second process that dies (nanoseconds).
const RELEASE_NS: u64 = 1_000_000;
/// Not at any time.
const NEVER: u64 = u64::MAX;

/// All processes of all hosts, by number.
#[derive(Debug)]
pub(super) struct Members(Mutex<State>);

#[derive(Debug)]
struct State {
    members: Vec<Member>,
    services: Vec<Service>,
    tokens: u64,
    /// Batches that processes have passed on to others of their host, which may have ended.
    forwarded: u64,
}

#[derive(Debug)]
struct Member {
    address: IpAddr,
    host: usize,
    /// When it starts; until then it is no member.
    starts_ns: u64,
    is_dead: bool,
    /// When the kernel breaks its connections to other processes, and when it has released its names and
    /// sockets.
    exits_at_ns: u64,
    free_at_ns: u64,
    /// The members that have a connection to it. Each end notices the death of the other.
    neighbours: Vec<usize>,
    forwarded: VecDeque<Forwarded>,
    arrived: EventFd,
    journal: BTreeMap<u32, DisconnectNotice>,
    /// Dead processes of its host. It has not scanned their journals yet.
    suspects: Vec<usize>,
    /// When it noticed the last death.
    noticed_ns: u64,
    rescan_at_ns: Option<u64>,
    /// Hosts that other processes have found silent.
    silent_hosts: Vec<(Gid, Gid)>,
}

#[derive(Debug)]
struct Service {
    token: u64,
    owner: usize,
    name: (u16, u16),
    address: ServiceAddress,
}

/// A batch that one process of a host forwards to another.
#[derive(Debug)]
struct Forwarded {
    src: (IpAddr, u16),
    dst: (IpAddr, u16),
    class: (u8, u8),
    segment: usize,
    ip_id: Option<u16>,
    bytes: Vec<u8>,
}

impl Forwarded {
    fn new(batch: &RxBatch<'_>) -> Self {
        Self {
            src: (batch.src, batch.src_port),
            dst: (batch.dst, batch.dst_port),
            class: (batch.tos, batch.ttl),
            segment: batch.segment,
            ip_id: batch.ip_id,
            bytes: batch.bytes.to_vec(),
        }
    }

    fn batch(&self) -> RxBatch<'_> {
        RxBatch {
            src: self.src.0,
            src_port: self.src.1,
            dst: self.dst.0,
            dst_port: self.dst.1,
            ifindex: 0,
            tos: self.class.0,
            ttl: self.class.1,
            segment: self.segment,
            macs: None,
            ip_id: self.ip_id,
            bytes: &self.bytes,
            queue: RxQueue::Forwarded,
            icrc: roxie::port::Icrc::Present,
        }
    }
}

impl Members {
    pub(super) fn new(plan: &Plan) -> Self {
        let starts = plan.kills().and_then(|kills| kills.starts);
        let member = |(number, address): (usize, &IpAddr)| Member {
            address: *address,
            host: plan.host_of(number),
            starts_ns: starts.filter(|(late, _)| *late == number).map_or(0, |(_, at)| at),
            is_dead: false,
            exits_at_ns: NEVER,
            free_at_ns: NEVER,
            neighbours: neighbours_of(plan, number),
            forwarded: VecDeque::new(),
            arrived: EventFd::new().expect("descriptors"),
            journal: BTreeMap::new(),
            suspects: Vec::new(),
            noticed_ns: 0,
            rescan_at_ns: None,
            silent_hosts: Vec::new(),
        };
        let members = plan.addresses.iter().enumerate().map(member).collect();
        Self(Mutex::new(State { members, services: Vec::new(), tokens: 0, forwarded: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a process that was killed or has closed its device. Its connections break after `exits_ns`, and
    /// its names are free `releases_ns` later.
    pub(super) fn end(&self, process: usize, now_ns: u64, (exits_ns, releases_ns): (u64, u64)) {
        let state = &mut *self.lock();
        let member = &mut state.members[process];
        if std::mem::replace(&mut member.is_dead, true) {
            return;
        }
        member.exits_at_ns = now_ns + exits_ns;
        member.free_at_ns = member.exits_at_ns + releases_ns;
        if exits_ns == 0 {
            state.exit(process);
        }
    }

    /// As [`end`](Self::end), of a process that has closed its device.
    pub(super) fn close(&self, process: usize, now_ns: u64) {
        self.end(process, now_ns, (0, if process.is_multiple_of(2) { 0 } else { RELEASE_NS }));
    }

    /// Breaks the connections of the processes that have exited by now, and starts the late one.
    pub(super) fn advance(&self, now_ns: u64) {
        let state = &mut *self.lock();
        for process in 0..state.members.len() {
            let Member { exits_at_ns, starts_ns, .. } = state.members[process];
            if exits_at_ns <= now_ns {
                state.exit(process);
            }
            if (1..=now_ns).contains(&starts_ns) {
                state.start(process, now_ns);
            }
        }
    }

    /// When [`advance`](Self::advance) has something to do next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let state = self.lock();
        let times = |member: &Member| [member.exits_at_ns, member.starts_ns];
        state.members.iter().flat_map(times).filter(|at| !matches!(*at, 0 | NEVER)).min()
    }

    /// Whether a process of the host has the port.
    pub(super) fn has_sockets(&self, address: IpAddr, now_ns: u64) -> bool {
        self.lock().has_sockets(address, now_ns)
    }

    /// Readable when [`read`](Self::read) or [`notices`](Self::notices) has something.
    pub(super) fn fd(&self, process: usize) -> RawFd {
        self.lock().members[process].arrived.as_raw_fd()
    }

    /// Passes the batches that were forwarded to a process to `f`, and returns their number.
    pub(super) fn read(&self, process: usize, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let forwarded = {
            let member = &mut self.lock().members[process];
            // `take` finds no signal if no batch has arrived.
            let _count = member.arrived.take();
            std::mem::take(&mut member.forwarded)
        };
        forwarded.iter().for_each(|one| f(&one.batch()));
        forwarded.len()
    }

    /// Whether batches were forwarded to a process that it has not read.
    #[cfg(test)]
    pub(super) fn has_forwarded(&self, process: usize) -> bool {
        !self.lock().members[process].forwarded.is_empty()
    }

    /// Forwards a batch to the process with `slot` of the same host.
    pub(super) fn forward(&self, from: usize, slot: u16, batch: &RxBatch<'_>) -> ForwardOutcome {
        let state = &mut *self.lock();
        let host = state.members[from].host;
        let Some(to) = usize::from(slot).checked_sub(1).filter(|to| *to != from) else {
            return ForwardOutcome::NoMember;
        };
        let Some(member) = state.members.get_mut(to).filter(|member| member.host == host) else {
            return ForwardOutcome::NoMember;
        };
        state.forwarded += 1;
        if member.has_name() { member.push(batch) } else { ForwardOutcome::NoMember }
    }

    /// How many batches processes have passed on to others of their host.
    pub(super) fn forwarded(&self) -> u64 {
        self.lock().forwarded
    }

    /// Forwards a batch to all other processes of the host; returns how many took it.
    pub(super) fn forward_to_all(&self, from: usize, batch: &RxBatch<'_>) -> usize {
        let slots = 1..=self.lock().members.len() as u16;
        slots.filter(|slot| self.forward(from, *slot, batch) == ForwardOutcome::Delivered).count()
    }

    /// Forwards a batch to the other process of the host that listens on this service. Returns false if there
    /// is none.
    pub(super) fn forward_to_service(
        &self,
        from: usize,
        name: (u16, u16),
        dst: Gid,
        batch: &RxBatch<'_>,
    ) -> bool {
        let state = &mut *self.lock();
        let host = state.members[from].host;
        let any = if dst.ip().is_ipv4() { ServiceAddress::Any4 } else { ServiceAddress::Any6 };
        let candidates = [ServiceAddress::Gid(dst), any];
        let listens = |service: &&Service| {
            let is_here = state.members[service.owner].host == host;
            is_here && service.owner != from && service.name == name && candidates.contains(&service.address)
        };
        let Some(owner) = state.services.iter().find(listens).map(|service| service.owner) else {
            return false;
        };
        state.members[owner].push(batch) != ForwardOutcome::NoMember
    }

    /// Claims a service for a process; the claim ends when it is dropped.
    pub(super) fn claim(
        self: &Arc<Self>,
        owner: usize,
        name: (u16, u16),
        address: ServiceAddress,
    ) -> io::Result<Claim> {
        let state = &mut *self.lock();
        let host = state.members[owner].host;
        let is_same = |service: &Service| {
            let is_here = state.members[service.owner].host == host;
            is_here && service.name == name && service.address == address
        };
        if state.services.iter().any(is_same) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.tokens += 1;
        let token = state.tokens;
        state.services.push(Service { token, owner, name, address });
        Ok(Claim { members: Arc::clone(self), token })
    }

    /// Tells the other processes of the host of `process` that a host is silent.
    pub(super) fn tell_silent_host(&self, process: usize, pair: (Gid, Gid)) {
        let state = &mut *self.lock();
        let host = state.members[process].host;
        let members = state.members.iter_mut().enumerate();
        for (_, member) in members.filter(|(n, other)| *n != process && other.host == host) {
            member.silent_hosts.push(pair);
            member.arrived.signal(1);
        }
    }

    /// Takes what other processes have told a process.
    pub(super) fn take_silent_hosts(&self, process: usize) -> Vec<(Gid, Gid)> {
        std::mem::take(&mut self.lock().members[process].silent_hosts)
    }

    /// Writes a change to the journal of a process.
    pub(super) fn update_journal(&self, process: usize, change: JournalChange) {
        let journal = &mut self.lock().members[process].journal;
        match change {
            JournalChange::Add(notice) => _ = journal.insert(notice.id.0, notice),
            JournalChange::Remove(id) => _ = journal.remove(&id.0),
        }
    }

    /// Returns the disconnect notices in the journals of dead processes of this host, for `process` to send.
    /// Moves them to the journal of `process`, in case it dies too before it has sent them.
    pub(super) fn notices(&self, process: usize, now_ns: u64) -> Vec<DisconnectNotice> {
        let state = &mut *self.lock();
        let member = &mut state.members[process];
        let suspects = std::mem::take(&mut member.suspects);
        let is_due = member.rescan_at_ns.is_some_and(|at| at <= now_ns);
        if suspects.is_empty() && !is_due {
            return Vec::new();
        }
        if !suspects.is_empty() {
            member.noticed_ns = now_ns;
        }
        member.rescan_at_ns = next_scan_ns(member.noticed_ns, now_ns);
        let host = member.host;
        let mut found = BTreeMap::new();
        let is_free = |member: &&mut Member| member.host == host && member.free_at_ns <= now_ns;
        for dead in state.members.iter_mut().filter(is_free) {
            found.append(&mut dead.journal);
        }
        state.members[process].journal.extend(&found);
        if state.members[process].neighbours.is_empty() {
            state.find_neighbour(process);
        }
        found.into_values().collect()
    }

    /// When to call [`notices`](Self::notices) again.
    pub(super) fn rescan_at(&self, process: usize) -> Option<u64> {
        self.lock().members[process].rescan_at_ns
    }
}

impl State {
    fn has_sockets(&self, address: IpAddr, now_ns: u64) -> bool {
        let host = self.members.iter().find(|member| member.address == address).map(|member| member.host);
        self.members.iter().any(|member| {
            Some(member.host) == host && member.starts_ns <= now_ns && member.free_at_ns > now_ns
        })
    }

    /// The connections of a process break, which its neighbours notice.
    fn exit(&mut self, process: usize) {
        self.members[process].exits_at_ns = 0;
        self.services.retain(|service| service.owner != process);
        for neighbour in std::mem::take(&mut self.members[process].neighbours) {
            let member = &mut self.members[neighbour];
            member.neighbours.retain(|other| *other != process);
            if !member.is_dead {
                member.suspects.push(process);
                member.arrived.signal(1);
            }
        }
    }

    /// A process becomes a member of its host. If no other process there has the port, the journal of the
    /// last ones is lost.
    fn start(&mut self, process: usize, now_ns: u64) {
        let Member { address, host, .. } = self.members[process];
        if !self.has_sockets(address, now_ns - 1) {
            self.members.iter_mut().filter(|other| other.host == host).for_each(|other| {
                other.journal.clear();
            });
        }
        self.members[process].starts_ns = 0;
        self.find_neighbour(process);
    }

    /// Connects a member to another one of its host, if there is one.
    fn find_neighbour(&mut self, process: usize) {
        let host = self.members[process].host;
        let is_other =
            |(number, other): &(usize, &Member)| *number != process && other.host == host && other.has_name();
        if let Some((other, _)) = self.members.iter().enumerate().find(is_other) {
            self.members[process].neighbours.push(other);
            self.members[other].neighbours.push(process);
        }
    }
}

/// The neighbours of a member at first: without a plan for them all processes of its host.
fn neighbours_of(plan: &Plan, number: usize) -> Vec<usize> {
    if let Some(kills) = plan.kills() {
        let pairs = kills.neighbours.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
        return pairs.filter(|(of, _)| *of == number).map(|(_, other)| other).collect();
    }
    let is_other = |other: &usize| *other != number && plan.host_of(*other) == plan.host_of(number);
    (0..plan.addresses.len()).filter(is_other).collect()
}

impl Member {
    /// Other processes can connect to it.
    fn has_name(&self) -> bool {
        self.starts_ns == 0 && (!self.is_dead || self.exits_at_ns != 0)
    }

    fn push(&mut self, batch: &RxBatch<'_>) -> ForwardOutcome {
        if self.forwarded.len() >= FORWARDED_MAX {
            return ForwardOutcome::Full;
        }
        self.forwarded.push_back(Forwarded::new(batch));
        self.arrived.signal(1);
        ForwardOutcome::Delivered
    }
}

/// A claimed service.
pub(super) struct Claim {
    members: Arc<Members>,
    token: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.members.lock().services.retain(|service| service.token != self.token);
    }
}
