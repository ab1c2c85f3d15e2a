//! The rules of the requester, one by one. Requests start at PSN 500; the path MTU is 1024, the ACK timeout
//! 67.1 ms.

use wire::{DropReason, NakCode, Opcode, Syndrome};

use crate::testing::{Bench, LKEY, LOCAL, Pkt, REMOTE, RKEY, SIZE, ms, read, us, write};
use crate::{
    Errno, Instant, QpEvent, QpState, SendFlags, Sge, VerbsError, WcOpcode, WcStatus, WrOp, ack_timeout_ns,
};

const NONE: [&str; 0] = [];
const SUCCESS: WcStatus = WcStatus::Success;
/// 4.096 us x 2^14.
const T: u64 = 67_108_864;
/// The second and each further timeout.
const AGAIN: u64 = 250_000_000;

fn response(opcode: Opcode, psn: u32, value: u8, len: usize) -> Pkt {
    Pkt::new(opcode, psn).payload(value, len)
}

fn fetch_add(add: u64) -> WrOp {
    WrOp::FetchAdd { remote_addr: REMOTE, r_key: RKEY, add }
}

#[test]
fn one_ack_completes_everything_before_it_in_order() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 8);
    b.post_flags(2, WrOp::Send, 8, SendFlags::empty()).unwrap();
    b.post(3, WrOp::Send, 2048);
    b.sent();
    b.recv(&Pkt::ack(502)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS)], "the second is unsignalled, the third half acknowledged");
    assert!(!b.qp.is_send_idle());
    b.recv(&Pkt::ack(503)).unwrap();
    assert_eq!(b.send_wcs(), [(3, SUCCESS)]);
    assert!(b.qp.is_send_idle() && b.qp.poll_timeout().is_none());
}

#[test]
fn old_duplicate_and_reserved_responses_are_ignored() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 8);
    b.sent();
    assert_eq!(b.recv(&Pkt::ack(501)), Err(DropReason::StaleResponse), "never sent");
    assert_eq!(b.recv(&Pkt::ack(499)), Err(DropReason::StaleResponse), "acknowledged before");
    assert_eq!(b.recv(&Pkt::ack(500).syndrome(Syndrome::Reserved(0x45))), Err(DropReason::ReservedSyndrome));
    assert_eq!(b.recv(&Pkt::nak(501, NakCode::InvalidRequest)), Err(DropReason::StaleResponse));
    assert_eq!(b.events(), []);
    assert_eq!(b.recv(&response(Opcode::RC_READ_RESPONSE_ONLY, 500, 1, 8)), Err(DropReason::StaleResponse));
    assert_eq!(b.qp.counters().ignored_responses, 5);
    b.recv(&Pkt::ack(500).syndrome(Syndrome::Ack(3))).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS)], "credits are an ACK");
}

/// The first missing packet is the probe; a peer that dropped the packets behind it gets all of them again.
#[test]
fn a_sequence_nak_retransmits_from_the_named_packet() {
    let mut b = Bench::rc();
    for i in 0..5 {
        b.post(i, WrOp::Send, 8);
    }
    b.sent();
    b.recv(&Pkt::nak(502, NakCode::PsnSequenceError)).unwrap();
    assert_eq!(b.send_wcs(), [(0, SUCCESS), (1, SUCCESS)]);
    assert_eq!(b.sent(), ["SEND Only 502 AckReq [8]"]);
    b.recv(&Pkt::ack(502)).unwrap();
    assert_eq!(b.sent(), ["SEND Only 503 [8]", "SEND Only 504 AckReq [8]"]);
    assert_eq!(b.qp.counters().retransmitted_pkts, 3);
}

#[test]
fn a_retransmission_starts_in_the_middle_of_a_message() {
    let mut b = Bench::rc();
    b.mem.put_local(LOCAL + 1024, &[7; 1024]);
    b.post(1, write(0), 3000);
    b.sent();
    b.recv(&Pkt::nak(501, NakCode::PsnSequenceError)).unwrap();
    assert_eq!(b.sent(), ["WRITE Middle 501 AckReq [1024]"]);
    b.recv(&Pkt::ack(501)).unwrap();
    assert_eq!(b.sent(), ["WRITE Last 502 AckReq [952]"]);
}

