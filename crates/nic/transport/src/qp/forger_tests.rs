//! Packets of a forger: it knows the addresses and the QPN, and does not see the traffic. Requests start at
//! PSN 100, responses at 500; the path MTU is 1024.

use wire::{DropReason, NakCode, Opcode};

use crate::in_flight::SPAN;
use crate::testing::{Bench, PORT, Pkt, REMOTE, RKEY, ms, write};
use crate::trust::{DISTRUST_NS, GUESSES_MAX, Half};
use crate::{Instant, Qp, QpEvent};

const NONE: [&str; 0] = [];
/// A port that the peer does not use.
const FOREIGN: u16 = 0xf00d;

impl Qp {
    /// As if the peer had sent a request and a response from this UDP source port.
    pub(crate) fn learn_port(&mut self, port: u16) {
        self.ep.trust.learn(Half::Requests, port);
        self.ep.trust.learn(Half::Responses, port);
    }
}

fn send(psn: u32, value: u8) -> Pkt {
    Pkt::new(Opcode::RC_SEND_ONLY, psn).payload(value, 8)
}

fn write_nothing(psn: u32) -> Pkt {
    Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE, RKEY, 0).ack_req()
}

/// One packet from another UDP source port than the peer's.
fn foreign(b: &mut Bench, packet: &Pkt) -> Result<(), DropReason> {
    b.from.src_port = FOREIGN;
    let result = b.recv(packet);
    b.from.src_port = PORT;
    result
}

/// As many guesses as make the connection distrust.
fn guesses(b: &mut Bench, from: u16) {
    b.from.src_port = from;
    for guess in 0..GUESSES_MAX {
        b.recv(&send(0x10_0000 + guess * SPAN as u32, 0xbb)).unwrap_err();
    }
    b.from.src_port = PORT;
    b.sent();
}

/// 24,000 packets with all PSNs at a distance of 768 reach every window of 768 PSNs. Meanwhile the peer sends
/// a message after every tenth.
fn spray(b: &mut Bench, src_port: u16) -> Vec<u8> {
    let mut delivered = Vec::new();
    let mut psn = 100;
    for packet in 0..24_000_u32 {
        b.now = Instant(1_000_000 + u64::from(packet) * 41_666);
        b.from.src_port = src_port;
        let _dropped = b.recv(&send((packet * SPAN as u32) & 0xff_ffff, 0xbb));
        b.from.src_port = PORT;
        if packet % 10 == 0 {
            b.post_recv(u64::from(packet), 0, 8);
            b.recv(&send(psn, 0xaa)).unwrap();
            psn += 1;
            b.sent();
            for event in b.events() {
                assert!(matches!(event, QpEvent::RecvWc { .. }), "{event:?}");
                delivered.push(b.mem.local.borrow()[0]);
            }
        }
    }
    assert_eq!(delivered.len(), 2400);
    delivered
}

#[test]
fn no_forged_message_is_delivered_among_24000_with_the_qpn_and_all_windows_of_768_psns() {
    // The second forger knows the peer's UDP source port, too.
    for src_port in [FOREIGN, PORT] {
        let mut b = Bench::rc();
        let delivered = spray(&mut b, src_port);
        let forged = delivered.iter().filter(|byte| **byte != 0xaa).count();
        assert_eq!(forged, 0, "from port {src_port:#x}");
        assert!(b.qp.counters().guessed_psn > 10_000 && b.qp.counters().distrusted == 1);
    }
}

#[test]
fn an_early_request_from_another_port_is_nakked_and_not_kept() {
    let mut b = Bench::rc();
    assert_eq!(foreign(&mut b, &send(101, 0xbb)), Err(DropReason::ForeignPort));
    assert_eq!(b.sent(), ["Acknowledge 100 NAK 0 msn 0"], "the peer may have changed its port");
    assert_eq!((b.qp.counters().kept_request, b.qp.counters().foreign_port), (0, 1));
}

