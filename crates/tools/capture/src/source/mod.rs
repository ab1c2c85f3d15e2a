//! Reads capture files, pcap and pcapng, from front to back, and continues behind damaged places.
//!
//! The reader holds one buffer and one record at a time, so files of any size and standard input are read
//! alike. It does not use `pcap-file`, which stops at the first error and takes pcapng times for nanoseconds
//! whatever the file says. `wire::capture` describes the formats.

mod compressed;
mod error;
mod pcap;
mod pcapng;
mod rule;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use wire::capture::{BlockHeader, DecodeAs, FileHeader, LinkType, Order, Ports, Resolution};

pub use compressed::decompressed;
pub use error::{EndError, OpenError};
pub use rule::{DecodeRule, TooManyPorts};

/// Bytes requested by one read; larger reads are not faster.
const BUFFER: usize = 1 << 20;
/// Longest record or block in bytes; a larger length is damage. Frames end at 512 KiB (BIG TCP).
const RECORD_MAX: usize = 16 << 20;
/// Interfaces remembered; real files have a handful.
const INTERFACES_MAX: usize = 1 << 16;
/// Descriptions by devices remembered: queue pairs and engines.
const DEVICE_MAX: usize = 1 << 18;
/// Their bytes.
const DEVICE_BYTES_MAX: usize = 64 << 20;
/// Damaged places described in [`Source::notes`]; further ones are only counted.
const NOTES_MAX: usize = 8;

/// A capture file being read.
pub struct Source<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    at_end: bool,
    /// Offset of `start` in the file.
    offset: u64,
    format: Format,
    packets: u64,
    interfaces: Vec<Interface>,
    /// Index of the first interface of the current section.
    section: usize,
    /// What the user says of UDP ports and of link types.
    ports: Ports,
    links: Vec<(LinkType, LinkType)>,
    drops: u64,
    statistics_drops: Vec<u64>,
    /// Indices of interfaces, and what the devices of their processes know.
    device: Vec<(usize, String)>,
    /// Those of them that stand before the last packet.
    device_seen: usize,
    device_bytes: usize,
    notes: Vec<String>,
    more_notes: u64,
    total_len: Option<u64>,
    /// The error that ended the input early.
    cut_off: Option<io::Error>,
}

/// The description of an interface in a file.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Its name, if the file has one.
    pub name: Option<String>,
    /// The link layer of its packets.
    pub link_type: LinkType,
    /// Description of the packets that roxie did not record on purpose (a sample, a filter); `None` if it
    /// recorded all.
    pub left_out: Option<String>,
    /// Where the receive times come from; `None` if the file does not say.
    pub times: Option<String>,
    resolution: Resolution,
    offset_s: i64,
    /// Bytes kept of each packet; 0 is no limit.
    snap_len: usize,
}

impl Interface {
    /// An interface of which the file says nothing else.
    fn unnamed(link_type: LinkType, resolution: Resolution) -> Self {
        Self { name: None, link_type, left_out: None, times: None, resolution, offset_s: 0, snap_len: 0 }
    }
}

#[derive(Clone, Copy)]
enum Format {
    Pcap(FileHeader),
    Pcapng(Order),
}

/// What comes next in a file.
enum Next<T> {
    /// A packet.
    Packet(T),
    /// The header of another file, which `cat` has appended, or the place to go on behind damage.
    Elsewhere,
    /// The end.
    End,
}

/// One packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Position in the file, from 1, as Wireshark counts.
    pub number: u64,
    /// Nanoseconds since 1970, 0 if the file has no time. Times before 1970 are negative numbers: the
    /// differences are right if they are computed with wrapping.
    pub time_ns: u64,
    /// Index into [`Source::interfaces`].
    pub interface: usize,
    /// Name of the interface, if the file has described several so far.
    pub interface_name: Option<&'a str>,
    /// The link layer that `data` begins with, and what the user says of UDP ports.
    pub decode_as: DecodeAs,
    /// The captured bytes of the packet.
    pub data: &'a [u8],
    /// Bytes of the packet on the wire.
    pub original_len: usize,
    /// `Some(true)` if the packet left the capturing host, `Some(false)` if it arrived; `None` if the file
    /// does not say.
    pub outbound: Option<bool>,
    /// The verdict of the XDP program or hook that did not pass the packet (`enum xdp_action`).
    pub verdict: Option<u8>,
    /// The comment that the file has for the packet.
    pub comment: Option<&'a [u8]>,
    /// What devices of captured processes have told since the packet before: [`Source::device`].
    pub told: &'a [(usize, String)],
}

