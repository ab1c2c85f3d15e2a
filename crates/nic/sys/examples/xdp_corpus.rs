//! Loads the XDP programs of object files into the kernel and into the user-space machine, and runs both on
//! the same packets. Prints one line per program: whether each place takes it, and what differs.
//!
//! With `XDP_SPEED` in the environment it measures both instead of giving remarks. `bench/corpus DIR`
//! builds it, adds the result of libbpf, and makes the table of docs/xdp.md. Needs root.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bpf::object::{Candidate, FILE_MAX, Kernel, candidates};
use bpf::vm::{Env, Image, Machine, Replay, XdpBuff};
use bpf::{Helper, Insn, Map, MapKind, Program, ProgramKind, insn::decode_all};
use roxie_sys as sys;
use sys::bpf as kernel;

/// The kernel's test frame: a page without the part that it reserves at the end (`struct
/// skb_shared_info`, rounded up), and the headroom in front of the packet.
const LINEAR_LEN: usize = 4096 - 320;
const HEADROOM: usize = 256;
/// Index of `lo`, the receiving interface of test frames.
const LO: u32 = 1;

/// Services of the host. Time is that of the kernel within milliseconds.
struct Host;

impl Env for Host {
    fn ktime_ns(&mut self) -> u64 {
        sys::now_ns()
    }

    fn random(&mut self) -> u32 {
        4
    }

    fn mtu(&mut self, ifindex: u32) -> Option<u32> {
        (ifindex == LO).then_some(65536)
    }
}

fn main() {
    let mut paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    paths.sort();
    let types = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    let config = std::env::var("KERNEL_CONFIG").ok().and_then(|path| std::fs::read_to_string(path).ok());
    let cpus = std::thread::available_parallelism().ok().map(|cpus| cpus.get() as u32);
    let kernel = Kernel { types: types.as_deref(), version: version(), config: config.as_deref(), cpus };
    println!("object\tprogram\tkernel\tmachine\tpackets\tremarks");
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match read(&path).and_then(|file| candidates(&file, &kernel).map_err(|error| error.to_string())) {
            Ok(found) => {
                found.into_iter().filter(|one| one.kind.is_some()).for_each(|one| report(&name, one));
            }
            Err(why) => println!("{name}\t-\tno\tno\t-\t{}", one_line(&why)),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::read(path).map_err(|error| error.to_string())?;
    if file.len() as u64 > FILE_MAX { Err("too long".to_owned()) } else { Ok(file) }
}

fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines.len().saturating_sub(4);
    // The verifier's reason is at the end of its log.
    if lines.len() <= 5 { lines.join(" | ") } else { format!("{} | {}", lines[0], lines[last..].join(" | ")) }
}

/// Loads and runs one program; prints its line.
fn report(object: &str, candidate: Candidate) {
    let name = &candidate.name;
    let mut program = match candidate.program {
        Ok(program) => program,
        Err(why) => return println!("{object}\t{name}\tno\tno\t-\t{}", one_line(&why.to_string())),
    };
    // Maps with the contents of other programs cannot be compared.
    program.maps.iter_mut().for_each(|map| map.pinned = false);
    program.tails.iter_mut().flat_map(|tail| &mut tail.maps).for_each(|map| map.pinned = false);
    let ifindex = std::env::var("XDP_IFINDEX").ok().and_then(|index| index.parse().ok());
    let mut remarks = String::new();
    let theirs = kernel::Program::load_for(&program, ifindex)
        .map_err(|error| remarks = format!("kernel: {}", one_line(&error.to_string())));
    let ours = machine(&program).map_err(|error| {
        let _fits = write!(remarks, "{}machine: {error}", if remarks.is_empty() { "" } else { "; " });
    });
    let says = |loads: bool| if loads { "yes" } else { "no" };
    let packets = match (&theirs, &ours) {
        (Ok((theirs, maps)), Ok((image, own))) if program.kind == ProgramKind::Xdp => {
            let result = compare(&program, theirs, maps, image, own);
            if std::env::var_os("XDP_SPEED").is_some() {
                remarks = speed(theirs, image);
            }
            result
        }
        _ => "-".to_owned(),
    };
    println!("{object}\t{name}\t{}\t{}\t{packets}\t{remarks}", says(theirs.is_ok()), says(ours.is_ok()));
}

fn machine(program: &Program) -> Result<(Image, Vec<Arc<Map>>), String> {
    let new = |def| Map::new(def, 2).map_err(|error| format!("map {}: {error}", def.name));
    let maps: Vec<_> = program.maps.iter().map(new).collect::<Result<_, _>>()?;
    let image = Image::new(program, maps.clone()).map_err(|error| error.to_string())?;
    let fatal = bpf::vet::vet(program).into_iter().find(bpf::vet::Objection::is_fatal);
    fatal.map_or(Ok((image, maps)), |objection| Err(objection.to_string()))
}

