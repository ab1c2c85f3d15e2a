//! Limits of what hosts without a connection can cause: half-open connections, and replies.

use std::collections::HashMap;

use wire::Gid;

use super::params::{HALF_OPEN_MAX, HALF_OPEN_PEER_MAX};
use crate::Instant;

/// Replies per second to messages that belong to no connection, and the most at once. A reply is as long as
/// its cause, so a forged source gains nothing; the limit bounds the CPU time and the traffic. Half: a burst
/// of 1000 rejected clients waits for retries. Double: twice the traffic.
pub(super) const STRANGER_REPLIES_PER_S: u64 = 2048;
/// Retransmissions of a REP while more than half of [`HALF_OPEN_MAX`] is in use: 16 s instead of 66 s. Half:
/// clients on a bad link fail under load. Double: forged requests are kept twice as long.
const CROWDED_REP_RETRIES: u8 = 3;

/// Connections that were requested by peers and are not established: their number, in total and by the
/// peer's address.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    total: usize,
    by_peer: HashMap<Gid, usize>,
}

impl HalfOpen {
    /// Whether another request from `peer` may be reported.
    pub(super) fn has_room(&self, peer: Gid) -> bool {
        let of_peer = self.by_peer.get(&peer).copied().unwrap_or(0);
        self.total < HALF_OPEN_MAX && of_peer < HALF_OPEN_PEER_MAX
    }

    pub(super) fn add(&mut self, peer: Gid) {
        self.total += 1;
        *self.by_peer.entry(peer).or_default() += 1;
    }

    pub(super) fn remove(&mut self, peer: Gid) {
        self.total -= 1;
        if let Some(of_peer) = self.by_peer.get_mut(&peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    /// How often a REP is retransmitted whose REQ asks for `wanted` retransmissions.
    pub(super) fn rep_retries(&self, wanted: u8) -> u8 {
        if self.total > HALF_OPEN_MAX / 2 { wanted.min(CROWDED_REP_RETRIES) } else { wanted }
    }
}

/// Permits so many actions per second, and as many at once.
#[derive(Debug)]
pub struct RateLimit {
    per_s: u64,
    /// The time (nanoseconds) that the actions so far take at the permitted rate ends here.
    used_until_ns: u64,
}

impl RateLimit {
    /// Permits `per_s` actions per second, from 1 to 1,000,000,000.
    #[must_use]
    pub const fn new(per_s: u64) -> Self {
        Self { per_s, used_until_ns: 0 }
    }

    /// Whether one more action is permitted now; counts it.
    pub fn take(&mut self, now: Instant) -> bool {
        let action_ns = 1_000_000_000 / self.per_s;
        let used_until_ns = self.used_until_ns.max(now.0) + action_ns;
        let is_permitted = used_until_ns <= now.0 + self.per_s * action_ns;
        if is_permitted {
            self.used_until_ns = used_until_ns;
        }
        is_permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_a_rate_is_permitted() {
        let mut limit = RateLimit::new(1000);
        assert_eq!((0..10_000).filter(|_| limit.take(Instant(5))).count(), 1000);
        let later = Instant(5 + 10_000_000);
        assert_eq!((0..100).filter(|_| limit.take(later)).count(), 10);
        let much_later = Instant(3_000_000_000);
        assert_eq!((0..10_000).filter(|_| limit.take(much_later)).count(), 1000);
    }

    #[test]
    fn one_peer_leaves_room_for_others() {
        let peers = [1, 2].map(|n| Gid::from(std::net::Ipv4Addr::new(10, 0, 0, n)));
        let mut half_open = HalfOpen::default();
        while half_open.has_room(peers[0]) {
            half_open.add(peers[0]);
        }
        assert_eq!(half_open.total, HALF_OPEN_PEER_MAX);
        while half_open.has_room(peers[1]) {
            half_open.add(peers[1]);
        }
        assert_eq!(half_open.total, HALF_OPEN_MAX);
        assert_eq!((half_open.rep_retries(15), half_open.rep_retries(1)), (CROWDED_REP_RETRIES, 1));
        for peer in [peers[0]; HALF_OPEN_PEER_MAX] {
            half_open.remove(peer);
        }
        assert_eq!(half_open.by_peer.len(), 1);
        assert!(half_open.has_room(peers[0]));
        assert_eq!(half_open.rep_retries(15), 15);
    }
}
