//! Finding the packet length in a frame of several packets.
//!
//! In generic mode the program runs before a sender's burst (UDP_SEGMENT) would be segmented, and the
//! kernel does not tell an AF_XDP socket the segment size: a burst arrives as one frame with the headers
//! of one packet. Its packets have equal lengths, and the ICRC of the first one confirms a guess: all 32
//! bits of it, as the identification is known.

use wire::icrc::ICRC_LEN;
use wire::{IcrcHeader, Packet, Position};

use super::super::MAX_PACKET;

/// Finds packet lengths. Remembers the last result, and stops searching after repeated failures: corrupt
/// packets must not cost more than intact ones.
#[derive(Debug)]
pub(super) struct Segments {
    /// The last length found.
    last: usize,
    /// Searches that may still fail before searching stops until a length fits again.
    searches_left: u32,
}

/// Payload of packets that are not the last of their message (IBA 9.2: the path MTU).
const PATH_MTUS: [usize; 5] = [1024, 4096, 2048, 512, 256];
/// BTH, no payload, ICRC.
const PACKET_MIN: usize = 16;
const SEARCHES_MAX: u32 = 32;

impl Segments {
    pub(super) fn new() -> Segments {
        Segments { last: PACKET_MIN, searches_left: SEARCHES_MAX }
    }

    /// Returns the length of each packet but the last in `payload`, origin first packet was sent with
    /// identification `id`. It is the length of `payload` if that is one packet, or no length fits.
    pub(super) fn length(&mut self, icrc: &IcrcHeader, id: u16, payload: &[u8]) -> usize {
        let fits = |len: usize| {
            let packet = payload.get(..len).and_then(|packet| packet.split_last_chunk::<ICRC_LEN>());
            packet.is_some_and(|(body, sum)| len >= PACKET_MIN && icrc.icrc(id, body).to_le_bytes() == *sum)
        };
        let found = [payload.len(), self.last].into_iter().find(|len| fits(*len)).or_else(|| {
            let Ok(packet) = Packet::parse(payload) else { return None };
            let searches = self.searches_left > 0 && packet.row().position.ends();
            likely_lengths(&packet).find(|len| fits(*len)).or_else(|| {
                if !searches {
                    return None;
                }
                let shortest = (packet.row().header_len() + ICRC_LEN).max(PACKET_MIN);
                (shortest..payload.len().min(MAX_PACKET)).step_by(4).find(|len| fits(*len))
            })
        });
        match found {
            Some(len) => {
                (self.last, self.searches_left) = (len, SEARCHES_MAX);
                len
            }
            None => {
                self.searches_left = self.searches_left.saturating_sub(1);
                payload.len()
            }
        }
    }
}

/// Likely lengths: with the payload length of the RETH, with a path MTU of payload, or without payload.
fn likely_lengths(packet: &Packet<'_>) -> impl Iterator<Item = usize> {
    let (row, reth) = (packet.row(), packet.reth());
    let written =
        reth.filter(|_| row.position == Position::Only).map(|reth| (reth.dma_len as usize).min(MAX_PACKET));
    let payloads = written.into_iter().chain([0]).chain(PATH_MTUS);
    payloads.map(|payload| row.header_len() + payload.next_multiple_of(4) + ICRC_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use wire::Bth;

    fn icrc() -> IcrcHeader {
        IcrcHeader::v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0xc000, 4791)
    }

    /// Packets of one opcode one after the other, as the kernel leaves them: identifications from `id`
    /// on.
    fn batch(opcode: u8, id: u16, lengths: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (i, len) in lengths.iter().enumerate() {
            let mut packet: Vec<u8> = (0..len - 4).map(|b| (b * 3 + i) as u8).collect();
            packet[..Bth::LEN].copy_from_slice(&[opcode, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, i as u8]);
            if opcode == 0x0a {
                // RETH: the length of the WRITE.
                let dma_len = (len - 12 - 16 - 4) as u32;
                packet[24..28].copy_from_slice(&dma_len.to_be_bytes());
            }
            let sum = icrc().icrc(id + i as u16, &packet);
            bytes.extend(packet);
            bytes.extend(sum.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn single_packets_stay_whole_and_batches_are_split() {
        for id in [0, 7] {
            for (opcode, lengths, want) in [
                // SEND Only, single and in a batch of any length; WRITE Only; WRITE Middle; Acknowledge;
                // READ request.
                (0x04, &[1040][..], 1040),
                (0x04, &[24, 24, 24, 20], 24),
                (0x04, &[304; 40], 304),
                (0x0a, &[40; 30], 40),
                (0x07, &[1040; 62], 1040),
                (0x07, &[2064, 2064, 2064, 100], 2064),
                (0x11, &[20; 9], 20),
                (0x0c, &[32; 9], 32),
            ] {
                let bytes = batch(opcode, id, lengths);
                assert_eq!(Segments::new().length(&icrc(), id, &bytes), want, "{opcode:#x} {lengths:?}");
            }
        }
    }

    #[test]
    fn an_unknown_length_leaves_the_frame_whole_and_stops_the_search() {
        let mut segments = Segments::new();
        let good = batch(0x04, 0, &[304; 8]);
        let mut bad = good.clone();
        bad[20] ^= 1;
        for _ in 0..SEARCHES_MAX {
            assert_eq!(segments.length(&icrc(), 0, &bad), bad.len());
        }
        assert_eq!(segments.length(&icrc(), 0, &good), good.len(), "no search is left");
        // A length that needs no search restores it.
        let middle = batch(0x07, 0, &[1040; 3]);
        assert_eq!(segments.length(&icrc(), 0, &middle), 1040);
        assert_eq!(segments.length(&icrc(), 0, &good), 304);
        assert_eq!(segments.length(&icrc(), 0, &[]), 0);
    }
}
