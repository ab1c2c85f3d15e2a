//! What an engine does beside moving packets: connections, the process registry, the control socket,
//! addresses. No part of it runs under the engine's lock. Management datagrams and packets of other processes
//! come to it in the [`Outbox`](super::outbox::Outbox).

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::gsi::Held;
use super::observer::Faults;
use super::refused::RefusedWatch;
use crate::cm::CmDriver;
use crate::netdev::Gids;
use crate::registry::Registry;
use crate::stages::{Control, Redirects};
use sys::Netlink;

/// See the module documentation.
pub(crate) struct Services {
    /// Name of the device.
    pub(super) device: String,
    pub(crate) cm: Arc<CmDriver>,
    pub(crate) registry: Box<dyn Registry>,
    /// `None` without the plug-in, or if no descriptor was free.
    pub(crate) control: Option<Box<dyn Control>>,
    pub(crate) gids: Arc<Gids>,
    /// Readable when the netdev has changed. -1 in sandboxes that forbid netlink, and in all engines but the
    /// first.
    pub(super) monitor: RawFd,
    pub(crate) held: Held,
    pub(super) refused: RefusedWatch,
    pub(super) redirects: Option<Arc<dyn Redirects>>,
    pub(crate) routes: Routes,
    pub(crate) claims: Claims,
    pub(super) faults: Faults,
}

/// The kernel's routes and neighbours, in the network namespace of the first question.
#[derive(Debug, Default)]
pub(crate) struct Routes(pub(crate) Mutex<Option<Netlink>>);

impl Routes {
    /// Asks over a socket that stays open, unless a question fails.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&mut Netlink) -> io::Result<T>) -> io::Result<T> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut netlink = kept.take().map_or_else(Netlink::new, Ok)?;
        let answer = question(&mut netlink)?;
        *kept = Some(netlink);
        Ok(answer)
    }
}

/// The claims of further slots.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Held during a claim. Taken before the lock of the engine and those of the registry.
    pub(crate) lock: Mutex<()>,
    /// When a further slot may be claimed after a failure (nanoseconds).
    pub(super) from_ns: AtomicU64,
    /// Slots that were claimed.
    pub(super) made: AtomicU64,
}

impl Claims {
    /// The number of slots that were claimed, beside the first one.
    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }
}
