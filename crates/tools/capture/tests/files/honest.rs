//! The analysis claims what the capture shows, and nothing else: one synthesised capture for each claim.

use roxie_capture::analyse::{Origin, Verdict};
use wire::Opcode;

use crate::synth::{ACK, NAK_SEQUENCE, OUTER, RNR_10_MS, Talk, aeth, reth};
use crate::verdicts::analyse;

fn kinds(verdict: &Verdict) -> Vec<&'static str> {
    verdict.findings.iter().map(|finding| finding.kind.name()).collect()
}

fn first(talk: &Talk) -> (String, String) {
    let verdict = analyse(&talk.file());
    let kind = verdict.first().map_or("", |finding| finding.kind.name());
    (kind.to_owned(), verdict.text())
}

#[test]
fn copies_of_a_packet_at_two_points_are_counted_once() {
    for ids in [true, false] {
        let mut talk = if ids { Talk::new() } else { Talk::new().without_ids() };
        for n in 0..20 {
            talk.send(n).out().again(0, Some(false));
            talk.ack(n, ACK, n + 1).out().again(0, Some(false));
        }
        // A retransmission with the same bytes: both transmissions are captured twice.
        talk.send(20).out().again(0, Some(false)).wait_us(30_000);
        talk.send(20).out().again(0, Some(false)).ack(20, ACK, 21).out().again(0, Some(false));
        let verdict = analyse(&talk.file());
        assert_eq!(verdict.totals.seen_twice, 43);
        assert_eq!(kinds(&verdict), ["lost-request"], "{}", verdict.text());
        assert_eq!(verdict.directions[0].counts.packets, 22);
    }
}

#[test]
fn a_packet_that_arrives_twice_at_one_point_is_a_duplicate() {
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).out().again(0, Some(false)).again(0, Some(false)).ack(5, ACK, 6);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "duplicated", "{text}");
}

#[test]
fn packets_that_two_interfaces_captured_are_counted_once() {
    let mut talk = Talk::new();
    for n in 0..10 {
        talk.send(n).again(1, None).ack(n, ACK, n + 1).again(1, None);
    }
    let verdict = analyse(&talk.file());
    assert_eq!((verdict.totals.seen_twice, kinds(&verdict)), (20, vec![]), "{}", verdict.text());
}

#[test]
fn a_capture_of_every_packet_twice_does_not_blame_the_network() {
    let mut talk = Talk::new();
    for n in 0..20 {
        talk.send(n).again(0, None).ack(n, ACK, n + 1).again(0, None);
    }
    let (kind, text) = first(&talk);
    assert_eq!(kind, "duplicated");
    assert!(text.contains("the capture point sees each packet twice"), "{text}");
    assert!(!text.contains("device between the hosts"), "{text}");
}

#[test]
fn a_nak_for_a_number_never_sent_names_the_two_sequence_numbers() {
    let mut talk = Talk::new();
    for _ in 0..4 {
        talk.send(100).ack(5000, NAK_SEQUENCE, 0).wait_us(60_000);
    }
    let (kind, text) = first(&talk);
    assert_eq!(kind, "wrong-psn", "{text}");
    assert!(
        text.contains("PSN 100") && text.contains("expects PSN 5000") && text.contains("packet 2"),
        "{text}"
    );
    assert!(!text.contains("No answer"), "{text}");
}

#[test]
fn an_ack_for_a_number_never_sent_is_a_finding() {
    let mut talk = Talk::new();
    talk.sends(10, 5).send(15).ack(900, ACK, 7).send(16).ack(16, ACK, 7);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "unknown-ack", "{text}");
    assert!(text.contains("PSN 900") && text.contains("packet 12"), "{text}");
    // The other end expects numbers behind those of the requester, and takes the requests for duplicates.
    let mut talk = Talk::new();
    for n in 0..4 {
        talk.send(100 + n).ack(4999, ACK, 0).wait_us(60_000);
    }
    let (kind, text) = first(&talk);
    assert_eq!(kind, "unknown-ack", "{text}");
    assert!(text.contains("rq_psn"), "{text}");
}

#[test]
fn a_refusal_of_a_request_that_was_not_captured_is_no_ack() {
    for (syndrome, want) in [(RNR_10_MS, "receiver-not-ready"), (0x62, "access-refused")] {
        let mut talk = Talk::new();
        talk.ack(5000, syndrome, 0).send(100).wait_us(9000);
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), [want], "{}", verdict.text());
    }
}

