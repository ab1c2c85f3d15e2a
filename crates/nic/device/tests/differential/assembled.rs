//! Assembled programs: composed of recipe blocks, or written directly for instructions that the blocks do
//! not use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bpf::recipe::{ACCESS, Access, Police, SLOTS, Sample};
use bpf::{
    Action, AluOp, Asm, AtomicOp, Cond, Helper, Insn, MapDef, MapKind, Pick, Program, ProgramKind, Recipe,
    Reg, Select, Size, Stage, Swap, Width, XdpAction,
};

use crate::packets::packet;
use crate::twins::{Twins, possible};
use roxie_tests::random::Rng;

const PACKETS: u32 = 400;

fn word(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

fn recipe(name: &str, recipe: &Recipe) -> Program {
    recipe.program(name, ProgramKind::Xdp).unwrap()
}

/// Runs the program on many packets, and expects each of these verdicts at least once.
fn agree(mut twins: Twins, seed: u64, seen: &[XdpAction]) {
    let mut rng = Rng(seed);
    let mut verdicts = [0; 5];
    for _ in 0..PACKETS {
        let verdict = twins.run(&packet(&mut rng));
        verdicts[verdict as usize] += 1;
    }
    twins.compare_maps();
    for action in seen {
        assert!(verdicts[action.number() as usize] > 0, "{}: no {action}: {verdicts:?}", twins.program.name);
    }
}

fn slots(twins: &Twins) {
    for slot in [0, 1, 3] {
        twins.fill(SLOTS, &word(slot), &word(1));
    }
}

fn redirect(target: bpf::recipe::Target, pick: Pick, miss: XdpAction) -> Action {
    Action::Redirect { target, entries: 8, pick, miss }
}

#[test]
fn kernel_and_interpreter_agree_on_constant_verdicts() {
    if !possible() {
        return;
    }
    for action in [XdpAction::Aborted, XdpAction::Drop, XdpAction::Pass, XdpAction::Tx] {
        agree(Twins::new(recipe("verdict", &Recipe::verdict(action))), 1, &[action]);
        let counted = Recipe { counters: true, ..Recipe::verdict(action) };
        agree(Twins::new(recipe("counted", &counted)), 2, &[action]);
    }
}

/// Without a socket in the map all packets pass, which shows little. With another verdict for a miss, the
/// test shows which packets would be redirected.
#[test]
fn kernel_and_interpreter_agree_on_steering_programs() {
    if !possible() {
        return;
    }
    use bpf::recipe::Target;
    let steer = Recipe::steer(4791, 8);
    for counters in [false, true] {
        for select in [Select::Ip, Select::Roce { port: 4791 }] {
            let stages = if select == Select::Ip { Vec::new() } else { vec![Stage::Owned] };
            let action = redirect(Target::Xsk, Pick::RxQueue, XdpAction::Tx);
            let recipe_ = Recipe { select, stages, counters, action, frags: counters };
            let twins = Twins::new(recipe("steer", &recipe_));
            if select != Select::Ip {
                slots(&twins);
            }
            agree(twins, 3, &[XdpAction::Pass, XdpAction::Tx]);
        }
    }
    let spread = [Pick::Qpn { ways: 5 }, Pick::RxQueueQpn { ways: 8 }, Pick::Fixed(2)];
    for (target, map) in [(Target::Cpu, "cpus"), (Target::Dev, "devs")] {
        for pick in spread {
            let action = redirect(target, pick, XdpAction::Drop);
            let twins = Twins::new(recipe("spread", &Recipe { action, stages: Vec::new(), ..steer.clone() }));
            // Queue length of CPU 0 and 1, or interface 1; the other entries stay empty.
            for key in if target == Target::Cpu { [0, 1] } else { [2, 4] } {
                twins.fill(map, &word(key), &1_u64.to_le_bytes());
            }
            agree(twins, 4, &[XdpAction::Pass]);
        }
    }
}

#[test]
fn kernel_and_interpreter_agree_on_reflecting_programs() {
    if !possible() {
        return;
    }
    for counters in [false, true] {
        for select in [Select::All, Select::Ip, Select::Roce { port: 4791 }] {
            let reflect =
                Recipe { select, counters, action: Action::Reflect, ..Recipe::verdict(XdpAction::Pass) };
            agree(Twins::new(recipe("reflect", &reflect)), 5, &[XdpAction::Tx]);
        }
    }
}

#[test]
fn kernel_and_interpreter_agree_on_access_lists() {
    if !possible() {
        return;
    }
    for default_allow in [false, true] {
        let stages = vec![Stage::Access(Access { default_allow, entries: 16 })];
        let access = Recipe { select: Select::Ip, stages, counters: true, ..Recipe::verdict(XdpAction::Tx) };
        let twins = Twins::new(recipe("access", &access));
        for (address, len, allow) in [
            (IpAddr::V4(Ipv4Addr::new(10, 1, 0, 0)), 24, false),
            (IpAddr::V4(Ipv4Addr::new(10, 1, 0, 0)), 30, true),
            (IpAddr::V4(Ipv4Addr::new(10, 1, 0, 77)), 32, true),
            (IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 0)), 121, true),
            (IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2)), 128, false),
        ] {
            twins.fill(ACCESS, &Access::key(address, len), &word(allow.into()));
        }
        agree(twins, 6, &[XdpAction::Pass, XdpAction::Tx, XdpAction::Drop]);
    }
}

