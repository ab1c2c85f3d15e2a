//! A process with a device of roxie: its own engine copies what it sends and receives, and hands it out on its control socket.
//! No privileges are needed, but to be the same user. The copying ends with the connection, however this process ends.

use std::io;

use roxie::hook::control::Remote;
use roxie::hook::{HookPoint, TapFilter};

use super::{Each, Listener, Wanted, headers_tell};
use crate::capture::clock;
use crate::capture::write::NewPacket;
use crate::engines::{engines, unanswered};
use crate::failure::Outcome;

/// How long nothing is asked after there was nothing: asking costs the process some microseconds.
const PAUSE_NS: u64 = 10_000_000;

/// The engines of a process; mostly there is one.
pub(super) struct Process {
    pid: u32,
    engines: Vec<Engine>,
}

struct Engine {
    remote: Remote,
    lost: u64,
    ended: bool,
}

impl Process {
    /// Starts to listen.
    pub(super) fn new(pid: u32, wanted: &Wanted) -> Outcome<Self> {
        let filter = TapFilter {
            snap_len: wanted.snap.unwrap_or(0),
            hosts: wanted.filter.host.clone(),
            qps: wanted.filter.qp.clone(),
            conditions: headers_tell(wanted),
            sample: wanted.sample.unwrap_or(1),
        };
        let begin = |remote: Remote| {
            remote.tap(&filter).map_err(|error| unanswered(pid, &error))?;
            Ok(Engine { remote, lost: 0, ended: false })
        };
        Ok(Self { pid, engines: engines(Some(pid))?.into_iter().map(begin).collect::<Outcome<_>>()? })
    }
}

impl Listener for Process {
    fn interfaces(&self) -> Vec<String> {
        let slot = |engine: &Engine| match self.engines.len() {
            1 => format!("process {}", self.pid),
            _ => format!("process {} slot {}", self.pid, engine.remote.slot()),
        };
        self.engines.iter().map(slot).collect()
    }

    fn take(&mut self, each: Each<'_>) -> io::Result<usize> {
        let offset_ns = clock::realtime_offset();
        let mut count = 0;
        for (interface, engine) in self.engines.iter_mut().enumerate() {
            let Some(tapped) = engine.remote.tapped().map_err(io::Error::other)? else {
                engine.ended = true;
                continue;
            };
            // The last words come in several pieces; each tells of the loss until then.
            engine.lost = engine.lost.max(tapped.lost);
            count += tapped.frames.len();
            for frame in &tapped.frames {
                each(&NewPacket {
                    interface,
                    time_ns: frame.time_ns + offset_ns,
                    original_len: frame.len as usize,
                    data: &frame.bytes,
                    outbound: Some(frame.point == HookPoint::Egress),
                });
            }
        }
        Ok(count)
    }

    fn wait_ns(&self) -> u64 {
        PAUSE_NS
    }

    fn lost(&self) -> io::Result<Vec<u64>> {
        Ok(self.engines.iter().map(|engine| engine.lost).collect())
    }

    fn is_there(&self) -> io::Result<bool> {
        Ok(!self.engines.iter().all(|engine| engine.ended))
    }

    fn farewell(&self) -> String {
        format!("process {} has ended", self.pid)
    }

    fn may_end(&self) -> bool {
        true
    }
}
