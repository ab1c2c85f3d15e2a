//! The engine follows its netdev: new addresses, and a netdev that is removed.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sys::AddressMonitor;

use super::Engine;

impl Engine {
    /// Readable when [`follow_netdev`](Self::follow_netdev) has work; -1 without a monitor.
    pub(super) fn monitor_fd(&self) -> RawFd {
        self.services.monitor.as_ref().map_or(-1, |monitor| monitor.as_fd().as_raw_fd())
    }

    /// Updates the GID tables if the addresses of the netdev have changed.
    pub(crate) fn follow_netdev(&self) {
        if !self.services.monitor.as_ref().is_some_and(AddressMonitor::take_news) {
            return;
        }
        if let Some(table) = self.services.gids.refresh() {
            self.services.cm.set_gids(&table);
            self.all().for_each(|engine| engine.lock().tables.gids = Arc::clone(&table));
            self.services.is_netdev_lost.store(false, Ordering::Relaxed);
        } else if self.services.gids.netdev_is_gone()
            && !self.services.is_netdev_lost.swap(true, Ordering::Relaxed)
        {
            self.all().for_each(Self::lose_netdev);
        }
    }

    /// The netdev was removed, like a NIC that is pulled out: its queue pairs fail, and applications get
    /// DEVICE_FATAL and RDMA_CM_EVENT_DEVICE_REMOVAL. Loopback addresses still work.
    fn lose_netdev(&self) {
        let now = self.now();
        let table = self.services.gids.get();
        let mut core = self.lock();
        core.tables.lose_addresses(now, |index| table.rows().any(|(own, _)| own == index));
        core.transmit(now);
        self.unlock_and_deliver(core);
        self.services.cm.lose_device();
    }
}
