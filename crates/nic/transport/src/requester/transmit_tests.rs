//! What the requester sends, and when: segmentation, the window, the budget, SQD. Requests start at PSN 500;
//! the path MTU is 1024, the ACK timeout 67.1 ms.

use wire::{NakCode, Opcode, Psn};

use crate::testing::{Bench, LKEY, LOCAL, Pkt, REMOTE, RKEY, attr, config, ms, read, us, write};
use crate::{
    AsyncEventKind, Errno, Instant, QpAttr, QpAttrMask, QpConfig, QpEvent, QpState, QpType, SendFlags, Sge,
    VerbsError, WcStatus, WrOp,
};

const NONE: [&str; 0] = [];
const SUCCESS: WcStatus = WcStatus::Success;
/// 4.096 us x 2^14.
const T: u64 = 67_108_864;

#[test]
fn a_message_is_segmented_at_the_path_mtu() {
    let mut b = Bench::rc();
    b.post(1, WrOp::WriteImm { remote_addr: REMOTE, r_key: RKEY, imm: [1; 4] }, 2049);
    b.post(2, WrOp::Send, 1024);
    b.post(3, WrOp::Send, 0);
    b.post_flags(4, WrOp::SendInv(wire::Rkey(0x55)), 1025, SendFlags::SOLICITED).unwrap();
    assert_eq!(
        b.sent(),
        [
            "WRITE First 500 +0x0 len 2049 [1024]",
            "WRITE Middle 501 [1024]",
            "WRITE Last Immediate 502 imm [1]",
            "SEND Only 503 [1024]",
            "SEND Only 504",
            "SEND First 505 [1024]",
            "SEND Last Invalidate 506 AckReq SE inv 0x00000055 [1]",
        ]
    );
}

#[test]
fn elements_are_gathered_as_one_stream() {
    let mut b = Bench::rc();
    let bytes: Vec<u8> = (0..3000_u32).map(|i| i as u8).collect();
    b.mem.put_local(LOCAL, &bytes);
    let sges = [
        Sge { addr: LOCAL, length: 1000, lkey: LKEY },
        Sge { addr: 0, length: 0, lkey: wire::Lkey(0) },
        Sge { addr: LOCAL + 1000, length: 100, lkey: LKEY },
        Sge { addr: LOCAL + 1100, length: 1900, lkey: LKEY },
    ];
    b.post_sges(1, WrOp::Send, &sges, SendFlags::empty()).unwrap();
    assert_eq!(b.sent_payload(), bytes);
}

#[test]
fn the_window_is_310_packets_and_asks_for_acks_on_the_way() {
    let mut b = Bench::rc();
    b.post(1, write(0), 309 * 1024);
    b.post(2, write(0), 4 * 1024);
    let sent = b.sent();
    assert_eq!(sent.len(), 310);
    let asking: Vec<usize> =
        sent.iter().enumerate().filter(|(_, text)| text.contains("AckReq")).map(|(i, _)| i).collect();
    assert_eq!(asking, [123, 247, 309], "the last one, since nothing may follow");
    assert!(!b.qp.wants_transmit());
    assert_eq!(b.qp.backlog().pending_packets, 3);
    b.recv(&Pkt::ack(501)).unwrap();
    assert_eq!(b.sent().len(), 2);
}

#[test]
fn the_window_is_320_kib_at_the_largest_mtu() {
    let mut b = Bench::rc_with(|attr| attr.path_mtu = crate::PathMtu::M4096);
    b.post(1, write(0), 512 * 1024);
    assert_eq!(b.sent().len(), 80);
}

#[test]
fn the_budget_limits_new_packets_and_the_last_one_asks_for_an_ack() {
    let mut b = Bench::rc();
    b.post(1, write(0), 4096);
    b.budget = 0;
    assert_eq!(b.sent(), NONE);
    b.budget = 2;
    b.poll();
    b.budget = 1;
    assert_eq!(crate::testing::text(&b.poll().unwrap().0), "WRITE Middle 501 AckReq [1024]");
    b.budget = 0;
    assert_eq!(b.sent(), NONE);
    b.at(ms(68));
    assert_eq!(
        b.sent(),
        ["WRITE First 500 AckReq +0x0 len 4096 [1024]", "WRITE Middle 501 AckReq [1024]"],
        "packets in flight are retransmitted regardless"
    );
}

