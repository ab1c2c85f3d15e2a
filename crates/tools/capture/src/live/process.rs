//! Captures a process with a device of roxie. The engine of that process copies the packets it sends and
//! receives into memory shared with the capture.
//!
//! The capture needs the user of the process, or root. The engine stops copying when the connection to the
//! capture closes, so also when the capture is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use bpf::TapHeader;
use roxie::recording;
use roxie::registry::DomainConfig;
use roxie::status::EngineStatus;
use roxie_hook::TapFilter;
use roxie_hook::control::{Remote, Users};
use sys::{RecordReader, now_ns};

use super::error::{During, LiveError};
use super::order::{HOLD_NS, Waiting};
use super::split::Splitter;
use super::{Options, PacketSink, Tap};

/// Default size in MiB of the memory for copies.
const BUFFER_MIB: u32 = 16;
/// Time between two reads of an empty memory of that size. Complete packets fill it in 6 ms at the earliest,
/// headers in 60 ms.
const WHOLE_WAIT_NS: u64 = 2_000_000;
const HEADERS_WAIT_NS: u64 = 16_000_000;
const WAIT_MIN_NS: u64 = 1_000_000;
/// A snap length up to this captures little more than headers.
const HEADERS_MAX: u32 = 256;
/// Bytes of copies taken at a time: few enough that they are still in the cache when they are written to the
/// file.
const BATCH_BYTES: usize = 128 << 10;
/// Time between two looks for engines that have started, each of which reads the names of all Unix sockets.
/// Half: twice that. Double: an engine that lives for less is not named.
const LOOK_NS: u64 = 1_000_000_000;
/// Time that such an engine has for its answer, and at the end of the capture. Meanwhile no packet is read.
const LOOK_TIMEOUT: Duration = Duration::from_millis(5);
const LAST_LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// Records between two comparisons with [`BATCH_BYTES`].
const RECORDS: usize = 32;

/// The taps of a process: one for each engine of each device, most processes have one.
pub(super) struct Process {
    pid: u32,
    engines: Vec<Engine>,
    /// Packets of several engines, which are written in the order of their times.
    waiting: Waiting,
    splitter: Splitter,
    wait_ns: u64,
    /// The interface that was chosen.
    netdev: Option<String>,
    /// Slot and device of the engines that started after the capture; no device on an interface that was not
    /// chosen.
    later: BTreeMap<u16, Option<String>>,
    /// When the last look for such engines was.
    looked_ns: u64,
}

struct Engine {
    /// The connection; `None` once the capture is stopped.
    remote: Option<Remote>,
    /// Name and interface of its device: `roxie0 on eth0`.
    device: String,
    slot: u16,
    copies: RecordReader,
}

impl Process {
    /// Starts a tap in each device of the process, or in those on the interface of the options.
    pub(super) fn new(pid: u32, options: &Options) -> Result<Self, LiveError> {
        let buffer_mib = options.buffer_mib.unwrap_or(BUFFER_MIB);
        let is_short = options.snap_len.is_some_and(|snap| snap <= HEADERS_MAX);
        let wait_ns = if is_short { HEADERS_WAIT_NS } else { WHOLE_WAIT_NS };
        let wait_ns =
            (wait_ns * u64::from(buffer_mib) / u64::from(BUFFER_MIB)).clamp(WAIT_MIN_NS, HEADERS_WAIT_NS);
        let filter = TapFilter {
            snap_len: options.snap_len.unwrap_or(0),
            room: buffer_mib << 20,
            hosts: options.filter.hosts.clone(),
            qps: options.filter.queue_pairs.clone(),
            conditions: options.header_conditions(),
            sample: options.sample.unwrap_or(1),
            verdicts: options.verdicts,
        };
        let refused = |error| LiveError::Refused { pid, error };
        let (mut engines, mut netdevs) = (Vec::new(), BTreeSet::new());
        for remote in connect(pid)? {
            let EngineStatus { device, netdev, .. } = remote.engine().map_err(refused)?;
            if options.netdev.as_ref().is_none_or(|wanted| *wanted == netdev) {
                let (copies, device) =
                    (remote.tap(&filter).map_err(refused)?, format!("{device} on {netdev}"));
                engines.push(Engine { slot: remote.slot(), remote: Some(remote), device, copies });
            }
            netdevs.insert(netdev);
        }
        match &options.netdev {
            Some(name) if engines.is_empty() => {
                let known = netdevs.into_iter().collect();
                Err(LiveError::NoDeviceOn { pid, name: name.clone(), known })
            }
            _ => {
                let splitter = Splitter::new(options.snap_len, 1);
                Ok(Self {
                    pid,
                    engines,
                    waiting: Waiting::default(),
                    splitter,
                    wait_ns,
                    netdev: options.netdev.clone(),
                    later: BTreeMap::new(),
                    looked_ns: now_ns(),
                })
            }
        }
    }
}