/// A fatal NAK may overtake earlier READ responses, which the application must still get.
#[test]
fn a_fatal_nak_waits_for_the_read_responses_before_it() {
    let mut b = Bench::rc();
    b.post(1, read(0), 8);
    b.post(2, write(0), 8);
    b.sent();
    b.recv(&Pkt::nak(501, NakCode::RemoteAccessError)).unwrap();
    assert_eq!((b.send_wcs(), b.qp.state()), (vec![], QpState::Rts));
    b.recv(&response(Opcode::RC_READ_RESPONSE_ONLY, 500, 0, 8)).unwrap();
    b.recv(&Pkt::nak(501, NakCode::RemoteAccessError)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS), (2, WcStatus::RemAccessErr)]);
}

#[test]
fn an_rnr_nak_behind_missing_responses_does_not_stop_the_queue() {
    let mut b = Bench::rc();
    b.post(1, read(0), 8);
    b.post(2, WrOp::Send, 8);
    b.sent();
    b.recv(&Pkt::rnr(501, 1)).unwrap();
    let asked = b.sent();
    assert!(asked.iter().any(|packet| packet.starts_with("READ Request 500")), "{asked:?}");
    b.recv(&response(Opcode::RC_READ_RESPONSE_ONLY, 500, 0, 8)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS)]);
}

#[test]
fn an_atomic_result_does_not_complete_a_read() {
    let mut b = Bench::rc();
    b.post(1, read(0), 0);
    b.sent();
    b.recv(&Pkt::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, 500).original(7)).unwrap();
    assert_eq!(b.send_wcs(), [(1, WcStatus::BadRespErr)]);
}

/// Only timeouts use up retries, however often the peer NAKs the packet.
#[test]
fn sequence_naks_without_progress_end_in_retry_exceeded() {
    let nak = Pkt::nak(500, NakCode::PsnSequenceError);
    let mut b = Bench::rc_with(|attr| attr.retry_cnt = 2);
    b.post(1, WrOp::Send, 8);
    b.sent();
    b.recv(&nak).unwrap();
    b.recv(&nak).unwrap();
    assert_eq!(b.sent().len(), 1, "the same NAK twice counts once");
    for i in 1..=40 {
        b.at(ms(5 * i));
        b.recv(&nak).unwrap();
        assert!(b.sent().len() <= 2, "{i}");
        assert_eq!(b.qp.state(), QpState::Rts, "{i}");
    }
    b.at(Instant(T + 2 * AGAIN));
    assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr)]);
}

/// Without a timeout only the NAKs can end the connection.
#[test]
fn sequence_naks_cost_retries_where_there_is_no_timeout() {
    let mut b = Bench::rc_with(|attr| (attr.retry_cnt, attr.timeout) = (2, 0));
    b.post(1, WrOp::Send, 8);
    b.sent();
    for _ in 0..2 {
        b.recv(&Pkt::nak(500, NakCode::PsnSequenceError)).unwrap();
        assert_eq!(b.sent().len(), 1);
    }
    b.recv(&Pkt::nak(500, NakCode::PsnSequenceError)).unwrap();
    assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr)]);
}

/// A responder with a long queue NAKs the gap for each packet that arrives before the retransmission.
#[test]
fn repeated_naks_of_one_gap_use_up_no_retries() {
    let mut b = Bench::rc();
    for i in 0..60 {
        b.post(i, WrOp::Send, 8);
    }
    b.sent();
    let mut sent = 0;
    for i in 1..=40 {
        b.at(us(25 * i));
        b.recv(&Pkt::nak(500, NakCode::PsnSequenceError)).unwrap();
        sent += b.sent().len();
    }
    assert_eq!((b.qp.state(), sent), (QpState::Rts, 1), "within the millisecond that nothing was measured");
    b.recv(&Pkt::ack(559)).unwrap();
    assert_eq!(b.send_wcs().len(), 60);
}

