//! Connections: listen, connect, accept, reject, disconnect (rdma_listen(3) and related calls).

use std::net::SocketAddr;
use std::sync::Arc;

use transport::cm::{
    AcceptParams, CmId, ConnState, ConnectParams, LocalQp, Path, RejReason, SidrAnswer, SidrParams,
    SidrStatus, Transport, UDP_QKEY,
};
use transport::{AsyncEventKind, MAX_RD_ATOMIC, QpType, VerbsError, refuse};
use wire::{QKey, Qpn};

use super::event::{ConnParam, DEPTH_MAX};
use super::id::{HOP_LIMIT, Id, IdInner};
use super::state::{IdState, Phase};
use super::{no_connection, out_of_phase};
use crate::verbs::Qp;

/// The number of READs and atomics that the application requests in the named field; the last argument for
/// the largest that is possible.
macro_rules! depth {
    ($name:literal, $requested:expr, $most:expr) => {
        match $requested {
            DEPTH_MAX => Ok($most),
            n if n <= MAX_RD_ATOMIC => Ok(n),
            n => Err(refuse!(EINVAL, "connection", $name; n; is "{n}, the largest value is {MAX_RD_ATOMIC}")),
        }
    };
}

#[cold]
fn needs_route(phase: Phase) -> VerbsError {
    out_of_phase!(phase, "rdma_connect comes after RDMA_CM_EVENT_ROUTE_RESOLVED")
}

impl Id {
    /// Requests a connection from the resolved peer, or its QPN in a datagram port space. `None` for `param`
    /// means the defaults. At most 56 bytes of private data (datagrams: 180).
    ///
    /// # Errors
    /// `EINVAL` unless the route is resolved, for depths above the device's limit, or for too much private
    /// data.
    pub fn connect(&self, param: Option<&ConnParam>, private_data: &[u8]) -> Result<(), VerbsError> {
        let inner = &self.0;
        let param = param.copied().unwrap_or_default();
        let mut state = inner.lock();
        if state.phase != Phase::RouteResolved {
            return Err(needs_route(state.phase));
        }
        let path = inner.path_of(&state).ok_or_else(|| needs_route(state.phase))?;
        let service_id = inner.port_space.service(state.dst.map_or(0, |dst| dst.port()));
        let is_datagram = inner.qp_type == QpType::Ud;
        if !is_datagram {
            state.responder_resources =
                depth!("responder_resources", param.responder_resources, MAX_RD_ATOMIC)?;
            state.initiator_depth = depth!("initiator_depth", param.initiator_depth, MAX_RD_ATOMIC)?;
        }
        let host = inner.host()?;
        let path_mtu = host.gids().active_mtu();
        let (now, weak) = (host.now(), Arc::downgrade(inner));
        let cm_id = host.driver().with(|driver| {
            let cm_id = if is_datagram {
                driver.cm.sidr_connect(now, &SidrParams { service_id, path, private_data })?
            } else {
                let params = ConnectParams {
                    service_id,
                    path,
                    transport: transport(state.qp.as_ref().map_or(inner.qp_type, Qp::ty)),
                    qp: state.local_qp(&param),
                    responder_resources: state.responder_resources,
                    initiator_depth: state.initiator_depth,
                    flow_control: param.flow_control,
                    retry_count: param.retry_count,
                    rnr_retry_count: param.rnr_retry_count,
                    path_mtu,
                    ack_timeout: state.ack_timeout,
                    private_data,
                };
                driver.cm.connect(now, &params)?
            };
            driver.ids.insert(cm_id, weak);
            Ok::<_, VerbsError>(cm_id)
        });
        state.cm_id = Some(cm_id?);
        state.phase = Phase::Connect;
        drop(state);
        inner.flush();
        Ok(())
    }

