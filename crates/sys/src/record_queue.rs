//! A queue of records in memory that two processes share: one writes, the other reads, and neither waits for the other.
//!
//! The file in memory has a page that the reader writes, with its position; one that the writer writes, with its position and what it
//! has not got rid of; then the storage. A record has its length in front of it, and lies in one piece: what is left at the end of the storage is
//! skipped if that is too short. Neither end trusts what the other one has written.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Mmap, memory};

/// The end that writes. The memory lives as long as either end.
#[derive(Debug)]
pub struct RecordWriter {
    memory: Memory,
    /// Only we know where we are: the reader could write to our page as well.
    at: u64,
    /// Of the record that was begun: where it is, and its bytes at most.
    begun: Option<(u64, usize)>,
    lost: u64,
}

/// The end that reads.
#[derive(Debug)]
pub struct RecordReader {
    memory: Memory,
    at: u64,
    /// The record at hand. The writer could change it while it is looked at.
    record: Vec<u8>,
}

#[derive(Debug)]
struct Memory {
    map: Mmap,
    page: usize,
    /// Bytes of the storage, a power of two.
    len: u64,
}

/// In front of each record; a multiple of it is what a record takes.
const HEADER_LEN: u64 = 8;
/// Instead of a length: the next record is at the beginning of the storage.
const SKIP: u32 = u32::MAX;

impl RecordWriter {
    /// A queue of `len` bytes, a power of two, and what the reader needs for [`RecordReader::new`].
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

    /// Whether a record of so many bytes has room.
    #[inline]
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        // Acquire: the reader is done with what is written over. A position that makes no sense is one without room.
        let read = self.memory.reader_at().load(Ordering::Acquire);
        let (_, end) = self.place(len);
        end.wrapping_sub(read) <= self.memory.len
    }

    /// Appends a record made of `parts`; false, and counted, if there is no room for it.
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

    /// Begins a record of `len_max` bytes at most; false if there is no room for as many. What was begun before and not ended is
    /// nothing. Until [`end`](Self::end) it holds what the storage held before.
    pub fn begin(&mut self, len_max: usize) -> bool {
        let start = self.place(len_max).0;
        self.begun = self.has_room(len_max).then_some((start, len_max));
        self.begun.is_some()
    }

    /// Writes a part of the record that was begun, from an offset on. What is beyond its end is left out.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let Some((start, len_max)) = self.begun else { return };
        let len = bytes.len().min(len_max.saturating_sub(at));
        if len == 0 {
            return;
        }
        let to = self.memory.offset(start) + HEADER_LEN as usize + at;
        // SAFETY: `begin` has found room for `len_max` bytes in one piece of the storage, and nobody has a reference to these.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.map.start().add(to).as_ptr(), len);
        }
    }

    /// Hands over the first `len` bytes of the record that was begun.
    pub fn end(&mut self, len: usize) {
        let Some((start, len_max)) = self.begun.take() else { return };
        if start != self.at {
            self.memory.header(self.at).store(SKIP, Ordering::Relaxed);
        }
        let len = len.min(len_max);
        self.memory.header(start).store(len as u32, Ordering::Relaxed);
        self.at = start + needed(len);
        // Release: the record is whole.
        self.memory.writer_at().store(self.at, Ordering::Release);
    }

    /// Counts what was not written because there was no room.
    #[inline]
    pub fn lose(&mut self, count: u64) {
        self.lost += count;
        self.memory.lost().store(self.lost, Ordering::Relaxed);
    }

    /// Where a record of so many bytes begins and ends. One that is longer than the storage ends too far away for any reader.
    fn place(&self, len: usize) -> (u64, u64) {
        let needed = needed(len);
        let left = self.memory.len - (self.at & (self.memory.len - 1));
        let start = if left < needed { self.at + left } else { self.at };
        (start, start + needed)
    }
}