/// `retry_cnt` 7 means seven: eight times the timeout, then the error. Probes do not count.
#[test]
fn a_retry_count_of_seven_means_seven_retries() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 8);
    b.post_flags(2, WrOp::Send, 8, SendFlags::empty()).unwrap();
    for i in 0..8 {
        assert_eq!(b.sent().len(), 2, "transmission {i}");
        let due = T + i * AGAIN;
        b.at(Instant(due - 1));
        b.sent();
        assert_eq!(b.qp.poll_timeout(), Some(Instant(due)));
        assert_eq!((b.send_wcs().len(), b.qp.counters().local_ack_timeout_err), (0, i));
        b.at(Instant(due));
    }
    assert_eq!(b.sent(), NONE);
    assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!((b.qp.state(), b.qp.poll_timeout()), (QpState::Err, None));
    assert_eq!(b.qp.counters().retry_exceeded_err, 1);
}

/// IBA 9.7.6.1.3: at most four times the time of `timeout`.
#[test]
fn further_timeouts_take_250_ms_where_the_standard_lets_them() {
    for (timeout, again) in [(8, 4 * 1_048_576), (14, AGAIN), (16, 268_435_456), (20, 4_294_967_296)] {
        let mut b = Bench::rc_with(|attr| (attr.timeout, attr.retry_cnt) = (timeout, 2));
        b.post(1, WrOp::Send, 8);
        b.sent();
        let first = ack_timeout_ns(timeout).unwrap();
        b.at(Instant(first + 2 * again - 1));
        b.sent();
        assert_eq!(b.send_wcs(), [], "{timeout}");
        b.at(Instant(first + 2 * again));
        assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr)], "{timeout}");
    }
}

#[test]
fn a_timeout_of_zero_never_fires() {
    let mut b = Bench::rc_with(|attr| attr.timeout = 0);
    b.post(1, WrOp::Send, 8);
    b.sent();
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn progress_reloads_the_retry_counter_and_the_timer() {
    let mut b = Bench::rc_with(|attr| attr.retry_cnt = 1);
    for i in 0..3 {
        b.post(i, WrOp::Send, 8);
    }
    b.sent();
    for i in 0..2 {
        b.at(Instant(b.now.0 + T));
        b.sent();
        b.at(Instant(b.now.0 + T / 2));
        b.recv(&Pkt::ack(500 + i)).unwrap();
        assert_eq!(b.qp.poll_timeout(), Some(Instant(b.now.0 + T)));
    }
    b.at(Instant(b.now.0 + T + AGAIN));
    assert_eq!(b.send_wcs(), [(0, SUCCESS), (1, SUCCESS), (2, WcStatus::RetryExcErr)]);
}

#[test]
fn an_rnr_nak_stops_the_queue_for_the_time_that_it_names() {
    let mut b = Bench::rc();
    for i in 0..3 {
        b.post(i, WrOp::Send, 8);
    }
    b.sent();
    b.batch(&[Pkt::rnr(501, 12), Pkt::rnr(501, 1), Pkt::nak(501, NakCode::PsnSequenceError)]);
    assert_eq!(b.send_wcs(), [(0, SUCCESS)]);
    b.post(3, WrOp::Send, 8);
    b.at(us(639));
    assert_eq!(b.sent(), NONE, "code 12 is 0.64 ms, and the second NAK is ignored");
    b.at(us(640));
    assert_eq!(b.sent().len(), 3);
    assert_eq!(b.qp.poll_timeout(), Some(us(4_640)), "the first guess of a round trip");
    assert_eq!(b.qp.counters().rcvd_rnr_err, 2);
}

/// The table's longest time is code 0.
/// Without budget the requester must still learn whether the peer has posted a receive.
#[test]
fn the_packet_of_an_rnr_nak_is_retransmitted_without_budget_and_later_ones_are_not() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 2048);
    b.sent();
    b.recv(&Pkt::rnr(500, 12)).unwrap();
    b.budget = 0;
    b.at(us(640));
    assert_eq!(b.sent(), ["SEND First 500 AckReq [1024]"]);
}

