//! RC queue pairs of this host, connected without a connection manager.

use roxie::transport::{AddressVector, QpAttr, QpAttrMask, QpState};
use roxie::verbs::Qp;
use roxie::wire::Psn;

/// Returns the attributes that connect a queue pair to `peer` over loopback, without remote access rights.
pub(crate) fn attr_to(peer: &Qp) -> QpAttr {
    let pd = peer.pd();
    let context = pd.context();
    let dgid = context.gids().first().expect("lo has addresses").gid;
    QpAttr {
        port_num: 1,
        path_mtu: context.query_port().active_mtu,
        dest_qp: peer.qpn(),
        rq_psn: Psn::new(0),
        sq_psn: Psn::new(0),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid, hop_limit: 64, ..AddressVector::default() },
        ..QpAttr::default()
    }
}

/// RESET to INIT to RTR to RTS.
pub(crate) fn connect(qp: &Qp, attr: &QpAttr) {
    use QpAttrMask as M;
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (QpState::Rtr, rtr),
        (QpState::Rts, rts),
    ];
    for (state, mask) in steps {
        qp.modify(&QpAttr { state, ..attr.clone() }, mask | M::STATE).expect("permitted");
    }
}
