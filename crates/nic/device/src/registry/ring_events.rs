//! What happened to rings, for the engines of a member.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use sys::byte_ring::Consumer;

/// An event of a ring.
#[derive(Debug)]
pub(crate) enum RingEvent {
    /// Another member offered this ring and writes into it for this member.
    Offered { token: u64, ring: Box<Consumer> },
    /// The other member accepted the ring that this member offered.
    Accepted { token: u64 },
    /// The other member closed the connection: it has ended, or it does not accept the ring.
    Ended { token: u64 },
}

/// Queue of ring events, written by the thread that serves connections.
#[derive(Debug, Default)]
pub(super) struct RingEvents {
    events: Mutex<Vec<RingEvent>>,
    has_events: AtomicBool,
}

impl RingEvents {
    pub(super) fn put(&self, event: RingEvent) {
        let mut pending = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        pending.push(event);
        self.has_events.store(true, Ordering::Release);
    }

    /// True if [`take`](Self::take) will return an event. The lock there orders the events themselves.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.has_events.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn take(&self) -> Vec<RingEvent> {
        let mut pending = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_events.store(false, Ordering::Relaxed);
        std::mem::take(&mut *pending)
    }
}
