//! Prints frames, or writes them to a capture file.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::failure::{During, Outcome};
use crate::{output, terminal};

/// Header of a pcap file with nanoseconds: magic, version 2.4, two unused words, snap length, Ethernet.
const PCAP_HEADER: [u32; 6] = [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 1 << 16, 1];
/// Bytes of a frame that a line shows.
const SHOWN: usize = 32;

/// Where frames are written.
pub(crate) enum FrameOutput {
    /// Standard output, one line each.
    Lines,
    /// A capture file.
    Capture(Box<dyn Write>),
}

impl FrameOutput {
    /// Opens the capture file `path`, where `-` is standard output; prints lines without it.
    pub(crate) fn open(path: Option<&Path>) -> Outcome<FrameOutput> {
        let Some(path) = path else { return Ok(FrameOutput::Lines) };
        let mut file = BufWriter::new(output::create_or_stdout(path)?);
        file.write_all(&PCAP_HEADER.map(u32::to_ne_bytes).concat()).during("writing frames")?;
        Ok(FrameOutput::Capture(Box::new(file)))
    }

    /// Writes one frame of `len` bytes seen at `place`; `bytes` are those that were captured.
    pub(crate) fn put(&mut self, time_ns: u64, len: u32, place: &str, bytes: &[u8]) -> io::Result<()> {
        match self {
            FrameOutput::Lines => {
                print_line(time_ns, len, place, bytes);
                Ok(())
            }
            FrameOutput::Capture(file) => {
                let (seconds, rest) = split(time_ns);
                let record = [seconds as u32, rest as u32, bytes.len() as u32, len];
                file.write_all(&record.map(u32::to_ne_bytes).concat())?;
                file.write_all(bytes)
            }
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            FrameOutput::Lines => Ok(()),
            FrameOutput::Capture(file) => file.flush(),
        }
    }
}

/// Prints a frame of `len` bytes as a line with the first of its bytes.
pub(crate) fn print_line(time_ns: u64, len: u32, place: &str, bytes: &[u8]) {
    let (seconds, rest) = split(time_ns);
    let start = hex_digits(&bytes[..bytes.len().min(SHOWN)]);
    terminal::print(&format!("{seconds:>10}.{rest:09} {len} bytes, {place}: {start}"));
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds, and the nanoseconds that remain.
fn split(time_ns: u64) -> (u64, u64) {
    (time_ns / 1_000_000_000, time_ns % 1_000_000_000)
}
