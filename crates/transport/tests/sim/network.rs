//! A network that loses, repeats, delays and reorders, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::sim::rng::Rng;

/// What the network does to packets, in a thousand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    /// Bits flipped; the ICRC catches it, so it is a loss with another name.
    pub(crate) corruption: u64,
    pub(crate) duplication: u64,
    pub(crate) reordering: u64,
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
}

/// Packets on their way.
pub(crate) struct Network {
    faults: Faults,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    packets: Vec<Option<(usize, Vec<u8>)>>,
    free: Vec<usize>,
    order: u64,
    pub(crate) lost: u64,
}

impl Network {
    pub(crate) fn new(faults: Faults) -> Self {
        Self { faults, heap: BinaryHeap::new(), packets: vec![], free: vec![], order: 0, lost: 0 }
    }

    /// Sends a packet to side `to`.
    pub(crate) fn send(&mut self, now: u64, to: usize, packet: &[u8], rng: &mut Rng) {
        let copies = if rng.chance(self.faults.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            if rng.chance(self.faults.loss) || rng.chance(self.faults.corruption) {
                self.lost += 1;
                continue;
            }
            let mut at = now + self.faults.delay_ns;
            if rng.chance(self.faults.reordering) {
                at += rng.between(0, self.faults.jitter_ns);
            }
            let slot = self.free.pop().unwrap_or(self.packets.len());
            if slot == self.packets.len() {
                self.packets.push(None);
            }
            self.packets[slot] = Some((to, packet.to_vec()));
            self.order += 1;
            self.heap.push(Reverse((at, self.order, slot)));
        }
    }

    pub(crate) fn next_arrival(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next packet that has arrived by `now`, and for whom.
    pub(crate) fn arrived(&mut self, now: u64) -> Option<(usize, Vec<u8>)> {
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse((_, _, slot)) = self.heap.pop()?;
        self.free.push(slot);
        self.packets[slot].take()
    }
}