#[test]
fn rnr_code_zero_is_655_ms() {
    let mut b = Bench::rc();
    b.post(0, WrOp::Send, 8);
    b.sent();
    b.recv(&Pkt::rnr(500, 0)).unwrap();
    assert_eq!(b.qp.poll_timeout(), Some(us(655_360)));
}

#[test]
fn rnr_retries_are_counted_separately_and_seven_means_no_limit() {
    for (rnr_retry, naks, error) in [(0, 1, true), (2, 3, true), (7, 100, false)] {
        let mut b = Bench::rc_with(|attr| (attr.rnr_retry, attr.retry_cnt) = (rnr_retry, 0));
        b.post(1, WrOp::Send, 8);
        for i in 0..naks {
            assert_eq!(b.sent().len(), 1, "transmission {i} with rnr_retry {rnr_retry}");
            b.recv(&Pkt::rnr(500, 1)).unwrap();
            b.at(Instant(b.now.0 + 10_000));
        }
        let expected: &[_] = if error { &[(1, WcStatus::RnrRetryExcErr)] } else { &[] };
        assert_eq!(b.send_wcs(), expected);
    }
}

/// Retries count for a silent peer; a peer that is not ready is not silent.
#[test]
fn ack_timeouts_between_rnr_naks_do_not_add_up() {
    let mut b = Bench::rc_with(|attr| (attr.rnr_retry, attr.retry_cnt) = (7, 1));
    b.post(1, WrOp::Send, 8);
    for _ in 0..5 {
        assert_eq!(b.sent().len(), 1);
        b.at(Instant(b.now.0 + T));
        assert!(!b.sent().is_empty(), "retransmitted after the timeout");
        b.recv(&Pkt::rnr(500, 1)).unwrap();
        b.at(Instant(b.now.0 + 10_000));
        assert_eq!(b.send_wcs(), []);
    }
    // A silent peer uses up the retries.
    b.sent();
    b.at(Instant(b.now.0 + T + AGAIN));
    assert_eq!(b.send_wcs(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn payload_bytes_are_counted_in_both_directions() {
    let mut b = Bench::rc();
    b.post(1, read(0), 2000);
    b.post(2, write(0), 1500);
    b.sent();
    b.recv(&response(Opcode::RC_READ_RESPONSE_FIRST, 500, 1, 1024)).unwrap();
    b.recv(&response(Opcode::RC_READ_RESPONSE_LAST, 501, 1, 976)).unwrap();
    assert_eq!((b.qp.counters().rcvd_bytes, b.qp.counters().sent_bytes), (2000, 1500));
    b.recv(&Pkt::new(Opcode::RC_WRITE_FIRST, 100).reth(REMOTE, RKEY, 1030).payload(1, 1024)).unwrap();
    b.recv(&Pkt::new(Opcode::RC_WRITE_LAST, 101).payload(2, 6)).unwrap();
    assert_eq!(b.qp.counters().rcvd_bytes, 2000 + 1030);
}

#[test]
fn a_fatal_nak_completes_the_request_that_it_names_in_error() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccessError, WcStatus::RemAccessErr),
        (NakCode::RemoteOperationalError, WcStatus::RemOpErr),
    ] {
        let mut b = Bench::rc();
        for i in 0..3 {
            b.post_flags(i, WrOp::Send, 8, SendFlags::empty()).unwrap();
        }
        b.sent();
        b.post_recv(9, 0, 8);
        b.recv(&Pkt::nak(501, code)).unwrap();
        let events = b.events();
        let statuses: Vec<_> = events
            .iter()
            .map(|event| match event {
                QpEvent::SendWc(wc) | QpEvent::RecvWc { wc, .. } => (wc.wr_id, wc.status),
                other => panic!("{other:?}"),
            })
            .collect();
        let flush = WcStatus::WrFlushErr;
        assert_eq!(statuses, [(1, status), (2, flush), (9, flush)], "errors complete even unsignalled ones");
        assert_eq!(b.qp.state(), QpState::Err);
        assert_eq!(b.sent(), NONE);
    }
}

