//! Requests that arrive out of order. They start at PSN 100; the path MTU is 1024.

use wire::{DropReason, Opcode};

use crate::reorder::{REACH, ReorderBuffer};
use crate::testing::{Bench, Pkt, REMOTE, RKEY, ms};
use crate::{PathMtu, QpEvent, QpState, WcOpcode};

const NONE: [&str; 0] = [];

fn write(psn: u32, at: u64, value: u8) -> Pkt {
    Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE + at, RKEY, 8).payload(value, 8)
}

fn send(psn: u32, value: u8) -> Pkt {
    Pkt::new(Opcode::RC_SEND_ONLY, psn).payload(value, 8)
}

/// The NAK names the first gap and no early packet is placed. When the missing packet arrives all are
/// executed.
#[test]
fn early_packets_are_kept_and_executed_in_order() {
    let mut b = Bench::rc();
    b.batch(&[write(101, 0, 1), write(102, 0, 2), write(103, 8, 3).ack_req()]);
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 0 msn 0"]);
    assert_eq!(b.mem.remote_at(REMOTE, 16), [0; 16], "an early WRITE could be undone by an older one");
    b.recv(&write(100, 8, 9)).unwrap();
    assert_eq!(b.mem.remote_at(REMOTE, 16), [[2; 8], [3; 8]].concat(), "the younger one wins");
    assert_eq!(b.sent(), ["Acknowledge 103 msn 4"]);
    assert_eq!(b.qp.counters().kept_request, 3);
}

#[test]
fn each_gap_is_nakked_when_it_becomes_the_first() {
    let mut b = Bench::rc();
    b.batch(&[write(101, 0, 1), write(103, 0, 1), write(105, 0, 1).ack_req()]);
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 0 msn 0"]);
    b.recv(&write(100, 0, 1)).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 102 NAK 0 msn 2"]);
    b.recv(&write(104, 0, 1)).unwrap();
    assert_eq!(b.sent(), NONE, "the first gap is still open");
    b.recv(&write(102, 0, 1)).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 105 msn 6"]);
}

#[test]
fn completions_of_early_packets_come_in_order_and_once() {
    let mut b = Bench::rc();
    for i in 0..4 {
        b.post_recv(i, 8 * i, 8);
    }
    b.batch(&[send(102, 3), send(101, 2), send(101, 2)]);
    assert_eq!(b.events(), []);
    b.batch(&[send(100, 1), send(101, 2), send(102, 3)]);
    let wcs: Vec<_> = b
        .events()
        .iter()
        .map(|event| match event {
            QpEvent::RecvWc { wc, .. } => (wc.wr_id, wc.opcode),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(wcs, [0, 1, 2].map(|id| (id, WcOpcode::Recv)));
}

/// An early READ takes the PSNs of its response when it is executed.
#[test]
fn an_early_read_takes_its_psns_when_it_is_executed() {
    let mut b = Bench::rc();
    let read = Pkt::new(Opcode::RC_READ_REQUEST, 101).reth(REMOTE, RKEY, 2048).ack_req();
    b.batch(&[read, write(103, 0, 5).ack_req()]);
    b.sent();
    b.recv(&write(100, 0, 1)).unwrap();
    assert_eq!(
        b.sent(),
        [
            "READ Response First 101 msn 2 [1024]",
            "READ Response Last 102 msn 2 [1024]",
            "Acknowledge 103 msn 3",
        ]
    );
}

/// Packets behind a fatal fault are never executed.
#[test]
fn an_error_in_the_missing_packet_drops_the_early_packets() {
    let mut b = Bench::rc();
    b.batch(&[write(101, 0, 1), write(102, 0, 2)]);
    b.sent();
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 100).reth(REMOTE, wire::Rkey(1), 8).payload(1, 8)).unwrap_err();
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 2 msn 0"]);
    assert_eq!(b.qp.state(), QpState::Err);
    assert_eq!(b.mem.remote_at(REMOTE, 8), [0; 8]);
}

