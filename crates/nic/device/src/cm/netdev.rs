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
    /// The device of the identifier was removed. A listener on a wildcard address has none (Linux cma.c
    /// cma_process_remove): it stops listening there, but keeps its port at the first device.
    pub(super) fn lose_device(self: &Arc<Self>, driver: &CmDriver) {
        let is_at = |host: &Arc<dyn Host>| std::ptr::eq(host.driver(), driver);
        let is_its_own = self.place().is_some_and(|place| is_at(&place.host));
        let mut state = self.lock();
        if !is_its_own {
            let listened = state.listeners.extract_if(.., |(host, _)| is_at(host)).collect();
            drop(state);
            return unlisten(listened);
        }
        if state.local.is_none() || matches!(state.phase, Phase::DeviceRemoval | Phase::Destroyed) {
            return;
        }
        state.phase = Phase::DeviceRemoval;
        if !state.silent {
            drop(state);
            self.push(RawEvent::DeviceRemoval);
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
