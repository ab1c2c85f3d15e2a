//! Management datagrams that QP1 passes to a connection manager: that of this process, or of another process
//! of this host.
//!
//! A connection request may arrive before its listener exists. It is kept for a while and offered again,
//! because the peer repeats it only after seconds, and does not repeat a rejected request at all.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use transport::Instant;
use transport::cm::RateLimit;
use transport::cm::timing::LISTENER_WAIT;
use wire::Gid;
use wire::cm::ServiceId;

use super::Engine;
use super::outbox::Mad;
use crate::cm::{MadOutcome, RequestHost, RequestTarget};
use crate::registry::ForwardOutcome;
use crate::status::Row;
use crate::trace;

const LISTENER_WAIT_NS: u64 = LISTENER_WAIT.as_nanos() as u64;
/// How long a request waits for a free place in the backlog of its listener: a burst of requests arrives in
/// one batch, before the program can read the first. A quarter of the time after which Linux repeats a
/// request.
const BACKLOG_WAIT_NS: u64 = 1_000_000_000;
/// How long a request waits while its device is being opened, which takes milliseconds, or seconds if other
/// processes of the domain do not answer.
const OPENING_WAIT_NS: u64 = 4_000_000_000;
/// Without traffic the waiting requests are offered again after this time (ns). With traffic some are
/// offered after each poll.
const OFFER_INTERVAL_NS: u64 = 1_000_000;
/// Most requests that wait, some 600 bytes each. A new one that finds no space is dropped; its peer repeats
/// it after 4.6 s. Half: this happens to a smaller burst. Double: a flood takes twice the memory.
const HELD_MAX: usize = 1024;
/// Most waiting requests that are offered at once. Half: a burst of requests is taken half as fast. Double: a
/// flood costs twice the CPU time.
const OFFERS_MAX: usize = 64;
/// Messages per second that are passed to every process of the host. Each costs as many system calls as
/// there are processes, and any host can send them. Half: when a host with 1000 clients ends them at once,
/// servers wait for half of the RTUs for a minute. Double: a flood costs twice the CPU time.
const BROADCASTS_PER_S: u64 = 1000;

/// Searches per second for the process that listens for a request, or has the slot of a probe. Each costs two
/// system calls, and any host can send requests for services that do not exist. Half: in a flood, requests
/// for other processes wait longer. Double: a flood costs twice the CPU time.
const SEARCHES_PER_S: u64 = 5000;
/// How long (ns) it counts whether this process is the only one of its domain. A look reads a table of 8 KiB,
/// and any host can send requests that need one. Half: a flood reads the table twice as often. Double: a
/// listener in a process that joins meanwhile misses requests for twice the time.
const ALONE_NS: u64 = 1_000_000;

/// Requests that wait for their listener, and the limits of what requests and other messages cost.
#[derive(Default)]
pub(crate) struct Held(pub(crate) Mutex<HeldState>);

/// Protected by the lock of [`Held`].
pub(crate) struct HeldState {
    requests: VecDeque<HeldRequest>,
    broadcasts: RateLimit,
    searches: RateLimit,
    /// Whether this process is the only one of its domain, and until when this counts.
    alone: (bool, Instant),
    /// Searches so far.
    searched: u64,
    /// Requests that found no space.
    dropped: u64,
}

impl Default for HeldState {
    fn default() -> Self {
        Self {
            requests: VecDeque::new(),
            broadcasts: RateLimit::new(BROADCASTS_PER_S),
            searches: RateLimit::new(SEARCHES_PER_S),
            alone: (false, Instant(0)),
            searched: 0,
            dropped: 0,
        }
    }
}

/// A datagram, and since when it waits if it is a request.
pub(crate) struct HeldRequest {
    mad: Mad,
    since: Instant,
    /// The connection manager has it in its counters.
    is_counted: bool,
    /// The taps have it.
    is_copied: bool,
}

