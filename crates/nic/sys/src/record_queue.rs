//! A queue of records in memory shared by two processes: one writes, the other reads, and neither waits
//! for the other.
//!
//! The file has one page that the reader writes, with its position; one page that the writer writes, with
//! its position and the count of lost records; then the storage. A record is preceded by its length and
//! is contiguous: if the end of the storage is too short for it, that end is skipped. Neither end trusts
//! what the other one has written.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Mmap, memory};

/// The writing end. The memory lives as long as either end.
#[derive(Debug)]
pub struct RecordWriter {
    memory: Memory,
    /// The writer's position. It is kept here because the reader could write to the shared page as well.
    at: u64,
    /// Position and maximum length of the record that was begun.
    begun: Option<(u64, usize)>,
    lost: u64,
}

/// The reading end.
#[derive(Debug)]
pub struct RecordReader {
    memory: Memory,
    at: u64,
    /// A copy of the current record: the writer could change the original while it is read.
    record: Vec<u8>,
}

#[derive(Debug)]
struct Memory {
    map: Mmap,
    page: usize,
    /// Bytes of the storage, a power of two.
    len: u64,
}

/// Bytes before each record; the space of a record is a multiple of it.
const HEADER_LEN: u64 = 8;
/// In place of a length: the next record is at the start of the storage.
const SKIP: u32 = u32::MAX;

impl RecordWriter {
    /// Creates a queue of `len` bytes, a power of two; returns the writer, and the descriptor for
    /// [`RecordReader::new`].
    ///
    /// # Errors
    /// `ENOMEM`, `EMFILE`.
    pub fn new(len: usize) -> io::Result<(RecordWriter, OwnedFd)> {
        let page = super::page_size();
        let file = memory::sealed_memory_file(c"roxie-records", (2 * page + len) as u64)?;
        let memory = Memory::new(&file)?;
        Ok((RecordWriter { memory, at: 0, begun: None, lost: 0 }, file.into()))
    }

    /// Bytes of the storage.
    #[expect(clippy::len_without_is_empty, reason = "the storage is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len as usize
    }

    /// Bytes of the storage that the reader has not read; all of it if its position is invalid.
    #[must_use]
    pub fn unread(&self) -> usize {
        let read = self.memory.reader_at().load(Ordering::Acquire);
        self.at.wrapping_sub(read).min(self.memory.len) as usize
    }

    /// Whether there is room for a record of `len` bytes.
    #[inline]
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        // Acquire: the reader has finished with the bytes that will be overwritten. An invalid position
        // counts as a full queue.
        let read = self.memory.reader_at().load(Ordering::Acquire);
        let (_, end) = self.place(len);
        end.wrapping_sub(read) <= self.memory.len
    }

    /// Appends a record made of `parts`; if there is no space, counts it as lost and returns false.
    pub fn push(&mut self, parts: &[&[u8]]) -> bool {
        let len = parts.iter().map(|part| part.len()).sum();
        if !self.begin(len) {
            self.lose(1);
            return false;
        }
        let mut at = 0;
        for part in parts {
            self.write(at, part);
            at += part.len();
        }
        self.end(len);
        true
    }

    /// Begins a record of at most `len_max` bytes; false if there is no space for it. A record that was
    /// begun before and not ended is dropped. Until [`end`](Self::end), bytes that were not written are
    /// those that the storage held before.
    pub fn begin(&mut self, len_max: usize) -> bool {
        let start = self.place(len_max).0;
        self.begun = self.has_room(len_max).then_some((start, len_max));
        self.begun.is_some()
    }

    /// Writes a part of the begun record, at an offset. Bytes beyond its maximum length are left out.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let Some((start, len_max)) = self.begun else { return };
        let len = bytes.len().min(len_max.saturating_sub(at));
        if len == 0 {
            return;
        }
        let to = self.memory.offset(start) + HEADER_LEN as usize + at;
        // SAFETY: `begin` has found room for `len_max` contiguous bytes of the storage, and no reference
        // to them exists.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.map.start().add(to).as_ptr(), len);
        }
    }

    /// Publishes the first `len` bytes of the begun record.
    pub fn end(&mut self, len: usize) {
        let Some((start, len_max)) = self.begun.take() else { return };
        if start != self.at {
            self.memory.header(self.at).store(SKIP, Ordering::Relaxed);
        }
        let len = len.min(len_max);
        self.memory.header(start).store(len as u32, Ordering::Relaxed);
        self.at = start + needed(len);
        // Release: the record is complete.
        self.memory.writer_at().store(self.at, Ordering::Release);
    }

    /// Counts records that were not written because there was no space.
    #[inline]
    pub fn lose(&mut self, count: u64) {
        self.lost += count;
        self.memory.lost().store(self.lost, Ordering::Relaxed);
    }

    /// Returns where a record of `len` bytes begins and ends. The end of one that is longer than the
    /// storage is beyond any valid reader position.
    fn place(&self, len: usize) -> (u64, u64) {
        let needed = needed(len);
        let left = self.memory.len - (self.at & (self.memory.len - 1));
        let start = if left < needed { self.at + left } else { self.at };
        (start, start + needed)
    }
}

