//! The invariant CRC (ICRC): detects packets that changed on the way (IBA 7.8.1, Annex A17.3).
//!
//! It is the CRC-32 of IEEE 802.3 over eight bytes of ones, the IP header, the UDP header and the packet from
//! the BTH to the pad. Fields that a router may change are replaced by ones. The least significant byte goes
//! on the wire first.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket can neither choose nor read.
//! [`IcrcHeader::verify`] therefore tries the expected identification first. If the ICRC does not match, it
//! computes the one identification with which the ICRC is correct.

use core::net::{Ipv4Addr, Ipv6Addr};

use crc32fast::Hasher;

use crate::bth::Bth;
use crate::bytes::put;
use crate::drop::DropReason;
use crate::ip::{Ipv4, PROTOCOL_UDP};
use crate::opcode::Opcode;
use crate::udp::Udp;

/// Bytes of the ICRC on the wire.
pub const ICRC_LEN: usize = 4;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
/// Offset in the BTH of the byte with FECN, BECN and reserved bits, which the ICRC does not cover.
const BTH_VARIANT: usize = 4;
/// Length of the ones in place of the local route header, which Ethernet does not have.
const LRH_LEN: usize = 8;

/// How a sender computes the ICRC of a FLUSH request. Receivers accept both forms.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum FlushIcrc {
    /// Over the packet once, as for every other opcode (IBA 7.8.1).
    #[default]
    Iba,
    /// Over the packet, followed by BTH, FETH and RETH a second time, unmasked. Linux rxe sends this form and
    /// accepts no other (6.12, 7.2).
    Rxe,
}

/// The pseudo header of one flow, prepared for the ICRCs of its packets.
///
/// ```
/// use std::net::Ipv6Addr;
///
/// use roxie_wire::{DropReason, IcrcHeader, ROCE_PORT};
///
/// let flow = IcrcHeader::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 0xc001, ROCE_PORT);
/// let mut packet = vec![0x04, 0, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 4];
/// packet.extend(flow.icrc(0, &packet).to_le_bytes());
/// assert_eq!(flow.verify(0, &packet), Ok(0));
///
/// packet[11] ^= 1;
/// assert_eq!(flow.verify(0, &packet), Err(DropReason::BadIcrc));
/// ```
///
/// The CRC is linear. The fields that differ between packets (two lengths, the identification, the BTH) are
/// zero in the prepared register; table look-ups per byte add their contributions. These loads are
/// independent of each other, so they take less time than a CRC over the headers, which the CRC of the
/// payload would have to wait for.
#[derive(Clone, Copy, Debug)]
pub struct IcrcHeader {
    /// The CRC register after the BTH, with all varying bytes zero.
    register: u32,
    version: Version,
    flush: FlushIcrc,
}

#[derive(Clone, Copy, Debug)]
enum Version {
    V4,
    V6,
}

impl IcrcHeader {
    /// Prepares the pseudo header for IPv4 packets without options and with DF set, which is every RoCEv2
    /// packet.
    #[must_use]
    pub fn v4(src: Ipv4Addr, dst: Ipv4Addr, sport: u16, dport: u16) -> Self {
        let mut block = [0; LRH_LEN + IPV4_LEN + Udp::LEN + Bth::LEN];
        put(&mut block, 0, [0xff; LRH_LEN]);
        let ip = &mut block[LRH_LEN..];
        // Type of service, TTL and checksum are masked; lengths and identification differ between packets.
        put(ip, 0, [0x45, 0xff]);
        put(ip, 6, [0x40, 0, 0xff, PROTOCOL_UDP, 0xff, 0xff]);
        put(ip, 12, src.octets());
        put(ip, 16, dst.octets());
        fill_udp_and_bth(&mut ip[IPV4_LEN..], sport, dport);
        Self { register: !crc32fast::hash(&block), version: Version::V4, flush: FlushIcrc::Iba }
    }