impl HeldState {
    /// Drops the waiting requests.
    pub(crate) fn forget(&mut self) {
        self.requests.clear();
    }
}

impl Held {
    /// Returns when the waiting requests are offered again.
    pub(crate) fn next_offer(&self, now: Instant) -> Option<Instant> {
        let held = &self.lock().requests;
        (!held.is_empty()).then(|| now.plus_ns(OFFER_INTERVAL_NS))
    }

    /// Keeps a new request, unless too many wait.
    fn keep(&self, request: HeldRequest) {
        let mut held = self.lock();
        if held.requests.len() < HELD_MAX {
            held.requests.push_back(request);
        } else {
            held.dropped += 1;
        }
    }

    /// Keeps a request that has waited already.
    fn keep_again(&self, request: HeldRequest) {
        self.lock().requests.push_back(request);
    }

    /// Takes those that have waited longest since they were last offered.
    fn take(&self) -> Vec<HeldRequest> {
        let held = &mut self.lock().requests;
        let count = held.len().min(OFFERS_MAX);
        held.drain(..count).collect()
    }

    fn may_broadcast(&self, now: Instant) -> bool {
        self.lock().broadcasts.take(now)
    }

    fn may_search(&self, now: Instant) -> bool {
        let mut held = self.lock();
        let may_search = held.searches.take(now);
        held.searched += u64::from(may_search);
        may_search
    }

    /// Whether this process is the only one of its domain; `look` finds out.
    fn is_alone(&self, now: Instant, look: impl FnOnce() -> bool) -> bool {
        let alone = &mut self.lock().alone;
        if now >= alone.1 {
            *alone = (look(), now.plus_ns(ALONE_NS));
        }
        alone.0
    }

    /// Names and values of the counters.
    pub(crate) fn rows(&self) -> [Row; 2] {
        let held = self.lock();
        [("listener_searches", held.searched), ("listener_requests_dropped", held.dropped)]
    }

    fn lock(&self) -> MutexGuard<'_, HeldState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Passes a datagram from QP1 to its connection manager.
    pub(crate) fn deliver_mad(&self, mad: Mad) {
        trace::cm_message(&mad.bytes, false);
        // A rejection of a request without a reply does not name the communication ID of the receiver, so it
        // may be for any process of this host.
        if transport::cm::is_for_every_process(&mad.bytes) {
            self.broadcast(&mad);
        }
        let mut request = HeldRequest { mad, since: self.now(), is_counted: false, is_copied: false };
        if !self.process(&mut request) {
            self.services.held.keep(request);
        }
    }

    /// Passes a datagram to the other engines of this host, unless one of them has passed it on.
    fn broadcast(&self, mad: &Mad) {
        if !mad.packet.is_forwarded() && self.services.held.may_broadcast(self.now()) {
            self.services.registry.forward_to_all(&mad.packet.batch());
        }
    }

    /// Offers the waiting requests again.
    pub(crate) fn offer_held(&self) {
        for mut request in self.services.held.take() {
            if !self.process(&mut request) {
                self.services.held.keep_again(request);
            }
        }
    }

