//! One program loaded twice: in the kernel, and in roxie's machine, each with maps of its own.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bpf::vm::{Env, Image, Machine, XdpBuff};
use bpf::{Map, MapKind, Program, XdpAction};
use sys::bpf as kernel;

use crate::failure::{Failure, Outcome};

/// The kernel's test frame: a page without the part that it reserves at the end (`struct skb_shared_info`,
/// rounded up).
const LINEAR_LEN: usize = 4096 - 320;
const HEADROOM: usize = 256;
/// Bytes of each further fragment.
const FRAGMENT_LEN: usize = 4096;
/// The receiving interface of test frames is `lo`.
const LO: u32 = 1;
/// Largest map that is compared after each packet; larger ones are compared at the end, but arrays as far
/// as a run touches them.
pub(super) const ENTRIES_EACH: u32 = 4096;
/// Values of a per-CPU map; one of them is used.
const CPUS: u32 = 1;

/// The program in both places.
pub(super) struct Twins {
    program: Program,
    kernel: kernel::Program,
    kernel_maps: Vec<kernel::Map>,
    rings: Vec<Option<kernel::RingReader>>,
    image: Image,
    maps: Vec<Arc<Map>>,
    machine: Machine,
    /// Array entries that the last run in the machine looked up or updated.
    touched: Vec<(usize, Range<u32>)>,
    /// The program asks for receive hints, which are absent in both places.
    pub(super) lacks_hints: bool,
}

/// What a run did to a packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Done {
    pub(super) verdict: u32,
    pub(super) packet: Vec<u8>,
    /// Why the machine ended the program.
    pub(super) fault: Option<String>,
}

/// A packet's results.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Results {
    pub(super) kernel: Done,
    pub(super) machine: Done,
}

/// An entry or record that is not the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct MapDifference {
    pub(super) map: String,
    pub(super) key: Option<Vec<u8>>,
    pub(super) kernel: Option<Vec<u8>>,
    pub(super) machine: Option<Vec<u8>>,
}

/// The clock and random numbers of this machine. Both differ from those that the kernel's run sees.
struct World;

impl Env for World {
    fn ktime_ns(&mut self) -> u64 {
        sys::now_ns()
    }

    fn random(&mut self) -> u32 {
        sys::random_u64() as u32
    }
}

impl Twins {
    /// Loads the program in both places.
    pub(super) fn new(program: Program) -> Outcome<Twins> {
        let lacks_hints = program.is_device_bound();
        let program = if lacks_hints { program.without_hints() } else { program };
        let (kernel, kernel_maps) = super::super::attach::load(&program, None)?;
        let refused = |error: &dyn std::fmt::Display| {
            Failure::new(format!("{}: roxie's machine refuses it: {error}", program.name)).code(NOT_COMPARED)
        };
        let maps = program.maps.iter().map(|def| Map::new(def, CPUS).map_err(|error| (def, error)));
        let maps: Vec<_> = maps
            .collect::<Result<_, _>>()
            .map_err(|(def, error)| refused(&format!("map {}: {error}", def.name)))?;
        let image = Image::new(&program, maps.clone()).map_err(|error| refused(&error))?;
        let rings = kernel_maps
            .iter()
            .map(|map| (map.kind() == MapKind::Ringbuf).then(|| kernel::RingReader::new(map)).transpose())
            .collect::<io::Result<_>>()
            .map_err(|error| Failure::new(format!("ring buffer: {error}")).code(NOT_COMPARED))?;
        let (machine, touched) = (Machine::new(0), Vec::new());
        Ok(Twins { program, kernel, kernel_maps, rings, image, maps, machine, touched, lacks_hints })
    }

