//! The packets of several engines in the order of their times.
//!
//! An engine publishes a record before its packet leaves, or before its packet is processed. So every record
//! that was read, and is not younger than a time before the reading began, can be written: what caused it was
//! read as well. It is held for [`HOLD_NS`] longer, because an engine may lose its CPU between the time of a
//! packet and its record.

use std::mem;
use std::ops::Range;

use bpf::TapHeader;
use sys::{RecordReader, now_ns};

use super::PacketSink;
use super::split::Splitter;

/// How long a record waits for older ones of other engines: some time slices of the scheduler.
pub(super) const HOLD_NS: u64 = 50_000_000;
/// Bytes that are read of an engine at a time.
const BATCH_BYTES: usize = 1 << 20;
/// Records between two comparisons with [`BATCH_BYTES`].
const RECORDS: usize = 64;
/// How far a record may be ahead of the clock or behind it. A tap gives packets the time of a copy and waits
/// for the reader a tenth of a second at most: other times are wrong, and would keep all packets waiting.
pub(super) const WRONG_NS: u64 = 1_000_000_000;

/// Records that were read and not written, in one memory.
#[derive(Default)]
pub(super) struct Waiting {
    bytes: Vec<u8>,
    records: Vec<Record>,
}

#[derive(Clone)]
struct Record {
    time_ns: u64,
    interface: usize,
    place: Range<usize>,
}

impl Waiting {
    /// Whether no record waits.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// How many records wait.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Reads records of an engine. If there may be more, returns the time of the last one.
    pub(super) fn read(&mut self, copies: &mut RecordReader, interface: usize) -> Option<u64> {
        let Self { bytes, records } = self;
        let now = now_ns();
        let (oldest_ns, youngest_ns) = (now.saturating_sub(WRONG_NS), now + WRONG_NS);
        let (mut taken_bytes, mut last_ns) = (0, oldest_ns);
        loop {
            let taken = copies.read(RECORDS, |record| {
                // A process could write records of no bytes as fast as they are read.
                taken_bytes += record.len().max(TapHeader::LEN);
                let Some((header, _)) = TapHeader::parse(record) else { return };
                last_ns = header.time_ns.clamp(oldest_ns, youngest_ns);
                let at = bytes.len();
                bytes.extend_from_slice(record);
                records.push(Record { time_ns: last_ns, interface, place: at..bytes.len() });
            });
            if taken < RECORDS {
                return None;
            }
            if taken_bytes >= BATCH_BYTES {
                return Some(last_ns);
            }
        }
    }

    /// Passes the packets up to this time on, and frees their memory.
    pub(super) fn pass_until(&mut self, until_ns: u64, splitter: &mut Splitter, sink: PacketSink<'_>) {
        // Stable: the records of an engine are in order already.
        self.records.sort_by_key(|record| record.time_ns);
        let passed = self.records.partition_point(|record| record.time_ns <= until_ns);
        for record in self.records.drain(..passed) {
            splitter.packets(&self.bytes[record.place], record.interface, sink);
        }
        let before = mem::take(&mut self.bytes);
        for record in &mut self.records {
            let at = self.bytes.len();
            self.bytes.extend_from_slice(&before[record.place.clone()]);
            record.place = at..self.bytes.len();
        }
    }
}
