//! The analysis of captures of real kernels in which packets were dropped, duplicated, delayed or refused on
//! purpose.

use roxie_capture::analyse::{Analysis, Confidence, Kind, Origin, Verdict};
use roxie_capture::source::Source;
use wire::capture::Seen;
use wire::{Opcode, Qpn};

use pcap_file::{Endianness, TsResolution};

use crate::build::pcap;
use crate::golden;
use crate::synth::{ACK, Talk, aeth, reth};

pub(crate) fn analyse(file: &[u8]) -> Verdict {
    analyse_incomplete(file, 0, None)
}

/// Analyses a capture as if the capturing program had dropped `drops` more packets, or left packets out on
/// purpose.
fn analyse_incomplete(file: &[u8], drops: u64, left_out: Option<&str>) -> Verdict {
    let mut source = Source::new(file).expect("a capture");
    let mut analysis = Analysis::new();
    while let Some(record) = source.next_record().expect("reads") {
        analysis.feed(&record, &Seen::parse(record.decode_as, record.data));
    }
    analysis.finish(source.drops() + drops, left_out.or(source.left_out()))
}

/// For the beginning of a capture's name: the kind of the first finding, and a part of its text.
const PLANTED: [(&str, &str, &str); 20] = [
    ("cm-loss-req", "lost-cm", "The ConnectRequest in packet 1 had no answer"),
    ("cm-loss-rep", "lost-cm", "The ConnectReply in packet 2 did not arrive"),
    ("cm-loss-rtu", "lost-cm", "The ReadyToUse in packet 3 did not arrive"),
    ("cm-loss-dreq", "lost-cm", "The DisconnectRequest in packet"),
    ("cm-loss-drep", "lost-cm", "The DisconnectReply in packet"),
    ("cm-rej-consumer", "rejected", "the listening program rejected it"),
    ("cm-rej", "rejected", "no program listens on that port"),
    ("cm-sidr-rej", "rejected", "no program listens there"),
    ("duplicate", "duplicated", "packet 2 is the same as packet 1"),
    ("loss-all", "no-answer", "seen in this capture: a request was sent 4 times"),
    ("nak-qp", "request-refused", "does not allow this operation"),
    ("nak-send-too-long", "responder-failed", "receive posted for it is too small"),
    ("nak-mr-no-read", "access-refused", "lacks REMOTE_READ"),
    ("nak-mr-no-atomic", "access-refused", "lacks REMOTE_ATOMIC"),
    ("nak-write-bounds", "access-refused", "beyond its memory region"),
    ("rnr-exhausted", "receiver-never-ready", "4 times"),
    ("rnr-then-ok", "receiver-not-ready", "pause of 10.2 ms"),
    ("rnr-timers", "receiver-never-ready", "RNR retry count probably exceeded"),
    ("reorder", "reordered", "arrive out of order"),
    ("ud-bad-qkey", "wrong-key", "different Q_Keys"),
];
/// For captures with other faults, which `captures.txt` describes: the kind of the first finding; none for
/// healthy ones.
const LOST: [(&str, &str); 13] = [
    ("loss-ack", "lost-ack"),
    ("loss-write-ack", "lost-ack"),
    ("loss-atomic-ack", "lost-response"),
    ("loss-atomic-request", "lost-request"),
    ("loss-read-request", "lost-request"),
    ("loss-read", "lost-response"),
    ("loss-send", "lost-request"),
    ("loss-write", "lost-request"),
    ("nak-atomic-bad-rkey", "access-refused"),
    ("nak-", "access-refused"),
    // Its last WRITE uses a key that a SEND invalidated.
    ("rc-send-inv", "access-refused"),
    // A script requests responses again that have arrived; the capture does not show the reason.
    ("read-parts", "lost-response"),
    // All others are healthy, or their fault does not show in the capture.
    ("", ""),
];

