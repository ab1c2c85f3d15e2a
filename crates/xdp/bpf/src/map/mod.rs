//! Maps: their definitions, and their contents for programs that run in the [machine](crate::vm).
//!
//! The programs that use a [`Map`] share it, on any number of threads, with user space. Values are arrays of
//! 64-bit atomic words ([`values`]), because a program keeps the address of a value while it runs. If two
//! programs write one value at the same time, each word has one of both values. A lock protects the keys. The
//! semantics are those of the kernel's maps, including the error numbers; only the choice of the entry that
//! an LRU map evicts differs.

mod def;
mod error;
mod keys;
mod lpm;
mod page;
mod queue;
mod ring;
mod values;

pub use def::{Initial, MapDef, MapKind, MapRef};
pub use error::MapError;
pub use page::Page;
pub use ring::Ring;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keys::Keys;
use lpm::Lpm;
use queue::Pushed;
use values::Values;

/// A map with its contents.
///
/// ```
/// use roxie_bpf::{Map, MapDef, MapError, MapKind, UpdateMode};
///
/// let map = Map::new(&MapDef::new("flows", MapKind::Hash, 4, 8, 2), 1)?;
/// map.update(&[1, 0, 0, 0], &7u64.to_le_bytes(), UpdateMode::Any)?;
/// assert_eq!(map.lookup(&[1, 0, 0, 0]).unwrap(), 7u64.to_le_bytes());
/// assert_eq!(map.lookup(&[2, 0, 0, 0]), None);
/// assert_eq!(map.update(&[1, 0, 0, 0], &[0; 8], UpdateMode::NoExist), Err(MapError::Exists));
/// # Ok::<(), MapError>(())
/// ```
#[derive(Debug)]
pub struct Map {
    def: MapDef,
    store: Store,
}

#[derive(Debug)]
enum Store {
    /// Every key below `max_entries` has its entry. Maps of redirect targets, programs and maps are stored
    /// this way too: an entry exists if the first 32 bits of its value are not 0.
    Array(Values),
    Hash(Mutex<Keys>, Values),
    Lpm(Mutex<Lpm>, Values),
    Ring(Ring),
    /// Queues, stacks and Bloom filters.
    Pushed(Pushed),
    /// A map that programs of the machine cannot use.
    Unusable,
}

/// Condition of an update on the existing entry (`BPF_ANY`, `BPF_NOEXIST`, `BPF_EXIST`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UpdateMode {
    /// Create or replace the entry.
    Any,
    /// Create the entry; fail if it exists.
    NoExist,
    /// Replace the entry; fail if it does not exist.
    Exist,
}

impl UpdateMode {
    /// Returns the mode for the `flags` of the helper or system call, or `None` if they are invalid.
    #[must_use]
    pub fn from_flags(flags: u64) -> Option<UpdateMode> {
        match flags {
            0 => Some(UpdateMode::Any),
            1 => Some(UpdateMode::NoExist),
            2 => Some(UpdateMode::Exist),
            _ => None,
        }
    }
}

/// Size of the ring of a perf event array, in bytes. In the kernel the reader chooses it when it opens the
/// events.
const PERF_RING_BYTES: u32 = 1 << 18;

/// Entries of a CPUMAP without a size in its definition. In the kernel it is the number of CPUs.
const CPUMAP_ENTRIES: u32 = 64;

impl Map {
    /// Creates a map for programs on `cpus` threads, with the initial contents of its definition.
    ///
    /// # Errors
    /// [`MapError::Invalid`], [`MapError::Unsupported`] or [`MapError::NoMemory`] if the definition cannot be
    /// used.
    pub fn new(def: &MapDef, cpus: u32) -> Result<Arc<Map>, MapError> {
        if def.kind == MapKind::Cpumap && def.max_entries == 0 {
            return Map::new(&MapDef { max_entries: CPUMAP_ENTRIES, ..def.clone() }, cpus);
        }
        // Before anything is allocated: no error follows if the memory is not there.
        if def.memory_bytes(cpus) > MapError::BYTES_MAX {
            return Err(MapError::NoMemory);
        }
        let copies = if def.kind.is_percpu() { cpus.max(1) } else { 1 };
        let values = || Values::new(def.value_size, def.max_entries, copies);
        let sized = |index: bool| {
            let key_size = if index { def.key_size == 4 } else { (1..=512).contains(&def.key_size) };
            let is_valid = key_size && def.value_size > 0 && def.max_entries > 0;
            if is_valid { Ok(()) } else { Err(MapError::Invalid) }
        };
        let store = match def.kind {
            MapKind::Array
            | MapKind::PercpuArray
            | MapKind::Devmap
            | MapKind::Cpumap
            | MapKind::Xskmap
            | MapKind::ProgArray
            | MapKind::ArrayOfMaps => {
                sized(true)?;
                Store::Array(values()?)
            }
            MapKind::Hash
            | MapKind::PercpuHash
            | MapKind::LruHash
            | MapKind::LruPercpuHash
            | MapKind::DevmapHash
            | MapKind::HashOfMaps => {
                sized(false)?;
                let lru = matches!(def.kind, MapKind::LruHash | MapKind::LruPercpuHash);
                Store::Hash(Mutex::new(Keys::new(def.key_size, def.max_entries, lru)), values()?)
            }
            MapKind::LpmTrie => {
                sized(false)?;
                Store::Lpm(Mutex::new(Lpm::new(def.key_size, def.max_entries)?), values()?)
            }
            MapKind::Ringbuf => Store::Ring(Ring::new(def.max_entries)?),
            MapKind::PerfEventArray => Store::Ring(Ring::new(PERF_RING_BYTES)?),
            MapKind::Queue | MapKind::Stack | MapKind::BloomFilter => Store::Pushed(Pushed::new(def)?),
            MapKind::StackTrace | MapKind::UserRingbuf => Store::Unusable,
        };
        if let (Store::Array(values), false) = (&store, def.initial.is_empty()) {
            if def.initial.len() > def.value_size as usize {
                return Err(MapError::Invalid);
            }
            values.write(0, 0, &def.initial);
        }
        Ok(Arc::new(Map { def: def.clone(), store }))
    }

