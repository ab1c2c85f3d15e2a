//! The engine as its control socket sees it: hooks, taps and status for other processes of the same user.

use std::os::fd::RawFd;

use wire::Qpn;

use super::Engine;
use crate::stages::{Served, Stages};
use crate::status::{EngineStatus, ObjectKind, ObjectPage, QpPage};

impl Engine {
    /// Readable when [`serve_control`](Self::serve_control) has work; -1 without a control socket.
    pub(super) fn control_fd(&self) -> RawFd {
        self.services.control.as_ref().map_or(-1, |control| control.fd())
    }

    /// Executes the requests that other processes sent.
    pub(super) fn serve_control(&self) {
        if let Some(control) = &self.services.control {
            control.serve(self);
        }
    }
}

impl Served for Engine {
    fn now_ns(&self) -> u64 {
        self.now().0
    }

    fn with_stages(&self, work: &mut dyn FnMut(&mut dyn Stages)) {
        // A process with a control socket has stages.
        let _without = self.lock().hooks.with(work);
    }

    fn connected_to(&self, peers: &[Qpn]) -> Vec<Qpn> {
        self.lock().tables.connected_to(peers)
    }

    fn status(&self) -> EngineStatus {
        let mut netdev = self.services.gids.get().netdev.clone();
        if self.services.gids.is_removed() {
            netdev.push_str(" (removed)");
        }
        let port = self.lock().port.report().description;
        EngineStatus::new(self.services.device.clone(), netdev, port, self.rows())
    }

    fn objects(&self, kind: ObjectKind, from: u32) -> ObjectPage {
        self.object_page(kind, from)
    }

    fn queue_pairs(&self, from: u32) -> QpPage {
        self.lock().status_from(self.now(), from)
    }
}
