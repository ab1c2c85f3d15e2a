//! Captures of Linux Soft-RoCE: every packet decodes to the names that an independent decoder found, its ICRC
//! is correct, and encoding the decoded packet gives the same bytes.

extern crate roxie_wire as wire;

#[path = "../../../../tests/golden/capture.rs"]
mod capture;

use std::collections::BTreeMap;

use wire::{
    CmMessage, Ethernet, ExtHeader, FlushIcrc, IcrcHeader, Ieth, ImmDt, Ip, MAD_LEN, Operation, Packet, Qpn,
    Syndrome, Udp, icrc_of_frame,
};

/// The number of packets per name in one capture, from `tests/golden/captures.txt`.
type Counts = BTreeMap<String, usize>;

fn expectations() -> BTreeMap<String, Counts> {
    let text = include_str!("../../../../tests/golden/captures.txt");
    text.split("\n\n")
        .map(|entry| {
            let [name, _, counts] = entry.trim_end().lines().collect::<Vec<_>>()[..] else {
                panic!("an entry has three lines: {entry}");
            };
            let counts = counts.trim().split(", ").map(|item| {
                let (label, count) = item.rsplit_once(' ').expect("a name and a count");
                (label.to_owned(), count.parse().expect("a number"))
            });
            (name.to_owned(), counts.collect())
        })
        .collect()
}

/// Returns the name of a packet in `captures.txt`.
fn label(packet: &Packet<'_>) -> String {
    if packet.bth.dest_qp == Qpn::GSI {
        let message = mad(packet).to_string();
        let kind = message.strip_prefix("CM: ").and_then(|text| text.split(' ').next());
        return kind.expect("a message of the connection manager").to_owned();
    }
    match packet.aeth().map(|aeth| aeth.syndrome) {
        Some(Syndrome::ACK) if packet.row().operation == Operation::Ack => "RC ACK".to_owned(),
        Some(Syndrome::RnrNak(timer)) => format!("RC RNR NAK {timer}"),
        Some(Syndrome::Nak(code)) => format!("RC NAK {code}"),
        _ => packet.row().name.to_owned(),
    }
}

fn mad(packet: &Packet<'_>) -> CmMessage {
    CmMessage::parse(packet.payload().try_into().expect("256 bytes")).expect("a known message")
}

/// Returns whether the ICRC of this captured packet deviates from the specification. Linux 6.3 and later
/// include BTH, FETH and RETH of a FLUSH a second time, as if they were its payload. A receiver accepts both
/// forms.
fn has_wrong_icrc(packet: &Packet<'_>) -> bool {
    packet.row().operation == Operation::Flush
}

fn each_datagram(mut f: impl FnMut(&str, &[u8], &Ip, &Udp, &[u8])) {
    let mut count = 0;
    for name in capture::names() {
        for (index, frame) in capture::frames(&name).iter().enumerate() {
            if let Some((ip, udp, payload)) = capture::datagram(frame) {
                f(&format!("{name} frame {}", index + 1), frame, &ip, &udp, payload);
                count += 1;
            }
        }
    }
    assert!(count > 1000, "only {count} datagrams: were the captures found?");
}

