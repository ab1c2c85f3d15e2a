//! When the requester sets AckReq. The first PSN is 500, the path MTU
//! 1024.

use wire::{NakCode, Opcode, Rkey};

use crate::testing::{Bench, LKEY, LOCAL, Pkt, attr, config, us, write};
use crate::{QpAttr, QpAttrMask, QpState, QpType, SendFlags, Sge, WcStatus, WrOp};

/// Unsignaled, and no application memory is needed after the post.
const UNSIGNALED_INLINE: SendFlags = SendFlags::INLINE;
const NONE: [&str; 0] = [];
/// An element with an unknown key.
const BAD: Sge = Sge { addr: LOCAL, length: 8, lkey: wire::Lkey(LKEY.0 + 1) };

fn only(psn: u32) -> String {
    format!("WRITE Only {psn} AckReq +0x0 len 8 [8]")
}

/// The peer writes for the `n`th time and this side replies.
fn post_reply(b: &mut Bench, n: u32) {
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 100 + n).reth(0, Rkey(0), 0)).unwrap();
    post_unsignaled(b);
}

fn post_unsignaled(b: &mut Bench) {
    b.post_flags(1, write(0), 8, UNSIGNALED_INLINE).unwrap();
}

#[test]
fn unsignaled_inline_replies_set_no_ack_req() {
    let mut b = Bench::rc();
    for n in 0..10 {
        post_reply(&mut b, n);
        assert_eq!(b.sent(), [format!("WRITE Only {} +0x0 len 8 [8]", 500 + n)]);
    }
    b.post(2, write(0), 8);
    assert_eq!(b.sent(), [only(510)], "signaled");
    b.recv(&Pkt::ack(510)).unwrap();
    assert!(b.qp.is_send_idle());
}

/// Later posts are batched until an ACK arrives, so one must be expected.
#[test]
fn a_message_that_follows_another_sets_ack_req() {
    let mut b = Bench::rc();
    post_unsignaled(&mut b);
    assert_eq!(b.sent(), [only(500)], "no reply: it may be the first of many");
    b.recv(&Pkt::ack(500)).unwrap();
    post_reply(&mut b, 0);
    assert_eq!(b.sent(), ["WRITE Only 501 +0x0 len 8 [8]"]);
    assert!(!b.qp.backlog().is_ack_expected);
    post_unsignaled(&mut b);
    assert_eq!(b.sent(), [only(502)]);
    assert!(b.qp.backlog().is_ack_expected);
}

#[test]
fn a_signaled_work_request_ends_an_unsignaled_run() {
    let mut b = Bench::rc();
    assert_eq!(b.qp.backlog().unsignaled_run, 0, "nothing was posted");
    let signaled = SendFlags::SIGNALED;
    for (flags, run) in
        [(signaled, 0), (UNSIGNALED_INLINE, 0), (UNSIGNALED_INLINE, 0), (signaled, 2), (signaled, 0)]
    {
        b.post_flags(1, write(0), 8, flags).unwrap();
        assert_eq!(b.qp.backlog().unsignaled_run, run, "{flags:?}");
    }
    assert!(b.qp.backlog().only_small_messages);
    b.post_flags(1, write(0), 2000, SendFlags::empty()).unwrap();
    assert_eq!((b.qp.backlog().pending_packets, b.qp.backlog().pending_bytes), (7, 2040));
    assert!(!b.qp.backlog().only_small_messages);
    assert_eq!((b.sent().len(), b.qp.backlog().last_posted_bytes), (7, 2000));
    assert_eq!((b.qp.backlog().pending_packets, b.qp.backlog().pending_bytes), (0, 0));
    b.post(2, crate::testing::read(0), 8);
    assert!(!b.qp.backlog().only_small_messages, "a READ");
}

/// A signaled message was posted together with an unsignaled one, which ends the burst.
#[test]
fn the_last_message_of_a_list_sets_ack_req_for_a_signaled_one_before_it() {
    let mut b = Bench::rc();
    b.post(1, write(0), 8);
    post_reply(&mut b, 0);
    assert_eq!(b.sent(), ["WRITE Only 500 +0x0 len 8 [8]".to_owned(), only(501)]);
    post_reply(&mut b, 1);
    assert_eq!(b.sent(), ["WRITE Only 502 +0x0 len 8 [8]"]);
}

#[test]
fn a_queue_that_signals_everything_always_sets_ack_req() {
    let mut b = Bench::new(crate::QpConfig { sq_sig_all: true, ..config(QpType::Rc) }, &attr(), QpState::Rts);
    post_reply(&mut b, 0);
    assert_eq!(b.sent(), [only(500)]);
}

