//! The passive side: REQ in, REP out, RTU in (IBA 12.9.7; Linux cm.c cm_req_handler).

use wire::cm::{Answered, CmMessage, RejReason, Req, Rtu, ServiceId};
use wire::{Gid, Qpn};

use super::conn::Conn;
use super::event::{CmResult, ConnectRequest, MadOutcome, PeerParams};
use super::mads::Arrival;
use super::params::{AcceptParams, ListenerId, REP_PRIVATE_MAX, REQ_PRIVATE_MAX};
use super::table::{Listener, check_private_data, in_state};
use super::validate::{self, Checked};
use super::{Cm, CmEventKind, CmId, ConnState, MadBytes, message};
use crate::Instant;

/// Returns the service that a connection request asks for, or a request to a datagram service; `None` for
/// other messages.
#[must_use]
pub fn requested_service(mad: &MadBytes) -> Option<ServiceId> {
    match CmMessage::parse(mad) {
        Ok(CmMessage::Req(req)) => Some(req.service_id),
        Ok(CmMessage::SidrReq(req)) => Some(req.service_id),
        _ => None,
    }
}

/// Whether a message is for one process or device, which only its content tells: a request, or a probe.
#[must_use]
pub fn is_for_one_process(mad: &MadBytes) -> bool {
    let is_probe =
        matches!(CmMessage::parse(mad), Ok(CmMessage::Dreq(dreq)) if dreq.remote_qpn == Qpn::new(0));
    is_probe || requested_service(mad).is_some()
}

impl Cm {
    pub(super) fn handle_req(&mut self, now: Instant, req: &Req, from: Arrival) -> MadOutcome {
        if req.primary.local_gid != from.src {
            // The QP and the reply would be for a host that asks for nothing.
            self.counters.rx_foreign += 1;
            self.refuse_req(now, req, RejReason::CONSUMER_DEFINED, from);
            return MadOutcome::Handled;
        }
        let node = (req.local_ca_guid, from.src);
        if let Some(known) = self.peers.by_comm_id(node, req.local_comm_id) {
            self.handle_duplicate_req(known);
            return MadOutcome::Handled;
        }
        let asked = message::destination(req.ip_header(), from.dst);
        let Some((listener, found)) = self.find_listener(req.service_id, asked, from) else {
            return MadOutcome::NotOurs { service_id: req.service_id, dst_gid: asked };
        };
        let checked =
            validate::req(req, from, found.params.transport, self.gids.as_deref(), self.config.max_path_mtu);
        let Checked { addresses, transport, path_mtu } = match checked {
            Ok(checked) => checked,
            Err(reason) => {
                self.refuse_req(now, req, reason, from);
                return MadOutcome::Handled;
            }
        };
        if let Some(old) = self.peers.by_qpn(node, req.local_qpn) {
            self.check_stale(now, old, req, from);
            return MadOutcome::Handled;
        }
        // No REJ: the next try may find room.
        if !self.half_open.has_room(from.src) {
            self.counters.rx_backlog_full += 1;
            return MadOutcome::BacklogFull;
        }
        let Some(id) = self.admit(listener) else { return MadOutcome::BacklogFull };
        let mut conn = Conn::from_req(req, transport, path_mtu);
        conn.backlog_of = Some(listener);
        conn.is_half_open = true;
        self.half_open.add(conn.dst);
        let path = (conn.src, conn.dst);
        self.conns.insert(id, conn);
        self.peers.insert(id, node, req.local_comm_id);
        let mut request = ConnectRequest {
            listener,
            service_id: req.service_id,
            local: addresses.local,
            peer: addresses.peer,
            peer_port: addresses.peer_port,
            path,
            transport,
            path_mtu,
            params: PeerParams {
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                flow_control: req.flow_control,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                srq: req.srq,
                qpn: req.local_qpn,
            },
            private_data: [0; REQ_PRIVATE_MAX],
        };
        message::fill(&mut request.private_data, req.user_data());
        self.report(id, CmEventKind::ConnectRequest(Box::new(request)));
        MadOutcome::Handled
    }

    /// The listener for a request; none for a request to an address of another device.
    pub(super) fn find_listener(
        &self,
        service_id: ServiceId,
        asked: Gid,
        from: Arrival,
    ) -> Option<(ListenerId, &Listener)> {
        validate::is_ours(from.dst, self.gids.as_deref()).then(|| self.listeners.find(service_id, asked))?
    }

