//! Causes below IP, and what a verdict with high confidence requires.

use pcap_file::{Endianness, TsResolution};
use roxie_capture::analyse::Verdict;

use crate::build::pcap;
use crate::golden;
use crate::links::shown;
use crate::synth::{ACK, Talk};
use crate::verdicts::analyse;

fn kinds(verdict: &Verdict) -> Vec<(&'static str, u64)> {
    verdict.findings.iter().map(|finding| (finding.kind.name(), finding.at.number)).collect()
}

/// A PFC frame for these classes.
fn pfc(classes: u8, quanta: u16) -> Vec<u8> {
    let mut body = vec![1, 1, 0, classes];
    (0..8).for_each(|_| body.extend(quanta.to_be_bytes()));
    body
}

#[test]
fn pauses_are_findings_and_explain_latencies() {
    let mut talk = Talk::new();
    talk.sends(0, 4).send(4);
    for _ in 0..5 {
        talk.control(9, 0x8808, &pfc(0x18, 0xffff)).wait_us(10_000);
    }
    talk.control(9, 0x8808, &pfc(0x18, 0)).ack(4, ACK, 5);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [("link-paused", 10)], "{}", verdict.text());
    for words in [
        "02:00:00:00:00:09 sent 5 pause frames (PFC, classes 3 and 4) in packets 10 to 14",
        "1 message",
        "took 50.0 ms at most, the others 5.00 us",
    ] {
        assert!(verdict.text().contains(words), "{words}: {}", verdict.text());
    }
    let lines = shown(&talk.file());
    assert!(lines[9].contains("02:00:00:00:00:09: PFC pause frame, class 3 65535 quanta"), "{}", lines[9]);
    // The end of a pause alone is none.
    let mut talk = Talk::new();
    talk.sends(0, 4).control(9, 0x8808, &pfc(8, 0)).control(9, 0x8808, &[0, 1, 0, 0]);
    assert_eq!(kinds(&analyse(&talk.file())), []);
}

#[test]
fn a_slow_answer_during_a_pause_names_both_causes() {
    let mut talk = Talk::new();
    talk.sends(0, 4).send(4).wait_us(1_000_000).control(9, 0x8808, &[0, 1, 0xff, 0xff]);
    talk.wait_us(1_000_000).ack(4, ACK, 5);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [("slow", 9), ("link-paused", 10)]);
    // One pause frame lasts 34 ms at 1 Gbit/s, the delay 2 s.
    for words in ["the last pause frame is packet 10: that may explain the delay", "waits for a CPU"] {
        assert!(verdict.findings[0].text.contains(words), "{words}: {}", verdict.findings[0].text);
    }
    assert!(verdict.findings[1].text.contains("802.3x, all classes"));
    let mut talk = Talk::new();
    talk.sends(0, 4).send(4).control(9, 0x8808, &[0, 1, 0, 9]).wait_us(20_000).send(4).ack(4, ACK, 5);
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [("lost-request", 9), ("link-paused", 10)]);
    assert!(verdict.text().contains("the last pause frame is packet 10"), "{}", verdict.text());
}

/// An announcement of LLDP with classes of DCBX.
fn lldp(ttl: u8, classes: u8) -> Vec<u8> {
    vec![2, 2, 7, 3, 6, 2, 0, ttl, 0xfe, 6, 0, 0x80, 0xc2, 0x0b, 8, classes, 0, 0]
}

#[test]
fn neighbours_and_topology_changes_are_findings() {
    let mut talk = Talk::new();
    talk.control(8, 0x88cc, &lldp(120, 8)).sends(0, 2).control(9, 0x88cc, &lldp(120, 8));
    assert_eq!(kinds(&analyse(&talk.file())), []);
    // A port of another link.
    talk.control(7, 0x88cc, &lldp(120, 0)).packets.last_mut().expect("a packet").interface = 1;
    assert_eq!(kinds(&analyse(&talk.file())), []);
    talk.packets.pop();
    talk.control(9, 0x88cc, &lldp(120, 0)).control(9, 0x88cc, &lldp(0, 0));
    let verdict = analyse(&talk.file());
    // The ports differ, one of them changed, and it ends its announcements.
    assert_eq!(kinds(&verdict), [("link-change", 1), ("link-change", 7), ("link-change", 8)]);
    assert!(verdict.findings[0].text.contains("If they are the ends of one link"), "{:?}", verdict.findings);
    assert!(verdict.findings[1].text.contains("3 in packet 6, none in packet 7"), "{:?}", verdict.findings);
    assert!(verdict.findings[2].text.contains("or LLDP is switched off"), "{:?}", verdict.findings);
    let bpdu = |flags| vec![0x42, 0x42, 3, 0, 0, 2, 2, flags];
    let mut talk = Talk::new();
    talk.sends(0, 2).control(8, 39, &bpdu(0x3c)).control(8, 39, &bpdu(0x3d)).control(8, 39, &bpdu(0x3d));
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [("link-change", 6)], "{}", verdict.text());
    assert!(verdict.text().contains("packets may be flooded"), "{}", verdict.text());
}

