//! Records of pcap. The format has no marks between records: damage shows only as implausible headers.

use std::io::{self, Read};

use wire::capture::{FileHeader, RecordHeader};

use super::{Next, RECORD_MAX, Record, Source};

impl<R: Read> Source<R> {
    /// The record that begins here, with `data_len` bytes behind its header.
    pub(super) fn record(&mut self, file: &FileHeader, header: RecordHeader, data_len: usize) -> Record<'_> {
        /// The packet type, if the header has one, and its value for packets that the host sent.
        const PACKET_TYPE: (usize, u8) = (RecordHeader::LEN + 6, 4);
        let data = self.start + file.record_len()..self.start + file.record_len() + data_len;
        let outbound = file.is_extended.then(|| self.buffer[self.start + PACKET_TYPE.0] == PACKET_TYPE.1);
        self.consume(file.record_len() + data_len);
        self.packets += 1;
        let interface = self.section.min(self.interfaces.len() - 1);
        Record {
            number: self.packets,
            time_ns: header.time_ns,
            interface,
            interface_name: None,
            decode_as: self.decoding(interface),
            data: &self.buffer[data],
            original_len: header.original as usize,
            outbound,
            verdict: None,
            comment: None,
            told: &[],
        }
    }

    /// The header of the next record, and the number of bytes behind it.
    pub(super) fn find_record(&mut self, file: &FileHeader) -> io::Result<Next<(RecordHeader, usize)>> {
        let header_len = file.record_len();
        if !self.ensure(header_len)? {
            self.note_rest("a record header");
            return Ok(Next::End);
        }
        let header = self.record_header(file, self.start);
        if header.captured as usize > RECORD_MAX {
            self.note(format!("the record of packet {} is damaged", self.packets + 1));
            let found =
                self.search(|source, at| source.is_record(file, at) || source.file_at(at).is_some())?;
            return Ok(if found { Next::Elsewhere } else { Next::End });
        }
        let captured = header.captured as usize;
        let whole = self.ensure(header_len + captured)?;
        if let Some(len) = self.shorter(file, captured) {
            self.note(format!("the length of packet {} is damaged", self.packets + 1));
            return Ok(Next::Packet((header, len)));
        }
        if whole {
            return Ok(Next::Packet((header, captured)));
        }
        let there = self.end - self.start - header_len;
        self.note(format!(
            "the file ends inside packet {}: {there} of {captured} bytes are there",
            self.packets + 1
        ));
        Ok(Next::Packet((header, there)))
    }

    /// The real length of a record with a damaged length, or of one that is cut before another file: the next
    /// header is implausible, and one inside it is plausible.
    fn shorter(&self, file: &FileHeader, captured: usize) -> Option<usize> {
        let data = self.start + file.record_len();
        let next = data + captured;
        // Only buffered bytes are examined: the next read of a pipe may block for a long time.
        let unknown = next <= self.end && next + file.record_len() > self.end;
        if unknown || next <= self.end && (self.plausible(file, next) || self.file_at(next).is_some()) {
            return None;
        }
        let last = next.min(self.end);
        let begins = |at: &usize| self.is_record(file, *at) || self.file_at(*at).is_some();
        (data + 1..last).find(begins).map(|at| at - data)
    }

    fn record_header(&self, file: &FileHeader, at: usize) -> RecordHeader {
        let bytes = self.buffer[at..self.end].first_chunk().unwrap_or(&[0; RecordHeader::LEN]);
        RecordHeader::parse(file, bytes)
    }

    /// Whether a record header at `at` is plausible. Its time is not compared with that of others: either may
    /// be damaged, and files have times of 1970 as well as of clocks that are years off.
    fn plausible(&self, file: &FileHeader, at: usize) -> bool {
        let header = self.record_header(file, at);
        header.fraction_ok
            && header.captured > 0
            && header.captured <= header.original
            && header.original as usize <= RECORD_MAX
    }

    /// Whether a plausible record begins at `at`, and another one behind it.
    fn is_record(&self, file: &FileHeader, at: usize) -> bool {
        if self.end - at < file.record_len() || !self.plausible(file, at) {
            return false;
        }
        let next = at + file.record_len() + self.record_header(file, at).captured as usize;
        next == self.end
            || next + file.record_len() <= self.end
                && (self.plausible(file, next) || self.file_at(next).is_some())
    }
}
