//! Link layers in front of the IP header.

use pcap_file::{Endianness, TsResolution};
use roxie_capture::paint::Colours;
use roxie_capture::show::{Show, Style, Times};
use roxie_capture::source::Source;
use wire::capture::Seen;

use crate::build::{pcap, read, words};
use crate::golden;
use crate::verdicts::analyse;

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
    let links: [(&str, u32, Rewrite); 19] = [
        ("VLAN", 1, |frame| tagged(frame, &[0x81, 0, 0x60, 7])),
        ("QinQ", 1, |frame| tagged(frame, &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2])),
        ("a tag of switches before 802.1ad", 1, |frame| tagged(frame, &[0x91, 0, 0, 1])),
        ("four tags", 1, |frame| {
            tagged(frame, &[0x92, 0, 0, 1, 0x93, 0, 0, 2, 0x88, 0xa8, 0, 3, 0x81, 0, 0, 4])
        }),
        ("802.2 and SNAP of a bridge", 1, |frame| {
            let len = (frame.len() as u16 - 6).to_be_bytes();
            let llc = [&len[..], &[0xaa, 0xaa, 3, 0, 0, 0xf8]].concat();
            [&frame[..12], &llc, &frame[12..]].concat()
        }),
        ("802.2 and SNAP", 1, |frame| {
            let len = (frame.len() as u16 - 6).to_be_bytes();
            let llc = [&len[..], &[0xaa, 0xaa, 3, 0, 0, 0]].concat();
            [&frame[..12], &llc, &frame[12..]].concat()
        }),
        ("PPP", 9, |frame| behind(if frame[12] == 8 { &[0, 0x21] } else { &[0, 0x57] }, frame)),
        ("PPP, HDLC, short", 50, |frame| {
            behind(if frame[12] == 8 { &[0xff, 3, 0x21] } else { &[0xff, 3, 0x57] }, frame)
        }),
        ("PPPoE without Ethernet", 51, |frame| {
            let protocol = if frame[12] == 8 { 0x21 } else { 0x57 };
            behind(&[0x11, 0, 0, 7, 0, 0, 0, protocol], frame)
        }),
        ("ERF", 197, |frame| [&erf(2)[..], &[0, 0], frame].concat()),
        ("ERF, extended", 197, |frame| {
            let extensions = [0x83, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
            [&erf(0x80 | 11)[..], &extensions, &[0, 0], frame].concat()
        }),
        ("ERF, IP", 197, |frame| [&erf(22)[..], &frame[14..]].concat()),
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

/// The header of an ERF record of this type.
fn erf(kind: u8) -> [u8; 16] {
    [0, 0, 0, 0, 1, 2, 3, 4, kind, 4, 0, 0, 0, 0, 0, 0]
}

#[test]
fn an_unknown_link_type_gives_no_packets_and_no_panic() {
    let frames = golden::frames("rc-atomic-v4");
    let (packets, _) = read(&pcap(&frames, 147, Endianness::Little, TsResolution::MicroSecond));
    assert!(packets.iter().all(|packet| packet.2 == "link type 147"));
}

/// A local route header of service level 1 in front of a part of a frame over IPv6, and a VCRC behind it. The
/// LIDs are the last bytes of the addresses.
fn in_infiniband(next: u8, frame: &[u8], packet: &[u8]) -> Vec<u8> {
    let [high, low] = (2 + packet.len() as u16 / 4).to_be_bytes();
    [&[0x70, 0x10 | next, 0, frame[53], high, low, 0, frame[37]], packet, &[0xee, 0xee]].concat()
}

#[test]
fn infiniband_packets_are_decoded_with_and_without_grh() {
    let frames = golden::frames("rc-write-v6");
    let file = |rewrite: Rewrite| {
        let frames: Vec<Vec<u8>> = frames.iter().map(|frame| rewrite(frame)).collect();
        pcap(&frames, 247, Endianness::Little, TsResolution::MicroSecond)
    };
    let global = file(|frame| {
        let mut grh = frame[14..54].to_vec();
        grh[4..6].copy_from_slice(&(frame.len() as u16 - 62).to_be_bytes());
        grh[6] = 0x1b;
        in_infiniband(3, frame, &[&grh, &frame[62..]].concat())
    });
    assert!(read(&global).0.iter().map(|packet| &packet.2).eq(&words(&frames)));
    let local = file(|frame| in_infiniband(2, frame, &frame[62..]));
    for (packet, want) in read(&local).0.iter().zip(words(&frames)) {
        assert_eq!(packet.2, want.replace("fd99", ""));
    }
    for file in [global, local] {
        assert!(shown(&file).iter().all(|line| line.contains("InfiniBand ")), "{:?}", shown(&file));
        let verdict = analyse(&file);
        assert_eq!(verdict.findings.len(), 0, "{}", verdict.text());
        assert_eq!(verdict.totals.cut, 0);
    }
}

/// An IPv4 header from 192.0.2.1 to 192.0.2.2 in front of a payload.
pub(crate) fn in_ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ip = wire::Ipv4 {
        protocol,
        ..wire::Ipv4::udp([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 64, payload.len() as u16)
    };
    let mut header = [0; 20];
    ip.with_checksum().emit(&mut header);
    [&header, payload].concat()
}

/// An IPv6 header from 2001:db8::1 to 2001:db8::2 in front of a payload.
pub(crate) fn in_ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = ([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 2);
    let mut to = src;
    to[15] = dst;
    let ip = wire::Ipv6 { next_header, ..wire::Ipv6::udp(src.into(), to.into(), 64, payload.len() as u16) };
    let mut header = [0; 40];
    ip.emit(&mut header);
    [&header, payload].concat()
}

pub(crate) fn in_udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len() as u16).to_be_bytes();
    [&[0xc0, 1], &port.to_be_bytes()[..], &len, &[0, 0], payload].concat()
}

