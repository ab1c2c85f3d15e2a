//! The processes of each simulated host, as its process registry knows them: forwarded packets, claimed
//! services, and the disconnect journals of processes that died.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roxie::port::{RxBatch, RxQueue};
use roxie::registry::{ForwardOutcome, ServiceAddress};
use sys::EventFd;
use transport::cm::{DisconnectNotice, JournalChange};
use wire::Gid;

/// Forwarded batches that a process has not read; more are dropped.
const FORWARDED_MAX: usize = 256;
/// After a death, its journal is scanned again after this time (nanoseconds), as in `registry/failure.rs`.
const RESCAN_NS: u64 = 200_000_000;
/// How long the kernel takes to release the names of every second process that dies (nanoseconds).
const RELEASE_NS: u64 = 1_000_000;

/// All processes of all hosts, by number.
#[derive(Debug)]
pub(super) struct Members(Mutex<State>);

#[derive(Debug)]
struct State {
    members: Vec<Member>,
    services: Vec<Service>,
    tokens: u64,
}

#[derive(Debug)]
struct Member {
    address: IpAddr,
    is_dead: bool,
    /// When the kernel has released the names of this process after it died.
    free_at_ns: u64,
    forwarded: VecDeque<Forwarded>,
    arrived: EventFd,
    journal: BTreeMap<u32, DisconnectNotice>,
    /// Dead processes of its host. It has not scanned their journals yet.
    suspects: Vec<usize>,
    rescan_at_ns: Option<u64>,
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
            tos: self.class.0,
            ttl: self.class.1,
            segment: self.segment,
            macs: None,
            ip_id: self.ip_id,
            bytes: &self.bytes,
            queue: RxQueue::Forwarded,
        }
    }
}

impl Members {
    pub(super) fn new(addresses: &[IpAddr]) -> Self {
        let member = |address: &IpAddr| Member {
            address: *address,
            is_dead: false,
            free_at_ns: 0,
            forwarded: VecDeque::new(),
            arrived: EventFd::new().expect("descriptors"),
            journal: BTreeMap::new(),
            suspects: Vec::new(),
            rescan_at_ns: None,
        };
        let members = addresses.iter().map(member).collect();
        Self(Mutex::new(State { members, services: Vec::new(), tokens: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a process that was killed or has closed its device, and signals the other processes of its host.
    pub(super) fn end(&self, process: usize, now_ns: u64) {
        let state = &mut *self.lock();
        if std::mem::replace(&mut state.members[process].is_dead, true) {
            return;
        }
        state.members[process].free_at_ns = now_ns + if process.is_multiple_of(2) { 0 } else { RELEASE_NS };
        state.services.retain(|service| service.owner != process);
        let address = state.members[process].address;
        for member in state.members.iter_mut().filter(|member| member.address == address && !member.is_dead) {
            member.suspects.push(process);
            member.arrived.signal(1);
        }
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
        let address = state.members[from].address;
        let Some(to) = usize::from(slot).checked_sub(1).filter(|to| *to != from) else {
            return ForwardOutcome::NoMember;
        };
        let member = state.members.get_mut(to).filter(|member| member.address == address && !member.is_dead);
        member.map_or(ForwardOutcome::NoMember, |member| member.push(batch))
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
        let address = state.members[from].address;
        let any = if dst.ip().is_ipv4() { ServiceAddress::Any4 } else { ServiceAddress::Any6 };
        let candidates = [ServiceAddress::Gid(dst), any];
        let listens = |service: &&Service| {
            let is_here = state.members[service.owner].address == address;
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
        let host = state.members[owner].address;
        let is_same = |service: &Service| {
            let is_here = state.members[service.owner].address == host;
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
        member.rescan_at_ns = (!suspects.is_empty()).then_some(now_ns + RESCAN_NS);
        let address = member.address;
        let mut found = BTreeMap::new();
        let is_free =
            |member: &&mut Member| member.address == address && member.is_dead && member.free_at_ns <= now_ns;
        for dead in state.members.iter_mut().filter(is_free) {
            found.append(&mut dead.journal);
        }
        state.members[process].journal.extend(&found);
        found.into_values().collect()
    }

    /// When to call [`notices`](Self::notices) again.
    pub(super) fn rescan_at(&self, process: usize) -> Option<u64> {
        self.lock().members[process].rescan_at_ns
    }
}

impl Member {
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