    /// Prepares the pseudo header for IPv6 packets without extension headers.
    #[must_use]
    pub fn v6(src: Ipv6Addr, dst: Ipv6Addr, sport: u16, dport: u16) -> Self {
        let mut block = [0; LRH_LEN + IPV6_LEN + Udp::LEN + Bth::LEN];
        put(&mut block, 0, [0xff; LRH_LEN]);
        let ip = &mut block[LRH_LEN..];
        // Traffic class, flow label and hop limit are masked; the length differs between packets.
        put(ip, 0, [0x6f, 0xff, 0xff, 0xff]);
        put(ip, 6, [PROTOCOL_UDP, 0xff]);
        put(ip, 8, src.octets());
        put(ip, 24, dst.octets());
        fill_udp_and_bth(&mut ip[IPV6_LEN..], sport, dport);
        Self { register: !crc32fast::hash(&block), version: Version::V6, flush: FlushIcrc::Iba }
    }

    /// Returns the same flow with another form of the ICRC for FLUSH requests.
    #[must_use]
    pub fn with_flush(self, flush: FlushIcrc) -> Self {
        Self { flush, ..self }
    }

    /// Computes the ICRC of one packet. Its wire form is `to_le_bytes`. `packet` is the packet from BTH to
    /// pad, at least [`Bth::LEN`] bytes. `ip_id` is the identification of the IPv4 header; IPv6 ignores it.
    #[must_use]
    #[inline]
    pub fn icrc(&self, ip_id: u16, packet: &[u8]) -> u32 {
        let again = self.flush == FlushIcrc::Rxe && packet.first() == Some(&Opcode::RC_FLUSH.0);
        self.crc(ip_id, packet, if again { packet } else { &[] })
    }

    /// As [`Self::icrc`], continued over `tail`.
    #[inline]
    fn crc(&self, ip_id: u16, packet: &[u8], tail: &[u8]) -> u32 {
        let Some((bth, rest)) = packet.split_first_chunk::<{ Bth::LEN }>() else {
            debug_assert!(false, "the packet is shorter than a BTH");
            return 0;
        };
        // The wire has no packets beyond 64 KiB. For such a length the cut value yields an ICRC that no
        // receiver accepts.
        let udp_len = (Udp::LEN + packet.len() + ICRC_LEN) as u16;
        let headers = match self.version {
            Version::V4 => {
                UDP_LENGTH.of(udp_len)
                    ^ IPV4_LENGTH.of(udp_len.wrapping_add(IPV4_LEN as u16))
                    ^ IPV4_ID.of(ip_id)
            }
            Version::V6 => UDP_LENGTH.of(udp_len) ^ IPV6_LENGTH.of(udp_len),
        };
        let register = self.register ^ headers ^ bth_part(bth);
        if rest.len() <= SHORT && tail.is_empty() {
            return !short(register, rest);
        }
        let mut hasher = Hasher::new_with_initial(!register);
        hasher.update(rest);
        hasher.update(tail);
        hasher.finalize()
    }

    /// Checks the ICRC of a received packet and returns the IPv4 identification with which it was sent.
    ///
    /// `expected_id` is tried first (the packets of a GRO batch have 0, 1, 2, ...). If the ICRC does not
    /// match, the identification is recovered from the difference, which leaves 16 of the 32 bits for error
    /// detection. IPv6 has no identification: all 32 bits are checked and the result is 0.
    ///
    /// # Errors
    /// [`DropReason::BadIcrc`] if the ICRC is wrong; [`DropReason::TooShort`] if BTH and ICRC do not fit.
    #[inline]
    pub fn verify(&self, expected_id: u16, udp_payload: &[u8]) -> Result<u16, DropReason> {
        let (packet, received) = udp_payload.split_last_chunk::<ICRC_LEN>().ok_or(DropReason::TooShort)?;
        if packet.len() < Bth::LEN {
            return Err(DropReason::TooShort);
        }
        match self.check(expected_id, packet, &[], *received) {
            // The second form of `FlushIcrc`.
            Err(_) if packet[0] == Opcode::RC_FLUSH.0 => self.check(expected_id, packet, packet, *received),
            checked => checked,
        }
    }

    #[inline]
    fn check(
        &self,
        expected_id: u16,
        packet: &[u8],
        tail: &[u8],
        received: [u8; ICRC_LEN],
    ) -> Result<u16, DropReason> {
        let difference = self.crc(expected_id, packet, tail) ^ u32::from_le_bytes(received);
        match self.version {
            Version::V4 if difference == 0 => Ok(expected_id),
            Version::V4 => recover_id(difference, packet.len() + tail.len()).map(|id| id ^ expected_id),
            Version::V6 if difference == 0 => Ok(0),
            Version::V6 => Err(DropReason::BadIcrc),
        }
    }
}