#[test]
fn every_capture_has_the_packets_that_an_independent_decoder_found() {
    let expected = expectations();
    assert!(expected.keys().eq(&capture::names()), "captures.txt and the capture files differ");
    for (name, want) in expected {
        let mut got = Counts::new();
        for frame in capture::frames(&name) {
            let label = match capture::datagram(&frame) {
                Some((_, _, payload)) => match Packet::parse(payload) {
                    Ok(packet) => label(&packet),
                    Err(reason) => panic!("{name}: refused: {reason}"),
                },
                None => "other".to_owned(),
            };
            *got.entry(label).or_default() += 1;
        }
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn every_icrc_is_correct_with_the_given_or_recovered_identification() {
    each_datagram(|at, frame, ip, udp, payload| {
        let packet = Packet::parse(payload).expect("decodes");
        let right = icrc_of_frame(&frame[Ethernet::LEN..]) == Some(packet.icrc());
        assert_eq!(right, !has_wrong_icrc(&packet), "{at}: {packet}");
        let (header, id) = match *ip {
            Ip::V4(ip) => (IcrcHeader::v4(ip.src, ip.dst, udp.src_port, udp.dst_port), ip.id),
            Ip::V6(ip) => (IcrcHeader::v6(ip.src, ip.dst, udp.src_port, udp.dst_port), 0),
        };
        for guess in [id, 0, !id] {
            assert_eq!(header.verify(guess, payload), Ok(id), "{at} expecting {guess:#06x}");
        }
        // This crate computes the same ICRC as the sender: in the rxe form for every packet, in the IBA form
        // for all but FLUSHes.
        let body = &payload[..payload.len() - wire::icrc::ICRC_LEN];
        let has_icrc_of = |flush| header.with_flush(flush).icrc(id, body) == packet.icrc();
        assert!(has_icrc_of(FlushIcrc::Rxe), "{at}: {packet}");
        assert_eq!(has_icrc_of(FlushIcrc::Iba), right, "{at}: {packet}");
    });
}

#[test]
fn encoding_a_decoded_packet_gives_the_same_bytes() {
    each_datagram(|at, frame, ip, udp, payload| {
        let packet = Packet::parse(payload).expect("decodes");
        let mut out = vec![0xee; frame.len()];
        let (ethernet, rest) = out.split_first_chunk_mut().expect("room");
        Ethernet::parse(frame.first_chunk().expect("a header")).emit(ethernet);
        let rest = match ip {
            Ip::V4(ip) => {
                assert!(ip.checksum_ok(), "{at}");
                let (bytes, rest) = rest.split_first_chunk_mut().expect("room");
                ip.with_checksum().emit(bytes);
                rest
            }
            Ip::V6(ip) => {
                let (bytes, rest) = rest.split_first_chunk_mut().expect("room");
                ip.emit(bytes);
                rest
            }
        };
        let (bytes, rest) = rest.split_first_chunk_mut().expect("room");
        udp.emit(bytes);
        emit(&packet, rest);
        assert_eq!(out, frame, "{at}: {packet}");
    });
}

/// Writes a packet header by header, with payload, pad and ICRC.
fn emit(packet: &Packet<'_>, out: &mut [u8]) {
    let (bytes, mut rest) = out.split_first_chunk_mut().expect("room");
    packet.bth.emit(bytes);
    for header in packet.row().headers {
        let (bytes, behind) = rest.split_at_mut(header.len_bytes());
        rest = behind;
        match header {
            ExtHeader::Deth => packet.deth().expect("has it").emit(bytes.try_into().expect("its length")),
            ExtHeader::Reth => packet.reth().expect("has it").emit(bytes.try_into().expect("its length")),
            ExtHeader::AtomicEth => {
                packet.atomic_eth().expect("has it").emit(bytes.try_into().expect("its length"))
            }
            ExtHeader::Aeth => packet.aeth().expect("has it").emit(bytes.try_into().expect("its length")),
            ExtHeader::AtomicAckEth => {
                packet.atomic_ack_eth().expect("has it").emit(bytes.try_into().expect("its length"));
            }
            ExtHeader::ImmDt => {
                ImmDt(packet.imm().expect("has it")).emit(bytes.try_into().expect("its length"))
            }
            ExtHeader::Ieth => {
                Ieth { r_key: packet.ieth().expect("has it") }.emit(bytes.try_into().expect("its length"));
            }
            ExtHeader::Feth => packet.feth().expect("has it").emit(bytes.try_into().expect("its length")),
            other => panic!("no capture has {other}"),
        }
    }
    let payload = packet.payload();
    if packet.bth.dest_qp == Qpn::GSI {
        let (bytes, behind) = rest.split_first_chunk_mut::<MAD_LEN>().expect("room");
        mad(packet).emit(bytes);
        rest = behind;
    } else {
        let (bytes, behind) = rest.split_at_mut(payload.len());
        bytes.copy_from_slice(payload);
        rest = behind;
    }
    let (pad, icrc) = rest.split_at_mut(usize::from(packet.bth.pad_cnt));
    pad.fill(0);
    icrc.copy_from_slice(&packet.icrc().to_le_bytes());
}
