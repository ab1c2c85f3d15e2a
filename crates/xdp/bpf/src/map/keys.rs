//! Keys of a hash map and the number of each key's entry. All memory is allocated when the map is created.

use std::hash::{BuildHasher, RandomState};

use super::{MapError, UpdateMode};

/// Marks the end of a chain or list.
const NONE: u32 = u32::MAX;

/// Chained hash table from keys to entry numbers, optionally with the order of use.
#[derive(Debug)]
pub(super) struct Keys {
    key_size: usize,
    keys: Box<[u8]>,
    /// First entry of each bucket. The number of buckets is a power of two.
    buckets: Box<[u32]>,
    links: Box<[Link]>,
    /// First free entry; free entries are chained by `next`.
    free: u32,
    /// Seeded at random. Keys come from packets, and a remote sender must not be able to choose the buckets.
    hasher: RandomState,
    order: Option<Order>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    used: bool,
    newer: u32,
    older: u32,
}

#[derive(Debug)]
struct Order {
    newest: u32,
    oldest: u32,
}

impl Keys {
    /// Creates a table. An LRU table evicts the entry that was not looked up or updated for the longest time.
    pub(super) fn new(key_size: u32, entries: u32, lru: bool) -> Keys {
        let links = (0..entries)
            .map(|entry| Link {
                next: if entry + 1 < entries { entry + 1 } else { NONE },
                used: false,
                newer: NONE,
                older: NONE,
            })
            .collect();
        Keys {
            key_size: key_size as usize,
            keys: vec![0; key_size as usize * entries as usize].into(),
            buckets: vec![NONE; (entries as usize).next_power_of_two()].into(),
            links,
            free: if entries > 0 { 0 } else { NONE },
            hasher: RandomState::new(),
            order: lru.then_some(Order { newest: NONE, oldest: NONE }),
        }
    }

    pub(super) fn find(&mut self, key: &[u8]) -> Option<u32> {
        let entry = self.search(key)?;
        self.touch(entry);
        Some(entry)
    }

    /// Returns the entry of the key, and whether it is new.
    pub(super) fn claim(&mut self, key: &[u8], mode: UpdateMode) -> Result<(u32, bool), MapError> {
        if key.len() != self.key_size {
            return Err(MapError::Invalid);
        }
        match (self.search(key), mode) {
            (Some(_), UpdateMode::NoExist) => Err(MapError::Exists),
            (None, UpdateMode::Exist) => Err(MapError::NoEntry),
            (Some(entry), _) => {
                self.touch(entry);
                Ok((entry, false))
            }
            (None, _) => self.insert(key).map(|entry| (entry, true)),
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Result<(), MapError> {
        let entry = self.search(key).ok_or(MapError::NoEntry)?;
        self.release(entry);
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<Vec<u8>> {
        let used = self.links.iter().enumerate().filter(|(_, link)| link.used);
        used.map(|(entry, _)| self.key(entry as u32).to_vec()).collect()
    }

    /// Returns whether an entry is in use, and its key.
    pub(super) fn at(&self, entry: u32) -> Option<&[u8]> {
        self.links.get(entry as usize)?.used.then(|| self.key(entry))
    }

    /// Returns the entry with exactly this key, without counting as a use of it.
    pub(super) fn position(&self, key: &[u8]) -> Option<u32> {
        self.search(key)
    }

    fn key(&self, entry: u32) -> &[u8] {
        &self.keys[entry as usize * self.key_size..][..self.key_size]
    }

    fn bucket(&self, key: &[u8]) -> usize {
        self.hasher.hash_one(key) as usize & (self.buckets.len() - 1)
    }

    fn search(&self, key: &[u8]) -> Option<u32> {
        let mut entry = self.buckets[self.bucket(key)];
        while entry != NONE && self.key(entry) != key {
            entry = self.links[entry as usize].next;
        }
        (entry != NONE).then_some(entry)
    }

    fn insert(&mut self, key: &[u8]) -> Result<u32, MapError> {
        if self.free == NONE {
            match &self.order {
                Some(order) => self.release(order.oldest),
                None => return Err(MapError::TooBig),
            }
        }
        let entry = self.free;
        let bucket = self.bucket(key);
        let link = &mut self.links[entry as usize];
        self.free = link.next;
        *link = Link { next: self.buckets[bucket], used: true, newer: NONE, older: NONE };
        self.buckets[bucket] = entry;
        self.keys[entry as usize * self.key_size..][..self.key_size].copy_from_slice(key);
        self.push_newest(entry);
        Ok(entry)
    }

    fn release(&mut self, entry: u32) {
        self.unlink(entry);
        let bucket = self.bucket(self.key(entry));
        let next = self.links[entry as usize].next;
        if self.buckets[bucket] == entry {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket];
            while self.links[before as usize].next != entry {
                before = self.links[before as usize].next;
            }
            self.links[before as usize].next = next;
        }
        self.links[entry as usize] = Link { next: self.free, used: false, newer: NONE, older: NONE };
        self.free = entry;
    }

    fn touch(&mut self, entry: u32) {
        if self.order.as_ref().is_some_and(|order| order.newest != entry) {
            self.unlink(entry);
            self.push_newest(entry);
        }
    }

    fn push_newest(&mut self, entry: u32) {
        let Some(order) = &mut self.order else { return };
        let older = std::mem::replace(&mut order.newest, entry);
        if older == NONE {
            order.oldest = entry;
        } else {
            self.links[older as usize].newer = entry;
        }
        let link = &mut self.links[entry as usize];
        (link.older, link.newer) = (older, NONE);
    }

    fn unlink(&mut self, entry: u32) {
        let Some(order) = &mut self.order else { return };
        let Link { newer, older, .. } = self.links[entry as usize];
        match newer {
            NONE => order.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        match older {
            NONE => order.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
    }
}