#[test]
fn a_read_takes_as_many_psns_as_responses() {
    let mut b = Bench::rc();
    b.post(1, read(0), 2049);
    b.post(2, read(16), 0);
    b.post(3, WrOp::Send, 8);
    let sent = b.sent();
    assert_eq!(
        sent,
        [
            "READ Request 500 AckReq +0x0 len 2049",
            "READ Request 503 AckReq +0x10 len 0",
            "SEND Only 504 AckReq [8]"
        ]
    );
    assert_eq!(b.qp.packets_in_flight(), 5);
    b.batch(&[
        response(Opcode::RC_READ_RESPONSE_FIRST, 500, 1, 1024),
        response(Opcode::RC_READ_RESPONSE_MIDDLE, 501, 2, 1024),
        response(Opcode::RC_READ_RESPONSE_LAST, 502, 3, 1),
        response(Opcode::RC_READ_RESPONSE_ONLY, 503, 0, 0),
    ]);
    let events = b.events();
    let [QpEvent::SendWc(first), QpEvent::SendWc(second)] = events[..] else { panic!("{events:?}") };
    assert_eq!((first.wr_id, first.opcode, first.byte_len), (1, WcOpcode::RdmaRead, 2049));
    assert_eq!((second.wr_id, second.byte_len), (2, 0));
    assert_eq!(b.mem.local_at(LOCAL + 1023, 3), [1, 2, 2]);
    assert_eq!(b.mem.local_at(LOCAL + 2047, 3), [2, 3, 0]);
}

#[test]
fn a_large_read_is_split_into_requests_within_the_window() {
    let mut b = Bench::rc_with(|attr| attr.max_rd_atomic = 16);
    b.post(1, read(0), 512 * 1024);
    let sent = b.sent();
    assert_eq!(sent.len(), 4, "256 KiB");
    assert_eq!(sent[1], "READ Request 564 AckReq +0x10000 len 65536");
    assert_eq!(b.qp.packets_in_flight(), 256);
    for i in 0..9 {
        let first = if i == 0 { Opcode::RC_READ_RESPONSE_FIRST } else { Opcode::RC_READ_RESPONSE_MIDDLE };
        b.recv(&response(first, 500 + i, 0, 1024)).unwrap();
    }
    assert_eq!(b.sent(), NONE);
    b.recv(&response(Opcode::RC_READ_RESPONSE_MIDDLE, 509, 0, 1024)).unwrap();
    assert_eq!(b.sent(), ["READ Request 756 AckReq +0x40000 len 65536"]);
}

/// Responses that are here stay; one new READ request for each run of missing ones, once per loss.
#[test]
fn a_missing_read_response_is_requested_again_once() {
    let mut b = Bench::rc();
    b.post(1, read(0), 5000);
    b.sent();
    b.recv(&response(Opcode::RC_READ_RESPONSE_FIRST, 500, 1, 1024)).unwrap();
    b.batch(&[
        response(Opcode::RC_READ_RESPONSE_MIDDLE, 502, 3, 1024),
        response(Opcode::RC_READ_RESPONSE_LAST, 504, 5, 904),
    ]);
    assert_eq!(b.sent(), ["READ Request 501 AckReq +0x400 len 1024"]);
    assert_eq!(
        b.recv(&response(Opcode::RC_READ_RESPONSE_MIDDLE, 502, 9, 1024)),
        Err(DropReason::StaleResponse)
    );
    assert_eq!((b.sent(), b.events()), (vec![], vec![]));
    b.recv(&response(Opcode::RC_READ_RESPONSE_ONLY, 501, 2, 1024)).unwrap();
    assert_eq!(b.sent(), ["READ Request 503 AckReq +0xc00 len 1024"]);
    b.recv(&response(Opcode::RC_READ_RESPONSE_ONLY, 503, 4, 1024)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS)]);
    let parts = [vec![1; 1024], vec![2; 1024], vec![3; 1024], vec![4; 1024], vec![5; 904], vec![0]];
    assert_eq!(b.mem.local_at(LOCAL, 5001), parts.concat());
    assert!(b.qp.is_send_idle());
}

