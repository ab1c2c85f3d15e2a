//! The engine follows its netdev: changes of addresses and of the link, and a netdev that is removed.

use super::Engine;

impl Engine {
    /// Takes the changes of the netdev.
    pub(crate) fn follow_netdev(&self) {
        self.services.gids.follow(|table, is_removed| {
            self.services.cm.set_gids(table);
            self.all().for_each(|engine| engine.lock().tables.set_gids(table));
            if is_removed {
                self.all().for_each(Self::lose_netdev);
                self.services.cm.lose_device();
            }
        });
    }

    /// The netdev was removed, like a NIC that is pulled out: its queue pairs fail.
    fn lose_netdev(&self) {
        let now = self.now();
        let mut core = self.lock();
        core.tables.fail_all(now);
        core.transmit(now);
        self.unlock_and_deliver(core);
    }
}