fn fill_udp_and_bth(bytes: &mut [u8], sport: u16, dport: u16) {
    put(bytes, 0, sport.to_be_bytes());
    put(bytes, 2, dport.to_be_bytes());
    put(bytes, 6, [0xff, 0xff]);
    bytes[Udp::LEN + BTH_VARIANT] = 0xff;
}

/// Returns the contribution of a BTH to the register after it. The byte that the ICRC does not cover is
/// already in [`IcrcHeader::register`].
#[inline]
fn bth_part(bth: &[u8; Bth::LEN]) -> u32 {
    let mut part = 0;
    for (at, (byte, table)) in bth.iter().zip(&BTH).enumerate() {
        if at != BTH_VARIANT {
            part ^= table[usize::from(*byte)];
        }
    }
    part
}

/// Runs the register over a few bytes, with the tables that [`bth_part`] has just loaded: as many bytes as a
/// BTH has at a time, then four.
#[inline]
fn short(mut register: u32, bytes: &[u8]) -> u32 {
    let [.., three, two, one, last] = &BTH;
    let (blocks, rest) = bytes.as_chunks::<{ Bth::LEN }>();
    for block in blocks {
        let Some((head, tail)) = block.split_first_chunk() else { break };
        let first = (register ^ u32::from_le_bytes(*head)).to_le_bytes();
        let parts = first.iter().chain(tail).zip(&BTH);
        register = parts.fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)]);
    }
    let (words, rest) = rest.as_chunks();
    for word in words {
        let [a, b, c, d] = (register ^ u32::from_le_bytes(*word)).to_le_bytes().map(usize::from);
        register = three[a] ^ two[b] ^ one[c] ^ last[d];
    }
    // A packet ends at a multiple of four bytes (IBA 9.2.6). This is for callers with other bytes.
    rest.iter().fold(register, |register, byte| register >> 8 ^ last[usize::from(register as u8 ^ byte)])
}

/// Bytes behind the BTH up to which [`short`] is faster than [`Hasher`]: a WRITE of 8 bytes. It takes 14 ns,
/// with `Hasher` 17; 28 bytes take 17 and 16 (EPYC, tables in the first-level cache). The kernel's network
/// stack displaces the tables of `Hasher` from that cache.
const SHORT: usize = 24;

/// The contributions of a 16-bit field to the register after the BTH.
struct Field {
    high: [u32; 256],
    low: [u32; 256],
}

impl Field {
    /// A field with `distance` bytes from its last byte to the end of the BTH.
    const fn new(distance: usize) -> Self {
        Self { high: byte_at(distance + 1), low: byte_at(distance) }
    }

    #[inline]
    fn of(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.high[usize::from(high)] ^ self.low[usize::from(low)]
    }
}

static UDP_LENGTH: Field = Field::new(Udp::LEN - 6 + Bth::LEN);
static IPV4_LENGTH: Field = Field::new(IPV4_LEN - 4 + Udp::LEN + Bth::LEN);
static IPV4_ID: Field = Field::new(IPV4_LEN - 6 + Udp::LEN + Bth::LEN);
static IPV6_LENGTH: Field = Field::new(IPV6_LEN - 6 + Udp::LEN + Bth::LEN);
static BTH: [[u32; 256]; Bth::LEN] = {
    let mut tables = [[0; 256]; Bth::LEN];
    let mut at = 0;
    while at < Bth::LEN {
        tables[at] = byte_at(Bth::LEN - 1 - at);
        at += 1;
    }
    tables
};

/// Returns the contribution of each value of a byte that `distance` zero bytes follow.
const fn byte_at(distance: usize) -> [u32; 256] {
    let mut factor = ONE;
    let mut i = 0;
    while i < distance {
        factor = forward(factor);
        i += 1;
    }
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = multiply(forward(byte as u32), factor);
        byte += 1;
    }
    table
}

