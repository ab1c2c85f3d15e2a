//! The sleep of the threads that serve an engine: the progress thread, and one that waits for an event
//! (`attendance.rs`). Each publishes when its sleep ends, and other threads wake it for earlier work.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::EventFd;
use transport::Instant;

use crate::engine::Engine;
use crate::port::Readiness;
use crate::runtime::Point;

/// poll(2) skips it.
pub(super) const NO_FD: RawFd = -1;

/// A thread that serves an engine and sleeps at times.
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
        let readiness = engine.lock().thread_sleeps();
        (is_settled && readiness == Readiness::Idle).then_some(deadline)
    }

    /// After [`prepare`](Self::prepare): the thread is awake.
    pub(super) fn end(&self, engine: &Engine) {
        let readiness = engine.lock().thread_wakes();
        self.set_until(0);
        if readiness == Readiness::Pending {
            // The other thread that serves the engine sleeps, and its wake-up went to this one.
            engine.wake_sleepers();
        }
        self.spend_kicks();
    }
}

/// The descriptors that a thread sleeps on which serves an engine.
#[derive(Debug, Default)]
pub(crate) struct WaitFds {
    fds: Vec<RawFd>,
    /// The number of slots that the engine had claimed then: each has a socket.
    claimed: u64,
}

impl WaitFds {
    /// The descriptors: `fd` first, those of the engine and its `sleeper`, and the monitor of the netdev
    /// last.
    pub(crate) fn with(&mut self, engine: &Engine, sleeper: &Sleeper, fd: RawFd) -> &[RawFd] {
        let claimed = engine.claims.made();
        if self.fds.is_empty() || std::mem::replace(&mut self.claimed, claimed) != claimed {
            self.fds = engine.wait_fds(fd, sleeper);
        }
        self.fds[0] = fd;
        &self.fds
    }
}