/// A route, an address translator or a fallback of the peer may change its port.
#[test]
fn the_expected_request_from_another_port_is_executed_and_the_port_is_learned() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 8);
    b.post_recv(2, 8, 8);
    b.post_recv(3, 16, 8);
    assert_eq!(foreign(&mut b, &send(100, 1)), Ok(()));
    assert_eq!(foreign(&mut b, &send(102, 3)), Ok(()), "kept");
    assert_eq!(b.qp.counters().kept_request, 1);
    b.from.src_port = 0xc0df;
    assert_eq!(b.recv(&send(103, 4)), Err(DropReason::ForeignPort));
    assert_eq!(foreign(&mut b, &send(101, 2)), Ok(()));
    assert_eq!(b.events().len(), 3);
}

/// An adapter with a large send window: everything but the first packet arrives, the rest far ahead.
#[test]
fn a_peer_that_changes_its_port_with_many_packets_in_flight_recovers_by_going_back() {
    for known in [102..102, 102..868, 102..1000] {
        let mut b = Bench::rc();
        b.recv(&write_nothing(100)).unwrap();
        for psn in known.clone() {
            let _kept_or_too_far = b.recv(&write_nothing(psn));
        }
        for psn in known.end..3000 {
            foreign(&mut b, &write_nothing(psn)).unwrap_err();
        }
        assert!(b.sent().contains(&"Acknowledge 101 NAK 0 msn 1".to_owned()));
        assert_eq!((b.qp.counters().guessed_psn, b.qp.counters().distrusted), (1, 0));
        assert_eq!(foreign(&mut b, &write_nothing(101)), Ok(()));
        assert!(b.qp.psn_window().expected.value() > 101, "{known:?}");
    }
}

/// The same adapter, whose ACKs were lost: it retransmits requests that were executed long ago.
#[test]
fn a_peer_that_changes_its_port_and_retransmits_many_packets_recovers() {
    let mut b = Bench::rc();
    b.batch(&(100..1100).map(write_nothing).collect::<Vec<_>>());
    b.sent();
    for psn in 100..1100 {
        assert_eq!(foreign(&mut b, &write_nothing(psn)), Ok(()));
    }
    assert!(b.sent().contains(&"Acknowledge 1099 msn 1000".to_owned()));
    assert_eq!(foreign(&mut b, &write_nothing(1100)), Err(DropReason::ForeignPort), "counts up from a guess");
    assert_eq!(b.sent(), ["Acknowledge 1100 NAK 0 msn 1000"]);
    assert_eq!(foreign(&mut b, &write_nothing(1100)), Ok(()));
}

/// Otherwise one guess would reach every PSN.
#[test]
fn no_request_that_counts_up_from_a_guess_is_executed() {
    for step in 1..SPAN {
        let mut b = Bench::rc();
        b.recv(&write_nothing(100)).unwrap();
        b.post_recv(1, 0, 8);
        // They begin as a guess, and the expected packet is the last but one.
        let before = SPAN.div_ceil(step);
        for packet in 0..before + 2 {
            let distance = packet as i64 - before as i64;
            let psn = (101 + distance * step as i64).rem_euclid(1 << 24) as u32;
            let _duplicate_or_refused = foreign(&mut b, &send(psn, 0xbb));
        }
        assert_eq!(b.events(), [], "step {step}");
        assert_eq!(b.qp.counters().guessed_psn, 1);
    }
}

/// The peer changed its port after the ACK was lost.
#[test]
fn a_duplicate_from_another_port_gets_its_ack_again() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 8);
    b.recv(&send(100, 1).ack_req()).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 100 msn 1"]);
    assert_eq!(foreign(&mut b, &send(100, 1).ack_req()), Ok(()));
    assert_eq!(b.sent(), ["Acknowledge 100 msn 1"]);
    assert_eq!(b.events().len(), 1);
}

