//! What was negotiated, as both ends put it into their queue pairs.

use super::*;
use crate::{Access, QpAttrMask, QpState};

#[test]
fn both_ends_get_matching_attributes() {
    let (mut net, a, b) = Net::responded();
    let step = |net: &Net, side: usize, id, state| net.cm[side].qp_attr(id, state).unwrap();
    let init = step(&net, A, a, QpState::Init);
    assert_eq!(init.mask.bits(), 0x39);
    assert_eq!(init.attr.access, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
    let (rtr, rts) = (step(&net, A, a, QpState::Rtr), step(&net, A, a, QpState::Rts));
    assert_eq!((rtr.mask.bits(), rts.mask.bits()), (0x12_9181, 0x1_2e01));
    assert_eq!((rtr.attr.rq_psn, rts.attr.sq_psn), (Psn::new(0xabcdef), Psn::new(0x123456)));
    assert_eq!((rtr.attr.dest_qp, rtr.attr.path_mtu), (Qpn::new(0x20456), PathMtu::M1024));
    assert_eq!((rtr.attr.max_dest_rd_atomic, rts.attr.max_rd_atomic), (3, 2), "REP: serves 2, wants 3");
    assert_eq!((rts.attr.timeout, rts.attr.retry_cnt, rts.attr.rnr_retry), (17, 7, 5));
    assert_eq!((rtr.attr.min_rnr_timer, rtr.attr.av.hop_limit, rtr.attr.av.flow_label), (0, 64, 0x2beef));
    assert_eq!((rtr.attr.av.dgid, rtr.sgid), (net.gid[B], net.gid[A]));

    let (rtr, rts) = (step(&net, B, b, QpState::Rtr), step(&net, B, b, QpState::Rts));
    assert_eq!((rtr.attr.rq_psn, rts.attr.sq_psn), (Psn::new(0x123456), Psn::new(0xabcdef)));
    assert_eq!(rtr.attr.dest_qp, Qpn::new(0x10123));
    assert_eq!((rtr.attr.max_dest_rd_atomic, rts.attr.max_rd_atomic), (2, 3));
    assert_eq!((rts.attr.timeout, rts.attr.retry_cnt, rts.attr.rnr_retry), (17, 7, 6));
    assert_eq!((rtr.attr.av.dgid, rtr.sgid), (net.gid[A], net.gid[B]));
    net.cm[A].rtu(a, b"").unwrap();
}

#[test]
fn before_the_rep_the_active_side_gets_init_only() {
    let (net, a, b) = Net::requested();
    assert!(net.cm[A].qp_attr(a, QpState::Init).is_ok());
    assert!(net.cm[A].qp_attr(a, QpState::Rtr).is_err());
    assert!(net.cm[B].qp_attr(b, QpState::Rtr).is_ok(), "the passive side knows its peer");
    assert!(net.cm[B].qp_attr(b, QpState::Err).is_err());
    assert!(net.cm[B].qp_attr(CmId(7), QpState::Init).is_err());
}

#[test]
fn uc_and_ud_have_their_own_masks() {
    let mut net = Net::new();
    let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
    let address = ListenAddress::Any;
    net.cm[B].listen(ListenParams { service_id, address, backlog: 0, transport: Transport::Uc }).unwrap();
    let params = ConnectParams { transport: Transport::Uc, ..net.params() };
    net.cm[A].connect(net.now, &params).unwrap();
    net.run();
    let b = net.event(B).unwrap().id;
    assert_eq!(net.cm[B].qp_attr(b, QpState::Rtr).unwrap().mask.bits(), 0x10_1181);
    assert_eq!(net.cm[B].qp_attr(b, QpState::Rts).unwrap().mask.bits(), 0x1_0001);
    let masks = [QpState::Init, QpState::Rtr, QpState::Rts].map(|s| QpStep::ud(s, UDP_QKEY).unwrap().mask);
    assert_eq!(masks.map(|m| m.bits()), [0x71, 0x1, 0x1_0001]);
    assert_eq!(QpStep::early_init().mask, QpAttrMask::from_bits_truncate(0x39));
    assert_eq!(QpStep::early_init().attr.access, Access::empty());
}

/// As Linux has it: the request says what a sender has, the reply names the receiver where reliable datagrams
/// had a context.
#[test]
fn xrc_has_a_sender_and_a_receiver() {
    let mut net = Net::new();
    let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
    let listen =
        ListenParams { service_id, address: ListenAddress::Any, backlog: 0, transport: Transport::Xrc };
    net.cm[B].listen(listen).unwrap();
    let params = ConnectParams { transport: Transport::Xrc, ..net.params() };
    let a = net.cm[A].connect(net.now, &params).unwrap();
    net.run();
    let b = net.event(B).unwrap().id;
    net.accept(b);
    net.run();
    let (CmMessage::Req(req), CmMessage::Rep(rep)) = (net.sent[0].1, net.sent[1].1) else { panic!() };
    assert_eq!((req.transport, req.extended_transport), (3, 1));
    assert_eq!((req.local_qpn, req.initiator_depth), (params.qp.qpn, params.initiator_depth));
    assert_eq!((req.responder_resources, req.retry_count, req.rnr_retry_count, req.srq), (0, 0, 0, false));
    let accepted = Net::accept_params();
    assert_eq!((rep.local_qpn, rep.local_eecn), (Qpn::new(0), accepted.qp.qpn.value()));
    assert_eq!((rep.initiator_depth, rep.srq), (0, true));
    assert_eq!(rep.responder_resources, accepted.responder_resources);
    let step = |net: &Net, side: usize, id, state| net.cm[side].qp_attr(id, state).unwrap().attr;
    let (rtr, rts) = (step(&net, A, a, QpState::Rtr), step(&net, A, a, QpState::Rts));
    assert_eq!((rtr.dest_qp, rts.max_rd_atomic), (accepted.qp.qpn, accepted.responder_resources));
    assert_eq!((rts.retry_cnt, rts.rnr_retry), (params.retry_count, accepted.rnr_retry_count));
    let rtr = step(&net, B, b, QpState::Rtr);
    assert_eq!((rtr.dest_qp, rtr.max_dest_rd_atomic), (params.qp.qpn, accepted.responder_resources));

    // A REQ for XRC does not match a listener for RC.
    net.cm[A].connect(net.now, &ConnectParams { transport: Transport::Rc, ..params }).unwrap();
    net.run();
    assert!(matches!(net.sent.last().unwrap().1, CmMessage::Rej(_)));
}

#[test]
fn the_ack_timeout_option_shortens_everything() {
    let mut net = Net::listening();
    let params = ConnectParams { ack_timeout: Some(14), ..net.params() };
    net.cm[A].connect(net.now, &params).unwrap();
    net.run();
    let CmMessage::Req(req) = net.sent[0].1 else { panic!() };
    assert_eq!(req.primary.ack_timeout, 16, "ack delay 15, life 13");
    assert_eq!(net.cm[A].poll_timeout(), Some(Instant((2 * 32 + 4096) * 1_000_000)));
}

#[test]
fn depths_settled_before_the_rep_count() {
    let (mut net, _, b) = Net::requested();
    net.cm[B].set_depths(b, 5, 6);
    let step = |net: &Net, state| net.cm[B].qp_attr(b, state).unwrap().attr;
    let (rtr, rts) = (step(&net, QpState::Rtr), step(&net, QpState::Rts));
    assert_eq!((rtr.max_dest_rd_atomic, rts.max_rd_atomic), (5, 6));
}
