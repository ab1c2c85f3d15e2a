//! A program loaded in both places, with its own maps in each.

use std::sync::Arc;

use bpf::vm::{Env, Image, Machine, XdpBuff};
use bpf::{Map, MapDef, MapKind, Program, UpdateMode};
use sys::bpf as kernel;

/// The kernel's test frame: a page without the part that it reserves at the end (`struct
/// skb_shared_info`, rounded up).
const LINEAR_LEN: usize = 4096 - 320;
const HEADROOM: usize = 256;
/// Bytes of each further fragment.
const FRAGMENT_LEN: usize = 4096;
/// The default receiving interface of test frames is `lo`.
const LO: u32 = 1;

/// The program in both places.
pub(crate) struct Twins {
    pub(crate) program: Program,
    kernel: kernel::Program,
    kernel_maps: Vec<kernel::Map>,
    image: Image,
    maps: Vec<Arc<Map>>,
    machine: Machine,
    pub(crate) world: World,
    runs: u32,
}

/// The interpreter's environment. Its time stands still: a test takes milliseconds.
#[derive(Default)]
pub(crate) struct World {
    /// Answers route look-ups; without it, the answer is that of a host that does not forward.
    pub(crate) route: Option<fn(&mut [u8; 64]) -> i64>,
}

impl Env for World {
    fn ktime_ns(&mut self) -> u64 {
        1 << 40
    }

    fn random(&mut self) -> u32 {
        0
    }

    fn fib_lookup(&mut self, query: &mut [u8; 64]) -> i64 {
        self.route.map_or(5, |route| route(query))
    }
}

/// Prints a notice and returns false without the privilege.
pub(crate) fn possible() -> bool {
    let allowed = kernel::Map::create(&MapDef::devmap("probe", 1)).is_ok();
    if !allowed {
        println!("skipped: needs root");
    }
    allowed
}

impl Twins {
    /// Loads the program twice. The calling thread then stays on its CPU: a program may count packets per
    /// CPU.
    pub(crate) fn new(program: Program) -> Twins {
        sys::testing::stay_on_this_cpu();
        let (kernel, kernel_maps) = kernel::Program::load_with_maps(&program)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", program.name, program.listing()));
        let vetted = bpf::vet::vet(&program);
        assert_eq!(vetted, [], "{}: the kernel takes it\n{}", program.name, program.listing());
        // As many values as the kernel has CPUs; it does not matter which one is used.
        let maps: Vec<_> = program.maps.iter().map(|def| Map::new(def, 2).unwrap()).collect();
        let image =
            Image::new(&program, maps.clone()).unwrap_or_else(|error| panic!("{}: {error}", program.name));
        Twins {
            program,
            kernel,
            kernel_maps,
            image,
            maps,
            machine: Machine::new(0),
            world: World::default(),
            runs: 0,
        }
    }

    /// Puts the same entry into both maps; of per-CPU maps the value of one CPU, the others get zeros.
    pub(crate) fn fill(&self, map: &str, key: &[u8], value: &[u8]) {
        let index = self.program.map(map).unwrap_or_else(|| panic!("no map {map}")).index();
        let sized = |len: usize| {
            let mut value = value.to_vec();
            value.resize(len, 0);
            value
        };
        let kernel = &self.kernel_maps[index];
        kernel.update(key, &sized(kernel.value_size())).unwrap();
        let def = &self.program.maps[index];
        let len = def.value_size as usize;
        let len = if def.kind.is_percpu() { len.next_multiple_of(8) * 2 } else { len };
        self.maps[index].update(key, &sized(len), UpdateMode::Any).unwrap();
    }

    /// Runs both on the packet as received on `lo`.
    pub(crate) fn run(&mut self, packet: &[u8]) -> u32 {
        self.run_on(packet, LO)
    }

