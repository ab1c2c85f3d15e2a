//! What the standard leaves to the sender proves nothing, and the answer of the receiver outweighs a rule.

use roxie_capture::analyse::{Confidence, Verdict};
use wire::Opcode;

use crate::synth::{ACK, NAK_SEQUENCE, RNR_10_MS, Talk, aeth, reth};
use crate::verdicts::analyse;

/// IPv4 identifications: the first one and the step. Counted, constant, zero, and as good as random.
const IDS: [(u16, u16); 5] = [(1, 1), (77, 0), (0, 0), (9, 40_503), (9, 25_033)];

fn kinds(verdict: &Verdict) -> Vec<&'static str> {
    verdict.findings.iter().map(|finding| finding.kind.name()).collect()
}

/// Every form of identification gives these kinds of findings.
fn all(want: &[&str], add: impl Fn(&mut Talk)) {
    for (id, step) in IDS {
        let mut talk = Talk::new().with_ids(id, step);
        add(&mut talk);
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), want, "{id} + {step}: {}", verdict.text());
    }
}

#[test]
fn retransmissions_are_told_from_duplicates_without_identifications() {
    // Go-back-N after a NAK.
    all(&["lost-request"], |talk| {
        talk.sends(0, 5).send(5).send(6).send(7).ack(5, NAK_SEQUENCE, 5);
        talk.send(5).send(6).send(7).ack(7, ACK, 8);
    });
    // A timeout.
    all(&["lost-request"], |talk| {
        talk.sends(0, 5).send(5).wait_us(20_000).send(5).ack(5, ACK, 6);
    });
    // A receiver that is not ready.
    all(&["receiver-not-ready"], |talk| {
        talk.sends(0, 5).send(5).send(6).ack(5, RNR_10_MS, 5).wait_us(10_000);
        talk.send(5).send(6).ack(6, ACK, 7);
    });
    // The first packet of a capture.
    all(&["receiver-not-ready"], |talk| {
        talk.send(0).ack(0, RNR_10_MS, 0).wait_us(10_000).send(0).ack(0, ACK, 1);
    });
    // A packet out of order.
    all(&["reordered"], |talk| {
        talk.sends(0, 6);
        let at = talk.packets.len();
        talk.send(6).send(7).ack(7, ACK, 8);
        talk.packets.swap(at, at + 1);
        let ns = [talk.packets[at + 1].ns, talk.packets[at].ns];
        (talk.packets[at].ns, talk.packets[at + 1].ns) = (ns[0], ns[1]);
    });
}

#[test]
fn a_responder_that_leaves_the_message_number_out_is_no_finding() {
    // Constant, zero, random, and the number of packets.
    for msn in [|_| 9, |_| 0, |n: u32| n.wrapping_mul(0x9e_3779) & 0xff_ffff, |n: u32| 3 * n + 3] {
        let mut talk = Talk::new();
        for n in 0..12 {
            for part in 0..3 {
                let opcode =
                    [Opcode::RC_SEND_FIRST, Opcode::RC_SEND_MIDDLE, Opcode::RC_SEND_LAST][part as usize];
                talk.request(opcode, 3 * n + part, part == 2, &[], &[1; 256]);
            }
            talk.ack(3 * n + 2, ACK, msn(n));
        }
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), [] as [&str; 0], "{}", verdict.text());
    }
}

#[test]
fn acknowledged_packets_are_not_malformed() {
    // Pad counts without payload, in ACKs and in a WRITE of no bytes.
    let mut talk = Talk::new();
    for n in 0..6 {
        talk.request(Opcode::RC_WRITE_ONLY, n, true, &reth(0, 0), &[]).change(|packet| packet[1] |= 0x10);
        talk.ack(n, ACK, n + 1).change(|packet| packet[1] |= 0x20);
    }
    let verdict = analyse(&talk.file());
    assert_eq!((kinds(&verdict), verdict.confidence().name()), (vec![], "high"), "{}", verdict.text());
    // A path MTU that the IBA does not have.
    let mut talk = Talk::new();
    for n in 0..6 {
        talk.request(Opcode::RC_SEND_FIRST, 2 * n, false, &[], &[1; 1000]);
        talk.request(Opcode::RC_SEND_LAST, 2 * n + 1, true, &[], &[1; 200]).ack(2 * n + 1, ACK, n + 1);
    }
    assert_eq!(kinds(&analyse(&talk.file())), [] as [&str; 0]);
    // Opcodes of a manufacturer, a reserved opcode and another version of the header.
    let changes: [fn(&mut [u8]); 3] =
        [|packet| packet[0] = 0xc5, |packet| packet[0] = 0x1f, |packet| packet[1] |= 1];
    for (number, change) in changes.into_iter().enumerate() {
        let mut talk = Talk::new();
        talk.sends(0, 3).send(3).change(change).ack(3, ACK, 4).sends(4, 0);
        talk.send(4).ack(4, ACK, 5);
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), [] as [&str; 0], "{number}: {}", verdict.text());
        assert_eq!(verdict.totals.foreign, u64::from(number == 0));
        // Nothing is known of the contents of a manufacturer's packet.
        let confidence = if number == 0 { "medium" } else { "high" };
        assert_eq!(verdict.confidence().name(), confidence, "{number}: {}", verdict.text());
    }
}