/// Returns the identification that changes the ICRC of a packet by `difference`. `packet_len` is the length
/// of the packet from BTH to pad, in bytes.
///
/// The CRC is linear, so `difference` is the CRC of a message that is zero except for the identification. The
/// register is run backwards to the position just before those two bytes. Its low half then holds the
/// identification; a high half that is not zero is an error elsewhere in the packet.
#[cold]
fn recover_id(difference: u32, packet_len: usize) -> Result<u16, DropReason> {
    let bytes = 2 + (IPV4_LEN - 6) + Udp::LEN + packet_len;
    let (Some(&low), Some(&high)) = (BACK_1.get(bytes % 256), BACK_256.get(bytes / 256)) else {
        return Err(DropReason::BadIcrc);
    };
    let register = multiply(multiply(difference, low), high);
    match u16::try_from(register) {
        Ok(id) => Ok(id.swap_bytes()),
        Err(_) => Err(DropReason::BadIcrc),
    }
}

/// Returns whether two packets of equal length are the same except for their IPv4 identifications.
/// `difference` is the exclusive or of their ICRCs, `ids` that of their identifications, `packet_len` the
/// length of each from BTH to pad, in bytes.
#[must_use]
pub fn differ_by_id(difference: u32, ids: u16, packet_len: usize) -> bool {
    if difference == 0 { ids == 0 } else { recover_id(difference, packet_len) == Ok(ids) }
}

/// As [`differ_by_id`]; `ack_req` says that the packets also differ in the AckReq bit of the BTH. A requester
/// may set it when it retransmits.
#[must_use]
pub fn differ_by_id_and_ack_req(difference: u32, ids: u16, ack_req: bool, packet_len: usize) -> bool {
    const ACK_REQ_AT: usize = 8;
    let bit = match packet_len.checked_sub(ACK_REQ_AT + 1) {
        Some(behind) if ack_req => multiply(forward(0x80), power(behind)),
        _ => 0,
    };
    differ_by_id(difference ^ bit, ids, packet_len)
}

/// x^8n modulo the polynomial: the factor that runs the register `bytes` bytes forwards.
fn power(bytes: usize) -> u32 {
    let (mut result, mut base, mut left) = (ONE, forward(ONE), bytes);
    while left > 0 {
        if left & 1 != 0 {
            result = multiply(result, base);
        }
        base = multiply(base, base);
        left >>= 1;
    }
    result
}

/// x^-8n modulo the polynomial: the factor that runs the register `n` bytes backwards, for n below 256.
static BACK_1: [u32; 256] = powers(back(ONE));
/// The same for multiples of 256 bytes, up to the longest UDP payload.
static BACK_256: [u32; 257] = powers(multiply(BACK_1_LAST, back(ONE)));
const BACK_1_LAST: u32 = powers::<256>(back(ONE))[255];

/// x^0 in the reflected bit order of this CRC: the highest bit.
const ONE: u32 = 1 << 31;
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Runs the register one byte (eight bits) forwards.
const fn forward(mut register: u32) -> u32 {
    let mut step = 0;
    while step < 8 {
        register = if register & 1 != 0 { register >> 1 ^ POLYNOMIAL } else { register >> 1 };
        step += 1;
    }
    register
}

/// Runs the register one byte backwards.
const fn back(mut register: u32) -> u32 {
    let mut step = 0;
    while step < 8 {
        register = if register >> 31 != 0 { (register ^ POLYNOMIAL) << 1 | 1 } else { register << 1 };
        step += 1;
    }
    register
}

const fn powers<const N: usize>(base: u32) -> [u32; N] {
    let mut table = [ONE; N];
    let mut i = 1;
    while i < N {
        table[i] = multiply(table[i - 1], base);
        i += 1;
    }
    table
}

/// Returns the product of two reflected polynomials modulo the polynomial of the CRC.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & 0u32.wrapping_sub(a >> bit & 1);
        b = b >> 1 ^ POLYNOMIAL & 0u32.wrapping_sub(b & 1);
    }
    product
}

