//! States, datagrams and unreliable connections.

use wire::{DropReason, Opcode, QKey, Qpn};

use crate::testing::{
    Bench, LKEY, LOCAL, PEER_QPN, Pkt, QPN, REMOTE, RKEY, RQ_PSN, attr, config, read, text, write,
};
use crate::{
    AddressVector, Dest, Errno, Instant, PathMtu, Qp, QpAttr, QpAttrMask, QpConfig, QpEvent, QpState, QpType,
    RecvWr, SendFlags, SendWr, Sge, UdDest, VerbsError, Wc, WcStatus, WrOp,
};

const NONE: [&str; 0] = [];

fn ud() -> Bench {
    Bench::new(config(QpType::Ud), &attr(), QpState::Rts)
}

fn uc() -> Bench {
    Bench::new(config(QpType::Uc), &attr(), QpState::Rts)
}

fn dest(q_key: u32) -> UdDest {
    let av = AddressVector { hop_limit: 3, ..attr().av };
    UdDest { av, remote_qpn: Qpn::new(PEER_QPN), remote_qkey: QKey(q_key) }
}

fn post_ud(b: &mut Bench, wr_id: u64, op: WrOp, len: u32, q_key: u32) -> Result<(), VerbsError> {
    let sge = [Sge { addr: LOCAL, length: len, lkey: LKEY }];
    let wr =
        SendWr { wr_id, op, sg_list: &sge, flags: SendFlags::SIGNALED, dest: Some(Dest::Ud(dest(q_key))) };
    b.qp.post_send(&wr, &b.mem)
}

fn to_state(b: &mut Bench, state: QpState) -> Result<(), VerbsError> {
    b.qp.modify(b.now, &QpAttr { state, ..attr() }, QpAttrMask::STATE)
}

#[test]
fn values_at_their_limits_are_accepted() {
    let most = QpAttr {
        path_mtu: PathMtu::M1024,
        min_rnr_timer: 31,
        max_dest_rd_atomic: 128,
        max_rd_atomic: 128,
        timeout: 31,
        retry_cnt: 7,
        rnr_retry: 7,
        ..attr()
    };
    let mut qp = Qp::new(QpConfig { max_path_mtu: PathMtu::M1024, ..config(QpType::Rc) }).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let step = QpAttr { state, ..most.clone() };
        qp.modify(Instant::ZERO, &step, QpAttrMask::required(QpType::Rc, state)).unwrap();
    }
    for (bit, bad) in [
        (QpAttrMask::TIMEOUT, QpAttr { timeout: 32, ..most.clone() }),
        (QpAttrMask::RETRY_CNT, QpAttr { retry_cnt: 8, ..most.clone() }),
        (QpAttrMask::MIN_RNR_TIMER, QpAttr { min_rnr_timer: 32, ..most.clone() }),
        (QpAttrMask::MAX_QP_RD_ATOMIC, QpAttr { max_rd_atomic: 129, ..most.clone() }),
        (QpAttrMask::CUR_STATE, QpAttr { cur_state: QpState::Rtr, ..most.clone() }),
    ] {
        let bad = QpAttr { state: QpState::Rts, ..bad };
        assert_eq!(
            qp.modify(Instant::ZERO, &bad, bit | QpAttrMask::STATE).map_err(VerbsError::kind),
            Err(Errno::EINVAL),
            "{bit:?}"
        );
    }
    let same = QpAttr { state: QpState::Rts, cur_state: QpState::Rts, ..most };
    qp.modify(Instant::ZERO, &same, QpAttrMask::CUR_STATE | QpAttrMask::STATE).unwrap();
}

#[test]
fn values_out_of_range_are_refused_and_change_nothing() {
    type Change = fn(&mut QpAttr);
    let changes: [Change; 7] = [
        |attr| attr.path_mtu = PathMtu::M4096,
        |attr| attr.av.dgid = wire::Gid::ZERO,
        |attr| attr.min_rnr_timer = 32,
        |attr| attr.max_dest_rd_atomic = 129,
        |attr| attr.timeout = 32,
        |attr| attr.retry_cnt = 8,
        |attr| attr.rnr_retry = 8,
    ];
    for change in changes {
        let mut cfg = config(QpType::Rc);
        cfg.max_path_mtu = PathMtu::M1024;
        let mut qp = Qp::new(cfg).unwrap();
        let mut bad = attr();
        change(&mut bad);
        let mut refused = 0;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let step = QpAttr { state, ..bad.clone() };
            if qp.modify(Instant::ZERO, &step, QpAttrMask::required(QpType::Rc, state)).is_err() {
                refused += 1;
                break;
            }
        }
        assert_eq!(refused, 1);
        assert_ne!(qp.state(), QpState::Rts);
    }
}