#[test]
fn packets_that_the_receiver_does_not_acknowledge_are_malformed() {
    let mut talk = Talk::new();
    talk.sends(0, 3).send(3).change(|packet| packet[0] = 0x1f).wait_us(20_000).send(3).ack(3, ACK, 4);
    let verdict = analyse(&talk.file());
    assert_eq!(verdict.first().map(|first| first.kind.name()), Some("malformed"), "{}", verdict.text());
    assert!(!verdict.text().contains("drops"), "the capture does not show it: {}", verdict.text());
    let mut talk = Talk::new();
    talk.request(Opcode::RC_SEND_FIRST, 0, false, &[], &[1; 1000]);
    talk.request(Opcode::RC_SEND_LAST, 1, true, &[], &[1; 200]).answer(
        Opcode::RC_ACKNOWLEDGE,
        0,
        &aeth(0x61, 0),
        &[],
    );
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), ["wrong-mtu", "request-refused"], "{}", verdict.text());
}

/// Only a request uses a sequence number.
#[test]
fn malformed_responses_and_datagrams_are_no_requests() {
    for opcode in [Opcode::RC_ACKNOWLEDGE, Opcode::UD_SEND_ONLY, Opcode::CNP] {
        // Both ends send requests.
        let mut talk = Talk::new();
        for psn in 0..4 {
            talk.send(psn).ack(psn, ACK, psn + 1);
            talk.answer(Opcode::RC_SEND_ONLY, psn, &[], &[9; 100]).change(|packet| packet[8] |= 0x80);
            talk.request(Opcode::RC_ACKNOWLEDGE, psn, false, &aeth(ACK, psn + 1), &[]);
            if psn == 2 {
                // A header of another version.
                talk.answer(opcode, 3, &aeth(ACK, 4), &[]).change(|packet| packet[1] |= 1);
            }
        }
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), ["malformed"], "{opcode}: {}", verdict.text());
        let counts =
            verdict.directions.iter().map(|direction| (direction.counts.begun(), direction.counts.resent));
        assert_eq!(counts.collect::<Vec<_>>(), [(4, 0), (4, 0)], "{opcode}");
    }
}

/// The numbers and bytes of a heartbeat may be constant.
#[test]
fn equal_datagrams_are_duplicates_only_if_the_identification_and_the_time_tell() {
    let heartbeats = |ids: (u16, u16), wait_us: u64, copy_after_us: Option<u64>| {
        let mut talk = Talk::new().with_ids(ids.0, ids.1);
        for _ in 0..6 {
            let deth = [0, 0, 0, 9, 0, 0, 0, 0x11];
            talk.request(Opcode::UD_SEND_ONLY, 7, false, &deth, &[1; 64]).wait_us(wait_us);
        }
        if let Some(us) = copy_after_us {
            talk.wait_us(us).again(0, None);
        }
        let verdict = analyse(&talk.file());
        let confidence = verdict.first().map(|finding| finding.confidence);
        (kinds(&verdict), confidence, verdict.directions[0].counts.begun())
    };
    for (id, step) in IDS {
        assert_eq!(heartbeats((id, step), 100_000, None), (vec![], None, 6), "{id} + {step}");
        let copied = heartbeats((id, step), 100_000, Some(0));
        assert_eq!(copied, (vec![], None, 7), "{id} + {step}: long after");
    }
    assert_eq!(heartbeats((1, 1), 100, Some(9000)), (vec!["duplicated"], Some(Confidence::Medium), 6));
    assert_eq!(heartbeats((0, 0), 300, None), (vec![], None, 6));
    assert_eq!(heartbeats((0, 0), 100, None), (vec!["duplicated"], Some(Confidence::Low), 1));
}

#[test]
fn findings_beyond_those_that_wait_for_the_receiver_are_doubtful() {
    let mut talk = Talk::new();
    for psn in 0..71 {
        talk.request(Opcode(if psn == 0 { 4 } else { 0x1f }), psn, psn == 70, &[], &[1; 100]);
    }
    talk.ack(70, ACK, 71);
    let verdict = analyse(&talk.file());
    assert_eq!((kinds(&verdict), verdict.confidence()), (vec!["malformed"], Confidence::Low));
    assert_eq!(verdict.findings[0].count, 6, "{}", verdict.text());
}

#[test]
fn a_violated_rule_that_the_receiver_accepts_is_doubtful() {
    let mut talk = Talk::new();
    talk.request(Opcode::RC_WRITE_ONLY, 0, true, &reth(0x1000, 99), &[1; 64]).ack(0, ACK, 1);
    let verdict = analyse(&talk.file());
    assert_eq!((kinds(&verdict), verdict.confidence()), (vec!["wrong-length"], Confidence::Low));
    assert!(verdict.text().contains("acknowledged it in packet 2"), "{}", verdict.text());
}
