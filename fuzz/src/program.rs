//! Fuzzes programs as they could come from an object file or over the control socket of hooks: they are
//! listed, vetted, loaded and run.
//!
//! Checked: no panic; a run ends; an unchanged packet has its original bytes; the result does not depend on
//! how much of the packet is in the buffer at first; a replay has the same result as a run.

use bpf::insn::decode;
use bpf::vet::vet;
use bpf::vm::{Env, Image, Machine, Outcome, Replay, XdpBuff};
use bpf::{Btf, Helper, Map, MapDef, MapKind, Program, ProgramKind, Slot};

use crate::draw::Draw;

const SLOTS_MAX: usize = 96;
/// Budget of a run, in operations.
const BUDGET: u64 = 4000;
const CPU: u32 = 1;
/// Offset of packets in the buffer: the kernel's headroom.
const HEADROOM: usize = 256;
const BUFFER_LEN: usize = 600;
/// The shortest packet is an Ethernet header.
const PACKET_MIN: usize = 14;
/// Number of packets per program for run and replay.
const PACKETS: u8 = 4;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let len = PACKET_MIN + draw.below(200) as usize;
    let split = PACKET_MIN + draw.below(len as u32) as usize;
    let btf = Btf { blob: draw.bytes(64).to_vec(), ..Btf::default() };
    let _named_or_not = btf.name_of(draw.below(8));
    let packet: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
    let program = program(draw);

    assert!(!program.listing().to_string().is_empty());
    for objection in vet(&program) {
        assert!(!objection.to_string().is_empty());
    }
    let Some(new) = image(&program) else { return };
    let whole = judge(&packet, len, |buff| machine().run(&new, buff, &mut World));
    let (outcome, after, is_changed) = &whole;
    assert!(outcome.fault.is_none() || outcome.returned == 0);
    assert!(*is_changed || *after == packet, "the packet changed but is not marked as changed");
    for map in &program.maps {
        let map = program.map(&map.name).and_then(|map| new.map(map));
        if let Some(ring) = map.and_then(|map| map.ring()) {
            ring.consume(|record| assert!(record.len() < u32::MAX as usize));
        }
    }
    let Some(new) = image(&program) else { return };
    let halves = judge(&packet, split.min(len), |buff| machine().run(&new, buff, &mut World));
    assert_eq!(whole, halves, "the result depends on where the end of the packet was stored");
    replay(&program, &packet);
}

/// Runs the same packets with one image and replays them with another.
fn replay(program: &Program, packet: &[u8]) {
    let (Some(run), Some(replayed)) = (image(program), image(program)) else { return };
    let mut replay = Replay::default();
    for number in 0..PACKETS {
        let mut packet = packet.to_vec();
        packet[12] ^= number & 1;
        let expected = judge(&packet, 100, |buff| machine().run(&run, buff, &mut World));
        let seen =
            judge(&packet, 100, |buff| machine().run_or_replay(&replayed, &mut replay, buff, &mut World));
        assert_eq!(expected, seen, "packet {number}");
    }
    for def in &program.maps {
        let map = program.map(&def.name);
        let of = |image: &Image| map.and_then(|map| image.map(map).cloned());
        let (Some(run), Some(replayed)) = (of(&run), of(&replayed)) else { continue };
        assert_eq!(run.keys(), replayed.keys(), "{}", def.name);
        for key in run.keys() {
            assert_eq!(run.lookup(&key), replayed.lookup(&key), "{}", def.name);
        }
    }
}