impl RecordReader {
    /// Opens the reading end of the queue behind this descriptor.
    ///
    /// # Errors
    /// `EINVAL` if it is no such queue.
    pub fn new(fd: OwnedFd) -> io::Result<RecordReader> {
        let file = File::from(fd);
        if !memory::is_sealed(file.as_fd()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(RecordReader { memory: Memory::new(&file)?, at: 0, record: Vec::new() })
    }

    /// Bytes of the storage.
    #[expect(clippy::len_without_is_empty, reason = "the storage is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory.len as usize
    }

    /// Hands records to `take`, the oldest first and at most `limit`. Returns how many.
    pub fn read(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut records = 0;
        // Acquire: the records before it are complete.
        let end = self.memory.writer_at().load(Ordering::Acquire);
        // A position that no writer of a queue of this length can have counts as empty.
        while records < limit && self.at < end && end - self.at <= self.memory.len {
            let left = self.memory.len - (self.at & (self.memory.len - 1));
            let len = self.memory.header(self.at).load(Ordering::Relaxed);
            if len == SKIP {
                self.at += left;
                continue;
            }
            let len = u64::from(len).min(left - HEADER_LEN) as usize;
            let from = self.memory.offset(self.at) + HEADER_LEN as usize;
            self.record.clear();
            self.record.reserve(len);
            // SAFETY: the length is limited to the storage above, and the destination holds as many
            // bytes. The writer does not write here before the reader's position has moved on; if it did,
            // only these bytes would be wrong.
            unsafe {
                let from = self.memory.map.start().add(from).as_ptr();
                std::ptr::copy_nonoverlapping(from, self.record.as_mut_ptr(), len);
                self.record.set_len(len);
            }
            self.at += needed(len);
            take(&self.record);
            records += 1;
        }
        // Release: this side has read everything before it.
        self.memory.reader_at().store(self.at, Ordering::Release);
        records
    }

    /// The writer's count of what did not fit: records, or the items that they would have held.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.memory.lost().load(Ordering::Relaxed)
    }
}

impl Memory {
    fn new(file: &File) -> io::Result<Memory> {
        let (page, whole) = (super::page_size(), file.metadata()?.len());
        let len =
            whole.checked_sub(2 * page as u64).filter(|len| len.is_power_of_two() && *len >= page as u64);
        let len = len.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        // Populating a gigabyte of pages at once would take longer than either end may be busy.
        Ok(Memory { map: Mmap::shared_lazily(file.as_fd(), whole as usize, 0)?, page, len })
    }

    /// The reader's position: the number of bytes read since the beginning.
    fn reader_at(&self) -> &AtomicU64 {
        self.number(0)
    }

    /// The writer's position.
    fn writer_at(&self) -> &AtomicU64 {
        self.number(self.page)
    }

    fn lost(&self) -> &AtomicU64 {
        self.number(self.page + 8)
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        // SAFETY: in one of the two pages before the storage, aligned, and both ends access it
        // atomically.
        unsafe { self.map.start().add(at).cast().as_ref() }
    }

    /// The length of the record at a position, which is a multiple of eight.
    fn header(&self, position: u64) -> &AtomicU32 {
        // SAFETY: in the storage, aligned, and both ends access headers atomically.
        unsafe { self.map.start().add(self.offset(position)).cast().as_ref() }
    }

    /// Returns the offset of a position in the mapping.
    fn offset(&self, position: u64) -> usize {
        2 * self.page + (position & (self.len - 1)) as usize
    }
}

