//! A process with a device of roxie: its own engine copies what it sends and receives to memory that it shares with us. No privileges are
//! needed, but to be the same user. The copying ends with the connection, however this process ends.

use std::io;

use roxie::hook::TapFilter;
use roxie::hook::control::Remote;
use roxie::sys::RecordReader;

use super::split::Splitter;
use super::{Each, Listener, Wanted, headers_tell};
use crate::engines::{engines, unanswered};
use crate::failure::Outcome;

/// How long nothing is read after there was nothing: a process sends for longer until there is no room.
const PAUSE_NS: u64 = 2_000_000;
/// Copies taken at a time.
const BATCH: usize = 1024;

/// The engines of a process; mostly there is one.
pub(super) struct Process {
    pid: u32,
    engines: Vec<Engine>,
    splitter: Splitter,
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
        let filter = TapFilter {
            snap_len: wanted.snap.unwrap_or(0),
            room: wanted.buffer.unwrap_or(0) << 20,
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
            engine.copies.read(BATCH, |record| splitter.packets(record, interface, each))
        };
        Ok(engines.iter_mut().enumerate().map(take).sum())
    }

    fn wait_ns(&self) -> u64 {
        PAUSE_NS
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