pub(crate) fn in_ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 3], &ether_type.to_be_bytes()[..], payload].concat()
}

pub(crate) fn outer(protocol: u8, payload: &[u8]) -> Vec<u8> {
    in_ethernet(0x0800, &in_ipv4(protocol, payload))
}

pub(crate) fn vxlan(frame: &[u8]) -> Vec<u8> {
    outer(17, &in_udp(4789, &[&[8, 0, 0, 0, 0, 0, 42, 0], frame].concat()))
}

/// IP protocol of an IP header inside IP: 4 or 41.
fn ip_in_ip(frame: &[u8]) -> u8 {
    if frame[12] == 8 { 4 } else { 41 }
}

/// Tunnels of access networks and of service chains.
const ACCESS: [(&str, Rewrite); 8] = [
    ("[PPPoE 7]", |frame| {
        let protocol = if frame[12] == 8 { 0x21 } else { 0x57 };
        in_ethernet(0x8864, &[&[0x11, 0, 0, 7, 0, 0, 0, protocol], &frame[14..]].concat())
    }),
    ("[GTP 0x2a]", |frame| {
        outer(17, &in_udp(2152, &[&[0x30, 0xff, 0, 0, 0, 0, 0, 42], &frame[14..]].concat()))
    }),
    ("[GTP 0x2a]", |frame| {
        // With sequence number and two extension headers, the first of 8 bytes.
        let header = [0x36, 0xff, 0, 0, 0, 0, 0, 42, 0, 1, 0, 0x85, 2, 0, 0, 0, 0, 0, 0, 0x40, 1, 0, 0, 0];
        outer(17, &in_udp(2152, &[&header, &frame[14..]].concat()))
    }),
    ("[GTP 0x2a]", |frame| outer(17, &in_udp(2152, &[&[0x30, 0xff, 0, 0, 0, 0, 0, 42], frame].concat()))),
    ("[NSH 5]", |frame| in_ethernet(0x894f, &[&[0x0f, 0xc2, 2, 3, 0, 0, 5, 255], frame].concat())),
    ("[NSH 5]", |frame| {
        let next = if frame[12] == 8 { 1 } else { 2 };
        let header = [&[0x0f, 0xc6, 1, next, 0, 0, 5, 255], &[0; 16][..]].concat();
        in_ethernet(0x894f, &[&header, &frame[14..]].concat())
    }),
    ("[VXLAN 42] [NSH 5]", |frame| {
        let headers = [0x0c, 0, 0, 4, 0, 0, 42, 0, 0x0f, 0xc2, 2, 3, 0, 0, 5, 255];
        outer(17, &in_udp(4790, &[&headers, frame].concat()))
    }),
    ("[GRE] [NSH 5]", |frame| {
        outer(47, &[&[0, 0, 0x89, 0x4f, 0x0f, 0xc2, 2, 3, 0, 0, 5, 255], frame].concat())
    }),
];

