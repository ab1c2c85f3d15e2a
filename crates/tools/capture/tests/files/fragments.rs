//! IP fragments of RoCEv2 packets: joined for the analysis, or named.

use roxie_capture::analyse::Verdict;
use wire::Opcode;

use crate::golden;
use crate::links::{in_ethernet, shown, vxlan};
use crate::synth::{ACK, Captured, NAK_SEQUENCE, Talk};
use crate::verdicts::analyse;

/// Splits an Ethernet frame with IPv4 into fragments with payloads of `len` bytes, a multiple of 8.
fn split_v4(frame: &[u8], len: usize) -> Vec<Vec<u8>> {
    let (front, payload) = frame.split_at(14 + 20);
    let pieces: Vec<&[u8]> = payload.chunks(len).collect();
    let fragment = |(i, piece): (usize, &&[u8])| {
        let mut new = [front, piece].concat();
        new[16..18].copy_from_slice(&(20 + piece.len() as u16).to_be_bytes());
        let more = if i + 1 < pieces.len() { 0x2000 } else { 0 };
        new[20..22].copy_from_slice(&((i * len / 8) as u16 | more).to_be_bytes());
        new
    };
    pieces.iter().enumerate().map(fragment).collect()
}

/// As [`split_v4`], for IPv6, with fragment headers.
fn split_v6(frame: &[u8], len: usize, id: u8) -> Vec<Vec<u8>> {
    let (front, payload) = frame.split_at(14 + 40);
    let pieces: Vec<&[u8]> = payload.chunks(len).collect();
    let fragment = |(i, piece): (usize, &&[u8])| {
        let more = u16::from(i + 1 < pieces.len());
        let [a, b] = ((i * len) as u16 | more).to_be_bytes();
        let mut new = [front, &[front[20], 0, a, b, 0, 0, 0, id], piece].concat();
        new[18..20].copy_from_slice(&(8 + piece.len() as u16).to_be_bytes());
        new[20] = 44;
        new
    };
    pieces.iter().enumerate().map(fragment).collect()
}

/// Replaces the last packet by frames, in the given order.
fn replace_last(talk: &mut Talk, frames: impl FnOnce(&[u8]) -> Vec<Vec<u8>>) {
    let last = talk.packets.pop().expect("a packet");
    let new = frames(&last.frame).into_iter();
    talk.packets.extend(new.map(|frame| Captured { frame, ..last.clone() }));
}

fn kinds(verdict: &Verdict) -> Vec<(&'static str, u64)> {
    verdict.findings.iter().map(|finding| (finding.kind.name(), finding.count)).collect()
}

/// Place of the full packet in [`talk`].
const FULL: usize = 6;

/// Five acknowledged SENDs; the fourth one is a full packet, and changed by `change`.
fn talk(change: impl FnOnce(&mut Talk)) -> Talk {
    let mut talk = Talk::new();
    talk.sends(0, 3);
    change(talk.request(Opcode::RC_SEND_ONLY, 3, true, &[], &[9; 1024]));
    talk.ack(3, ACK, 4).send(4).ack(4, ACK, 5);
    talk
}

#[test]
fn a_packet_in_fragments_is_analysed_when_its_last_fragment_arrives() {
    type Change = fn(&[u8]) -> Vec<Vec<u8>>;
    let changes: [(&str, Change); 6] = [
        ("in order", |frame| split_v4(frame, 512)),
        ("in reverse order", |frame| split_v4(frame, 512).into_iter().rev().collect()),
        ("with a duplicate", |frame| {
            let mut list = split_v4(frame, 512);
            list.insert(1, list[1].clone());
            list
        }),
        // The first one ends inside the BTH.
        ("with headers in two fragments", |frame| split_v4(frame, 16)),
        ("of a tunnel", |frame| split_v4(&vxlan(frame), 600)),
        ("in a tunnel", |frame| split_v4(frame, 600).iter().map(|frame| vxlan(frame)).collect()),
    ];
    for (name, change) in changes {
        let mut talk = talk(|_| {});
        let frames = std::mem::take(&mut talk.packets).into_iter().enumerate();
        talk.packets.extend(frames.flat_map(|(i, packet)| {
            let list = match i {
                FULL => change(&packet.frame),
                // All packets of the connection go through the tunnel.
                _ if name.contains("tunnel") => vec![vxlan(&packet.frame)],
                _ => vec![packet.frame.clone()],
            };
            list.into_iter().map(move |frame| Captured { frame, ..packet.clone() }).collect::<Vec<_>>()
        }));
        let verdict = analyse(&talk.file());
        assert_eq!(kinds(&verdict), [("fragmented", 1)], "{name}: {}", verdict.text());
        assert!(verdict.findings[0].text.starts_with("A packet was sent in "), "{}", verdict.text());
        assert_eq!((verdict.totals.fragments, verdict.totals.cut), (0, 0), "{name}: {}", verdict.text());
        let requests = &verdict.directions[0];
        assert_eq!((requests.counts.packets, requests.counts.intact), (5, 5), "{name}");
    }
}