#[test]
fn the_verdict_names_the_planted_fault_and_healthy_captures_have_none() {
    let mut wrong = Vec::new();
    for name in golden::names() {
        let verdict = analyse(&golden::file(&name));
        let planted = PLANTED.iter().find(|(prefix, ..)| name.starts_with(prefix));
        let lost = LOST.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or("", |(_, kind)| kind);
        let (kind, words) = planted.map_or((lost, ""), |(_, kind, words)| (*kind, *words));
        let got = verdict.first().map_or("", |finding| finding.kind.name());
        if got != kind || !verdict.text().contains(words) {
            wrong.push(format!("{name}: want {kind} ({words})\n    {got}: {}", verdict.text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn an_incomplete_capture_has_no_findings_that_rest_on_missing_packets() {
    for (drops, left_out, words) in
        [(7, None, "7 of "), (0, Some("a sample"), "on purpose (a sample)"), (7, Some("x"), "; 7 of ")]
    {
        for name in
            ["loss-write-ack-v4", "loss-send-middle-v6", "loss-all-v4", "reorder-v4", "cm-loss-rtu-v4"]
        {
            let verdict = analyse_incomplete(&golden::file(name), drops, left_out);
            assert_eq!(verdict.first().map(|finding| finding.kind), Some(Kind::CaptureLoss), "{name}");
            assert!(!verdict.findings.iter().any(|finding| finding.kind.is_absence()), "{name}");
            assert!(verdict.text().contains(words), "{name}: {}", verdict.text());
            assert!(verdict.text().contains("not listed"), "{name}: {}", verdict.text());
        }
        // A NAK in the capture is evidence in any case.
        let verdict = analyse_incomplete(&golden::file("nak-write-bounds-v4"), drops, left_out);
        assert_eq!(verdict.first().map(|finding| finding.kind), Some(Kind::AccessRefused));
    }
}

#[test]
fn the_verdict_names_the_dropped_packet() {
    for (name, number) in [
        ("loss-send-first-v4", 1),
        ("loss-send-middle-v4", 3),
        ("loss-send-last-v4", 8),
        ("loss-write-middle-v4", 4),
        ("loss-read-request-v4", 1),
        ("loss-read-first-v4", 2),
        ("loss-ack-v4", 2),
    ] {
        let verdict = analyse(&golden::file(name));
        let first = verdict.first().expect("a finding");
        assert_eq!(first.at.number, number, "{name}: {}", first.text);
    }
}

#[test]
fn the_directions_of_a_connection_are_paired_without_its_setup() {
    let verdict = analyse(&golden::file("rc-both-ways-v4"));
    assert_eq!(verdict.directions.len(), 2);
    assert_eq!((verdict.directions[0].peer, verdict.directions[1].peer), (Some(1), Some(0)));
    for direction in &verdict.directions {
        assert!(direction.counts.latency.count() >= 8, "{}", direction.name());
    }
}

/// Two pairs of the same hosts have the same numbers in flight, and the second one has its answer first.
#[test]
fn the_directions_of_a_connection_are_paired_by_what_devices_tell() {
    let pairs = [[0x11, 0x22], [0x33, 0x44]];
    let talk = |is_told: bool| {
        let mut talk = Talk::new();
        for [from, to] in pairs.into_iter().filter(|_| is_told) {
            talk.tell(&format!("peer number={to:#08x} local=10.0.0.2 remote=10.0.0.1 peer={from:#08x}"));
            talk.tell(&format!("peer number={from:#08x} local=10.0.0.1 remote=10.0.0.2 peer={to:#08x}"));
        }
        talk.between(pairs[0]).send(7).between(pairs[1]).send(7).ack(7, ACK, 1);
        talk.between(pairs[0]).ack(7, ACK, 1);
        analyse(&talk.file()).directions.iter().map(|direction| direction.peer).collect::<Vec<_>>()
    };
    assert_eq!(talk(true), [Some(3), Some(2), Some(1), Some(0)]);
    assert_eq!(talk(false)[0], Some(2), "a guess");
}

#[test]
fn management_datagrams_have_no_direction() {
    let verdict = analyse(&golden::file("cm-rping-v4"));
    assert_eq!(verdict.directions.len(), 2);
    assert!(verdict.directions.iter().all(|direction| direction.service_name() == "RC"));
}

#[test]
fn an_empty_capture_is_not_called_healthy() {
    let mut file = golden::file("rc-read-v4");
    file.truncate(24);
    assert_eq!(analyse(&file).text(), "There is no RoCEv2 traffic in this capture.");
}

/// roxie probes idle connections by DREQs that name no queue pair.
#[test]
fn a_keepalive_probe_is_no_disconnect_request() {
    const HEAD: [u8; 4] = [1, 7, 2, 3];
    const DREQ: [u8; 2] = [0, 0x15];
    let mut file = golden::file("cm-loss-dreq-v4");
    assert!(analyse(&file).text().contains("DisconnectRequest"));
    let is_dreq = |at: &usize| file[*at..].starts_with(&HEAD) && file[*at + 16..].starts_with(&DREQ);
    let found: Vec<usize> = (0..file.len() - 36).filter(is_dreq).collect();
    assert!(found.len() > 1, "it was retransmitted");
    for at in found {
        // MAD header, two communication ids, QPN.
        file[at + 32..at + 35].fill(0);
    }
    let text = analyse(&file).text();
    assert!(!text.contains("DisconnectRequest"), "{text}");
}

/// Of the first connection: whether the setup was answered, and is ready; the passive queue pair; and the
/// number of all findings.
fn setup(file: &[u8]) -> (bool, bool, Option<Qpn>, usize) {
    let verdict = analyse(file);
    let setup = &verdict.connections.list()[0];
    (setup.answered.is_some(), setup.ready.is_some(), setup.passive_qp, verdict.findings.len())
}

/// A file of several interfaces need not be in the order of time.
#[test]
fn a_request_behind_its_reply_in_the_file_is_answered() {
    let mut frames = golden::frames("cm-rping-v4");
    let file = |frames: &[Vec<u8>]| pcap(frames, 1, Endianness::Little, TsResolution::MicroSecond);
    let in_order = setup(&file(&frames));
    assert_eq!((in_order.0, in_order.1), (true, true));
    frames[..3].rotate_left(1);
    assert_eq!(setup(&file(&frames)), in_order);
}

/// Communication ids repeat.
#[test]
fn a_reply_long_before_a_request_does_not_answer_it() {
    let mut frames = golden::frames("cm-rping-v4");
    frames.truncate(3);
    frames.rotate_left(1);
    for (wait_us, is_answered) in [(900_000, true), (60_000_000, false)] {
        let mut talk = Talk::new();
        for (frame, wait_us) in frames.iter().zip([0, 0, wait_us]) {
            talk.wait_us(wait_us).control(1, 0, &[]).packets.last_mut().expect("a packet").frame =
                frame.clone();
        }
        let (answered, ready, passive, _) = setup(&talk.file());
        assert_eq!((answered, ready, passive.is_some()), (is_answered, is_answered, is_answered));
    }
}

/// A READ with the PSN 3, between SENDs. The path MTU is known to be 1024. Its responses carry `there` bytes.
fn read(wanted: u32, there: usize, sends_after: u32) -> Talk {
    let mut talk = Talk::new();
    talk.request(Opcode::RC_SEND_FIRST, 0, false, &[], &[1; 1024]);
    talk.request(Opcode::RC_SEND_LAST, 1, true, &[], &[1; 1024]).ack(1, ACK, 1).send(2).ack(2, ACK, 2);
    talk.request(Opcode::RC_READ_REQUEST, 3, true, &reth(0x1000, wanted), &[]);
    let count = there.div_ceil(1024);
    for n in 0..count {
        let (opcode, has_aeth) = match n {
            _ if n + 1 == count => (Opcode::RC_READ_RESPONSE_LAST, true),
            0 => (Opcode::RC_READ_RESPONSE_FIRST, true),
            _ => (Opcode::RC_READ_RESPONSE_MIDDLE, false),
        };
        let head = aeth(ACK, 3);
        let len = (there - n * 1024).min(1024);
        talk.answer(opcode, 3 + n as u32, if has_aeth { &head } else { &[] }, &vec![2; len]);
    }
    let next = 3 + wanted.div_ceil(1024);
    (0..sends_after).for_each(|n| {
        talk.send(next + n).ack(next + n, ACK, 4 + n);
    });
    talk
}

#[test]
fn a_read_with_more_or_fewer_responses_than_requested_has_a_wrong_length() {
    for sends_after in [0, 5] {
        for (wanted, there) in [(3072, 4096), (4096, 6144), (2100, 4096), (4096, 3072), (4096, 2048)] {
            let verdict = analyse(&read(wanted, there, sends_after).file());
            let kinds: Vec<_> = verdict.findings.iter().map(|finding| finding.kind).collect();
            assert_eq!(kinds, [Kind::WrongLength], "{wanted}, {there}: {}", verdict.text());
            assert!(!verdict.is_inconclusive());
        }
        for bytes in [1025, 3072, 4095] {
            let verdict = analyse(&read(bytes, bytes as usize, sends_after).file());
            assert_eq!(verdict.text(), "No problem was found in this capture.");
        }
    }
}

#[test]
fn a_response_that_no_request_asked_for_is_a_finding() {
    let stray = |opcode, headers: &[u8]| {
        let mut talk = Talk::new();
        talk.sends(0, 5).answer(opcode, 105, headers, &[]).send(5).ack(5, ACK, 6);
        analyse(&talk.file()).first().map(|finding| finding.kind)
    };
    let atomic = [&aeth(ACK, 5)[..], &[0; 8]].concat();
    assert_eq!(stray(Opcode::RC_READ_RESPONSE_ONLY, &aeth(ACK, 5)), Some(Kind::UnknownAck));
    assert_eq!(stray(Opcode::RC_ATOMIC_ACKNOWLEDGE, &atomic), Some(Kind::UnknownAck));
}

#[test]
fn an_acknowledgement_with_a_reserved_syndrome_is_malformed() {
    let mut talk = Talk::new();
    talk.sends(0, 5).send(5).ack(5, 0x41, 6).send(6).ack(6, ACK, 7);
    let verdict = analyse(&talk.file());
    assert_eq!(verdict.first().map(|finding| finding.kind), Some(Kind::Malformed));
    assert!(verdict.text().contains("packet 12 has the reserved syndrome 0x41"), "{}", verdict.text());
}

#[test]
fn bursts_that_were_captured_before_their_segmentation_prove_nothing() {
    let mut talk = Talk::new();
    talk.sends(0, 5);
    for len in [6 * 1024, 2 * 1024] {
        // The CRC at the end is that of the last segment.
        talk.request(Opcode::RC_WRITE_FIRST, 5, false, &reth(0, 9000), &vec![1; len]).damage(1);
    }
    talk.request(Opcode::RC_WRITE_LAST, 13, true, &[], &[1; 1000]).ack(13, ACK, 6).sends(14, 5);
    let verdict = analyse(&talk.file());
    let kinds: Vec<_> = verdict.findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::CaptureLoss], "{}", verdict.text());
    assert!(verdict.is_inconclusive() && verdict.text().contains("before their segmentation"));
    let next = verdict.next(Origin::File("x.pcapng"));
    assert!(next.starts_with("roxie capture record") && next.contains("at the receiver"), "{next}");
    assert!(next.contains("tx-udp-segmentation off"), "{next}");
    assert_eq!(verdict.confidence(), Confidence::Low);
    // A packet of this size with a correct CRC is a packet.
    let mut talk = Talk::new();
    talk.request(Opcode::RC_WRITE_FIRST, 5, false, &reth(0, 9000), &[1; 8192]);
    assert_eq!(analyse(&talk.file()).first().map(|finding| finding.kind), Some(Kind::WrongMtu));
}
