//! What identifiers are told of their netdev: it was removed, or it is a bond that has failed over.

use std::sync::Arc;

use super::driver::CmDriver;
use super::event::RawEvent;
use super::host::Host;
use super::id::IdInner;
use super::listen::unlisten;
use super::state::Phase;
use crate::gid::GidTable;

impl IdInner {
    /// The device of the identifier was removed. Its port is free, and it listens no more: rdma_ucm destroys
    /// the kernel's identifier after the event (Linux ucma.c ucma_close_id). A listener on a wildcard address
    /// has no device (cma.c cma_process_remove): it stops listening there. If it was the listener's first
    /// device, its port and listener stay, because requests reach the other devices by them;
    /// `State::request` rejects what arrives at the removed device.
    pub(super) fn lose_device(self: &Arc<Self>, driver: &CmDriver) {
        let is_at = |host: &Arc<dyn Host>| std::ptr::eq(host.driver(), driver);
        let is_its_own = self.place().is_some_and(|place| is_at(&place.host));
        let mut state = self.lock();
        let is_over = matches!(state.phase, Phase::DeviceRemoval | Phase::Destroyed);
        if is_its_own && (is_over || state.local.is_none()) {
            return;
        }
        let listened = state.listeners.extract_if(.., |(host, _)| is_at(host)).collect();
        let is_told = is_its_own && !state.silent;
        let bound = is_its_own.then(|| {
            state.phase = Phase::DeviceRemoval;
            state.bound.take()
        });
        drop(state);
        unlisten(listened);
        drop(bound);
        if is_told {
            self.push(RawEvent::DeviceRemoval);
        }
    }

    /// As [`lose_device`](Self::lose_device), if `host` was removed while the identifier was about to use it:
    /// the driver may have told its identifiers before.
    pub(super) fn lose_removed(self: &Arc<Self>, host: &dyn Host) {
        if host.driver().with(|driver| driver.is_removed) {
            self.lose_device(host.driver());
        }
    }

    /// A bond has failed over. The bond may have a new MAC: a peer of the identifier may not find it any more
    /// (Linux cma.c cma_netdev_change).
    pub(super) fn tell_failover(self: &Arc<Self>, gids: &GidTable) {
        let state = self.lock();
        let Some((local, before)) = state.local.zip(state.bond_mac) else { return };
        drop(state);
        if gids.bond_mac(&local).is_some_and(|now| now != before) {
            self.deliver(RawEvent::AddrChange);
        }
    }
}
