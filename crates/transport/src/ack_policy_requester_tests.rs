//! When the peer is asked about work requests that make no completion. The first PSN is 500, the path MTU 1024.

use wire::{Opcode, Rkey};

use crate::testing::{Bench, LKEY, LOCAL, Pkt, attr, config, us, write};
use crate::{QpAttr, QpAttrMask, QpState, QpType, SendFlags, Sge, WcStatus, WrOp};

/// No completion, and nothing in memory that could be taken back.
const SILENT: SendFlags = SendFlags::INLINE;
const NONE: [&str; 0] = [];
/// Of a key that does not exist.
const BAD: Sge = Sge { addr: LOCAL, length: 8, lkey: wire::Lkey(LKEY.0 + 1) };

fn only(psn: u32) -> String {
    format!("WRITE Only {psn} AckReq +0x0 len 8 [8]")
}

/// Answers what the peer has written for the `n`th time.
fn post_answer(b: &mut Bench, n: u32) {
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 100 + n).reth(0, Rkey(0), 0)).unwrap();
    post_silent(b);
}

fn post_silent(b: &mut Bench) {
    b.post_flags(1, write(0), 8, SILENT).unwrap();
}

#[test]
fn nobody_asks_about_what_nobody_waits_for() {
    let mut b = Bench::rc();
    for n in 0..10 {
        post_answer(&mut b, n);
        assert_eq!(b.sent(), [format!("WRITE Only {} +0x0 len 8 [8]", 500 + n)]);
    }
    b.post(2, write(0), 8);
    assert_eq!(b.sent(), [only(510)], "a completion is waited for");
    b.recv(&Pkt::ack(510)).unwrap();
    assert!(b.qp.is_send_idle());
}

/// What is posted meanwhile gathers until an acknowledgement comes, so there must be one under way.
#[test]
fn where_message_follows_message_an_answer_is_under_way() {
    let mut b = Bench::rc();
    post_silent(&mut b);
    assert_eq!(b.sent(), [only(500)], "this may be the first of many");
    b.recv(&Pkt::ack(500)).unwrap();
    post_answer(&mut b, 0);
    assert_eq!(b.sent(), ["WRITE Only 501 +0x0 len 8 [8]"]);
    assert!(!b.qp.backlog().is_ack_expected);
    post_silent(&mut b);
    assert_eq!(b.sent(), [only(502)]);
    assert!(b.qp.backlog().is_ack_expected);
}

#[test]
fn a_completion_ends_a_run_of_posts_without() {
    let mut b = Bench::rc();
    assert_eq!(b.qp.backlog().unsignaled_run, 0, "nothing was posted");
    let signaled = SendFlags::SIGNALED;
    for (flags, run) in [(signaled, 0), (SILENT, 0), (SILENT, 0), (signaled, 2), (signaled, 0)] {
        b.post_flags(1, write(0), 8, flags).unwrap();
        assert_eq!(b.qp.backlog().unsignaled_run, run, "{flags:?}");
    }
    assert!(b.qp.backlog().only_small_messages);
    b.post_flags(1, write(0), 2000, SendFlags::empty()).unwrap();
    assert_eq!((b.qp.pending_packets(), b.qp.pending_bytes()), (7, 2040));
    assert!(!b.qp.backlog().only_small_messages);
    assert_eq!((b.sent().len(), b.qp.backlog().last_posted_bytes), (7, 2000));
    assert_eq!((b.qp.pending_packets(), b.qp.pending_bytes()), (0, 0));
    b.post(2, crate::testing::read(0), 8);
    assert!(!b.qp.backlog().only_small_messages, "an answer is waited for");
}

/// It was posted together with one that makes no completion, which closes the burst.
#[test]
fn the_last_of_a_list_asks_for_one_before_it() {
    let mut b = Bench::rc();
    b.post(1, write(0), 8);
    post_answer(&mut b, 0);
    assert_eq!(b.sent(), ["WRITE Only 500 +0x0 len 8 [8]".to_owned(), only(501)]);
    post_answer(&mut b, 1);
    assert_eq!(b.sent(), ["WRITE Only 502 +0x0 len 8 [8]"]);
}

#[test]
fn a_queue_that_signals_everything_always_asks() {
    let mut b = Bench::new(crate::QpConfig { sq_sig_all: true, ..config(QpType::Rc) }, &attr(), QpState::Rts);
    post_answer(&mut b, 0);
    assert_eq!(b.sent(), [only(500)]);
}

/// Its lifetime in the queue, and the discovery of its loss, do not depend on what follows. No retry is used up, however short the
/// timeout is: nobody has asked before.
#[test]
fn the_peer_is_asked_when_nothing_follows() {
    let mut b = Bench::rc_with(|attr| (attr.retry_cnt, attr.timeout) = (0, 2));
    post_answer(&mut b, 0);
    b.sent();
    b.at(us(300));
    post_answer(&mut b, 1);
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
fn a_peer_that_is_gone_is_noticed_without_a_completion_to_wait_for() {
    let mut b = Bench::rc_with(|attr| (attr.retry_cnt, attr.timeout) = (0, 10));
    post_answer(&mut b, 0);
    b.sent();
    b.at(us(400));
    assert_eq!(b.sent(), [only(500)]);
    b.at(us(400 + 4195));
    assert_eq!(b.qp.state(), QpState::Err, "4.2 ms after the question");
    assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn what_is_sent_again_is_asked_about() {
    let mut b = Bench::rc();
    post_answer(&mut b, 0);
    post_answer(&mut b, 1);
    assert_eq!(b.sent().len(), 2);
    b.recv(&Pkt::rnr(500, 1)).unwrap();
    assert_eq!(b.sent(), NONE);
    b.at(b.qp.poll_timeout().unwrap());
    assert_eq!(b.sent(), ["WRITE Only 500 +0x0 len 8 [8]".to_owned(), only(501)]);
}

#[test]
fn half_a_send_queue_is_asked_about_and_no_more_than_sixteen() {
    for (slots, questions) in [(1, &[1][..]), (3, &[1, 2, 3]), (16, &[8, 16]), (400, &[16, 32, 48])] {
        let mut config = config(QpType::Rc);
        config.cap.max_send_wr = slots;
        let mut b = Bench::new(config, &attr(), QpState::Rts);
        let asked = (1..=slots.min(50)).filter(|&n| {
            post_answer(&mut b, n - 1);
            b.sent().iter().any(|text| text.contains("AckReq"))
        });
        assert_eq!(asked.collect::<Vec<_>>(), questions, "of {slots}");
    }
}

/// A program takes the peer's answer for proof and its memory back; nothing is read from there again.
#[test]
fn what_lies_in_memory_is_asked_about_at_once() {
    let mut b = Bench::rc();
    post_answer(&mut b, 0);
    assert_eq!(b.sent(), ["WRITE Only 500 +0x0 len 8 [8]"]);
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 101).reth(0, Rkey(0), 0)).unwrap();
    b.post_flags(1, write(0), 8, SendFlags::empty()).unwrap();
    assert_eq!(b.sent(), [only(501)]);
}

#[test]
fn what_waits_for_everything_before_asks_at_once() {
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
        post_answer(&mut b, 0);
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