#[test]
fn after_guesses_only_the_expected_request_from_the_known_port_is_believed() {
    for guessed_from in [FOREIGN, PORT] {
        let mut b = Bench::rc();
        b.now = ms(5);
        b.post_recv(1, 0, 8);
        b.recv(&send(102, 3)).unwrap();
        b.sent();
        guesses(&mut b, guessed_from);
        assert_eq!((b.qp.counters().guessed_psn, b.qp.counters().distrusted), (u64::from(GUESSES_MAX), 1));
        assert_eq!(foreign(&mut b, &send(100, 0xbb)), Err(DropReason::ForeignPort));
        assert_eq!(foreign(&mut b, &send(99, 0xbb)), Err(DropReason::ForeignPort));
        assert_eq!(b.recv(&send(101, 2)), Err(DropReason::OutOfSequence), "early requests are not kept");
        b.recv(&send(100, 1)).unwrap();
        assert_eq!(b.events().len(), 1, "what was kept is dropped");
        b.now = b.now.plus_ns(DISTRUST_NS);
        b.post_recv(2, 0, 8);
        assert_eq!(foreign(&mut b, &send(101, 2)), Ok(()));
        assert_eq!(b.events().len(), 1);
    }
}

#[test]
fn copies_of_a_kept_request_that_differ_are_both_dropped() {
    let mut b = Bench::rc();
    for i in 0..3 {
        b.post_recv(i, 8 * i, 8);
    }
    b.recv(&send(101, 0xbb)).unwrap();
    assert_eq!(b.recv(&send(101, 2)), Err(DropReason::ConflictingPsn));
    assert_eq!(b.qp.counters().conflicting_psn, 1);
    b.recv(&send(102, 3)).unwrap();
    b.sent();
    b.recv(&send(100, 1)).unwrap();
    assert_eq!(b.events().len(), 1, "neither copy is executed");
    assert_eq!(b.sent(), ["Acknowledge 101 NAK 0 msn 1"], "and the peer is told that it is missing");
    b.recv(&send(101, 2)).unwrap();
    assert_eq!(b.events().len(), 2);
    assert_eq!(b.mem.local.borrow()[..24], [[1; 8], [2; 8], [3; 8]].concat());
}

/// A retransmission may ask for an ACK where the first copy did not.
#[test]
fn a_copy_that_differs_in_ack_req_is_no_conflict() {
    let mut b = Bench::rc();
    b.recv(&send(101, 2)).unwrap();
    b.recv(&send(101, 2).ack_req()).unwrap();
    assert_eq!(b.qp.counters().conflicting_psn, 0);
}

/// A forged request that waits for the connection to reach its PSN.
#[test]
fn a_request_is_not_kept_for_longer_than_a_second() {
    let mut b = Bench::rc();
    b.post_recv(1, 0, 8);
    b.recv(&send(101, 0xbb)).unwrap();
    b.now = Instant(1_000_000_000);
    b.recv(&send(100, 1)).unwrap();
    assert_eq!(b.events().len(), 1);
}

#[test]
fn a_response_from_another_port_is_believed_at_the_edges_of_the_window_or_repeated() {
    let mut b = Bench::rc();
    for i in 0..4 {
        b.post(i, write(0), 8);
    }
    b.sent();
    let nak = |psn| Pkt::nak(psn, NakCode::RemoteAccessError);
    assert_eq!(foreign(&mut b, &Pkt::ack(504)), Err(DropReason::ForeignPort), "not sent yet");
    assert_eq!(foreign(&mut b, &Pkt::ack(501)), Err(DropReason::ForeignPort));
    assert_eq!(foreign(&mut b, &Pkt::ack(0x80_0000)), Err(DropReason::GuessedPsn));
    assert_eq!(foreign(&mut b, &nak(502)), Err(DropReason::ForeignPort), "a guess came before");
    assert_eq!((b.events().len(), b.qp.counters().foreign_port), (0, 4));
    assert_eq!(foreign(&mut b, &Pkt::ack(501)), Ok(()), "the second in a row");
    assert_eq!(foreign(&mut b, &Pkt::ack(502)), Ok(()), "the port is learned");
    b.from.src_port = 0xc0df;
    assert_eq!(b.recv(&Pkt::ack(503)), Ok(()), "the response to the last request");
}