#[test]
fn an_error_in_an_early_packet_names_that_packet() {
    let mut b = Bench::rc();
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 101).reth(REMOTE, wire::Rkey(1), 8).payload(1, 8)).unwrap();
    b.sent();
    assert_eq!(b.recv(&write(100, 0, 4)), Err(DropReason::AccessFault));
    assert_eq!(b.mem.remote_at(REMOTE, 8), [4; 8]);
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 2 msn 1"]);
}

/// A forged request hits each PSN that the responder keeps. Nothing has arrived yet, so that nothing beyond a
/// burst is in flight; then twice as many as arrived lately, and at most as many as the send window has.
#[test]
fn a_packet_is_kept_only_as_far_ahead_as_the_peer_was_seen_to_send() {
    let mut b = Bench::rc();
    assert_eq!(b.recv(&write(100 + 64, 0, 1)), Err(DropReason::OutOfSequence));
    assert_eq!(b.recv(&write(100 + 63, 0, 1)), Ok(()));
    assert_eq!(b.recv(&write(100 + 63 + 64, 0, 1)), Ok(()), "a burst beyond the furthest one");

    let mut b = Bench::rc();
    b.now = ms(30);
    b.batch(&(100..200).map(|psn| write(psn, 0, 1)).collect::<Vec<_>>());
    assert_eq!(b.recv(&write(200 + 200, 0, 1)), Err(DropReason::OutOfSequence));
    assert_eq!(b.recv(&write(200 + 199, 0, 1)), Ok(()));
    b.batch(&(200..500).map(|psn| write(psn, 0, 1)).collect::<Vec<_>>());
    b.batch(&(500..800).map(|psn| write(psn, 0, 1)).collect::<Vec<_>>());
    let reach = REACH as u32;
    assert_eq!(b.recv(&write(800 + reach, 0, 1)), Err(DropReason::OutOfSequence));
    assert_eq!(b.recv(&write(799 + reach, 0, 1)), Ok(()));

    let mut b = Bench::rc();
    b.now = ms(30);
    b.batch(&(100..500).map(|psn| write(psn, 0, 1)).collect::<Vec<_>>());
    b.now = ms(50);
    assert_eq!(b.recv(&write(500 + 64, 0, 1)), Err(DropReason::OutOfSequence), "the flow was idle");
}

/// Two queue pairs of a device may need the same slot: the later packet displaces the earlier one.
#[test]
fn a_displaced_packet_is_missing_again() {
    let mut b = Bench::rc();
    b.reorder = ReorderBuffer::with_slots(4, 200);
    b.batch(&[write(101, 0, 1), write(102, 0, 2), write(103, 0, 3)]);
    b.sent();
    let other = b.reorder.begin_episode();
    for position in 0..4 {
        b.reorder.keep(other, position, &[0; 20]);
    }
    b.recv(&write(100, 8, 9)).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 0 msn 1"]);
    b.batch(&[write(101, 0, 1), write(102, 0, 2), write(103, 0, 3).ack_req()]);
    assert_eq!(b.sent(), ["Acknowledge 103 msn 4"]);
    assert_eq!(b.mem.remote_at(REMOTE, 8), [3; 8]);
}

/// A connection that starts again with the same packet numbers does not find the packets of the earlier one.
#[test]
fn packets_of_an_earlier_gap_are_never_found() {
    let mut buffer = ReorderBuffer::new(PathMtu::M1024);
    let first = buffer.begin_episode();
    assert!(buffer.keep(first, 7, &[1; 40]));
    assert_eq!(buffer.get(first, 7), Some(&[1; 40][..]));
    let second = buffer.begin_episode();
    assert_eq!((buffer.get(second, 7), buffer.get(first, 8)), (None, None));
    assert!(!buffer.keep(second, 7, &[0; 2000]), "longer than the path MTU allows");
}

/// A queue pair with a peer that has shown selective repeat: it went on with new packets after a gap was
/// closed.
fn selective() -> Bench {
    let mut b = Bench::rc();
    b.batch(&(101..110).map(|psn| write(psn, 0, 1)).collect::<Vec<_>>());
    b.recv(&write(100, 0, 1)).unwrap();
    b.recv(&write(110, 0, 1).ack_req()).unwrap();
    b.sent();
    b
}

