//! The process registry of a simulated host with one process.

use std::io;
use std::os::fd::RawFd;

use roxie::port::RxBatch;
use roxie::registry::{ClaimedService, ForwardOutcome, Membership, Registry, ServiceAddress};
use transport::cm::{DisconnectNotice, JournalChange};
use wire::Gid;

/// The only member of its host, with this slot.
pub(super) struct OnlyMember(pub(super) u8);

impl Registry for OnlyMember {
    fn slot(&self) -> u8 {
        self.0
    }

    fn listener_fd(&self) -> RawFd {
        -1
    }

    fn poll_listener(&self, _f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        0
    }

    fn forward(&self, _slot: u8, _batch: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
        Ok(ForwardOutcome::NoMember)
    }

    fn forward_to_all(&self, _batch: &RxBatch<'_>) -> usize {
        0
    }

    fn forward_to_service(&self, _ps: u16, _port: u16, _dst: Gid, _batch: &RxBatch<'_>) -> io::Result<bool> {
        Ok(false)
    }

    fn claim_service(&self, _ps: u16, _port: u16, _address: ServiceAddress) -> io::Result<ClaimedService> {
        Ok(Box::new(()))
    }

    fn update_journal(&self, _change: JournalChange) -> io::Result<()> {
        Ok(())
    }

    fn take_disconnect_notices(&self) -> Vec<DisconnectNotice> {
        Vec::new()
    }

    fn rescan_at(&self) -> Option<u64> {
        None
    }

    fn set_sibling_slots(&self, _slots: Vec<u8>) {}

    fn connects(&self) -> u64 {
        0
    }

    fn membership(&self) -> Option<&Membership> {
        None
    }
}
