//! What an engine does beside moving packets: connections, the process registry, the control socket,
//! addresses. No part of it runs under the engine's lock. Management datagrams and packets of other processes
//! come to it in the [`Outbox`](super::outbox::Outbox).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sys::AddressMonitor;

use super::claims::Claims;
use super::gsi::Held;
use super::observer::Faults;
use super::refused::RefusedWatch;
use crate::cm::CmDriver;
use crate::gid::Gids;
use crate::hook::RedirectOutcome;
use crate::hook::control::Control;
use crate::registry::Registry;

/// See the module documentation.
pub(crate) struct Services {
    pub(crate) cm: Arc<CmDriver>,
    pub(crate) registry: Box<dyn Registry>,
    /// `None` if no descriptor was free.
    pub(crate) control: Option<Control>,
    pub(crate) gids: Arc<Gids>,
    /// Reports address changes. `None` in sandboxes that forbid netlink, and in all engines but the first.
    pub(crate) monitor: Option<AddressMonitor>,
    pub(super) is_netdev_lost: AtomicBool,
    pub(crate) held: Held,
    pub(super) refused: RefusedWatch,
    pub(super) redirects: Arc<RedirectOutcome>,
    pub(crate) claims: Claims,
    pub(super) faults: Faults,
}
