//! A REQ with the queue pair of an established connection: Linux calls that connection stale, and ends it.
//!
//! The REQ may be from a peer that was killed and has lost the connection. It may also be forged: a forger
//! knows the address and the node GUID of the peer, and guesses the QPN. So the REQ waits, and the peer
//! gets a probe (`keepalive.rs`). A CM that does not have the connection replies with a DREP, which must
//! repeat the transaction id of the probe: 64 bits that a forger does not see. Then the connection ends, and
//! the REQ is handled. Without a reply the connection stays; the peer repeats its REQ, and each of them can
//! cause a probe.

use core::time::Duration;

use wire::cm::{Drep, RejReason, Req};

use super::mads::Arrival;
use super::{Cm, CmId};
use crate::Instant;

/// Shortest time between two probes that REQs cause, for each connection. Half: a flood of REQs causes twice
/// the probes. Double: still shorter than the time after which Linux repeats a REQ, 4.6 s.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Probes for one REQ before it is rejected. Half: a lost probe makes a peer that has lost the connection
/// start anew. Double: a live peer that sends the REQ by mistake is rejected after 18 s instead of 9 s.
const PROBES_MAX: u8 = 2;
/// A REQ that has waited for longer is dropped. Half: after a slow reply the peer must repeat it. Double: it
/// is handled when its sender has repeated it.
const REQ_WAIT: Duration = Duration::from_secs(4);

/// The REQ that waits, and the probe that it has caused.
#[derive(Debug)]
pub(super) struct StaleCheck {
    tid: u64,
    probed_at: Instant,
    /// Probes for this REQ.
    probes: u8,
    req: Req,
    from: Arrival,
    arrived_at: Instant,
}

impl Cm {
    /// Keeps the REQ, which has the queue pair of the established connection `id`, and probes the peer.
    pub(super) fn check_stale(&mut self, now: Instant, id: CmId, req: &Req, from: Arrival) {
        self.counters.rx_stale += 1;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (src, dst, remote_id) = (conn.src, conn.dst, conn.remote_id);
        let mut probes = 0;
        if let Some(check) = &mut conn.stale {
            if now < check.probed_at + PROBE_INTERVAL {
                (check.req, check.from, check.arrived_at) = (*req, from, now);
                return;
            }
            let is_repeated = (check.req.tid, check.req.local_comm_id) == (req.tid, req.local_comm_id);
            probes = if is_repeated { check.probes } else { 0 };
        }
        if probes >= PROBES_MAX {
            conn.stale = None;
            return self.refuse_req(now, req, RejReason::STALE_CONNECTION, from);
        }
        if !self.may_reply_to_stranger(now) {
            return;
        }
        let (tid, mad) = self.keepalive.probe(self.config.tid_key, id, remote_id);
        let check = StaleCheck { tid, probed_at: now, probes: probes + 1, req: *req, from, arrived_at: now };
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.stale = Some(Box::new(check));
        }
        self.send(src, dst, mad);
    }

    /// Whether a DREP replies to the probe of a check: the connection that the peer does not have.
    pub(super) fn refuted_connection(&self, drep: &Drep, from: Arrival) -> Option<CmId> {
        let id = CmId(drep.remote_comm_id);
        let conn = self.conns.get(&id)?;
        let is_from_peer = conn.is_peer(from) && conn.remote_id == drep.local_comm_id;
        let is_reply = conn.stale.as_ref().is_some_and(|check| check.tid == drep.tid);
        (is_from_peer && is_reply).then_some(id)
    }

    /// Handles a REQ that has waited for the end of a connection.
    pub(super) fn handle_waiting_req(&mut self, now: Instant, check: &StaleCheck) {
        if now <= check.arrived_at + REQ_WAIT {
            // Without a listener or a place in its backlog, the REQ is left to its repetition.
            let _outcome = self.handle_req(now, &check.req, check.from);
        }
    }
}