    /// Returns the definition.
    #[must_use]
    pub fn def(&self) -> &MapDef {
        &self.def
    }

    /// Returns the ring of a ring buffer or perf event array, or `None` for other maps.
    #[must_use]
    pub fn ring(&self) -> Option<&Ring> {
        match &self.store {
            Store::Ring(ring) => Some(ring),
            _ => None,
        }
    }

    /// Returns the value of the key. For a per-CPU map it is the values of all CPUs, each padded to 8 bytes.
    #[must_use]
    pub fn lookup(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.entry(key).map(|entry| self.read(entry))
    }

    /// Returns the value of an entry, in the form of [`Map::lookup`].
    fn read(&self, entry: u32) -> Vec<u8> {
        let Some(values) = self.values() else { return Vec::new() };
        if !self.def.kind.is_percpu() {
            return values.read(0, entry);
        }
        let mut all = Vec::new();
        for cpu in 0..values.copies() {
            all.extend(values.read(cpu, entry));
            all.resize(all.len().next_multiple_of(8), 0);
        }
        all
    }

    /// Creates or replaces an entry. The value of a per-CPU map has the form that [`Map::lookup`] returns.
    ///
    /// # Errors
    /// The kernel's reasons, such as [`MapError::Exists`] or [`MapError::TooBig`].
    pub fn update(&self, key: &[u8], value: &[u8], mode: UpdateMode) -> Result<(), MapError> {
        if self.def.frozen {
            return Err(MapError::ReadOnly);
        }
        let values = self.values().ok_or(MapError::Unsupported)?;
        let size = self.def.value_size as usize;
        if !self.def.kind.is_percpu() {
            if value.len() != size {
                return Err(MapError::Invalid);
            }
            return self.claim(key, mode, |entry, _| values.write(0, entry, value));
        }
        let padded = size.next_multiple_of(8);
        if value.len() != padded * values.copies() as usize {
            return Err(MapError::Invalid);
        }
        self.claim(key, mode, |entry, _| {
            for (cpu, value) in (0..).zip(value.chunks_exact(padded)) {
                values.write(cpu, entry, &value[..size]);
            }
        })
    }

    /// Removes an entry; in a map of redirect targets, empties it. Entries of arrays cannot be removed.
    ///
    /// # Errors
    /// [`MapError::NoEntry`] if there is none, [`MapError::Invalid`] for arrays, [`MapError::ReadOnly`] if
    /// the contents are constant, [`MapError::Unsupported`] for rings.
    pub fn delete(&self, key: &[u8]) -> Result<(), MapError> {
        if self.def.frozen {
            return Err(MapError::ReadOnly);
        }
        self.remove(key)
    }

    /// Returns the keys of all entries. Keys of an LPM trie have zeros after the prefix.
    #[must_use]
    pub fn keys(&self) -> Vec<Vec<u8>> {
        match &self.store {
            Store::Array(_) => (0..self.def.max_entries)
                .map(|index| index.to_le_bytes().to_vec())
                .filter(|key| self.entry(key).is_some())
                .collect(),
            Store::Hash(keys, _) => lock(keys).all(),
            Store::Lpm(lpm, _) => lock(lpm).all(),
            Store::Ring(_) | Store::Pushed(_) | Store::Unusable => Vec::new(),
        }
    }

    /// Returns the number of the key's entry.
    pub(crate) fn entry(&self, key: &[u8]) -> Option<u32> {
        match &self.store {
            Store::Array(values) => {
                let index = u32::from_le_bytes(key.try_into().ok()?);
                let target = self.def.kind.is_sparse();
                let there = index < self.def.max_entries && (!target || values.first_word(index) as u32 != 0);
                there.then_some(index)
            }
            Store::Hash(keys, _) => lock(keys).find(key),
            Store::Lpm(lpm, _) => lock(lpm).longest(key),
            Store::Ring(_) | Store::Pushed(_) | Store::Unusable => None,
        }
    }