#[test]
fn times_that_go_back_lower_the_confidence() {
    let mut talk = Talk::new();
    talk.sends(0, 8);
    let healthy = analyse(&talk.file());
    assert_eq!(healthy.confidence().name(), "high");
    for packet in talk.packets.iter_mut().skip(1).step_by(2) {
        packet.ns -= 500_000_000;
    }
    let verdict = analyse(&talk.file());
    assert_eq!((kinds(&verdict), verdict.confidence().name()), (vec![], "medium"));
    assert!(verdict.text().contains("times of 8 packets go back, first in packet 2"), "{}", verdict.text());
    // Each interface has its own clock.
    let mut talk = Talk::new();
    talk.sends(0, 8);
    for packet in talk.packets.iter_mut().skip(1).step_by(2) {
        (packet.ns, packet.interface) = (packet.ns - 500_000_000, 1);
    }
    assert_eq!(analyse(&talk.file()).confidence().name(), "high");
}

/// The blocks of a pcapng file in little-endian order: a section, and an Ethernet interface with this snap
/// length.
pub(crate) fn section(snap: u32) -> Vec<u8> {
    let header = [0x1a2b_3c4d, 1, u32::MAX, u32::MAX].map(u32::to_le_bytes).concat();
    [block(0x0a0d_0d0a, &header), block(1, &[1, snap].map(u32::to_le_bytes).concat())].concat()
}

pub(crate) fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = 12 + body.len().next_multiple_of(4);
    let mut out = [kind.to_le_bytes(), (len as u32).to_le_bytes()].concat();
    out.extend(body);
    out.resize(len - 4, 0);
    out.extend((len as u32).to_le_bytes());
    out
}

#[test]
fn all_drop_counters_of_pcapng_make_a_capture_inconclusive() {
    let frames = golden::frames("rc-send-v4");
    let packets = |kind: u32, drops: u16| {
        frames.iter().enumerate().fold(section(0), |mut file, (number, frame)| {
            let interface = if kind == 2 && number == 1 { u32::from(drops) << 16 } else { 0 };
            let words = [interface, 0x5000, number as u32 * 1000, frame.len() as u32, frame.len() as u32];
            file.extend(block(kind, &[words.map(u32::to_le_bytes).concat(), frame.clone()].concat()));
            file
        })
    };
    assert_eq!(analyse(&packets(2, 0)).confidence().name(), "high");
    assert_eq!(analyse(&packets(2, u16::MAX)).confidence().name(), "high", "not known");
    let obsolete = packets(2, 3);
    let statistics = |options: &[(u16, u64)]| {
        let mut body = vec![0; 12];
        for (code, value) in options {
            body.extend([code.to_le_bytes(), 8_u16.to_le_bytes()].concat());
            body.extend(value.to_le_bytes());
        }
        [packets(6, 0), block(5, &body)].concat()
    };
    let counters: [&[(u16, u64)]; 3] = [&[(5, 3)], &[(7, 3)], &[(6, 10), (8, 7)]];
    for file in counters.map(statistics).into_iter().chain([obsolete]) {
        let verdict = analyse(&file);
        assert!(verdict.text().starts_with("Inconclusive: 3 of "), "{}", verdict.text());
    }
    assert_eq!(analyse(&statistics(&[(6, 7), (8, 7)])).confidence().name(), "high");
}

#[test]
fn packets_without_a_time_are_read_and_lower_the_confidence() {
    let frames = golden::frames("rc-write-v4");
    let simple = |snap: usize| {
        frames.iter().fold(section(snap as u32), |mut file, frame| {
            let kept = &frame[..frame.len().min(snap)];
            file.extend(block(3, &[&(frame.len() as u32).to_le_bytes(), kept].concat()));
            file
        })
    };
    let whole = analyse(&pcap(&frames, 1, Endianness::Little, TsResolution::MicroSecond));
    for snap in [65_535, 99, 97] {
        let verdict = analyse(&simple(snap));
        assert_eq!(verdict.totals.roce, whole.totals.roce);
        assert_eq!((kinds(&verdict), verdict.confidence().name()), (vec![], "medium"), "{}", verdict.text());
        assert!(verdict.text().contains("packets have no time"), "{}", verdict.text());
    }
}
