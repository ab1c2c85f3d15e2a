//! Resolving the neighbour of a destination (rdma_resolve_addr(3)). An unreachable host becomes an error
//! after the caller's timeout, not after all retries of the connection request.
//!
//! The kernel resolves the neighbour. A datagram to the destination triggers that, and then this module polls
//! the kernel's neighbour table. Neither needs privileges.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use transport::Instant;

use super::event::RawEvent;
use super::id::IdInner;
use super::state::Phase;

/// The path of packets to a destination.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Path {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// Interface, and the next hop on it: the destination or a router.
    pub(crate) ifindex: u32,
    pub(crate) next_hop: IpAddr,
}

/// An identifier that waits for its neighbour.
pub(super) struct Query {
    id: Weak<IdInner>,
    path: Path,
    deadline: Instant,
    check_at: Instant,
    delay_ns: u64,
    solicit_at: Instant,
}

/// The queries of one process.
#[derive(Default)]
pub(super) struct Queries(Vec<Query>);

/// Delay between two checks: starts at 1 ms, in which a neighbour on the same switch answers, and doubles up
/// to 50 ms.
const CHECK_DELAY_MIN_NS: u64 = 1_000_000;
const CHECK_DELAY_MAX_NS: u64 = 50_000_000;
/// Interval of the datagrams. The kernel repeats its solicitation every second, three times
/// (net/ipv4/neigh/default/retrans_time_ms, mcast_solicit), and then needs another datagram.
const SOLICIT_INTERVAL_NS: u64 = 1_000_000_000;

impl Query {
    /// Creates a query for an identifier in [`Phase::AddrQuery`].
    pub(super) fn new(id: &Arc<IdInner>, path: Path, now: Instant, timeout: Duration) -> Self {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline = Instant(now.0.saturating_add(timeout_ns));
        Self {
            id: Arc::downgrade(id),
            path,
            deadline,
            check_at: now,
            delay_ns: CHECK_DELAY_MIN_NS,
            solicit_at: now,
        }
    }

    /// Checks the neighbour table, and reports a result to the identifier. Returns `None` when the query has
    /// ended.
    pub(super) fn check(mut self, now: Instant) -> Option<Self> {
        let id = self.id.upgrade()?;
        if id.lock().phase != Phase::AddrQuery {
            return None;
        }
        let host = id.host().ok()?;
        if host.knows_neighbour(&self.path) {
            id.resolved(Ok(()));
            return None;
        }
        if now >= self.deadline {
            id.resolved(Err(libc::ETIMEDOUT));
            return None;
        }
        if now >= self.solicit_at {
            host.solicit_neighbour(&self.path);
            self.solicit_at = Instant(now.0 + SOLICIT_INTERVAL_NS);
        }
        self.check_at = Instant(now.0 + self.delay_ns).min(self.deadline);
        self.delay_ns = (2 * self.delay_ns).min(CHECK_DELAY_MAX_NS);
        Some(self)
    }
}

impl Queries {
    pub(super) fn add(&mut self, query: Query) {
        self.0.push(query);
    }

    /// When to call [`take_due`](Self::take_due) next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|query| query.check_at).min()
    }

    /// Returns the queries to check now; allocates nothing if there are none.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Query> {
        self.0.extract_if(.., |query| query.check_at <= now).collect()
    }
}

impl IdInner {
    /// Reports that the neighbour is known, or that it did not answer.
    fn resolved(self: &Arc<Self>, found: Result<(), i32>) {
        let mut state = self.lock();
        if state.phase != Phase::AddrQuery {
            return;
        }
        state.phase = if found.is_ok() { Phase::AddrResolved } else { Phase::Bound };
        self.push(match found {
            Ok(()) => RawEvent::AddrResolved,
            Err(errno) => RawEvent::AddrError(errno),
        });
    }
}
