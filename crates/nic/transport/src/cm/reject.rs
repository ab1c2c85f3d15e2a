//! REJ: sending it, receiving it, and giving up (IBA 12.6.7; Linux cm.c cm_rej_handler).

use wire::cm::{Answered, CmMessage, Rej, RejReason};

use super::event::{CmResult, Rejection};
use super::mads::Arrival;
use super::params::REJ_PRIVATE_MAX;
use super::table::{check_private_data, in_state};
use super::window::Request;
use super::{Cm, CmEventKind, CmId, ConnState, MadBytes, message};
use crate::Instant;

impl Cm {
    /// Refuses a request, or a response to ours.
    ///
    /// # Errors
    /// `EINVAL` if no request or response can be refused, or for too much private data.
    pub fn reject(&mut self, id: CmId, reason: RejReason, private_data: &[u8]) -> CmResult<()> {
        check_private_data(private_data, REJ_PRIVATE_MAX)?;
        in_state(&mut self.conns, id, ConnState::may_reject)?;
        self.send_rej(id, reason, &[], private_data);
        Ok(())
    }

    /// Sends the REJ that fits the state, unless the peer knows nothing of the connection, and ends the
    /// exchange.
    pub(super) fn send_rej(&mut self, id: CmId, reason: RejReason, ari: &[u8], private_data: &[u8]) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (local_id, rejected) = match conn.state {
            ConnState::ReqRcvd => (0, Answered::REQ),
            ConnState::MraReqSent => (id.0, Answered::REQ),
            ConnState::RepRcvd | ConnState::MraRepSent => (id.0, Answered::REP),
            _ => (id.0, Answered::OTHER),
        };
        let mut rej = message::rej(conn.tid, (local_id, conn.remote_id), rejected, reason, ari);
        message::fill(&mut rej.private_data, private_data);
        let (src, dst, has_left) = (conn.src, conn.dst, conn.request != Request::Waiting);
        self.request_taken(id);
        self.reset_to_idle(id);
        if has_left {
            self.send(src, dst, message::emit(|mad| rej.emit(mad)));
        }
    }

    pub(super) fn handle_rej(&mut self, now: Instant, rej: &Rej, from: Arrival) {
        let Some(id) = self.rejected_connection(rej, from) else {
            self.counters.rx_unexpected += 1;
            return;
        };
        self.request_answered(now, id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        match conn.state {
            ConnState::ReqSent if rej.reason == RejReason::INVALID_SERVICE_ID => {
                match conn.ask_again_at.take().filter(|at| now < *at) {
                    Some(at) => return self.arm(id, at),
                    None => self.reset_to_idle(id),
                }
            }
            ConnState::ReqSent
            | ConnState::MraReqRcvd
            | ConnState::RepSent
            | ConnState::MraRepRcvd
            | ConnState::ReqRcvd
            | ConnState::MraReqSent => {
                if rej.reason == RejReason::STALE_CONNECTION {
                    self.enter_timewait(now, id);
                } else {
                    self.reset_to_idle(id);
                }
            }
            ConnState::DreqSent | ConnState::RepRcvd | ConnState::MraRepSent | ConnState::Established => {
                self.enter_timewait(now, id);
            }
            ConnState::Idle | ConnState::DreqRcvd | ConnState::Timewait => {
                self.counters.rx_unexpected += 1;
                return;
            }
        }
        let rejection =
            Rejection { reason: rej.reason, ari: ari(rej).to_vec(), private_data: rej.private_data };
        self.report(id, CmEventKind::Rejected(Box::new(rejection)));
    }

    /// Linux cm.c cm_acquire_rejected_id.
    fn rejected_connection(&mut self, rej: &Rej, from: Arrival) -> Option<CmId> {
        if rej.reason == RejReason::TIMEOUT {
            let guid = ari(rej).first_chunk::<8>().map(|b| u64::from_be_bytes(*b))?;
            let id = self.peers.by_comm_id((guid, from.src), rej.local_comm_id)?;
            let conn = self.conns.get(&id).filter(|conn| conn.is_peer(from))?;
            // A peer that has our id withdraws with the id. Without it, only a request can be withdrawn.
            let is_meant = match rej.remote_comm_id {
                0 => conn.is_half_open,
                remote_id => remote_id == id.0 && conn.tid == rej.tid,
            };
            return is_meant.then_some(id);
        }
        let is_of_req = rej.message == Answered::REQ;
        let remote_id = if is_of_req { 0 } else { rej.local_comm_id };
        let (id, conn) = self.lookup(rej.remote_comm_id, remote_id, from)?;
        // A DREQ has a transaction id of its own, and its wait may end without proof.
        (conn.tid == rej.tid || conn.state == ConnState::DreqSent).then_some(id)
    }
}

/// Whether a MAD goes to every process of the host: a REJ from a peer that gave up before it knew our id
/// names no process.
#[must_use]
pub fn is_for_every_process(mad: &MadBytes) -> bool {
    match CmMessage::parse(mad) {
        Ok(CmMessage::Rej(rej)) => rej.reason == RejReason::TIMEOUT && rej.remote_comm_id == 0,
        _ => false,
    }
}

/// The additional information, with the length that the sender names.
fn ari(rej: &Rej) -> &[u8] {
    rej.ari.get(..usize::from(rej.ari_len)).unwrap_or(&rej.ari)
}

impl ConnState {
    pub(super) fn may_reject(self) -> bool {
        use ConnState::*;
        matches!(
            self,
            ReqSent | MraReqRcvd | ReqRcvd | MraReqSent | RepRcvd | MraRepSent | RepSent | MraRepRcvd
        )
    }
}
