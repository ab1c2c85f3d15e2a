//! The file of one thread: its header, and the reading end.

use std::fs::{self, File};
use std::io::{self, Read};

use super::Event;

/// Bytes before the events.
pub const HEADER_LEN: usize = 4096;
/// Bytes of an event: a cache line.
pub const EVENT_LEN: usize = 64;

const MAGIC: &[u8; 8] = b"roxietr1";
const CAPACITY_AT: usize = 8;
const PROCESS_AT: usize = 16;
const THREAD_AT: usize = 20;
/// Number of events that were written.
pub(super) const WRITTEN_AT: usize = 24;
/// Number of events that were not written for lack of memory.
pub(super) const LOST_AT: usize = 32;
const TOKEN_AT: usize = 40;
const NAME_AT: usize = 64;
const NAME_LEN: usize = 16;
const COMMAND_AT: usize = 128;

const _: () = assert!(size_of::<Event>() == EVENT_LEN);

/// What is fixed when a file is made.
pub(super) struct Header {
    capacity: usize,
    process: u32,
    token: u64,
    thread: u32,
    name: String,
    command: String,
}

impl Header {
    pub(super) fn of_this_thread(capacity: usize) -> Header {
        let thread = crate::thread_id() as u32;
        let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm")).unwrap_or_default();
        let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into()).collect();
        let (name, command) = (name.trim_end().to_owned(), words.join(" "));
        let (process, token) = (std::process::id(), crate::process_token());
        Header { capacity, process, token, thread, name, command }
    }

    pub(super) fn bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, MAGIC);
        put(CAPACITY_AT, &(self.capacity as u64).to_ne_bytes());
        put(PROCESS_AT, &self.process.to_ne_bytes());
        put(THREAD_AT, &self.thread.to_ne_bytes());
        put(TOKEN_AT, &self.token.to_ne_bytes());
        put(NAME_AT, &self.name.as_bytes()[..self.name.len().min(NAME_LEN)]);
        put(COMMAND_AT, &self.command.as_bytes()[..self.command.len().min(HEADER_LEN - COMMAND_AT)]);
        bytes
    }
}

/// What one thread has recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its process, as that process knows it; a process of another PID namespace may have the same number.
    pub process: u32,
    /// Tells apart processes with the same number.
    pub token: u64,
    /// Its number (gettid(2)).
    pub thread: u32,
    /// Its name.
    pub name: String,
    /// Command line of the process.
    pub command: String,
    /// Oldest first.
    pub events: Vec<Event>,
    /// Events that newer ones replaced.
    pub replaced: u64,
    /// Events that were not recorded because the disk was full.
    pub lost: u64,
}

impl Recording {
    /// Reads the file of a thread, which was to keep `events_max` events. `None`
    /// if it has no events: the thread was about to make it.
    ///
    /// # Errors
    /// `InvalidData` for another file, or a longer one; those of read(2).
    pub fn read(file: File, events_max: usize) -> io::Result<Option<Recording>> {
        let len = file.metadata()?.len();
        Self::parse(file, len, events_max)
    }

    /// As [`Self::read`], from the bytes of the file and its length.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(mut file: impl Read, len: u64, events_max: usize) -> io::Result<Option<Recording>> {
        let mut header = Vec::new();
        file.by_ref().take(HEADER_LEN as u64).read_to_end(&mut header)?;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = &header[..];
        let capacity = number(header, CAPACITY_AT) as usize;
        let whole = capacity.checked_mul(EVENT_LEN).and_then(|len| len.checked_add(HEADER_LEN));
        // A process that writes its own file must not take the memory of the reader.
        let is_short = capacity <= super::kept(events_max);
        let is_whole = header.len() == HEADER_LEN && whole.is_some_and(|whole| whole as u64 == len);
        if !header.starts_with(MAGIC) || !capacity.is_power_of_two() || !is_whole || !is_short {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let written = number(header, WRITTEN_AT);
        let kept = written.min(capacity as u64);
        // The file is sparse behind them.
        let mut bytes = Vec::new();
        file.take(kept * EVENT_LEN as u64).read_to_end(&mut bytes)?;
        bytes.resize(kept as usize * EVENT_LEN, 0);
        let events = (written - kept..written).map(|n| {
            let at = (n as usize & (capacity - 1)) * EVENT_LEN;
            Event::parse(&bytes[at..at + EVENT_LEN])
        });
        Ok(Some(Recording {
            process: word(header, PROCESS_AT),
            token: number(header, TOKEN_AT),
            thread: word(header, THREAD_AT),
            name: text(&header[NAME_AT..NAME_AT + NAME_LEN]),
            command: text(&header[COMMAND_AT..]),
            events: events.collect(),
            replaced: written - kept,
            lost: number(header, LOST_AT),
        }))
    }
}

impl Event {
    fn parse(bytes: &[u8]) -> Event {
        Event {
            time_ns: number(bytes, 0),
            kind: bytes[8],
            flags: bytes[9],
            count: u16::from_ne_bytes([bytes[10], bytes[11]]),
            id: word(bytes, 12),
            args: std::array::from_fn(|n| number(bytes, 16 + 8 * n)),
        }
    }
}

/// The eight bytes at `at`.
fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// The four bytes at `at`.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
