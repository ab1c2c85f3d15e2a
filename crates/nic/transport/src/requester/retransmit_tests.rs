//! Which packets are retransmitted. Requests start at PSN 500; the path MTU is 1024, the ACK timeout 67.1
//! ms.

use wire::{DropReason, NakCode, Opcode, Rkey};

use super::{GAP_UNIT, gap_of};
use crate::testing::{Bench, LOCAL, Pkt, REMOTE, RKEY, ms, read, us, write};
use crate::{Instant, QpState, WcStatus, WrOp};

const NONE: [&str; 0] = [];
const SUCCESS: WcStatus = WcStatus::Success;
/// 4.096 us x 2^14.
const T: u64 = 67_108_864;

fn nak(psn: u32) -> Pkt {
    Pkt::nak(psn, NakCode::PsnSequenceError)
}

/// A gap report.
fn gap(psn: u32, packets: u32) -> Pkt {
    Pkt::ack(psn.wrapping_sub(packets * GAP_UNIT as u32) & 0xff_ffff)
}

/// Ten SENDs in flight, 500 to 509, to a selective-repeat peer: it kept 510 to 599 while this one was
/// missing.
fn keeper(lost: u32) -> Bench {
    let mut b = Bench::rc();
    for i in 0..100 {
        b.post_flags(i, WrOp::Send, 8, crate::SendFlags::empty()).unwrap();
    }
    b.sent();
    b.recv(&nak(lost)).unwrap();
    assert_eq!(b.sent(), [format!("SEND Only {lost} AckReq [8]")]);
    b.recv(&Pkt::ack(599)).unwrap();
    b.events();
    assert!(b.qp.is_send_idle());
    b
}

fn only(psn: u32) -> String {
    format!("SEND Only {psn} AckReq [8]")
}

fn post(b: &mut Bench, count: u64) {
    for i in 0..count {
        b.post_flags(i, WrOp::Send, 8, crate::SendFlags::empty()).unwrap();
    }
    b.sent();
}

#[test]
fn a_selective_repeat_peer_gets_only_the_missing_packets() {
    let mut b = keeper(520);
    post(&mut b, 20);
    b.recv(&nak(603)).unwrap();
    assert_eq!(b.sent(), [only(603)]);
    post(&mut b, 1);
    assert_eq!(b.qp.packets_in_flight(), 18, "and new packets go on");
    b.recv(&nak(603)).unwrap();
    assert_eq!(b.sent(), NONE, "the report is older than the retransmission");
    b.at(us(60));
    b.recv(&nak(603)).unwrap();
    assert_eq!(b.sent(), [only(603)], "this report is newer");
    b.recv(&Pkt::ack(620)).unwrap();
    assert!(b.qp.is_send_idle());
    assert_eq!(b.qp.counters().retransmitted_pkts, 3);
}

#[test]
fn a_nak_for_the_packet_behind_the_probe_shows_selective_repeat() {
    let mut b = Bench::rc();
    post(&mut b, 10);
    b.recv(&nak(500)).unwrap();
    assert_eq!(b.sent(), [only(500)]);
    b.recv(&nak(501)).unwrap();
    assert_eq!(b.sent().len(), 9, "nothing of this was sent since");
    b.at(us(60));
    b.recv(&nak(505)).unwrap();
    assert_eq!(b.sent(), [only(505)]);
}

#[test]
fn probes_are_earlier_while_packets_are_being_retransmitted() {
    let mut b = keeper(520);
    post(&mut b, 20);
    let calm = b.qp.poll_timeout();
    b.recv(&nak(603)).unwrap();
    b.sent();
    assert_eq!((calm, b.qp.poll_timeout()), (Some(us(400)), Some(us(100))));
}

/// Its request is retransmitted with everything behind the gap, so the old response counts as lost.
#[test]
fn a_read_response_behind_the_probe_is_ignored() {
    let mut b = Bench::rc();
    b.post(1, read(0), 8);
    b.post(2, read(8), 8);
    b.sent();
    b.recv(&nak(500)).unwrap();
    assert_eq!(b.sent(), ["READ Request 500 AckReq +0x0 len 8"]);
    let late = b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 501).payload(2, 8));
    assert_eq!((late, b.qp.counters().ignored_responses), (Err(DropReason::StaleResponse), 1));
}

#[test]
fn a_read_is_requested_again_at_the_limit_of_outstanding_reads() {
    let mut b = Bench::rc_with(|attr| attr.max_rd_atomic = 1);
    b.post(1, read(0), 8);
    b.sent();
    b.recv(&nak(500)).unwrap();
    assert_eq!(b.sent(), ["READ Request 500 AckReq +0x0 len 8"]);
}

