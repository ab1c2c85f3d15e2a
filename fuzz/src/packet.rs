//! Fuzzes a datagram from the network: headers, lengths and ICRC, as the receive path checks them.

use std::net::{Ipv4Addr, Ipv6Addr};

use wire::opcode::{ExtHeader, OPCODES};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Ethernet, Feth, IcrcHeader, Ieth, ImmDt, Ip, Ipv4, Ipv6,
    Opcode, Packet, Rdeth, Reth, Udp, VlanTag, Xrceth, icrc_of_frame,
};

use crate::draw::Draw;

const ICRC_LEN: usize = 4;

/// Runs one input. Byte 0 selects the identification that the receiver expects, the next two bytes the
/// opcode. The rest is used as UDP payload and as a frame.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let expected_id = u16::from(draw.any::<u8>());
    let known = draw.one_in(2);
    let opcode = draw.any::<u8>();
    let mut bytes = draw.rest().to_vec();
    frame(&bytes);
    if known
        && let (Some(first), Some(row)) = (bytes.first_mut(), OPCODES.iter().flatten().nth(opcode.into()))
    {
        *first = row.opcode.0;
    }
    udp_payload(&bytes, expected_id);
}

fn udp_payload(bytes: &[u8], expected_id: u16) {
    let v4 =
        IcrcHeader::v4(Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2), 0xc123, wire::ROCE_PORT);
    let v6 = IcrcHeader::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED, 0xc123, wire::ROCE_PORT);
    // The ICRC of a FLUSH may cover it twice, as rxe does; both forms are accepted, so the input can match
    // one by chance.
    let is_flush = bytes.first() == Some(&Opcode::RC_FLUSH.0);
    for header in [&v4, &v6] {
        // Unchanged input: an accepted packet has the ICRC that is computed for it.
        if let Ok(id) = header.verify(expected_id, bytes)
            && !is_flush
        {
            let (covered, received) = bytes.split_at(bytes.len() - ICRC_LEN);
            assert_eq!(header.icrc(id, covered).to_le_bytes(), received);
        }
        // With the correct ICRC the packet is accepted; with one flipped bit it is refused, if the ICRC
        // covers that bit.
        if bytes.len() >= Bth::LEN {
            let mut sent = bytes.to_vec();
            sent.extend(header.icrc(expected_id, bytes).to_le_bytes());
            assert!(header.verify(expected_id, &sent).is_ok());
            assert!(header.verify(0, &sent).is_ok());
            if bytes.len() > Bth::LEN && !is_flush {
                let at = Bth::LEN + usize::from(expected_id) % (bytes.len() - Bth::LEN);
                sent[at] ^= 0x10;
                assert!(header.verify(expected_id, &sent).is_err());
            }
        }
    }
    let Ok(packet) = Packet::parse(bytes) else { return };
    let row = packet.row();
    let pad = usize::from(packet.bth.pad_cnt);
    assert_eq!(row.header_len() + packet.payload().len() + pad + ICRC_LEN, bytes.len());
    assert_eq!(packet.payload(), &bytes[row.header_len()..row.header_len() + packet.payload().len()]);
    assert_eq!(packet.icrc().to_le_bytes(), bytes[bytes.len() - ICRC_LEN..]);
    let shown = [
        (ExtHeader::Rdeth, packet.rdeth().is_some()),
        (ExtHeader::Deth, packet.deth().is_some()),
        (ExtHeader::Xrceth, packet.xrceth().is_some()),
        (ExtHeader::Feth, packet.feth().is_some()),
        (ExtHeader::Reth, packet.reth().is_some()),
        (ExtHeader::AtomicEth, packet.atomic_eth().is_some()),
        (ExtHeader::Aeth, packet.aeth().is_some()),
        (ExtHeader::AtomicAckEth, packet.atomic_ack_eth().is_some()),
        (ExtHeader::ImmDt, packet.imm().is_some()),
        (ExtHeader::Ieth, packet.ieth().is_some()),
    ];
    for (header, shown) in shown {
        assert_eq!(shown, row.headers.contains(&header), "{} {header}", row.name);
    }
    assert!(!packet.to_string().is_empty());
    headers_round_trip(bytes);
}

/// Checks that `parse` of `emit` is the same value.
macro_rules! round_trip {
    ($bytes:expr, $($header:ty),*) => {$(
        if let Some(bytes) = $bytes.first_chunk::<{ <$header>::LEN }>() {
            let header = <$header>::parse(bytes);
            let mut out = [0xa5; <$header>::LEN];
            header.emit(&mut out);
            assert_eq!(<$header>::parse(&out), header);
            assert!(!header.to_string().is_empty());
        }
    )*};
}

fn headers_round_trip(bytes: &[u8]) {
    round_trip!(bytes, Bth);
    let rest = &bytes[Bth::LEN..];
    round_trip!(rest, Rdeth, Deth, Xrceth, Feth, Reth, AtomicEth, Aeth, AtomicAckEth, ImmDt, Ieth);
}

fn frame(bytes: &[u8]) {
    round_trip!(bytes, Ethernet, VlanTag, Ipv4, Ipv6, Udp);
    let found = icrc_of_frame(bytes);
    if let Some((_, _, ether_type, packet)) = Ethernet::split(bytes)
        && let Some((ip, datagram)) = Ip::split(ether_type, packet)
        && let Some((udp, payload)) = Udp::split(datagram)
    {
        let _known_or_not = udp.checksum_ok(ip.src(), ip.dst(), payload);
        let _parsed_or_not = Packet::parse(payload);
        let _computed_or_not = icrc_of_frame(packet);
    }
    // Both functions that compute an ICRC agree where both apply.
    if let Some(value) = found
        && bytes[0] == 0x45
        && bytes[6] == 0x40
    {
        let header = Ipv4::parse(bytes.first_chunk().expect("icrc_of_frame has checked the length"));
        let sport = u16::from_be_bytes([bytes[20], bytes[21]]);
        let covered = &bytes[28..usize::from(header.total_len) - ICRC_LEN];
        let udp_len = usize::from(u16::from_be_bytes([bytes[24], bytes[25]]));
        if udp_len == usize::from(header.total_len) - 20 && header.protocol == 17 {
            let flow = IcrcHeader::v4(header.src, header.dst, sport, wire::ROCE_PORT);
            assert_eq!(flow.icrc(header.id, covered), value);
        }
    }
}