/// Two packets of each source are passed, the third is not, if it arrives within three seconds.
#[test]
fn kernel_and_interpreter_agree_on_rate_limits() {
    if !possible() {
        return;
    }
    let stages = vec![Stage::Police(Police { bytes_per_s: 1024, burst_bytes: 7000, entries: 64 })];
    let police = Recipe { select: Select::Ip, stages, ..Recipe::verdict(XdpAction::Tx) };
    let mut twins = Twins::new(recipe("police", &police));
    let mut rng = Rng(7);
    let mut sources = std::collections::HashMap::new();
    for _ in 0..60 {
        let mut packet = packet(&mut rng);
        packet.resize(3400, 0);
        // Padding does not hide the source: untagged IPv4 only.
        if packet[12..14] != [8, 0] || packet[14] < 0x45 || packet[14] > 0x4f {
            continue;
        }
        let seen = sources.entry(packet[26..30].to_vec()).or_insert(0);
        *seen += 1;
        let expected = if *seen <= 2 { XdpAction::Tx } else { XdpAction::Drop };
        assert_eq!(twins.run(&packet), expected.number(), "{:?}", &packet[26..30]);
    }
    assert!(sources.values().any(|&seen| seen > 2));
}

/// Records are compared except for their times.
#[test]
fn kernel_and_interpreter_agree_on_samples() {
    if !possible() {
        return;
    }
    let sample = Sample { snap_len: 100, every: 3, ring_bytes: 1 << 15, wakeup_bytes: 1 << 10 };
    let stages = vec![Stage::Sample(sample)];
    let sampled = Recipe { select: Select::Ip, stages, counters: true, ..Recipe::verdict(XdpAction::Drop) };
    agree(Twins::new(recipe("sample", &sampled)), 8, &[XdpAction::Drop, XdpAction::Pass]);
}

/// On a host that does not forward, or to an interface that is no port, all packets pass unchanged.
#[test]
fn kernel_and_interpreter_agree_on_forwarding_without_routes() {
    if !possible() {
        return;
    }
    let forward = Recipe { action: Action::Forward { ports: 4 }, ..Recipe::verdict(XdpAction::Pass) };
    agree(Twins::new(recipe("forward", &forward)), 9, &[XdpAction::Pass]);
}

