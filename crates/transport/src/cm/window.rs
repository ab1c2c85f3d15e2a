//! The window of a process: at most [`UNANSWERED_MAX`] of its REQs to one address are unanswered, and further
//! ones wait. A thousand REQs at once would overflow the socket of the peer, or its limits of half-open
//! connections; each REQ lost there is repeated after 4.6 s.
//!
//! A REQ takes a place until it is answered or repeated for the first time: a peer that answers none gets a
//! further window with each repetition. The later its place is, the earlier is its first repetition, so the
//! windows do not meet at one instant.

use core::time::Duration;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;

use wire::Gid;

use super::conn::AwaitingResponse;
use super::{Cm, CmId, timing};
use crate::Instant;

/// Half: a peer 10 ms away answers 12,800 requests per second. Double: 512 MADs exceed a socket buffer of 208
/// KiB, the default of Linux.
pub(super) const UNANSWERED_MAX: usize = 256;

/// Whether the REQ of a connection has a place in the window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Request {
    /// There is no REQ, or it was answered or repeated.
    #[default]
    None,
    /// It waits for a place and has not left.
    Waiting,
    /// It has a place: it left, and nothing has come back.
    Unanswered,
}

/// The requests of a process, by destination.
#[derive(Debug, Default)]
pub(super) struct Requests {
    peers: HashMap<Gid, Peer>,
    /// Requests that were withdrawn while unanswered. Each is still in the queue of the peer, so it keeps its
    /// place until it would have been repeated.
    withdrawn: BTreeSet<(Instant, CmId, Gid)>,
    /// Number of all that wait, with those that were withdrawn since.
    waiting: usize,
}

#[derive(Debug, Default)]
struct Peer {
    unanswered: usize,
    waiting: VecDeque<CmId>,
}

impl Requests {
    /// Takes a place for a request to `dst` and returns its number; without a free one the request waits.
    fn admit(&mut self, dst: Gid, id: CmId) -> Option<usize> {
        let peer = self.peers.entry(dst).or_default();
        if peer.unanswered == UNANSWERED_MAX {
            peer.waiting.push_back(id);
            self.waiting += 1;
            return None;
        }
        peer.unanswered += 1;
        Some(peer.unanswered - 1)
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
        peer.unanswered -= 1;
        if peer.unanswered == 0 {
            self.peers.remove(&dst);
        }
        None
    }

    /// None of the requests that wait leaves any more.
    pub(super) fn forget_waiting(&mut self) {
        self.peers.values_mut().for_each(|peer| peer.waiting.clear());
        self.waiting = 0;
    }

    /// When a place is free again that a withdrawn request keeps, if others wait.
    pub(super) fn next(&self) -> Option<Instant> {
        self.withdrawn.first().filter(|_| self.waiting > 0).map(|(at, ..)| *at)
    }

    /// Takes one of the withdrawn requests that have kept their places until `now`.
    fn pop_withdrawn(&mut self, now: Instant) -> Option<Gid> {
        self.withdrawn.first().filter(|(at, ..)| *at <= now)?;
        self.withdrawn.pop_first().map(|(.., dst)| dst)
    }
}

impl Cm {
    /// Sends the REQ of a connection as soon as it has a place.
    pub(super) fn request(&mut self, now: Instant, id: CmId, message: AwaitingResponse) {
        self.free_withdrawn(now);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let interval = message.interval;
        conn.awaiting = Some(message);
        match self.requests.admit(conn.dst, id) {
            Some(place) => self.send_request(now, id, first_interval(interval, place)),
            None => conn.request = Request::Waiting,
        }
    }

    fn send_request(&mut self, now: Instant, id: CmId, interval: Duration) {
        self.enter_in_journal(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.request = Request::Unanswered;
        conn.ask_again_at = Some(now + timing::LISTENER_WAIT);
        let (src, dst) = (conn.src, conn.dst);
        if let Some(mad) = conn.awaiting.as_ref().map(|message| message.mad.clone()) {
            self.arm(id, now + interval);
            self.send(src, dst, mad);
        }
    }

    /// The peer has answered the REQ of this connection, if it was not answered before, or is silent: its
    /// place is free.
    pub(super) fn free_place(&mut self, now: Instant, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && conn.request == Request::Unanswered
        {
            conn.request = Request::None;
            let dst = conn.dst;
            self.send_next_request(now, dst);
        }
    }

    /// The connection is given up: its REQ does not leave any more. One that has left keeps its place.
    pub(super) fn withdraw_request(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && mem::take(&mut conn.request) == Request::Unanswered
            && let Some(until) = conn.deadline
        {
            self.requests.withdrawn.insert((until, id, conn.dst));
        }
    }

    /// Frees the places that withdrawn requests have kept long enough.
    pub(super) fn free_withdrawn(&mut self, now: Instant) {
        while let Some(dst) = self.requests.pop_withdrawn(now) {
            self.send_next_request(now, dst);
        }
    }

    fn send_next_request(&mut self, now: Instant, dst: Gid) {
        let conns = &self.conns;
        let is_waiting =
            |id| conns.get(&id).is_some_and(|conn| conn.request == Request::Waiting && conn.dst == dst);
        if let Some(id) = self.requests.replace(dst, is_waiting)
            && let Some(message) = self.conns.get(&id).and_then(|conn| conn.awaiting.as_ref())
        {
            let interval = message.interval;
            self.send_request(now, id, interval);
        }
    }
}

/// The time until the first repetition of a REQ with this place: the whole interval for the first one,
/// three quarters for the last.
fn first_interval(interval: Duration, place: usize) -> Duration {
    interval - interval / 4 * place as u32 / UNANSWERED_MAX as u32
}