    /// Returns the first entry in use of these numbers, and sets `key` to its key. Does not count as a use of
    /// the entry in an LRU map.
    pub(crate) fn next_entry(&self, mut range: Range<u32>, key: &mut Vec<u8>) -> Option<u32> {
        let mut is_found = |found: Option<&[u8]>| {
            key.clear();
            key.extend_from_slice(found.unwrap_or_default());
            found.is_some()
        };
        match &self.store {
            Store::Array(_) => range.find(|entry| {
                let key = entry.to_le_bytes();
                is_found(self.entry(&key).is_some().then_some(&key[..]))
            }),
            Store::Hash(keys, _) => {
                let keys = lock(keys);
                range.find(|entry| is_found(keys.at(*entry)))
            }
            Store::Lpm(lpm, _) => {
                let lpm = lock(lpm);
                range.find(|entry| is_found(lpm.at(*entry)))
            }
            Store::Ring(_) | Store::Pushed(_) | Store::Unusable => None,
        }
    }

    /// Updates an entry for a program on `cpu`. In a per-CPU map it writes the value of that CPU, and a new
    /// entry is zero for the other CPUs.
    pub(crate) fn update_by_program(
        &self,
        key: &[u8],
        value: &[u8],
        mode: UpdateMode,
        cpu: u32,
    ) -> Result<(), MapError> {
        if self.def.flags & MapDef::RDONLY_PROG != 0 {
            return Err(MapError::ReadOnly);
        }
        let values = self.values().ok_or(MapError::Unsupported)?;
        self.claim(key, mode, |entry, new| {
            if new {
                (0..values.copies()).for_each(|cpu| values.clear(cpu, entry));
            }
            values.write(cpu.min(values.copies() - 1), entry, value);
        })
    }

    /// Removes an entry for a program.
    pub(crate) fn delete_by_program(&self, key: &[u8]) -> Result<(), MapError> {
        if self.def.flags & MapDef::RDONLY_PROG != 0 { Err(MapError::ReadOnly) } else { self.remove(key) }
    }

    /// Calls `write` with the entry for the key, and whether it is new. The lock of the keys is held
    /// meanwhile: a reader that holds it never sees the key with the value of an earlier one.
    fn claim(&self, key: &[u8], mode: UpdateMode, write: impl FnOnce(u32, bool)) -> Result<(), MapError> {
        match &self.store {
            Store::Array(_) => {
                let index = u32::from_le_bytes(key.try_into().map_err(|_| MapError::Invalid)?);
                if index >= self.def.max_entries {
                    return Err(MapError::TooBig);
                }
                if mode == UpdateMode::NoExist {
                    return Err(MapError::Exists);
                }
                write(index, false);
            }
            Store::Hash(keys, _) => {
                let mut keys = lock(keys);
                let (entry, is_new) = keys.claim(key, mode)?;
                write(entry, is_new);
            }
            Store::Lpm(lpm, _) => {
                let mut lpm = lock(lpm);
                let (entry, is_new) = lpm.claim(key, mode)?;
                write(entry, is_new);
            }
            Store::Ring(_) | Store::Pushed(_) | Store::Unusable => return Err(MapError::Unsupported),
        }
        Ok(())
    }

    fn remove(&self, key: &[u8]) -> Result<(), MapError> {
        match &self.store {
            Store::Array(values) if self.def.kind.is_sparse() => {
                let index = self.entry(key).ok_or(MapError::NoEntry)?;
                values.clear(0, index);
                Ok(())
            }
            Store::Array(_) => Err(MapError::Invalid),
            Store::Hash(keys, _) => lock(keys).remove(key),
            Store::Lpm(lpm, _) => lock(lpm).remove(key),
            Store::Ring(_) | Store::Pushed(_) | Store::Unusable => Err(MapError::Unsupported),
        }
    }

    pub(crate) fn values(&self) -> Option<&Values> {
        match &self.store {
            Store::Array(values) | Store::Hash(_, values) | Store::Lpm(_, values) => Some(values),
            Store::Ring(_) | Store::Pushed(_) | Store::Unusable => None,
        }
    }

    /// Returns the values of a queue, stack or Bloom filter.
    pub(crate) fn pushed(&self) -> Option<&Pushed> {
        match &self.store {
            Store::Pushed(pushed) => Some(pushed),
            _ => None,
        }
    }

    /// Returns whether programs of the machine can use the map.
    pub(crate) fn is_usable(&self) -> bool {
        !matches!(self.store, Store::Unusable)
    }
}

/// Locks the mutex. After a panic of another holder the table is still consistent, because no update panics
/// half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
