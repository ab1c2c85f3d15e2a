//! Reads capture files of either format, front to back, and goes on behind damage.
//!
//! One buffer, a record at a time, nothing kept: the size of a file does not matter, and standard input will do. The
//! reader is our own because `pcap-file` gives up at the first thing it does not like, takes times of pcapng for
//! nanoseconds whatever the file says, and the project wants everything readable shown (`wire::capture` has the formats).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use wire::capture::{
    Block, BlockHeader, EnhancedPacket, FileHeader, LinkType, Order, RecordHeader, Resolution, option,
};

use super::write::LEFT_OUT;
use crate::failure::{During, Failure, Outcome};

/// Bytes asked for at a time; larger reads bring nothing.
const BUFFER: usize = 1 << 20;
/// Longest record or block taken for one; anything longer is damage. Frames end at 512 KiB (BIG TCP).
const RECORD_MAX: usize = 16 << 20;
/// Interfaces remembered; real files have a handful.
const INTERFACES_MAX: usize = 1 << 16;
/// Interfaces made up for packets whose own was lost; a larger number is damage too.
const ASSUMED_MAX: usize = 16;
/// A record after damage must be this close to the one before, in nanoseconds: a day.
const TIME_GAP_MAX: u64 = 86_400_000_000_000;
/// Kinds of damage reported by place; more are only counted.
const NOTES_MAX: usize = 8;

/// A capture file being read.
pub struct Source<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    at_end: bool,
    /// Where in the file `start` is.
    offset: u64,
    format: Format,
    packets: u64,
    last_ns: u64,
    interfaces: Vec<Interface>,
    /// First of the current section's.
    section: usize,
    drops: u64,
    statistics_drops: Vec<u64>,
    notes: Vec<String>,
    more_notes: u64,
    total_len: Option<u64>,
}

/// What a file says about an interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name, if the file has one.
    pub name: Option<String>,
    /// What its packets begin with.
    pub link_type: LinkType,
    /// What roxie has not captured on purpose.
    pub left_out: Option<String>,
    resolution: Resolution,
    offset_s: i64,
}

#[derive(Clone, Copy)]
enum Format {
    Pcap(FileHeader),
    Pcapng(Order),
}

/// One packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Position in the file, from 1, as Wireshark counts.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Index into [`Source::interfaces`].
    pub interface: usize,
    /// What `data` begins with.
    pub link_type: LinkType,
    /// The packet as far as it was captured.
    pub data: &'a [u8],
    /// Bytes it had on the wire.
    pub original_len: usize,
    /// `Some(true)` if it was leaving the host, as far as the file says.
    pub outbound: Option<bool>,
    /// What somebody wrote about it.
    pub comment: Option<&'a [u8]>,
}

/// Opens a file, or standard input if `path` is `-`.
///
/// # Errors
/// If it cannot be read, is empty, or is no capture.
pub fn open(path: &Path) -> Outcome<Source<Box<dyn Read + Send>>> {
    let name = path.display();
    if path.as_os_str() == "-" {
        let input: Box<dyn Read + Send> = Box::new(io::stdin());
        return Source::new(input).map_err(|failure| failure.of("standard input"));
    }
    let file = File::open(path).during(&format!("opening {name}"))?;
    let meta = file.metadata().during(&format!("opening {name}"))?;
    if meta.is_dir() {
        return Err(Failure::new(format!("{name} is a directory")));
    }
    let mut source = Source::new(Box::new(file) as Box<dyn Read + Send>)
        .map_err(|failure| failure.of(&name.to_string()))?;
    source.total_len = meta.is_file().then_some(meta.len());
    Ok(source)
}

/// A packet's block by where its parts are in the buffer, so that it is decoded once.
struct Found {
    ticks: u64,
    original_len: usize,
    outbound: Option<bool>,
    data: Range<usize>,
    comment: Option<Range<usize>>,
}

impl Found {
    fn new(packet: &EnhancedPacket<'_>, buffer: &[u8]) -> Self {
        let place = |part: &[u8]| {
            let at = part.as_ptr().addr() - buffer.as_ptr().addr();
            at..at + part.len()
        };
        Self {
            ticks: packet.ticks,
            original_len: packet.original as usize,
            outbound: packet.outbound(),
            data: place(packet.data),
            comment: packet.options.value(option::COMMENT).map(place),
        }
    }
}

enum Step {
    /// A packet's header and the bytes behind it, from `start` on.
    Pcap(RecordHeader, usize),
    /// A block's kind and length.
    Pcapng(u32, usize),
    End,
}