#[test]
fn a_selective_repeat_peer_gets_a_report_of_every_gap() {
    let mut b = selective();
    let unit = crate::requester::GAP_UNIT as u32;
    b.batch(&[write(112, 0, 1), write(113, 0, 1), write(116, 0, 1), write(119, 0, 1)]);
    let wrapped = |psn: u32, packets: u32| (psn.wrapping_sub(packets * unit)) & 0xff_ffff;
    let reports = |gaps: &[(u32, u32)], furthest: u32| -> Vec<String> {
        gaps.iter().map(|&(psn, n)| format!("Acknowledge {} msn {furthest}", wrapped(psn, n))).collect()
    };
    let mut expected = vec!["Acknowledge 111 NAK 0 msn 11".to_owned()];
    expected.extend(reports(&[(114, 2), (117, 2)], 119));
    assert_eq!(b.sent(), expected);
    b.recv(&write(120, 0, 1)).unwrap();
    assert_eq!(b.sent(), NONE, "no new gap");
    b.recv(&write(122, 0, 1)).unwrap();
    assert_eq!(b.sent(), reports(&[(121, 1)], 122), "only the new gap");
    b.at(crate::testing::us(50));
    b.recv(&write(115, 0, 1)).unwrap();
    expected.truncate(1);
    assert_eq!(b.sent(), expected, "old gaps again after a while: reports and retransmissions get lost");
    b.at(crate::testing::us(100));
    b.recv(&write(118, 0, 1)).unwrap();
    expected.extend(reports(&[(111, 1), (114, 1), (117, 1), (121, 1)], 122));
    assert_eq!(b.sent(), expected, "all gaps are old now");
}

/// A requester that probes does not know what is here: the reports were lost.
#[test]
fn a_copy_of_a_kept_request_makes_the_responder_report_old_gaps_again() {
    let mut b = selective();
    let unit = crate::requester::GAP_UNIT as u32;
    let nak = || "Acknowledge 111 NAK 0 msn 11".to_owned();
    b.batch(&[write(112, 0, 1), write(114, 0, 1)]);
    b.sent();
    b.recv(&write(114, 0, 1)).unwrap();
    assert_eq!(b.sent(), NONE, "the reports are in flight");
    b.at(crate::testing::us(50));
    b.recv(&write(114, 0, 1)).unwrap();
    assert_eq!(b.sent(), [nak()]);
    b.at(crate::testing::us(100));
    b.recv(&write(114, 0, 1)).unwrap();
    let report = |psn: u32| format!("Acknowledge {} msn 114", psn.wrapping_sub(unit) & 0xff_ffff);
    assert_eq!(b.sent(), [nak(), report(111), report(113)]);
}

/// Otherwise the window of the requester stays closed while nothing else is missing.
#[test]
fn the_first_gap_is_reported_again_when_32_requests_were_kept_since() {
    let mut b = selective();
    let unit = crate::requester::GAP_UNIT as u32;
    let report = |furthest| vec![format!("Acknowledge {} msn {furthest}", (111 - unit as i32) & 0xff_ffff)];
    let mut arrive = |from, to| {
        b.batch(&(from..to).map(|psn| write(psn, 0, 1)).collect::<Vec<_>>());
        b.sent()
    };
    assert_eq!(arrive(112, 143), ["Acknowledge 111 NAK 0 msn 11"]);
    assert_eq!(arrive(143, 144), report(143));
    assert_eq!(arrive(144, 175), NONE);
    assert_eq!(arrive(175, 176), report(175));
    assert_eq!(arrive(111, 112), NONE);
}

/// Each report costs both sides a packet, and retransmissions take long through a full queue.
#[test]
fn a_gap_is_reported_again_when_its_retransmission_takes_longer_than_others() {
    let mut b = selective();
    let nak = vec!["Acknowledge 111 NAK 0 msn 11".to_owned()];
    b.recv(&write(112, 0, 1)).unwrap();
    assert_eq!(b.sent(), nak);
    b.at(crate::testing::us(1_000));
    b.recv(&write(111, 0, 1).ack_req()).unwrap();
    b.recv(&write(114, 0, 1)).unwrap();
    b.sent();
    b.at(crate::testing::us(1_900));
    b.recv(&write(115, 0, 1)).unwrap();
    assert_eq!(b.sent(), NONE, "the retransmission before took longer");
    b.at(crate::testing::us(2_000));
    b.recv(&write(116, 0, 1)).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 113 NAK 0 msn 13"]);
    b.recv(&write(117, 0, 1)).unwrap();
    assert_eq!(b.sent(), NONE, "one report, not one per packet");
}