/// Computes the correct ICRC of a captured packet. `ip_packet` starts at the IP header. Returns `None` unless
/// it is a complete, unfragmented IPv4 (without options) or IPv6 packet that carries UDP.
#[must_use]
pub fn icrc_of_frame(ip_packet: &[u8]) -> Option<u32> {
    let (ip_len, total_len) = match ip_packet.first()? {
        0x45 => (IPV4_LEN, usize::from(u16::from_be_bytes([*ip_packet.get(2)?, *ip_packet.get(3)?]))),
        version if version >> 4 == 6 => {
            let payload = u16::from_be_bytes([*ip_packet.get(4)?, *ip_packet.get(5)?]);
            (IPV6_LEN, IPV6_LEN + usize::from(payload))
        }
        _ => return None,
    };
    let (covered, _) = ip_packet.get(..total_len)?.split_last_chunk::<ICRC_LEN>()?;
    let (ip, packet) = covered.split_at_checked(ip_len)?;
    let (udp, packet) = packet.split_first_chunk::<{ Udp::LEN }>()?;
    if packet.len() < Bth::LEN {
        return None;
    }

    let mut block = [0xff; LRH_LEN + IPV6_LEN + Udp::LEN + Bth::LEN];
    let headers = &mut block[LRH_LEN..];
    headers[..ip_len].copy_from_slice(ip);
    let (protocol, masked) = if ip_len == IPV4_LEN {
        if Ipv4::parse(ip.first_chunk()?).is_fragment() {
            return None;
        }
        (ip[9], [1, 8, 10, 11])
    } else {
        headers[0] |= 0x0f;
        (ip[6], [1, 2, 3, 7])
    };
    if protocol != PROTOCOL_UDP {
        return None;
    }
    for at in masked {
        headers[at] = 0xff;
    }
    let (bth, rest) = packet.split_at(Bth::LEN);
    headers[ip_len..ip_len + Udp::LEN].copy_from_slice(udp);
    put(headers, ip_len + 6, [0xff, 0xff]);
    headers[ip_len + Udp::LEN..ip_len + Udp::LEN + Bth::LEN].copy_from_slice(bth);
    headers[ip_len + Udp::LEN + BTH_VARIANT] = 0xff;

    let mut hasher = Hasher::new();
    hasher.update(&block[..LRH_LEN + ip_len + Udp::LEN + Bth::LEN]);
    hasher.update(rest);
    Some(hasher.finalize())
}