    /// Refuses a request that no process of this host listens for: REJ 8; SIDR status 1.
    pub fn reject_no_listener(&mut self, now: Instant, mad: &MadBytes, src: Gid, dst: Gid) {
        let from = Arrival { src, dst };
        match CmMessage::parse(mad) {
            Ok(CmMessage::Req(req)) => self.refuse_req(now, &req, RejReason::INVALID_SERVICE_ID, from),
            Ok(CmMessage::SidrReq(req)) => self.refuse_sidr(now, &req, from),
            _ => self.counters.rx_unexpected += 1,
        }
    }

    /// Accepts a request: sends the REP and waits for RTU or the first packet.
    ///
    /// # Errors
    /// `EINVAL` if the request was withdrawn, accepted or refused, or for too much private data.
    pub fn accept(&mut self, now: Instant, id: CmId, params: &AcceptParams<'_>) -> CmResult<()> {
        check_private_data(params.private_data, REP_PRIVATE_MAX)?;
        let has_req = |state| matches!(state, ConnState::ReqRcvd | ConnState::MraReqSent);
        let conn = in_state(&mut self.conns, id, has_req)?;
        conn.state = ConnState::RepSent;
        conn.local_qpn = params.qp.qpn;
        conn.rq_psn = params.qp.starting_psn;
        conn.responder_resources = params.responder_resources;
        conn.initiator_depth = params.initiator_depth;
        let mad = message::rep(&self.config, id, conn, params);
        let (interval, retries) = (conn.timeout, self.half_open.rep_retries(conn.max_cm_retries));
        self.peers.insert_local(id, params.qp.qpn);
        self.request_taken(id);
        self.enter_in_journal(id);
        self.send_and_arm(now, id, mad, interval, retries);
        Ok(())
    }

    /// Depths that the application has settled on, for [`qp_attr`](Self::qp_attr) before
    /// [`accept`](Self::accept).
    pub fn set_depths(&mut self, id: CmId, responder_resources: u8, initiator_depth: u8) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.responder_resources = responder_resources;
            conn.initiator_depth = initiator_depth;
        }
    }

    /// The QP has received its first packet before the RTU (`rdma_notify` with IBV_EVENT_COMM_EST).
    ///
    /// # Errors
    /// `EINVAL` if the connection is in a state where no packet can be expected.
    pub fn establish(&mut self, id: CmId) -> CmResult<()> {
        let has_accepted =
            |s| matches!(s, ConnState::RepSent | ConnState::MraRepRcvd | ConnState::Established);
        if in_state(&mut self.conns, id, has_accepted)?.state != ConnState::Established {
            self.established(id);
        }
        Ok(())
    }

    /// As [`establish`](Self::establish), for the connection that uses our QP `qpn`, if there is one.
    pub fn establish_qp(&mut self, qpn: Qpn) {
        if let Some(id) = self.peers.by_local_qpn(qpn)
            && matches!(self.state(id), Some(ConnState::RepSent | ConnState::MraRepRcvd))
        {
            self.established(id);
        }
    }

    pub(super) fn handle_rtu(&mut self, rtu: &Rtu, from: Arrival) {
        let Some((id, conn)) = self.lookup(rtu.remote_comm_id, rtu.local_comm_id, from) else {
            self.counters.rx_unexpected += 1;
            return;
        };
        match conn.state {
            ConnState::RepSent | ConnState::MraRepRcvd => self.established(id),
            _ => self.counters.rx_duplicates += 1,
        }
    }

    pub(super) fn established(&mut self, id: CmId) {
        self.disarm(id);
        self.no_longer_half_open(id);
        if self.conns.contains_key(&id) {
            self.enter_established(id);
            self.report(id, CmEventKind::Established);
        }
    }

    fn handle_duplicate_req(&mut self, id: CmId) {
        self.counters.rx_duplicates += 1;
        let Some(conn) = self.conns.get(&id) else { return };
        if conn.state == ConnState::MraReqSent {
            let mad = message::mra(id, conn, Answered::REQ);
            let (src, dst) = (conn.src, conn.dst);
            self.send(src, dst, mad);
        }
    }

    /// REJ to a REQ for which there is no connection; our "local id" is then 0.
    pub(super) fn refuse_req(&mut self, now: Instant, req: &Req, reason: RejReason, from: Arrival) {
        let gid = self.gids.iter().flatten().next().copied().unwrap_or(from.dst);
        let mtu = [self.config.max_path_mtu as u8];
        let ari: &[u8] = match reason {
            RejReason::INVALID_GID => &gid.0,
            RejReason::INVALID_MTU => &mtu,
            _ => &[],
        };
        let rej = message::rej(req.tid, (0, req.local_comm_id), Answered::REQ, reason, ari);
        self.reply_to_stranger(now, from, message::emit(|mad| rej.emit(mad)));
    }
}