/// Runs both on all packets. Returns `same`, or the first difference.
fn compare(
    program: &Program,
    theirs: &kernel::Program,
    their_maps: &[kernel::Map],
    image: &Image,
    maps: &[Arc<Map>],
) -> String {
    let mut machine = Machine::new(0);
    let mut verdicts = Vec::new();
    for (about, packet) in packets() {
        let run = kernel::TestRun { packet: &packet, repeat: 1, ..kernel::TestRun::default() };
        let outcome = match theirs.test_run(&run) {
            Ok(outcome) => outcome,
            Err(error) => return format!("test run: {error}"),
        };
        let mut buffer = vec![0; LINEAR_LEN];
        buffer[HEADROOM..HEADROOM + packet.len()].copy_from_slice(&packet);
        let Some(mut buff) = XdpBuff::new(&mut buffer, HEADROOM..HEADROOM + packet.len()) else { continue };
        buff.ingress_ifindex = LO;
        let own = machine.run(image, &mut buff, &mut Host);
        if let Some(fault) = own.fault {
            return format!("differs: {about}: {fault}");
        }
        if own.returned != outcome.verdict {
            return format!("differs: {about}: verdict {} here, {} there", own.returned, outcome.verdict);
        }
        if [buff.metadata(), buff.packet()].concat() != outcome.packet && !has_time(program) {
            return format!("differs: {about}: bytes");
        }
        verdicts.push(own.returned);
    }
    match map_difference(program, their_maps, maps) {
        Some(_) if has_time(program) => "same (maps have times)".to_owned(),
        Some(map) => format!("differs: map {map}"),
        None => "same".to_owned(),
    }
}

/// Measures a run on the UDP packet in each place, in nanoseconds: the least of several rounds.
fn speed(theirs: &kernel::Program, image: &Image) -> String {
    const RUNS: u32 = 200_000;
    const ROUNDS: u32 = 5;
    let packets = packets();
    let Some((_, packet)) = packets.iter().find(|(about, _)| *about == "UDP") else { return String::new() };
    let mut best = [f64::INFINITY; 3];
    let (mut machine, mut replay) = (Machine::new(0), Replay::default());
    let mut buffer = vec![0; LINEAR_LEN];
    for _ in 0..ROUNDS {
        let run = kernel::TestRun { packet, repeat: RUNS, ..kernel::TestRun::default() };
        let Ok(outcome) = theirs.test_run(&run) else { return String::new() };
        best[0] = best[0].min(f64::from(outcome.duration_ns));
        for (place, replays) in [(1, false), (2, true)] {
            let begun = sys::now_ns();
            for _ in 0..RUNS {
                buffer[HEADROOM..HEADROOM + packet.len()].copy_from_slice(packet);
                let buff = XdpBuff::new(&mut buffer, HEADROOM..HEADROOM + packet.len());
                let Some(mut buff) = buff else { return String::new() };
                let buff = std::hint::black_box(&mut buff);
                std::hint::black_box(if replays {
                    machine.run_or_replay(image, &mut replay, buff, &mut Host)
                } else {
                    machine.run(image, buff, &mut Host)
                });
            }
            best[place] = best[place].min((sys::now_ns() - begun) as f64 / f64::from(RUNS));
        }
    }
    let [kernel, run, replayed] = best;
    format!("kernel {kernel:.0} ns, machine {run:.0} ns, replayed {replayed:.0} ns")
}

/// Whether results may depend on the time, the CPU or chance.
fn has_time(program: &Program) -> bool {
    let insns = decode_all(&program.slots).unwrap_or_default();
    insns.iter().any(|(_, insn)| match insn {
        Insn::CallHelper { id } => matches!(
            Helper::from_id(*id),
            Some(
                Helper::KtimeGetNs
                    | Helper::KtimeGetBootNs
                    | Helper::KtimeGetCoarseNs
                    | Helper::KtimeGetTaiNs
                    | Helper::Jiffies64
                    | Helper::GetPrandomU32
                    | Helper::GetSmpProcessorId
            )
        ),
        _ => false,
    })
}

