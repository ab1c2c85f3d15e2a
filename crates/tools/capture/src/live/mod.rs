//! Captures live traffic of a network interface or of a process.
//!
//! A [`LiveCapture`] is a pcapng file that is still being written: [`Source`](crate::source::Source) reads it
//! like any other file. Nothing here handles signals; a caller ends a capture with [`Options::stop`].

mod attach;
mod command;
mod cpu_budget;
mod error;
mod netdev;
mod nic_time;
mod order;
mod process;
mod split;

use std::borrow::Cow;
use std::io::{self, Read};
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use bpf::XdpAction;
use sys::{PollFd, now_ns, poll};
use wire::capture::{Conditions, LinkType, Seen};

use crate::filter::{Filter, FilterOptions, QueuePairRules};
use crate::write::{NewInterface, NewPacket, Writer};
pub use attach::Attachment;
#[cfg(feature = "fuzz")]
pub(crate) use command::check_command;
pub use command::{CommandCapture, Count};
use cpu_budget::CpuBudget;
pub use cpu_budget::PERCENT;
pub use error::LiveError;
use netdev::Netdev;
pub use nic_time::ReceiveTimes;
use process::Process;
pub use split::{Splitter, realtime_offset};

/// Where packets are captured.
#[derive(Clone, Debug)]
pub enum CapturePoint {
    /// The network interface of this name, both directions. Needs root.
    Netdev(String),
    /// The devices of the process with this id, both directions. Needs the user of the process, or root.
    Process(u32),
}

impl CapturePoint {
    /// Its name in messages: `eth0`, `process 4711`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            CapturePoint::Netdev(name) => name.clone(),
            CapturePoint::Process(pid) => format!("process {pid}"),
        }
    }
}

/// What to capture, and how. The default captures all RoCEv2 packets completely until the capture point
/// disappears.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Bytes captured of each packet; all if `None`.
    pub snap_len: Option<u32>,
    /// Capture only the devices of a process on this interface; all if `None`.
    pub netdev: Option<String>,
    /// Which packets to capture. The capture point applies the conditions on headers, the reader all others.
    pub filter: FilterOptions,
    /// If `Some(n)`, capture only the first of every n packets.
    pub sample: Option<u32>,
    /// How long to capture.
    pub duration: Option<Duration>,
    /// MiB of memory for packets that wait for the reader, a power of two; 64 for an interface and 16 for a
    /// process if `None`. Packets that find it full are counted as dropped.
    pub buffer_mib: Option<u32>,
    /// CPU limit for reading while no CPU is idle, in percent of one CPU; 100 is no limit, `None` is
    /// [`PERCENT`].
    pub cpu_percent: Option<u32>,
    /// Also capture the packets of a process that its hooks do not pass, with the verdict.
    pub verdicts: bool,
    /// Take the receive times of an interface from its driver, by an XDP program: from the clock of the NIC
    /// where the driver gives it, else the time at which the program runs.
    pub nic_time: bool,
    /// How programs are attached to an interface.
    pub attachment: Attachment,
    /// The capture ends when this descriptor becomes readable, for example a signalfd.
    pub stop: Option<Arc<OwnedFd>>,
    /// Called with messages for the user that are not errors, such as the end of the captured process.
    pub notify: Option<fn(&str)>,
}

impl Options {
    fn notify(&self, message: &str) {
        if let Some(notify) = self.notify {
            notify(message);
        }
    }