#[test]
fn the_icrc_of_a_joined_packet_is_checked_with_and_without_df() {
    // The ICRC of the synthesised packets covers DF, as in every RoCEv2 packet; fragments do not have it.
    let damaged = talk(|talk| {
        talk.damage(20);
        replace_last(talk, |frame| split_v4(frame, 512));
    });
    let verdict = analyse(&damaged.file());
    assert!(kinds(&verdict).contains(&("bad-icrc", 1)), "{}", verdict.text());
}

#[test]
fn a_packet_with_missing_fragments_is_named_and_not_called_malformed() {
    let mut lost = Talk::new();
    lost.sends(0, 3).request(Opcode::RC_SEND_ONLY, 3, true, &[], &[9; 1024]);
    replace_last(&mut lost, |frame| split_v4(frame, 512)[..2].to_vec());
    lost.send(4).ack(3, NAK_SEQUENCE, 3);
    let verdict = analyse(&lost.file());
    let kinds: Vec<&str> = verdict.findings.iter().map(|finding| finding.kind.name()).collect();
    assert!(kinds.contains(&"fragmented") && !kinds.contains(&"malformed"), "{}", verdict.text());
    assert!(verdict.text().contains("some of them were not captured"), "{}", verdict.text());
    assert_eq!(verdict.totals.fragments, 2);
    // The end of a packet in a fragmented tunnel is missing as well, and was not cut in transit.
    let tunnel = talk(|talk| replace_last(talk, |frame| split_v4(&vxlan(frame), 600)[..1].to_vec()));
    let verdict = analyse(&tunnel.file());
    assert!(!verdict.text().contains("cut in transit"), "{}", verdict.text());
    // Overlapping fragments: no receiver joins them.
    let overlapping = talk(|talk| {
        replace_last(talk, |frame| {
            let mut list = split_v4(frame, 512);
            list[1][21] -= 1;
            list
        });
    });
    let verdict = analyse(&overlapping.file());
    assert!(
        verdict.findings.iter().any(|finding| finding.text.contains("they overlap")),
        "{}",
        verdict.text()
    );
}

#[test]
fn a_cut_capture_of_fragments_has_no_wrong_icrc() {
    let talk = talk(|talk| replace_last(talk, |frame| split_v4(frame, 512)));
    let verdict = analyse(&talk.file_cut(128));
    assert_eq!(kinds(&verdict), [("fragmented", 1)], "{}", verdict.text());
}

#[test]
fn fragments_of_ipv6_are_joined() {
    let frames = golden::frames("rc-mtu1024-v6");
    let mut talk = Talk::new();
    let mut split = 0;
    talk.send(0);
    let model = talk.packets.remove(0);
    for (i, frame) in frames.iter().enumerate() {
        let list = if frame.len() > 1000 { split_v6(frame, 512, i as u8) } else { vec![frame.clone()] };
        split += u64::from(list.len() > 1);
        let ns = model.ns + i as u64 * 1000;
        talk.packets.extend(list.into_iter().map(|frame| Captured { ns, frame, ..model.clone() }));
    }
    assert!(split > 0);
    let verdict = analyse(&talk.file());
    // One finding for each direction.
    assert!(kinds(&verdict).iter().all(|kind| kind.0 == "fragmented"), "{}", verdict.text());
    assert_eq!(kinds(&verdict).iter().map(|kind| kind.1).sum::<u64>(), split);
    assert_eq!((verdict.totals.roce, verdict.totals.cut), (frames.len() as u64, 0), "the ICRCs are right");
}

#[test]
fn fragments_of_other_traffic_make_no_finding() {
    let frame = in_ethernet(
        0x0800,
        &[&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..], &[7; 900]].concat(),
    );
    let mut talk = Talk::new();
    talk.sends(0, 3);
    let model = talk.packets[0].clone();
    let list = split_v4(&frame, 400);
    talk.packets.extend(list.iter().take(2).map(|frame| Captured { frame: frame.clone(), ..model.clone() }));
    let verdict = analyse(&talk.file());
    assert_eq!(kinds(&verdict), [], "{}", verdict.text());
}

#[test]
fn a_line_shows_what_a_fragment_has() {
    let mut talk = talk(|talk| replace_last(talk, |frame| split_v4(frame, 512)));
    talk.packets.drain(..6);
    let lines = shown(&talk.file());
    assert!(lines[0].contains("[fragment]") && lines[0].contains("1024 bytes (4"), "{lines:?}");
    assert!(lines[1].contains("a later fragment"), "{lines:?}");
}
