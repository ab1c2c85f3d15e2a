//! Queues, stacks and Bloom filters: maps without keys, for values that programs push.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Mutex;

use super::{MapDef, MapError, MapKind, lock};

/// Flag of a push: if the queue is full, the oldest value is removed (`BPF_EXIST`).
const EVICT: u64 = 2;
/// Number of hash functions of a Bloom filter that names none, and the most that there may be (the kernel's
/// numbers).
const HASHES: u64 = 5;
const HASHES_MAX: u64 = 15;

/// The values of such a map.
#[derive(Debug)]
pub(crate) enum Pushed {
    /// Oldest first; a stack takes from the end.
    Values { values: Mutex<VecDeque<Vec<u8>>>, is_stack: bool, max: usize },
    /// Bits of hashes of all values.
    Bloom { bits: Mutex<Vec<u64>>, hashers: Vec<RandomState> },
}

impl Pushed {
    pub(super) fn new(def: &MapDef) -> Result<Pushed, MapError> {
        if def.key_size != 0 || def.value_size == 0 || def.max_entries == 0 {
            return Err(MapError::Invalid);
        }
        if def.kind != MapKind::BloomFilter {
            let (is_stack, max) = (def.kind == MapKind::Stack, def.max_entries as usize);
            return Ok(Pushed::Values { values: Mutex::default(), is_stack, max });
        }
        let hashes = if def.extra == 0 { HASHES } else { def.extra };
        if hashes > HASHES_MAX {
            return Err(MapError::Invalid);
        }
        // As many bits as the kernel has: entries times hashes / ln 2, as a power of two.
        let bits = u64::from(def.max_entries).saturating_mul(hashes).saturating_mul(7) / 5;
        let words = bits.max(64).next_power_of_two() / 64;
        if words > MapError::BYTES_MAX / 8 {
            return Err(MapError::NoMemory);
        }
        let hashers = (0..hashes).map(|_| RandomState::new()).collect();
        Ok(Pushed::Bloom { bits: Mutex::new(vec![0; words as usize]), hashers })
    }

    /// `bpf_map_push_elem`
    pub(crate) fn push(&self, value: &[u8], flags: u64) -> Result<(), MapError> {
        match self {
            Pushed::Values { values, max, .. } => {
                if flags & !EVICT != 0 {
                    return Err(MapError::Invalid);
                }
                let mut values = lock(values);
                if values.len() >= *max {
                    if flags & EVICT == 0 {
                        return Err(MapError::TooBig);
                    }
                    values.pop_front();
                }
                values.push_back(value.to_vec());
                Ok(())
            }
            Pushed::Bloom { .. } if flags != 0 => Err(MapError::Invalid),
            Pushed::Bloom { bits, hashers } => {
                let mut bits = lock(bits);
                for hasher in hashers {
                    let at = hasher.hash_one(value) as usize & (bits.len() * 64 - 1);
                    bits[at / 64] |= 1 << (at % 64);
                }
                Ok(())
            }
        }
    }

    /// `bpf_map_pop_elem` and, without `remove`, `bpf_map_peek_elem`. Returns `None` for a Bloom filter.
    pub(crate) fn take(&self, remove: bool) -> Option<Result<Vec<u8>, MapError>> {
        let Pushed::Values { values, is_stack, .. } = self else { return None };
        let mut values = lock(values);
        let value = match (*is_stack, remove) {
            (true, true) => values.pop_back(),
            (false, true) => values.pop_front(),
            (true, false) => values.back().cloned(),
            (false, false) => values.front().cloned(),
        };
        Some(value.ok_or(MapError::NoEntry))
    }

    /// `bpf_map_peek_elem` on a Bloom filter: whether the value may have been pushed. Returns `None` for
    /// other maps.
    pub(crate) fn may_have(&self, value: &[u8]) -> Option<bool> {
        let Pushed::Bloom { bits, hashers } = self else { return None };
        let bits = lock(bits);
        Some(hashers.iter().all(|hasher| {
            let at = hasher.hash_one(value) as usize & (bits.len() * 64 - 1);
            bits[at / 64] & 1 << (at % 64) != 0
        }))
    }
}
