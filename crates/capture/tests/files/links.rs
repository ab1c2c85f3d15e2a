//! Link layers in front of the IP header.

use pcap_file::{Endianness, TsResolution};

use crate::build::{pcap, read, words};
use crate::golden;

/// Replaces the link layer of a frame.
type Rewrite = fn(&[u8]) -> Vec<u8>;

fn behind(header: &[u8], frame: &[u8]) -> Vec<u8> {
    [header, &frame[14..]].concat()
}

/// The EtherType of a frame.
fn kind(frame: &[u8]) -> [u8; 2] {
    [frame[12], frame[13]]
}

fn tagged(frame: &[u8], tags: &[u8]) -> Vec<u8> {
    [&frame[..12], tags, &frame[12..]].concat()
}

#[test]
fn every_link_layer_gives_the_same_packets() {
    let links: [(&str, u32, Rewrite); 9] = [
        ("VLAN", 1, |frame| tagged(frame, &[0x81, 0, 0x60, 7])),
        ("QinQ", 1, |frame| tagged(frame, &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2])),
        ("raw", 101, |frame| behind(&[], frame)),
        ("raw, of BSD", 12, |frame| behind(&[], frame)),
        ("cooked", 113, |frame| {
            let [a, b] = kind(frame);
            behind(&[0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, a, b], frame)
        }),
        ("cooked, VLAN", 113, |frame| {
            let [a, b] = kind(frame);
            behind(&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x81, 0, 0, 9, a, b], frame)
        }),
        ("cooked v2", 276, |frame| {
            let [a, b] = kind(frame);
            behind(&[a, b, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0], frame)
        }),
        ("BSD loopback", 0, |frame| {
            behind(if frame[12] == 8 { &[2, 0, 0, 0] } else { &[30, 0, 0, 0] }, frame)
        }),
        ("with padding of Ethernet", 1, |frame| [frame, &[0xee; 7]].concat()),
    ];
    for name in ["cm-rping-v4", "rc-send-v6"] {
        let frames = golden::frames(name);
        let want = words(&frames);
        for (link, number, rewrite) in links {
            let frames: Vec<Vec<u8>> = frames.iter().map(|frame| rewrite(frame)).collect();
            let (packets, _) = read(&pcap(&frames, number, Endianness::Little, TsResolution::MicroSecond));
            assert!(packets.iter().map(|packet| &packet.2).eq(&want), "{name} {link}: {packets:?}");
        }
    }
}

#[test]
fn an_unknown_link_type_gives_no_packets_and_no_panic() {
    let frames = golden::frames("rc-atomic-v4");
    let (packets, _) = read(&pcap(&frames, 147, Endianness::Little, TsResolution::MicroSecond));
    assert!(packets.iter().all(|packet| packet.2 == "no known link layer"));
}