/// An ACK never completes a READ: it shows that the response was lost.
#[test]
fn an_ack_past_a_read_without_response_is_an_implied_nak() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 8);
    b.post(2, read(0), 8);
    b.post(3, WrOp::Send, 8);
    b.sent();
    b.recv(&Pkt::ack(502)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS)]);
    assert_eq!(b.sent(), ["READ Request 501 AckReq +0x0 len 8"]);
    b.recv(&Pkt::ack(502)).unwrap();
    assert_eq!(b.sent(), NONE, "once per loss");
    b.recv(&response(Opcode::RC_READ_RESPONSE_ONLY, 501, 1, 8)).unwrap();
    assert_eq!(b.send_wcs(), [(2, SUCCESS), (3, SUCCESS)], "the ACK is remembered");
}

#[test]
fn a_read_response_acknowledges_earlier_requests() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 8);
    b.post(2, read(0), 2048);
    b.sent();
    b.recv(&response(Opcode::RC_READ_RESPONSE_FIRST, 501, 1, 1024)).unwrap();
    assert_eq!(b.send_wcs(), [(1, SUCCESS)]);
}

#[test]
fn responses_that_do_not_fit_the_read_are_errors() {
    let only = Opcode::RC_READ_RESPONSE_ONLY;
    for (bad, status) in [
        (response(Opcode::RC_READ_RESPONSE_FIRST, 500, 1, 1020), WcStatus::LocLenErr),
        (response(only, 500, 1, 1024), WcStatus::BadRespErr),
        (Pkt::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, 500), WcStatus::BadRespErr),
    ] {
        let mut b = Bench::rc();
        b.post(1, read(0), 2048);
        b.sent();
        b.recv(&bad).unwrap();
        assert_eq!(b.send_wcs(), [(1, status)]);
        assert_eq!(b.qp.state(), QpState::Err);
    }
    let mut b = Bench::rc();
    b.post(1, fetch_add(1), 8);
    b.sent();
    b.recv(&response(only, 500, 1, 8)).unwrap();
    assert_eq!(b.send_wcs(), [(1, WcStatus::BadRespErr)]);
}

#[test]
fn an_atomic_result_is_written_in_host_order() {
    let mut b = Bench::rc();
    b.post(1, fetch_add(3), 8);
    b.post(2, WrOp::CompareSwap { remote_addr: REMOTE + 8, r_key: RKEY, compare: 1, swap: 2 }, 8);
    assert_eq!(b.sent(), ["Fetch Add 500 AckReq", "Compare Swap 501 AckReq"]);
    b.recv(&Pkt::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, 500).original(0x0102_0304_0506_0708)).unwrap();
    assert_eq!(b.mem.local_at(LOCAL, 8), 0x0102_0304_0506_0708_u64.to_ne_bytes());
    assert_eq!(b.send_wcs(), [(1, SUCCESS)]);
}

#[test]
fn at_most_max_rd_atomic_are_outstanding_and_the_queue_waits() {
    let mut b = Bench::rc_with(|attr| attr.max_rd_atomic = 3);
    for i in 0..4 {
        b.post(i, fetch_add(1), 8);
    }
    b.post(4, WrOp::Send, 8);
    assert_eq!(b.sent().len(), 3, "exactly three, not a power of two");
    assert!(!b.qp.wants_transmit());
    b.recv(&Pkt::new(Opcode::RC_ATOMIC_ACKNOWLEDGE, 500)).unwrap();
    assert_eq!(b.sent(), ["Fetch Add 503 AckReq", "SEND Only 504 AckReq [8]"]);
}

#[test]
fn a_read_on_a_connection_without_reads_fails_instead_of_waiting() {
    let mut b = Bench::rc_with(|attr| attr.max_rd_atomic = 0);
    b.post(1, read(0), 8);
    assert_eq!(b.sent(), NONE);
    assert_eq!(b.send_wcs(), [(1, WcStatus::LocQpOpErr)]);
}

