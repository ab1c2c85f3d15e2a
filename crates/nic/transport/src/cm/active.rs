//! The active side: REQ out, REP in, RTU out (IBA 12.9.6; Linux cm.c cm_rep_handler).

use wire::Qpn;
use wire::cm::{Answered, Mra, RejReason, Rep};

use super::conn::Conn;
use super::event::{CmResult, ConnectResponse, PeerParams};
use super::mads::{Arrival, AwaitingResponse};
use super::params::{ConnectParams, REQ_PRIVATE_MAX, RTU_PRIVATE_MAX, Transport};
use super::table::{check_private_data, in_state};
use super::{Cm, CmEventKind, CmId, ConnState, message, timing};
use crate::Instant;

impl Cm {
    /// Sends a REQ for a connection, at once or as soon as fewer than 256 others have a place (`window.rs`).
    ///
    /// # Errors
    /// `EINVAL` for too much private data; `ENOMEM` when there are too many connections.
    pub fn connect(&mut self, now: Instant, params: &ConnectParams<'_>) -> CmResult<CmId> {
        check_private_data(params.private_data, REQ_PRIVATE_MAX)?;
        let id = self.allocate_id()?;
        let life = params.ack_timeout.map_or(self.config.packet_life_time, |t| t.min(31).saturating_sub(1));
        let conn = Conn {
            state: ConnState::ReqSent,
            tid: self.fresh_tid(id),
            transport: params.transport,
            local_qpn: params.qp.qpn,
            src: params.path.src,
            dst: params.path.dst,
            hop_limit: params.path.hop_limit,
            traffic_class: params.path.traffic_class,
            flow_label: params.path.flow_label,
            sl: params.path.sl,
            path_mtu: params.path_mtu,
            rq_psn: params.qp.starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            retry_count: params.retry_count.min(7),
            ack_timeout: life + 1,
            timeout: timing::req_timeout(life),
            max_cm_retries: timing::MAX_CM_RETRIES,
            ..Conn::default()
        };
        let ack_timeout = timing::ack_timeout(self.config.ack_delay, life);
        let mad = message::req(&self.config, id, &conn, params, ack_timeout);
        let request = AwaitingResponse { mad, interval: conn.timeout, retries_left: conn.max_cm_retries };
        self.conns.insert(id, conn);
        self.peers.insert_local(id, params.qp.qpn);
        self.request(now, id, request);
        Ok(id)
    }

    /// The QP is ready: completes the connection.
    ///
    /// # Errors
    /// `EINVAL` if no REP was received, or for too much private data.
    pub fn rtu(&mut self, id: CmId, private_data: &[u8]) -> CmResult<()> {
        check_private_data(private_data, RTU_PRIVATE_MAX)?;
        let has_rep = |state| matches!(state, ConnState::RepRcvd | ConnState::MraRepSent);
        let conn = in_state(&mut self.conns, id, has_rep)?;
        let mad = message::rtu(id, conn, private_data);
        conn.reply = Some(mad.clone());
        let (src, dst) = (conn.src, conn.dst);
        self.enter_established(id);
        // So far the journal entry only withdraws the request.
        self.remove_from_journal(id);
        self.enter_in_journal(id);
        self.send(src, dst, mad);
        Ok(())
    }

    pub(super) fn handle_rep(&mut self, now: Instant, rep: &Rep, from: Arrival) {
        let found = self.lookup(rep.remote_comm_id, 0, from).filter(|(_, conn)| conn.tid == rep.tid);
        let waiting = found.map(|(id, conn)| (id, conn.state, conn.transport));
        let Some((id, ConnState::ReqSent | ConnState::MraReqRcvd, transport)) = waiting else {
            return self.handle_duplicate_rep(rep, from);
        };
        let qpn = if transport == Transport::Xrc { Qpn::new(rep.local_eecn) } else { rep.local_qpn };
        let guid = rep.local_ca_guid;
        if self.peers.by_comm_id((guid, from.src), rep.local_comm_id).is_some() {
            self.counters.rx_duplicates += 1;
            return;
        }
        if let Some(old) = self.peers.by_qpn((guid, from.src), qpn) {
            // The REQ keeps its timer: the peer repeats its REP, or gives up.
            let ids = (rep.remote_comm_id, rep.local_comm_id);
            let rej = message::rej(rep.tid, ids, Answered::REP, RejReason::STALE_CONNECTION, &[]);
            let mad = message::emit(|mad| rej.emit(mad));
            self.send(from.dst, from.src, mad);
            return self.disconnect_stale(now, old);
        }
        self.request_answered(now, id);
        self.disarm(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = ConnState::RepRcvd;
        conn.remote_id = rep.local_comm_id;
        conn.remote_guid = guid;
        conn.remote_qpn = qpn;
        conn.sq_psn = rep.starting_psn;
        conn.initiator_depth = rep.responder_resources;
        conn.responder_resources = rep.initiator_depth;
        conn.rnr_retry_count = rep.rnr_retry_count;
        conn.ack_timeout = timing::ack_timeout(rep.target_ack_delay, conn.ack_timeout.saturating_sub(1));
        let response = ConnectResponse {
            params: PeerParams {
                responder_resources: rep.initiator_depth,
                initiator_depth: rep.responder_resources,
                flow_control: rep.flow_control,
                retry_count: 0,
                rnr_retry_count: rep.rnr_retry_count,
                srq: rep.srq,
                qpn,
            },
            private_data: rep.private_data,
        };
        self.peers.insert(id, (guid, from.src), rep.local_comm_id);
        self.report(id, CmEventKind::ConnectResponse(Box::new(response)));
    }

    fn handle_duplicate_rep(&mut self, rep: &Rep, from: Arrival) {
        let Some((id, conn)) = self.lookup(rep.remote_comm_id, rep.local_comm_id, from) else {
            self.counters.rx_unexpected += 1;
            return;
        };
        let mad = match conn.state {
            ConnState::Established => conn.reply.clone(),
            ConnState::MraRepSent => Some(message::mra(id, conn, Answered::REP)),
            _ => None,
        };
        let (src, dst) = (conn.src, conn.dst);
        self.counters.rx_duplicates += 1;
        if let Some(mad) = mad {
            self.send(src, dst, mad);
        }
    }

    /// Handles an MRA: the REQ or REP waits as long as the peer asks for, from now on.
    pub(super) fn handle_mra(&mut self, now: Instant, mra: &Mra, from: Arrival) {
        let remote_id = if mra.message == Answered::REQ { 0 } else { mra.local_comm_id };
        let found = self.lookup(mra.remote_comm_id, remote_id, from);
        let Some((id, conn)) = found.filter(|(_, conn)| conn.tid == mra.tid) else {
            self.counters.rx_unexpected += 1;
            return;
        };
        let next = match (conn.state, mra.message) {
            (ConnState::ReqSent, Answered::REQ) => ConnState::MraReqRcvd,
            (ConnState::RepSent, Answered::REP) => ConnState::MraRepRcvd,
            (ConnState::MraReqRcvd | ConnState::MraRepRcvd, _) => {
                self.counters.rx_duplicates += 1;
                return;
            }
            _ => {
                self.counters.rx_unexpected += 1;
                return;
            }
        };
        let wait = conn.mra_wait(mra.service_timeout);
        conn.state = next;
        if let Some(message) = &mut conn.awaiting {
            message.interval = wait;
        }
        self.arm(id, now + wait);
        self.request_answered(now, id);
    }
}
