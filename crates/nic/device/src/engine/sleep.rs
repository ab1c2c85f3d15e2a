//! The sleep of the progress thread of an engine. It publishes when its sleep ends, and other threads wake it
//! for earlier work.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::EventFd;
use transport::Instant;

use crate::engine::Engine;
use crate::port::Readiness;
use crate::runtime::Point;

/// The progress thread, as the threads see it that may wake it.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// When its sleep ends by itself (nanoseconds); 0 while it is awake.
    until_ns: AtomicU64,
    /// Shared with the thread, which may sleep on it when the engine is dropped.
    kick: Arc<EventFd>,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { until_ns: AtomicU64::new(0), kick: Arc::new(EventFd::new()?) })
    }

    pub(crate) fn kick(&self) -> Arc<EventFd> {
        Arc::clone(&self.kick)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.kick.as_raw_fd()
    }

    /// When its sleep ends by itself (nanoseconds); 0 while it is awake.
    pub(crate) fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn set_until(&self, at_ns: u64) {
        self.until_ns.store(at_ns, Ordering::Relaxed);
    }

    /// Ends its sleep, or the next one.
    pub(crate) fn wake(&self) {
        self.kick.signal(1);
    }

    /// Ends its sleep if that would last longer than until `deadline`.
    pub(crate) fn wake_before(&self, deadline: Instant) {
        if deadline.0 < self.until_ns() && self.until_ns.swap(deadline.0, Ordering::Relaxed) > deadline.0 {
            self.wake();
        }
    }

    /// Discards the wake-ups that have arrived.
    pub(super) fn spend_kicks(&self) {
        // `take` finds no wake-up if the sleep ended for another reason.
        let _spent = self.kick.take();
    }

    /// Publishes when the sleep of the calling thread ends, at `latest`. Returns that time; `None` if there
    /// is work.
    pub(super) fn prepare(&self, engine: &Engine, latest: u64) -> Option<u64> {
        let deadline = engine.next_deadline().map_or(latest, |at| at.0.min(latest));
        engine.runtime().reach(Point::Sleep);
        self.set_until(deadline);
        engine.runtime().reach(Point::Sleep);
        // A post between `next_deadline` and the store saw the old value and woke no thread: check again.
        let is_settled = engine.next_deadline().is_none_or(|at| at.0 >= deadline);
        let readiness = engine.lock().port.set_need_wakeup(true);
        (is_settled && readiness == Readiness::Idle).then_some(deadline)
    }

    /// After [`prepare`](Self::prepare): the thread is awake.
    pub(super) fn end(&self, engine: &Engine) {
        engine.lock().port.set_need_wakeup(false);
        self.set_until(0);
        self.spend_kicks();
    }
}

/// The descriptors that the progress thread sleeps on while it serves an engine.
#[derive(Debug, Default)]
pub(crate) struct WaitFds {
    fds: Vec<RawFd>,
    /// The number of slots that the engine had claimed then: each has a socket.
    claimed: u64,
}

impl WaitFds {
    /// The descriptors, the monitor of the netdev last.
    pub(crate) fn of(&mut self, engine: &Engine) -> &[RawFd] {
        let claimed = engine.services.claims.made();
        if self.fds.is_empty() || std::mem::replace(&mut self.claimed, claimed) != claimed {
            self.fds = engine.wait_fds();
        }
        &self.fds
    }
}
