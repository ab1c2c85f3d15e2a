//! Which key belongs to which slot of the key table.
//!
//! The upper 24 bits of a key are random, so that one key tells nothing about another. 20 of them are the
//! place in an array that holds the number of the slot.

/// Bits of a key above the low byte that select a place: nearly twice as many places as slots, so that a
/// drawn place is free at once or after a few steps. The array takes 4 MiB of addresses, and a page of memory
/// for each key until all pages are used.
const PLACE_BITS: u32 = 20;
const PLACES: usize = 1 << PLACE_BITS;

/// The slots of all keys, by place; 0 is a free place, else the slot is one less.
#[derive(Clone, Debug)]
pub(crate) struct KeyPlaces(Box<[u32]>);

impl Default for KeyPlaces {
    fn default() -> Self {
        Self(vec![0; PLACES].into_boxed_slice())
    }
}

fn place_of(key: u32) -> usize {
    (key >> 8) as usize & (PLACES - 1)
}

impl KeyPlaces {
    /// Returns the slot of a key; `usize::MAX` if no key has its place.
    #[inline]
    pub(crate) fn slot(&self, key: u32) -> usize {
        (self.0[place_of(key)] as usize).wrapping_sub(1)
    }

    /// Returns a random key with a free place. The caller has fewer keys than places.
    pub(crate) fn draw_key(&self) -> u32 {
        let mut key = sys::random_u64() as u32;
        while self.0[place_of(key)] != 0 {
            key = key.wrapping_add(1 << 8);
        }
        key
    }

    /// The key has this slot from now on.
    pub(crate) fn insert(&mut self, key: u32, slot: u32) {
        self.0[place_of(key)] = slot + 1;
    }

    /// Frees the place of a key.
    pub(crate) fn remove(&mut self, key: u32) {
        self.0[place_of(key)] = 0;
    }
}