/// All of instruction set version 4 and the atomics, on values that are unknown to the verifier.
#[test]
fn kernel_and_interpreter_agree_on_instruction_set_version_4() {
    if !possible() {
        return;
    }
    let mut asm = Asm::new("newest");
    let values = asm.map(MapDef::array("values", 160, 1));
    let (near, end) = (asm.label(), asm.label());
    asm.load_map_value(Reg::R9, values, 0);
    asm.load_ctx(Reg::R2, Reg::R1, bpf::XdpMd::Data).load_ctx(Reg::R3, Reg::R1, bpf::XdpMd::DataEnd);
    asm.mov(Reg::R0, 2).need(Reg::R4, Reg::R2, 32, Reg::R3, end);
    asm.load(Size::Dw, Reg::R6, Reg::R2, 0).load(Size::Dw, Reg::R7, Reg::R2, 6);
    let mut slot = 0;
    let mut keep = |asm: &mut Asm, reg: Reg| {
        asm.load(Size::Dw, Reg::R1, Reg::R9, slot).alu(AluOp::Xor, reg, Reg::R1);
        asm.store(Size::Dw, Reg::R9, slot, reg);
        slot += 8;
    };
    for (width, op) in [
        (Width::W64, AluOp::SDiv),
        (Width::W64, AluOp::SMod),
        (Width::W32, AluOp::SDiv),
        (Width::W32, AluOp::SMod),
    ] {
        asm.mov(Reg::R8, Reg::R6);
        asm.insn(Insn::Alu { width, op, dst: Reg::R8, src: Reg::R7.into() });
        keep(&mut asm, Reg::R8);
        asm.mov(Reg::R8, Reg::R6).insn(Insn::Alu { width, op, dst: Reg::R8, src: (-3).into() });
        keep(&mut asm, Reg::R8);
    }
    for (width, from) in
        [(Width::W64, Size::B), (Width::W64, Size::H), (Width::W64, Size::W), (Width::W32, Size::B)]
    {
        asm.insn(Insn::MovSx { width, from, dst: Reg::R8, src: Reg::R6 });
        keep(&mut asm, Reg::R8);
    }
    for size in [Size::H, Size::W, Size::Dw] {
        asm.mov(Reg::R8, Reg::R7).insn(Insn::Swap { to: Swap::Always, size, dst: Reg::R8 });
        keep(&mut asm, Reg::R8);
    }
    for size in [Size::B, Size::H, Size::W] {
        asm.insn(Insn::Load { size, signed: true, dst: Reg::R8, base: Reg::R2, off: 3 });
        keep(&mut asm, Reg::R8);
    }
    // Over the two instructions of `near` and `end`.
    asm.insn(Insn::JumpLong { off: 2 });
    asm.bind(near).mov(Reg::R0, 3);
    asm.bind(end).exit();
    asm.mov(Reg::R0, 1).branch32(Cond::SGt, Reg::R6, Reg::R7, near).exit();
    agree(Twins::new(asm.finish().unwrap()), 10, &[XdpAction::Drop, XdpAction::Pass, XdpAction::Tx]);
}

#[test]
fn kernel_and_interpreter_agree_on_atomic_operations() {
    if !possible() {
        return;
    }
    let fetching = [true, false].into_iter().flat_map(|fetch| {
        [AtomicOp::Add { fetch }, AtomicOp::Or { fetch }, AtomicOp::And { fetch }, AtomicOp::Xor { fetch }]
    });
    for op in fetching.chain([AtomicOp::Xchg, AtomicOp::CmpXchg]) {
        for width in [Width::W32, Width::W64] {
            let mut asm = Asm::new("atomic");
            let values = asm.map(MapDef::array("values", 32, 1));
            let end = asm.label();
            asm.load_map_value(Reg::R9, values, 0);
            asm.load_ctx(Reg::R2, Reg::R1, bpf::XdpMd::Data).load_ctx(Reg::R3, Reg::R1, bpf::XdpMd::DataEnd);
            asm.mov(Reg::R0, 2).need(Reg::R4, Reg::R2, 32, Reg::R3, end);
            asm.load(Size::Dw, Reg::R6, Reg::R2, 3).load(Size::Dw, Reg::R0, Reg::R9, 0);
            // Sometimes the present value, so that a comparison succeeds.
            let other = asm.label();
            asm.branch(Cond::Set, Reg::R6, 0x100, other).load(Size::Dw, Reg::R0, Reg::R9, 8);
            asm.bind(other).atomic(width, op, Reg::R9, 0, Reg::R6);
            asm.store(Size::Dw, Reg::R9, 8, Reg::R6).store(Size::Dw, Reg::R9, 16, Reg::R0);
            // On the stack as well.
            asm.store(Size::Dw, Reg::R10, -8, Reg::R6).mov(Reg::R1, Reg::R10);
            asm.atomic(width, op, Reg::R1, -8, Reg::R6).load(Size::Dw, Reg::R1, Reg::R10, -8);
            asm.store(Size::Dw, Reg::R9, 24, Reg::R1).mov(Reg::R0, 1);
            asm.bind(end).exit();
            agree(Twins::new(asm.finish().unwrap()), 11, &[XdpAction::Drop, XdpAction::Pass]);
        }
    }
}