/// Returns outcome, packet and whether it was changed. Only the first `split` bytes of the packet are in the
/// buffer at first.
fn judge(
    packet: &[u8],
    split: usize,
    run: impl FnOnce(&mut XdpBuff<'_>) -> Outcome,
) -> (Outcome, Vec<u8>, bool) {
    let mut buffer = vec![0; BUFFER_LEN];
    let (head, rest) = packet.split_at(split.min(packet.len()));
    buffer[HEADROOM..HEADROOM + head.len()].copy_from_slice(head);
    let buff =
        XdpBuff::new(&mut buffer, HEADROOM..HEADROOM + head.len()).expect("the packet fits into the buffer");
    let mut buff = buff.with_rest(rest).expect("the packet fits into the buffer");
    let outcome = run(&mut buff);
    buff.fetch_rest();
    (outcome, buff.packet().to_vec(), buff.is_changed())
}

/// Returns a new machine, because stack bytes that a program has not written contain data of earlier runs.
fn machine() -> Machine {
    Machine::new(CPU).with_budget(BUDGET)
}

fn image(program: &Program) -> Option<Image> {
    let maps =
        program.maps.iter().map(|def| Map::new(def, CPU + 1).expect("the map definition is valid")).collect();
    Image::new(program, maps).ok()
}

/// Makes a program: loads of maps into registers, then arbitrary slots, then an exit.
fn program(mut draw: Draw<'_>) -> Program {
    let maps = maps();
    let mut slots = Vec::new();
    for _ in 0..draw.below(4) {
        let (dst, map) = (1 + draw.below(5) as u8, draw.below(maps.len() as u32) as i32);
        slots.extend([Slot { opcode: 0x18, dst, src: 5, imm: map, ..Slot::default() }, Slot::default()]);
    }
    // The context is saved, because calls clobber its register.
    slots.push(Slot { opcode: 0xbf, dst: 6, src: 1, ..Slot::default() });
    let repairs = !draw.one_in(4);
    let body = draw.rest().as_chunks().0;
    let len = body.len().min(SLOTS_MAX);
    for (at, bytes) in body[..len].iter().enumerate() {
        let slot = Slot::parse(bytes);
        slots.push(if repairs { repaired(slot, len - at) } else { slot });
    }
    slots.push(Slot { opcode: 0x95, ..Slot::default() });
    let (name, kind) = ("fuzz".to_owned(), ProgramKind::Xdp);
    Program { name, kind, slots, maps, license: String::new(), ..Program::default() }
}

fn maps() -> Vec<MapDef> {
    vec![
        MapDef::array("array", 16, 4),
        MapDef::new("hash", MapKind::LruHash, 4, 8, 4),
        MapDef::new("trie", MapKind::LpmTrie, 8, 4, 4),
        MapDef::ringbuf("ring", 4096),
        MapDef::xskmap("xsks", 4),
        MapDef::percpu_array("percpu", 12, 2),
    ]
}

/// Returns a similar instruction that decodes: unused fields are cleared, jumps lead forward to one of the
/// `left` slots after it, calls go to helpers that exist.
fn repaired(slot: Slot, left: usize) -> Slot {
    let jump = Slot { off: slot.off.rem_euclid(left as i16), ..slot };
    let helper = Helper::ALL[slot.imm.rem_euclid(Helper::ALL.len() as i32) as usize].id();
    let candidates = [
        jump,
        Slot { imm: 0, ..slot },
        Slot { src: 0, ..jump },
        Slot { src: 0, off: 0, ..slot },
        Slot { off: 0, imm: 0, ..slot },
        Slot { imm: 0, ..jump },
        Slot { dst: 0, src: 0, off: 0, imm: helper, ..slot },
        Slot { src: 0, off: 0, imm: 0, ..slot },
        Slot { src: 0, off: 0, imm: 16, ..slot },
    ];
    let fits = |slot: &&Slot| slot.opcode != 0x18 && decode(&[**slot], 0).is_ok();
    candidates.iter().find(fits).copied().unwrap_or(Slot {
        opcode: 0xb7,
        dst: slot.dst % 10,
        ..Slot::default()
    })
}

/// A host that returns constants.
struct World;

impl Env for World {
    fn ktime_ns(&mut self) -> u64 {
        7
    }

    fn random(&mut self) -> u32 {
        9
    }
}
