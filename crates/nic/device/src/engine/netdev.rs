//! The engine follows its netdev: changes of addresses and of the link, and a netdev that is removed.

use super::Engine;

impl Engine {
    /// Takes the changes of the netdev.
    pub(crate) fn follow_netdev(&self) {
        self.services.gids.follow(|before, table, is_removed| {
            self.services.cm.set_gids(table);
            self.all().for_each(|engine| engine.lock().tables.set_gids(table));
            if table.bonds != before.bonds {
                self.services.cm.tell_failover(table);
            }
            if is_removed {
                self.lose_device();
            }
        });
    }

    /// The netdev was removed, like a NIC that is pulled out: its queue pairs fail, and its identifiers can
    /// only be destroyed.
    pub(crate) fn lose_device(&self) {
        self.all().for_each(Self::fail_queue_pairs);
        self.services.cm.lose_device();
    }

    fn fail_queue_pairs(&self) {
        let now = self.now();
        let mut core = self.lock();
        core.tables.fail_all(now);
        core.transmit(now);
        self.unlock_and_deliver(core);
    }
}
