//! Reads capture files of either format, front to back, and goes on behind damage.
//!
//! One buffer, a record at a time, nothing kept: the size of a file does not matter, and standard input will do. The
//! reader is our own because `pcap-file` gives up at the first thing it does not like, takes times of pcapng for
//! nanoseconds whatever the file says, and the project wants everything readable shown (`wire::capture` has the formats).

mod pcap;
mod pcapng;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use wire::capture::{BlockHeader, FileHeader, LinkType, Order, RecordHeader, Resolution};

use crate::failure::{During, Failure, Outcome};

/// Bytes asked for at a time; larger reads bring nothing.
const BUFFER: usize = 1 << 20;
/// Longest record or block taken for one; anything longer is damage. Frames end at 512 KiB (BIG TCP).
const RECORD_MAX: usize = 16 << 20;
/// Interfaces remembered; real files have a handful.
const INTERFACES_MAX: usize = 1 << 16;
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
    /// Why the input has ended before it should.
    cut_off: Option<io::Error>,
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
            cut_off: None,
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
                // What came until then counts; `check` says the rest.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    (self.at_end, self.cut_off) = (true, Some(error));
                }
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

    /// At the end: whether it could be read.
    ///
    /// # Errors
    /// If nothing could: that is no capture, whatever it begins with. If an interface has gone that was listened to.
    pub(crate) fn check(&self, name: &str) -> Outcome {
        if let Some(error) = &self.cut_off {
            return Err(Failure::new(format!("{name}: {error}")));
        }
        if self.packets == 0 && !self.notes.is_empty() {
            return Err(Failure::new(format!("{name}: damaged from its beginning on")));
        }
        Ok(())
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