#[test]
fn a_go_back_n_peer_gets_no_gap_reports() {
    let mut b = selective();
    b.batch(&[write(112, 0, 1), write(114, 0, 1)]);
    b.sent();
    b.batch(&[write(111, 0, 1), write(112, 0, 1), write(113, 0, 1), write(114, 0, 1)]);
    b.sent();
    b.batch(&[write(116, 0, 1), write(118, 0, 1)]);
    assert_eq!(b.sent(), ["Acknowledge 115 NAK 0 msn 15"]);
    b.at(crate::testing::ms(1));
    b.recv(&write(119, 0, 1)).unwrap();
    assert_eq!(b.sent(), NONE, "one NAK for a gap");
}

/// There is always a gap, and each is closed after 100 ms.
#[test]
fn kept_requests_are_executed_as_long_as_gaps_are_closed() {
    let mut b = Bench::rc();
    b.recv(&write(101, 0, 1)).unwrap();
    for round in 0..30 {
        b.now = ms(100 * u64::from(round));
        b.recv(&write(103 + 2 * round, 0, 1)).unwrap();
        b.recv(&write(100 + 2 * round, 0, 1)).unwrap();
        assert_eq!(b.qp.psn_window().expected.value(), 102 + 2 * round, "the kept request was executed");
    }
}

/// A forged one, far ahead of a slow flow.
#[test]
fn a_request_is_not_kept_for_longer_than_a_second_while_others_are_executed() {
    let mut b = Bench::rc();
    b.recv(&write(150, 0, 0xbb)).unwrap();
    for psn in 100..150 {
        b.now = ms(100 * u64::from(psn - 100));
        b.recv(&write(psn, 8, 1)).unwrap();
    }
    assert_eq!(b.qp.psn_window().expected.value(), 150);
    assert_eq!(b.mem.remote_at(REMOTE, 8), [0; 8]);
}

/// A forged request, far ahead on an idle connection, makes the next one appear as the repair of a gap.
#[test]
fn slow_repairs_lengthen_the_time_for_which_requests_are_kept_up_to_a_limit() {
    let mut b = Bench::rc();
    let mut at_ms = 0;
    for round in 0..6 {
        let expected = 100 + round;
        b.recv(&write(expected + 1 + 30, 0, 0xbb)).unwrap();
        at_ms += 10_000;
        b.now = ms(at_ms);
        b.recv(&write(expected, 8, 1)).unwrap();
    }
    b.recv(&write(150, 0, 0xbb)).unwrap();
    b.now = ms(at_ms + 5_001);
    for psn in 106..150 {
        b.recv(&write(psn, 8, 1)).unwrap();
    }
    assert_eq!(b.qp.psn_window().expected.value(), 150, "the forged request is too old");
    assert_eq!(b.mem.remote_at(REMOTE, 8), [0; 8]);
}

/// The request that was not accepted has been retransmitted; the RNR NAK says nothing about later ones.
#[test]
fn a_gap_after_an_rnr_nak_is_nakked_and_requests_behind_it_are_kept() {
    let mut b = Bench::rc();
    assert_eq!(b.recv(&send(100, 1)), Err(DropReason::NoReceive));
    assert_eq!(b.recv(&send(101, 2)), Err(DropReason::OutOfSequence), "the peer retransmits it as well");
    b.sent();
    for i in 0..3 {
        b.post_recv(i, 8 * i, 8);
    }
    b.recv(&send(100, 1)).unwrap();
    b.sent();
    assert_eq!(b.recv(&send(102, 3)), Ok(()));
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 0 msn 1"]);
    b.recv(&send(101, 2)).unwrap();
    assert_eq!(b.events().len(), 3);
}
