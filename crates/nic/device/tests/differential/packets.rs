//! Packets that programs distinguish, and truncated ones.

use roxie_tests::random::Rng;

/// Few enough values that tables get hits.
const ADDRESSES: [u8; 6] = [1, 2, 3, 77, 128, 255];

/// A packet of at least 14 bytes, mostly well-formed.
pub(crate) fn packet(rng: &mut Rng) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, rng.pick(&ADDRESSES), 2, 0, 0, 0, 0, rng.pick(&ADDRESSES)];
    for _ in 0..rng.pick(&[0, 0, 0, 0, 1, 2, 3]) {
        packet.extend(rng.pick(&[[0x81, 0], [0x88, 0xa8]]));
        packet.extend([0, rng.next() as u8]);
    }
    let protocol = rng.pick(&[17, 17, 17, 17, 6, 1, 58, 4]);
    let payload = payload(rng, protocol);
    match rng.below(8) {
        0..5 => ipv4(rng, &mut packet, protocol, &payload),
        5..7 => ipv6(rng, &mut packet, protocol, &payload),
        _ => {
            packet.extend((rng.next() as u16).to_be_bytes());
            packet.extend(payload);
        }
    }
    if rng.one_in(6) {
        // Mostly somewhere in the headers.
        let end = if rng.one_in(3) { packet.len() } else { packet.len().min(70) };
        packet.truncate(14 + rng.below(end - 13));
    }
    if rng.one_in(6) {
        let at = rng.below(packet.len());
        packet[at] = rng.next() as u8;
    }
    packet
}

fn ipv4(rng: &mut Rng, packet: &mut Vec<u8>, protocol: u8, payload: &[u8]) {
    let options = rng.pick(&[0, 0, 0, 1, 10]);
    let fragment = rng.pick(&[[0, 0], [0x40, 0], [0x20, 0], [0, 185]]);
    let len = 20 + options * 4 + payload.len();
    packet.extend([0x08, 0x00]);
    let start = packet.len();
    packet.extend([0x45 + options as u8, rng.next() as u8]);
    packet.extend((len as u16).to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(if rng.one_in(3) { fragment } else { [0x40, 0] });
    packet.extend([rng.below(3) as u8 * 32, protocol, 0, 0]);
    packet.extend([10, 1, 0, rng.pick(&ADDRESSES), 10, 2, 0, rng.pick(&ADDRESSES)]);
    packet.extend(std::iter::repeat_n(1, options * 4));
    let sum = sum(&packet[start..]);
    packet[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
}

fn ipv6(rng: &mut Rng, packet: &mut Vec<u8>, protocol: u8, payload: &[u8]) {
    packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([protocol, rng.below(3) as u8 * 32]);
    for side in [1, 2] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, side, 0, 0, 0, 0, 0, 0, 0, rng.pick(&ADDRESSES)]);
    }
    packet.extend(payload);
}

fn payload(rng: &mut Rng, protocol: u8) -> Vec<u8> {
    let mut data = vec![0; rng.below(200)];
    rng.fill(&mut data);
    let mut payload = Vec::new();
    match protocol {
        17 => {
            let port = rng.pick(&[4791_u16, 4791, 4791, 53]);
            payload.extend(0xc001_u16.to_be_bytes());
            payload.extend(port.to_be_bytes());
            payload.extend((20 + data.len() as u16).to_be_bytes());
            payload.extend([0, 0]);
            // BTH: a few queue pairs, sequence numbers around the wrap.
            let psn = (0x00ff_fff0 + rng.below(32) as u32) & 0x00ff_ffff;
            payload.extend([rng.pick(&[0x04, 0x0a, 0x11, 0x64]), 0, 0xff, 0xff, 0]);
            payload.extend([0, (rng.below(4) as u8) << 4, 0x42 + rng.below(3) as u8]);
            payload.extend((psn | if rng.one_in(2) { 1 << 31 } else { 0 }).to_be_bytes());
        }
        1 => {
            let echo = if rng.one_in(4) { 0 } else { 8 };
            payload.extend([echo, 0, 0, 0, 0, 1, 0, 2]);
            let sum = sum(&payload);
            payload[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        _ => payload.extend([0, 80, 0, 81]),
    }
    payload.extend(data);
    payload
}

/// Internet checksum.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