    /// Delivers, forwards or rejects a datagram. False if it may wait longer for a listener.
    fn process(&self, request: &mut HeldRequest) -> bool {
        let HeldRequest { mad, since, is_counted, is_copied } = request;
        let waited_ns = self.now().0.saturating_sub(since.0);
        let (src, dst) = mad.packet.addresses();
        let scope = mad.packet.scope();
        let elsewhere = self.service_elsewhere(mad, (dst, scope));
        match elsewhere.and_then(|service| self.services.cm.host_of_request(service, (dst, scope))) {
            Some(RequestHost::At(host)) => {
                host.take_mad(mad.clone());
                return true;
            }
            Some(RequestHost::Opening) if waited_ns < OPENING_WAIT_NS => return false,
            Some(RequestHost::Opening) | None => {}
        }
        let mut copy = || {
            if !mem::replace(is_copied, true) {
                self.lock().hooks.tap_request(&mad.packet.batch());
            }
        };
        let mad_of_cm = (&mad.bytes, !mem::replace(is_counted, true));
        // Another interface may have the same link-local address: the request is for that one, and a reply
        // from here would leave through this one.
        let is_of_other_link = scope.is_some() && elsewhere.is_some();
        let outcome = match elsewhere.filter(|_| is_of_other_link) {
            Some(service_id) => MadOutcome::NotOurs { service_id, dst_gid: dst },
            None => self.services.cm.handle_mad(self.now(), mad_of_cm, (src, dst), &mut copy),
        };
        match outcome {
            MadOutcome::Handled => true,
            MadOutcome::OfSlot(slot) => {
                if self.hand_to_slot(mad, slot) == Some(false) {
                    copy();
                    self.services.cm.reply_without_process(self.now(), &mad.bytes, src, dst);
                }
                true
            }
            MadOutcome::BacklogFull => waited_ns >= BACKLOG_WAIT_NS,
            // No search follows that of the process that received it.
            MadOutcome::NotOurs { .. } if is_of_other_link && mad.packet.is_forwarded() => true,
            MadOutcome::NotOurs { service_id, dst_gid } => {
                let over = waited_ns >= LISTENER_WAIT_NS;
                let handed = self.hand_to_listener(mad, service_id, dst_gid);
                if over && handed != Some(true) {
                    copy();
                }
                if over && handed == Some(false) && is_of_other_link {
                    // Each engine on that link rejects it; the peer ignores all but the first.
                    self.broadcast(mad);
                } else if over && handed == Some(false) {
                    self.services.cm.reject_no_listener(self.now(), &mad.bytes, src, dst);
                }
                handed == Some(true) || over
            }
        }
    }

    /// Returns the service of a request to an address that this device does not have.
    fn service_elsewhere(&self, mad: &Mad, to: RequestTarget) -> Option<ServiceId> {
        if self.services.gids.get().takes(to) {
            return None;
        }
        transport::cm::requested_service(&mad.bytes)
    }

    /// Forwards a DREQ or probe to the process with `slot`. False if there is none; `None` if too many were
    /// searched for, or another process has forwarded it.
    fn hand_to_slot(&self, mad: &Mad, slot: u16) -> Option<bool> {
        if mad.packet.is_forwarded() || !self.services.held.may_search(self.now()) {
            return None;
        }
        // An error means that a process of another user has the slot.
        let outcome = self.services.registry.forward_by_name(slot, &mad.packet.batch());
        Some(!matches!(outcome, Ok(ForwardOutcome::NoMember)))
    }

    /// Forwards a request to the process that listens for it. False if there is none; `None` if too many
    /// requests were searched for: a peer that gets no reply repeats its request.
    fn hand_to_listener(&self, mad: &Mad, service: ServiceId, dst: Gid) -> Option<bool> {
        let is_alone = || self.services.held.is_alone(self.now(), || self.services.registry.is_alone());
        if mad.packet.is_forwarded() || is_alone() {
            return Some(false);
        }
        let (ps, port) = ((service.0 >> 16) as u16, service.port());
        let forward = || self.services.registry.forward_to_service(ps, port, dst, &mad.packet.batch());
        self.services.held.may_search(self.now()).then(|| forward().unwrap_or(false))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_flood_of_requests_reads_the_table_of_slots_once_in_a_millisecond() {
        let (held, looks) = (Held::default(), Cell::new(0));
        let is_alone = |now_ns, answer| {
            let look = || {
                looks.set(looks.get() + 1);
                answer
            };
            held.is_alone(Instant(now_ns), look)
        };
        assert!((0..1000).all(|packet| is_alone(5_000_000 + packet * 1000, true)));
        assert_eq!(looks.get(), 1);
        assert!((0..1000).all(|packet| !is_alone(6_000_000 + packet * 1000, false)));
        assert_eq!(looks.get(), 2);
    }
}
