//! Captures all processes of a command from their first packets on (`roxie run --capture`).
//!
//! Each engine of the command connects to a socket and passes the memory of its tap (crate `roxie`,
//! `recording.rs`). Engines wait for this reader, so no packet is lost while it reads.
//!
//! Packets are written in the order of their times (`order.rs`). What engines tell is written at once: the
//! peer of a queue pair stands before its first packet.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use roxie::recording::{FAILED, MESSAGE_MAX};
use sys::{PollFd, RecordReader, now_ns, poll};
use wire::capture::LinkType;

use super::order::{HOLD_NS, Waiting};
use super::split::Splitter;
use crate::paint::text;
use crate::write::{NewInterface, Writer};
#[cfg(feature = "fuzz")]
pub(crate) use hostile::check_command;

#[cfg(feature = "fuzz")]
mod hostile;

/// Connections that may wait to be accepted (`net.core.somaxconn` is 4096).
const BACKLOG: i32 = 4096;
/// Messages that are taken of an engine at a time; it has sent more of them only if it sends all the time.
/// Half: a full socket is read in two parts. Double: their block may exceed what readers take (16 MiB).
const MESSAGES: usize = 512;
/// Longest memory of an engine in bytes. It has 16 MiB (crate `roxie-hook`, `tap.rs`); double would let a
/// process that passes other memory take twice as much of this one.
const MEMORY_MAX: usize = 64 << 20;
/// Time between two readings: an engine that sends 5 GB/s fills its memory in 3 ms.
const BUSY_WAIT: Duration = Duration::from_millis(1);
/// The same if there were no packets.
const IDLE_WAIT: Duration = Duration::from_millis(5);
/// A capture in progress, and the pcapng file that it produces.
pub struct CommandCapture {
    listener: OwnedFd,
    /// Engines that have connected and not passed their memory yet.
    connected: Vec<OwnedFd>,
    engines: Vec<Engine>,
    /// Records that were read and not written, in the order of their times.
    waiting: Waiting,
    splitter: Splitter,
    writer: Writer<Vec<u8>>,
    /// Bytes that [`next_bytes`](Self::next_bytes) has returned.
    ready: Vec<u8>,
    count: Count,
    /// Why an engine could not be accepted at the last attempt.
    trouble: Option<io::Error>,
}

/// What was captured.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Count {
    /// Packets written.
    pub packets: u64,
    /// Packets that an engine could not copy.
    pub lost: u64,
    /// Engines; most processes have one.
    pub engines: usize,
    /// A work request or a queue pair has failed.
    pub has_failed: bool,
}

struct Engine {
    connection: OwnedFd,
    copies: RecordReader,
    interface: usize,
    /// What it has told since the last reading.
    notes: Vec<String>,
}

impl CommandCapture {
    /// Listens for engines at this path, which must not exist. Captures `snap_len` bytes of each packet.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EACCES` and others of bind(2).
    pub fn new(socket: &Path, snap_len: Option<u32>) -> io::Result<Self> {
        let listener = sys::bind_seqpacket_file(socket)?;
        sys::listen(listener.as_fd(), BACKLOG)?;
        Self::on(listener, snap_len)
    }

    fn on(listener: OwnedFd, snap_len: Option<u32>) -> io::Result<Self> {
        Ok(Self {
            listener,
            connected: Vec::new(),
            engines: Vec::new(),
            waiting: Waiting::default(),
            splitter: Splitter::new(snap_len, 1),
            writer: Writer::new(Vec::new())?,
            ready: Vec::new(),
            count: Count::default(),
            trouble: None,
        })
    }

    /// What was captured so far.
    #[must_use]
    pub fn count(&self) -> Count {
        self.count
    }

    /// Why engines that have connected wait, if they do: this process has no descriptor left, for example.
    /// They are accepted later.
    #[must_use]
    pub fn trouble(&self) -> Option<&io::Error> {
        self.trouble.as_ref()
    }