/// Helpers that move the edges of the packet, by amounts taken from it: mostly refused, with the same
/// error.
#[test]
fn kernel_and_interpreter_agree_on_moved_packet_edges() {
    if !possible() {
        return;
    }
    for helper in [Helper::XdpAdjustHead, Helper::XdpAdjustTail, Helper::XdpAdjustMeta] {
        let mut asm = Asm::new("edges");
        let results = asm.map(MapDef::array("results", 8, 1));
        let end = asm.label();
        asm.mov(Reg::R6, Reg::R1).load_map_value(Reg::R9, results, 0);
        asm.load_ctx(Reg::R2, Reg::R1, bpf::XdpMd::Data).load_ctx(Reg::R3, Reg::R1, bpf::XdpMd::DataEnd);
        asm.mov(Reg::R0, 2).need(Reg::R4, Reg::R2, 14, Reg::R3, end);
        // The address byte and a multiple of it: -512..=511, in steps of four half of the time.
        asm.load(Size::B, Reg::R7, Reg::R2, 5).load(Size::B, Reg::R1, Reg::R2, 11);
        asm.alu(AluOp::Mul, Reg::R7, Reg::R1).and(Reg::R7, 1023).alu(AluOp::Sub, Reg::R7, 512);
        for _ in 0..2 {
            asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, Reg::R7).call(helper);
            asm.load(Size::Dw, Reg::R1, Reg::R9, 0).alu(AluOp::Mul, Reg::R1, 31);
            asm.add(Reg::R1, Reg::R0).store(Size::Dw, Reg::R9, 0, Reg::R1);
        }
        asm.mov(Reg::R0, 1).bind(end).exit();
        agree(Twins::new(asm.finish().unwrap()), 12, &[XdpAction::Drop]);
    }
}

/// Updates and deletions with every flag, into maps that are soon full; what the helpers return goes into
/// another map.
#[test]
fn kernel_and_interpreter_agree_on_map_operations() {
    if !possible() {
        return;
    }
    for kind in [MapKind::Hash, MapKind::Array, MapKind::PercpuHash, MapKind::PercpuArray, MapKind::LpmTrie] {
        let mut asm = Asm::new("maps");
        let key_size = if kind == MapKind::LpmTrie { 8 } else { 4 };
        let table = asm.map(MapDef::new("table", kind, key_size, 8, 3));
        let results = asm.map(MapDef::array("results", 8, 1));
        let end = asm.label();
        asm.mov(Reg::R6, Reg::R1).load_map_value(Reg::R9, results, 0);
        asm.load_ctx(Reg::R2, Reg::R1, bpf::XdpMd::Data).load_ctx(Reg::R3, Reg::R1, bpf::XdpMd::DataEnd);
        asm.mov(Reg::R0, 2).need(Reg::R4, Reg::R2, 14, Reg::R3, end);
        // Key: a byte of the packet, 0..=7; of a trie also the length, up to 39.
        asm.load(Size::B, Reg::R7, Reg::R2, 5).load(Size::B, Reg::R8, Reg::R2, 11);
        asm.mov(Reg::R1, Reg::R7).and(Reg::R1, 7).store(Size::W, Reg::R10, -4, Reg::R1);
        asm.mov(Reg::R1, Reg::R8).alu(AluOp::Mod, Reg::R1, 40).store(Size::W, Reg::R10, -8, Reg::R1);
        asm.store(Size::Dw, Reg::R10, -16, Reg::R8);
        let key = -(key_size as i32);
        let keep = |asm: &mut Asm| {
            asm.load(Size::Dw, Reg::R1, Reg::R9, 0).alu(AluOp::Mul, Reg::R1, 31);
            asm.add(Reg::R1, Reg::R0).store(Size::Dw, Reg::R9, 0, Reg::R1);
        };
        let (delete, look) = (asm.label(), asm.label());
        asm.branch(Cond::Set, Reg::R8, 1, delete);
        asm.load_map(Reg::R1, table).mov(Reg::R2, Reg::R10).add(Reg::R2, key);
        asm.mov(Reg::R3, Reg::R10).add(Reg::R3, -16);
        // Flags 0 to 3, of which 3 is none.
        asm.mov(Reg::R4, Reg::R7).rsh(Reg::R4, 1).and(Reg::R4, 3).call(Helper::MapUpdateElem);
        keep(&mut asm);
        asm.jump(look).bind(delete);
        asm.load_map(Reg::R1, table).mov(Reg::R2, Reg::R10).add(Reg::R2, key).call(Helper::MapDeleteElem);
        keep(&mut asm);
        asm.bind(look).load_map(Reg::R1, table).mov(Reg::R2, Reg::R10).add(Reg::R2, key);
        asm.call(Helper::MapLookupElem).mov(Reg::R7, 1).branch(Cond::Eq, Reg::R0, 0, end);
        asm.load(Size::Dw, Reg::R0, Reg::R0, 0);
        keep(&mut asm);
        asm.mov(Reg::R0, 3).bind(end).exit();
        // A missing entry leaves 0 in R0: XDP_ABORTED.
        agree(Twins::new(asm.finish().unwrap()), 13, &[XdpAction::Tx]);
    }
}
