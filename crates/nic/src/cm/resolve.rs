//! Waiting for the neighbour a destination is reached through (rdma_resolve_addr(3)): a host that is not there is an error
//! when the caller's time is up, not when all retries of the connection request are.
//!
//! The kernel does the asking. It is made to by a datagram to the destination, and then its neighbour table is looked at
//! until it has an answer; that needs no privilege.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use transport::Instant;

use super::event::Happening;
use super::id::{IdInner, Phase};

/// How packets to a destination leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Path {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// Interface, and the address on it that takes the packets: the destination or a router.
    pub(crate) ifindex: u32,
    pub(crate) next_hop: IpAddr,
}

/// An identifier that waits.
pub(super) struct Query {
    id: Weak<IdInner>,
    path: Path,
    deadline: Instant,
    look_at: Instant,
    pause_ns: u64,
    ask_at: Instant,
}

/// Those of one process.
#[derive(Default)]
pub(super) struct Queries(Vec<Query>);

/// A neighbour on the same switch answers within 1 ms; the pauses between looks grow from there.
const PAUSE_MIN_NS: u64 = 1_000_000;
const PAUSE_MAX_NS: u64 = 50_000_000;
/// The kernel repeats a question every second, three times (net/ipv4/neigh/default/retrans_time_ms, mcast_solicit);
/// then it wants to be asked anew.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

impl Query {
    /// For an identifier in [`Phase::AddrQuery`].
    pub(super) fn new(id: &Arc<IdInner>, path: Path, now: Instant, timeout: Duration) -> Self {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline = Instant(now.0.saturating_add(timeout_ns));
        Self { id: Arc::downgrade(id), path, deadline, look_at: now, pause_ns: PAUSE_MIN_NS, ask_at: now }
    }

    /// Looks whether there is an answer; `None` if there is, or if it comes too late or to nobody.
    pub(super) fn look(mut self, now: Instant) -> Option<Self> {
        let id = self.id.upgrade()?;
        if id.lock().phase != Phase::AddrQuery {
            return None;
        }
        if id.host.knows_neighbour(&self.path) {
            id.resolved(Ok(()));
            return None;
        }
        if now >= self.deadline {
            id.resolved(Err(libc::ETIMEDOUT));
            return None;
        }
        if now >= self.ask_at {
            id.host.ask_neighbour(&self.path);
            self.ask_at = Instant(now.0 + ASK_AGAIN_NS);
        }
        self.look_at = Instant(now.0 + self.pause_ns).min(self.deadline);
        self.pause_ns = (2 * self.pause_ns).min(PAUSE_MAX_NS);
        Some(self)
    }
}

impl Queries {
    pub(super) fn add(&mut self, query: Query) {
        self.0.push(query);
    }

    /// When [`take_due`](Self::take_due) must be called.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.iter().map(|query| query.look_at).min()
    }

    /// Those to be looked at; allocates nothing if there are none.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Query> {
        self.0.extract_if(.., |query| query.look_at <= now).collect()
    }
}

impl IdInner {
    /// The neighbour is known, or is not there.
    fn resolved(self: &Arc<Self>, found: Result<(), i32>) {
        let mut state = self.lock();
        if state.phase != Phase::AddrQuery {
            return;
        }
        state.phase = if found.is_ok() { Phase::AddrResolved } else { Phase::Bound };
        drop(state);
        self.push(match found {
            Ok(()) => Happening::AddrResolved,
            Err(errno) => Happening::AddrError(errno),
        });
    }
}
