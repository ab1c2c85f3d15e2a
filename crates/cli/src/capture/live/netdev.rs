//! A network interface: two classifiers (`bpf::Tap`), one for each direction, copy packets into one ring buffer. They go when
//! this value does, however the process ends.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use bpf::{TAP, TAP_STATE, Tap, TapHeader};
use roxie::sys::Link;
use roxie::sys::bpf::{Direction, Map, Program, RingReader, TcxLink};
use wire::ROCE_PORT;

use super::split;
use super::{Each, Listener, Wanted};
use crate::capture::clock;
use crate::capture::write::NewPacket;
use crate::failure::{During, Failure, Outcome};
use crate::netdev;

/// A fifth of a second of everything that two CPUs can send, headers only.
const RING_LEN: u32 = 64 << 20;
/// So much waits before the reader is woken; sooner than that it looks by itself.
const WAKEUP_LEN: u32 = 256 << 10;
const WAIT_NS: u64 = 50_000_000;
/// Records taken at a time, so that what was written is passed on.
const BATCH: usize = 256;

/// The classifiers of an interface.
pub(super) struct Netdev {
    taps: [TcxLink; 2],
    ring: RingReader,
    state: Map,
    name: String,
    snap: usize,
    frame: Vec<u8>,
}

impl Netdev {
    /// Starts to listen.
    pub(super) fn new(name: &str, wanted: &Wanted) -> Outcome<Self> {
        let link = interface(name)?;
        let snap_len = wanted.snap.unwrap_or(Tap::WHOLE);
        let hosts = hosts(&wanted.hosts)?;
        let tap = Tap { snap_len, hosts, port: ROCE_PORT, ring_len: RING_LEN, wakeup_len: WAKEUP_LEN };
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
        let ring = RingReader::new(&ring).during("ring buffer")?;
        Ok(Self { taps, ring, state, name: link.name, snap: snap_len as usize, frame: Vec::new() })
    }
}

impl Listener for Netdev {
    fn interfaces(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn take(&mut self, each: Each<'_>) -> io::Result<usize> {
        let Self { ring, frame, snap, .. } = self;
        let offset_ns = clock::realtime_offset();
        let records = ring.read(BATCH, |record| {
            let Some((header, copy)) = TapHeader::parse(record) else { return };
            let handed: Result<(), Infallible> = split::frames(&header, copy, *snap, frame, |frame| {
                each(&NewPacket {
                    interface: 0,
                    time_ns: header.time_ns + offset_ns,
                    original_len: frame.original_len,
                    data: frame.data,
                    outbound: Some(header.outbound),
                });
                Ok(())
            });
            let Ok(()) = handed;
        });
        Ok(records)
    }

    fn wait(&self) -> (RawFd, u64) {
        (self.ring.as_fd().as_raw_fd(), WAIT_NS)
    }

    /// Packets that found the ring full.
    fn lost(&self) -> io::Result<Vec<u64>> {
        let mut counters = vec![0; self.state.value_size()];
        self.state.lookup(&0u32.to_ne_bytes(), &mut counters)?;
        let lost = counters.chunks_exact(16).filter_map(|cpu| cpu[8..].first_chunk());
        Ok(vec![lost.map(|lost| u64::from_ne_bytes(*lost)).sum()])
    }

    fn is_there(&self) -> io::Result<bool> {
        self.taps[0].is_attached()
    }

    fn farewell(&self) -> String {
        format!("{} is gone", self.name)
    }

    fn may_end(&self) -> bool {
        false
    }
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
