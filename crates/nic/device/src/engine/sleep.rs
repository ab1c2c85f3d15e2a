//! The sleep of the progress thread of an engine. It publishes when its sleep ends, and other threads wake it
//! for earlier work.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::EventFd;
use transport::Instant;

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
}
