//! Reading records that programs have written to a ring buffer map (`Documentation/bpf/ringbuf.rst`).
//!
//! One page holds the reader's position, which only this process writes. The read-only pages after it
//! hold the writer's position and the storage, which is mapped twice in a row so that no record wraps. A
//! record belongs to the reader from the moment its header loses the busy bit until the reader's position
//! has moved past it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ::bpf::MapKind;

use super::Map;
use super::object::{MapInfo, info};
use crate::{Mmap, page_size};

/// The reading end of a ring buffer. A map should have one reader only: two would take each other's
/// records.
#[derive(Debug)]
pub struct RingReader {
    map: OwnedFd,
    position: Mmap,
    records: Mmap,
    /// Bytes of the storage, a power of two.
    len: u64,
    page: usize,
}

/// Header of a record: its length with two flags, then a number that only the kernel uses.
const HEADER_LEN: u64 = 8;
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;

impl RingReader {
    /// Opens `map` for reading, from where the last reader stopped.
    ///
    /// # Errors
    /// `EINVAL` if it is no ring buffer; `EPERM` if this process may not map it.
    pub fn new(map: &Map) -> io::Result<RingReader> {
        let about: MapInfo = info(map.as_fd())?;
        let len = u64::from(about.max_entries);
        if map.kind() != MapKind::Ringbuf || !len.is_power_of_two() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let page = page_size();
        let position = Mmap::shared(map.as_fd(), page, 0)?;
        let records = Mmap::shared_read_only(map.as_fd(), page + 2 * len as usize, page as u64)?;
        let map = map.as_fd().try_clone_to_owned()?;
        Ok(RingReader { map, position, records, len, page })
    }

    /// Hands finished records to `take`, oldest first and at most `limit`, until one is unfinished or
    /// none is left. Returns how many.
    pub fn read(&mut self, limit: usize, mut take: impl FnMut(&[u8])) -> usize {
        // SAFETY: the page begins with the position; only this process writes it, and the kernel reads it
        // atomically.
        let consumer = unsafe { self.position.start().cast::<AtomicU64>().as_ref() };
        // SAFETY: the kernel writes it atomically; this process only reads it.
        let producer = unsafe { self.records.start().cast::<AtomicU64>().as_ref() };
        let mut records = 0;
        let mut at = consumer.load(Ordering::Relaxed);
        // Acquire: the headers of records below the position are written.
        while records < limit && at < producer.load(Ordering::Acquire) {
            let offset = self.page + (at & (self.len - 1)) as usize;
            // SAFETY: within the first of the two mappings of the storage, eight-byte aligned; the kernel
            // writes headers atomically.
            let header = unsafe { self.records.start().add(offset).cast::<AtomicU32>().as_ref() };
            // Acquire: the record is written before it loses the busy bit.
            let header = header.load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let len = u64::from(header & !(BUSY | DISCARD)).min(self.len - HEADER_LEN);
            if header & DISCARD == 0 {
                // SAFETY: limited to the storage above, of which two mappings follow each other; the
                // kernel does not write a finished record before the reader's position has passed it.
                take(unsafe {
                    std::slice::from_raw_parts(
                        self.records.start().add(offset + HEADER_LEN as usize).as_ptr(),
                        len as usize,
                    )
                });
                records += 1;
            }
            at += HEADER_LEN + len.next_multiple_of(8);
            // Release: the record was read.
            consumer.store(at, Ordering::Release);
        }
        records
    }
}

/// Readable in poll(2) when a program has woken the reader.
impl AsFd for RingReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use ::bpf::recipe::{SAMPLES, Sample, SampleHeader};
    use ::bpf::{MapDef, ProgramKind, Recipe, Stage, XdpAction};

    use super::*;
    use crate::bpf::{Program, TestRun};

    /// Five times as many records as the ring holds, so that they wrap at every offset.
    #[test]
    fn records_are_read_once_in_order_and_complete() {
        if Map::create(&MapDef::array("probe", 4, 1)).is_err() {
            eprintln!("skipped: needs root");
            return;
        }
        let sample = Sample { snap_len: 100, every: 1, ring_bytes: 4096, wakeup_bytes: 0 };
        let recipe = Recipe { stages: vec![Stage::Sample(sample)], ..Recipe::verdict(XdpAction::Pass) };
        let definition = recipe.program("sampler", ProgramKind::Xdp).unwrap();
        let (program, maps) = Program::load_with_maps(&definition).unwrap();
        let map = &maps[definition.map(SAMPLES).unwrap().index()];
        let mut reader = RingReader::new(map).unwrap();
        assert_eq!(reader.read(usize::MAX, |_| panic!("nothing was written")), 0);
        let mut seen = 0;
        for packet in 0..150_u8 {
            let packet = [packet; 60];
            program.test_run(&TestRun { packet: &packet, repeat: 1, ..TestRun::default() }).unwrap();
            // Up to six records stay in the ring.
            if packet[0] % 7 == 6 {
                for (limit, want) in [(2, 2), (usize::MAX, 5)] {
                    let read = reader.read(limit, |record| {
                        let (header, bytes) = SampleHeader::parse(record).unwrap();
                        assert_eq!((header.len, bytes), (60, &[seen; 60][..]));
                        seen += 1;
                    });
                    assert_eq!(read, want);
                }
            }
        }
        assert_eq!(seen, 147);
        let array = Map::create(&MapDef::array("array", 4, 1)).unwrap();
        assert_eq!(RingReader::new(&array).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
}