impl RecordReader {
    /// The reading end of the queue with this descriptor.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn new(fd: OwnedFd) -> io::Result<RecordReader> {
        let file = File::from(fd);
        if !memory::is_sealed(file.as_fd()) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(RecordReader { memory: Memory::new(&file)?, at: 0, record: Vec::new() })
    }

    /// Hands records to `take`, the oldest first and `limit` at most. Returns how many.
    pub fn read(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        let mut records = 0;
        // Acquire: the records in front of it are whole.
        let end = self.memory.writer_at().load(Ordering::Acquire);
        // What a writer says that has no queue of this length is nothing.
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
            // SAFETY: cut to the storage above, and there is room for as much. The writer does not write here before our position has
            // moved on; if it did, nothing but these bytes would be wrong.
            unsafe {
                let from = self.memory.map.start().add(from).as_ptr();
                std::ptr::copy_nonoverlapping(from, self.record.as_mut_ptr(), len);
                self.record.set_len(len);
            }
            self.at += needed(len);
            take(&self.record);
            records += 1;
        }
        // Release: we have what was in front of it.
        self.memory.reader_at().store(self.at, Ordering::Release);
        records
    }

    /// What has found no room so far, as the writer counts: records, or what would have been in them.
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
        // A gigabyte of pages at once would take longer than either end may be away.
        Ok(Memory { map: Mmap::shared_lazily(file.as_fd(), whole as usize, 0)?, page, len })
    }

    /// The reader's position: bytes that it has read since the beginning.
    fn reader_at(&self) -> &AtomicU64 {
        self.number(0)
    }

    /// The writer's.
    fn writer_at(&self) -> &AtomicU64 {
        self.number(self.page)
    }

    fn lost(&self) -> &AtomicU64 {
        self.number(self.page + 8)
    }

    fn number(&self, at: usize) -> &AtomicU64 {
        // SAFETY: in one of the two pages in front of the storage, aligned, and both ends use it atomically.
        unsafe { self.map.start().add(at).cast().as_ref() }
    }

    /// The length of the record at a position, which is a multiple of eight.
    fn header(&self, position: u64) -> &AtomicU32 {
        // SAFETY: in the storage, aligned, and both ends use headers atomically.
        unsafe { self.map.start().add(self.offset(position)).cast().as_ref() }
    }

    /// Where a position is in the mapping.
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
    fn records_come_out_once_in_order_and_whole_wherever_the_storage_ends() {
        let (mut writer, mut reader) = queue(4096);
        let (mut pushed, mut read, mut lost) = (0, 0, 0);
        for turn in 0..20_000_usize {
            let bytes = record(pushed);
            let (front, back) = bytes.split_at(bytes.len() / 3);
            let had_room = writer.has_room(bytes.len());
            assert_eq!(writer.push(&[front, back]), had_room);
            pushed += u32::from(had_room);
            lost += u64::from(!had_room);
            if turn % 5 == 0 {
                reader.read(turn % 7, |found| {
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

    /// Records that grow until they are ended, shorter than what was asked for, or given up.
    #[test]
    fn what_is_begun_is_read_when_it_is_ended() {
        let (mut writer, mut reader) = queue(4096);
        let (mut ended, mut read) = (Vec::new(), Vec::new());
        for n in 0..10_000_usize {
            if !writer.begin(700) {
                assert!(!writer.has_room(700));
                assert!(reader.read(3, |found| read.push(found.to_vec())) > 0);
                continue;
            }
            let bytes = record(n as u32);
            // Back to front, and one part too long.
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
    fn two_threads_lose_nothing_uncounted() {
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
        // What is in the memory outlives the writer.
        assert_eq!((done.join().expect("no panic"), taken + reader.lost()), (taken, RECORDS));
    }

    #[test]
    fn what_is_no_queue_is_refused_and_what_makes_no_sense_is_nothing() {
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
        // A length beyond the storage is cut, a position far away is nothing.
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
