//! The process registry of a simulated host, as one of its processes sees it.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use roxie::port::RxBatch;
use roxie::registry::{ClaimedService, ForwardOutcome, Membership, Registry, ServiceRequest};
use roxie::runtime::{Point, World};
use transport::cm::{DisconnectNotice, JournalChange};
use wire::Gid;

use super::members::Members;
use super::threads::Threads;

/// See the module documentation. The slot of process n is n + 1.
pub(super) struct SimMember {
    process: usize,
    threads: Arc<Threads>,
    members: Arc<Members>,
}

impl SimMember {
    pub(super) fn new(threads: &Arc<Threads>, process: usize) -> Self {
        Self { process, threads: Arc::clone(threads), members: Arc::clone(&threads.network.members) }
    }
}

impl Drop for SimMember {
    fn drop(&mut self) {
        self.members.close(self.process, self.threads.now_ns());
    }
}

impl Registry for SimMember {
    fn slot(&self) -> u16 {
        self.process as u16 + 1
    }

    fn listener_fd(&self) -> RawFd {
        self.members.fd(self.process)
    }

    fn poll_listener(&self, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        self.members.read(self.process, f)
    }

    fn forward(&self, slot: u16, batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        self.threads.reach(Point::Wake);
        Ok(self.members.forward(self.process, slot, batch))
    }

    fn forward_to_all(&self, batch: &RxBatch<'_>) -> usize {
        self.threads.reach(Point::Wake);
        self.members.forward_to_all(self.process, batch)
    }

    fn tell_silent_host(&self, src: Gid, dst: Gid) {
        self.threads.reach(Point::Wake);
        self.members.tell_silent_host(self.process, (src, dst));
    }

    fn take_silent_hosts(&self) -> Vec<(Gid, Gid)> {
        self.members.take_silent_hosts(self.process)
    }

    fn forward_to_service(&self, ps: u16, port: u16, dst: Gid, batch: &RxBatch<'_>) -> io::Result<bool> {
        self.threads.reach(Point::Wake);
        Ok(self.members.forward_to_service(self.process, (ps, port), dst, batch))
    }

    fn claim_service(&self, ps: u16, port: u16, request: ServiceRequest) -> io::Result<ClaimedService> {
        Ok(Box::new(self.members.claim(self.process, (ps, port), request.address)?))
    }

    fn update_journal(&self, change: JournalChange) -> io::Result<()> {
        self.members.update_journal(self.process, change);
        Ok(())
    }

    fn take_disconnect_notices(&self) -> Vec<DisconnectNotice> {
        self.members.notices(self.process, self.threads.now_ns())
    }

    fn rescan_at(&self) -> Option<u64> {
        self.members.rescan_at(self.process)
    }

    fn set_sibling_slots(&self, _slots: Vec<u16>) {}

    fn connects(&self) -> u64 {
        0
    }

    fn membership(&self) -> Option<&Membership> {
        None
    }
}