    /// Runs both on a packet. `None` if the kernel takes no packet of this length.
    pub(super) fn run(&mut self, packet: &[u8]) -> Outcome<Option<Results>> {
        let run = kernel::TestRun { packet, repeat: 1, ..kernel::TestRun::default() };
        let theirs = match self.kernel.test_run(&run) {
            Ok(theirs) => theirs,
            Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => return Ok(None),
            Err(error) => {
                return Err(Failure::new(format!("BPF_PROG_TEST_RUN: {error}")).code(NOT_COMPARED));
            }
        };
        let mut frame = Frame::new(packet);
        let (outcome, bytes) = frame.with(|buff| {
            self.touched.clear();
            let outcome = self.machine.run_noting(&self.image, buff, &mut World, &mut self.touched);
            (outcome, [buff.metadata(), buff.packet()].concat())
        });
        let machine = Done {
            verdict: outcome.returned,
            packet: [bytes, frame.rest()].concat(),
            fault: outcome.fault.map(|fault| {
                let line = self.program.listing().line(fault.slot as usize);
                format!("{fault} ({line})")
            }),
        };
        let kernel = Done { verdict: theirs.verdict, packet: theirs.packet, fault: None };
        Ok(Some(Results { kernel, machine }))
    }

    /// Nanoseconds of the kernel for one packet: the mean of `repeat` runs.
    pub(super) fn kernel_ns(&self, packet: &[u8], repeat: u32) -> io::Result<f64> {
        let run = kernel::TestRun { packet, repeat, ..kernel::TestRun::default() };
        self.kernel.test_run(&run).map(|outcome| f64::from(outcome.duration_ns))
    }

    /// Nanoseconds of the machine for one packet: the mean of `repeat` runs, or of replays where it may use
    /// the result of an earlier packet.
    pub(super) fn machine_ns(&mut self, packet: &[u8], repeat: u32, may_replay: bool) -> f64 {
        let mut frame = Frame::new(packet);
        let mut replay = bpf::vm::Replay::default();
        frame.with(|buff| {
            // The first runs are recorded.
            for _ in 0..64 {
                let _recorded = self.machine.run_or_replay(&self.image, &mut replay, buff, &mut World);
            }
            let start = sys::now_ns();
            for _ in 0..repeat {
                let outcome = if may_replay {
                    self.machine.run_or_replay(&self.image, &mut replay, buff, &mut World)
                } else {
                    self.machine.run(&self.image, buff, &mut World)
                };
                std::hint::black_box(outcome);
            }
            (sys::now_ns() - start) as f64 / f64::from(repeat)
        })
    }

    /// The maps that cannot be compared, with the reason.
    pub(super) fn not_compared(&self) -> Vec<(String, &'static str)> {
        let maps = self.program.maps.iter();
        maps.filter_map(|def| Some((def.name.clone(), obstacle(def.kind)?))).collect()
    }

    /// Compares the contents of all maps with at most `entries_max` entries, and of larger arrays the entries
    /// that the last run touched; returns at most `limit` differences.
    pub(super) fn compare_maps(&mut self, entries_max: u32, limit: usize) -> Outcome<Vec<MapDifference>> {
        let mut differences = Vec::new();
        for index in 0..self.maps.len() {
            let def = &self.program.maps[index];
            let failed =
                |error: io::Error| Failure::new(format!("map {}: {error}", def.name)).code(NOT_COMPARED);
            match def.kind {
                MapKind::Ringbuf => self.compare_ring(index, &mut differences),
                kind if obstacle(kind).is_some() || is_constant(kind) => {}
                MapKind::Array | MapKind::PercpuArray if def.max_entries > ENTRIES_EACH => {
                    let touched = self.touched.iter().filter(|(map, _)| *map == index);
                    let entries = touched.flat_map(|(_, entries)| entries.clone());
                    let keys =
                        entries.filter(|entry| *entry < def.max_entries).map(|entry| entry.to_ne_bytes());
                    let keys = keys.map(Vec::from).collect();
                    self.compare_keys(index, keys, &mut differences).map_err(failed)?;
                }
                _ if def.max_entries > entries_max => {}
                _ => {
                    let keys = self.all_keys(index).map_err(failed)?;
                    self.compare_keys(index, keys, &mut differences).map_err(failed)?;
                }
            }
            if differences.len() >= limit {
                break;
            }
        }
        differences.truncate(limit);
        Ok(differences)
    }

    fn compare_ring(&mut self, index: usize, out: &mut Vec<MapDifference>) {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        if let Some(ring) = &mut self.rings[index] {
            ring.read(usize::MAX, |record| theirs.push(record.to_vec()));
        }
        if let Some(ring) = self.maps[index].ring() {
            ring.consume(|record| ours.push(record.to_vec()));
        }
        for at in 0..theirs.len().max(ours.len()) {
            let (kernel, machine) = (theirs.get(at).cloned(), ours.get(at).cloned());
            if kernel != machine {
                let map = self.program.maps[index].name.clone();
                out.push(MapDifference { map, key: None, kernel, machine });
            }
        }
    }