    /// Accepts a request. The identifier's QP reaches RTS before the peer is told. Without a QP, the caller
    /// moves its own with [`init_qp_attr`](Self::init_qp_attr) first. At most 196 bytes of private data
    /// (datagrams: 136). On the active side, after `ConnectResponse`, this is [`establish`](Self::establish).
    ///
    /// # Errors
    /// `EINVAL` if there is nothing to accept, for depths above the device's limit or for too much private
    /// data; the QP is then in ERR. A call that fails with the connection manager ends the connection, and
    /// the peer gets a rejection (Linux cma.c `rdma_accept`).
    pub fn accept(&self, param: Option<&ConnParam>, private_data: &[u8]) -> Result<(), VerbsError> {
        let inner = &self.0;
        let cm_id = inner.connection()?;
        let accepted = if inner.qp_type == QpType::Ud {
            inner.answer(cm_id, param, private_data)
        } else if inner.is_active(cm_id) {
            inner.or_reject(cm_id, inner.send_rtu(private_data))
        } else {
            inner.accept_connection(cm_id, param.copied().unwrap_or_default(), private_data)
        };
        if accepted.is_err() {
            inner.fail_qp();
        }
        inner.flush();
        accepted
    }

    /// Rejects a request, or the peer's response to one. At most 148 bytes of private data (datagrams: 136).
    ///
    /// # Errors
    /// `EINVAL` if there is nothing to reject, or for too much private data.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let inner = &self.0;
        let cm_id = inner.connection()?;
        let rejected = inner.send_reject(cm_id, private_data);
        // Also a request that the peer has withdrawn is handled.
        inner.lock().is_rejected = true;
        inner.notify_handled();
        rejected?;
        inner.flush();
        Ok(())
    }

    /// Disconnects, or answers the peer's disconnect: the QP goes to ERR, then the peer is told.
    /// `Disconnected` follows unless it was reported before.
    ///
    /// # Errors
    /// `EINVAL` if there was never a connection.
    pub fn disconnect(&self) -> Result<(), VerbsError> {
        let inner = &self.0;
        inner.fail_qp();
        let cm_id = inner.lock().cm_id.ok_or_else(no_connection)?;
        let host = inner.host()?;
        let now = host.now();
        host.driver().with(|driver| {
            // In other states no peer is told; rdma_disconnect(3) succeeds all the same.
            if driver.cm.disconnect(now, cm_id, &[]).is_err() {
                let _nothing_to_answer = driver.cm.drep(now, cm_id, &[]);
            }
        });
        inner.flush();
        Ok(())
    }

    /// Ends the identifier as [`destroy`](Self::destroy) does, and does not wait: the program has closed the
    /// event channel. Later calls but `destroy` fail.
    pub fn abandon(&self) {
        self.0.end();
        self.0.flush();
    }

    /// Completes a connection after `ConnectResponse`, for programs that own their QP and have moved it.
    ///
    /// # Errors
    /// `EINVAL` if the identifier has a QP, or no response is pending.
    pub fn establish(&self) -> Result<(), VerbsError> {
        if let Some(qp) = &self.0.lock().qp {
            let qpn = qp.qpn();
            return Err(refuse!(EINVAL, "identifier", "qp"; qpn as Qpn;
                "the identifier has a queue pair: it is established without rdma_establish"));
        }
        self.0.connection()?;
        self.0.send_rtu(&[])
    }

    /// Reports an event of the QP. `CommEst` establishes a connection while its RTU is late; for QPs of this
    /// device the engine does this by itself.
    ///
    /// # Errors
    /// `EINVAL` for other events, or in a state in which no packet is expected.
    pub fn notify(&self, event: AsyncEventKind) -> Result<(), VerbsError> {
        let cm_id = self.0.connection()?;
        if event != AsyncEventKind::CommEst {
            let event = event as u32;
            return Err(refuse!(EINVAL, "identifier", "event"; event;
                is "{event}; rdma_notify takes IBV_EVENT_COMM_EST"));
        }
        self.0.host()?.driver().with(|driver| driver.cm.establish(cm_id))?;
        self.0.flush();
        Ok(())
    }
}

impl IdInner {
    fn connection(&self) -> Result<CmId, VerbsError> {
        let state = self.lock();
        if state.phase != Phase::Connect {
            return Err(out_of_phase!(state.phase, "the call needs a connection"));
        }
        state.cm_id.ok_or_else(no_connection)
    }

    fn is_active(&self, cm_id: CmId) -> bool {
        let state = self.place().and_then(|place| place.host.driver().with(|driver| driver.cm.state(cm_id)));
        matches!(state, Some(ConnState::RepRcvd | ConnState::MraRepSent))
    }