impl Record<'_> {
    /// The record without its bytes, its texts, and what devices have told.
    pub(crate) fn bare(&self) -> Record<'static> {
        let Self { number, time_ns, interface, decode_as, original_len, outbound, verdict, .. } = *self;
        Record {
            number,
            time_ns,
            interface,
            interface_name: None,
            decode_as,
            data: &[],
            original_len,
            outbound,
            verdict,
            comment: None,
            told: &[],
        }
    }
}

/// Opens a file, or standard input if `path` is `-`. Compressed files are [decompressed].
///
/// # Errors
/// If the file cannot be opened or read, is empty, or is not a capture.
pub fn open(path: &Path) -> Result<Source<Box<dyn Read + Send>>, OpenError> {
    if path.as_os_str() == "-" {
        return Source::new(decompressed(io::stdin())?.0);
    }
    let file = File::open(path)?;
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(OpenError::Directory);
    }
    let (input, format) = decompressed(file)?;
    let mut source = Source::new(input)?;
    // Of a compressed file the length of the contents is unknown.
    source.total_len = (meta.is_file() && format.is_none()).then_some(meta.len());
    Ok(source)
}

fn is_early_end(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
}

impl<R: Read> Source<R> {
    /// Reads the file header.
    ///
    /// # Errors
    /// If `input` cannot be read, is empty, or is not a capture.
    pub fn new(input: R) -> Result<Self, OpenError> {
        let mut source = Self {
            input,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            at_end: false,
            offset: 0,
            format: Format::Pcapng(Order::Little),
            packets: 0,
            interfaces: Vec::new(),
            section: 0,
            ports: Ports::default(),
            links: Vec::new(),
            drops: 0,
            statistics_drops: Vec::new(),
            device: Vec::new(),
            device_seen: 0,
            device_bytes: 0,
            notes: Vec::new(),
            more_notes: 0,
            total_len: None,
            cut_off: None,
        };
        if !source.ensure(FileHeader::LEN)?
            && let Some(error) = source.cut_off
        {
            return Err(OpenError::Io(error));
        }
        let bytes = &source.buffer[..source.end];
        if bytes.is_empty() {
            return Err(OpenError::Empty);
        }
        if let Some(order) = BlockHeader::section_order(bytes) {
            source.format = Format::Pcapng(order);
            return Ok(source);
        }
        let mut front = [0; FileHeader::LEN];
        let there = bytes.len().min(front.len());
        front[..there].copy_from_slice(&bytes[..there]);
        let Some(header) = FileHeader::parse(&front) else { return Err(OpenError::not_a_capture(bytes)) };
        if there < front.len() {
            return Err(OpenError::TruncatedHeader { len: there, whole: front.len() });
        }
        source.begin_pcap(header);
        Ok(source)
    }

