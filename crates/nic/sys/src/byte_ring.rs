//! A byte ring in memory that two processes have mapped: one producer, one consumer.
//!
//! Neither side trusts the other. Each side keeps its own state in private memory, checks the index that
//! it reads from the other side, and copies the bytes without ever forming a reference to them. The file
//! cannot shrink, so no access to it can fault.
//!
//! ```text
//! 0     u64 bytes ever published, by the producer
//! 128   u64 bytes ever released, by the consumer
//! 256   u32 not 0: the consumer sleeps and wants to be woken
//! 4096  the bytes, each at its number modulo their space
//! ```
//!
//! Indices never wrap. Each index has two cache lines of its own, because CPUs fetch lines in pairs.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{Mmap, guarded, memory, prefetch};

/// Capacity in bytes: more than one transmit quantum writes after the ring counts as crowded, and little
/// enough to stay in the caches of two CPUs.
pub const RING_BYTES: usize = 1 << 20;

const PUBLISHED_AT: usize = 0;
const RELEASED_AT: usize = 128;
const ASLEEP_AT: usize = 256;
const BYTES_AT: usize = 4096;
/// Bytes of a cache line.
pub const LINE: usize = 64;
/// Bytes that are prefetched: a batch with a short message and an acknowledgement.
const FETCHED: usize = 2 * LINE;
const FILE_LEN: usize = BYTES_AT + RING_BYTES;

const _: () = assert!(RING_BYTES.is_power_of_two() && ASLEEP_AT + 4 <= BYTES_AT);

/// The other side has written a value that no correct implementation writes; the ring is unusable from
/// then on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Broken;

/// The writing end.
#[derive(Debug)]
pub struct Producer {
    shared: Shared,
    published: u64,
    /// The consumer's index when this side last read it.
    released: u64,
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer {
    shared: Shared,
    released: u64,
    /// The producer's index when this side last read it.
    published: u64,
}

impl Producer {
    /// Creates a ring; returns its producer, and the descriptor that the consumer needs.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`; `EFBIG` if the limit of file sizes (ulimit -f) forbids it.
    pub fn create() -> io::Result<(Producer, OwnedFd)> {
        let file = memory::sealed_memory_file(c"roxie-ring", FILE_LEN as u64)?;
        let shared = Shared::map(file.as_fd())?;
        Ok((Producer { shared, published: 0, released: 0 }, file.into()))
    }

    /// Returns the number of bytes that can be written; reads the consumer's index only if fewer than
    /// `want` were known to be free.
    ///
    /// # Errors
    /// The consumer has released bytes that were never published, or its index went back.
    #[inline]
    pub fn room(&mut self, want: usize) -> Result<usize, Broken> {
        let mut used = self.published - self.released;
        if RING_BYTES - (used as usize) < want {
            // Acquire: the consumer has finished reading what it has released.
            let released = self.shared.released().load(Ordering::Acquire);
            if released < self.released || released > self.published {
                return Err(Broken);
            }
            self.released = released;
            used = self.published - released;
        }
        Ok(RING_BYTES - used as usize)
    }

    /// Writes `bytes`, `at` bytes after the published ones; the consumer does not see them yet. Returns
    /// false and writes nothing where [`room`](Producer::room) has not found space.
    #[inline]
    #[must_use]
    pub fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        let room = RING_BYTES - (self.published - self.released) as usize;
        if room.checked_sub(at).is_none_or(|room| room < bytes.len()) {
            return false;
        }
        self.shared.put(self.published + at as u64, bytes)
    }

    /// Makes `len` more bytes, which were written, visible to the consumer.
    ///
    /// # Panics
    /// If there was never room for them.
    #[inline]
    pub fn publish(&mut self, len: usize) {
        self.published += len as u64;
        assert!(self.published - self.released <= RING_BYTES as u64, "more than there is room for");
        // Release: the bytes are visible before the index.
        self.shared.published().store(self.published, Ordering::Release);
        // The consumer has read these lines one lap ago; they are fetched for the next batch.
        self.shared.lines(self.published).for_each(prefetch::to_write);
    }