#[test]
fn psn_wrap_in_the_middle_of_a_message() {
    let mut b = Bench::rc_with(|attr| attr.sq_psn = Psn::new(0xff_ffff));
    b.post(1, write(0), 3000);
    let sent = b.sent();
    assert_eq!(sent[1], "WRITE Middle 0 [1024]");
    b.recv(&Pkt::nak(0, NakCode::PsnSequenceError)).unwrap();
    assert_eq!(b.sent(), ["WRITE Middle 0 AckReq [1024]"]);
    b.recv(&Pkt::ack(1)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS)]);
}

#[test]
fn a_late_ack_moves_a_retransmission_forward() {
    let mut b = Bench::rc();
    for i in 0..4 {
        b.post(i, WrOp::Send, 8);
    }
    b.sent();
    b.at(Instant(T));
    b.recv(&Pkt::ack(502)).unwrap();
    assert_eq!(b.sent(), ["SEND Only 503 AckReq [8]"]);
}

#[test]
fn a_full_queue_refuses_posts_and_completions_hold_their_slot_until_polled() {
    let mut b = Bench::rc();
    for i in 0..400 {
        b.post_flags(i, WrOp::Send, 0, SendFlags::SIGNALED).unwrap();
    }
    let one_more = |b: &mut Bench| b.post_flags(400, WrOp::Send, 0, SendFlags::SIGNALED);
    assert_eq!(one_more(&mut b).map_err(VerbsError::kind), Err(Errno::ENOMEM));
    b.sent();
    b.recv(&Pkt::ack(500)).unwrap();
    assert_eq!(one_more(&mut b).map_err(VerbsError::kind), Err(Errno::ENOMEM));
    assert_eq!(b.send_wcs().len(), 1);
    assert_eq!(one_more(&mut b), Ok(()));
}

#[test]
fn sqd_finishes_the_message_and_raises_sq_drained_if_requested() {
    use crate::{QpAttr, QpAttrMask};
    for notify in [false, true] {
        let mut b = Bench::rc();
        b.post(1, write(0), 2048);
        b.post(2, write(0), 8);
        b.poll();
        let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: notify, ..QpAttr::default() };
        b.qp.modify(b.now, &attr, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
        assert_eq!(b.sent(), ["WRITE Last 501 AckReq [1024]"]);
        assert!(b.qp.attr().sq_draining);
        b.recv(&Pkt::ack(501)).unwrap();
        let events = b.events();
        assert!(matches!(events[0], QpEvent::SendWc(wc) if wc.wr_id == 1));
        let is_raised = events[1..] == [QpEvent::Async(AsyncEventKind::SqDrained)];
        assert_eq!(is_raised, notify);
        assert!(!b.qp.attr().sq_draining && !b.qp.wants_transmit());
        b.post(3, write(0), 8);
        assert_eq!(b.sent(), NONE, "posts are queued");
        b.qp.modify(b.now, &QpAttr { state: QpState::Rts, ..attr }, QpAttrMask::STATE).unwrap();
        assert_eq!(b.sent().len(), 2);
    }
}

/// Half sent for the first time, or being retransmitted.
#[test]
fn a_message_that_has_begun_goes_on_in_sqd() {
    use crate::{QpAttr, QpAttrMask};
    let sqd = QpAttr { state: QpState::Sqd, ..QpAttr::default() };
    let mut b = Bench::rc();
    b.post(1, write(0), 8);
    b.sent();
    b.qp.modify(b.now, &sqd, QpAttrMask::STATE).unwrap();
    b.recv(&Pkt::nak(500, NakCode::PsnSequenceError)).unwrap();
    assert_eq!(b.sent(), ["WRITE Only 500 AckReq +0x0 len 8 [8]"]);
    b.recv(&Pkt::ack(500)).unwrap();
    assert!(!b.qp.attr().sq_draining);
}

#[test]
fn attributes_may_change_while_a_queue_drains() {
    use crate::{QpAttr, QpAttrMask};
    let mut b = Bench::rc();
    b.post(1, read(0), 8);
    b.sent();
    let sqd = QpAttr { state: QpState::Sqd, min_rnr_timer: 5, ..QpAttr::default() };
    b.qp.modify(b.now, &sqd, QpAttrMask::STATE).unwrap();
    b.qp.modify(b.now, &sqd, QpAttrMask::STATE | QpAttrMask::MIN_RNR_TIMER).unwrap();
    b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 500).payload(1, 8)).unwrap();
    assert_eq!(b.send_wcs(), [(1, WcStatus::Success)]);
}