#[test]
fn a_window_holds_fewer_large_packets() {
    let packets = [PathMtu::M256, PathMtu::M1024, PathMtu::M4096].map(|mtu| {
        let mut config = config(QpType::Rc);
        config.max_path_mtu = PathMtu::M4096;
        Bench::new(config, &QpAttr { path_mtu: mtu, ..attr() }, QpState::Rts).qp.backlog().window_room_packets
    });
    assert_eq!(packets, [310, 310, 80]);
}

#[test]
fn cur_state_must_be_the_state() {
    let mut b = Bench::rc();
    let with = |cur_state| QpAttr { state: QpState::Rts, cur_state, ..attr() };
    let mask = QpAttrMask::STATE | QpAttrMask::CUR_STATE;
    assert_eq!(b.qp.modify(b.now, &with(QpState::Sqd), mask).map_err(VerbsError::kind), Err(Errno::EINVAL));
    assert_eq!(b.qp.modify(b.now, &with(QpState::Rts), mask), Ok(()));
}

#[test]
fn posting_is_refused_before_its_state() {
    for (state, send, recv) in [
        (QpState::Reset, false, false),
        (QpState::Init, false, true),
        (QpState::Rtr, false, true),
        (QpState::Rts, true, true),
    ] {
        let mut b = Bench::new(config(QpType::Rc), &attr(), state);
        assert_eq!(b.post_flags(1, WrOp::Send, 8, SendFlags::empty()).is_ok(), send, "{state:?}");
        assert_eq!(b.qp.post_recv(&RecvWr { wr_id: 1, sg_list: &[] }).is_ok(), recv, "{state:?}");
    }
}

#[test]
fn err_flushes_in_order_and_flushes_later_posts() {
    let mut b = Bench::rc();
    b.post_recv(10, 0, 8);
    b.post_recv(11, 0, 8);
    b.post_flags(1, write(0), 8, SendFlags::empty()).unwrap();
    b.post(2, read(0), 8);
    b.poll();
    to_state(&mut b, QpState::Err).unwrap();
    b.post(3, write(0), 8);
    b.post_recv(12, 0, 8);
    let flushed: Vec<u64> = b
        .events()
        .into_iter()
        .map(|event| match event {
            QpEvent::SendWc(wc) | QpEvent::RecvWc { wc, solicited: true, .. } => {
                assert_eq!(wc.status, WcStatus::WrFlushErr);
                wc.wr_id
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(flushed, [1, 2, 10, 11, 3, 12]);
    assert_eq!(b.recv(&Pkt::ack(500)), Err(DropReason::WrongState));
    assert_eq!(b.sent(), NONE);
}

#[test]
fn the_event_queue_never_overflows_while_posts_are_flushed() {
    let mut b = Bench::rc();
    to_state(&mut b, QpState::Err).unwrap();
    let mut taken = 0;
    while b.post_flags(taken, WrOp::Send, 0, SendFlags::empty()).is_ok() {
        taken += 1;
    }
    assert_eq!((taken, b.events().len()), (400, 400));
    let recv = |b: &mut Bench| b.qp.post_recv(&RecvWr { wr_id: 0, sg_list: &[] });
    for _ in 0..16 {
        recv(&mut b).unwrap();
    }
    assert_eq!(recv(&mut b).map_err(VerbsError::kind), Err(Errno::ENOMEM));
}

#[test]
fn reset_drops_everything_without_completions() {
    let mut b = Bench::rc();
    b.post_recv(10, 0, 8);
    b.post(1, WrOp::Send, 8);
    b.sent();
    b.recv(&Pkt::ack(500)).unwrap();
    b.post(2, WrOp::Send, 8);
    b.sent();
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 100).reth(REMOTE, RKEY, 0).ack_req()).unwrap();
    to_state(&mut b, QpState::Reset).unwrap();
    assert_eq!(b.events(), []);
    assert_eq!(b.sent(), NONE);
    assert_eq!((b.qp.poll_timeout(), b.qp.state()), (None, QpState::Reset));
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        b.qp.modify(b.now, &QpAttr { state, ..attr() }, QpAttrMask::required(QpType::Rc, state)).unwrap();
    }
    b.post(3, WrOp::Send, 8);
    assert_eq!(b.sent(), ["SEND Only 500 AckReq [8]"]);
}