    fn accept_connection(
        &self,
        cm_id: CmId,
        param: ConnParam,
        private_data: &[u8],
    ) -> Result<(), VerbsError> {
        let mut state = self.lock();
        let (served, wanted) = (state.responder_resources, state.initiator_depth);
        let [served, wanted] = [served, wanted].map(|depth| depth.min(MAX_RD_ATOMIC));
        let responder_resources = depth!("responder_resources", param.responder_resources, served)?;
        let initiator_depth = depth!("initiator_depth", param.initiator_depth, wanted)?;
        let params = AcceptParams {
            qp: state.local_qp(&param),
            responder_resources,
            initiator_depth,
            flow_control: param.flow_control,
            rnr_retry_count: param.rnr_retry_count,
            private_data,
        };
        state.responder_resources = responder_resources;
        state.initiator_depth = initiator_depth;
        drop(state);
        let host = self.host()?;
        host.driver().with(|driver| {
            driver.cm.set_depths(cm_id, responder_resources, initiator_depth);
        });
        self.ready_qp()?;
        // From here on the application gets events: the peer may answer before this returns.
        self.lock().silent = false;
        self.notify_handled();
        let accepted = host.driver().with(|driver| driver.cm.accept(host.now(), cm_id, &params));
        self.or_reject(cm_id, accepted)
    }

    fn send_reject(&self, cm_id: CmId, private_data: &[u8]) -> Result<(), VerbsError> {
        self.host()?.driver().with(|driver| {
            if self.qp_type == QpType::Ud {
                let status = SidrStatus::REJECT;
                let answer = SidrAnswer { status, qpn: Qpn::new(0), q_key: QKey(0), private_data };
                driver.cm.sidr_reply(cm_id, &answer)
            } else {
                driver.cm.reject(cm_id, RejReason::CONSUMER_DEFINED, private_data)
            }
        })
    }

    /// Tells the peer if an answer was refused; the caller flushes.
    fn or_reject(&self, cm_id: CmId, answered: Result<(), VerbsError>) -> Result<(), VerbsError> {
        if answered.is_err() {
            // In a state without anything to reject, the peer does not wait.
            let _nothing = self.send_reject(cm_id, &[]);
        }
        answered
    }

    fn answer(&self, cm_id: CmId, param: Option<&ConnParam>, private_data: &[u8]) -> Result<(), VerbsError> {
        let mut state = self.lock();
        let qpn = state.qp.as_ref().map_or(param.map_or(Qpn::new(0), |p| p.qp_num), |qp| qp.qpn());
        state.silent = false;
        drop(state);
        self.notify_handled();
        let answer = SidrAnswer { status: SidrStatus::SUCCESS, qpn, q_key: UDP_QKEY, private_data };
        let answered = self.host()?.driver().with(|driver| driver.cm.sidr_reply(cm_id, &answer));
        self.or_reject(cm_id, answered)
    }

    fn path_of(&self, state: &IdState) -> Option<Path> {
        let (src, dst) = (state.local?, state.peer?);
        let (src_port, dst_port) = (state.src_port(), state.dst?.port());
        let flow_label = match state.dst? {
            SocketAddr::V6(v6) if v6.flowinfo() != 0 => v6.flowinfo(),
            // The hash of the RDMA ports that Linux uses (rdma_cm cma_get_roce_udp_flow_label).
            _ => u32::from(src_port) * 31 + u32::from(dst_port),
        };
        Some(Path {
            src,
            dst,
            src_port,
            hop_limit: HOP_LIMIT,
            traffic_class: state.tos,
            flow_label: flow_label & 0xf_ffff,
            sl: 0,
        })
    }
}

impl IdState {
    /// Returns the local QP: the identifier's, or the one in `param`.
    fn local_qp(&self, param: &ConnParam) -> LocalQp {
        let starting_psn = self.starting_psn;
        match &self.qp {
            Some(qp) => LocalQp { qpn: qp.qpn(), starting_psn, srq: qp.srq().is_some() },
            None => LocalQp { qpn: param.qp_num, starting_psn, srq: param.srq },
        }
    }
}

/// Returns the transport service in a REQ for this QP type.
pub(super) fn transport(ty: QpType) -> Transport {
    match ty {
        QpType::Uc => Transport::Uc,
        QpType::XrcIni | QpType::XrcTgt => Transport::Xrc,
        QpType::Rc | QpType::Ud | QpType::Gsi => Transport::Rc,
    }
}
