//! Unanswered requests: at most [`UNANSWERED_MAX`] to one address, and further ones wait. A thousand REQs at
//! once would overflow the socket of the peer, or its limits of half-open connections; each REQ lost there is
//! repeated after 4.3 s.

use std::collections::{HashMap, VecDeque};
use std::mem;

use wire::Gid;

use super::conn::AwaitingResponse;
use super::{Cm, CmId, ConnState, timing};

/// Half: a peer 10 ms away answers 12,800 requests per second. Double: 512 MADs exceed a socket buffer of 208
/// KiB, the default of Linux.
pub(super) const UNANSWERED_MAX: usize = 256;

/// The requests of a process, by destination.
#[derive(Debug, Default)]
pub(super) struct Requests(HashMap<Gid, Peer>);

#[derive(Debug, Default)]
struct Peer {
    unanswered: usize,
    waiting: VecDeque<CmId>,
}

impl Requests {
    /// Whether a request to `dst` may leave now; if not, it waits.
    fn admit(&mut self, dst: Gid, id: CmId) -> bool {
        let peer = self.0.entry(dst).or_default();
        let is_admitted = peer.unanswered < UNANSWERED_MAX;
        if is_admitted {
            peer.unanswered += 1;
        } else {
            peer.waiting.push_back(id);
        }
        is_admitted
    }

    /// A request to `dst` is no longer unanswered. Returns the one that takes its place; `may_leave` is false
    /// for those that were given up.
    fn replace(&mut self, dst: Gid, may_leave: impl Fn(CmId) -> bool) -> Option<CmId> {
        let peer = self.0.get_mut(&dst)?;
        let next = std::iter::from_fn(|| peer.waiting.pop_front()).find(|id| may_leave(*id));
        if next.is_none() {
            peer.unanswered -= 1;
            if peer.unanswered == 0 {
                self.0.remove(&dst);
            }
        }
        next
    }
}

impl Cm {
    /// Sends the REQ of a connection as soon as the peer has answered enough others.
    pub(super) fn request(&mut self, id: CmId, message: AwaitingResponse) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.awaiting = Some(message);
        if self.requests.admit(conn.dst, id) {
            self.send_request(id);
        }
    }

    fn send_request(&mut self, id: CmId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.is_unanswered = true;
        conn.ask_again_at = Some(self.latest + timing::LISTENER_WAIT);
        if let Some(message) = &conn.awaiting {
            let (src, dst, mad, interval) = (conn.src, conn.dst, message.mad.clone(), message.interval);
            self.arm(id, self.latest + interval);
            self.send(src, dst, mad);
        }
    }

    /// The peer has answered the REQ of this connection or is silent, or the REQ was withdrawn: the next one
    /// may leave.
    pub(super) fn no_longer_unanswered(&mut self, id: CmId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !mem::replace(&mut conn.is_unanswered, false) {
            return;
        }
        let (dst, conns) = (conn.dst, &self.conns);
        let may_leave = |id| {
            let conn = conns.get(&id);
            conn.is_some_and(|conn| conn.state == ConnState::ReqSent && conn.awaiting.is_some())
        };
        if let Some(next) = self.requests.replace(dst, may_leave) {
            self.send_request(next);
        }
    }
}