#[test]
fn an_early_response_of_another_length_is_ignored_and_counted() {
    let mut b = Bench::rc();
    b.post(1, read(0), 8);
    b.post(2, read(8), 8);
    b.sent();
    let odd = b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 501).payload(2, 12));
    assert_eq!((odd, b.qp.counters().ignored_responses), (Err(DropReason::OutOfOrderResponse), 1));
}

#[test]
fn old_acks_report_gaps_behind_the_first() {
    let mut b = keeper(520);
    post(&mut b, 20);
    b.batch(&[nak(603), gap(605, 1), gap(610, 3)]);
    assert_eq!(b.sent(), [603, 605, 610, 611, 612].map(only));
    assert_eq!(b.qp.counters().rcvd_gap_report, 2);
    assert_eq!(b.recv(&gap(630, 1)), Ok(()), "never sent");
    assert_eq!(b.recv(&Pkt::ack(600)), Err(DropReason::StaleResponse), "late, but no report");
    assert_eq!(b.sent(), NONE);
    b.recv(&Pkt::ack(619)).unwrap();
    assert!(b.qp.is_send_idle());
}

/// A gap report names the furthest packet that has arrived. What left before it is not in flight any more.
#[test]
fn a_retransmission_is_lost_if_a_packet_that_left_later_has_arrived() {
    let mut b = keeper(520);
    post(&mut b, 20);
    b.recv(&gap(603, 1).msn(610)).unwrap();
    assert_eq!((b.sent(), b.qp.packets_in_flight()), (vec![only(603)], 9));
    b.recv(&gap(603, 1).msn(619)).unwrap();
    assert_eq!((b.sent(), b.qp.packets_in_flight()), (vec![], 0), "that one had left before");
    post(&mut b, 8);
    b.recv(&gap(603, 1).msn(622)).unwrap();
    assert_eq!((b.sent(), b.qp.packets_in_flight()), (vec![], 5), "three may have overtaken it");
    b.recv(&gap(603, 1).msn(623)).unwrap();
    assert_eq!((b.sent(), b.qp.packets_in_flight()), (vec![only(603)], 4));
    b.recv(&gap(603, 1).msn(629)).unwrap();
    assert_eq!(b.qp.packets_in_flight(), 4, "was never sent");
    b.recv(&gap(625, 2).msn(625)).unwrap();
    assert_eq!(b.qp.packets_in_flight(), 0, "a gap that does not end before the furthest packet");
}

/// Only a peer that has shown selective repeat reports gaps.
#[test]
fn old_acks_of_an_unknown_peer_report_no_gap() {
    let mut b = Bench::rc();
    post(&mut b, 20);
    assert_eq!(b.recv(&gap(510, 2)), Err(DropReason::StaleResponse));
    assert_eq!(b.sent(), NONE);
}

/// By hand: a gap of 3 packets, 20 behind `una`, is reported by an ACK 3052 packets before the gap.
#[test]
fn the_age_of_an_ack_encodes_a_gap() {
    assert_eq!(gap_of(500, 3 * GAP_UNIT - 20), Some((520, 3)));
    assert_eq!(gap_of(500, GAP_UNIT), Some((500, 1)));
    for late in 1..GAP_UNIT - super::SPAN {
        assert_eq!(gap_of(5000, late), None, "an ACK that is {late} packets late");
    }
}

/// A peer taken for selective repeat misses the next packet each time: the requester goes back N.
#[test]
fn a_peer_that_misses_each_next_packet_is_sent_everything_again() {
    let mut b = keeper(520);
    post(&mut b, 40);
    for (missing, run) in [(600, 1), (601, 2), (603, 4), (607, 8)] {
        b.recv(&nak(missing)).unwrap();
        assert_eq!(b.sent(), (missing..missing + run).map(only).collect::<Vec<_>>());
    }
    b.recv(&nak(615)).unwrap();
    assert_eq!(b.sent().len(), 25, "everything from there");
}