/// A reply leaves the queue, and its loss is noticed, even if no packet follows. The probe uses up no retry,
/// however short the timeout is.
#[test]
fn the_peer_is_probed_when_no_packet_follows_a_reply() {
    let mut b = Bench::rc_with(|attr| (attr.retry_cnt, attr.timeout) = (0, 2));
    post_reply(&mut b, 0);
    b.sent();
    b.at(us(300));
    post_reply(&mut b, 1);
    b.sent();
    assert_eq!(b.qp.poll_timeout(), Some(us(700)), "0.4 ms after the last one");
    b.at(us(700));
    assert_eq!(b.sent(), [only(501)]);
    b.recv(&Pkt::ack(501)).unwrap();
    assert!(b.qp.is_send_idle());
    let counters = b.qp.counters();
    assert_eq!((counters.probes, counters.local_ack_timeout_err), (1, 0));
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn a_dead_peer_is_noticed_without_a_signaled_work_request() {
    let mut b = Bench::rc_with(|attr| (attr.retry_cnt, attr.timeout) = (0, 10));
    post_reply(&mut b, 0);
    b.sent();
    b.at(us(400));
    assert_eq!(b.sent(), [only(500)]);
    b.at(us(400 + 4195));
    assert_eq!(b.qp.state(), QpState::Err, "4.2 ms after the probe");
    assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn a_retransmission_sets_ack_req() {
    let mut b = Bench::rc();
    post_reply(&mut b, 0);
    post_reply(&mut b, 1);
    assert_eq!(b.sent().len(), 2);
    b.recv(&Pkt::rnr(500, 1)).unwrap();
    assert_eq!(b.sent(), NONE);
    b.at(b.qp.poll_timeout().unwrap());
    assert_eq!(b.sent(), ["WRITE Only 500 +0x0 len 8 [8]".to_owned(), only(501)]);
}

#[test]
fn at_most_half_a_send_queue_or_sixteen_replies_go_without_ack_req() {
    for (slots, expected) in [(1, &[1][..]), (3, &[1, 2, 3]), (16, &[8, 16]), (400, &[16, 32, 48])] {
        let mut config = config(QpType::Rc);
        config.cap.max_send_wr = slots;
        let mut b = Bench::new(config, &attr(), QpState::Rts);
        let asked = (1..=slots.min(50)).filter(|&n| {
            post_reply(&mut b, n - 1);
            b.sent().iter().any(|text| text.contains("AckReq"))
        });
        assert_eq!(asked.collect::<Vec<_>>(), expected, "of {slots}");
    }
}

/// A message of application memory replies to the peer's `n`th, and leaves without AckReq.
fn post_reply_from_memory(b: &mut Bench, n: u32) {
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 100 + n).reth(0, Rkey(0), 0)).unwrap();
    b.post_flags(1, write(0), 8, SendFlags::empty()).unwrap();
    assert_eq!(b.sent(), [format!("WRITE Only {} +0x0 len 8 [8]", 500 + n)]);
}

/// The peer has executed the packet and discards the other bytes.
#[test]
fn the_probe_of_a_reply_reads_memory_that_the_application_has_reused() {
    let mut b = Bench::rc();
    post_reply_from_memory(&mut b, 0);
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 101).reth(0, Rkey(0), 0)).unwrap();
    b.mem.put_local(LOCAL, &[7; 8]);
    b.at(us(400));
    assert_eq!(b.sent(), [only(500)]);
    b.recv(&Pkt::ack(500)).unwrap();
    assert!(b.qp.is_send_idle());
}

/// A message of the peer has arrived, and then the application took the memory of its reply back.
fn with_memory_taken_back(n: u32) -> Bench {
    let mut b = Bench::rc();
    (0..n).for_each(|n| post_reply_from_memory(&mut b, n));
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 100 + n).reth(0, Rkey(0), 0)).unwrap();
    b.mem.local_gone.set(true);
    b
}

#[test]
fn no_probe_leaves_from_memory_that_the_application_took_back() {
    let mut b = with_memory_taken_back(2);
    b.at(us(400));
    assert_eq!((b.sent(), b.qp.poll_timeout()), (vec![], None));
    b.mem.local_gone.set(false);
    b.post(2, write(0), 8);
    assert_eq!(b.sent(), [only(502)], "the next message asks");
    b.recv(&Pkt::ack(502)).unwrap();
    assert!(b.qp.is_send_idle());
    assert_eq!(b.send_wcs(), [(2, WcStatus::Success)]);
}

#[test]
fn a_reply_that_is_lost_after_its_memory_was_taken_back_fails() {
    let mut b = with_memory_taken_back(1);
    b.at(us(400));
    post_unsignaled(&mut b);
    b.sent();
    b.recv(&Pkt::nak(500, NakCode::PsnSequenceError)).unwrap();
    b.sent();
    assert_eq!((b.qp.state(), b.send_wcs()[0]), (QpState::Err, (1, WcStatus::LocProtErr)));
}

#[test]
fn a_probe_that_something_waits_for_fails_without_its_memory() {
    let mut b = with_memory_taken_back(1);
    b.post(2, WrOp::LocalInv(Rkey(0x99)), 0);
    b.at(b.now);
    b.sent();
    assert_eq!(b.send_wcs()[0], (1, WcStatus::LocProtErr));
}

#[test]
fn an_operation_that_waits_for_earlier_replies_probes_at_once() {
    type Step = fn(&mut Bench);
    let cases: [(Step, Step); 3] = [
        (|b| b.post(2, WrOp::LocalInv(Rkey(0x99)), 0), |b| assert_eq!(*b.mem.invalidated.borrow(), [0x99])),
        (
            |b| b.post_sges(2, write(0), &[BAD], SendFlags::empty()).unwrap(),
            |b| assert_eq!(b.send_wcs(), [(2, WcStatus::LocProtErr)]),
        ),
        (
            |b| {
                let attr = QpAttr { state: QpState::Sqd, ..QpAttr::default() };
                b.qp.modify(b.now, &attr, QpAttrMask::STATE).unwrap();
            },
            |b| assert!(!b.qp.attr().sq_draining),
        ),
    ];
    for (wait, check) in cases {
        let mut b = Bench::rc();
        post_reply(&mut b, 0);
        assert_eq!(b.sent().len(), 1);
        wait(&mut b);
        assert_eq!(b.sent(), NONE);
        assert_eq!(b.qp.poll_timeout(), Some(b.now));
        b.at(b.now);
        assert_eq!(b.sent(), [only(500)]);
        b.recv(&Pkt::ack(500)).unwrap();
        b.sent();
        check(&mut b);
    }
}