    /// Waits a short time and returns the next bytes of the file, complete blocks; may return none.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn next_bytes(&mut self) -> io::Result<&[u8]> {
        let wait = if self.waiting.is_empty() { IDLE_WAIT } else { BUSY_WAIT };
        if self.trouble.is_some() {
            // The listener stays readable.
            std::thread::sleep(wait);
        } else {
            poll(&mut [PollFd::readable(self.listener.as_raw_fd())], Some(wait.as_nanos() as u64))?;
        }
        self.read()
    }

    /// Returns the last bytes of the file, after the end of the command. Processes of the command that still
    /// run are captured up to here.
    ///
    /// # Errors
    /// Those of [`next_bytes`](Self::next_bytes).
    pub fn end(&mut self) -> io::Result<Vec<u8>> {
        let (end_ns, mut last) = (now_ns(), Vec::new());
        loop {
            let read_until = self.read_until()?;
            last.append(self.writer.output());
            if read_until >= end_ns {
                break;
            }
        }
        self.close();
        last.append(self.writer.output());
        Ok(last)
    }

    /// Writes all that was read.
    fn close(&mut self) {
        self.write_until(u64::MAX);
        let engines = mem::take(&mut self.engines);
        engines.iter().for_each(|engine| self.finish(engine));
    }

    fn read(&mut self) -> io::Result<&[u8]> {
        self.read_until()?;
        self.ready.clear();
        mem::swap(&mut self.ready, self.writer.output());
        Ok(&self.ready)
    }

    /// Reads the copies of all engines; returns the time up to which all packets are written.
    fn read_until(&mut self) -> io::Result<u64> {
        // Before the reading: see above. An engine that connects later sends later.
        let mut until_ns = now_ns().saturating_sub(HOLD_NS);
        self.accept();
        let mut ended = Vec::new();
        for (at, engine) in self.engines.iter_mut().enumerate() {
            let is_there = engine.listen(&mut self.count.has_failed);
            if !engine.notes.is_empty() {
                // Writing to memory does not fail.
                let _never = self.writer.statistics(engine.interface, engine.copies.lost(), &engine.notes);
                engine.notes.clear();
            }
            match self.waiting.read(&mut engine.copies, engine.interface) {
                Some(last_ns) => until_ns = until_ns.min(last_ns),
                None if !is_there => ended.push(at),
                None => {}
            }
        }
        self.write_until(until_ns);
        for at in ended.into_iter().rev() {
            let engine = self.engines.remove(at);
            self.finish(&engine);
        }
        Ok(until_ns)
    }

    /// Accepts the engines that have connected.
    fn accept(&mut self) {
        self.trouble = loop {
            match sys::accept(self.listener.as_fd()) {
                Ok(connection) => self.connected.push(connection),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => break None,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => break Some(error),
                },
            }
        };
        for connection in mem::take(&mut self.connected) {
            let (mut message, mut passed) = ([0; MESSAGE_MAX], Vec::new());
            match sys::recv_record(connection.as_fd(), &mut message, &mut passed, false) {
                Ok(received) => self.begin(connection, &message[..received.len], passed),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.connected.push(connection),
                Err(_ended) => {}
            }
        }
    }

    /// Begins to read the copies of an engine. What does not look like one is ignored.
    fn begin(&mut self, connection: OwnedFd, message: &[u8], mut passed: Vec<OwnedFd>) {
        let (Some((slot, name)), Some(memory)) = (message.split_first_chunk(), passed.pop()) else { return };
        let (Ok(copies), Ok(peer)) = (RecordReader::new(memory), sys::peer_credentials(connection.as_fd()))
        else {
            return;
        };
        if copies.len() > MEMORY_MAX {
            return;
        }
        let name = format!("process {} {} slot {}", peer.pid, text(name), u16::from_le_bytes(*slot));
        let interface = self.writer.interfaces();
        let description =
            NewInterface { name: Some(&name), left_out: None, times: None, link_type: LinkType::ETHERNET };
        // Writing to memory does not fail.
        let _never = self.writer.interface(&description);
        self.engines.push(Engine { connection, copies, interface, notes: Vec::new() });
        self.count.engines += 1;
    }

    /// Writes the packets up to this time.
    fn write_until(&mut self, until_ns: u64) {
        let Self { waiting, splitter, writer, count, .. } = self;
        waiting.pass_until(until_ns, splitter, &mut |packet| {
            count.packets += 1;
            // Writing to memory fails only for packets of 4 GiB; these end at 64 KiB.
            let _never = writer.packet(packet, None);
        });
    }

    /// Writes the number of packets that an engine could not copy.
    fn finish(&mut self, engine: &Engine) {
        let lost = engine.copies.lost();
        self.count.lost = self.count.lost.saturating_add(lost);
        if lost > 0 {
            let _never = self.writer.drops(engine.interface, lost);
        }
    }
}

