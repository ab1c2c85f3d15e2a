//! Ring buffer with records from programs to user space, in order of reservation.
//!
//! Each record has a header word with its length and its state (being written, or discarded) and is padded to
//! 8 bytes, as in the kernel's ring buffer. A program sees the storage twice in a row, so that its records
//! never wrap. A program may overwrite headers; the reader then gets wrong records, but never more than the
//! ring holds.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex};

use super::{MapError, lock};

const BUSY: u64 = 1 << 31;
const DISCARD: u64 = 1 << 30;
const LEN_MASK: u64 = DISCARD - 1;
const HEADER_LEN: u64 = 8;

/// A ring of records.
#[derive(Debug)]
pub struct Ring {
    words: Arc<[AtomicU64]>,
    /// Bytes reserved since the start.
    produced: Mutex<u64>,
    /// The lock serializes readers. Writers only load the number of bytes consumed since the start.
    reader: Mutex<()>,
    consumed: AtomicU64,
    /// Records that did not fit.
    lost: AtomicU64,
}

impl Ring {
    pub(super) fn new(bytes: u32) -> Result<Ring, MapError> {
        if !bytes.is_power_of_two() || bytes < 4096 {
            return Err(MapError::Invalid);
        }
        // A program sees twice this much, which must fit into its address space.
        if u64::from(bytes) > MapError::BYTES_MAX {
            return Err(MapError::NoMemory);
        }
        Ok(Ring {
            words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(),
            produced: Mutex::new(0),
            reader: Mutex::new(()),
            consumed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// Passes every finished record to `take`, oldest first, up to the first unfinished one. Returns the
    /// number of records.
    pub fn consume(&self, mut take: impl FnMut(&[u8])) -> usize {
        self.consume_while(|record| {
            take(record);
            true
        })
    }

    /// As [`consume`](Self::consume), until `take` returns false, which leaves the following records.
    pub fn consume_while(&self, mut take: impl FnMut(&[u8]) -> bool) -> usize {
        let _guard = lock(&self.reader);
        let mut records = 0;
        let mut bytes = Vec::new();
        let mut goes_on = true;
        loop {
            if !goes_on {
                return records;
            }
            let position = self.consumed.load(Relaxed);
            let produced = self.produced();
            if position == produced {
                return records;
            }
            let header = self.word(position).load(Acquire);
            if header & BUSY != 0 {
                return records;
            }
            let len = (header & LEN_MASK).min(self.bytes() - HEADER_LEN);
            if header & DISCARD == 0 {
                bytes.clear();
                for at in (0..len).step_by(8) {
                    bytes.extend(self.word(position + HEADER_LEN + at).load(Relaxed).to_le_bytes());
                }
                goes_on = take(&bytes[..len as usize]);
                records += 1;
            }
            let next = position + HEADER_LEN + len.next_multiple_of(8);
            self.consumed.store(next.min(produced), Release);
        }
    }

    /// Returns the number of records that did not fit so far.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Returns the size of the storage in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    pub(crate) fn words(&self) -> &Arc<[AtomicU64]> {
        &self.words
    }

    pub(crate) fn produced(&self) -> u64 {
        *lock(&self.produced)
    }

    pub(crate) fn consumed(&self) -> u64 {
        self.consumed.load(Relaxed)
    }

    /// Reserves room for a record of `len` bytes. Returns its byte offset in the storage, or `None` if the
    /// ring is full.
    pub(crate) fn reserve(&self, len: u64) -> Option<u32> {
        let fits = len <= self.bytes();
        let mut produced = lock(&self.produced);
        let end = *produced + HEADER_LEN + len.min(self.bytes()).next_multiple_of(8);
        if !fits || end - self.consumed.load(Acquire) > self.bytes() - 1 {
            self.lost.fetch_add(1, Relaxed);
            return None;
        }
        let start = std::mem::replace(&mut *produced, end);
        self.word(start).store(len | BUSY, Relaxed);
        Some(((start + HEADER_LEN) & (self.bytes() - 1)) as u32)
    }

    /// Marks the record that `reserve` returned as complete or discarded.
    pub(crate) fn finish(&self, offset: u32, discard: bool) {
        let header = self.word(u64::from(offset).wrapping_sub(HEADER_LEN));
        let flag = if discard { DISCARD } else { 0 };
        header.store(header.load(Relaxed) & LEN_MASK | flag, Release);
    }

    /// Appends a complete record made of parts. Returns whether it fitted.
    pub(crate) fn output(&self, parts: &[&[u8]]) -> bool {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let Some(offset) = self.reserve(len) else { return false };
        let mut bytes = parts.iter().copied().flatten().copied();
        for at in (0..len).step_by(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(bytes.by_ref()).for_each(|(to, from)| *to = from);
            self.word(u64::from(offset) + at).store(u64::from_le_bytes(word), Relaxed);
        }
        self.finish(offset, false);
        true
    }

    /// Returns the word at a position, which keeps growing around the ring.
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[(position & (self.bytes() - 1)) as usize / 8]
    }
}