    fn all_keys(&self, index: usize) -> io::Result<Vec<Vec<u8>>> {
        let kernel = &self.kernel_maps[index];
        let mut keys = self.maps[index].keys();
        let (mut key, mut next) = (None, vec![0; kernel.key_size()]);
        while kernel.next_key(key.as_deref(), &mut next)? {
            keys.push(next.clone());
            key = Some(next.clone());
        }
        Ok(keys)
    }

    fn compare_keys(
        &self,
        index: usize,
        mut keys: Vec<Vec<u8>>,
        out: &mut Vec<MapDifference>,
    ) -> io::Result<()> {
        let (def, kernel, ours) = (&self.program.maps[index], &self.kernel_maps[index], &self.maps[index]);
        keys.sort_unstable();
        keys.dedup();
        let len = def.value_size as usize;
        for key in keys {
            let mut value = vec![0; kernel.value_size()];
            let theirs = kernel.lookup(&key, &mut value)?.then_some(value);
            let mine = ours.lookup(&key);
            // One CPU ran the program in the kernel; its value is the one that is not zero.
            let one = |values: Vec<u8>| match def.kind.is_percpu() {
                true => values
                    .chunks(len.next_multiple_of(8))
                    .map(|one| one[..len].to_vec())
                    .find(|one| one.iter().any(|byte| *byte != 0))
                    .unwrap_or_else(|| vec![0; len]),
                false => values,
            };
            let (kernel, machine) = (theirs.map(one), mine.map(one));
            if kernel != machine {
                out.push(MapDifference { map: def.name.clone(), key: Some(key), kernel, machine });
            }
        }
        Ok(())
    }
}

/// Whether programs cannot change entries.
fn is_constant(kind: MapKind) -> bool {
    kind.holds_maps() || matches!(kind, MapKind::Devmap | MapKind::DevmapHash)
}

/// Why maps of a kind cannot be compared.
fn obstacle(kind: MapKind) -> Option<&'static str> {
    match kind {
        MapKind::ProgArray | MapKind::Xskmap => Some("the kernel does not show entries"),
        MapKind::Cpumap => Some("its CPUs are processes in the machine"),
        MapKind::PerfEventArray => Some("a perf event array is not opened"),
        MapKind::Queue | MapKind::Stack => Some("reading would remove entries"),
        _ => None,
    }
}

/// Exit code if the program could not be run in both places.
pub(super) const NOT_COMPARED: u8 = 2;

/// A packet in a buffer as the kernel's test frame.
struct Frame {
    buffer: Vec<u8>,
    len: usize,
    fragments: Vec<Vec<u8>>,
}

impl Frame {
    fn new(packet: &[u8]) -> Frame {
        let (linear, rest) = packet.split_at(packet.len().min(LINEAR_LEN - HEADROOM));
        let mut buffer = vec![0; LINEAR_LEN];
        buffer[HEADROOM..HEADROOM + linear.len()].copy_from_slice(linear);
        let fragments = rest.chunks(FRAGMENT_LEN).map(<[u8]>::to_vec).collect();
        Frame { buffer, len: linear.len(), fragments }
    }

    fn with<T>(&mut self, use_it: impl FnOnce(&mut XdpBuff<'_>) -> T) -> T {
        let mut slices: Vec<&mut [u8]> = self.fragments.iter_mut().map(|one| &mut one[..]).collect();
        let buff = XdpBuff::new(&mut self.buffer, HEADROOM..HEADROOM + self.len);
        // The range is within the buffer.
        let mut buff = buff.expect("a packet in its buffer").with_frags(&mut slices);
        buff.ingress_ifindex = LO;
        use_it(&mut buff)
    }

    fn rest(&self) -> Vec<u8> {
        self.fragments.concat()
    }
}

/// Name of a verdict.
pub(super) fn verdict_name(number: u32) -> String {
    XdpAction::from_number(number).map_or_else(|| number.to_string(), |action| action.to_string())
}