#[test]
fn an_ack_captured_before_its_request_is_no_finding() {
    let mut talk = Talk::new();
    talk.sends(10, 5).ack(15, ACK, 6).send(15).sends(16, 1);
    talk.packets.truncate(12);
    assert_eq!(kinds(&analyse(&talk.file())), [] as [&str; 0]);
}

#[test]
fn a_requester_with_rnr_retry_7_has_not_given_up() {
    let mut talk = Talk::new();
    for _ in 0..12 {
        talk.send(0).ack(0, RNR_10_MS, 0).wait_us(11_000);
    }
    let (kind, text) = first(&talk);
    assert_eq!(kind, "receiver-not-ready", "{text}");
    assert!(text.contains("retries without limit") && text.contains("rnr_retry 7"), "{text}");
    let mut talk = Talk::new();
    for _ in 0..4 {
        talk.send(0).ack(0, RNR_10_MS, 0).wait_us(11_000);
    }
    let (kind, text) = first(&talk);
    assert_eq!(kind, "receiver-never-ready", "{text}");
    assert!(text.contains("or the capture ends before"), "{text}");
}

#[test]
fn a_capture_cut_inside_the_headers_is_inconclusive() {
    let mut talk = Talk::new();
    talk.sends(0, 20).request(Opcode::RC_READ_REQUEST, 20, true, &reth(0, 64), &[]);
    talk.answer(Opcode::RC_READ_RESPONSE_ONLY, 20, &aeth(ACK, 21), &[1; 64])
        .send(21)
        .wait_us(50_000)
        .send(21);
    for snap in [OUTER, OUTER + 4, OUTER + 12] {
        let verdict = analyse(&talk.file_cut(snap));
        assert_eq!(kinds(&verdict), ["capture-loss"], "{snap}: {}", verdict.text());
        let text = verdict.text();
        assert!(text.contains("Inconclusive") && text.contains(&format!("{snap} bytes")), "{text}");
        assert!(
            verdict.next(Origin::File("x.pcap")).contains("-s headers"),
            "{}",
            verdict.next(Origin::File("x.pcap"))
        );
    }
    // All headers are there: only the payload and the ICRC are unknown.
    talk.packets.truncate(42);
    let verdict = analyse(&talk.file_cut(OUTER + 28));
    assert_eq!(kinds(&verdict), [] as [&str; 0], "{}", verdict.text());
}

#[test]
fn a_jump_of_the_message_number_is_a_finding() {
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).ack(5, ACK, 60).send(6).ack(6, ACK, 61);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "wrong-msn", "{text}");
    assert!(text.contains("from 5 to 60 between packets 10 and 12"), "{text}");
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).ack(5, ACK, 2).send(6).ack(6, ACK, 3);
    assert_eq!(first(&talk).0, "wrong-msn");
}

/// A gap report of roxie has a PSN in the place of the message number.
#[test]
fn a_gap_report_at_the_beginning_of_a_capture_is_no_wrong_message_number() {
    let mut talk = Talk::new();
    talk.send(2000).ack(2001 - 1536, ACK, 2000).send(2001).ack(2001, ACK, 61);
    assert_eq!(first(&talk).0, "");
}

/// A responder with selective repeat executes the messages behind a gap when the gap is filled.
#[test]
fn messages_that_were_missing_at_an_ack_count_for_the_next_message_number() {
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).send(8).ack(5, ACK, 6).ack(6, NAK_SEQUENCE, 6);
    talk.wait_us(500).send(6).wait_us(500).send(7).ack(8, ACK, 9);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), ["lost-request", "lost-request"], "{}", verdict.text());
}

