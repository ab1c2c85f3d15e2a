//! ICRC vectors: Ethernet frames that end with the ICRC as sent. Three independent CRC
//! implementations confirmed V1 to V6; V7 was captured from ConnectX-4 Lx hardware.

mod hex;

use core::net::{Ipv4Addr, Ipv6Addr};

use hex::bytes;
use roxie_wire::{
    AtomicEth, DropReason, IcrcHeader, Opcode, PKey, Packet, Psn, QKey, Qpn, ROCE_PORT, Reth, Rkey, Syndrome,
    icrc_of_frame,
};

const VECTORS: [(&str, &str); 7] = [
    ("V1", include_str!("vectors/v1.frame.hex")),
    ("V2", include_str!("vectors/v2.frame.hex")),
    ("V3", include_str!("vectors/v3.frame.hex")),
    ("V4", include_str!("vectors/v4.frame.hex")),
    ("V5", include_str!("vectors/v5.frame.hex")),
    ("V6", include_str!("vectors/v6.frame.hex")),
    ("V7", include_str!("vectors/v7.frame.hex")),
];

const ETHERNET: usize = 14;

fn vector(name: &str) -> Vec<u8> {
    bytes(VECTORS.iter().find(|(n, _)| *n == name).unwrap().1)
}

/// Returns the flow's pseudo header, the IPv4 identification, and the UDP payload.
fn flow(frame: &[u8]) -> (IcrcHeader, u16, &[u8]) {
    let ip = &frame[ETHERNET..];
    let port = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
    if ip[0] >> 4 == 4 {
        let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
        (IcrcHeader::v4(address(12), address(16), port(20), port(22)), port(4), &ip[28..])
    } else {
        let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap());
        (IcrcHeader::v6(address(8), address(24), port(40), port(42)), 0, &ip[48..])
    }
}

#[test]
fn every_vector_has_the_computed_icrc() {
    for (name, hex) in VECTORS {
        let frame = bytes(hex);
        let sent = u32::from_le_bytes(*frame.last_chunk().unwrap());
        assert_eq!(icrc_of_frame(&frame[ETHERNET..]), Some(sent), "{name} from the frame");
        let (header, id, payload) = flow(&frame);
        assert_eq!(header.icrc(id, &payload[..payload.len() - 4]), sent, "{name} from the flow");
        assert_eq!(Packet::parse(payload).unwrap().icrc(), sent, "{name} as received");
    }
}

#[test]
fn every_vector_verifies_with_the_identification_known_unknown_or_wrong() {
    for (name, hex) in VECTORS {
        let frame = bytes(hex);
        let (header, id, payload) = flow(&frame);
        for expected in [id, 0, 1, 0xffff] {
            assert_eq!(header.verify(expected, payload), Ok(id), "{name} expecting {expected}");
        }
    }
}

#[test]
fn every_flipped_bit_except_congestion_marks_is_detected() {
    for (name, hex) in VECTORS {
        let frame = bytes(hex);
        let (header, id, payload) = flow(&frame);
        for bit in 0..payload.len() * 8 {
            let mut payload = payload.to_vec();
            payload[bit / 8] ^= 1 << (bit % 8);
            let want = if bit / 8 == 4 { Ok(id) } else { Err(DropReason::BadIcrc) };
            assert_eq!(header.verify(id, &payload), want, "{name} bit {bit}");
        }
    }
}

#[test]
fn the_icrc_excludes_fields_that_a_router_may_change() {
    for (at, name) in
        [(1, "V1"), (8, "V1"), (10, "V1"), (26, "V1"), (1, "V2"), (3, "V2"), (7, "V2"), (46, "V2")]
    {
        let mut frame = vector(name);
        let before = icrc_of_frame(&frame[ETHERNET..]);
        frame[ETHERNET + at] ^= 0x0f;
        assert_eq!(icrc_of_frame(&frame[ETHERNET..]), before, "{name} byte {at}");
    }
    let mut frame = vector("V1");
    let before = icrc_of_frame(&frame[ETHERNET..]);
    frame[ETHERNET + 15] ^= 1;
    assert_ne!(icrc_of_frame(&frame[ETHERNET..]), before, "the source address counts");
}

