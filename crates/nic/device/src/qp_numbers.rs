//! Draws the numbers of queue pairs from the slots of an engine.
//!
//! Each number comes once before any comes again, because the peer of a destroyed queue pair still knows its
//! number for some seconds (TIMEWAIT). The numbers seen so far do not tell the next one within the slot: the
//! order of a slot is a Feistel network of four rounds and more over the 12 bits, with SipHash under a random
//! key as its function.
//!
//! An engine begins with one slot of 4096 numbers. It wants a further one when all numbers are in use,
//! or when numbers would come again soon.

use std::hash::{BuildHasher, RandomState};

use transport::Instant;
use transport::numbering::{QPN_SHIFT, SLOT_QPNS, SLOTS, place_of, qpn_at, slot_of};
use wire::Qpn;

/// The place of a queue pair in the tables of its engine: number of the slot among those of the engine, then
/// the lower 12 bits of the QPN.
pub(crate) type QpIndex = u32;

/// Most slots of an engine, and so 2^20 queue pairs, as rxe has. Half of it would be fewer than rxe's; double
/// would leave a host room for seven such engines.
pub(crate) const ENGINE_SLOTS_MAX: usize = 256;

/// The QPNs 0 and 1 are for management; 2 to 15 are left out, as hardware does.
const RESERVED: u32 = 16;

/// Rounds of the network. Four make a random permutation of a large set; a set of 4096 wants some more.
const ROUNDS: u8 = 8;
/// Numbers that come again sooner than this (nanoseconds) after their last cycle began cause a further slot.
/// Linux keeps a connection in TIMEWAIT for some seconds. Half of it: a peer with long CM timeouts may
/// still know the number. Double: a program with many short connections takes slots that it does not need.
const REUSE_NS: u64 = 60_000_000_000;
/// Slots of an engine that are claimed for this reason only: 65,536 numbers.
const CYCLE_SLOTS_MAX: usize = 16;

/// The order of the numbers of each slot, and the next position in it.
#[derive(Debug)]
pub(super) struct QpNumbers {
    /// The key; `None` for ascending numbers.
    order: Option<(RandomState, u64)>,
    slots: Vec<u16>,
    /// By slot: 1 + its number among the slots of the engine, 0 for the slots of others.
    places: Box<[u16]>,
    /// Numbers drawn in the present cycle through all slots, one after another.
    drawn: u32,
    /// When this cycle began; `None` before the first draw.
    began: Option<Instant>,
    /// Numbers in use.
    used: u32,
    given: u64,
}

impl QpNumbers {
    /// A random order of the numbers of `slot`.
    pub(super) fn random(slot: u16) -> Self {
        let order = Some((RandomState::new(), sys::random_u64()));
        let places = vec![0; usize::from(SLOTS) + 1].into();
        let mut numbers = Self { order, slots: Vec::new(), places, drawn: 0, began: None, used: 0, given: 0 };
        numbers.add_slot(slot);
        numbers
    }

    /// Makes the numbers ascend, beginning with the lowest.
    pub(super) fn ascend(&mut self) {
        (self.order, self.drawn) = (None, 0);
    }

    /// Adds the numbers of a slot; they come next.
    pub(super) fn add_slot(&mut self, slot: u16) {
        debug_assert!(self.slots.len() < ENGINE_SLOTS_MAX);
        self.drawn = self.numbers();
        self.slots.push(slot);
        self.places[usize::from(slot)] = self.slots.len() as u16;
    }

    /// Whether a further slot should be claimed before the next draw.
    pub(super) fn wants_slot(&self, now: Instant) -> bool {
        let slots = self.slots.len();
        let comes_again = self.drawn == self.numbers();
        let is_soon = self.began.is_some_and(|began| now.0.saturating_sub(began.0) < REUSE_NS);
        let is_cycle_short = comes_again && is_soon && slots < CYCLE_SLOTS_MAX;
        slots < ENGINE_SLOTS_MAX && (self.is_full() || is_cycle_short)
    }

    /// How many numbers were given so far.
    pub(super) fn given(&self) -> u64 {
        self.given
    }

    /// How many numbers are in use.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Whether all numbers are in use.
    pub(super) fn is_full(&self) -> bool {
        let reserved = if self.places[0] == 0 { 0 } else { RESERVED };
        self.used + reserved >= self.numbers()
    }

    /// The number of QPNs of all slots.
    fn numbers(&self) -> u32 {
        self.slots.len() as u32 * SLOT_QPNS
    }

    /// The index of a QPN, if it is in a slot of the engine.
    #[inline]
    pub(super) fn index_of(&self, qpn: Qpn) -> Option<QpIndex> {
        let place = u32::from(*self.places.get(usize::from(slot_of(qpn)))?);
        Some(place.checked_sub(1)? << QPN_SHIFT | place_of(qpn))
    }

