//! A network interface: two classifiers (`bpf::Tap`), one for each direction, copy packets into one ring buffer. `attach` has where
//! they sit.

use std::io;
use std::net::IpAddr;

use bpf::{TAP, TAP_QPS, TAP_STATE, TAP_STATE_LEN, Tap, TapConditions, TapOpcode};
use sys::Link;
use sys::bpf::{Map, Program, RingReader};
use wire::{ExtHeader, Opcode, Operation, ROCE_PORT};

use super::attach::Attached;
use super::split::Splitter;
use super::{Each, Listener, Wanted, headers_tell};
use crate::failure::{During, Failure, Outcome};
use crate::netdev;

/// A fifth of a second of everything that two CPUs can send, headers only.
const RING_MIB: u32 = 64;
/// How long packets wait in such a ring: an eighth of what fills it. A shorter ring is read more often.
const WAIT_NS: u64 = 20_000_000;
const WAIT_MIN_NS: u64 = 1_000_000;
/// Records taken at a time: what is made of them is in the cache still when it is written.
const BATCH: usize = 32;

/// The classifiers of an interface.
pub(super) struct Netdev {
    /// Until it is to end.
    attached: Option<Attached>,
    ring: RingReader,
    state: Map,
    name: String,
    splitter: Splitter,
    wait_ns: u64,
}

impl Netdev {
    /// Starts to listen.
    pub(super) fn new(name: &str, wanted: &Wanted) -> Outcome<Self> {
        let link = interface(name)?;
        let snap_len = wanted.snap.unwrap_or(Tap::WHOLE);
        let hosts = hosts(&wanted.filter.host)?;
        let ring_mib = wanted.buffer.unwrap_or(RING_MIB);
        let wait_ns = (WAIT_NS * u64::from(ring_mib) / u64::from(RING_MIB)).clamp(WAIT_MIN_NS, WAIT_NS);
        let (filter, ring_len) = (filter(wanted), ring_mib << 20);
        let tap = Tap { snap_len, hosts, filter, port: ROCE_PORT, ring_len };
        let definition = tap.program("roxie_tap_in", false).during("assembling the tap")?;
        let (inward, maps) = Program::load_with_maps(&definition).during("loading the tap")?;
        let definition = tap.program("roxie_tap_out", true).during("assembling the tap")?;
        let outward = Program::load(&definition, &maps).during("loading the tap")?;
        if let Some(qps) = definition.map(TAP_QPS).and_then(|map| maps.get(map.index())) {
            wanted_queue_pairs(qps, wanted).during("queue pairs of the tap")?;
        }
        let attached = Some(Attached::new(&link, &inward, &outward)?);
        let mut maps: Vec<Option<Map>> = maps.into_iter().map(Some).collect();
        let mut named = |name: &str| definition.map(name).and_then(|map| maps.get_mut(map.index())?.take());
        let (Some(ring), Some(state)) = (named(TAP), named(TAP_STATE)) else {
            return Err(Failure::new("the tap has no maps"));
        };
        let ring = RingReader::new(&ring).during("ring buffer")?;
        let splitter = Splitter::new(wanted.snap, wanted.sample.unwrap_or(1));
        Ok(Self { attached, ring, state, name: link.name, splitter, wait_ns })
    }
}

impl Listener for Netdev {
    fn interfaces(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn take(&mut self, each: Each<'_>) -> io::Result<usize> {
        self.splitter.look_at_the_clock();
        Ok(self.ring.read(BATCH, |record| self.splitter.packets(record, 0, each)))
    }

    fn wait_ns(&self) -> u64 {
        self.wait_ns
    }

    /// Packets that found the ring full.
    fn lost(&self) -> io::Result<Vec<u64>> {
        let mut counters = vec![0; self.state.value_size()];
        self.state.lookup(&0u32.to_ne_bytes(), &mut counters)?;
        let lost = counters.chunks_exact(TAP_STATE_LEN).filter_map(|cpu| cpu[8..].first_chunk());
        Ok(vec![lost.map(|lost| u64::from_ne_bytes(*lost)).sum()])
    }

    fn is_there(&self) -> io::Result<bool> {
        self.attached.as_ref().map_or(Ok(false), Attached::is_there)
    }

    fn stop(&mut self) {
        self.attached = None;
    }

    fn farewell(&self) -> String {
        format!("{} is gone", self.name)
    }

    fn may_end(&self) -> bool {
        false
    }
}

fn wanted_queue_pairs(qps: &Map, wanted: &Wanted) -> io::Result<()> {
    let known = 1_u32.to_ne_bytes();
    wanted.filter.qp.iter().try_for_each(|qp| qps.update(&qp.value().to_ne_bytes(), &known))
}

fn interface(name: &str) -> Outcome<Link> {
    let link = netdev::link(name)?;
    if link.is_ethernet || link.is_loopback {
        return Ok(link);
    }
    Err(Failure::new(format!("{name}: is not an Ethernet interface")))
}

/// What the program looks at in each packet; nothing if all are wanted.
fn filter(wanted: &Wanted) -> Option<TapConditions> {
    let (conditions, sample) = (headers_tell(wanted), wanted.sample.unwrap_or(1));
    let by_queue_pair = !wanted.filter.qp.is_empty();
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

fn hosts(hosts: &[IpAddr]) -> Outcome<Vec<IpAddr>> {
    if hosts.len() > Tap::HOSTS_MAX {
        return Err(
            Failure::new(format!("at most {} addresses of an interface's traffic", Tap::HOSTS_MAX)).code(2)
        );
    }
    Ok(hosts.to_vec())
}

#[cfg(test)]
mod tests;
