//! A process with a device of roxie: its own engine copies what it sends and receives to memory that it shares with us. No privileges are
//! needed, but to be the same user. The copying ends with the connection, however this process ends.

use std::io;

use roxie::hook::TapFilter;
use roxie::hook::control::Remote;
use sys::RecordReader;

use super::split::Splitter;
use super::{Each, Listener, Wanted, headers_tell};
use crate::engines::{engines, unanswered};
use crate::failure::Outcome;

/// What the memory for copies has if nobody asks for more or less.
const ROOM_MIB: u32 = 16;
/// How long nothing is read after there was nothing: whole packets fill this memory in 6 ms at the earliest, headers in 60.
const WHOLE_WAIT_NS: u64 = 2_000_000;
const HEADERS_WAIT_NS: u64 = 16_000_000;
const WAIT_MIN_NS: u64 = 1_000_000;
/// Bytes of each packet that are headers, and hardly more.
const HEADERS_MAX: u32 = 256;
/// Bytes of copies taken at a time: what is made of them is in the cache still when it is written.
const BATCH_BYTES: usize = 128 << 10;
/// Records between two looks at how much that is by now.
const RECORDS: usize = 32;

/// The engines of a process; mostly there is one.
pub(super) struct Process {
    pid: u32,
    engines: Vec<Engine>,
    splitter: Splitter,
    wait_ns: u64,
}

struct Engine {
    /// Until it is to end.
    remote: Option<Remote>,
    slot: u8,
    copies: RecordReader,
}

impl Process {
    /// Starts to listen.
    pub(super) fn new(pid: u32, wanted: &Wanted) -> Outcome<Self> {
        let room_mib = wanted.buffer.unwrap_or(ROOM_MIB);
        let is_short = wanted.snap.is_some_and(|snap| snap <= HEADERS_MAX);
        let wait_ns = if is_short { HEADERS_WAIT_NS } else { WHOLE_WAIT_NS };
        let wait_ns =
            (wait_ns * u64::from(room_mib) / u64::from(ROOM_MIB)).clamp(WAIT_MIN_NS, HEADERS_WAIT_NS);
        let filter = TapFilter {
            snap_len: wanted.snap.unwrap_or(0),
            room: room_mib << 20,
            hosts: wanted.filter.host.clone(),
            qps: wanted.filter.qp.clone(),
            conditions: headers_tell(wanted),
            sample: wanted.sample.unwrap_or(1),
        };
        let begin = |remote: Remote| {
            let copies = remote.tap(&filter).map_err(|error| unanswered(pid, &error))?;
            Ok(Engine { slot: remote.slot(), remote: Some(remote), copies })
        };
        let splitter = Splitter::new(wanted.snap, 1);
        Ok(Self {
            pid,
            splitter,
            wait_ns,
            engines: engines(Some(pid))?.into_iter().map(begin).collect::<Outcome<_>>()?,
        })
    }
}

impl Listener for Process {
    fn interfaces(&self) -> Vec<String> {
        let slot = |engine: &Engine| match self.engines.len() {
            1 => format!("process {}", self.pid),
            _ => format!("process {} slot {}", self.pid, engine.slot),
        };
        self.engines.iter().map(slot).collect()
    }

    fn take(&mut self, each: Each<'_>) -> io::Result<usize> {
        let Self { engines, splitter, .. } = self;
        splitter.look_at_the_clock();
        let take = |(interface, engine): (usize, &mut Engine)| {
            let (mut records, mut bytes) = (0, 0);
            while bytes < BATCH_BYTES {
                let taken = engine.copies.read(RECORDS, |record| {
                    bytes += record.len();
                    splitter.packets(record, interface, each);
                });
                if taken == 0 {
                    break;
                }
                records += taken;
            }
            records
        };
        Ok(engines.iter_mut().enumerate().map(take).sum())
    }

    fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    fn lost(&self) -> io::Result<Vec<u64>> {
        Ok(self.engines.iter().map(|engine| engine.copies.lost()).collect())
    }

    fn is_there(&self) -> io::Result<bool> {
        Ok(self.engines.iter().filter_map(|engine| engine.remote.as_ref()).any(|remote| !remote.has_ended()))
    }

    fn stop(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.remote = None);
    }

    fn farewell(&self) -> String {
        format!("process {} has ended", self.pid)
    }

    fn may_end(&self) -> bool {
        true
    }
}