    /// Whether the consumer sleeps. The request for a wake-up is taken: the caller must wake the
    /// consumer, and the next call returns false.
    #[inline]
    pub fn take_wakeup_request(&self) -> bool {
        // The index is visible before the flag is read: see `Consumer::request_wakeup`.
        fence(Ordering::SeqCst);
        let asleep = self.shared.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }
}

impl Consumer {
    /// Maps the ring behind a descriptor that the producer has passed.
    ///
    /// # Errors
    /// `EPROTO` if the descriptor is no such ring, or could shrink; what mmap(2) says.
    pub fn open(ring: BorrowedFd<'_>) -> io::Result<Consumer> {
        if !memory::is_sealed(ring)
            || File::from(ring.try_clone_to_owned()?).metadata()?.len() < FILE_LEN as u64
        {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        Ok(Consumer { shared: Shared::map(ring)?, released: 0, published: 0 })
    }

    /// Returns the number of bytes that can be read.
    ///
    /// # Errors
    /// The producer has published more than the ring holds, or its index went back.
    #[inline]
    pub fn available(&mut self) -> Result<usize, Broken> {
        // Acquire: the bytes before the index are written.
        let published = self.shared.published().load(Ordering::Acquire);
        if published != self.published {
            if published < self.published || published - self.released > RING_BYTES as u64 {
                return Err(Broken);
            }
            self.published = published;
            // The lines arrive while the caller does something else first.
            self.shared.lines(self.released).for_each(prefetch::to_read);
        }
        Ok((published - self.released) as usize)
    }

    /// Copies bytes from `at` bytes after the released ones; false where
    /// [`available`](Consumer::available) has not found that many.
    #[inline]
    #[must_use]
    pub fn read(&self, at: usize, out: &mut [u8]) -> bool {
        let available = (self.published - self.released) as usize;
        if available.checked_sub(at).is_none_or(|available| available < out.len()) {
            return false;
        }
        self.shared.get(self.released + at as u64, out)
    }

    /// Returns the space of the next `len` bytes to the producer.
    ///
    /// # Panics
    /// If they were not available.
    #[inline]
    pub fn release(&mut self, len: usize) {
        self.released += len as u64;
        assert!(self.released <= self.published, "more than there was");
        // Release: the bytes were read before the index is visible.
        self.shared.released().store(self.released, Ordering::Release);
    }

    /// Asks the producer for a wake-up. Returns false, without asking, if there is something to read or
    /// the ring is broken.
    pub fn request_wakeup(&mut self) -> bool {
        self.shared.asleep().store(1, Ordering::Relaxed);
        // Either the producer sees the request, or this side sees what it has published.
        fence(Ordering::SeqCst);
        let nothing = self.available() == Ok(0);
        if !nothing {
            self.withdraw_wakeup();
        }
        nothing
    }

    /// Withdraws the request of [`request_wakeup`](Consumer::request_wakeup).
    pub fn withdraw_wakeup(&self) {
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

    /// Returns the address of the byte with this number, and how many contiguous bytes start there.
    fn place(&self, number: u64) -> (u64, usize) {
        let at = number as usize % RING_BYTES;
        (self.0.start().addr().get() as u64 + (BYTES_AT + at) as u64, RING_BYTES - at)
    }

    /// Addresses of the first cache lines of the bytes from this number on.
    #[inline]
    fn lines(&self, number: u64) -> impl Iterator<Item = usize> {
        let (at, in_a_row) = self.place(number);
        (0..FETCHED.min(in_a_row)).step_by(LINE).map(move |line| at as usize + line)
    }

    #[inline]
    fn put(&self, number: u64, bytes: &[u8]) -> bool {
        let (to, in_a_row) = self.place(number);
        let (first, rest) = bytes.split_at(bytes.len().min(in_a_row));
        // SAFETY: the callers have checked that there are no more than RING_BYTES, so both parts are
        // within the mapping, to which no reference exists.
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
