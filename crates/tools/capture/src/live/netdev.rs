//! Captures a network interface: two classifier programs (`bpf::Tap`), one for each direction, copy packets
//! into one ring buffer. `attach` attaches them.

use std::io;

use bpf::{TAP, TAP_QPS, TAP_STATE, TAP_STATE_LEN, Tap as TapProgram, TapConditions, TapOpcode};
use nix::net::if_::if_nameindex;
use sys::bpf::{Map, Program, RingReader};
use sys::{Link, Netlink};
use wire::{ExtHeader, Opcode, Operation, ROCE_PORT};

use super::attach::Attached;
use super::error::{During, LiveError};
use super::nic_time::ReceiveTimes;
use super::split::Splitter;
use super::{Options, PacketSink, Tap, nic_time};

/// Default size of the ring in MiB: a fifth of a second of the headers of everything that two CPUs can send.
const RING_MIB: u32 = 64;
/// Time between two reads of an empty ring of that size; it fills in eight times as long. A smaller ring is
/// read more often, in proportion.
const WAIT_NS: u64 = 20_000_000;
const WAIT_MIN_NS: u64 = 1_000_000;
/// Records taken at a time: few enough that their copies are still in the cache when they are written to the
/// file.
const BATCH: usize = 32;

/// The tap of an interface.
pub(super) struct Netdev {
    /// `None` once the capture is stopped.
    attached: Option<Attached>,
    /// The XDP program of [`Options::nic_time`]; `None` without, and once the capture is stopped.
    hints: Option<roxie::xdp::Attached>,
    has_nic_time: bool,
    ring: RingReader,
    state: Map,
    name: String,
    splitter: Splitter,
    wait_ns: u64,
}

impl Netdev {
    /// Loads and attaches the programs.
    pub(super) fn new(name: &str, options: &Options) -> Result<Self, LiveError> {
        let link = interface(name)?;
        let snap_len = options.snap_len.unwrap_or(TapProgram::WHOLE);
        let hosts = options.filter.hosts.clone();
        if hosts.len() > TapProgram::HOSTS_MAX {
            return Err(LiveError::TooManyHosts { max: TapProgram::HOSTS_MAX });
        }
        let ring_mib = options.buffer_mib.unwrap_or(RING_MIB);
        let wait_ns = (WAIT_NS * u64::from(ring_mib) / u64::from(RING_MIB)).clamp(WAIT_MIN_NS, WAIT_NS);
        let (filter, ring_len) = (conditions(options), ring_mib << 20);
        let has_nic_time = options.nic_time;
        let tap = TapProgram { snap_len, hosts, filter, hints: has_nic_time, port: ROCE_PORT, ring_len };
        let definition = tap.program("roxie_tap_in", false).during("assembling the capture program")?;
        let (ingress, maps) =
            Program::load_with_maps(&definition).during("loading the capture program into the kernel")?;
        let definition = tap.program("roxie_tap_out", true).during("assembling the capture program")?;
        let egress =
            Program::load(&definition, &maps).during("loading the capture program into the kernel")?;
        if let Some(qps) = definition.map(TAP_QPS).and_then(|map| maps.get(map.index())) {
            add_queue_pairs(qps, options).during("passing the queue pairs to the capture program")?;
        }
        let hints = has_nic_time.then(|| nic_time::attach_program(&link)).transpose()?;
        let attached = Some(Attached::new(&link, &ingress, &egress, options)?);
        let mut maps: Vec<Option<Map>> = maps.into_iter().map(Some).collect();
        let mut named = |name: &str| definition.map(name).and_then(|map| maps.get_mut(map.index())?.take());
        let (Some(ring), Some(state)) = (named(TAP), named(TAP_STATE)) else {
            return Err(io::Error::from(io::ErrorKind::NotFound)).during("maps of the capture program");
        };
        let ring = RingReader::new(&ring).during("mapping the ring buffer")?;
        let splitter = Splitter::new(options.snap_len, options.sample.unwrap_or(1));
        Ok(Self { attached, hints, has_nic_time, ring, state, name: link.name, splitter, wait_ns })
    }
}

