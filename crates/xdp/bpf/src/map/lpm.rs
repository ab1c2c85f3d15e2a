//! Longest prefix match. A key is a prefix length (32 bits, little-endian) and address bytes, most
//! significant bit first.

use super::keys::Keys;
use super::{MapError, UpdateMode};

/// Prefixes in a hash table, searched from the longest length in use to the shortest.
#[derive(Debug)]
pub(super) struct Lpm {
    keys: Keys,
    /// Prefix lengths in use, longest first, and the number of prefixes with each.
    lengths: Vec<(u32, u32)>,
    bits_max: u32,
    /// The key that is being searched for.
    probe: Vec<u8>,
}

impl Lpm {
    /// Maximum number of address bytes in a key (`LPM_DATA_SIZE_MAX`).
    const ADDRESS_MAX: u32 = 256;

    pub(super) fn new(key_size: u32, entries: u32) -> Result<Lpm, MapError> {
        match key_size {
            5.. if key_size <= 4 + Self::ADDRESS_MAX => Ok(Lpm {
                keys: Keys::new(key_size, entries, false),
                lengths: Vec::new(),
                bits_max: (key_size - 4) * 8,
                probe: Vec::with_capacity(key_size as usize),
            }),
            _ => Err(MapError::Invalid),
        }
    }

    /// Returns the entry with the longest prefix of this address, at most as long as the key's own length.
    pub(super) fn longest(&mut self, key: &[u8]) -> Option<u32> {
        let wanted = self.length_of(key).ok()?;
        for index in 0..self.lengths.len() {
            let (length, _) = self.lengths[index];
            if length <= wanted {
                self.set_probe(key, length);
                if let Some(entry) = self.keys.find(&self.probe) {
                    return Some(entry);
                }
            }
        }
        None
    }

    pub(super) fn claim(&mut self, key: &[u8], mode: UpdateMode) -> Result<(u32, bool), MapError> {
        let length = self.length_of(key)?;
        self.set_probe(key, length);
        let (entry, new) = self.keys.claim(&self.probe, mode).map_err(|error| match error {
            MapError::TooBig => MapError::NoSpace,
            other => other,
        })?;
        if new {
            match self.position(length) {
                Ok(index) => self.lengths[index].1 += 1,
                Err(index) => self.lengths.insert(index, (length, 1)),
            }
        }
        Ok((entry, new))
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Result<(), MapError> {
        let length = self.length_of(key)?;
        self.set_probe(key, length);
        self.keys.remove(&self.probe)?;
        if let Ok(index) = self.position(length) {
            self.lengths[index].1 -= 1;
            if self.lengths[index].1 == 0 {
                self.lengths.remove(index);
            }
        }
        Ok(())
    }

    /// Returns the entry with exactly this prefix.
    pub(super) fn exact(&mut self, key: &[u8]) -> Option<u32> {
        let length = self.length_of(key).ok()?;
        self.set_probe(key, length);
        self.keys.position(&self.probe)
    }

    /// As [`Keys::at`].
    pub(super) fn at(&self, entry: u32) -> Option<&[u8]> {
        self.keys.at(entry)
    }

    pub(super) fn all(&self) -> Vec<Vec<u8>> {
        self.keys.all()
    }

    fn position(&self, length: u32) -> Result<usize, usize> {
        self.lengths.binary_search_by(|(other, _)| length.cmp(other))
    }

    fn length_of(&self, key: &[u8]) -> Result<u32, MapError> {
        let (length, address) = key.split_first_chunk::<4>().ok_or(MapError::Invalid)?;
        let length = u32::from_le_bytes(*length);
        if length <= self.bits_max && address.len() * 8 == self.bits_max as usize {
            Ok(length)
        } else {
            Err(MapError::Invalid)
        }
    }

    /// Sets `probe` to the key cut to `length` bits.
    fn set_probe(&mut self, key: &[u8], length: u32) {
        self.probe.clear();
        self.probe.extend(length.to_le_bytes());
        let (whole, rest) = (length as usize / 8, length % 8);
        self.probe.extend(&key[4..4 + whole]);
        if rest > 0 {
            self.probe.push(key[4 + whole] & !(0xff >> rest));
        }
        self.probe.resize(key.len(), 0);
    }
}
