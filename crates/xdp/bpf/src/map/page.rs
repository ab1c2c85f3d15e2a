//! Reading the entries of a map piece by piece, so that a reader never holds the map for long.

use super::{Map, Store, lock};

/// Entries of a map, and where to continue.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Page {
    /// Keys and values, in the form of [`Map::lookup`].
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// The entry number to continue from; `None` at the end.
    pub next: Option<u32>,
}

/// Entry numbers that one call examines. The lock of the keys is held for about 100 us, at half for 50.
const EXAMINED_MAX: u32 = 1 << 14;
/// Bytes of keys and values that one call examines, after which it ends: it takes about 100 us to copy them,
/// at half 50. At double, the thread that answers makes other readers wait longer.
const EXAMINED_BYTES_MAX: usize = 1 << 20;

impl Map {
    /// Returns entries from number `from` on, of at most `room` bytes together, with `cost` bytes more for
    /// each. Entries of arrays that are all zero are left out unless `with_zeros` is set. An entry that
    /// alone is longer than `room` is left out, too.
    ///
    /// An entry that exists all the time is returned once; one that is added or removed meanwhile may be
    /// missing.
    #[must_use]
    pub fn page(&self, from: u32, room: usize, cost: usize, with_zeros: bool) -> Page {
        let (mut page, mut used, mut examined) = (Page::default(), 0, 0);
        let end = self.def.max_entries.min(from.saturating_add(EXAMINED_MAX));
        let is_array = matches!(self.store, Store::Array(_));
        for entry in from..end {
            if examined >= EXAMINED_BYTES_MAX {
                page.next = Some(entry);
                return page;
            }
            let Some((key, value)) = self.entry_at(entry) else { continue };
            examined += key.len() + value.len();
            if is_array && !with_zeros && value.iter().all(|byte| *byte == 0) {
                continue;
            }
            let len = key.len() + value.len() + cost;
            if len > room {
                continue;
            }
            if used + len > room {
                page.next = Some(entry);
                return page;
            }
            used += len;
            page.entries.push((key, value));
        }
        page.next = (end < self.def.max_entries && end > from).then_some(end);
        page
    }

    /// Returns the value of exactly this key: in a trie, [`Map::lookup`] also finds shorter prefixes. Does
    /// not count as a use of the entry in an LRU map.
    #[must_use]
    pub fn lookup_exact(&self, key: &[u8]) -> Option<Vec<u8>> {
        // The lock is held until the value was read: the entry could become that of another key.
        match &self.store {
            Store::Hash(keys, _) => {
                let keys = lock(keys);
                keys.position(key).map(|entry| self.read(entry))
            }
            Store::Lpm(lpm, _) => {
                let mut lpm = lock(lpm);
                lpm.exact(key).map(|entry| self.read(entry))
            }
            Store::Array(_) | Store::Ring(_) | Store::Pushed(_) | Store::Unusable => self.lookup(key),
        }
    }

