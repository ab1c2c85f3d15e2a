//! Live traffic of a network interface as a capture file that is still being written: everything that reads files reads it.
//!
//! Two classifiers (`bpf::Tap`), one for each direction, copy packets into one ring buffer; reading takes them out and
//! makes pcapng of them. The classifiers go when this value does, however the process ends.

mod split;

use std::convert::Infallible;
use std::io::{self, Read};
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bpf::{TAP, TAP_STATE, Tap, TapHeader};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use roxie::sys::bpf::{Direction, Map, Program, RingReader, TcxLink};
use roxie::sys::{Link, PollFd, now_ns, poll};
use wire::ROCE_PORT;
use wire::capture::LinkType;

use super::clock;
use super::write::{NewPacket, Writer};
use crate::failure::{During, Failure, Outcome};
use crate::netdev;

/// A fifth of a second of everything that two CPUs can send, headers only.
const RING_LEN: u32 = 64 << 20;
/// So much waits before the reader is woken; sooner than after [`WAIT_NS`] it looks by itself.
const WAKEUP_LEN: u32 = 256 << 10;
const WAIT_NS: u64 = 50_000_000;
/// Records taken at a time, so that what was written is passed on.
const BATCH: usize = 256;

/// What to listen to.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) netdev: String,
    /// Bytes of each packet; all if not given.
    pub(super) snap: Option<u32>,
    /// Only packets from or to one of these.
    pub(super) hosts: Vec<IpAddr>,
    /// How long to listen; for ever if not given.
    pub(super) duration: Option<Duration>,
}

/// The classifiers, and the file they fill.
pub(super) struct Live {
    taps: [TcxLink; 2],
    ring: RingReader,
    state: Map,
    signals: SignalFd,
    netdev: String,
    snap: usize,
    writer: Writer<Vec<u8>>,
    packets: u64,
    /// What [`read`](Read::read) has yet to hand over, and from where on.
    ready: Vec<u8>,
    at: usize,
    /// On CLOCK_MONOTONIC.
    end_ns: Option<u64>,
    ended: bool,
    gone: bool,
    frame: Vec<u8>,
}