#[test]
fn after_guesses_no_response_from_another_port_is_believed() {
    let mut b = Bench::rc();
    b.post(0, write(0), 8);
    b.sent();
    guesses(&mut b, FOREIGN);
    assert_eq!(foreign(&mut b, &Pkt::ack(500)), Err(DropReason::ForeignPort));
    assert_eq!(b.recv(&Pkt::ack(500)), Ok(()));
}

/// Otherwise a forger slows the peer down by the CNPs of this side.
#[test]
fn a_marked_packet_from_another_port_causes_no_cnp() {
    let mut b = Bench::rc();
    b.from.tos = 3;
    foreign(&mut b, &Pkt::new(Opcode::RC_WRITE_ONLY, 99).reth(REMOTE, RKEY, 8).payload(1, 8)).unwrap();
    assert_eq!(b.qp.counters().np_ecn_marked_roce_packets, 0);
    b.qp.end_of_batch(b.now, false);
    assert!(b.sent().iter().all(|packet| !packet.contains("CNP")));
    assert_eq!(b.sent(), NONE);
}

/// What a forged request with each PSN around the expected one does: how many PSNs are executed, and kept.
fn targets(src_port: u16, before: impl Fn(&mut Bench)) -> (u32, u64) {
    let (mut executed, mut kept) = (0, 0);
    for distance in -1000_i32..1000 {
        let mut b = Bench::rc();
        b.now = ms(30);
        b.post_recv(0, 0, 8);
        before(&mut b);
        let expected = b.qp.psn_window().expected;
        let before = b.qp.counters().kept_request;
        b.from.src_port = src_port;
        let _refused = b.recv(&send(expected.advance(distance as u32).value(), 0xbb));
        executed += b.events().len() as u32;
        kept += b.qp.counters().kept_request - before;
    }
    (executed, kept)
}

/// The work factors of SECURITY.md divide 2^24 PSNs, and 2^14 ports where the port is known to be one of
/// RoCEv2, by these numbers.
#[test]
fn a_forged_request_has_as_many_targets_as_security_md_says() {
    let idle = |_: &mut Bench| ();
    let busy = |b: &mut Bench| {
        b.batch(
            &(100..600)
                .map(|psn| Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE, RKEY, 0))
                .collect::<Vec<_>>(),
        );
    };
    let attacked = |b: &mut Bench| guesses(b, FOREIGN);
    assert_eq!(targets(FOREIGN, idle), (1, 0), "another port, until 16 guesses");
    assert_eq!(targets(FOREIGN, attacked), (0, 0));
    assert_eq!(targets(PORT, attacked), (1, 0));
    assert_eq!(targets(PORT, idle), (1, 63));
    assert_eq!(targets(PORT, busy), (1, 767));
}

/// A forger that knows the peer's port has one guess a minute until the connection distrusts.
#[test]
fn one_guess_from_the_port_of_the_peer_is_enough_to_distrust() {
    let mut b = Bench::rc();
    b.recv(&send(0x80_0000, 0xbb)).unwrap_err();
    assert_eq!(b.recv(&send(101, 0xbb)), Err(DropReason::OutOfSequence));
    assert_eq!((b.qp.counters().kept_request, b.qp.counters().distrusted), (0, 1));
}

#[test]
fn one_packet_from_another_port_makes_no_connection_distrust() {
    for psn in [0x90_0000, 0x10_0000] {
        let mut b = Bench::rc();
        b.post_recv(1, 0, 8);
        b.recv(&send(100, 0xaa)).unwrap();
        assert_eq!(foreign(&mut b, &send(psn, 0xbb)), Err(DropReason::GuessedPsn));
        assert_eq!((b.qp.counters().guessed_psn, b.qp.counters().distrusted), (1, 0));
    }
}