/// Returns the name of a map with other contents.
fn map_difference(program: &Program, theirs: &[kernel::Map], ours: &[Arc<Map>]) -> Option<String> {
    for ((def, theirs), ours) in program.maps.iter().zip(theirs).zip(ours) {
        let is_table = matches!(
            def.kind,
            MapKind::Array
                | MapKind::PercpuArray
                | MapKind::Hash
                | MapKind::PercpuHash
                | MapKind::LruHash
                | MapKind::LruPercpuHash
                | MapKind::LpmTrie
        );
        if !is_table || def.max_entries > 1 << 16 {
            continue;
        }
        let mut key = vec![0; def.key_size as usize];
        let mut last: Option<Vec<u8>> = None;
        let mut count = 0;
        while theirs.next_key(last.as_deref(), &mut key).ok()? {
            let mut value = vec![0; theirs.value_size()];
            if !theirs.lookup(&key, &mut value).ok()? {
                break;
            }
            let own = ours.lookup(&key).unwrap_or_default();
            if sums(def.value_size, &own) != sums(def.value_size, &value) {
                if std::env::var_os("XDP_VERBOSE").is_some() {
                    eprintln!("{}: {} key {key:02x?}: {own:02x?}, {value:02x?}", program.name, def.name);
                }
                return Some(def.name.clone());
            }
            count += 1;
            last = Some(key.clone());
        }
        if count != ours.keys().len() {
            return Some(def.name.clone());
        }
    }
    None
}

/// Adds the words of all CPUs.
fn sums(value_size: u32, value: &[u8]) -> Vec<u64> {
    let len = (value_size as usize).next_multiple_of(8);
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

/// Packets of the protocols that the programs parse.
fn packets() -> Vec<(&'static str, Vec<u8>)> {
    let ethernet = |tags: &[u16], ethertype: u16, rest: &[u8]| {
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for tag in tags {
            packet.extend([0x81, 0x00]);
            packet.extend(tag.to_be_bytes());
        }
        packet.extend(ethertype.to_be_bytes());
        packet.extend(rest);
        packet.resize(packet.len().max(60), 0);
        packet
    };
    let v4 = |protocol: u8, payload: &[u8]| {
        let len = (20 + payload.len()) as u16;
        let mut ip = vec![0x45, 0, (len >> 8) as u8, len as u8, 0, 1, 0x40, 0, 64, protocol, 0, 0];
        ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum::<u32>();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        ip.extend(payload);
        ip
    };
    let v6 = |next: u8, payload: &[u8]| {
        let len = payload.len() as u16;
        let mut ip = vec![0x60, 0, 0, 0, (len >> 8) as u8, len as u8, next, 64];
        ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        ip.extend(payload);
        ip
    };
    let tcp = |flags: u8| {
        let mut tcp = vec![0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
        tcp.extend([0x55; 32]);
        tcp
    };
    let udp = |port: u16, len: usize| {
        let total = (8 + len) as u16;
        let mut udp = vec![0x9c, 0x40, (port >> 8) as u8, port as u8, (total >> 8) as u8, total as u8, 0, 0];
        udp.extend((0..len).map(|at| at as u8));
        udp
    };
    let echo = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
    let echo6 = [128, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8];
    vec![
        ("ARP", ethernet(&[], 0x0806, &[0, 1, 8, 0, 6, 4, 0, 1])),
        ("ping", ethernet(&[], 0x0800, &v4(1, &echo))),
        ("ping6", ethernet(&[], 0x86dd, &v6(58, &echo6))),
        ("TCP SYN", ethernet(&[], 0x0800, &v4(6, &tcp(2)))),
        ("TCP ACK", ethernet(&[], 0x0800, &v4(6, &tcp(0x10)))),
        ("TCP6", ethernet(&[], 0x86dd, &v6(6, &tcp(0x18)))),
        ("UDP", ethernet(&[], 0x0800, &v4(17, &udp(53, 40)))),
        ("UDP 9", ethernet(&[], 0x0800, &v4(17, &udp(9, 400)))),
        ("UDP6", ethernet(&[], 0x86dd, &v6(17, &udp(53, 40)))),
        ("RoCE", ethernet(&[], 0x0800, &v4(17, &udp(4791, 64)))),
        ("UDP 1400", ethernet(&[], 0x0800, &v4(17, &udp(4321, 1400)))),
        ("VLAN", ethernet(&[5], 0x0800, &v4(1, &echo))),
        ("two VLANs", ethernet(&[5, 6], 0x0800, &v4(17, &udp(53, 40)))),
        ("IP in IP", ethernet(&[], 0x0800, &v4(4, &v4(6, &tcp(2))))),
        ("GUE", ethernet(&[], 0x0800, &v4(17, &[&udp(9886, 0)[..], &v4(6, &tcp(2))].concat()))),
        ("cut IP", ethernet(&[], 0x0800, &[0x45, 0, 0, 40])[..18].to_vec()),
        ("zeros", vec![0; 60]),
        ("again", ethernet(&[], 0x0800, &v4(17, &udp(53, 40)))),
    ]
}

/// `LINUX_VERSION_CODE` of the running kernel.
fn version() -> Option<u32> {
    Kernel::version_of(&std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}