/// Towards a go-back-N peer the window shrinks with each loss and grows back.
#[test]
fn the_window_of_a_go_back_n_peer_shrinks_and_grows() {
    let mut b = Bench::rc();
    b.post(1, write(0), 500 * 1024);
    assert_eq!(b.sent().len(), 310);
    b.recv(&nak(510)).unwrap();
    assert_eq!(b.sent().len(), 1);
    b.recv(&Pkt::ack(510)).unwrap();
    let mut sizes = vec![];
    let mut acked = 510;
    while acked < 760 {
        let sent = b.sent().len() as u32;
        sizes.push(sent);
        acked += sent;
        b.recv(&Pkt::ack(acked)).unwrap();
    }
    assert_eq!(sizes, [64, 80, 100, 125], "a quarter more each time");
    b.sent();
    b.recv(&nak(acked + 20)).unwrap();
    assert_eq!(b.sent().len(), 80, "half of 160");
}

/// When an ACK is overdue by the round-trip time, the oldest and the youngest packet are retransmitted
/// without using up a retry.
#[test]
fn a_lost_tail_is_probed_for_long_before_the_timeout() {
    let mut b = Bench::rc_with(|attr| attr.retry_cnt = 0);
    post(&mut b, 1);
    b.at(us(100));
    b.recv(&Pkt::ack(500)).unwrap();
    post(&mut b, 5);
    assert_eq!(b.qp.poll_timeout(), Some(us(500)), "0.4 ms after the last progress");
    for (probe, at) in [500, 1300, 2900].into_iter().enumerate() {
        b.at(us(at - 1));
        assert_eq!(b.sent(), NONE);
        b.at(us(at));
        assert_eq!(b.sent(), [501, 505].map(only), "probe {probe}, the wait doubles");
    }
    b.at(Instant(us(100).0 + T - 1));
    assert_eq!((b.qp.state(), b.qp.counters().local_ack_timeout_err), (QpState::Rts, 0));
    b.at(Instant(us(100).0 + T));
    assert_eq!(b.qp.state(), QpState::Err, "timeout and retry_cnt mean what they say");
}

/// All of 200 packets were lost while the peer had no CPU. It would drop the youngest one and NAK only the
/// packet behind the oldest.
#[test]
fn a_probe_reaches_no_further_than_the_peer_keeps_packets() {
    let mut b = keeper(520);
    post(&mut b, 200);
    b.at(b.qp.poll_timeout().expect("an ACK is expected"));
    assert_eq!(b.sent(), [600, 663].map(only));
}

#[test]
fn a_response_to_a_probe_ends_the_probing() {
    let mut b = Bench::rc();
    post(&mut b, 1);
    b.recv(&Pkt::ack(500)).unwrap();
    post(&mut b, 3);
    b.at(ms(1));
    b.sent();
    b.recv(&Pkt::ack(503)).unwrap();
    assert!(b.qp.is_send_idle());
    assert_eq!((b.qp.poll_timeout(), b.qp.counters().probes), (None, 1));
}

/// A probe requests every missing response, since no later response will show it. Some responders repeat only
/// the rest of a READ request: after three probes without progress that is requested.
#[test]
fn a_probe_requests_the_missing_read_responses_and_later_all_to_the_end() {
    let mut b = keeper(520);
    b.post(1, read(0), 4096);
    b.sent();
    b.batch(&[
        Pkt::new(Opcode::RC_READ_RESPONSE_MIDDLE, 601).payload(2, 1024),
        Pkt::new(Opcode::RC_READ_RESPONSE_LAST, 603).payload(4, 1024),
    ]);
    assert_eq!(b.sent().len(), 2);
    let mut asked = vec![];
    for _ in 0..3 {
        b.at(b.qp.poll_timeout().unwrap());
        asked.extend(b.sent());
    }
    let exact = ["READ Request 600 AckReq +0x0 len 1024", "READ Request 602 AckReq +0x800 len 1024"];
    let rest = "READ Request 600 AckReq +0x0 len 4096";
    assert_eq!(asked, [&exact[..], &exact, &[rest]].concat());
    b.batch(&[
        Pkt::new(Opcode::RC_READ_RESPONSE_FIRST, 600).payload(1, 1024),
        Pkt::new(Opcode::RC_READ_RESPONSE_MIDDLE, 601).payload(9, 1024),
        Pkt::new(Opcode::RC_READ_RESPONSE_MIDDLE, 602).payload(3, 1024),
    ]);
    assert_eq!(b.send_wcs(), [(1, SUCCESS)]);
    assert_eq!(b.mem.local_at(LOCAL + 1024, 1), [2], "the data that was here is not written again");
}

