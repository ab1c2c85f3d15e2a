//! Recognises copies: one packet that was captured at several points.
//!
//! A capture on `lo`, of a process that has both ends of a connection, or of all interfaces of a host has a
//! packet when it leaves and again when it arrives. A copy has the same bytes, except for those that routers
//! change. The analysis follows the first one.
//!
//! A retransmission may have the same bytes as well. At each point every transmission is captured at most
//! once, so a packet is a copy if another point has captured more packets with these bytes than its own.

use wire::Ip;
use wire::capture::Seen;

use super::finding::At;

/// Sets of the table; a power of two. With half as many, packets of a full socket buffer (8000) displace each
/// other.
const SETS: usize = 1 << 14;
/// Packets of a set: one cache line.
const WAYS: usize = 4;
/// A packet captured later than this after the previous one with the same bytes is a new one.
const WINDOW_NS: u64 = 1_000_000_000;
/// Points that are distinguished; further ones count as the last.
const POINTS_MAX: usize = 16;
/// Bits of a point's counter.
const BITS: usize = 2;
const COUNT_MAX: u32 = (1 << BITS) - 1;
/// Bytes of the UDP payload that identify a packet without a captured ICRC: BTH and the longest extension
/// headers, and the beginning of the payload.
const FRONT: usize = 64;

/// Where a packet was captured: the interface, and whether it left (`Some(true)`) or arrived.
pub(super) type Point = (u32, Option<bool>);

/// A packet captured not long ago.
#[derive(Clone, Copy, Default)]
struct Entry {
    tag: u32,
    /// For each point the number of packets captured there.
    counts: u32,
    ns: u64,
}

/// How a packet relates to those captured not long ago.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum Sighting {
    /// None had the same bytes at this point.
    #[default]
    First,
    /// Another point has captured it.
    Copy,
    /// This point has captured one with the same bytes; time of the latest, at any point.
    Again(u64),
}

/// The packets captured not long ago.
#[derive(Default)]
pub(super) struct Copies {
    sets: Vec<[Entry; WAYS]>,
    points: Vec<Point>,
}

impl Copies {
    /// Compares a packet with those captured before, and adds it to the table.
    pub(super) fn add(&mut self, at: At, point: Point, seen: &Seen<'_>) -> Sighting {
        if self.sets.is_empty() {
            self.sets = vec![[Entry::default(); WAYS]; SETS];
        }
        let index = self.point(point);
        let print = fingerprint(seen);
        let tag = ((print >> 32) as u32).max(1);
        let set = &mut self.sets[print as usize % SETS];
        let fresh = |entry: &Entry| entry.tag == tag && at.ns.abs_diff(entry.ns) < WINDOW_NS;
        let Some(entry) = set.iter_mut().find(|entry| fresh(entry)) else {
            let oldest = set.iter_mut().min_by_key(|entry| entry.ns);
            if let Some(oldest) = oldest {
                *oldest = Entry { tag, counts: 1 << (index * BITS), ns: at.ns };
            }
            return Sighting::First;
        };
        let before = std::mem::replace(&mut entry.ns, at.ns);
        match entry.capture_at(index) {
            Sighting::Again(_) => Sighting::Again(before),
            other => other,
        }
    }

    fn point(&mut self, point: Point) -> usize {
        if let Some(index) = self.points.iter().position(|known| *known == point) {
            return index;
        }
        if self.points.len() < POINTS_MAX {
            self.points.push(point);
        }
        self.points.len() - 1
    }
}

impl Entry {
    fn count(self, index: usize) -> u32 {
        self.counts >> (index * BITS) & COUNT_MAX
    }

    /// Counts a packet at a point. It is a copy if another point has captured more.
    fn capture_at(&mut self, index: usize) -> Sighting {
        let own = self.count(index);
        let others = (0..POINTS_MAX).filter(|other| *other != index).map(|other| self.count(other));
        let is_copy = others.max().is_some_and(|most| most > own);
        if own == COUNT_MAX {
            // Only the differences matter.
            for point in (0..POINTS_MAX).filter(|point| self.count(*point) > 0).collect::<Vec<_>>() {
                self.counts -= 1 << (point * BITS);
            }
        }
        self.counts += 1 << (index * BITS);
        match is_copy {
            true => Sighting::Copy,
            false if own > 0 => Sighting::Again(0),
            false => Sighting::First,
        }
    }
}

/// A hash of the bytes that no router changes.
fn fingerprint(seen: &Seen<'_>) -> u64 {
    let (id, ends) = match seen.ip {
        Ip::V4(ip) => (ip.id, u64::from(ip.src.to_bits()) << 32 | u64::from(ip.dst.to_bits())),
        Ip::V6(ip) => (0, (ip.src.to_bits() as u64).rotate_left(32) ^ ip.dst.to_bits() as u64),
    };
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let lens = u64::from(id) << 48 | u64::from(seen.source_port()) << 32 | seen.udp_payload_len as u64;
    let mut hash = mix(mix(seen.vni.map_or(0, |vni| u64::from(vni) + 1), ends), lens);
    let bytes = seen.udp_payload;
    if seen.is_whole()
        && let (Some(front), Some(icrc)) = (bytes.get(..12), bytes.last_chunk::<4>())
    {
        // Byte 4 has FECN and BECN, which a switch may set; the ICRC does not cover it.
        for word in [&front[..4], &front[5..9], &front[8..12], icrc] {
            hash = mix(hash, word.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)));
        }
        return hash;
    }
    for (at, byte) in bytes.iter().take(FRONT).enumerate().filter(|(at, _)| *at != 4) {
        hash = mix(hash, (at as u64) << 8 | u64::from(*byte));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_needs_a_packet_at_another_point() {
        let mut entry = Entry { tag: 1, counts: 1, ns: 0 };
        assert_eq!(entry.capture_at(1), Sighting::Copy, "left at point 0, arrived at point 1");
        assert_eq!(entry.capture_at(1), Sighting::Again(0), "it arrived twice");
        // Any number of retransmissions that are captured twice each.
        let mut entry = Entry { tag: 1, counts: 1, ns: 0 };
        assert_eq!(entry.capture_at(1), Sighting::Copy);
        for _ in 0..100 {
            assert_ne!(entry.capture_at(0), Sighting::Copy);
            assert_eq!(entry.capture_at(1), Sighting::Copy);
        }
        // All transmissions leave before the first one arrives.
        let mut entry = Entry { tag: 1, counts: 1, ns: 0 };
        for _ in 0..2 {
            assert_ne!(entry.capture_at(0), Sighting::Copy);
        }
        for _ in 0..3 {
            assert_eq!(entry.capture_at(2), Sighting::Copy);
        }
        assert_ne!(entry.capture_at(2), Sighting::Copy);
    }
}