impl Live {
    /// Starts to listen.
    pub(super) fn new(wanted: &Wanted) -> Outcome<Self> {
        let link = interface(&wanted.netdev)?;
        let snap_len = wanted.snap.unwrap_or(Tap::WHOLE);
        let tap = Tap {
            snap_len,
            hosts: hosts(&wanted.hosts)?,
            port: ROCE_PORT,
            ring_len: RING_LEN,
            wakeup_len: WAKEUP_LEN,
        };
        // From here on a signal ends the capture, not the process: what was captured is still written.
        let mut ending = SigSet::empty();
        ending.extend([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        ending.thread_block().during("signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&ending, flags).during("signals")?;

        let definition = tap.program("roxie_tap_in", false).during("assembling the tap")?;
        let (inward, maps) = Program::load_with_maps(&definition).during("loading the tap")?;
        let definition = tap.program("roxie_tap_out", true).during("assembling the tap")?;
        let outward = Program::load(&definition, &maps).during("loading the tap")?;
        let attach = |program: &Program, direction| {
            TcxLink::attach(program, link.index, direction).map_err(|error| not_attached(&link.name, &error))
        };
        let taps = [attach(&inward, Direction::Ingress)?, attach(&outward, Direction::Egress)?];
        let mut maps: Vec<Option<Map>> = maps.into_iter().map(Some).collect();
        let mut named = |name: &str| definition.map(name).and_then(|map| maps.get_mut(map.index())?.take());
        let (Some(ring), Some(state)) = (named(TAP), named(TAP_STATE)) else {
            return Err(Failure::new("the tap has no maps"));
        };
        let writer = section(&link.name)?;
        Ok(Self {
            taps,
            ring: RingReader::new(&ring).during("ring buffer")?,
            state,
            signals,
            netdev: link.name,
            snap: snap_len as usize,
            writer,
            packets: 0,
            ready: Vec::new(),
            at: 0,
            end_ns: wanted.duration.map(|duration| now_ns().saturating_add(duration.as_nanos() as u64)),
            ended: false,
            gone: false,
            frame: Vec::new(),
        })
    }

    /// Takes what is in the ring; how many records that were.
    fn take(&mut self) -> usize {
        let Self { ring, writer, frame, snap, packets, .. } = self;
        let offset_ns = clock::realtime_offset();
        ring.read(BATCH, |record| {
            let Some((header, copy)) = TapHeader::parse(record) else { return };
            let written: Result<(), Infallible> = split::frames(&header, copy, *snap, frame, |frame| {
                let packet = NewPacket {
                    interface: 0,
                    time_ns: header.time_ns + offset_ns,
                    original_len: frame.original_len,
                    data: frame.data,
                    outbound: Some(header.outbound),
                };
                *packets += 1;
                // Into memory: only a packet that no file can hold fails, and those end at 64 KiB.
                let _never = writer.packet(&packet, []);
                Ok(())
            });
            let Ok(()) = written;
        })
    }

    /// Waits until there is something, or nothing will come any more.
    fn wait(&mut self) -> io::Result<()> {
        let now = now_ns();
        let left = self.end_ns.map_or(WAIT_NS, |end| end.saturating_sub(now).min(WAIT_NS));
        let mut fds = [
            PollFd::readable(self.ring.as_fd().as_raw_fd()),
            PollFd::readable(self.signals.as_fd().as_raw_fd()),
        ];
        poll(&mut fds, Some(left))?;
        let signalled = self.signals.read_signal()?.is_some();
        if !self.gone && !self.taps[0].is_attached()? {
            self.gone = true;
            eprintln!("roxie: {} is gone", self.netdev);
        }
        self.ended |= signalled || self.gone || self.end_ns.is_some_and(|end| now_ns() >= end);
        Ok(())
    }

    /// Packets taken so far.
    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    /// Whether the interface was deleted meanwhile.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Packets that found the ring full.
    pub(super) fn lost(&self) -> io::Result<u64> {
        let mut counters = vec![0; self.state.value_size()];
        self.state.lookup(&0u32.to_ne_bytes(), &mut counters)?;
        let lost = counters.chunks_exact(16).filter_map(|cpu| cpu[8..].first_chunk());
        Ok(lost.map(|lost| u64::from_ne_bytes(*lost)).sum())
    }

    /// What comes next begins a file of its own.
    pub(super) fn next_section(&mut self) -> Outcome {
        self.writer = section(&self.netdev)?;
        Ok(())
    }

    /// The next bytes of the file, whole blocks; waits for some. None are left once the capture has ended.
    pub(super) fn next_bytes(&mut self) -> io::Result<&[u8]> {
        self.ready.clear();
        while self.writer.output().is_empty() {
            if self.take() > 0 {
                break;
            }
            if self.ended {
                return Ok(&[]);
            }
            self.wait()?;
            if self.ended {
                // What came in the meantime, then the last words.
                while self.take() > 0 {}
                let lost = self.lost()?;
                if lost > 0 {
                    self.writer.drops(0, lost).map_err(io::Error::other)?;
                }
            }
        }
        mem::swap(&mut self.ready, self.writer.output());
        Ok(&self.ready)
    }
}

impl Read for Live {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.ready.len() {
            self.at = 0;
            self.next_bytes()?;
        }
        let len = buffer.len().min(self.ready.len() - self.at);
        buffer[..len].copy_from_slice(&self.ready[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// The beginning of a file.
fn section(netdev: &str) -> Outcome<Writer<Vec<u8>>> {
    let mut writer = Writer::new(Vec::new()).during("pcapng")?;
    writer.interface(Some(netdev), LinkType::ETHERNET).during("pcapng")?;
    Ok(writer)
}

fn interface(name: &str) -> Outcome<Link> {
    let link = netdev::link(name)?;
    if link.is_ethernet || link.is_loopback {
        return Ok(link);
    }
    Err(Failure::new(format!("{name}: is not an Ethernet interface")))
}

fn hosts(hosts: &[IpAddr]) -> Outcome<Vec<IpAddr>> {
    if hosts.len() > Tap::HOSTS_MAX {
        return Err(
            Failure::new(format!("at most {} addresses of an interface's traffic", Tap::HOSTS_MAX)).code(2)
        );
    }
    Ok(hosts.to_vec())
}

fn not_attached(netdev: &str, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("listening on {netdev}: {error}"));
    match error.raw_os_error() {
        Some(nix::libc::EINVAL) => failure.hint(
            "needs Linux 6.6 (TCX); before that: tcpdump -i IF -w - udp port 4791 | roxie capture read -",
        ),
        _ => failure,
    }
}
