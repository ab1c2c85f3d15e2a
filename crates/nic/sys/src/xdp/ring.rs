//! One ring of AF_XDP: one producer, one consumer, one of them the kernel (linux/if_xdp.h).
//!
//! Indices increase without limit and are masked to the ring's size when used. Each side keeps a copy of
//! the other's index and reads the index again only when the copy says full or empty. It publishes its
//! own index once per batch, with release order.

use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Mmap;

/// The memory that both sides share.
#[derive(Debug)]
pub(super) struct RingMemory {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<u8>,
    mask: u32,
    /// Keeps the pointers above valid.
    #[expect(dead_code, reason = "held for its Drop")]
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    #[expect(dead_code, reason = "held for its Drop")]
    Mapped(Mmap),
    #[cfg(test)]
    #[expect(dead_code, reason = "held for its Drop")]
    Shared(std::sync::Arc<Box<[u64]>>),
}

// SAFETY: the pointers are into memory that `memory` keeps; indices and flags are atomics, and only the
// side that owns an entry accesses it (see `Producer` and `Consumer`).
unsafe impl Send for RingMemory {}

impl RingMemory {
    /// Maps a ring of `size` entries of `entry_len` bytes.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &libc::xdp_ring_offset,
        size: u32,
        entry_len: usize,
    ) -> io::Result<RingMemory> {
        let len = offsets.desc as usize + size as usize * entry_len;
        let map = Mmap::shared(fd, len, page_offset)?;
        let places = [offsets.producer, offsets.consumer, offsets.flags, offsets.desc];
        // Offsets come from the kernel, but are not trusted beyond the mapping.
        if places.iter().any(|at| *at as usize + mem::size_of::<u64>() > len || !at.is_multiple_of(4)) {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        let at = |offset: u64| {
            // SAFETY: checked above to be within the mapping.
            unsafe { map.start().add(offset as usize) }
        };
        Ok(RingMemory {
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: at(offsets.flags).cast(),
            entries: at(offsets.desc),
            mask: size - 1,
            memory: Memory::Mapped(map),
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: within `memory`, four-byte aligned, and only ever accessed atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }

    fn entry<T>(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index within the entries, which the mapping has room for.
        unsafe { self.entries.cast::<T>().add((index & self.mask) as usize) }
    }

    fn size(&self) -> u32 {
        self.mask + 1
    }
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: RingMemory,
    /// Index of the next entry to write.
    next: u32,
    /// The index that the kernel has been told.
    submitted: u32,
    /// The consumer's index when it was last read.
    consumed: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Producer<T> {
    pub(super) fn new(ring: RingMemory) -> Producer<T> {
        let next = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Acquire);
        Producer { ring, next, submitted: next, consumed, entries: PhantomData }
    }

    /// Returns how many entries can be pushed; reads the consumer's index if the copy says fewer than
    /// `want`.
    #[inline]
    pub(super) fn room(&mut self, want: u32) -> u32 {
        let room = |next: u32, consumed: u32, size: u32| size.saturating_sub(next.wrapping_sub(consumed));
        let known = room(self.next, self.consumed, self.ring.size());
        if known >= want {
            return known;
        }
        // Acquire: the kernel has finished with the entries that it has consumed.
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        room(self.next, self.consumed, self.ring.size())
    }

    /// Writes the next entry; returns false and writes nothing if there is no space.
    #[inline]
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        // SAFETY: the entry is within the ring and was consumed: the consumer does not read it before
        // `submit`.
        unsafe { self.ring.entry::<T>(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Publishes the pushed entries to the kernel: one store per batch.
    #[inline]
    pub(super) fn submit(&mut self) {
        if self.next != self.submitted {
            // Release: the entries are written before the index.
            self.ring.producer().store(self.next, Ordering::Release);
            self.submitted = self.next;
        }
    }

    /// Number of submitted entries that the kernel has not consumed yet.
    #[inline]
    pub(super) fn waiting(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.submitted.wrapping_sub(self.consumed)
    }

    /// Whether the kernel sleeps and needs a system call to continue.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    /// Whether the kernel sleeps although there are entries for it: it may have found the ring empty before
    /// they came, and said so afterwards.
    #[inline]
    pub(super) fn leaves_entries(&mut self) -> bool {
        self.needs_wakeup() && self.waiting() > 0
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: RingMemory,
    /// Index of the next entry to read.
    next: u32,
    /// The index that the kernel has been told.
    released: u32,
    /// The producer's index when it was last read.
    produced: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn new(ring: RingMemory) -> Consumer<T> {
        let next = ring.consumer().load(Ordering::Relaxed);
        Consumer { ring, next, released: next, produced: next, entries: PhantomData }
    }

    /// Returns the next entry. When all known entries are read, it releases them to the kernel and reads
    /// the producer's index: one store and one load per batch.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.produced {
            self.release();
            // Acquire: the entries below the index are written.
            self.produced = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.produced {
                return None;
            }
        }
        // SAFETY: the entry is within the ring, and the producer will not write it before `release`. The
        // mapping holds plain integers, for which any bytes are valid.
        let entry = unsafe { self.ring.entry::<T>(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Releases the entries that were read to the kernel.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.next != self.released {
            // Release: the entries are read before the index is visible.
            self.ring.consumer().store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }
}

#[cfg(test)]
impl RingMemory {
    /// Both ends of a ring of 64-bit entries in ordinary memory, with indices that start anywhere.
    pub(super) fn pair(size: u32, start: u32) -> (RingMemory, RingMemory) {
        let words: Box<[u64]> = (0..u64::from(size) + 3).map(|_| 0).collect();
        let shared = std::sync::Arc::new(words);
        let side = || {
            let base = NonNull::new(shared.as_ptr().cast_mut().cast::<u8>()).unwrap();
            // SAFETY: three words of indices, then the entries: all within `shared`.
            let at = |word: usize| unsafe { base.add(word * 8) };
            RingMemory {
                producer: at(0).cast(),
                consumer: at(1).cast(),
                flags: at(2).cast(),
                entries: at(3),
                mask: size - 1,
                memory: Memory::Shared(std::sync::Arc::clone(&shared)),
            }
        };
        let (one, other) = (side(), side());
        one.producer().store(start, Ordering::Relaxed);
        one.consumer().store(start, Ordering::Relaxed);
        (one, other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// A random walk of both ends against a queue, across the wrap of the indices.
    #[test]
    fn a_ring_is_a_bounded_queue_that_publishes_complete_batches() {
        for seed in 1..50u64 {
            let (one, other) = RingMemory::pair(8, u32::MAX - 20);
            let (mut producer, mut consumer) = (Producer::<u64>::new(one), Consumer::<u64>::new(other));
            let (mut hidden, mut shown, mut read) = (VecDeque::new(), VecDeque::new(), 0usize);
            let (mut state, mut number) = (seed, 0u64);
            for _ in 0..400 {
                // xorshift64
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                match state % 5 {
                    0 | 1 => {
                        let fits = hidden.len() + shown.len() + read < 8;
                        assert_eq!(producer.push(number), fits);
                        if fits {
                            hidden.push_back(number);
                            number += 1;
                        }
                    }
                    2 => {
                        producer.submit();
                        shown.append(&mut hidden);
                    }
                    3 => {
                        let batch_ends = consumer.next == consumer.produced;
                        let got = consumer.pop();
                        assert_eq!(got, shown.pop_front());
                        read = if batch_ends { 0 } else { read } + usize::from(got.is_some());
                    }
                    _ => {
                        consumer.release();
                        read = 0;
                    }
                }
                assert_eq!(producer.waiting() as usize, shown.len() + read);
            }
        }
    }

    #[test]
    fn the_flag_of_the_kernel_is_seen() {
        let (one, other) = RingMemory::pair(2, 0);
        let mut producer = Producer::<u64>::new(one);
        assert!(!producer.needs_wakeup());
        assert!(producer.push(1));
        producer.submit();
        assert!(!producer.leaves_entries());
        other.flags().store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.needs_wakeup() && producer.leaves_entries(), "the flag comes after the entry");
        let mut consumer = Consumer::<u64>::new(other);
        assert_eq!(consumer.pop(), Some(1));
        consumer.pop();
        consumer.release();
        assert!(producer.needs_wakeup() && !producer.leaves_entries(), "there is nothing to wake it for");
    }
}
