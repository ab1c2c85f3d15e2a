//! Records of pcap. The format has no marks between records: damage shows only as implausible headers.

use std::io::{self, Read};

use wire::capture::{FileHeader, RecordHeader};

use super::{Format, RECORD_MAX, Record, Source};

/// Largest difference in nanoseconds between the times of two records, for a plausible header: a day.
const TIME_GAP_MAX: u64 = 86_400_000_000_000;

impl<R: Read> Source<R> {
    pub(super) fn next_pcap(&mut self) -> io::Result<Option<Record<'_>>> {
        let Some((header, data_len)) = self.find_record()? else { return Ok(None) };
        let data = self.start + RecordHeader::LEN..self.start + RecordHeader::LEN + data_len;
        self.consume(RecordHeader::LEN + data_len);
        self.packets += 1;
        self.last_ns = header.time_ns;
        Ok(Some(Record {
            number: self.packets,
            time_ns: header.time_ns,
            interface: 0,
            interface_name: None,
            decode_as: self.decoding(0),
            data: &self.buffer[data],
            original_len: header.original as usize,
            outbound: None,
            verdict: None,
            comment: None,
            told: &[],
        }))
    }

    /// The header of the next record, and the number of bytes behind it.
    fn find_record(&mut self) -> io::Result<Option<(RecordHeader, usize)>> {
        let Format::Pcap(file) = self.format else { return Ok(None) };
        if !self.ensure(RecordHeader::LEN)? {
            self.note_rest("a record header");
            return Ok(None);
        }
        let mut header = self.record_header(&file, self.start);
        if header.captured as usize > RECORD_MAX {
            self.note(format!("the record of packet {} is damaged", self.packets + 1));
            if !self.search(|source, at| source.is_record(&file, at))? {
                return Ok(None);
            }
            header = self.record_header(&file, self.start);
        }
        if self.last_ns == 0 {
            self.last_ns = header.time_ns;
        }
        let captured = header.captured as usize;
        let whole = self.ensure(RecordHeader::LEN + captured)?;
        if let Some(len) = self.shorter(&file, captured) {
            self.note(format!("the length of packet {} is damaged", self.packets + 1));
            return Ok(Some((header, len)));
        }
        if whole {
            return Ok(Some((header, captured)));
        }
        let there = self.end - self.start - RecordHeader::LEN;
        self.note(format!(
            "the file ends inside packet {}: {there} of {captured} bytes are there",
            self.packets + 1
        ));
        Ok(Some((header, there)))
    }

    /// The real length of a record with a damaged length: the next header is implausible, and one inside it
    /// is plausible.
    fn shorter(&self, file: &FileHeader, captured: usize) -> Option<usize> {
        let data = self.start + RecordHeader::LEN;
        let next = data + captured;
        // Only buffered bytes are examined: the next read of a pipe may block for a long time.
        let unknown = next <= self.end && next + RecordHeader::LEN > self.end;
        if unknown || next <= self.end && self.plausible(file, next) {
            return None;
        }
        let last = next.min(self.end);
        (data + 1..last).find(|at| self.is_record(file, *at)).map(|at| at - data)
    }

    fn record_header(&self, file: &FileHeader, at: usize) -> RecordHeader {
        let bytes = self.buffer[at..self.end].first_chunk().unwrap_or(&[0; RecordHeader::LEN]);
        RecordHeader::parse(file, bytes)
    }

    /// Whether a record header at `at` is plausible.
    fn plausible(&self, file: &FileHeader, at: usize) -> bool {
        let header = self.record_header(file, at);
        header.fraction_ok
            && header.captured > 0
            && header.captured <= header.original
            && header.original as usize <= RECORD_MAX
            && (self.last_ns == 0 || header.time_ns.abs_diff(self.last_ns) < TIME_GAP_MAX)
    }

    /// Whether a plausible record begins at `at`, and another one behind it.
    fn is_record(&self, file: &FileHeader, at: usize) -> bool {
        if self.end - at < RecordHeader::LEN || !self.plausible(file, at) {
            return false;
        }
        let next = at + RecordHeader::LEN + self.record_header(file, at).captured as usize;
        next == self.end || next + RecordHeader::LEN <= self.end && self.plausible(file, next)
    }
}