/// Bytes of the storage that a record takes.
fn needed(len: usize) -> u64 {
    HEADER_LEN + (len as u64).next_multiple_of(HEADER_LEN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn queue(len: usize) -> (RecordWriter, RecordReader) {
        let (writer, fd) = RecordWriter::new(len).expect("memory");
        (writer, RecordReader::new(fd).expect("a queue"))
    }

    /// The `n`th record: lengths from 0 to 600, in two parts.
    fn record(n: u32) -> Vec<u8> {
        (0..n.wrapping_mul(2_654_435_761) >> 16).take((n % 601) as usize).map(|at| (at ^ n) as u8).collect()
    }

    #[test]
    fn records_are_read_once_in_order_and_complete_wherever_the_storage_ends() {
        let (mut writer, mut reader) = queue(4096);
        let (mut pushed, mut read, mut lost) = (0, 0, 0);
        for round in 0..20_000_usize {
            let bytes = record(pushed);
            let (front, back) = bytes.split_at(bytes.len() / 3);
            let had_room = writer.has_room(bytes.len());
            assert_eq!(writer.push(&[front, back]), had_room);
            pushed += u32::from(had_room);
            lost += u64::from(!had_room);
            if round % 5 == 0 {
                reader.read(round % 7, |found| {
                    assert_eq!(found, record(read));
                    read += 1;
                });
            }
        }
        reader.read(usize::MAX, |found| {
            assert_eq!(found, record(read));
            read += 1;
        });
        assert_eq!((read, reader.lost()), (pushed, lost));
        assert!(lost > 0 && pushed > 1000);
    }

    /// Records that grow until they are ended, that end shorter than announced, or that are dropped.
    #[test]
    fn a_begun_record_is_read_after_its_end() {
        let (mut writer, mut reader) = queue(4096);
        let (mut ended, mut read) = (Vec::new(), Vec::new());
        for n in 0..10_000_usize {
            if !writer.begin(700) {
                assert!(!writer.has_room(700));
                assert!(reader.read(3, |found| read.push(found.to_vec())) > 0);
                continue;
            }
            let bytes = record(n as u32);
            // In reverse order, and one part is too long.
            writer.write(bytes.len() / 2, &[&bytes[bytes.len() / 2..], &[0xee; 700]].concat());
            let waiting = ended.len() - read.len();
            assert_eq!(reader.read(usize::MAX, |found| read.push(found.to_vec())), waiting);
            writer.write(0, &bytes[..bytes.len() / 2]);
            if n % 7 > 0 {
                writer.end(bytes.len());
                ended.push(bytes);
            }
        }
        reader.read(usize::MAX, |found| read.push(found.to_vec()));
        assert!(read == ended && ended.len() > 5000, "{} of {}", read.len(), ended.len());
        writer.end(1);
        assert_eq!(reader.read(usize::MAX, |_| panic!("nothing was begun")), 0);
    }

    #[test]
    fn every_record_lost_between_two_threads_is_counted() {
        let (mut writer, mut reader) = queue(1 << 14);
        const RECORDS: u64 = 100_000;
        let done = std::thread::spawn(move || {
            let pushed = (0..RECORDS).filter(|n| writer.push(&[&n.to_le_bytes(), &[7; 50]])).count();
            drop(writer);
            pushed as u64
        });
        let (mut taken, mut last) = (0, None);
        loop {
            let ended = done.is_finished();
            let read = reader.read(64, |found| {
                let (number, rest) = found.split_first_chunk().expect("a number");
                let number = u64::from_le_bytes(*number);
                assert!(last.is_none_or(|last| last < number) && rest == [7; 50]);
                last = Some(number);
                taken += 1;
            });
            if ended && read == 0 {
                break;
            }
        }
        // The memory outlives the writer.
        assert_eq!((done.join().expect("no panic"), taken + reader.lost()), (taken, RECORDS));
    }

    #[test]
    fn a_foreign_file_is_refused_and_invalid_positions_count_as_empty() {
        let file = memory::memory_file(c"test").expect("memory");
        file.set_len(3 * 4096).expect("memory");
        assert!(RecordReader::new(file.into()).is_err(), "it could be cut");
        for len in [0, 4096, 2 * 4096, 2 * 4096 + 100] {
            let file = memory::sealed_memory_file(c"test", len).expect("memory");
            assert!(RecordReader::new(file.into()).is_err(), "{len}");
        }
        let (mut writer, mut reader) = queue(4096);
        assert!(!writer.has_room(4089) && writer.has_room(4088) && !writer.has_room(usize::MAX / 2));
        assert!(writer.push(&[b"one"]));
        // A length beyond the storage is cut; an invalid position counts as empty.
        writer.memory.header(0).store(1 << 20, Ordering::Relaxed);
        assert_eq!(reader.read(1, |found| assert_eq!(found.len(), 4088)), 1);
        writer.memory.writer_at().store(1 << 40, Ordering::Relaxed);
        assert_eq!(reader.read(usize::MAX, |_| panic!("nothing was written")), 0);
        for position in [5000, 1 << 40] {
            reader.memory.reader_at().store(position, Ordering::Relaxed);
            assert!(!writer.push(&[b"two"]), "{position}");
        }
    }
}
