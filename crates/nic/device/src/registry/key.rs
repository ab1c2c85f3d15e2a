//! Where the slots of a group of sockets are.

use super::SLOTS;

/// Slots of a page. Its descriptors pass through a process that joins, which takes some 50 us. With half of
/// it, a growing group adds pages twice as often; with the double, the first process starts 0.7 ms later.
pub(super) const PAGE_SLOTS: usize = 64;

/// Where the slots of a group are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Key {
    /// Odd.
    pub(super) factor: u16,
    pub(super) summand: u16,
}

impl Key {
    /// Bits of a position.
    pub(super) const MASK: u16 = SLOTS;

    pub(super) fn random() -> Key {
        let random = sys::random_u64();
        Key { factor: random as u16 & Key::MASK | 1, summand: (random >> 16) as u16 & Key::MASK }
    }

    /// The position of a slot: its socket is number 1 + position of the group. The factor is odd, so no two
    /// slots have the same.
    pub(super) fn position(self, slot: u16) -> u16 {
        slot.wrapping_mul(self.factor).wrapping_add(self.summand) & Key::MASK
    }

    pub(super) fn page(self, slot: u16) -> usize {
        usize::from(self.position(slot)) / PAGE_SLOTS
    }
}
