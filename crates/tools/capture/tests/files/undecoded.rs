//! Nothing is concluded from the absence of what was not understood.

use pcap_file::{Endianness, TsResolution};
use roxie_capture::analyse::{Analysis, Origin, Verdict, analyse as analyse_source};
use roxie_capture::source::{DecodeRule, Source, TooManyPorts};
use wire::capture::{Carried, DecodeAs, LinkType, Seen};

use crate::build::pcap;
use crate::golden;
use crate::links::{in_ethernet, in_ipv4, in_udp, outer, vxlan};
use crate::synth::Talk;
use crate::verdicts::analyse;

fn file(link: u32, frames: &[Vec<u8>]) -> Vec<u8> {
    pcap(frames, link, Endianness::Little, TsResolution::MicroSecond)
}

/// The verdict about a file with these rules of `--decode-as`.
fn decoded_as(file: &[u8], rules: &[&str]) -> Verdict {
    let rules: Vec<DecodeRule> = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
    let mut source = Source::new(file).expect("a capture");
    source.decode_as(&rules).expect("few ports");
    analyse_source(&mut source, Analysis::new(), |_, _| std::ops::ControlFlow::Continue(())).expect("memory")
}

/// In front of a whole frame: LLC and SNAP of bridges (IEEE 802.1).
const SNAP_BRIDGED: [u8; 8] = [0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7];

/// The golden packets with another UDP destination port.
fn on_port(port: u16) -> Vec<Vec<u8>> {
    let mut frames = golden::frames("rc-write-v4");
    for frame in &mut frames {
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        let icrc = wire::icrc_of_frame(&frame[14..]).expect("a whole packet").to_le_bytes();
        let end = frame.len();
        frame[end - 4..].copy_from_slice(&icrc);
    }
    frames
}

#[test]
fn packets_of_an_unknown_kind_make_the_capture_inconclusive() {
    let frames = golden::frames("rc-write-v4");
    let all = |rewrite: fn(&[u8]) -> Vec<u8>| frames.iter().map(|frame| rewrite(frame)).collect::<Vec<_>>();
    let cases: [(&str, u32, Vec<Vec<u8>>); 10] = [
        ("link type 147", 147, frames.clone()),
        ("link type 197 (ERF) with another kind", 197, all(|frame| [&[0; 8][..], &[3; 8], frame].concat())),
        ("SNAP 00-80-c2", 1, all(|frame| in_ethernet(38, &[&SNAP_BRIDGED[..], frame].concat()))),
        ("LLC 0x06", 1, all(|frame| in_ethernet(38, &[&[6, 6, 3], frame].concat()))),
        ("Ethernet type 0x88e5", 1, all(|frame| in_ethernet(0x88e5, frame))),
        ("IP protocol 50", 1, all(|frame| outer(50, frame))),
        ("UDP port 1021", 1, on_port(1021)),
        ("UDP port 8473", 1, all(|frame| outer(17, &in_udp(8473, &vxlan(frame)[42..])))),
        ("UDP port 4789", 1, all(|frame| outer(17, &in_udp(4789, frame)))),
        (
            "too many tunnels",
            1,
            all(|frame| {
                let nested = (0..9).fold(frame[14..].to_vec(), |inner, _| in_ipv4(4, &inner));
                in_ethernet(0x0800, &nested)
            }),
        ),
    ];
    for (kind, link, frames) in cases {
        let verdict = analyse(&file(link, &frames));
        let want =
            format!("Inconclusive: {} packets of a kind that roxie does not decode: {kind}", frames.len());
        assert!(verdict.text().starts_with(&want), "{}", verdict.text());
        assert!(verdict.text().contains("e.g. packet 1"), "{}", verdict.text());
        assert!(verdict.is_inconclusive() && !verdict.findings.is_empty());
        assert_eq!(verdict.confidence().name(), "low");
    }
}

