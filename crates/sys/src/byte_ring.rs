//! Bytes from one process to another, through memory that both have mapped: one producer, one consumer.
//!
//! Neither side trusts the other. What it needs to know it keeps to itself; what it reads of the other's index is
//! checked before it counts; the bytes are copied, never referred to. The file cannot shrink, so that
//! nobody's access to it fails.
//!
//! ```text
//! 0     u64 bytes ever published, by the producer
//! 128   u64 bytes ever released, by the consumer
//! 256   u32 not 0: the consumer sleeps and wants to be woken
//! 4096  the bytes, each at its number modulo their space
//! ```
//!
//! Indices never wrap, and lie in lines of their own (two, as those are fetched in pairs).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{Mmap, guarded, memory, prefetch};

/// Bytes that can be on their way: more than a turn of the engine writes beyond what makes it pause, and little enough to
/// stay in the caches of two CPUs.
pub const RING_BYTES: usize = 1 << 20;

const PUBLISHED_AT: usize = 0;
const RELEASED_AT: usize = 128;
const ASLEEP_AT: usize = 256;
const BYTES_AT: usize = 4096;
/// Bytes of a line of a cache.
pub const LINE: usize = 64;
/// Bytes that are fetched in advance: a train of a short message and an acknowledgement.
const FETCHED: usize = 2 * LINE;
const FILE_LEN: usize = BYTES_AT + RING_BYTES;

const _: () = assert!(RING_BYTES.is_power_of_two() && ASLEEP_AT + 4 <= BYTES_AT);

/// The other side has written what no correct one would; nothing more comes of this ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Broken;

/// The side that writes.
#[derive(Debug)]
pub struct Producer {
    shared: Shared,
    published: u64,
    /// What the consumer had released when last seen.
    released: u64,
}

/// The side that reads.
#[derive(Debug)]
pub struct Consumer {
    shared: Shared,
    released: u64,
    /// What the producer had published when last seen.
    published: u64,
}

impl Producer {
    /// A new ring, and the descriptor that its consumer needs.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`; `EFBIG` if the limit of file sizes (ulimit -f) forbids it.
    pub fn create() -> io::Result<(Producer, OwnedFd)> {
        let file = memory::sealed_memory_file(c"roxie-ring", FILE_LEN as u64)?;
        let shared = Shared::map(file.as_fd())?;
        Ok((Producer { shared, published: 0, released: 0 }, file.into()))
    }

    /// Bytes that can be written; looks at the consumer's index only if there were fewer than `want`.
    ///
    /// # Errors
    /// The consumer has released what was never published, or less than before.
    #[inline]
    pub fn room(&mut self, want: usize) -> Result<usize, Broken> {
        let mut used = self.published - self.released;
        if RING_BYTES - (used as usize) < want {
            // Acquire: the consumer is done with what it says it has released.
            let released = self.shared.released().load(Ordering::Acquire);
            if released < self.released || released > self.published {
                return Err(Broken);
            }
            self.released = released;
            used = self.published - released;
        }
        Ok(RING_BYTES - used as usize)
    }

    /// Writes `bytes`, `at` bytes behind what is published; the consumer does not see them yet. False, and nothing
    /// written, where [`room`](Producer::room) has not found space.
    #[inline]
    #[must_use]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        let room = RING_BYTES - (self.published - self.released) as usize;
        if room.checked_sub(at).is_none_or(|room| room < bytes.len()) {
            return false;
        }
        self.shared.put(self.published + at as u64, bytes)
    }

    /// Shows the consumer `len` more bytes, which were written.
    ///
    /// # Panics
    /// If there was never room for them.
    #[inline]
    pub fn publish(&mut self, len: usize) {
        self.published += len as u64;
        assert!(self.published - self.released <= RING_BYTES as u64, "more than there is room for");
        // Release: the bytes are there before the index says so.
        self.shared.published().store(self.published, Ordering::Release);
        // The consumer has read here a lap ago. By the next train the lines are ours.
        self.shared.lines(self.published).for_each(prefetch::to_write);
    }

    /// Whether the consumer sleeps; whoever is told so must wake it, and nobody is told twice.
    #[inline]
    pub fn takes_sleeper(&self) -> bool {
        // The index is seen before the question: see `Consumer::may_sleep`.
        fence(Ordering::SeqCst);
        let asleep = self.shared.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }
}