/// rxe drops a request for an earlier part of a READ after one for a later part. So the requester requests
/// one gap at a time until a response shows that the peer is another.
#[test]
fn one_gap_of_a_read_at_a_time_is_requested_until_the_peer_responds_to_a_part_as_to_a_read() {
    for (opcode, wanted) in [
        (Opcode::RC_READ_RESPONSE_LAST, &["READ Request 504 AckReq +0xc00 len 1024"][..]),
        (
            Opcode::RC_READ_RESPONSE_ONLY,
            &["READ Request 504 AckReq +0xc00 len 1024", "READ Request 506 AckReq +0x1400 len 1024"][..],
        ),
    ] {
        let mut b = Bench::rc();
        post(&mut b, 1);
        b.recv(&Pkt::ack(500)).unwrap();
        b.post(1, read(0), 8192);
        b.sent();
        let middle = |psn| Pkt::new(Opcode::RC_READ_RESPONSE_MIDDLE, psn).payload(psn as u8, 1024);
        let first = Pkt::new(Opcode::RC_READ_RESPONSE_FIRST, 501).payload(1, 1024);
        b.batch(&[first, middle(503), middle(505), middle(507)]);
        assert_eq!(b.sent(), ["READ Request 502 AckReq +0x400 len 1024"]);
        b.recv(&Pkt::new(opcode, 502).payload(2, 1024)).unwrap();
        assert_eq!(b.sent(), wanted, "{opcode:?}");
    }
}

/// READ requests may be lost, too: the NAK names the first.
#[test]
fn a_lost_read_request_is_retransmitted_whole() {
    let mut b = keeper(520);
    b.post(1, read(0), 3000);
    b.post(2, WrOp::FetchAdd { remote_addr: REMOTE, r_key: RKEY, add: 1 }, 8);
    b.post(3, WrOp::Send, 8);
    b.sent();
    b.recv(&nak(600)).unwrap();
    assert_eq!(b.sent(), ["READ Request 600 AckReq +0x0 len 3000"]);
    b.at(us(60));
    b.batch(&[
        Pkt::new(Opcode::RC_READ_RESPONSE_FIRST, 600).payload(1, 1024),
        Pkt::new(Opcode::RC_READ_RESPONSE_LAST, 602).payload(3, 952),
        Pkt::ack(604),
    ]);
    assert_eq!(b.sent(), ["READ Request 601 AckReq +0x400 len 1024", "Fetch Add 603 AckReq"]);
    b.recv(&Pkt::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, 603).original(5)).unwrap();
    assert_eq!(b.events(), []);
    b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 601).payload(2, 1024)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]);
}

/// A READ request for one packet is the probe.
#[test]
fn a_lost_read_request_is_retransmitted_for_one_packet_to_an_unknown_peer() {
    let mut b = Bench::rc();
    for wr_id in 1..=3 {
        b.post(wr_id, read(0), 4096);
    }
    assert_eq!(b.sent().len(), 3);
    b.recv(&nak(500)).unwrap();
    assert_eq!(b.sent(), ["READ Request 500 AckReq +0x0 len 1024"]);
    b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 500).payload(1, 1024)).unwrap();
    assert_eq!(b.sent()[0], "READ Request 501 AckReq +0x400 len 3072");
}

/// A peer that executed the probe as a READ of its own drops a duplicate that is longer.
#[test]
fn a_read_is_requested_again_up_to_the_end_of_the_probe_whose_response_was_lost() {
    let parts = ["READ Request 500 AckReq +0x0 len 1024", "READ Request 501 AckReq +0x400 len 3072"];
    let mut b = Bench::rc();
    b.post(1, read(0), 4096);
    b.sent();
    b.recv(&nak(500)).unwrap();
    assert_eq!(b.sent(), parts[..1]);
    b.recv(&nak(501)).unwrap();
    assert_eq!(b.sent(), parts[1..]);
    for _ in 0..2 {
        b.at(b.qp.poll_timeout().unwrap());
        assert_eq!(b.sent(), parts, "no response has arrived");
    }
    b.at(b.qp.poll_timeout().unwrap());
    assert_eq!(b.sent(), ["READ Request 500 AckReq +0x0 len 4096"], "some peers repeat only the whole rest");
    b.at(b.qp.poll_timeout().unwrap());
    assert_eq!(b.sent(), parts);
}

/// The first NAK is repeated while the probe is in flight; the second one shows that the probe was executed.
#[test]
fn a_read_that_goes_back_is_requested_up_to_the_end_of_the_probe() {
    let mut b = Bench::rc();
    b.post(1, read(0), 4096);
    b.sent();
    b.recv(&nak(500)).unwrap();
    assert_eq!(b.sent(), ["READ Request 500 AckReq +0x0 len 1024"]);
    b.at(ms(5));
    b.batch(&[nak(500), nak(501)]);
    let parts = ["READ Request 500 AckReq +0x0 len 1024", "READ Request 501 AckReq +0x400 len 3072"];
    assert_eq!(b.sent(), parts);
}