/// Computes the ICRC of a captured RoCEv1 packet, which starts at its GRH. The fields that routers change,
/// and an LRH that is not there, count as ones, as in RoCEv2 (IBA Annex A16). Returns `None` if the packet is
/// incomplete.
#[must_use]
pub fn icrc_of_grh(packet: &[u8]) -> Option<u32> {
    let (grh, rest) = packet.split_first_chunk::<IPV6_LEN>()?;
    let len = usize::from(u16::from_be_bytes([grh[4], grh[5]]));
    let (covered, _) = rest.get(..len)?.split_last_chunk::<ICRC_LEN>()?;
    let (bth, rest) = covered.split_first_chunk::<{ Bth::LEN }>()?;
    let mut block = [0xff; LRH_LEN + IPV6_LEN + Bth::LEN];
    put(&mut block, LRH_LEN, *grh);
    block[LRH_LEN] |= 0x0f;
    for at in [1, 2, 3, 7] {
        block[LRH_LEN + at] = 0xff;
    }
    put(&mut block, LRH_LEN + IPV6_LEN, *bth);
    block[LRH_LEN + IPV6_LEN + BTH_VARIANT] = 0xff;
    let mut hasher = Hasher::new();
    hasher.update(&block);
    hasher.update(rest);
    Some(hasher.finalize())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::udp::ROCE_PORT;
    use proptest::prelude::*;

    /// The definition, bit by bit: ones, masked headers, packet.
    fn reference(covered: &[u8]) -> u32 {
        let mut register = u32::MAX;
        for byte in [0xff; LRH_LEN].iter().chain(covered) {
            register ^= u32::from(*byte);
            for _ in 0..8 {
                register = if register & 1 != 0 { register >> 1 ^ POLYNOMIAL } else { register >> 1 };
            }
        }
        !register
    }

    fn v4_covered(src: Ipv4Addr, dst: Ipv4Addr, sport: u16, id: u16, packet: &[u8]) -> Vec<u8> {
        let udp_len = (packet.len() + 12) as u16;
        let mut out = std::vec![0x45, 0xff];
        out.extend((udp_len + 20).to_be_bytes());
        out.extend(id.to_be_bytes());
        out.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
        out.extend(src.octets());
        out.extend(dst.octets());
        out.extend(sport.to_be_bytes());
        out.extend([0x12, 0xb7]);
        out.extend(udp_len.to_be_bytes());
        out.extend([0xff, 0xff]);
        out.extend(packet);
        out[32] = 0xff;
        out
    }

    #[test]
    fn one_byte_back_undoes_one_byte_forward() {
        for s in [1, ONE, 0x1234_5678, u32::MAX] {
            assert_eq!(back(forward(s)), s);
            assert_eq!(multiply(s, BACK_1[1]), back(s));
            assert_eq!((0..256).fold(s, |s, _| back(s)), multiply(s, BACK_256[1]));
        }
    }

    /// The example of vector V1: the ICRC is 0xa34b8c59 with identification 0 and 0xfaad6b15 with 0x1234.
    #[test]
    fn the_identification_is_recovered_from_the_difference() {
        let difference = 0xa34b_8c59 ^ 0xfaad_6b15;
        assert_eq!(recover_id(difference, 28), Ok(0x1234));
        assert!(differ_by_id(difference, 0x1234, 28) && differ_by_id(0, 0, 28));
        assert!(!differ_by_id(difference, 0x1235, 28) && !differ_by_id(difference ^ 1, 0x1234, 28));
        assert!(!differ_by_id(0, 1, 28));
    }

    proptest! {
        #[test]
        fn the_table_driven_icrc_equals_the_definition(
            src: [u8; 4], dst: [u8; 4], sport: u16, id: u16,
            packet in prop_oneof![12..40_usize, 12..1200_usize]
                .prop_flat_map(|len| prop::collection::vec(any::<u8>(), len)),
        ) {
            let header = IcrcHeader::v4(src.into(), dst.into(), sport, ROCE_PORT);
            let want = reference(&v4_covered(src.into(), dst.into(), sport, id, &packet));
            prop_assert_eq!(header.icrc(id, &packet), want);
        }

        #[test]
        fn the_identification_is_recovered_for_every_expected_value(
            id: u16, expected: u16, packet in prop::collection::vec(any::<u8>(), 12..5000),
        ) {
            let header = IcrcHeader::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000, ROCE_PORT);
            let mut payload = packet.clone();
            payload.extend(header.icrc(id, &packet).to_le_bytes());
            prop_assert_eq!(header.verify(expected, &payload), Ok(id));
            // Every burst error of up to 16 bits is detected even if the identification is unknown.
            payload[packet.len() / 2] ^= 1;
            if packet.len() / 2 != 4 {
                prop_assert_eq!(header.verify(id, &payload), Err(DropReason::BadIcrc));
            }
        }

        #[test]
        fn a_difference_in_identification_and_ack_req_is_recognised(
            a: u16, b: u16, packet in prop::collection::vec(any::<u8>(), 12..5000),
        ) {
            let header = IcrcHeader::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xc000, ROCE_PORT);
            let mut other = packet.clone();
            other[8] ^= 0x80;
            let difference = header.icrc(a, &packet) ^ header.icrc(b, &other);
            prop_assert!(differ_by_id_and_ack_req(difference, a ^ b, true, packet.len()));
            prop_assert!(!differ_by_id_and_ack_req(difference, a ^ b, false, packet.len()));
        }

        #[test]
        fn ipv6_is_checked_exactly(
            src: [u8; 16], dst: [u8; 16], packet in prop::collection::vec(any::<u8>(), 12..200), bit: usize,
        ) {
            let header = IcrcHeader::v6(src.into(), dst.into(), 0xc000, ROCE_PORT);
            let mut payload = packet.clone();
            payload.extend(header.icrc(7, &packet).to_le_bytes());
            prop_assert_eq!(header.verify(7, &payload), Ok(0));
            let bit = bit % (payload.len() * 8);
            payload[bit / 8] ^= 1 << (bit % 8);
            let found = header.verify(0, &payload) == Err(DropReason::BadIcrc);
            prop_assert_eq!(found, bit / 8 != BTH_VARIANT);
        }

        #[test]
        fn verify_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100), id: u16) {
            let v4 = IcrcHeader::v4([1, 2, 3, 4].into(), [1, 2, 3, 4].into(), 0, 0);
            let _ = v4.verify(id, &bytes);
            let _ = icrc_of_frame(&bytes);
        }
    }

    #[test]
    fn a_packet_longer_than_64_kib_is_refused() {
        let v4 = IcrcHeader::v4([1, 2, 3, 4].into(), [1, 2, 3, 4].into(), 0, 0);
        assert_eq!(v4.verify(0, &[0; 15]), Err(DropReason::TooShort));
        assert_eq!(v4.verify(0, &std::vec![1; 100_000]), Err(DropReason::BadIcrc));
    }
}