/// In any link type, packets of RoCEv2 are decoded, or the analyser says that it does not decode them.
#[test]
fn no_link_type_hides_packets_in_silence() {
    let frames = golden::frames("rc-write-v4");
    let without: Vec<Vec<u8>> = frames.iter().map(|frame| frame[14..].to_vec()).collect();
    let mut decoded = Vec::new();
    for link in 0..=300 {
        for frames in [&frames, &without] {
            let verdict = analyse(&file(link, frames));
            if verdict.totals.roce == frames.len() as u64 {
                decoded.push(link);
                continue;
            }
            let says = verdict.text();
            assert!(verdict.is_inconclusive() && !verdict.findings.is_empty(), "{link}: {says}");
            assert_eq!(verdict.confidence().name(), "low", "{link}: {says}");
            assert!(says.contains("roxie does not decode: ") && says.contains(", e.g. packet 1"), "{says}");
            let name = format!("link type {link},");
            assert!(LinkType(link as u16).name().is_some() || says.contains(&name), "{link}: {says}");
        }
    }
    assert_eq!(decoded, [1, 12, 14, 101, 228, 229]);
}

/// Behind any Ethernet type and IP protocol, except those of which packets cannot carry others.
#[test]
fn no_ethernet_type_and_no_protocol_hides_packets_in_silence() {
    let frame = &golden::frames("rc-write-v4")[0];
    let link = DecodeAs::from(LinkType::ETHERNET);
    let is_hidden = |frame: &[u8]| Seen::parse(link, frame).is_err_and(|reason| reason.is_other_traffic());
    let hides = |ether_type: &u16| {
        let shim = |shim: &[u8]| in_ethernet(*ether_type, &[shim, &frame[14..]].concat());
        let forms = [shim(&[]), shim(&[0; 4]), shim(&[0x11, 0, 0, 1, 0, 46, 0, 0x21])];
        forms.iter().any(|form| is_hidden(form)) || is_hidden(&in_ethernet(*ether_type, frame))
    };
    let types: Vec<u16> = (0..=u16::MAX).filter(hides).collect();
    let known = [
        0x0806, 0x0842, 0x8035, 0x809b, 0x80f3, 0x8137, 0x8808, 0x8809, 0x8863, 0x888e, 0x8892, 0x88a2,
        0x88a4, 0x88b8, 0x88ba, 0x88cc, 0x88f5, 0x88f6, 0x88f7, 0x8902, 0x8906, 0x8914, 0x9000,
    ];
    assert_eq!(types, known);
    let protocols: Vec<u8> = (0..=u8::MAX).filter(|one| is_hidden(&outer(*one, &frame[14..]))).collect();
    assert_eq!(protocols, [1, 2, 6, 8, 9, 46, 58, 59, 88, 89, 103, 112, 132]);
}

#[test]
fn known_other_traffic_proves_that_there_is_no_roce() {
    let arp = in_ethernet(0x0806, &[0; 46]);
    let tcp = outer(6, &[0; 20]);
    let dns = outer(17, &in_udp(53, &[0; 20]));
    let spanning_tree = in_ethernet(38, &[0x42, 0x42, 3, 0, 0, 0, 0, 0]);
    let mut reply = outer(17, &in_udp(40_000, &[0; 20]));
    reply[34..36].copy_from_slice(&53_u16.to_be_bytes());
    let verdict = analyse(&file(1, &[arp, tcp, dns, spanning_tree, reply]));
    assert_eq!(verdict.text(), "There is no RoCEv2 traffic in this capture.");
    assert!(!verdict.is_inconclusive() && verdict.findings.is_empty());
}

#[test]
fn a_capture_cut_in_front_of_the_transport_header_is_inconclusive() {
    let mut talk = Talk::new();
    talk.sends(0, 4);
    for snap in [10, 20, 38] {
        let verdict = analyse(&talk.file_cut(snap));
        assert!(verdict.text().contains(&format!("first {snap} bytes")), "{}", verdict.text());
    }
}

