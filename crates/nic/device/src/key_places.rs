//! Which key belongs to which slot of the key table.
//!
//! The upper 24 bits of a key are random, so that one key tells nothing about another. 20 of them are the
//! place in an array that holds the number of the slot.

/// Bits of a key above the low byte that select a place: nearly twice as many places as slots, so that a
/// drawn place is free at once or after a few steps.
const PLACE_BITS: u32 = 20;
/// Bits that select a page of places. A page of 4 KiB exists from its first key on: the array at once would
/// take 4 MiB of addresses, which a process with limits may not have.
const PAGE_BITS: u32 = 10;
const PAGE: usize = 1 << (PLACE_BITS - PAGE_BITS);

/// The slots of all keys, by place; 0 is a free place, else the slot is one less.
#[derive(Clone, Debug)]
pub(crate) struct KeyPlaces(Box<[Option<Box<[u32; PAGE]>>]>);

impl Default for KeyPlaces {
    fn default() -> Self {
        Self(vec![None; 1 << PAGE_BITS].into_boxed_slice())
    }
}

/// The page of a key, and its place there.
fn place_of(key: u32) -> (usize, usize) {
    let place = (key >> 8) as usize & ((1 << PLACE_BITS) - 1);
    (place / PAGE, place % PAGE)
}

impl KeyPlaces {
    /// Returns the slot of a key; `usize::MAX` if no key has its place.
    #[inline]
    pub(crate) fn slot(&self, key: u32) -> usize {
        let (page, place) = place_of(key);
        self.0[page].as_ref().map_or(usize::MAX, |page| (page[place] as usize).wrapping_sub(1))
    }

    /// Returns a random key with a free place. The caller has fewer keys than places.
    pub(crate) fn draw_key(&self) -> u32 {
        let mut key = sys::random_u64() as u32;
        while self.slot(key) != usize::MAX {
            key = key.wrapping_add(1 << 8);
        }
        key
    }

    /// The key has this slot from now on.
    pub(crate) fn insert(&mut self, key: u32, slot: u32) {
        let (page, place) = place_of(key);
        self.0[page].get_or_insert_with(|| Box::new([0; PAGE]))[place] = slot + 1;
    }

    /// Frees the place of a key.
    pub(crate) fn remove(&mut self, key: u32) {
        let (page, place) = place_of(key);
        if let Some(page) = &mut self.0[page] {
            page[place] = 0;
        }
    }
}