#[test]
fn a_fence_waits_for_reads_and_nothing_else() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 8);
    b.post_flags(2, WrOp::Send, 8, SendFlags::FENCE).unwrap();
    b.post(3, read(0), 8);
    b.post_flags(4, WrOp::Send, 8, SendFlags::FENCE).unwrap();
    assert_eq!(b.sent().len(), 3);
    b.recv(&response(Opcode::RC_READ_RESPONSE_ONLY, 502, 1, 8)).unwrap();
    assert_eq!(b.sent(), ["SEND Only 503 AckReq [8]"]);
}

#[test]
fn local_invalidate_waits_for_earlier_requests_and_is_executed_once() {
    let mut b = Bench::rc();
    b.post(1, WrOp::Send, 8);
    b.post(2, WrOp::LocalInv(wire::Rkey(0x99)), 0);
    b.post(3, WrOp::Send, 8);
    assert_eq!(b.sent().len(), 1);
    assert!(b.mem.invalidated.borrow().is_empty());
    b.recv(&Pkt::ack(500)).unwrap();
    assert_eq!(b.sent(), ["SEND Only 501 AckReq [8]"], "it takes no PSN");
    b.at(ms(68));
    assert_eq!(b.sent(), ["SEND Only 501 AckReq [8]"]);
    assert_eq!(*b.mem.invalidated.borrow(), [0x99], "not again on a retry");
    assert_eq!(b.send_wcs(), [(1, SUCCESS), (2, SUCCESS)]);
    b.post(4, WrOp::LocalInv(RKEY), 0);
    b.recv(&Pkt::ack(501)).unwrap();
    b.sent();
    assert_eq!(b.send_wcs(), [(3, SUCCESS), (4, WcStatus::LocQpOpErr)]);
}

#[test]
fn a_local_error_is_reported_after_the_earlier_requests() {
    for bad in [
        Sge { addr: LOCAL, length: 8, lkey: wire::Lkey(3) },
        Sge { addr: LOCAL + SIZE as u64 - 4, length: 8, lkey: LKEY },
        Sge { addr: u64::MAX - 3, length: 8, lkey: LKEY },
    ] {
        for op in [WrOp::Send, write(0), read(0), fetch_add(1)] {
            let mut b = Bench::rc();
            b.post(1, WrOp::Send, 8);
            b.post_sges(2, op, &[bad], SendFlags::empty()).unwrap();
            b.post(3, WrOp::Send, 8);
            assert_eq!(b.sent().len(), 1);
            assert_eq!(b.events(), []);
            b.recv(&Pkt::ack(500)).unwrap();
            let flush = WcStatus::WrFlushErr;
            assert_eq!(b.send_wcs(), [(1, SUCCESS), (2, WcStatus::LocProtErr), (3, flush)]);
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_a_local_length_error() {
    let mut b = Bench::rc();
    let half = Sge { addr: LOCAL, length: 1 << 30, lkey: LKEY };
    let sges = [half, half, Sge { addr: LOCAL, length: 1, lkey: LKEY }];
    b.post_sges(1, WrOp::Send, &sges, SendFlags::empty()).unwrap();
    assert_eq!(b.sent(), NONE);
    assert_eq!(b.send_wcs(), [(1, WcStatus::LocLenErr)]);
}

#[test]
fn inline_data_is_copied_when_posted_and_needs_no_key() {
    let mut b = Bench::rc();
    b.mem.put_local(LOCAL, &[5; 64]);
    let sge = |length| [Sge { addr: LOCAL, length, lkey: wire::Lkey(0) }];
    b.post_sges(1, WrOp::Send, &sge(64), SendFlags::INLINE).unwrap();
    b.mem.put_local(LOCAL, &[6; 64]);
    assert_eq!(
        b.post_sges(2, WrOp::Send, &sge(65), SendFlags::INLINE).map_err(VerbsError::kind),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        b.post_sges(2, read(0), &sge(8), SendFlags::INLINE).map_err(VerbsError::kind),
        Err(Errno::EINVAL)
    );
    assert_eq!(b.sent_payload(), [5; 64]);
    b.at(ms(68));
    assert_eq!(b.sent_payload(), [5; 64], "again on a retry");
}