    /// Runs both on the packet as received on this interface; they must agree. Returns the verdict.
    pub(crate) fn run_on(&mut self, packet: &[u8], ifindex: u32) -> u32 {
        self.runs += 1;
        let context: Vec<u8> =
            [0, packet.len() as u32, 0, ifindex, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        let context = if ifindex == LO { &[][..] } else { &context };
        let run = kernel::TestRun { packet, context, repeat: 1, ..kernel::TestRun::default() };
        let theirs = self.kernel.test_run(&run).unwrap();

        let linear_len = packet.len().min(LINEAR_LEN - HEADROOM);
        let (linear, rest) = packet.split_at(linear_len);
        let mut buffer = vec![0; LINEAR_LEN];
        buffer[HEADROOM..HEADROOM + linear_len].copy_from_slice(linear);
        let mut fragments: Vec<Vec<u8>> = rest.chunks(FRAGMENT_LEN).map(<[u8]>::to_vec).collect();
        let mut slices: Vec<&mut [u8]> = fragments.iter_mut().map(|fragment| &mut fragment[..]).collect();
        let mut buff = XdpBuff::new(&mut buffer, HEADROOM..HEADROOM + linear_len).unwrap();
        buff = buff.with_frags(&mut slices);
        buff.ingress_ifindex = ifindex;
        let outcome = self.machine.run(&self.image, &mut buff, &mut self.world);
        let mut ours = [buff.metadata(), buff.packet()].concat();
        ours.extend(fragments.concat());

        let name = &self.program.name;
        let about = || format!("{name}, packet {}: {packet:02x?}\n{}", self.runs, self.program.listing());
        assert_eq!(outcome.fault, None, "{}", about());
        assert_eq!(outcome.returned, theirs.verdict, "verdicts, ours first; {}", about());
        assert_eq!(ours, theirs.packet, "bytes, ours first; {}", about());
        theirs.verdict
    }

    /// Requires that the contents of all maps are the same.
    pub(crate) fn compare_maps(&self) {
        for ((def, ours), theirs) in self.program.maps.iter().zip(&self.maps).zip(&self.kernel_maps) {
            let what = format!("{}: map {}, ours first", self.program.name, def.name);
            match def.kind {
                MapKind::Ringbuf => {
                    let mut records = Vec::new();
                    ours.ring().unwrap().consume(|record| records.push(record.to_vec()));
                    let theirs = ring_records(theirs);
                    assert_eq!(records.len(), theirs.len(), "{what}");
                    for (ours, theirs) in records.iter().zip(&theirs) {
                        assert_eq!(timeless(def, ours), timeless(def, theirs), "{what}");
                    }
                }
                // Their values are kernel objects, or they have no keys.
                kind if kind.is_sparse() || kind.holds_maps() => {}
                MapKind::DevmapHash | MapKind::Queue | MapKind::Stack | MapKind::BloomFilter => {}
                _ => assert_eq!(our_entries(def, ours), their_entries(def, theirs), "{what}"),
            }
        }
    }
}

/// Entries sorted by key; per-CPU values are summed word by word.
type Entries = Vec<(Vec<u8>, Vec<u64>)>;

fn our_entries(def: &MapDef, map: &Map) -> Entries {
    let entries = map.keys().into_iter().map(|key| {
        let value = map.lookup(&key).unwrap();
        (key, words(def, &value))
    });
    sorted(entries.collect())
}

fn their_entries(def: &MapDef, map: &kernel::Map) -> Entries {
    let mut entries = Vec::new();
    let mut key = vec![0; def.key_size as usize];
    let mut last: Option<Vec<u8>> = None;
    while map.next_key(last.as_deref(), &mut key).unwrap() {
        let mut value = vec![0; map.value_size()];
        assert!(map.lookup(&key, &mut value).unwrap());
        entries.push((significant(def, &key), words(def, &value)));
        last = Some(key.clone());
    }
    sorted(entries)
}

/// Clears the bits after a prefix: the kernel keeps them as they were given, the interpreter has zeros.
fn significant(def: &MapDef, key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    if let (MapKind::LpmTrie, Some((len, address))) = (def.kind, key.split_first_chunk_mut::<4>()) {
        let len = u32::from_le_bytes(*len) as usize;
        for (at, byte) in address.iter_mut().enumerate() {
            *byte &= !(0xff_u32 >> len.saturating_sub(at * 8).min(8)) as u8;
        }
    }
    key
}

/// Returns a record without its time.
fn timeless<'a>(def: &MapDef, record: &'a [u8]) -> &'a [u8] {
    if def.name == bpf::recipe::SAMPLES && record.len() > bpf::recipe::SampleHeader::LEN {
        &record[8..]
    } else {
        record
    }
}

fn sorted(mut entries: Entries) -> Entries {
    entries.sort();
    entries
}

fn words(def: &MapDef, value: &[u8]) -> Vec<u64> {
    let len = (def.value_size as usize).next_multiple_of(8);
    let mut sums = vec![0_u64; len / 8];
    for one in value.chunks(len) {
        for (sum, word) in sums.iter_mut().zip(one.chunks(8)) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            *sum = sum.wrapping_add(u64::from_le_bytes(padded));
        }
    }
    sums
}

fn ring_records(map: &kernel::Map) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    kernel::RingReader::new(map).unwrap().read(usize::MAX, |record| records.push(record.to_vec()));
    records
}