impl Tap for Netdev {
    fn interfaces(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn times(&self) -> Option<&'static str> {
        self.has_nic_time.then_some(nic_time::TIMES)
    }

    fn receive_times(&self) -> Option<ReceiveTimes> {
        self.has_nic_time.then(|| self.splitter.times())
    }

    fn take(&mut self, sink: PacketSink<'_>) -> io::Result<usize> {
        self.splitter.update_clock();
        Ok(self.ring.read(BATCH, |record| self.splitter.packets(record, 0, sink)))
    }

    fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    /// Packets that found the ring full.
    fn dropped(&self) -> io::Result<Vec<u64>> {
        let mut counters = vec![0; self.state.value_size()];
        self.state.lookup(&0u32.to_ne_bytes(), &mut counters)?;
        let dropped = counters.chunks_exact(TAP_STATE_LEN).filter_map(|cpu| cpu[8..].first_chunk());
        Ok(vec![dropped.map(|dropped| u64::from_ne_bytes(*dropped)).sum()])
    }

    fn is_there(&self) -> io::Result<bool> {
        self.attached.as_ref().map_or(Ok(false), Attached::is_there)
    }

    fn stop(&mut self) {
        (self.attached, self.hints) = (None, None);
    }

    fn end_message(&self) -> String {
        format!("the interface {} was removed", self.name)
    }

    fn may_end(&self) -> bool {
        false
    }
}

/// Adds the queue pairs of the filter to the program's map.
fn add_queue_pairs(qps: &Map, options: &Options) -> io::Result<()> {
    let known = 1_u32.to_ne_bytes();
    options.filter.queue_pairs.iter().try_for_each(|qp| qps.update(&qp.value().to_ne_bytes(), &known))
}

/// The link of an interface.
fn interface(name: &str) -> Result<Link, LiveError> {
    let links = Netlink::new().and_then(|mut netlink| netlink.links()).during("listing the interfaces")?;
    let Some(link) = links.into_iter().find(|link| link.name == name) else {
        let known = if_nameindex().map_or_else(
            |_| Vec::new(),
            |list| list.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect(),
        );
        return Err(LiveError::NoInterface { name: name.to_owned(), known });
    };
    if link.is_ethernet || link.is_loopback {
        return Ok(link);
    }
    Err(LiveError::NotEthernet(link.name))
}

/// The conditions of the program; `None` if it copies all packets.
fn conditions(options: &Options) -> Option<TapConditions> {
    let (conditions, sample) = (options.header_conditions(), options.sample.unwrap_or(1));
    let by_queue_pair = !options.filter.queue_pairs.is_empty();
    if conditions.is_empty() && !by_queue_pair && sample == 1 {
        return None;
    }
    let mut opcodes = Box::new([TapOpcode::default(); 256]);
    for (byte, known) in (0..=255).zip(&mut *opcodes) {
        let row = Opcode(byte).row();
        let offset = |header| row.and_then(|row| row.offset(header)).unwrap_or(0) as u8;
        *known = TapOpcode {
            header_len: row.map_or(0, |row| row.header_len() as u8),
            aeth: offset(ExtHeader::Aeth),
            deth: offset(ExtHeader::Deth),
            is_wanted: conditions.opcodes.is_empty() || conditions.opcodes.contains(Opcode(byte)),
            is_cnp: row.is_some_and(|row| row.operation == Operation::Cnp),
        };
    }
    Some(TapConditions {
        opcodes,
        by_queue_pair,
        psns: conditions.psns.map(|range| (range.first.value(), range.last.value())),
        naks: conditions.naks,
        congestion: conditions.congestion,
        errors: conditions.errors,
        sample,
    })
}

#[cfg(test)]
mod tests;
