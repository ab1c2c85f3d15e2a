//! Management datagrams on their way from QP1 to a connection manager: ours, or another process's of this
//! host.
//!
//! A request may come too early. It is then kept for a while and offered again, because its peer repeats it
//! only after seconds, or takes a refusal for an answer.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use transport::Instant;
use transport::cm::timing::LISTENER_WAIT;

use super::Engine;
use super::inbox::Mad;
use crate::cm::MadOutcome;

const LISTENER_WAIT_NS: u64 = LISTENER_WAIT.as_nanos() as u64;
/// How long a request waits for room in its listener's backlog: a burst of requests arrives here in one
/// batch, before the program can read the first. A quarter of the time after which Linux repeats it.
const BACKLOG_WAIT_NS: u64 = 1_000_000_000;
/// How often they are offered again meanwhile.
const OFFER_INTERVAL_NS: u64 = 1_000_000;
/// Requests that wait; for more it is the last chance at once.
const HELD_MAX: usize = 64;

/// Requests that came too early.
#[derive(Default)]
pub(crate) struct Held(pub(crate) Mutex<VecDeque<Early>>);

/// One of them.
pub(crate) struct Early {
    mad: Mad,
    since: Instant,
}

impl Held {
    /// When they are to be offered again.
    pub(crate) fn next_offer(&self, now: Instant) -> Option<Instant> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (!held.is_empty()).then(|| now.plus_ns(OFFER_INTERVAL_NS))
    }

    /// Gives it back if there are too many.
    fn keep(&self, early: Early) -> Option<Early> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= HELD_MAX {
            return Some(early);
        }
        held.push_back(early);
        None
    }

    fn take(&self) -> VecDeque<Early> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Engine {
    /// A datagram from QP1 goes to the connection manager it is for.
    pub(crate) fn deliver_mad(&self, mad: Mad) {
        // A rejection of a request that was never answered names no communication id of ours, so any
        // process of this host may have read it.
        if transport::cm::is_for_every_process(&mad.bytes) && !mad.packet.is_forwarded() {
            self.registry.forward_to_all(&mad.packet.batch());
        }
        self.offer(Early { mad, since: self.now() });
    }

    /// Offers the requests that were kept again.
    pub(crate) fn offer_held(&self) {
        for early in self.held.take() {
            self.offer(early);
        }
    }

    /// Offers and, if it is too early, keeps for the next time.
    fn offer(&self, early: Early) {
        let waited_ns = self.now().0.saturating_sub(early.since.0);
        if !self.settle_mad(&early.mad, waited_ns)
            && let Some(early) = self.held.keep(early)
        {
            let _last_chance = self.settle_mad(&early.mad, u64::MAX);
        }
    }

    /// False if the datagram may wait longer than `waited_ns` for somebody to take it.
    fn settle_mad(&self, mad: &Mad, waited_ns: u64) -> bool {
        let (src, dst) = mad.packet.addresses();
        match self.cm.handle_mad(self.now(), &mad.bytes, src, dst) {
            MadOutcome::Handled => true,
            MadOutcome::BacklogFull => waited_ns >= BACKLOG_WAIT_NS,
            MadOutcome::NotOurs { service_id, dst_gid } => {
                let (ps, port) = ((service_id.0 >> 16) as u16, service_id.port());
                let train = mad.packet.batch();
                let handed = !mad.packet.is_forwarded()
                    && self.registry.forward_to_service(ps, port, dst_gid, &train).is_ok_and(|taken| taken);
                let over = waited_ns >= LISTENER_WAIT_NS;
                if !handed && over {
                    self.cm.reject_no_listener(&mad.bytes, src, dst);
                }
                handed || over
            }
        }
    }
}