#[test]
fn query_returns_what_was_set() {
    let b = Bench::rc();
    let got = b.qp.attr();
    let expected =
        QpAttr { state: QpState::Rts, cur_state: QpState::Rts, cap: got.cap, q_key: QKey(0), ..attr() };
    assert_eq!(got, expected);
    assert_eq!(got.cap, config(QpType::Rc).cap);
}

#[test]
fn sizes_beyond_the_device_are_refused() {
    for change in [
        |cap: &mut crate::QpCap| cap.max_send_wr = 1 << 20,
        |cap: &mut crate::QpCap| cap.max_recv_wr = 1 << 20,
        |cap: &mut crate::QpCap| cap.max_send_sge = 33,
        |cap: &mut crate::QpCap| cap.max_recv_sge = 33,
        |cap: &mut crate::QpCap| cap.max_inline_data = 1 << 20,
    ] {
        let mut cfg = config(QpType::Rc);
        change(&mut cfg.cap);
        assert!(Qp::new(cfg).is_err());
    }
}

#[test]
fn a_datagram_is_one_packet_and_completes_when_sent() {
    let mut b = ud();
    post_ud(&mut b, 1, WrOp::SendImm([1; 4]), 5, 0x1234).unwrap();
    let (bytes, to) = b.poll().unwrap();
    assert_eq!(text(&bytes), "UD SEND Only Immediate 500 imm [5]");
    let packet = wire::Packet::parse(&bytes).unwrap();
    assert_eq!(packet.deth(), Some(wire::Deth { q_key: QKey(0x1234), src_qp: Qpn::new(QPN) }));
    assert_eq!(packet.bth.dest_qp, Qpn::new(PEER_QPN));
    assert_eq!(to, Some(dest(0x1234)));
    assert_eq!(b.send_wcs(), [(1, WcStatus::Success)]);
    assert!(b.qp.poll_timeout().is_none() && b.qp.is_send_idle());
}

#[test]
fn a_controlled_q_key_is_replaced_by_the_senders_own() {
    let mut b = ud();
    post_ud(&mut b, 1, WrOp::Send, 5, 0x8000_0000).unwrap();
    let (bytes, _) = b.poll().unwrap();
    assert_eq!(wire::Packet::parse(&bytes).unwrap().deth().unwrap().q_key, QKey(0x1111));
}