impl Process {
    /// Looks for engines that have started since the capture began.
    fn look(&mut self, timeout: Duration) {
        self.looked_ns = now_ns();
        let Ok(domain) = DomainConfig::from_env() else { return };
        for (pid, slot) in Remote::find(&domain, Some(self.pid)) {
            let is_captured = self.engines.iter().any(|engine| engine.slot == slot);
            if is_captured || self.later.contains_key(&slot) {
                continue;
            }
            // One that does not answer in time is asked again.
            let remote = Remote::connect(&domain, pid, slot, Users::All).ok();
            let status = remote.and_then(|remote| remote.with_timeout(timeout).engine().ok());
            let Some(EngineStatus { device, netdev, .. }) = status else { continue };
            let is_chosen = self.netdev.as_ref().is_none_or(|wanted| *wanted == netdev);
            self.later.insert(slot, is_chosen.then(|| format!("{device} on {netdev}")));
        }
    }
}

/// Connects to all devices of a process.
fn connect(pid: u32) -> Result<Vec<Remote>, LiveError> {
    let domain = DomainConfig::from_env().during("ROXIE_DOMAIN")?;
    let found = Remote::find(&domain, Some(pid));
    if found.is_empty() {
        return Err(LiveError::NoDevice { pid });
    }
    let connect = |(_, slot)| Remote::connect(&domain, pid, slot, Users::All);
    found
        .into_iter()
        .map(|engine| connect(engine).map_err(|error| LiveError::Connect { pid, error }))
        .collect()
}

impl Tap for Process {
    fn interfaces(&self) -> Vec<String> {
        let name = |engine: &Engine| {
            let is_alone = self.engines.iter().filter(|other| other.device == engine.device).count() == 1;
            let slot = if is_alone { String::new() } else { format!(" slot {}", engine.slot) };
            format!("process {} {}{slot}", self.pid, engine.device)
        };
        self.engines.iter().map(name).collect()
    }

    fn take(&mut self, sink: PacketSink<'_>) -> io::Result<usize> {
        if now_ns() >= self.looked_ns + LOOK_NS {
            self.look(LOOK_TIMEOUT);
        }
        let Self { engines, splitter, waiting, .. } = self;
        splitter.update_clock();
        if let [engine] = &mut engines[..] {
            let (mut records, mut bytes) = (0, 0);
            while bytes < BATCH_BYTES {
                let taken = engine.copies.read(RECORDS, |record| {
                    // The process could write records of no bytes as fast as they are read.
                    bytes += record.len().max(TapHeader::LEN);
                    splitter.packets(record, 0, sink);
                });
                if taken == 0 {
                    break;
                }
                records += taken;
            }
            return Ok(records);
        }
        let is_stopped = engines.iter().all(|engine| engine.remote.is_none());
        // Before the reading: see `order.rs`.
        let mut until_ns = if is_stopped { u64::MAX } else { now_ns().saturating_sub(HOLD_NS) };
        let before = waiting.len();
        for (interface, engine) in engines.iter_mut().enumerate() {
            until_ns =
                waiting.read(&mut engine.copies, interface).map_or(until_ns, |last| last.min(until_ns));
        }
        let records = waiting.len() - before;
        waiting.pass_until(until_ns, splitter, sink);
        Ok(records)
    }

    fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    fn dropped(&self) -> io::Result<Vec<u64>> {
        Ok(self.engines.iter().map(|engine| engine.copies.lost()).collect())
    }

    fn told(&self, is_end: bool) -> Vec<Vec<String>> {
        let tell = |engine: &Engine| {
            // Of a process that has ended nothing can be told.
            let Some(remote) = &engine.remote else { return Vec::new() };
            let queue_pairs = remote.queue_pairs().unwrap_or_default();
            if !is_end {
                return queue_pairs.iter().filter_map(recording::peer).collect();
            }
            let used = queue_pairs.iter().filter(|status| status.counters.rows().any(|row| row.1 > 0));
            let counters = remote.engine().map(|status| {
                recording::counters(status.counters.iter().map(|(name, value)| (&**name, *value)))
            });
            used.map(recording::queue_pair).chain(counters).collect()
        };
        self.engines.iter().map(tell).collect()
    }

    fn missed(&mut self) -> Option<String> {
        self.look(LAST_LOOK_TIMEOUT);
        let devices: BTreeSet<&str> = self.later.values().flatten().map(String::as_str).collect();
        let devices = devices.into_iter().collect::<Vec<_>>().join(", ");
        (!devices.is_empty()).then(|| {
            format!(
                "process {} began to use {devices} after the capture had begun: those packets are not in it \
                 ('roxie run --capture' has all)",
                self.pid
            )
        })
    }

    fn is_there(&self) -> io::Result<bool> {
        Ok(self.engines.iter().filter_map(|engine| engine.remote.as_ref()).any(|remote| !remote.has_ended()))
    }

    fn stop(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.remote = None);
    }

    fn end_message(&self) -> String {
        format!("process {} has ended", self.pid)
    }

    fn may_end(&self) -> bool {
        true
    }
}