#[test]
fn memory_deregistered_before_a_retransmission_is_a_local_error_in_queue_order() {
    let mut b = keeper(520);
    b.post(1, WrOp::Send, 8);
    let beyond = crate::Sge { addr: LOCAL, length: 8, lkey: crate::testing::LKEY };
    b.post_sges(2, WrOp::Send, &[beyond], crate::SendFlags::empty()).unwrap();
    b.post(3, WrOp::Send, 8);
    b.sent();
    b.mem.local_gone.set(true);
    b.batch(&[nak(600), gap(601, 1)]);
    assert_eq!(b.sent(), NONE);
    assert_eq!(b.send_wcs()[0], (1, WcStatus::LocProtErr));
    assert_eq!(b.qp.state(), QpState::Err);
}

#[test]
fn a_selective_repeat_peer_gets_only_the_refused_packet_after_an_rnr_nak() {
    let mut b = keeper(520);
    post(&mut b, 10);
    b.recv(&Pkt::rnr(604, 12)).unwrap();
    assert_eq!(b.sent(), NONE);
    b.at(us(640));
    assert_eq!(b.sent(), [only(604)]);
}

/// The application has taken the memory of an unsignaled reply back. Its probe would be left out.
#[test]
fn a_reported_reply_without_its_memory_fails() {
    let mut b = keeper(520);
    let request = |psn| Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(0, Rkey(0), 0);
    b.recv(&request(100)).unwrap();
    post(&mut b, 1);
    b.recv(&request(101)).unwrap();
    b.mem.local_gone.set(true);
    b.recv(&nak(600)).unwrap();
    b.sent();
    assert_eq!((b.qp.state(), b.send_wcs()[0].1), (QpState::Err, WcStatus::LocProtErr));
}

/// The round trip of an unknown path is guessed, so that a lost packet with nothing behind it does not cost
/// the timeout.
#[test]
fn a_lost_tail_is_probed_for_before_any_round_trip_was_measured() {
    let mut b = Bench::rc_with(|attr| attr.retry_cnt = 0);
    post(&mut b, 3);
    b.at(Instant(ms(4).0 - 1));
    assert_eq!(b.sent(), NONE);
    b.at(ms(4));
    assert_eq!(b.sent(), [500, 502].map(only));
    assert_eq!(b.qp.counters().local_ack_timeout_err, 0);
}

/// Packets that have arrived behind a missing one are not in flight: the window goes on from there.
#[test]
fn the_window_moves_on_while_a_packet_is_missing() {
    let mut b = keeper(520);
    b.post(1, write(0), 500 * 1024);
    assert_eq!(b.sent().len(), 310);
    b.recv(&nak(603)).unwrap();
    assert_eq!(b.sent().len(), 1 + 3, "the missing one, and as many new ones as were acknowledged");
    b.recv(&gap(700, 1)).unwrap();
    assert_eq!(b.qp.packets_in_flight(), 913 - 702);
    assert_eq!(b.sent().len(), 1 + 99);
    b.recv(&Pkt::ack(1010)).unwrap();
    assert_eq!((b.sent().len(), b.qp.packets_in_flight()), (88, 89));
}

#[test]
fn early_responses_make_room_for_further_reads() {
    let mut b = Bench::rc_with(|attr| attr.max_rd_atomic = 16);
    b.post(1, read(0), 500 * 1024);
    assert_eq!(b.sent().len(), 4, "of 64 packets each");
    let response = |psn| Pkt::new(Opcode::RC_READ_RESPONSE_MIDDLE, psn).payload(2, 1024);
    b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_FIRST, 500).payload(1, 1024)).unwrap();
    b.recv(&response(502)).unwrap();
    assert_eq!(b.sent(), ["READ Request 501 AckReq +0x400 len 1024"]);
    b.recv(&response(508)).unwrap();
    assert_eq!(b.sent(), NONE, "of a READ one gap at a time");
    b.recv(&response(509)).unwrap();
    assert_eq!(b.sent(), ["READ Request 756 AckReq +0x40000 len 65536"]);
    for psn in 510..820 {
        b.batch(&[response(psn)]);
    }
    let last = b.sent().pop();
    assert_eq!(last.as_deref(), Some("READ Request 948 AckReq +0x70000 len 53248"));
}