    /// Describes the packets that are not captured on purpose; `None` if all are captured.
    fn left_out(&self, point: &CapturePoint) -> Option<String> {
        let sample = self.sample.map(|sample| format!("a sample, the first of every {sample} packets"));
        let is_filtered = !self.filter.conditions().is_empty();
        let chosen = is_filtered.then(|| "packets chosen by a filter".to_owned());
        // A packet names its receiver only; a process knows both ends of its queue pairs.
        let is_one_way = matches!(point, CapturePoint::Netdev(_)) && !self.filter.queue_pairs.is_empty();
        let one_way = is_one_way.then(|| {
            "for connections older than the capture, only packets to the named queue pairs".to_owned()
        });
        let parts: Vec<String> = sample.into_iter().chain(chosen).chain(one_way).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The conditions that the capture point can apply.
    ///
    /// It sees headers only. A wrong ICRC shows only in a complete packet, so with complete packets and the
    /// condition `errors` it copies all packets, and the reader checks them.
    fn header_conditions(&self) -> Conditions {
        let conditions = self.filter.conditions();
        Conditions { errors: conditions.errors && self.snap_len.is_some(), ..conditions }
    }
}

/// Receives captured packets.
pub type PacketSink<'a> = &'a mut dyn FnMut(&NewPacket<'_>);

/// A capture point that copies packets.
trait Tap: Send {
    /// Names of the interfaces of the capture file.
    fn interfaces(&self) -> Vec<String>;

    /// Where the receive times come from, for the capture file; `None` for the network stack.
    fn times(&self) -> Option<&'static str> {
        None
    }

    /// How many receive times came from where; `None` if all are of the network stack.
    fn receive_times(&self) -> Option<ReceiveTimes> {
        None
    }

    /// Passes some of the waiting packets to `sink`; returns how many copies that were, 0 if none waited.
    fn take(&mut self, sink: PacketSink<'_>) -> io::Result<usize>;

    /// Time to sleep when no packet waited.
    fn wait_ns(&self) -> u64;

    /// Packets dropped so far, by interface.
    fn dropped(&self) -> io::Result<Vec<u64>>;

    /// What the devices of the capture point tell, by interface (`roxie::recording`): the peers of their
    /// queue pairs, and at the end of the capture all that they know.
    fn told(&self, _is_end: bool) -> Vec<Vec<String>> {
        Vec::new()
    }

    /// Describes what the capture does not see, because it came after the beginning.
    fn missed(&mut self) -> Option<String> {
        None
    }

    /// Whether the capture point still exists, so that more packets may arrive.
    fn is_there(&self) -> io::Result<bool>;

    /// Stops copying packets. Copies that wait can still be read.
    fn stop(&mut self);

    /// Describes the end of the capture point: `process 4711 has ended`.
    fn end_message(&self) -> String;

    /// Whether the end of the capture point is a regular end of the capture.
    fn may_end(&self) -> bool;
}

/// Longest time for taking the packets that wait at the end of a capture, in case packets keep arriving.
const DRAIN_NS: u64 = 2_000_000_000;

/// A capture in progress, and the pcapng file that it produces.
pub struct LiveCapture {
    tap: Box<dyn Tap>,
    options: Options,
    /// `None` if all packets are admitted.
    filter: Option<Filter>,
    left_out: Option<String>,
    budget: CpuBudget,
    writer: Writer<Vec<u8>>,
    packets: u64,
    /// Bytes that [`read`](Read::read) returns next, from `ready_at` on.
    ready: Vec<u8>,
    ready_at: usize,
    /// End of the capture on CLOCK_MONOTONIC.
    end_ns: Option<u64>,
    has_ended: bool,
    /// The capture point has disappeared.
    is_gone: bool,
}

impl LiveCapture {
    /// Starts a capture.
    ///
    /// # Errors
    /// If the interface or process does not exist or cannot be captured.
    pub fn new(point: &CapturePoint, options: Options) -> Result<Self, LiveError> {
        let budget = CpuBudget::new(options.cpu_percent.unwrap_or(PERCENT));
        let tap: Box<dyn Tap> = match point {
            CapturePoint::Netdev(name) => Box::new(Netdev::new(name, &options)?),
            CapturePoint::Process(pid) => Box::new(Process::new(*pid, &options)?),
        };
        let is_process = matches!(point, CapturePoint::Process(_));
        let rules = QueuePairRules { data_is_selected: is_process, all_management: true };
        let filter = (!options.filter.is_empty()).then(|| Filter::new(options.filter.clone(), rules));
        let left_out = options.left_out(point);
        let writer = section(&*tap, left_out.as_deref())?;
        let end_ns = options.duration.map(|duration| now_ns().saturating_add(duration.as_nanos() as u64));
        Ok(Self {
            tap,
            options,
            filter,
            left_out,
            budget,
            writer,
            packets: 0,
            ready: Vec::new(),
            ready_at: 0,
            end_ns,
            has_ended: false,
            is_gone: false,
        })
    }

    /// Writes some of the waiting packets to the file in memory; returns how many copies that were.
    fn take(&mut self) -> io::Result<usize> {
        let Self { tap, filter, writer, packets, .. } = self;
        tap.take(&mut |packet| {
            if let Some(filter) = filter {
                let seen = Seen::parse(LinkType::ETHERNET, packet.data);
                if !seen.is_ok_and(|seen| filter.admits(&seen)) {
                    return;
                }
            }
            *packets += 1;
            // Writing to memory fails only for packets of 4 GiB; these end at 64 KiB.
            let _never = writer.packet(packet, packet.verdict.map(|verdict| comment(packet, verdict)));
        })
    }

    /// Whether the capture has ended: time is over, the stop descriptor is readable, or the capture point
    /// has disappeared.
    ///
    /// Sleeps if no packet waited, or if the reader has used its CPU budget.
    fn is_over(&mut self, taken: usize) -> io::Result<bool> {
        let wait_ns = if taken > 0 { self.budget.pause_ns() } else { self.tap.wait_ns() };
        let left = self.end_ns.map_or(wait_ns, |end| end.saturating_sub(now_ns()).min(wait_ns));
        let stop = self.options.stop.as_ref();
        let mut fds: Vec<PollFd> = stop.map(|stop| PollFd::readable(stop.as_raw_fd())).into_iter().collect();
        poll(&mut fds, Some(left))?;
        let is_stopped = fds.first().is_some_and(PollFd::is_ready);
        if taken == 0 && !self.tap.is_there()? {
            self.is_gone = true;
            if self.tap.may_end() {
                self.options.notify(&self.tap.end_message());
            }
        }
        Ok(is_stopped || self.is_gone || self.end_ns.is_some_and(|end| now_ns() >= end))
    }

    /// Stops the tap, takes the packets that still wait, and writes drop counters and what the devices know.
    fn drain(&mut self) -> io::Result<()> {
        let told = self.tap.told(true);
        self.tap.missed().iter().for_each(|missed| self.options.notify(missed));
        self.tap.stop();
        let until_ns = now_ns() + DRAIN_NS;
        while self.take()? > 0 && (self.is_gone || now_ns() < until_ns) {}
        for (interface, dropped) in self.tap.dropped()?.into_iter().enumerate() {
            let told = told.get(interface).map(Vec::as_slice).unwrap_or_default();
            if dropped > 0 || !told.is_empty() {
                self.writer.statistics(interface, dropped, told).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    /// Packets captured so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// How many receive times came from where; `None` without [`Options::nic_time`].
    #[must_use]
    pub fn receive_times(&self) -> Option<ReceiveTimes> {
        self.tap.receive_times()
    }

    /// Why the capture ended early; `None` if it ended as requested, or has not ended.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let has_failed = self.is_gone && !self.tap.may_end();
        has_failed.then(|| format!("the capture ended early: {}", self.tap.end_message()))
    }

    /// Whether the reader has paused to stay within its CPU budget.
    #[must_use]
    pub fn has_paused(&self) -> bool {
        self.budget.has_paused()
    }

    /// Packets dropped because the reader did not take them in time.
    ///
    /// # Errors
    /// If the counters of the kernel cannot be read.
    pub fn dropped(&self) -> io::Result<u64> {
        Ok(self.tap.dropped()?.iter().sum())
    }

    /// Begins a new file with the next bytes.
    ///
    /// # Errors
    /// None in practice: the file header is written to memory.
    pub fn next_section(&mut self) -> io::Result<()> {
        self.writer = section(&*self.tap, self.left_out.as_deref())?;
        Ok(())
    }

    /// Waits for the next bytes of the file, complete blocks. Empty once the capture has ended.
    ///
    /// # Errors
    /// If packets or counters cannot be read from the kernel.
    pub fn next_bytes(&mut self) -> io::Result<&[u8]> {
        self.ready.clear();
        while self.writer.output().is_empty() && !self.has_ended {
            let taken = self.take()?;
            self.has_ended = self.is_over(taken)?;
            if self.has_ended {
                self.drain()?;
            }
        }
        mem::swap(&mut self.ready, self.writer.output());
        Ok(&self.ready)
    }
}

impl Read for LiveCapture {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ready_at == self.ready.len() {
            self.ready_at = 0;
            self.next_bytes()?;
            if let (true, Some(failure)) = (self.ready.is_empty(), self.failure()) {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, failure));
            }
        }
        let len = buffer.len().min(self.ready.len() - self.ready_at);
        buffer[..len].copy_from_slice(&self.ready[self.ready_at..self.ready_at + len]);
        self.ready_at += len;
        Ok(len)
    }
}

/// Says which hook did not pass a packet.
fn comment(packet: &NewPacket<'_>, verdict: u8) -> Cow<'static, str> {
    let point = if packet.outbound == Some(true) { "egress" } else { "ingress" };
    match XdpAction::from_number(verdict.into()) {
        Some(action) => format!("{action} by the {point} hook").into(),
        None => format!("verdict {verdict} of the {point} hook").into(),
    }
}

/// A file in memory with its header, interface descriptions, and the peers of the queue pairs so far.
fn section(tap: &dyn Tap, left_out: Option<&str>) -> io::Result<Writer<Vec<u8>>> {
    let mut writer = Writer::new(Vec::new())?;
    for name in tap.interfaces() {
        let (name, times) = (Some(name.as_str()), tap.times());
        writer.interface(&NewInterface { name, left_out, times, link_type: LinkType::ETHERNET })?;
    }
    for (interface, told) in tap.told(false).iter().enumerate().filter(|(_, told)| !told.is_empty()) {
        writer.statistics(interface, 0, told)?;
    }
    Ok(writer)
}

#[cfg(test)]
mod tests;