    /// Draws the next number that is free as `is_free` says; `None` if there is none.
    pub(super) fn draw(&mut self, now: Instant, is_free: impl Fn(QpIndex) -> bool) -> Option<(QpIndex, Qpn)> {
        if self.is_full() {
            return None;
        }
        for _ in 0..self.numbers() {
            if self.drawn == self.numbers() {
                (self.drawn, self.began) = (0, None);
            }
            self.began.get_or_insert(now);
            let (at, position) = (self.drawn >> QPN_SHIFT, self.drawn % SLOT_QPNS);
            self.drawn += 1;
            let (place, slot) = (self.place(at, position), self.slots[at as usize]);
            let index = at << QPN_SHIFT | place;
            if !(slot == 0 && place < RESERVED) && is_free(index) {
                self.used += 1;
                self.given += 1;
                return Some((index, qpn_at(slot, place)));
            }
        }
        None
    }

    /// Records that a queue pair was destroyed.
    pub(super) fn release(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// The number at a position of the order of a slot.
    fn place(&self, at: u32, position: u32) -> u32 {
        let Some((hasher, key)) = &self.order else { return position };
        let (mut left, mut right) = (position >> 6, position & 0x3f);
        for round in 0..ROUNDS {
            let mixed = left ^ hasher.hash_one((key, at, round, right)) as u32 & 0x3f;
            (left, right) = (right, mixed);
        }
        left << 6 | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(1_000_000_000);

    fn draw_all(numbers: &mut QpNumbers) -> Vec<Qpn> {
        let mut used = std::collections::HashSet::new();
        std::iter::from_fn(|| {
            let (index, qpn) = numbers.draw(NOW, |index| !used.contains(&index))?;
            assert_eq!(numbers.index_of(qpn), Some(index));
            used.insert(index);
            Some(qpn)
        })
        .collect()
    }

    #[test]
    fn each_number_comes_once_and_none_tells_the_next() {
        let mut numbers = QpNumbers::random(7);
        let drawn = draw_all(&mut numbers);
        assert!(numbers.is_full() && numbers.wants_slot(NOW));
        let mut sorted: Vec<u32> = drawn.iter().map(|qpn| qpn.value()).collect();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0x7000..0x8000));
        // One of 4096 steps has any given width, on average.
        for width in [1, 2, 0x3f, 0x40] {
            let is_step = |pair: &[Qpn]| (pair[1].value().wrapping_sub(pair[0].value())) & 0xfff == width;
            let steps = drawn.windows(2).filter(|pair| is_step(pair)).count();
            assert!(steps < 16, "{steps} steps of {width}");
        }
        let equal =
            |others: &[Qpn]| drawn.iter().zip(others).filter(|(a, b)| place_of(**a) == place_of(**b)).count();
        assert!(equal(&draw_all(&mut QpNumbers::random(7))) < 16, "two engines have one order");
        numbers.add_slot(9);
        let others: Vec<_> = (0..SLOT_QPNS).map(|_| numbers.draw(NOW, |_| true).unwrap().1).collect();
        assert!(others.iter().all(|qpn| slot_of(*qpn) == 9));
        assert!(equal(&others) < 16, "two slots have one order");
    }

    #[test]
    fn the_first_slot_of_a_host_has_no_management_numbers() {
        let mut numbers = QpNumbers::random(0);
        let drawn = draw_all(&mut numbers);
        assert_eq!(drawn.len(), 4096 - 16);
        assert!(drawn.iter().all(|qpn| qpn.value() >= 16));
        assert_eq!(numbers.index_of(Qpn::new(0x1000)), None);
        assert_eq!(numbers.index_of(Qpn::MULTICAST), None);
    }

    #[test]
    fn numbers_that_would_come_again_within_a_minute_cause_a_further_slot() {
        let mut numbers = QpNumbers::random(1);
        let draw_a_slot = |numbers: &mut QpNumbers, at| {
            for _ in 0..SLOT_QPNS {
                assert!(!numbers.wants_slot(at));
                numbers.draw(at, |_| true).unwrap();
                numbers.release();
            }
        };
        draw_a_slot(&mut numbers, NOW);
        let late = NOW.plus_ns(REUSE_NS);
        assert!(numbers.wants_slot(NOW) && !numbers.wants_slot(late));
        for slot in 2..=16 {
            numbers.add_slot(slot);
            draw_a_slot(&mut numbers, NOW);
        }
        assert!(!numbers.wants_slot(NOW), "more slots than this are for queue pairs that exist");
        let again = numbers.draw(NOW, |_| true).unwrap().1;
        assert_eq!(slot_of(again), 1);
    }

    #[test]
    fn an_engine_that_uses_all_numbers_of_its_slots_gets_no_more() {
        let mut numbers = QpNumbers::random(1);
        (2..=ENGINE_SLOTS_MAX as u16).for_each(|slot| numbers.add_slot(slot));
        let last = qpn_at(ENGINE_SLOTS_MAX as u16, 5);
        assert_eq!(numbers.index_of(last), Some((1 << 20) - SLOT_QPNS + 5));
        (numbers.drawn, numbers.used) = (0, numbers.numbers());
        assert!(numbers.is_full() && !numbers.wants_slot(NOW));
        assert_eq!(numbers.draw(NOW, |_| true), None);
        numbers.release();
        assert!(numbers.draw(NOW, |index| index == 100).is_some_and(|(index, _)| index == 100));
    }
}