#[test]
fn an_only_after_a_first_is_a_finding() {
    let mut talk = Talk::new();
    talk.request(Opcode::RC_SEND_FIRST, 0, false, &[], &[1; 256]);
    talk.request(Opcode::RC_SEND_ONLY, 1, true, &[], &[2; 100]).ack(1, ACK, 1);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "opcode-sequence", "{text}");
    assert!(text.contains("packet 2") && text.contains("packet 1"), "{text}");
    assert!(text.contains("should refuse"), "the responder of this capture does not: {text}");
    let mut talk = Talk::new();
    talk.sends(0, 3).request(Opcode::RC_SEND_LAST, 3, true, &[], &[2; 100]).ack(3, ACK, 4);
    assert_eq!(first(&talk).0, "opcode-sequence");
    // Behind a missing packet, and at the beginning of the capture, a Last proves nothing.
    let mut talk = Talk::new();
    talk.request(Opcode::RC_SEND_LAST, 3, true, &[], &[2; 100]).ack(3, ACK, 4).sends(4, 2);
    talk.packets.truncate(2);
    assert_eq!(kinds(&analyse(&talk.file())), [] as [&str; 0]);
}

#[test]
fn a_length_that_disagrees_with_the_packets_is_a_finding() {
    let mut talk = Talk::new();
    talk.request(Opcode::RC_WRITE_ONLY, 0, true, &reth(0x1000, 99_999), &[1; 64]).ack(0, ACK, 1);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "wrong-length", "{text}");
    assert!(text.contains("99999") && text.contains("64 bytes"), "{text}");
    let mut talk = Talk::new();
    talk.request(Opcode::RC_READ_REQUEST, 0, true, &reth(0x1000, 100), &[]);
    talk.answer(Opcode::RC_READ_RESPONSE_ONLY, 0, &aeth(ACK, 1), &[1; 64]);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "wrong-length", "{text}");
    assert!(text.contains("100") && text.contains("64"), "{text}");
}

#[test]
fn a_packet_that_only_the_file_lacks_makes_the_capture_incomplete() {
    // A READ response that is not requested again.
    let mut talk = Talk::new();
    talk.sends(0, 2).request(Opcode::RC_READ_REQUEST, 2, true, &reth(0, 700), &[]);
    talk.answer(Opcode::RC_READ_RESPONSE_FIRST, 2, &aeth(ACK, 3), &[1; 256]);
    talk.answer(Opcode::RC_READ_RESPONSE_MIDDLE, 3, &[], &[1; 256]).unseen();
    talk.answer(Opcode::RC_READ_RESPONSE_LAST, 4, &aeth(ACK, 3), &[1; 188]).send(5).ack(5, ACK, 4);
    // A request that is acknowledged and not repeated.
    let mut sends = Talk::new();
    sends.sends(0, 5).send(5).unseen().ack(5, ACK, 6).sends(6, 0).send(6).ack(6, ACK, 7);
    for talk in [talk, sends] {
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), ["capture-loss"], "{}", verdict.text());
        let text = verdict.text();
        assert!(text.contains("not seen in this capture") && text.contains(": 1 re"), "{text}");
    }
}

#[test]
fn wrong_checksums_are_one_finding_with_a_count() {
    let mut talk = Talk::new();
    talk.sends(0, 5);
    for n in 5..10 {
        talk.send(n).damage(8).wait_us(50_000).send(n).ack(n, ACK, n + 1);
    }
    let verdict = analyse(&talk.file());
    let bad: Vec<u64> =
        verdict.findings.iter().filter(|f| f.kind.name() == "bad-icrc").map(|f| f.count).collect();
    assert_eq!(bad, [5], "{}", verdict.text());
    // All packets are wrong, and the responder accepts them.
    assert!(verdict.text().contains("A receiver should drop it silently"), "{}", verdict.text());
    let mut talk = Talk::new();
    for n in 0..10 {
        talk.send(n).damage(1).ack(n, ACK, n + 1);
    }
    let (kind, text) = first(&talk);
    assert_eq!(kind, "bad-icrc");
    assert!(text.contains("All 10 packets") && text.contains("were acknowledged"), "{text}");
    let mut talk = Talk::new();
    talk.send(0).damage(1).ack(0, ACK, 1);
    let (_, text) = first(&talk);
    assert!(text.contains("The only packet") && text.contains("and was acknowledged"), "{text}");
}