    /// The next packet, or `None` at the end of the file.
    ///
    /// # Errors
    /// If reading fails. Damage inside a file is not an error: [`Source::notes`] describes it.
    pub fn next_record(&mut self) -> io::Result<Option<Record<'_>>> {
        loop {
            self.begin_file()?;
            match self.format {
                Format::Pcap(file) => match self.find_record(&file)? {
                    Next::Packet((header, len)) => return Ok(Some(self.record(&file, header, len))),
                    Next::Elsewhere => {}
                    Next::End => return Ok(None),
                },
                Format::Pcapng(_) => match self.find_packet()? {
                    Next::Packet((interface, found)) => return Ok(Some(self.emit(interface, found))),
                    Next::Elsewhere => {}
                    Next::End => return Ok(None),
                },
            }
        }
    }

    /// The format of the file that begins at `at` in the buffer.
    fn file_at(&self, at: usize) -> Option<Format> {
        let bytes = &self.buffer[at..self.end];
        let section = || BlockHeader::section_order(bytes).map(Format::Pcapng);
        FileHeader::of_next_file(bytes).map(Format::Pcap).or_else(section)
    }

    /// Changes the format if another file begins here: `cat` has joined them.
    fn begin_file(&mut self) -> io::Result<()> {
        while let Some(header) = self.next_pcap_header()? {
            self.begin_pcap(header);
        }
        if let (Format::Pcap(_), Some(format @ Format::Pcapng(_))) = (self.format, self.file_at(self.start)) {
            self.format = format;
        }
        Ok(())
    }

    /// The header of the pcap file that begins here.
    fn next_pcap_header(&mut self) -> io::Result<Option<FileHeader>> {
        self.ensure(BlockHeader::BLOCK_MIN as usize)?;
        let mut front = [0; FileHeader::LEN];
        let Some(magic) = self.buffer[self.start..self.end].first_chunk::<4>() else { return Ok(None) };
        front[..4].copy_from_slice(magic);
        // Only behind the magic number the rest is awaited: a pipe may give a shorter record first.
        if FileHeader::parse(&front).is_none() || !self.ensure(FileHeader::LEN)? {
            return Ok(None);
        }
        Ok(FileHeader::of_next_file(&self.buffer[self.start..self.end]))
    }

    fn begin_pcap(&mut self, header: FileHeader) {
        self.format = Format::Pcap(header);
        self.consume(FileHeader::LEN);
        self.section = self.interfaces.len();
        self.add_interface(Interface::unnamed(header.link_type, Resolution::NANOSECONDS));
    }

    /// Moves behind the present position to the next one where `found` holds. Returns `false` at the end of
    /// the file.
    fn search(&mut self, found: impl Fn(&Self, usize) -> bool) -> io::Result<bool> {
        let from = self.offset;
        self.consume(1);
        loop {
            // Enough for a candidate and the record behind it, which `found` needs for its judgement.
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

    /// Reads until `len` bytes are buffered; returns `false` if the file ends before.
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
                // The packets before the error are still read; `check_end` returns the error.
                // Damage of a compressed file is `InvalidInput` or `InvalidData`.
                Err(error) if is_early_end(error.kind()) => {
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

    /// Decodes the packets that follow by what the user says of UDP ports and link types.
    ///
    /// # Errors
    /// If more than [`Ports::MAX`] ports are named.
    pub fn decode_as(&mut self, rules: &[DecodeRule]) -> Result<(), TooManyPorts> {
        for rule in rules {
            match *rule {
                DecodeRule::Port(port, carried) => {
                    self.ports.add(port, carried).then_some(()).ok_or(TooManyPorts)?;
                }
                DecodeRule::Link(link, meant) => self.links.push((link, meant)),
            }
        }
        Ok(())
    }

    /// How packets of an interface are decoded.
    fn decoding(&self, interface: usize) -> DecodeAs {
        let link_type = self.interfaces[interface].link_type;
        let meant = self.links.iter().rev().find(|(link, _)| *link == link_type);
        DecodeAs { link_type: meant.map_or(link_type, |(_, meant)| *meant), ports: self.ports }
    }

    /// The interfaces described so far, of all sections.
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Bytes of the file used so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the file in bytes; `None` for pipes and live captures.
    pub fn total_len(&self) -> Option<u64> {
        self.total_len
    }

    /// Packets read so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets that the capturing program dropped, by the counters in the file.
    pub fn drops(&self) -> u64 {
        self.statistics_drops.iter().fold(0_u64, |sum, drops| sum.saturating_add(*drops)).max(self.drops)
    }

    /// Names of interfaces, and what the devices of their processes know, in the order of the file.
    pub fn device(&self) -> impl Iterator<Item = (&str, &str)> {
        let name = |index: usize| self.interfaces.get(index).and_then(|interface| interface.name.as_deref());
        self.device.iter().map(move |(index, text)| (name(*index).unwrap_or_default(), &**text))
    }

    /// Description of the packets that roxie did not record on purpose; `None` if it recorded all of them.
    pub fn left_out(&self) -> Option<&str> {
        self.interfaces.iter().find_map(|interface| interface.left_out.as_deref())
    }

    /// To be called at the end of the file: whether the file was a capture that could be read.
    ///
    /// # Errors
    /// If the file is damaged from its beginning, or a live capture ended because its interface was removed.
    pub fn check_end(&self) -> Result<(), EndError> {
        if let Some(error) = &self.cut_off {
            return Err(EndError::CutOff(error.to_string()));
        }
        if self.packets == 0 && !self.notes.is_empty() {
            return Err(EndError::NothingReadable);
        }
        Ok(())
    }

    /// Descriptions of the damaged places found so far.
    pub fn notes(&self) -> impl Iterator<Item = String> + '_ {
        let more = (self.more_notes > 0).then(|| format!("and {} more damaged places", self.more_notes));
        self.notes.iter().cloned().chain(more)
    }
}
