//! Tests of replays: the same verdicts and the same maps as with runs.

use proptest::prelude::*;

use super::*;
use crate::{AluOp, AtomicOp, Cond, Helper, Label, MapDef, Size, Width, XdpAction, XdpMd};

/// One program twice: one image runs on every packet, the other is replayed where possible.
pub(super) struct Twins {
    run: Image,
    replayed: Image,
    replay: Replay,
}

impl Twins {
    pub(super) fn new(program: &Program) -> Option<Twins> {
        let image = || {
            let maps = program.maps.iter().map(|def| Map::new(def, 2).unwrap()).collect();
            Image::new(program, maps).ok()
        };
        Some(Twins { run: image()?, replayed: image()?, replay: Replay::default() })
    }

    /// Returns the verdict on a packet. Panics if verdict, packet or maps of both images differ.
    pub(super) fn judge(&mut self, packet: &[u8]) -> u32 {
        let replay = &mut self.replay;
        let run = once(packet, |buff| machine().run(&self.run, buff, &mut Host::default()));
        let replayed =
            once(packet, |buff| machine().run_or_replay(&self.replayed, replay, buff, &mut Host::default()));
        assert_eq!(run, replayed);
        self.compare_maps();
        run.0.returned
    }

    fn compare_maps(&self) {
        for (a, b) in self.run.maps.iter().zip(&self.replayed.maps) {
            assert_eq!(a.keys(), b.keys());
            for key in a.keys() {
                assert_eq!(a.lookup(&key), b.lookup(&key), "{}", a.def().name);
            }
        }
    }
}

/// Returns a new machine for each packet, because a program may read stack bytes of earlier runs.
fn machine() -> Machine {
    Machine::new(1).with_budget(10_000)
}