#[test]
fn a_stall_is_a_finding() {
    // Between a request and its answer.
    let mut talk = Talk::new();
    talk.sends(0, 10).send(10).wait_us(3_000_000).ack(10, ACK, 11);
    assert_eq!(first(&talk).0, "slow");
    // Inside a message.
    let mut talk = Talk::new();
    talk.sends(0, 10).request(Opcode::RC_SEND_FIRST, 10, false, &[], &[1; 256]).wait_us(3_000_000);
    talk.request(Opcode::RC_SEND_LAST, 11, true, &[], &[1; 100]).ack(11, ACK, 11);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "slow", "{text}");
    assert!(text.contains("10.0.0.1") && text.contains("3.0"), "{text}");
    // Between busy periods.
    let mut talk = Talk::new();
    talk.sends(0, 20).wait_us(3_000_000);
    for n in 20..40 {
        talk.send(n).ack(n, ACK, n + 1);
    }
    let (kind, text) = first(&talk);
    assert_eq!(kind, "pause", "{text}");
    assert!(text.contains("No request was open"), "{text}");
    // A program that sends a message each second does not stall.
    let mut talk = Talk::new();
    for n in 0..40 {
        talk.send(n).ack(n, ACK, n + 1).wait_us(1_100_000);
    }
    assert_eq!(kinds(&analyse(&talk.file())), [] as [&str; 0]);
    // The capture goes on without the answer.
    let mut talk = Talk::new();
    talk.sends(0, 10).send(10).wait_us(3_000_000).request(Opcode::RC_SEND_ONLY, 11, false, &[], &[1; 4]);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "slow", "{text}");
    assert!(text.contains("not seen in this capture"), "{text}");
}

#[test]
fn a_retransmission_with_other_bytes_is_a_finding() {
    let mut talk = Talk::new();
    talk.sends(0, 5).request(Opcode::RC_SEND_ONLY, 5, true, &[], &[1; 100]).wait_us(50_000);
    talk.request(Opcode::RC_SEND_ONLY, 5, true, &[], &[2; 100]).ack(5, ACK, 6);
    let verdict = analyse(&talk.file());
    assert!(kinds(&verdict).contains(&"changed-bytes"), "{:?}", kinds(&verdict));
    // Less bytes than before.
    let mut talk = Talk::new();
    talk.sends(0, 5).request(Opcode::RC_SEND_ONLY, 5, true, &[], &[1; 100]).wait_us(50_000);
    talk.request(Opcode::RC_SEND_ONLY, 5, true, &[], &[1; 80]).ack(5, ACK, 6);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "changed-bytes", "{text}");
    assert!(text.contains("96 instead of 116 bytes"), "{text}");
    // The requester may set AckReq when it retransmits.
    let mut talk = Talk::new();
    talk.sends(0, 5).request(Opcode::RC_SEND_ONLY, 5, false, &[], &[1; 100]).wait_us(50_000);
    talk.request(Opcode::RC_SEND_ONLY, 5, true, &[], &[1; 100]).ack(5, ACK, 6);
    let verdict = analyse(&talk.file());
    assert!(!kinds(&verdict).contains(&"changed-bytes"), "{:?}", kinds(&verdict));
}

#[test]
fn a_retransmission_with_ip_options_is_not_compared_by_its_icrc() {
    // No ICRC is specified for packets with IP options: the identification may change it in any way.
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).with_ip_options().wait_us(50_000).send(5).with_ip_options().ack(5, ACK, 6);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), ["lost-request"], "{}", verdict.text());
}

#[test]
fn a_quick_retransmission_without_a_nak_does_not_claim_a_timeout() {
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).send(7).send(6).ack(7, ACK, 8);
    let (kind, text) = first(&talk);
    assert_eq!(kind, "lost-request", "{text}");
    assert!(text.contains("no NAK that requested it was seen in this capture"), "{text}");
    assert!(!text.contains("in time"), "{text}");
}

#[test]
fn a_part_of_a_read_that_is_requested_again_completes_it() {
    let mut talk = Talk::new();
    talk.request(Opcode::RC_READ_REQUEST, 0, true, &reth(0, 1000), &[]);
    talk.answer(Opcode::RC_READ_RESPONSE_FIRST, 0, &aeth(ACK, 1), &[1; 256]);
    talk.answer(Opcode::RC_READ_RESPONSE_MIDDLE, 1, &[], &[1; 256]).unseen();
    talk.answer(Opcode::RC_READ_RESPONSE_MIDDLE, 2, &[], &[1; 256]);
    talk.answer(Opcode::RC_READ_RESPONSE_LAST, 3, &aeth(ACK, 1), &[1; 232]).wait_us(900);
    talk.request(Opcode::RC_READ_REQUEST, 1, true, &reth(256, 256), &[]);
    talk.answer(Opcode::RC_READ_RESPONSE_ONLY, 1, &aeth(ACK, 1), &[1; 256]);
    talk.send(4).ack(4, ACK, 2);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), ["lost-response"], "{}", verdict.text());
}