impl<R: Read> Source<R> {
    /// Reads the beginning of a file.
    ///
    /// # Errors
    /// If it is empty or no capture.
    pub fn new(input: R) -> Outcome<Self> {
        let mut source = Self {
            input,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            at_end: false,
            offset: 0,
            format: Format::Pcapng(Order::Little),
            packets: 0,
            last_ns: 0,
            interfaces: Vec::new(),
            section: 0,
            drops: 0,
            statistics_drops: Vec::new(),
            notes: Vec::new(),
            more_notes: 0,
            total_len: None,
        };
        source.ensure(FileHeader::LEN).during("reading")?;
        let bytes = &source.buffer[..source.end];
        if bytes.is_empty() {
            return Err(Failure::new("the file is empty"));
        }
        if let Some(order) = BlockHeader::section_order(bytes) {
            source.format = Format::Pcapng(order);
            return Ok(source);
        }
        let mut front = [0; FileHeader::LEN];
        let there = bytes.len().min(front.len());
        front[..there].copy_from_slice(&bytes[..there]);
        let Some(header) = FileHeader::parse(&front) else { return Err(not_a_capture(bytes)) };
        if there < front.len() {
            let whole = front.len();
            return Err(Failure::new(format!(
                "the file ends inside its header, after {there} of {whole} bytes"
            )));
        }
        source.format = Format::Pcap(header);
        source.consume(FileHeader::LEN);
        source.add_interface(Interface {
            name: None,
            link_type: header.link_type,
            left_out: None,
            resolution: Resolution::NANOSECONDS,
            offset_s: 0,
        });
        Ok(source)
    }

