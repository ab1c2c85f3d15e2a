//! The reorder buffer: requests that arrived ahead of a missing one, of all queue pairs of a device.
//!
//! Packets are kept as they arrived and executed in order, instead of being placed at once. A WRITE placed
//! early would show its last byte before its first, could be undone by an older WRITE to the same bytes that
//! is still missing, and would stay if the missing packet turned out to be an error. The copy costs nothing
//! while nothing is lost.
//!
//! The buffer promises nothing: a packet that was displaced is missing like any other. That is why one buffer
//! of fixed size serves all queue pairs of a device without accounting.

use crate::attr::{MAX_PACKET, PathMtu};
use crate::in_flight::SPAN;

/// Packets ahead of the expected one that may be kept; further ones are dropped. More than the send window of
/// roxie.
pub(crate) const REACH: u64 = SPAN;
/// Memory of the buffer: six windows of 320 KiB.
const BYTES: usize = 2 << 20;

/// Requests that arrived ahead of a missing one, of all queue pairs of a device. Direct-mapped: a later
/// packet displaces an earlier one.
#[derive(Debug)]
pub struct ReorderBuffer {
    slots: Box<[Slot]>,
    bytes: Box<[u8]>,
    packet_max: usize,
    episodes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    episode: u64,
    position: u64,
    len: u32,
}

/// The longest packet of a path MTU: headers, pad and ICRC take as much as they may in a transmit buffer.
fn packet_max(path_mtu: PathMtu) -> usize {
    MAX_PACKET - PathMtu::M4096.bytes() + path_mtu.bytes()
}

impl ReorderBuffer {
    /// About 2 MiB, touched only as far as it is used, for packets of up to this path MTU.
    #[must_use]
    pub fn new(path_mtu: PathMtu) -> Self {
        let packet_max = packet_max(path_mtu);
        Self::with_slots((BYTES / packet_max).next_power_of_two(), packet_max)
    }

    /// A buffer that keeps nothing: its queue pairs respond as go-back-N responders do.
    #[must_use]
    pub fn none() -> Self {
        Self::with_slots(0, 0)
    }

    pub(crate) fn with_slots(slots: usize, packet_max: usize) -> Self {
        Self {
            slots: vec![Slot::default(); slots].into_boxed_slice(),
            bytes: vec![0; slots * packet_max].into_boxed_slice(),
            packet_max,
            episodes: 0,
        }
    }

    /// Takes packets of up to this path MTU from now on; drops what is stored if the size changes.
    pub fn set_path_mtu(&mut self, path_mtu: PathMtu) {
        if !self.slots.is_empty() && self.packet_max != packet_max(path_mtu) {
            // The numbers go on: queue pairs still have old ones.
            *self = Self { episodes: self.episodes, ..Self::new(path_mtu) };
        }
    }

    /// A new number for the packets of one queue pair, from a gap until no packet behind it is missing.
    pub(crate) fn begin_episode(&mut self) -> u64 {
        self.episodes += 1;
        self.episodes
    }

    /// The slot of a packet. Neighbours have neighbouring slots; each episode starts at a hashed one
    /// (Fibonacci hashing).
    fn place(&self, episode: u64, position: u64) -> usize {
        let start = episode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (start.wrapping_add(position)) as usize & self.slots.len().wrapping_sub(1)
    }

    /// Stores a packet. Returns false, and stores nothing, when it does not fit.
    pub(crate) fn keep(&mut self, episode: u64, position: u64, packet: &[u8]) -> bool {
        let place = self.place(episode, position);
        let Some(slot) = self.slots.get_mut(place).filter(|_| packet.len() <= self.packet_max) else {
            return false;
        };
        *slot = Slot { episode, position, len: packet.len() as u32 };
        self.bytes[place * self.packet_max..][..packet.len()].copy_from_slice(packet);
        true
    }

    /// The packet that was stored, unless it was displaced.
    pub(crate) fn get(&self, episode: u64, position: u64) -> Option<&[u8]> {
        let place = self.place(episode, position);
        let slot =
            self.slots.get(place).filter(|slot| (slot.episode, slot.position) == (episode, position))?;
        Some(&self.bytes[place * self.packet_max..][..slot.len as usize])
    }

    /// Drops a packet, if it is stored.
    pub(crate) fn discard(&mut self, episode: u64, position: u64) {
        if self.get(episode, position).is_some() {
            let place = self.place(episode, position);
            self.slots[place] = Slot::default();
        }
    }

    /// How many packets ahead of the expected one may be stored.
    pub(crate) fn reach(&self) -> u64 {
        REACH.min(self.slots.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_for_another_path_mtu_drops_its_packets_and_goes_on_numbering() {
        let mut buffer = ReorderBuffer::new(PathMtu::M1024);
        let episode = buffer.begin_episode();
        assert!(buffer.keep(episode, 1, &[7; 100]) && !buffer.keep(episode, 2, &[7; 4096]));
        buffer.set_path_mtu(PathMtu::M1024);
        assert_eq!(buffer.get(episode, 1), Some(&[7; 100][..]));
        buffer.set_path_mtu(PathMtu::M4096);
        assert_eq!(buffer.get(episode, 1), None);
        assert!(buffer.keep(episode, 2, &[7; 4096]));
        assert_ne!(buffer.begin_episode(), episode);
    }
}