/// IBA C10-93.1.1
#[test]
fn a_datagram_longer_than_the_mtu_completes_and_is_not_sent() {
    let mut b = ud();
    post_ud(&mut b, 1, WrOp::Send, 4097, 1).unwrap();
    post_ud(&mut b, 2, WrOp::Send, 4096, 1).unwrap();
    assert_eq!(b.sent(), ["UD SEND Only 501 [4096]"]);
    assert_eq!(b.send_wcs(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(b.qp.counters().ud_send_too_long, 1);
}

#[test]
fn only_sends_with_a_destination_exist_on_ud() {
    let mut b = ud();
    assert_eq!(
        b.post_flags(1, WrOp::Send, 8, SendFlags::empty()).map_err(VerbsError::kind),
        Err(Errno::EINVAL)
    );
    assert_eq!(post_ud(&mut b, 1, write(0), 8, 1).map_err(VerbsError::kind), Err(Errno::EINVAL));
    let mut b = uc();
    assert_eq!(b.post_flags(1, read(0), 8, SendFlags::empty()).map_err(VerbsError::kind), Err(Errno::EINVAL));
    assert_eq!(
        b.post_flags(1, WrOp::SendInv(RKEY), 8, SendFlags::empty()).map_err(VerbsError::kind),
        Err(Errno::EINVAL)
    );
}

#[test]
fn a_datagram_arrives_behind_the_grh_area() {
    let mut b = ud();
    b.post_recv(1, 0, 48);
    let pkt = Pkt::new(Opcode::UD_SEND_ONLY_IMM, 7).deth(QKey(0x1111), 0x33).payload(9, 8).solicited();
    b.recv(&pkt).unwrap();
    let expected = Wc {
        wr_id: 1,
        opcode: crate::WcOpcode::Recv,
        byte_len: 48,
        imm_data: [1, 2, 3, 4],
        qp_num: QPN,
        src_qp: 0x33,
        wc_flags: Wc::GRH | Wc::WITH_IMM,
        sl: Wc::SL_IPV4,
        ..Wc::default()
    };
    assert_eq!(b.events(), [QpEvent::RecvWc { srqn: None, wc: expected, solicited: true }]);
    let area = b.mem.local_at(LOCAL, 48);
    // IHL 5, length 20 + 8 + 12 + 8 + 4 + 8 + 4 = 64
    assert_eq!(area[20..24], [0x45, 0, 0, 64]);
    assert_eq!(area[32..40], [10, 0, 0, 2, 10, 0, 0, 1]);
    assert_eq!(area[40..], [9; 8]);
    assert_eq!(b.qp.counters().rcvd_bytes, 8);
}

#[test]
fn datagrams_with_a_wrong_key_are_dropped_and_take_no_receive() {
    let mut b = ud();
    let good = Pkt::new(Opcode::UD_SEND_ONLY, 7).deth(QKey(0x1111), 0x33).payload(9, 8);
    assert_eq!(b.recv(&good), Err(DropReason::NoReceive));
    b.post_recv(1, 0, 47);
    assert_eq!(b.recv(&good), Err(DropReason::ReceiveTooSmall));
    assert_eq!(b.recv(&good.clone().deth(QKey(0x1112), 0x33)), Err(DropReason::BadQKey));
    let mut alien = good.clone();
    alien.bth.p_key = wire::PKey(0x1234);
    assert_eq!(b.recv(&alien), Err(DropReason::BadPKey));
    assert_eq!(b.events(), []);
    b.recv(&good.payload(9, 7)).unwrap();
    assert_eq!(b.recv_wc().byte_len, 47);
    assert_eq!(b.sent(), NONE);
}

#[test]
fn the_gsi_queue_pair_has_its_own_q_key() {
    let b = Bench::new(config(QpType::Gsi), &attr(), QpState::Rts);
    assert_eq!(b.qp.attr().q_key, QKey::GSI);
}

#[test]
fn a_local_error_on_ud_stops_only_the_send_queue() {
    let mut b = ud();
    let sge = [Sge { addr: LOCAL, length: 8, lkey: wire::Lkey(3) }];
    let dest = Some(Dest::Ud(dest(1)));
    let wr = SendWr { wr_id: 1, op: WrOp::Send, sg_list: &sge, flags: SendFlags::empty(), dest };
    b.qp.post_send(&wr, &b.mem).unwrap();
    post_ud(&mut b, 2, WrOp::Send, 8, 1).unwrap();
    assert_eq!(b.sent(), NONE);
    assert_eq!(b.send_wcs(), [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(b.qp.state(), QpState::Sqe);
    post_ud(&mut b, 3, WrOp::Send, 8, 1).unwrap();
    assert_eq!(b.send_wcs(), [(3, WcStatus::WrFlushErr)]);
    b.post_recv(1, 0, 48);
    b.recv(&Pkt::new(Opcode::UD_SEND_ONLY, 7).deth(QKey(0x1111), 0x33).payload(9, 8)).unwrap();
    assert_eq!(b.recv_wc().status, WcStatus::Success, "receiving goes on");
    to_state(&mut b, QpState::Rts).unwrap();
    post_ud(&mut b, 4, WrOp::Send, 8, 1).unwrap();
    assert_eq!(b.sent().len(), 1);
}

#[test]
fn uc_sends_complete_when_sent_and_set_no_ack_req() {
    let mut b = uc();
    b.post(1, write(0), 2000);
    assert_eq!(b.sent(), ["UC WRITE First 500 +0x0 len 2000 [1024]", "UC WRITE Last 501 [976]"]);
    assert_eq!(b.send_wcs(), [(1, WcStatus::Success)]);
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn a_damaged_uc_message_is_dropped_and_its_receive_is_reused() {
    let mut b = uc();
    b.post_recv(1, 0, 4096);
    let first = |psn| Pkt::new(Opcode::UC_SEND_FIRST, psn).payload(1, 1024);
    let last = |psn| Pkt::new(Opcode::UC_SEND_LAST, psn).payload(2, 8);
    b.recv(&first(RQ_PSN)).unwrap();
    assert_eq!(b.recv(&last(RQ_PSN + 2)), Err(DropReason::UcIncomplete), "the middle was lost");
    assert_eq!(b.recv(&last(RQ_PSN + 3)), Err(DropReason::UcIncomplete));
    b.recv(&first(500)).unwrap();
    b.recv(&last(501)).unwrap();
    let wc = b.recv_wc();
    assert_eq!((wc.wr_id, wc.byte_len), (1, 1032));
    assert_eq!(b.sent(), NONE, "UC sends no response");
}

#[test]
fn a_first_packet_abandons_the_uc_message_before_it() {
    let mut b = uc();
    b.post_recv(1, 0, 4096);
    b.recv(&Pkt::new(Opcode::UC_SEND_FIRST, RQ_PSN).payload(1, 1024)).unwrap();
    b.recv(&Pkt::new(Opcode::UC_SEND_ONLY, RQ_PSN + 1).payload(3, 8)).unwrap();
    assert_eq!(b.recv_wc().byte_len, 8);
    assert_eq!(b.qp.counters().uc_dropped_messages, 1);
}

#[test]
fn errors_on_uc_drop_only_the_message() {
    let mut b = uc();
    let bad_key = Pkt::new(Opcode::UC_WRITE_ONLY, 100).reth(REMOTE, wire::Rkey(1), 8).payload(1, 8);
    assert_eq!(b.recv(&bad_key), Err(DropReason::AccessFault));
    assert_eq!(b.recv(&Pkt::new(Opcode::UC_SEND_FIRST, 101).payload(1, 1024)), Err(DropReason::NoReceive));
    assert_eq!(b.recv(&Pkt::new(Opcode::UC_SEND_LAST, 102).payload(1, 1)), Err(DropReason::UcIncomplete));
    b.recv(&Pkt::new(Opcode::UC_WRITE_ONLY, 103).reth(REMOTE, RKEY, 8).payload(1, 8)).unwrap();
    assert_eq!(b.mem.remote_at(REMOTE, 8), [1; 8]);
    assert_eq!((b.qp.state(), b.sent().len(), b.events().len()), (QpState::Rts, 0, 0));
}

/// If the receive stayed in the queue it would swallow every later message without a completion.
#[test]
fn a_uc_receive_with_deregistered_memory_completes_with_a_protection_error() {
    let mut b = uc();
    b.post_recv(1, 0, 1024);
    b.post_recv(2, 1 << 40, 1024);
    b.post_recv(3, 0, 1024);
    let only = |psn| Pkt::new(Opcode::UC_SEND_ONLY, psn).payload(1, 8);
    b.recv(&only(RQ_PSN)).unwrap();
    assert_eq!(b.recv(&only(RQ_PSN + 1)), Err(DropReason::AccessFault));
    let completions: Vec<_> = core::iter::from_fn(|| b.qp.poll_event())
        .map(|event| match event {
            QpEvent::RecvWc { wc, .. } => (wc.wr_id, wc.status),
            event => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(completions, [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]);
    assert_eq!((b.qp.state(), b.sent()), (QpState::Err, vec![]), "UC has no NAK");
}

proptest::proptest! {
    /// No sequence of packets makes the queue pair panic or inconsistent.
    #[test]
    fn a_queue_pair_survives_any_packets(
        packets in proptest::collection::vec(
            (0_u8..0x40, 0_u32..12, 0_usize..1100, 0_u32..3000, proptest::bool::ANY), 0..60),
    ) {
        let mut b = Bench::rc();
        for i in 0..4 {
            b.post_recv(i, 0, 2000);
            b.post(i, read(0), 3000);
            b.post(i, WrOp::Send, 1500);
        }
        b.sent();
        for (opcode, psn, payload, dma_len, request) in packets {
            let opcode = Opcode(opcode & 0x1f);
            if opcode.row().is_none() {
                continue;
            }
            let base = if request { RQ_PSN - 2 } else { 498 };
            let pkt = Pkt::new(opcode, base + psn).reth(REMOTE, RKEY, dma_len).atomic(REMOTE, 1, 2);
            let payload = if payload > 1024 { 1024 } else { payload };
            let _any = b.recv(&pkt.ack_req().payload(1, payload));
            b.at(Instant(b.now.0 + 1_000_000));
            b.sent();
        }
        proptest::prop_assert!(b.qp.packets_in_flight() <= 256);
        proptest::prop_assert!(b.events().len() <= 50);
    }
}

/// The number of such a packet must not fall below zero (found by fuzzing).
#[test]
fn a_uc_message_may_begin_before_the_first_psn() {
    let attr = QpAttr { rq_psn: wire::Psn::new(0), ..attr() };
    let mut b = Bench::new(config(QpType::Uc), &attr, QpState::Rts);
    for psn in [0xff_ffff, 0] {
        b.post_recv(1, 0, 4096);
        b.recv(&Pkt::new(Opcode::UC_SEND_ONLY, psn).payload(3, 8)).unwrap();
        assert_eq!(b.recv_wc().byte_len, 8);
    }
}

/// What a refused call says.
fn reason(result: Result<(), VerbsError>) -> String {
    let refused = result.expect_err("refused");
    assert_eq!(refused.kind(), Errno::EINVAL);
    refused.to_string()
}

#[test]
fn a_refused_modify_names_states_attributes_and_values() {
    let mut qp = Qp::new(config(QpType::Rc)).unwrap();
    let mut to = |attr: QpAttr, mask| reason(qp.modify(Instant::ZERO, &attr, mask | QpAttrMask::STATE));
    let rts = QpAttr { state: QpState::Rts, ..attr() };
    let said = to(rts.clone(), QpAttrMask::required(QpType::Rc, QpState::Rts));
    assert!(said.ends_with("(RC) is in RESET; RTS is reached from RTR or SQD"), "{said}");
    let init = QpAttr { state: QpState::Init, ..attr() };
    let said = to(init.clone(), QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS | QpAttrMask::AV);
    assert!(said.ends_with("needs IBV_QP_PKEY_INDEX, too, and does not take IBV_QP_AV"), "{said}");
    let said = to(QpAttr { port_num: 2, ..init }, QpAttrMask::required(QpType::Rc, QpState::Init));
    assert_eq!(said, "port_num is 2, the only port is 1");
    let said = reason(Bench::rc().qp.modify(
        Instant::ZERO,
        &QpAttr { min_rnr_timer: 32, ..rts },
        QpAttrMask::MIN_RNR_TIMER | QpAttrMask::STATE,
    ));
    assert_eq!(said, "IBV_QP_MIN_RNR_TIMER is 32, the largest value is 31");
}

#[test]
fn a_refused_post_names_the_request_and_the_limit() {
    let mut b = uc();
    let sge = [Sge { addr: LOCAL, length: 8, lkey: LKEY }; 40];
    let send = |op, sges: usize, flags| SendWr { wr_id: 0x51, op, sg_list: &sge[..sges], flags, dest: None };
    let said = reason(b.qp.post_send(&send(read(8), 1, SendFlags::SIGNALED), &b.mem));
    assert_eq!(said, "the work request 0x51 (RdmaRead): UC queue pairs do not have this operation");
    let said = reason(b.qp.post_send(&send(WrOp::Send, 40, SendFlags::SIGNALED), &b.mem));
    assert!(said.starts_with("the work request 0x51 has 40 elements, the queue pair was created"), "{said}");
    let said = reason(b.qp.post_send(&send(WrOp::Send, 40, SendFlags::INLINE), &b.mem));
    assert!(said.starts_with("the work request 0x51 has 320 bytes of inline data"), "{said}");
    to_state(&mut b, QpState::Reset).unwrap();
    let said = reason(b.qp.post_send(&send(WrOp::Send, 1, SendFlags::SIGNALED), &b.mem));
    assert!(said.ends_with("is in RESET; it sends from RTS on"), "{said}");
    let said = reason(b.qp.post_recv(&RecvWr { wr_id: 1, sg_list: &[] }));
    assert!(said.ends_with("is in RESET; receives can be posted from INIT on"), "{said}");
}