impl Consumer {
    /// The other end of the ring behind a descriptor that somebody has passed.
    ///
    /// # Errors
    /// `EPROTO` if it is no such ring, or could shrink; what mmap(2) says.
    pub fn open(ring: BorrowedFd<'_>) -> io::Result<Consumer> {
        if !memory::is_sealed(ring)
            || File::from(ring.try_clone_to_owned()?).metadata()?.len() < FILE_LEN as u64
        {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        Ok(Consumer { shared: Shared::map(ring)?, released: 0, published: 0 })
    }

    /// Bytes that can be read.
    ///
    /// # Errors
    /// The producer has published more than there is room for, or less than before.
    #[inline]
    pub fn available(&mut self) -> Result<usize, Broken> {
        // Acquire: the bytes in front of the index are written.
        let published = self.shared.published().load(Ordering::Acquire);
        if published != self.published {
            if published < self.published || published - self.released > RING_BYTES as u64 {
                return Err(Broken);
            }
            self.published = published;
            // They come while the caller does something else first.
            self.shared.lines(self.released).for_each(prefetch::to_read);
        }
        Ok((published - self.released) as usize)
    }

    /// Copies what begins `at` bytes behind what is released; false where [`available`](Consumer::available) has not
    /// found as much.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, out: &mut [u8]) -> bool {
        let available = (self.published - self.released) as usize;
        if available.checked_sub(at).is_none_or(|available| available < out.len()) {
            return false;
        }
        self.shared.get(self.released + at as u64, out)
    }

    /// Gives the place of the next `len` bytes back to the producer.
    ///
    /// # Panics
    /// If they were not available.
    #[inline]
    pub fn release(&mut self, len: usize) {
        self.released += len as u64;
        assert!(self.released <= self.published, "more than there was");
        // Release: the bytes were read before the index says so.
        self.shared.released().store(self.released, Ordering::Release);
    }

    /// From now on the producer wakes us. False if there is something to read, or the ring is broken: then not.
    pub fn may_sleep(&mut self) -> bool {
        self.shared.asleep().store(1, Ordering::Relaxed);
        // Either the producer sees that we sleep, or we see what it has published.
        fence(Ordering::SeqCst);
        let nothing = self.available() == Ok(0);
        if !nothing {
            self.wakes();
        }
        nothing
    }

    /// Awake: nobody needs to wake us.
    pub fn wakes(&self) {
        self.shared.asleep().store(0, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Shared(Mmap);

impl Shared {
    fn map(fd: BorrowedFd<'_>) -> io::Result<Shared> {
        Mmap::shared(fd, FILE_LEN, 0).map(Shared)
    }

    fn published(&self) -> &AtomicU64 {
        // SAFETY: within the mapping, eight-byte aligned, and only ever accessed atomically.
        unsafe { self.0.start().add(PUBLISHED_AT).cast::<AtomicU64>().as_ref() }
    }

    fn released(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { self.0.start().add(RELEASED_AT).cast::<AtomicU64>().as_ref() }
    }

    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: as above, with four bytes.
        unsafe { self.0.start().add(ASLEEP_AT).cast::<AtomicU32>().as_ref() }
    }

    /// Address of the byte with this number, and how many lie behind it in a row.
    fn place(&self, number: u64) -> (u64, usize) {
        let at = number as usize % RING_BYTES;
        (self.0.start().addr().get() as u64 + (BYTES_AT + at) as u64, RING_BYTES - at)
    }

    /// The first lines of what begins at this number.
    #[inline]
    fn lines(&self, number: u64) -> impl Iterator<Item = usize> {
        let (at, in_a_row) = self.place(number);
        (0..FETCHED.min(in_a_row)).step_by(LINE).map(move |line| at as usize + line)
    }

    #[inline]
    fn put(&self, number: u64, bytes: &[u8]) -> bool {
        let (to, in_a_row) = self.place(number);
        let (first, rest) = bytes.split_at(bytes.len().min(in_a_row));
        // SAFETY: the callers have checked that there are no more than RING_BYTES, so both parts are within the mapping,
        // which nobody refers to.
        unsafe {
            guarded::write(first, to).is_ok()
                && (rest.is_empty() || guarded::write(rest, self.place(0).0).is_ok())
        }
    }

    #[inline]
    fn get(&self, number: u64, out: &mut [u8]) -> bool {
        let (from, in_a_row) = self.place(number);
        let (first, rest) = out.split_at_mut(out.len().min(in_a_row));
        // SAFETY: as in `put`.
        unsafe {
            guarded::read(from, first).is_ok()
                && (rest.is_empty() || guarded::read(self.place(0).0, rest).is_ok())
        }
    }
}

#[cfg(test)]
mod tests;