    fn entry_at(&self, entry: u32) -> Option<(Vec<u8>, Vec<u8>)> {
        match &self.store {
            Store::Array(_) => {
                let key = entry.to_le_bytes().to_vec();
                self.entry(&key)?;
                Some((key, self.read(entry)))
            }
            Store::Hash(keys, _) => {
                let keys = lock(keys);
                keys.at(entry).map(|key| (key.to_vec(), self.read(entry)))
            }
            Store::Lpm(lpm, _) => {
                let lpm = lock(lpm);
                lpm.at(entry).map(|key| (key.to_vec(), self.read(entry)))
            }
            Store::Ring(_) | Store::Pushed(_) | Store::Unusable => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::map::{Map, MapDef, MapKind, UpdateMode};

    fn all(map: &Map, room: usize, with_zeros: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            let page = map.page(at, room, 8, with_zeros);
            assert!(page.next.is_none_or(|next| next > at));
            all.extend(page.entries);
            from = page.next;
        }
        all
    }

    #[test]
    fn every_entry_of_a_map_is_in_one_page() {
        for kind in [MapKind::Hash, MapKind::LruHash, MapKind::PercpuHash] {
            let map = Map::new(&MapDef::new("flows", kind, 4, 4, 40_000), 2).unwrap();
            for key in 0..40_000_u32 {
                let value = if kind.is_percpu() { vec![7; 16] } else { vec![7; 4] };
                map.update(&key.to_le_bytes(), &value, UpdateMode::Any).unwrap();
            }
            let mut keys: Vec<_> = all(&map, 1 << 10, false).into_iter().map(|(key, _)| key).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), 40_000, "{kind}");
        }
    }

    #[test]
    fn zeros_of_an_array_are_left_out_unless_wanted() {
        let map = Map::new(&MapDef::array("slots", 4, 100_000), 1).unwrap();
        map.update(&99_999_u32.to_le_bytes(), &[1; 4], UpdateMode::Any).unwrap();
        assert_eq!(all(&map, 100, false), [(99_999_u32.to_le_bytes().to_vec(), vec![1; 4])]);
        assert_eq!(all(&map, 1 << 16, true).len(), 100_000);
    }

    #[test]
    fn a_page_ends_after_a_number_of_examined_bytes() {
        let map = Map::new(&MapDef::array("large", 1 << 16, 200), 1).unwrap();
        map.update(&199_u32.to_le_bytes(), &[1; 1 << 16], UpdateMode::Any).unwrap();
        let first = map.page(0, 1 << 17, 8, false);
        assert_eq!((first.entries.len(), first.next), (0, Some(16)));
        assert_eq!(all(&map, 1 << 17, false).len(), 1);
    }

    #[test]
    fn a_value_longer_than_the_room_does_not_stop_the_reader() {
        let map = Map::new(&MapDef::array("large", 4096, 3), 1).unwrap();
        assert_eq!(all(&map, 1000, true), []);
    }

    #[test]
    fn only_the_same_prefix_is_found() {
        let map = Map::new(&MapDef::new("access", MapKind::LpmTrie, 8, 4, 4), 1).unwrap();
        let key = |bits: u32| [bits.to_le_bytes(), [10, 0, 0, 0]].concat();
        map.update(&key(8), &[1; 4], UpdateMode::Any).unwrap();
        assert_eq!((map.lookup(&key(16)), map.lookup_exact(&key(16))), (Some(vec![1; 4]), None));
        assert_eq!(map.lookup_exact(&key(8)), Some(vec![1; 4]));
        assert_eq!(all(&map, 100, false).len(), 1);
    }

    #[test]
    fn looking_does_not_keep_an_entry_in_an_lru_map() {
        let map = Map::new(&MapDef::new("flows", MapKind::LruHash, 4, 4, 2), 1).unwrap();
        for key in [1_u32, 2] {
            map.update(&key.to_le_bytes(), &[7; 4], UpdateMode::Any).unwrap();
        }
        assert!(map.lookup_exact(&1_u32.to_le_bytes()).is_some() && all(&map, 100, false).len() == 2);
        map.update(&3_u32.to_le_bytes(), &[7; 4], UpdateMode::Any).unwrap();
        assert_eq!(map.lookup_exact(&1_u32.to_le_bytes()), None, "the oldest by use");
    }

    #[test]
    fn a_key_is_never_paired_with_the_value_of_another_one() {
        for kind in [MapKind::LruHash, MapKind::PercpuHash] {
            let map = &Map::new(&MapDef::new("flows", kind, 4, 64, 2), 1).unwrap();
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for key in (0..200_000_u32).map(u32::to_le_bytes) {
                        map.update(&key, &key.repeat(16), UpdateMode::Any).unwrap();
                        if kind == MapKind::PercpuHash {
                            map.delete(&key).unwrap();
                        }
                    }
                });
                while !writer.is_finished() {
                    for (key, value) in all(map, 1000, false) {
                        assert_eq!(value, key.repeat(16), "{kind}");
                        let exact = map.lookup_exact(&key);
                        assert!(exact.is_none_or(|value| value == key.repeat(16)), "{kind}");
                    }
                }
            });
        }
    }
}