#[test]
fn every_tunnel_gives_the_same_packets() {
    let tunnels: [(&str, Rewrite); 18] = [
        ("[VXLAN 42]", vxlan),
        ("[VXLAN 42]", |frame| {
            let behind = [&[8, 0, 0, 0, 0, 0, 42, 0], frame].concat();
            in_ethernet(0x86dd, &in_ipv6(17, &in_udp(8472, &behind)))
        }),
        ("[VXLAN 42]", |frame| vxlan(&tagged(frame, &[0x81, 0, 0, 7]))),
        ("[VXLAN 42]", |frame| {
            let next = if frame[12] == 8 { 1 } else { 2 };
            outer(17, &in_udp(4790, &[&[0x0c, 0, 0, next, 0, 0, 42, 0], &frame[14..]].concat()))
        }),
        ("[GENEVE 42]", |frame| {
            let header = [1, 0, 0x65, 0x58, 0, 0, 42, 0, 0xff, 0xff, 0, 0];
            outer(17, &in_udp(6081, &[&header, frame].concat()))
        }),
        ("[GENEVE 42]", |frame| {
            let [a, b] = kind(frame);
            outer(17, &in_udp(6081, &[&[0, 0, a, b, 0, 0, 42, 0], &frame[14..]].concat()))
        }),
        ("[GRE]", |frame| {
            let [a, b] = kind(frame);
            outer(47, &[&[0, 0, a, b], &frame[14..]].concat())
        }),
        ("[GRE 7]", |frame| {
            // With checksum, key and sequence number, and a bridged Ethernet frame.
            let header = [0xb0, 0, 0x65, 0x58, 1, 2, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9];
            outer(47, &[&header, frame].concat())
        }),
        ("[ERSPAN 5]", |frame| {
            let header = [0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 5, 0, 0, 0, 0];
            outer(47, &[&header, frame].concat())
        }),
        ("[ERSPAN 5]", |frame| {
            let header = [0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1];
            outer(47, &[&header[..], &[0; 8], frame].concat())
        }),
        ("[ERSPAN 0]", |frame| outer(47, &[&[0, 0, 0x88, 0xbe], frame].concat())),
        ("[MPLS 17]", |frame| in_ethernet(0x8847, &[&[0, 1, 0, 64, 0, 1, 0x11, 64], &frame[14..]].concat())),
        ("[MPLS 17]", |frame| in_ethernet(0x8847, &[&[0, 1, 0x11, 64, 0, 0, 0, 0], frame].concat())),
        ("[MPLS 17]", |frame| outer(17, &in_udp(6635, &[&[0, 1, 0x11, 64], &frame[14..]].concat()))),
        ("[MPLS 17]", |frame| outer(137, &[&[0, 1, 0x11, 64], &frame[14..]].concat())),
        ("[IP in IP]", |frame| outer(ip_in_ip(frame), &frame[14..])),
        ("[IP in IP]", |frame| in_ethernet(0x86dd, &in_ipv6(ip_in_ip(frame), &frame[14..]))),
        ("[IP in IP] [VXLAN 42]", |frame| outer(4, &vxlan(frame)[14..])),
    ];
    for name in ["cm-rping-v4", "rc-send-v6"] {
        let frames = golden::frames(name);
        let want = words(&frames);
        for (number, (tunnel, rewrite)) in tunnels.into_iter().chain(ACCESS).enumerate() {
            let frames: Vec<Vec<u8>> = frames.iter().map(|frame| rewrite(frame)).collect();
            let file = pcap(&frames, 1, Endianness::Little, TsResolution::MicroSecond);
            let (packets, _) = read(&file);
            assert!(
                packets.iter().map(|packet| &packet.2).eq(&want),
                "{name} {tunnel} {number}: {packets:?}"
            );
            assert!(shown(&file).iter().all(|line| line.contains(&format!("{tunnel} "))), "{number}");
            let verdict = analyse(&file);
            assert_eq!((verdict.totals.cut, verdict.findings.len()), (0, 0), "{tunnel}: {}", verdict.text());
        }
    }
}

/// Each packet of a file as a line.
pub(crate) fn shown(file: &[u8]) -> Vec<String> {
    let mut source = Source::new(file).expect("a capture");
    let mut show = Show::new(Style::Line, Times::None, Colours::None);
    let mut lines = Vec::new();
    while let Some(record) = source.next_record().expect("reads") {
        let mut line = String::new();
        show.packet(&mut line, &record, &Seen::parse(record.decode_as, record.data));
        lines.push(line);
    }
    lines
}