#[test]
fn equal_packets_of_one_receive_batch_are_duplicates() {
    // The segments of a burst have one time and identifications that count up.
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).send(5).ack(5, ACK, 6).send(6).ack(6, ACK, 7);
    talk.packets[11].ns = talk.packets[10].ns;
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), ["duplicated"], "{}", verdict.text());
}

#[test]
fn the_identification_tells_a_duplicate_from_a_retransmission() {
    // A quick retransmission is a new packet of the sender.
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).wait_us(50).send(5).ack(5, ACK, 6);
    let verdict = analyse(&talk.file());
    assert!(!kinds(&verdict).contains(&"duplicated"), "{:?}", kinds(&verdict));
    assert_eq!(verdict.directions[0].counts.resent, 1);
    // A late duplicate is the same packet.
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).ack(5, ACK, 6).sends(6, 0);
    let copy = talk.packets[10].clone();
    talk.wait_us(5000).send(6).ack(6, ACK, 7);
    let ns = talk.packets[13].ns + 1000;
    talk.packets.push(crate::synth::Captured { ns, ..copy });
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), ["duplicated"], "{}", verdict.text());
    assert_eq!(verdict.directions[0].counts.resent, 0);
}

#[test]
fn equal_findings_are_one_with_a_count() {
    let mut talk = Talk::new();
    for n in 0..6 {
        talk.send(n).ack(n, ACK, n + 1).wait_us(50_000).send(n).ack(n, ACK, n + 1);
    }
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), ["lost-ack"]);
    assert_eq!(verdict.findings[0].count, 6);
    assert_eq!(verdict.findings[0].also.len(), 5);
    assert!(verdict.text().contains("6 times"), "{}", verdict.text());
}

#[test]
fn a_capture_of_one_direction_is_inconclusive() {
    for answers in [false, true] {
        let mut talk = Talk::new();
        talk.sends(0, 20);
        let mut at = 0;
        talk.packets.retain(|_| {
            at += 1;
            (at % 2 == 0) == answers
        });
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), ["capture-loss"], "{}", verdict.text());
        assert!(verdict.text().contains("one direction"), "{}", verdict.text());
    }
}

#[test]
fn the_end_of_the_capture_is_no_answer_of_the_peer() {
    let mut talk = Talk::new();
    talk.sends(0, 20).send(20);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [] as [&str; 0]);
    assert!(verdict.text().contains("the answer to a request is not in"), "{}", verdict.text());
    assert_eq!(verdict.confidence().name(), "medium");
}

#[test]
fn a_single_request_without_an_answer_is_no_proof_of_health() {
    let mut talk = Talk::new();
    talk.send(0);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [] as [&str; 0]);
    assert!(verdict.text().contains("the answer to a request is not in"), "{}", verdict.text());
    assert_eq!(verdict.confidence().name(), "medium");
}

#[test]
fn the_verdict_has_a_confidence_and_the_next_command() {
    let mut talk = Talk::new();
    talk.sends(0, 5);
    let verdict = analyse(&talk.file());
    assert_eq!(verdict.confidence().name(), "high");
    assert!(
        verdict.next(Origin::File("x.pcapng")).contains("roxie capture report x.pcapng"),
        "{}",
        verdict.next(Origin::File("x.pcapng"))
    );
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).ack(5, ACK, 6).wait_us(50_000).send(5).ack(5, ACK, 6);
    let verdict = analyse(&talk.file());
    assert_eq!(verdict.confidence().name(), "medium");
    assert_eq!(
        verdict.next(Origin::File("x.pcapng")),
        "roxie capture read x.pcapng --packet 11..14 -t delta"
    );
    assert_eq!(
        verdict.next(Origin::File("a b.pcapng")),
        "roxie capture read 'a b.pcapng' --packet 11..14 -t delta"
    );
    assert!(verdict.next(Origin::Live("-i eth0")).starts_with("roxie capture record -i eth0 "));
    let json = verdict.json(Origin::File("x.pcapng"));
    assert_eq!(json["confidence"], "medium");
    assert!(json["next"].as_str().is_some_and(|next| next.starts_with("roxie capture read")));
}