#[test]
fn rules_of_the_user_decode_ports_and_link_types() {
    let frames = golden::frames("rc-write-v4");
    let tunneled: Vec<Vec<u8>> =
        frames.iter().map(|frame| outer(17, &in_udp(8473, &vxlan(frame)[42..]))).collect();
    let cases = [
        (file(1, &on_port(1021)), "udp.port==1021,rocev2"),
        (file(1, &tunneled), "udp.port==8473,vxlan"),
        (file(147, &frames), "linktype==147,ethernet"),
    ];
    for (file, rule) in cases {
        assert!(analyse(&file).is_inconclusive(), "{rule}");
        let next = analyse(&file).next(Origin::File("x.pcap"));
        let (option, _) = rule.split_once(',').expect("a rule");
        assert!(next.contains(&format!("analyse x.pcap -d {option},")), "{next}");
        let verdict = decoded_as(&file, &[rule]);
        assert_eq!(verdict.totals.roce, frames.len() as u64, "{rule}");
        assert_eq!(verdict.findings.len(), 0, "{rule}: {}", verdict.text());
        assert!(verdict.directions.iter().all(|direction| direction.counts.intact > 0), "{rule}");
    }
}

#[test]
fn the_user_may_name_the_port_of_roce_and_at_most_eight_ports() {
    let frames = on_port(1021);
    let tunneled: Vec<Vec<u8>> =
        frames.iter().map(|frame| outer(17, &in_udp(4791, &vxlan(frame)[42..]))).collect();
    let verdict = decoded_as(&file(1, &tunneled), &["udp.port==4791,vxlan", "udp.port==1021,rocev2"]);
    assert_eq!((verdict.totals.roce, verdict.findings.len()), (frames.len() as u64, 0), "{}", verdict.text());
    assert!(verdict.directions.iter().all(|direction| direction.key.vni == Some(42)));
    let file = file(1, &frames);
    let mut source = Source::new(&*file).expect("a capture");
    let rules: Vec<DecodeRule> = (1..=9).map(|port| DecodeRule::Port(port, Carried::Roce)).collect();
    assert_eq!((source.decode_as(&rules[..8]), source.decode_as(&rules)), (Ok(()), Err(TooManyPorts)));
}

#[test]
fn answers_may_be_among_packets_that_were_not_decoded() {
    let mut talk = Talk::new();
    for n in 0..4 {
        talk.send(0).wait_us(100_000);
        let ack = talk.clone().ack(0, 0x1f, 1).packets.pop().expect("a packet");
        talk.packets.push(ack);
        talk.packets.last_mut().expect("a packet").frame[37] = 0x03 + n;
    }
    let verdict = analyse(&talk.file());
    assert_eq!(verdict.first().map(|first| first.kind.name()), Some("no-answer"), "{}", verdict.text());
    assert_eq!(verdict.confidence().name(), "low");
    assert!(verdict.text().contains("may be among 4 packets of kinds that roxie does not decode"));
}

#[test]
fn several_kinds_are_named_beside_the_decoded_packets() {
    let mut frames = golden::frames("rc-write-v4");
    frames.push(outer(50, &[0; 40]));
    frames.extend(on_port(1021).drain(..2));
    let verdict = analyse(&file(1, &frames));
    assert!(!verdict.is_inconclusive(), "{}", verdict.text());
    let summary = verdict.summary(roxie_capture::paint::Colours::None, Origin::File("x.pcap"));
    assert!(
        summary.contains("3 packets of kinds that roxie does not decode: 2 of UDP port 1021"),
        "{summary}"
    );
    assert_eq!(verdict.confidence().name(), "medium");
}

#[test]
fn packets_of_kinds_beyond_the_limit_count_for_no_kind() {
    let kinds = (10_000..10_070).map(|port| outer(17, &in_udp(port, &[0; 20])));
    let mut frames: Vec<Vec<u8>> = kinds.collect();
    frames.extend(std::iter::repeat_n(outer(17, &in_udp(10_069, &[0; 20])), 100));
    let verdict = analyse(&file(1, &frames));
    assert!(
        verdict.text().contains("and 61 more kinds; and 106 packets of further kinds"),
        "{}",
        verdict.text()
    );
    assert!(verdict.totals.undecoded.kinds().iter().all(|(_, count, _)| *count == 1));
    let origin = Origin::File("x.pcap");
    assert!(verdict.next(origin).contains("udp.port==10000,"), "{}", verdict.next(origin));
    assert_eq!(verdict.json(origin)["undecoded_packets"], 170);
}
