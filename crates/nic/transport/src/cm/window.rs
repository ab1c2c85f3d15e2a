//! The window of a process: at most [`PLACES`] of its REQs to one address have a place, and further ones wait
//! for one. A thousand REQs at once would overflow the socket of the peer, or its limits of half-open
//! connections; each REQ lost there is repeated after 4.6 s.
//!
//! A REQ has a place until it is answered or repeated for the first time: a peer that answers none gets a
//! further window with each repetition. A REQ with a higher place is repeated earlier, so that repetitions,
//! and the REQs that take the places, are spread over a quarter of the interval.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;

use wire::Gid;

use super::mads::AwaitingResponse;
use super::{Cm, CmId, timing};
use crate::Instant;

/// Half: a peer 10 ms away answers 12,800 requests per second. Double: 512 MADs exceed a socket buffer of 208
/// KiB, the default of Linux.
pub(super) const PLACES: u16 = 256;

/// Whether the REQ of a connection has a place in the window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Request {
    /// There is no REQ, or it was answered, repeated or withdrawn.
    #[default]
    None,
    /// It waits for a place and has not left.
    Waiting,
    /// It has this place: it left, and nothing has come back.
    Unanswered(u16),
}

/// The requests of a process, by destination.
#[derive(Debug, Default)]
pub(super) struct Requests {
    peers: HashMap<Gid, Peer>,
    /// Requests that were withdrawn while unanswered, and their places. Each may still be in the queue of the
    /// peer, so it keeps its place until it would have been repeated.
    withdrawn: BTreeSet<(Instant, CmId, Gid, u16)>,
    /// Number of all that wait, with those that were withdrawn since.
    waiting: usize,
}

#[derive(Debug, Default)]
struct Peer {
    taken: u16,
    waiting: VecDeque<CmId>,
}

impl Requests {
    /// Takes a place for a request to `dst`; without a free one the request waits.
    fn admit(&mut self, dst: Gid, id: CmId) -> Option<u16> {
        let peer = self.peers.entry(dst).or_default();
        if peer.taken == PLACES {
            peer.waiting.push_back(id);
            self.waiting += 1;
            return None;
        }
        peer.taken += 1;
        Some(peer.taken - 1)
    }

    /// Gives the place of a request to the next one that waits, and returns that one.
    fn replace(&mut self, dst: Gid, is_waiting: impl Fn(CmId) -> bool) -> Option<CmId> {
        let peer = self.peers.get_mut(&dst)?;
        while let Some(id) = peer.waiting.pop_front() {
            self.waiting -= 1;
            if is_waiting(id) {
                return Some(id);
            }
        }
        peer.taken -= 1;
        if peer.taken == 0 {
            self.peers.remove(&dst);
        }
        None
    }

    /// None of the requests that wait leaves any more.
    pub(super) fn forget_waiting(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.waiting.clear());
        self.waiting = 0;
    }

    /// When the first withdrawn request gives its place up; `None` if no request waits.
    pub(super) fn next(&self) -> Option<Instant> {
        self.withdrawn.first().filter(|_| self.waiting > 0).map(|(at, ..)| *at)
    }

    /// Takes one of the withdrawn requests that have kept their places until `now`: its address and place.
    fn pop_withdrawn(&mut self, now: Instant) -> Option<(Gid, u16)> {
        self.withdrawn.first().filter(|(at, ..)| *at <= now)?;
        self.withdrawn.pop_first().map(|(.., dst, place)| (dst, place))
    }
}

impl Cm {
    /// Sends the REQ of a connection as soon as it has a place.
    pub(super) fn request(&mut self, now: Instant, id: CmId, message: AwaitingResponse) {
        self.free_withdrawn(now);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.awaiting = Some(message);
        match self.requests.admit(conn.dst, id) {
            Some(place) => self.send_request(now, id, place, true),
            None => conn.request = Request::Waiting,
        }
    }

    /// Sends the REQ of a connection that has this place. `is_spread`: its first repetition depends on the
    /// place.
    fn send_request(&mut self, now: Instant, id: CmId, place: u16, is_spread: bool) {
        self.enter_in_journal(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.request = Request::Unanswered(place);
        conn.ask_again_at = Some(now + timing::LISTENER_WAIT);
        let Some(AwaitingResponse { mad, interval, .. }) = &conn.awaiting else { return };
        let (src, dst, mad) = (conn.src, conn.dst, mad.clone());
        let interval = if is_spread { first_interval(*interval, place) } else { *interval };
        self.arm(id, now + interval);
        self.send(src, dst, mad);
    }

    /// The peer has answered the REQ of this connection: frees its place, if it has one.
    pub(super) fn request_answered(&mut self, now: Instant, id: CmId) {
        if let Some((dst, place)) = self.take_place(id) {
            self.send_next_request(now, dst, place, true);
        }
    }

    /// The REQ of this connection is repeated, or given up: frees its place, if it has one.
    pub(super) fn request_repeated(&mut self, now: Instant, id: CmId) {
        if let Some((dst, place)) = self.take_place(id) {
            self.send_next_request(now, dst, place, false);
        }
    }

    fn take_place(&mut self, id: CmId) -> Option<(Gid, u16)> {
        let conn = self.conns.get_mut(&id)?;
        let Request::Unanswered(place) = conn.request else { return None };
        conn.request = Request::None;
        Some((conn.dst, place))
    }

    /// The connection is given up: its REQ does not leave any more. One that has left keeps its place.
    pub(super) fn withdraw_request(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && let Request::Unanswered(place) = mem::take(&mut conn.request)
            && let Some(until) = conn.deadline
        {
            self.requests.withdrawn.insert((until, id, conn.dst, place));
        }
    }

    /// Frees the places that withdrawn requests have kept long enough.
    pub(super) fn free_withdrawn(&mut self, now: Instant) {
        while let Some((dst, place)) = self.requests.pop_withdrawn(now) {
            self.send_next_request(now, dst, place, false);
        }
    }

    /// Gives a place to the request that waits. After a repetition it is spread already, as that was.
    fn send_next_request(&mut self, now: Instant, dst: Gid, place: u16, is_spread: bool) {
        let conns = &self.conns;
        let is_waiting =
            |id| conns.get(&id).is_some_and(|conn| conn.request == Request::Waiting && conn.dst == dst);
        if let Some(id) = self.requests.replace(dst, is_waiting) {
            self.send_request(now, id, place, is_spread);
        }
    }
}

/// The time until the first repetition of a REQ with this place: the whole interval for the first place,
/// almost three quarters for the last.
fn first_interval(interval: Duration, place: u16) -> Duration {
    interval - interval / 4 * u32::from(place) / u32::from(PLACES)
}
