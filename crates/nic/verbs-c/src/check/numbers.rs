//! Maps by numbers of this process: addresses, keys and numbers of objects. No peer chooses them, so a
//! multiplication suffices, and the usual hash of the standard library takes five times as long.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(super) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;
pub(super) type NumberSet<K> = HashSet<K, BuildHasherDefault<NumberHasher>>;

/// Hashes a few numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        /// 2^64 divided by the golden ratio: near numbers get far hashes.
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(ODD);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        // The map looks at the lowest and at the highest bits; those of addresses of pages are zeros.
        self.0 ^ self.0 >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_pages_have_different_hashes() {
        let hash = |at: usize| {
            let mut hasher = NumberHasher::default();
            hasher.write_usize(at);
            hasher.finish() & 0xfff
        };
        let found: HashSet<u64> = (0..1024).map(|page| hash(0x7f00_0000_0000 + 4096 * page)).collect();
        assert!(found.len() > 700, "{}", found.len());
    }
}