    /// The next packet, or `None` at the end of the file.
    ///
    /// # Errors
    /// If reading fails; what is wrong inside a file is in [`Source::notes`] instead.
    pub fn next_record(&mut self) -> io::Result<Option<Record<'_>>> {
        match self.format {
            Format::Pcap(_) => self.next_pcap(),
            Format::Pcapng(_) => self.next_pcapng(),
        }
    }

    fn next_pcap(&mut self) -> io::Result<Option<Record<'_>>> {
        let Step::Pcap(header, data_len) = self.find_record()? else { return Ok(None) };
        let data = self.start + RecordHeader::LEN..self.start + RecordHeader::LEN + data_len;
        self.consume(RecordHeader::LEN + data_len);
        self.packets += 1;
        self.last_ns = header.time_ns;
        Ok(Some(Record {
            number: self.packets,
            time_ns: header.time_ns,
            interface: 0,
            link_type: self.interfaces[0].link_type,
            data: &self.buffer[data],
            original_len: header.original as usize,
            outbound: None,
            comment: None,
        }))
    }

    fn find_record(&mut self) -> io::Result<Step> {
        let Format::Pcap(file) = self.format else { return Ok(Step::End) };
        if !self.ensure(RecordHeader::LEN)? {
            self.note_rest("a record header");
            return Ok(Step::End);
        }
        let mut header = self.record_header(&file, self.start);
        if header.captured as usize > RECORD_MAX {
            self.note(format!("the record of packet {} is damaged", self.packets + 1));
            if !self.search(|source, at| source.is_record(&file, at))? {
                return Ok(Step::End);
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
            return Ok(Step::Pcap(header, len));
        }
        if whole {
            return Ok(Step::Pcap(header, captured));
        }
        let there = self.end - self.start - RecordHeader::LEN;
        self.note(format!(
            "the file ends inside packet {}: {there} of {captured} bytes are there",
            self.packets + 1
        ));
        Ok(Step::Pcap(header, there))
    }

    /// How long the record really is, if what should be the next one makes no sense while one inside this does.
    fn shorter(&self, file: &FileHeader, captured: usize) -> Option<usize> {
        let data = self.start + RecordHeader::LEN;
        let next = data + captured;
        // Nothing is waited for: a pipe may have no more for a long time.
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

    /// Whether what stands at `at` can be a record's header.
    fn plausible(&self, file: &FileHeader, at: usize) -> bool {
        let header = self.record_header(file, at);
        header.fraction_ok
            && header.captured > 0
            && header.captured <= header.original
            && header.original as usize <= RECORD_MAX
            && (self.last_ns == 0 || header.time_ns.abs_diff(self.last_ns) < TIME_GAP_MAX)
    }

    /// Whether a record plausibly begins at `at`, and another behind it.
    fn is_record(&self, file: &FileHeader, at: usize) -> bool {
        if self.end - at < RecordHeader::LEN || !self.plausible(file, at) {
            return false;
        }
        let next = at + RecordHeader::LEN + self.record_header(file, at).captured as usize;
        next == self.end || next + RecordHeader::LEN <= self.end && self.plausible(file, next)
    }

    fn next_pcapng(&mut self) -> io::Result<Option<Record<'_>>> {
        loop {
            let Step::Pcapng(kind, len) = self.find_block()? else { return Ok(None) };
            let Format::Pcapng(order) = self.format else { return Ok(None) };
            let body_start = self.start + BlockHeader::LEN;
            // A block cut by the end of the file has no second length.
            let body = body_start..(self.start + len).min(self.end).max(body_start);
            let block = Block::parse(order, kind, &self.buffer[body.clone()]);
            match block {
                Some(Block::Packet(packet)) => {
                    let (interface, drops) = (packet.interface as usize, packet.drops());
                    let found = Found::new(&packet, &self.buffer);
                    self.packets += 1;
                    if self.has_interface(interface) {
                        self.drops += drops;
                        self.consume(len.min(self.end - self.start));
                        break Ok(Some(self.emit(self.section + interface, found)));
                    }
                }
                Some(Block::Interface(described)) => {
                    let name = described.options.value(option::INTERFACE_NAME);
                    let comment = described.options.value(option::COMMENT);
                    let left_out = comment.and_then(|text| text.strip_prefix(LEFT_OUT.as_bytes()));
                    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                    let interface = Interface {
                        name: name.map(text),
                        left_out: left_out.map(text),
                        link_type: described.link_type,
                        resolution: described.resolution,
                        offset_s: described.offset_s,
                    };
                    self.add_interface(interface);
                }
                Some(Block::Statistics(counters)) => {
                    let index = self.section + counters.interface as usize;
                    // Later counters replace earlier ones of the same interface.
                    if let Some(drops) = self.statistics_drops.get_mut(index) {
                        *drops = counters.drops;
                    }
                }
                Some(Block::Section) => self.section = self.interfaces.len(),
                Some(Block::Other) => {}
                // Of one that the end of the file cut, that was said.
                None if self.end - self.start < len => {}
                None => self.note(format!("a block of kind {kind} is too short")),
            }
            self.consume(len.min(self.end - self.start));
        }
    }

    /// Whether a packet may be of this interface. One that the file does not describe, or no longer, is taken for Ethernet.
    fn has_interface(&mut self, interface: usize) -> bool {
        let known = self.interfaces.len() - self.section;
        if interface < known {
            return true;
        }
        self.note(format!(
            "packet {} is of interface {interface}, which the file does not describe",
            self.packets
        ));
        if interface >= known + ASSUMED_MAX {
            return false;
        }
        for _ in known..=interface {
            self.add_interface(Interface {
                name: None,
                link_type: LinkType::ETHERNET,
                left_out: None,
                resolution: Resolution::MICROSECONDS,
                offset_s: 0,
            });
        }
        self.interfaces.len() > self.section + interface
    }

    fn emit(&mut self, index: usize, found: Found) -> Record<'_> {
        let interface = &self.interfaces[index];
        let offset_ns = interface.offset_s.saturating_mul(1_000_000_000);
        let time_ns = interface.resolution.ns(found.ticks).saturating_add_signed(offset_ns);
        self.last_ns = time_ns;
        Record {
            number: self.packets,
            time_ns,
            interface: index,
            link_type: interface.link_type,
            data: &self.buffer[found.data],
            original_len: found.original_len,
            outbound: found.outbound,
            comment: found.comment.map(|comment| &self.buffer[comment]),
        }
    }

    fn find_block(&mut self) -> io::Result<Step> {
        if !self.ensure(BlockHeader::BLOCK_MIN as usize)? {
            self.note_rest("a block header");
            return Ok(Step::End);
        }
        if let Some(order) = BlockHeader::section_order(&self.buffer[self.start..self.end]) {
            self.format = Format::Pcapng(order);
        }
        let mut header = self.block_header(self.start);
        if !self.fits(header)? {
            let beyond = self.at_end && self.end - self.start < header.len as usize;
            let others = || (self.start + BlockHeader::LEN..self.end).any(|at| self.is_block(at));
            if beyond && header.len_ok() && header.len as usize <= RECORD_MAX && !others() {
                return Ok(self.last_block(header));
            }
            self.note(format!("the block behind packet {} is damaged", self.packets));
            if !self.search(Self::is_block)? {
                return Ok(Step::End);
            }
            header = self.block_header(self.start);
            if !self.ensure(header.len as usize)? {
                return Ok(self.last_block(header));
            }
        }
        Ok(Step::Pcapng(header.kind, header.len as usize))
    }

    fn last_block(&mut self, header: BlockHeader) -> Step {
        let there = self.end - self.start;
        self.note(format!(
            "the file ends inside the block behind packet {}: {there} of {} bytes are there",
            self.packets, header.len
        ));
        Step::Pcapng(header.kind, header.len as usize)
    }

    /// Whether the block is whole and its two lengths agree.
    fn fits(&mut self, header: BlockHeader) -> io::Result<bool> {
        let len = header.len as usize;
        if !header.len_ok() || len > RECORD_MAX || !self.ensure(len)? {
            return Ok(false);
        }
        Ok(self.trailer(self.start, len) == Some(header.len))
    }

    fn trailer(&self, at: usize, len: usize) -> Option<u32> {
        let Format::Pcapng(order) = self.format else { return None };
        order.u32(self.buffer.get(at..at + len)?, len - 4)
    }

    fn block_header(&self, at: usize) -> BlockHeader {
        let Format::Pcapng(order) = self.format else { return BlockHeader { kind: 0, len: 0 } };
        let bytes = self.buffer[at..self.end].first_chunk().unwrap_or(&[0; BlockHeader::LEN]);
        BlockHeader::parse(order, bytes)
    }

    fn is_block(&self, at: usize) -> bool {
        if BlockHeader::section_order(&self.buffer[at..self.end]).is_some() {
            return true;
        }
        let header = self.block_header(at);
        let len = header.len as usize;
        let known = (1..=10).contains(&header.kind);
        known && header.len_ok() && at + len <= self.end && self.trailer(at, len) == Some(header.len)
    }

    /// Moves to the next place where `found` holds, behind the present one. `false` at the end of the file.
    fn search(&mut self, found: impl Fn(&Self, usize) -> bool) -> io::Result<bool> {
        let from = self.offset;
        self.consume(1);
        loop {
            // Enough for a candidate and what follows it, without which it cannot be judged.
            self.ensure(BUFFER / 2)?;
            let last = if self.at_end { self.end } else { self.end - BUFFER / 4 };
            match (self.start..last).find(|at| found(self, *at)) {
                Some(at) => self.consume(at - self.start),
                None => self.consume(last - self.start),
            }
            let hit = self.start < self.end && found(self, self.start);
            if hit || self.at_end && self.start == self.end {
                let skipped = self.offset - from;
                self.note(format!("{skipped} bytes from byte {from} on were skipped"));
                return Ok(hit);
            }
        }
    }

    /// Whether `len` bytes are at hand; reads what is missing.
    fn ensure(&mut self, len: usize) -> io::Result<bool> {
        while self.end - self.start < len && !self.at_end {
            if self.start + len > self.buffer.len() {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                if len > self.buffer.len() {
                    self.buffer.resize(len.next_power_of_two(), 0);
                }
            }
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(n) => self.end += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.end - self.start >= len)
    }

    fn consume(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    fn add_interface(&mut self, interface: Interface) {
        if self.interfaces.len() < INTERFACES_MAX {
            self.interfaces.push(interface);
            self.statistics_drops.push(0);
        }
    }

    fn note(&mut self, text: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("{text} (byte {})", self.offset));
        } else {
            self.more_notes += 1;
        }
    }

    fn note_rest(&mut self, what: &str) {
        if self.end > self.start {
            self.note(format!("the file ends inside {what}"));
            self.consume(self.end - self.start);
        }
    }

    /// The interfaces seen so far, of all sections.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Bytes of the file that were used.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the whole file, if that is known.
    pub fn total_len(&self) -> Option<u64> {
        self.total_len
    }

    /// Packets read.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets that whoever made the capture says it lost.
    pub fn drops(&self) -> u64 {
        self.statistics_drops.iter().sum::<u64>().max(self.drops)
    }

    /// What roxie has not captured on purpose, if it says so of an interface.
    pub fn left_out(&self) -> Option<&str> {
        self.interfaces.iter().find_map(|interface| interface.left_out.as_deref())
    }

    /// What was wrong with the file so far.
    pub fn notes(&self) -> impl Iterator<Item = String> + '_ {
        let more = (self.more_notes > 0).then(|| format!("and {} more places like these", self.more_notes));
        self.notes.iter().cloned().chain(more)
    }
}

fn not_a_capture(bytes: &[u8]) -> Failure {
    let packed = [
        (&[0x1f, 0x8b][..], "gzip", "zcat"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "zstdcat"),
        (&[0xfd, b'7', b'z', b'X', b'Z'], "xz", "xzcat"),
        (b"BZh", "bzip2", "bzcat"),
        (&[0x04, 0x22, 0x4d, 0x18], "lz4", "lz4cat"),
    ];
    for (magic, name, cat) in packed {
        if bytes.starts_with(magic) {
            return Failure::new(format!("the file is compressed with {name}"))
                .hint(format!("try: {cat} FILE | roxie capture read -"));
        }
    }
    let front: String = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    Failure::new(format!("neither pcap nor pcapng: it begins with {front}"))
        .hint("Wireshark's editcap converts other formats")
}