#[test]
fn a_fragment_or_another_protocol_has_no_icrc() {
    let frame = vector("V1");
    for (at, value) in [(0, 0x46), (6, 0x60), (7, 1), (9, 6)] {
        let mut ip = frame[ETHERNET..].to_vec();
        ip[at] = value;
        assert_eq!(icrc_of_frame(&ip), None, "byte {at}");
    }
    assert_eq!(icrc_of_frame(&frame[ETHERNET..frame.len() - 1]), None, "cut short");
}

#[test]
fn the_vectors_decode_to_their_fields() {
    let v1 = vector("V1");
    let packet = Packet::parse(flow(&v1).2).unwrap();
    assert_eq!(packet.bth.opcode, Opcode::RC_SEND_ONLY);
    assert_eq!((packet.bth.solicited, packet.bth.pad_cnt, packet.bth.ack_req), (true, 3, true));
    assert_eq!(packet.bth.p_key, PKey::DEFAULT);
    assert_eq!((packet.bth.dest_qp, packet.bth.psn), (Qpn::new(0x12), Psn::new(0x12_3456)));
    assert_eq!(packet.payload(), b"Hello, RoCEv2");
    assert_eq!(packet.to_string(), "RC SEND Only QP=0x000012 PSN=1193046 SE AckReq Pad=3, 13 bytes");

    let v2 = vector("V2");
    let packet = Packet::parse(flow(&v2).2).unwrap();
    assert_eq!(packet.reth(), Some(Reth { va: 0x7f12_3456_7000, r_key: Rkey(0xa1b2), dma_len: 8 }));
    assert_eq!(packet.payload(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(packet.aeth(), None);

    let v3 = vector("V3");
    let aeth = Packet::parse(flow(&v3).2).unwrap().aeth().unwrap();
    assert_eq!((aeth.syndrome, aeth.msn.value()), (Syndrome::ACK, 1));

    let v4 = vector("V4");
    let packet = Packet::parse(flow(&v4).2).unwrap();
    assert_eq!(packet.bth.opcode, Opcode::CNP);
    assert!(packet.bth.becn && packet.payload().is_empty());

    let v5 = vector("V5");
    let packet = Packet::parse(flow(&v5).2).unwrap();
    let deth = packet.deth().unwrap();
    assert_eq!((deth.q_key, deth.src_qp), (QKey::GSI, Qpn::GSI));
    assert_eq!((packet.bth.dest_qp, packet.bth.psn), (Qpn::GSI, Psn::new(5)));
    assert_eq!(packet.imm(), Some([0x11, 0x22, 0x33, 0x44]));
    assert_eq!(packet.payload(), b"roxie-ud");

    let v6 = vector("V6");
    let want = AtomicEth {
        va: 0x1122_3344_5566_7788,
        r_key: Rkey(0xdead_beef),
        swap_or_add: 0x0102_0304_0506_0708,
        compare: 0x1112_1314_1516_1718,
    };
    assert_eq!(Packet::parse(flow(&v6).2).unwrap().atomic_eth(), Some(want));

    let v7 = vector("V7");
    let packet = Packet::parse(flow(&v7).2).unwrap();
    assert_eq!((packet.bth.opcode, packet.bth.dest_qp), (Opcode::CNP, Qpn::new(0x118)));
}

#[test]
fn the_vectors_go_to_the_roce_port() {
    for (name, hex) in VECTORS {
        let frame = bytes(hex);
        let udp = ETHERNET + if frame[ETHERNET] >> 4 == 4 { 20 } else { 40 };
        assert_eq!(u16::from_be_bytes([frame[udp + 2], frame[udp + 3]]), ROCE_PORT, "{name}");
    }
}