fn once(packet: &[u8], run: impl FnOnce(&mut XdpBuff<'_>) -> Outcome) -> (Outcome, Vec<u8>, bool) {
    let mut buffer = vec![0; 600];
    let (head, rest) = packet.split_at(packet.len().min(100));
    buffer[HEADROOM..HEADROOM + head.len()].copy_from_slice(head);
    let buff = XdpBuff::new(&mut buffer, HEADROOM..HEADROOM + head.len()).unwrap();
    let mut buff = buff.with_rest(rest).unwrap();
    let outcome = run(&mut buff);
    buff.fetch_rest();
    (outcome, buff.packet().to_vec(), buff.is_changed())
}

/// A program in which R8 is the value of entry 1 of a map with two values of 24 bytes, R7 is the packet, and
/// R1 to R5 are 0.
fn counting(def: MapDef, emit: impl FnOnce(&mut Asm)) -> Program {
    let mut asm = Asm::new("counting");
    let (map, none) = (asm.map(def), asm.label());
    asm.mov(Reg::R6, Reg::R1).load_ctx(Reg::R7, Reg::R6, XdpMd::Data);
    asm.store(Size::W, Reg::R10, -4, 1).mov(Reg::R2, Reg::R10).add(Reg::R2, -4);
    asm.load_map(Reg::R1, map).call(Helper::MapLookupElem).mov(Reg::R8, Reg::R0);
    for register in [Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5] {
        asm.mov(register, 0);
    }
    asm.branch(Cond::Eq, Reg::R8, 0, none);
    emit(&mut asm);
    asm.bind(none).ret(XdpAction::Pass);
    asm.finish().unwrap()
}

fn twins(emit: impl FnOnce(&mut Asm)) -> Twins {
    Twins::new(&counting(MapDef::percpu_array("counters", 24, 2), emit)).unwrap()
}

const PASS: u32 = XdpAction::Pass as u32;
const DROP: u32 = XdpAction::Drop as u32;

#[test]
fn a_program_that_only_counts_is_replayed() {
    let mut twins = twins(|asm| {
        asm.load(Size::Dw, Reg::R1, Reg::R8, 0).add(Reg::R1, 1).store(Size::Dw, Reg::R8, 0, Reg::R1);
        asm.load_ctx(Reg::R2, Reg::R6, XdpMd::DataEnd).alu(AluOp::Sub, Reg::R2, Reg::R7);
        asm.load(Size::Dw, Reg::R1, Reg::R8, 8).add(Reg::R2, Reg::R1).store(Size::Dw, Reg::R8, 8, Reg::R2);
        asm.mov(Reg::R3, 3).atomic(Width::W32, AtomicOp::Add { fetch: false }, Reg::R8, 20, Reg::R3);
    });
    for len in [64, 64, 64, 300, 64, 300, 301] {
        assert_eq!(twins.judge(&vec![0; len]), PASS);
        assert_eq!(twins.replay.foresee(HEADROOM), Some(PASS), "the program has read no byte");
    }
    // Repeating many effects at once equals many single packets.
    twins.replay.repeat(&twins.replayed, 1000);
    for _ in 0..1000 {
        once(&[0; 301], |buff| Machine::new(1).run(&twins.run, buff, &mut Host::default()));
    }
    assert_eq!(twins.judge(&[0; 301]), PASS);
}

#[test]
fn a_replay_requires_equal_bytes_where_the_program_read() {
    let mut twins = twins(|asm| {
        let other = asm.label();
        asm.load(Size::B, Reg::R1, Reg::R7, 20)
            .branch(Cond::Ne, Reg::R1, 7, other)
            .ret(XdpAction::Drop)
            .bind(other);
    });
    let (mut seven, mut elsewhere) = ([0; 64], [0; 64]);
    (seven[20], elsewhere[21]) = (7, 7);
    for _ in 0..3 {
        assert_eq!([twins.judge(&seven), twins.judge(&[0; 64]), twins.judge(&elsewhere)], [DROP, PASS, PASS]);
    }
    assert_eq!(twins.replay.foresee(HEADROOM + 20), None);
    assert_eq!(twins.replay.foresee(HEADROOM + 21), Some(PASS));
}

/// The sixth packet is the first to be dropped, whether the first five were run or replayed.
#[test]
fn a_counter_that_the_program_tests_is_a_guard() {
    let mut twins = twins(|asm| {
        let many = asm.label();
        asm.load(Size::Dw, Reg::R1, Reg::R8, 0).add(Reg::R1, 1).store(Size::Dw, Reg::R8, 0, Reg::R1);
        asm.branch(Cond::Gt, Reg::R1, 5, many).ret(XdpAction::Pass).bind(many).ret(XdpAction::Drop);
    });
    let verdicts: Vec<u32> = (0..60).map(|_| twins.judge(&[0; 64])).collect();
    assert!(verdicts.iter().enumerate().all(|(i, &verdict)| verdict == if i < 5 { PASS } else { DROP }));
}

#[test]
fn programs_with_time_random_numbers_or_packet_changes_are_not_replayed() {
    for helper in [Helper::KtimeGetNs, Helper::GetPrandomU32] {
        let mut twins = twins(|asm| {
            asm.call(helper);
        });
        assert_eq!([twins.judge(&[0; 64]), twins.judge(&[0; 64])], [PASS; 2]);
        assert_eq!(twins.replay.foresee(HEADROOM), None);
    }
    let mut twins = twins(|asm| {
        asm.store(Size::B, Reg::R7, 0, 1);
    });
    assert_eq!([twins.judge(&[0; 64]), twins.judge(&[0; 64])], [PASS; 2]);
    assert_eq!(twins.replay.foresee(600), None);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The three instructions that update a counter.
    Count(Size, Width, u8, i16, i32),
    Load(Size, u8, i16),
    LoadPacket(Size, u8, i16),
    Store(Size, i16, u8),
    StoreImm(Size, i16, i32),
    Spill(u8),
    Fill(u8),
    Alu(Width, AluOp, u8, u8),
    AluImm(Width, AluOp, u8, i32),
    Atomic(Width, i16, u8),
    Skip(Cond, u8, i32),
}

fn step() -> impl Strategy<Value = Step> {
    let register = || 1_u8..4;
    let size = || prop::sample::select(vec![Size::W, Size::Dw, Size::Dw, Size::B]);
    let at = || prop::sample::select(vec![0_i16, 0, 4, 8]);
    let width = || prop::sample::select(vec![Width::W32, Width::W64, Width::W64]);
    let alu = || prop::sample::select(vec![AluOp::Add, AluOp::Add, AluOp::Sub, AluOp::Mov, AluOp::Xor]);
    let cond = prop::sample::select(vec![Cond::Eq, Cond::Ne, Cond::Gt, Cond::SLt]);
    prop_oneof![
        8 => (size(), width(), register(), at(), -2_i32..5)
            .prop_map(|(size, width, by, at, imm)| Step::Count(size, width, by, at, imm)),
        4 => (size(), register(), at()).prop_map(|(size, to, at)| Step::Load(size, to, at)),
        2 => (size(), register(), 0_i16..60).prop_map(|(size, to, at)| Step::LoadPacket(size, to, at)),
        4 => (size(), at(), register()).prop_map(|(size, at, from)| Step::Store(size, at, from)),
        1 => (size(), at(), -3_i32..9).prop_map(|(size, at, imm)| Step::StoreImm(size, at, imm)),
        1 => register().prop_map(Step::Spill),
        1 => register().prop_map(Step::Fill),
        3 => (width(), alu(), register(), register()).prop_map(|(w, op, d, s)| Step::Alu(w, op, d, s)),
        3 => (width(), alu(), register(), -2_i32..5).prop_map(|(w, op, d, imm)| Step::AluImm(w, op, d, imm)),
        1 => (width(), at(), register()).prop_map(|(width, at, from)| Step::Atomic(width, at, from)),
        1 => (cond, register(), 0_i32..3).prop_map(|(cond, on, imm)| Step::Skip(cond, on, imm)),
    ]
}

fn emit(asm: &mut Asm, steps: &[Step], out: Label) {
    let register = |n: u8| [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5][usize::from(n)];
    for &step in steps {
        match step {
            Step::Count(size, width, by, at, imm) => {
                asm.load(size, register(by), Reg::R8, at);
                emit(asm, &[Step::AluImm(width, AluOp::Add, by, imm)], out);
                asm.store(size, Reg::R8, at, register(by))
            }
            Step::Load(size, to, at) => asm.load(size, register(to), Reg::R8, at),
            Step::LoadPacket(size, to, at) => asm.load(size, register(to), Reg::R7, at),
            Step::Store(size, at, from) => asm.store(size, Reg::R8, at, register(from)),
            Step::StoreImm(size, at, imm) => asm.store(size, Reg::R8, at, imm),
            Step::Spill(from) => asm.store(Size::Dw, Reg::R10, -16, register(from)),
            Step::Fill(to) => asm.load(Size::Dw, register(to), Reg::R10, -16),
            Step::Alu(Width::W64, op, d, s) => asm.alu(op, register(d), register(s)),
            Step::Alu(Width::W32, op, d, s) => asm.alu32(op, register(d), register(s)),
            Step::AluImm(Width::W64, op, d, imm) => asm.alu(op, register(d), imm),
            Step::AluImm(Width::W32, op, d, imm) => asm.alu32(op, register(d), imm),
            Step::Atomic(width, at, from) => {
                asm.atomic(width, AtomicOp::Add { fetch: false }, Reg::R8, at, register(from))
            }
            Step::Skip(cond, on, imm) => asm.branch(cond, register(on), imm, out),
        };
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_counting_programs_agree_with_and_without_replay(
        steps in prop::collection::vec(step(), 1..8),
        packets in prop::collection::vec(0_usize..3, 1..24),
    ) {
        let program = counting(MapDef::array("counters", 24, 2), |asm| {
            let out = asm.label();
            emit(asm, &steps, out);
            asm.mov(Reg::R0, Reg::R1).exit().bind(out).ret(XdpAction::Drop);
        });
        let mut twins = Twins::new(&program).expect("the machine accepts the program");
        let mut kinds = [[0; 64]; 3];
        (kinds[1][5], kinds[2][40]) = (1, 2);
        for packet in packets {
            let verdict = twins.judge(&kinds[packet]);
            // Three more packets like the last one.
            if let Some(foreseen) = twins.replay.foresee(HEADROOM + 64) {
                prop_assert_eq!(foreseen, verdict);
                twins.replay.repeat(&twins.replayed, 3);
                for _ in 0..3 {
                    let run = |buff: &mut XdpBuff<'_>| machine().run(&twins.run, buff, &mut Host::default());
                    prop_assert_eq!(once(&kinds[packet], run).0.returned, verdict);
                }
                twins.compare_maps();
            }
        }
    }
}