impl Engine {
    /// Takes its messages; false once it has ended.
    fn listen(&mut self, has_failed: &mut bool) -> bool {
        let mut message = [0; MESSAGE_MAX];
        for _ in 0..MESSAGES {
            match sys::recv_record(self.connection.as_fd(), &mut message, &mut Vec::new(), false) {
                Ok(received) if received.len == 0 => return false,
                Ok(received) if &message[..received.len] == FAILED => *has_failed = true,
                Ok(received) => self.notes.push(text(&message[..received.len])),
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::WRONG_NS;
    use super::*;
    use bpf::TapHeader;
    use sys::RecordWriter;

    /// An engine that has connected to the capture.
    fn engine(socket: &Path, slot: u16) -> (RecordWriter, OwnedFd) {
        let (writer, reader) = RecordWriter::new(1 << 16).expect("memory");
        let connection = sys::connect_seqpacket_file(socket).expect("it listens");
        let head = slot.to_le_bytes();
        sys::send_record(connection.as_fd(), &head, b"prog", &[reader.as_fd()]).expect("it reads");
        (writer, connection)
    }

    fn push(writer: &mut RecordWriter, time_ns: u64, byte: u8) -> bool {
        let header = TapHeader { time_ns, len: 43, outer_len: 42, ..TapHeader::default() };
        writer.push(&[&header.to_bytes(), &[0; 42], &[byte]])
    }

    fn bytes(file: &[u8]) -> Vec<u8> {
        let mut source = crate::source::Source::new(file).expect("a capture");
        let mut last = Vec::new();
        while let Some(record) = source.next_record().expect("complete") {
            last.extend(record.data.last());
        }
        last
    }

    #[test]
    fn packets_of_several_engines_are_in_the_order_of_their_times() {
        let socket = std::env::temp_dir().join(format!("roxie-command-{}", std::process::id()));
        let mut capture = CommandCapture::new(&socket, None).expect("a socket");
        let [mut one, mut other] = [3, 4].map(|slot| engine(&socket, slot));
        let (now, mut file) = (now_ns() - HOLD_NS, Vec::new());
        for (nth, byte) in [(0, 1), (2, 3), (4, 5)] {
            push(&mut one.0, now + nth, byte);
        }
        file.extend_from_slice(capture.next_bytes().expect("reads"));
        // A record from the future, as of a copy during the reading, waits for older ones of another engine.
        let future = now_ns() + WRONG_NS / 2;
        push(&mut one.0, future + 1, 9);
        file.extend_from_slice(capture.next_bytes().expect("reads"));
        assert_eq!(bytes(&file), [1, 3, 5]);
        push(&mut other.0, future, 8);
        sys::send_record(other.1.as_fd(), FAILED, &[], &[]).expect("it reads");
        sys::send_record(one.1.as_fd(), b"counters rx_pkts=7", &[], &[]).expect("it reads");
        other.0.lose(7);
        drop((one, other));
        file.extend_from_slice(capture.next_bytes().expect("reads"));
        file.extend_from_slice(&capture.end().expect("reads"));
        assert_eq!(bytes(&file), [1, 3, 5, 8, 9]);
        let mut source = crate::source::Source::new(&file[..]).expect("a capture");
        while source.next_record().expect("complete").is_some() {}
        let told: Vec<_> = source.device().map(|(name, text)| (name.contains("slot 3"), text)).collect();
        assert_eq!((told, source.drops()), (vec![(true, "counters rx_pkts=7")], 7));
        let count = Count { packets: 5, lost: 7, engines: 2, has_failed: true };
        assert_eq!(capture.count(), count);
        std::fs::remove_file(socket).expect("the test made it");
    }

    #[test]
    fn wrong_times_of_one_engine_do_not_keep_packets_waiting() {
        let socket = std::env::temp_dir().join(format!("roxie-times-{}", std::process::id()));
        let mut capture = CommandCapture::new(&socket, None).expect("a socket");
        let (mut wrong, mut right) = (engine(&socket, 1), engine(&socket, 2));
        let start = now_ns();
        push(&mut wrong.0, u64::MAX, 1);
        push(&mut wrong.0, 0, 2);
        push(&mut right.0, start, 3);
        let mut file = Vec::new();
        while now_ns() < start + 2 * WRONG_NS {
            file.extend_from_slice(capture.next_bytes().expect("reads"));
        }
        assert_eq!(bytes(&file), [2, 3, 1]);
        std::fs::remove_file(socket).expect("the test made it");
    }

    #[test]
    fn an_engine_that_passes_other_memory_or_wrong_numbers_harms_no_other() {
        let socket = std::env::temp_dir().join(format!("roxie-harm-{}", std::process::id()));
        let mut capture = CommandCapture::new(&socket, None).expect("a socket");
        let (_large, memory) = RecordWriter::new(2 * MEMORY_MAX).expect("memory");
        let connection = sys::connect_seqpacket_file(&socket).expect("it listens");
        sys::send_record(connection.as_fd(), &[1, 0], b"x", &[memory.as_fd()]).expect("it reads");
        let mut engines = [2, 3, 4].map(|slot| engine(&socket, slot));
        engines[0].0.lose(u64::MAX);
        engines[1].0.lose(u64::MAX);
        push(&mut engines[2].0, now_ns(), 5);
        drop(engines);
        let file = capture.end().expect("reads");
        assert_eq!(bytes(&file), [5]);
        let count = Count { packets: 1, lost: u64::MAX, engines: 3, has_failed: false };
        assert_eq!(capture.count(), count);
        let mut source = crate::source::Source::new(&file[..]).expect("a capture");
        while source.next_record().expect("complete").is_some() {}
        assert_eq!(source.drops(), u64::MAX);
        std::fs::remove_file(socket).expect("the test made it");
    }

    /// A process could write them as fast as they are read.
    #[test]
    fn records_of_no_bytes_are_read_in_batches() {
        let (mut writer, memory) = RecordWriter::new(1 << 18).expect("memory");
        let mut copies = RecordReader::new(memory).expect("a queue");
        while writer.push(&[]) {}
        let mut waiting = Waiting::default();
        assert!(waiting.read(&mut copies, 0).is_some(), "there are more");
        assert_eq!((waiting.read(&mut copies, 0), waiting.len()), (None, 0));
    }

    /// More than one reading of an engine: the other engine's younger packets wait.
    #[test]
    fn a_long_backlog_of_one_engine_keeps_the_order() {
        let socket = std::env::temp_dir().join(format!("roxie-backlog-{}", std::process::id()));
        let mut capture = CommandCapture::new(&socket, None).expect("a socket");
        let (long, memory) = RecordWriter::new(8 << 20).expect("memory");
        let connection = sys::connect_seqpacket_file(&socket).expect("it listens");
        sys::send_record(connection.as_fd(), &[1, 0], b"x", &[memory.as_fd()]).expect("it reads");
        let (mut long, mut other) = (long, engine(&socket, 2));
        let start = now_ns() - HOLD_NS;
        let pushed = (0..30_000).filter(|nth| push(&mut long, start + nth, 1)).count();
        push(&mut other.0, start + 40_000, 2);
        while now_ns() < start + HOLD_NS + 50_000 {}
        let mut file = Vec::new();
        for _ in 0..10 {
            file.extend_from_slice(capture.next_bytes().expect("reads"));
        }
        let mut expected = vec![1; pushed];
        expected.push(2);
        assert!(pushed == 30_000 && bytes(&file) == expected);
        std::fs::remove_file(socket).expect("the test made it");
    }
}
