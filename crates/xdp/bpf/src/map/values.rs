//! Values of maps as 64-bit atomic words. Programs hold addresses of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::MapError;

/// Values of all entries. Each value starts at its own word. A per-CPU map has one such array per CPU.
#[derive(Debug)]
pub(crate) struct Values {
    words: Arc<[AtomicU64]>,
    /// Length of a value in bytes.
    size: usize,
    entries: u32,
    copies: u32,
}

impl Values {
    pub(super) fn new(size: u32, entries: u32, copies: u32) -> Result<Values, MapError> {
        let stride = u64::from(size).div_ceil(8);
        let words = stride.checked_mul(u64::from(entries)).and_then(|words| words.checked_mul(copies.into()));
        let words = words.filter(|&words| words <= MapError::BYTES_MAX / 8).ok_or(MapError::NoMemory)?;
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Values { words, size: size as usize, entries, copies })
    }

    /// Returns the number of values of each entry.
    pub(crate) fn copies(&self) -> u32 {
        self.copies
    }

    /// Returns the storage, for the address space of a program.
    pub(crate) fn words(&self) -> &Arc<[AtomicU64]> {
        &self.words
    }

    /// Returns the byte offset of a value in the storage. CPUs beyond the last share the value of the last.
    pub(crate) fn offset(&self, cpu: u32, entry: u32) -> usize {
        let copy = cpu.min(self.copies - 1) as usize;
        (copy * self.entries as usize + entry as usize) * self.size.div_ceil(8) * 8
    }

    fn value(&self, cpu: u32, entry: u32) -> &[AtomicU64] {
        let first = self.offset(cpu, entry) / 8;
        &self.words[first..first + self.size.div_ceil(8)]
    }

    pub(crate) fn first_word(&self, entry: u32) -> u64 {
        self.value(0, entry)[0].load(Relaxed)
    }

    pub(crate) fn read(&self, cpu: u32, entry: u32) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            self.value(cpu, entry).iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        bytes.truncate(self.size);
        bytes
    }

    /// Writes at most `size` bytes. If the value is shorter, the rest of its last word becomes 0.
    pub(super) fn write(&self, cpu: u32, entry: u32, value: &[u8]) {
        for (word, bytes) in self.value(cpu, entry).iter().zip(value.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Relaxed);
        }
    }

    pub(super) fn clear(&self, cpu: u32, entry: u32) {
        self.value(cpu, entry).iter().for_each(|word| word.store(0, Relaxed));
    }
}
