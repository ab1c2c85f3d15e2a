//! Anchors of findings, equal findings, late answers and latencies.

use roxie_capture::analyse::Verdict;
use wire::Opcode;

use crate::synth::{ACK, NAK_SEQUENCE, Talk, reth};
use crate::verdicts::analyse;

fn kinds(verdict: &Verdict) -> Vec<(&'static str, u64, u64)> {
    verdict.findings.iter().map(|finding| (finding.kind.name(), finding.at.number, finding.count)).collect()
}

#[test]
fn congestion_findings_point_at_the_first_sign() {
    let mut talk = Talk::new();
    talk.sends(0, 4).answer(Opcode::CNP, 0, &[0; 16], &[]).answer(Opcode::CNP, 0, &[0; 16], &[]);
    assert_eq!(kinds(&analyse(&talk.file())), [("congestion", 9, 1)]);
    let mut talk = Talk::new();
    talk.sends(0, 4);
    for packet in [4, 6] {
        // The ICRC does not cover the traffic class.
        talk.packets[packet].frame[15] |= 3;
    }
    assert_eq!(kinds(&analyse(&talk.file())), [("congestion", 5, 1)]);
}

#[test]
fn findings_that_differ_in_units_are_one() {
    let mut talk = Talk::new();
    for (n, wait_us) in [(0, 900), (1, 1500), (2, 15_000), (3, 1_200_000), (4, 640)] {
        talk.send(n).ack(n, ACK, n + 1).wait_us(wait_us).send(n).ack(n, ACK, n + 1);
    }
    // One packet and several.
    talk.request(Opcode::RC_WRITE_ONLY, 5, true, &reth(0, 64), &[1; 64]).wait_us(9000);
    talk.request(Opcode::RC_WRITE_ONLY, 5, true, &reth(0, 64), &[1; 64]).ack(5, ACK, 6);
    for part in [false, true] {
        talk.wait_us(u64::from(part) * 900);
        talk.request(Opcode::RC_WRITE_FIRST, 6, false, &reth(0, 512), &[1; 256]);
        talk.request(Opcode::RC_WRITE_LAST, 7, true, &[], &[1; 256]);
    }
    talk.ack(7, ACK, 7);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [("lost-ack", 2, 5), ("lost-request", 21, 2)], "{:?}", verdict.findings);
}

#[test]
fn a_request_with_an_ack_for_each_transmission_was_not_lost() {
    let mut talk = Talk::new();
    talk.sends(0, 3).send(3).wait_us(3000).send(3).ack(3, ACK, 4);
    assert_eq!(kinds(&analyse(&talk.file())), [("lost-request", 7, 1)]);
    let verdict = analyse(&talk.ack(3, ACK, 4).file());
    assert_eq!(kinds(&verdict), [("late-answer", 7, 1)]);
    for words in ["packets 9 to 10", "so probably none was lost"] {
        assert!(verdict.text().contains(words), "{words}: {}", verdict.text());
    }
    assert!(!verdict.text().contains("No ACK"), "{}", verdict.text());
}

#[test]
fn the_latency_of_a_message_includes_the_wait_for_retransmissions_inside_it() {
    let mut talk = Talk::new();
    talk.sends(0, 3);
    talk.request(Opcode::RC_WRITE_FIRST, 3, true, &reth(0, 768), &[1; 256]).wait_us(274_000);
    talk.request(Opcode::RC_WRITE_FIRST, 3, true, &reth(0, 768), &[1; 256]);
    talk.request(Opcode::RC_WRITE_MIDDLE, 4, false, &[], &[1; 256]);
    talk.request(Opcode::RC_WRITE_LAST, 5, true, &[], &[1; 256]).wait_us(800).ack(5, ACK, 4);
    // The first transmission of a packet was not captured.
    let mut gap = Talk::new();
    gap.sends(0, 3);
    gap.request(Opcode::RC_WRITE_FIRST, 3, false, &reth(0, 1024), &[1; 256]);
    gap.request(Opcode::RC_WRITE_MIDDLE, 4, true, &[], &[1; 256]).unseen();
    gap.request(Opcode::RC_WRITE_MIDDLE, 5, true, &[], &[1; 256]).ack(4, NAK_SEQUENCE, 3).wait_us(274_000);
    gap.request(Opcode::RC_WRITE_MIDDLE, 4, true, &[], &[1; 256]);
    gap.request(Opcode::RC_WRITE_MIDDLE, 5, true, &[], &[1; 256]);
    gap.request(Opcode::RC_WRITE_LAST, 6, true, &[], &[1; 256]).ack(6, ACK, 4);
    for talk in [talk, gap] {
        let verdict = analyse(&talk.file());
        let most = verdict.directions[0].counts.latency.max();
        assert!((274_000_000..276_000_000).contains(&most), "{most}: {}", verdict.text());
    }
}

/// Only the newest gap is known, so nothing says whether an older one is filled.
#[test]
fn a_late_packet_of_an_older_gap_does_not_fill_the_newest() {
    let late = |which: usize| {
        let mut talk = Talk::new();
        for psn in 0..12 {
            talk.request(Opcode::UC_SEND_ONLY, psn, false, &[], &[psn as u8; 100]);
        }
        let gap = talk.packets.remove(7);
        let older = talk.packets.remove(4);
        let mut late = [older, gap][which].clone();
        late.ns = talk.packets.last().expect("a packet").ns + 1000;
        talk.packets.push(late);
        kinds(&analyse(&talk.file()))
    };
    assert_eq!(late(0), [("lost-unreliable", 5, 2), ("reordered", 11, 1)]);
    assert_eq!(late(1), [("lost-unreliable", 5, 1), ("reordered", 11, 1)]);
}

/// A file of several interfaces need not be in the order of time.
#[test]
fn a_repeated_retransmission_with_an_earlier_time_is_no_panic() {
    let mut talk = Talk::new().without_ids();
    talk.sends(0, 5).send(5).send(7).wait_us(30_000).send(6).send(6).ack(7, ACK, 8);
    let at = talk.packets.len() - 2;
    talk.packets[at].ns = talk.packets[at - 1].ns - 1000;
    assert_eq!(kinds(&analyse(&talk.file())), [("reordered", 14, 1)]);
}

/// A file may have any times.
#[test]
fn waits_inside_a_message_do_not_overflow() {
    let mut talk = Talk::new();
    for (opcode, psn) in [(Opcode::RC_SEND_FIRST, 0), (Opcode::RC_SEND_MIDDLE, 1)] {
        for ns in [1, u64::MAX - 1] {
            talk.request(opcode, psn, false, &[], &[1; 256]);
            talk.packets.last_mut().expect("a packet").ns = ns;
        }
    }
    talk.request(Opcode::RC_SEND_LAST, 2, true, &[], &[1; 100]).ack(2, ACK, 1);
    let verdict = analyse(&talk.file());
    assert_eq!(verdict.directions[0].counts.latency.max(), u64::MAX, "{}", verdict.text());
}
