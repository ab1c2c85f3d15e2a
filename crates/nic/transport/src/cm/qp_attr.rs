//! What `rdma_init_qp_attr` hands to `ibv_modify_qp` for each step (Linux cm.c ib_cm_init_qp_attr).

use wire::{Gid, QKey};

use super::conn::Conn;
use super::event::CmResult;
use super::params::Transport;
use super::table::refuse_state;
use super::{Cm, CmId, ConnState};
use crate::{Access, AddressVector, QpAttr, QpAttrMask, QpState, VerbsError, refuse};

/// Q_Key of UD QPs in the port spaces UDP and IPOIB (rdma_cma.h RDMA_UDP_QKEY).
pub const UDP_QKEY: QKey = QKey(0x0123_4567);
/// The only port.
const PORT_NUM: u8 = 1;

/// One modify_qp call. `av.sgid_index` is left at 0: the owner knows the index of `sgid`.
#[derive(Clone, Debug)]
pub struct QpStep {
    /// The attributes.
    pub attr: QpAttr,
    /// Which of them count.
    pub mask: QpAttrMask,
    /// Our address, for the address vector.
    pub sgid: Gid,
}

#[cold]
fn no_step_to(state: QpState) -> VerbsError {
    refuse!(EINVAL, "attributes", "qp_state"; state as QpState;
        "qp_state is {state}; the connection manager knows the attributes for INIT, RTR and RTS")
}

impl Cm {
    /// The attributes that bring the QP of a connection into `state` (INIT, RTR or RTS).
    ///
    /// # Errors
    /// `EINVAL` if the state of the connection does not permit that yet.
    pub fn qp_attr(&self, id: CmId, state: QpState) -> CmResult<QpStep> {
        let permits = match state {
            QpState::Init => ConnState::allows_init,
            QpState::Rtr | QpState::Rts => ConnState::allows_ready,
            QpState::Reset | QpState::Sqd | QpState::Sqe | QpState::Err => return Err(no_step_to(state)),
        };
        let conn = self.conns.get(&id).filter(|conn| permits(conn.state));
        let conn = conn.ok_or_else(|| refuse_state(id, self.state(id)))?;
        let mut attr = QpAttr { state, ..QpAttr::default() };
        let mask = match (state, conn.transport) {
            (QpState::Init, _) => init(conn, &mut attr),
            (QpState::Rtr, transport) => rtr(conn, transport, &mut attr),
            (_, transport) => rts(conn, transport, &mut attr),
        };
        Ok(QpStep { attr, mask, sgid: conn.src })
    }
}

impl QpStep {
    /// INIT before any connection exists, for rdma_create_qp.
    #[must_use]
    pub fn early_init() -> Self {
        let attr = QpAttr { state: QpState::Init, port_num: PORT_NUM, ..QpAttr::default() };
        Self { attr, mask: INIT_MASK, sgid: Gid::ZERO }
    }

    /// The three steps of a UD QP.
    ///
    /// # Errors
    /// `EINVAL` for a state that is not one of them.
    pub fn ud(state: QpState, q_key: QKey) -> CmResult<Self> {
        let attr = QpAttr { state, q_key, port_num: PORT_NUM, ..QpAttr::default() };
        let mask = match state {
            QpState::Init => QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY,
            QpState::Rtr => QpAttrMask::STATE,
            QpState::Rts => QpAttrMask::STATE | QpAttrMask::SQ_PSN,
            QpState::Reset | QpState::Sqd | QpState::Sqe | QpState::Err => return Err(no_step_to(state)),
        };
        Ok(Self { attr, mask, sgid: Gid::ZERO })
    }
}

const INIT_MASK: QpAttrMask =
    QpAttrMask::STATE.union(QpAttrMask::ACCESS_FLAGS).union(QpAttrMask::PKEY_INDEX).union(QpAttrMask::PORT);

fn init(conn: &Conn, attr: &mut QpAttr) -> QpAttrMask {
    attr.port_num = PORT_NUM;
    attr.access = Access::REMOTE_WRITE;
    if conn.responder_resources > 0 {
        attr.access |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    }
    INIT_MASK
}

fn rtr(conn: &Conn, transport: Transport, attr: &mut QpAttr) -> QpAttrMask {
    attr.av = AddressVector {
        dgid: conn.dst,
        sgid_index: 0,
        hop_limit: conn.hop_limit,
        traffic_class: conn.traffic_class,
        flow_label: conn.flow_label,
        sl: conn.sl,
    };
    attr.path_mtu = conn.path_mtu;
    attr.rq_psn = conn.rq_psn;
    attr.dest_qp = conn.remote_qpn;
    let mask =
        QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::RQ_PSN | QpAttrMask::DEST_QPN;
    match transport {
        Transport::Uc => mask,
        // Each end of XRC takes its half.
        Transport::Rc | Transport::Xrc => {
            attr.max_dest_rd_atomic = conn.responder_resources;
            attr.min_rnr_timer = 0;
            mask | QpAttrMask::MIN_RNR_TIMER | QpAttrMask::MAX_DEST_RD_ATOMIC
        }
    }
}

fn rts(conn: &Conn, transport: Transport, attr: &mut QpAttr) -> QpAttrMask {
    attr.sq_psn = conn.sq_psn;
    let mask = QpAttrMask::STATE | QpAttrMask::SQ_PSN;
    match transport {
        Transport::Uc => mask,
        Transport::Rc | Transport::Xrc => {
            attr.timeout = conn.ack_timeout;
            attr.retry_cnt = conn.retry_count;
            attr.rnr_retry = conn.rnr_retry_count;
            attr.max_rd_atomic = conn.initiator_depth;
            mask | QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::MAX_QP_RD_ATOMIC
        }
    }
}