#[test]
fn the_ack_timer_restarts_when_a_queue_leaves_sqd() {
    use crate::{QpAttr, QpAttrMask};
    let mut b = Bench::rc();
    b.post(1, write(0), 8);
    b.sent();
    let before = b.qp.poll_timeout();
    for state in [QpState::Sqd, QpState::Rts] {
        b.now = us(1_000);
        b.qp.modify(b.now, &QpAttr { state, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    }
    assert_eq!((before, b.qp.poll_timeout()), (Some(ms(4)), Some(ms(5))));
}

#[test]
fn equal_writes_are_write_only_packets_with_consecutive_addresses() {
    let config = QpConfig { equal_writes: true, ..config(QpType::Rc) };
    let mut b = Bench::new(config, &attr(), QpState::Rts);
    b.post(1, write(0), 2500);
    assert_eq!(
        b.sent(),
        [
            "WRITE Only 500 +0x0 len 1024 [1024]",
            "WRITE Only 501 +0x400 len 1024 [1024]",
            "WRITE Only 502 AckReq +0x800 len 452 [452]"
        ]
    );
    b.post(2, WrOp::WriteImm { remote_addr: REMOTE, r_key: RKEY, imm: [1; 4] }, 1500);
    assert_eq!(b.sent().len(), 2, "one completion at the peer: one message");
    b.recv(&Pkt::ack(502)).unwrap();
    assert_eq!(b.send_wcs(), [(1, WcStatus::Success)]);
}

#[test]
fn the_end_of_a_message_asks_for_an_ack_unless_another_follows_at_once() {
    let mut b = Bench::rc();
    b.post(1, write(0), 8);
    b.post(2, write(0), 8);
    b.post_flags(3, write(0), 8, SendFlags::FENCE).unwrap();
    b.post(4, read(0), 8);
    let asks: Vec<bool> = b.sent().iter().map(|text| text.contains("AckReq")).collect();
    assert_eq!(asks, [false, true, true, true], "a fenced request or a READ does not follow at once");
    b.qp.modify(us(1), &QpAttr { state: QpState::Sqd, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    b.post(5, write(0), 8);
    b.at(ms(68));
    let again = b.sent();
    assert!(!again.is_empty());
    assert!(again.iter().all(|text| text.contains("AckReq")), "nothing new leaves while the queue drains");
}

#[test]
fn packets_in_flight_are_those_that_the_peer_has_not_acknowledged() {
    let mut b = Bench::rc();
    let in_flight =
        |b: &Bench| -> Vec<u32> { (490..520).filter(|psn| b.qp.is_in_flight(Psn::new(*psn))).collect() };
    assert_eq!(in_flight(&b), []);
    b.post(1, write(0), 3 * 1024);
    assert_eq!(in_flight(&b), [], "nothing has left");
    b.sent();
    assert_eq!((in_flight(&b), b.qp.unanswered_probes()), (vec![500, 501, 502], 0));
    b.recv(&Pkt::ack(500)).unwrap();
    assert_eq!(in_flight(&b), [501, 502]);
    assert!(!b.qp.is_in_flight(Psn::new(501 + (1 << 23))));
    for probes in 1..=3 {
        b.at(b.qp.poll_timeout().expect("a probe"));
        b.sent();
        assert_eq!((in_flight(&b), b.qp.unanswered_probes()), (vec![501, 502], probes));
    }
    b.recv(&Pkt::ack(501)).unwrap();
    assert_eq!((in_flight(&b), b.qp.unanswered_probes()), (vec![502], 0));
    b.qp.modify(b.now, &QpAttr { state: QpState::Err, ..attr() }, QpAttrMask::STATE).unwrap();
    assert_eq!(in_flight(&b), []);
}

#[test]
fn an_unreliable_connection_has_no_packet_in_flight() {
    let mut b = Bench::new(config(QpType::Uc), &attr(), QpState::Rts);
    b.post(1, write(0), 3 * 1024);
    b.sent();
    assert!((0..1000).all(|psn| !b.qp.is_in_flight(Psn::new(psn))));
}