#[test]
fn options_and_extension_headers_are_skipped_and_marked() {
    let frames = golden::frames("cm-rping-v4");
    let options: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| {
            let mut new = [&frame[..34], &[1, 1, 1, 0], &frame[34..]].concat();
            new[14] = 0x46;
            let len = u16::from_be_bytes([frame[16], frame[17]]) + 4;
            new[16..18].copy_from_slice(&len.to_be_bytes());
            new
        })
        .collect();
    let frames6 = golden::frames("rc-send-v6");
    // Hop-by-hop options, routing, destination options, an authentication header of 24 bytes.
    let extensions: Vec<u8> = [
        &[43, 0, 1, 4, 0, 0, 0, 0][..],
        &[60, 0, 0, 0, 0, 0, 0, 0],
        &[51, 0, 1, 4, 0, 0, 0, 0],
        &[17, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let extended: Vec<Vec<u8>> = frames6
        .iter()
        .map(|frame| {
            let mut new = [&frame[..54], &extensions, &frame[54..]].concat();
            let len = u16::from_be_bytes([frame[18], frame[19]]) + extensions.len() as u16;
            new[18..20].copy_from_slice(&len.to_be_bytes());
            new[20] = 0;
            new
        })
        .collect();
    // The authentication header of IPv4 (RFC 4302).
    let authenticated: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| {
            let header = &extensions[extensions.len() - 24..];
            let mut new = [&frame[..34], header, &frame[34..]].concat();
            let len = u16::from_be_bytes([frame[16], frame[17]]) + 24;
            new[16..18].copy_from_slice(&len.to_be_bytes());
            new[23] = 51;
            new
        })
        .collect();
    for (changed, plain) in [(options, frames.clone()), (authenticated, frames), (extended, frames6)] {
        let file = pcap(&changed, 1, Endianness::Little, TsResolution::MicroSecond);
        assert!(read(&file).0.iter().map(|packet| &packet.2).eq(&words(&plain)));
        let lines = shown(&file);
        assert!(
            lines.iter().all(|line| line.contains("[IP options]") && !line.contains("bad ICRC")),
            "{lines:?}"
        );
        // No ICRC is specified for them.
        let verdict = analyse(&file);
        assert_eq!(verdict.findings.len(), 0, "{}", verdict.text());
    }
}

/// The packets of a RoCEv2 capture with a GRH instead of IP and UDP.
#[test]
fn roce_v1_is_decoded_and_its_icrc_is_checked() {
    let frames = golden::frames("rc-send-v6");
    let v1: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| {
            let mut grh = frame[14..54].to_vec();
            let packet = &frame[62..];
            grh[4..6].copy_from_slice(&(packet.len() as u16).to_be_bytes());
            grh[6] = 0x1b;
            let mut whole = [&grh, packet].concat();
            let icrc = wire::icrc::icrc_of_grh(&whole).expect("a whole packet").to_le_bytes();
            let end = whole.len();
            whole[end - 4..].copy_from_slice(&icrc);
            in_ethernet(0x8915, &whole)
        })
        .collect();
    let file = pcap(&v1, 1, Endianness::Little, TsResolution::MicroSecond);
    assert!(read(&file).0.iter().map(|packet| &packet.2).eq(&words(&frames)));
    assert!(shown(&file).iter().all(|line| line.contains("RoCEv1 ")));
    for frame in &v1 {
        let seen = Seen::parse(wire::capture::LinkType::ETHERNET, frame).expect("RoCEv1");
        assert_eq!((seen.icrc(), seen.udp), (wire::capture::IcrcCheck::Good, None));
    }
    assert_eq!(analyse(&file).findings.len(), 0);
}

/// Two tenants with the same addresses and queue pair numbers are two connections.
#[test]
fn the_network_identifier_tells_connections_apart() {
    let frames = golden::frames("rc-write-v4");
    let mut mixed = Vec::new();
    for frame in &frames {
        for vni in [42, 43] {
            let mut frame = vxlan(frame);
            frame[14 + 20 + 8 + 6] = vni;
            mixed.push(frame);
        }
    }
    let verdict = analyse(&pcap(&mixed, 1, Endianness::Little, TsResolution::MicroSecond));
    assert_eq!((verdict.directions.len(), verdict.findings.len()), (4, 0), "{}", verdict.text());
    assert!(verdict.directions.iter().all(|direction| direction.peer.is_some()));
}

#[test]
fn tunnels_inside_each_other_have_a_limit() {
    let frame = golden::frames("rc-write-v4").remove(0);
    let mut nested = frame[14..].to_vec();
    for depth in 1..12 {
        nested = in_ipv4(4, &nested);
        let (packets, _) =
            read(&pcap(&[in_ethernet(0x0800, &nested)], 1, Endianness::Little, TsResolution::MicroSecond));
        assert_eq!(packets[0].2.contains("WRITE"), depth <= 8, "{depth}: {packets:?}");
    }
}
