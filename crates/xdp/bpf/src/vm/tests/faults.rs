//! Tests of faults, and of programs that are rejected before they run.

use super::*;
use crate::insn::{Imm64, Insn, Operand, Slot, Width};
use crate::{AluOp, AtomicOp, Cond, Helper, MapDef, MapKind, ProgramKind, Size, XdpAction};

fn fault(emit: impl FnOnce(&mut Asm)) -> Fault {
    let (outcome, _) = Loaded::asm(emit).run(&[0; 64]);
    assert_eq!((outcome.action(), outcome.redirect), (XdpAction::Aborted, None));
    outcome.fault.expect("the machine ends the program with a fault")
}

fn access(emit: impl FnOnce(&mut Asm)) -> u64 {
    match fault(emit).kind {
        FaultKind::Access { address } => address,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_packet_can_be_read_to_its_last_byte_but_not_beyond() {
    let read = |off: i16, size| {
        Loaded::asm(move |asm| {
            asm.load(Size::W, Reg::R2, Reg::R1, 0).load(size, Reg::R0, Reg::R2, off).exit();
        })
        .run(&[1; 64])
        .0
    };
    assert_eq!(read(63, Size::B).returned, 1);
    assert_eq!(read(60, Size::W).returned, 0x0101_0101);
    for (off, size) in [(64, Size::B), (63, Size::H), (61, Size::W), (57, Size::Dw), (-1, Size::B)] {
        assert!(matches!(read(off, size).fault.unwrap().kind, FaultKind::Access { .. }), "{off} {size:?}");
    }
}

#[test]
fn addresses_outside_all_windows_fault() {
    for address in [0, 1, 4095, 0x0101_0000, 0x0500_0000, 0x1000_0000, 0xffff_ffff, 1 << 32, u64::MAX - 3] {
        assert_eq!(
            access(|asm| {
                asm.load_imm64(Reg::R1, address).load(Size::W, Reg::R0, Reg::R1, 0).exit();
            }),
            address
        );
        assert_eq!(
            access(|asm| {
                asm.load_imm64(Reg::R1, address).store(Size::W, Reg::R1, 0, 0).exit();
            }),
            address
        );
    }
    // The context can only be read in whole fields, and the handle of a map is not the address of its value.
    for (off, size) in [(0, Size::B), (0, Size::Dw), (2, Size::W), (24, Size::W)] {
        access(|asm| {
            asm.load(size, Reg::R0, Reg::R1, off).exit();
        });
    }
    access(|asm| {
        asm.store(Size::W, Reg::R1, 0, 0).exit();
    });
    access(|asm| {
        let map = asm.map(MapDef::array("m", 8, 1));
        asm.load_map(Reg::R1, map).load(Size::W, Reg::R0, Reg::R1, 0).exit();
    });
    access(|asm| {
        asm.load(Size::Dw, Reg::R0, Reg::R10, 512 * 7).exit();
    });
}

#[test]
fn an_access_beyond_the_last_map_value_faults() {
    let read = |off: i16| {
        move |asm: &mut Asm| {
            let map = asm.map(MapDef::array("m", 8, 1));
            asm.load_map_value(Reg::R1, map, 0).load(Size::W, Reg::R0, Reg::R1, off).exit();
        }
    };
    Loaded::asm(read(4)).returns();
    access(read(5));
    access(read(-1));
}

#[test]
fn a_write_to_constant_data_faults() {
    let mut constant = MapDef::array(".rodata", 8, 1);
    (constant.flags, constant.frozen) = (MapDef::RDONLY_PROG, true);
    let def = constant.clone();
    access(|asm| {
        let map = asm.map(def);
        asm.load_map_value(Reg::R1, map, 0).store(Size::W, Reg::R1, 0, 1).exit();
    });
    access(|asm| {
        let map = asm.map(constant);
        asm.load_map_value(Reg::R1, map, 0);
        asm.atomic(Width::W64, AtomicOp::Add { fetch: false }, Reg::R1, 0, Reg::R2).exit();
    });
}

#[test]
fn unaligned_atomics_and_atomics_on_packets_fault() {
    access(|asm| {
        let map = asm.map(MapDef::array("m", 16, 1));
        asm.load_map_value(Reg::R1, map, 4);
        asm.atomic(Width::W64, AtomicOp::Add { fetch: false }, Reg::R1, 0, Reg::R2).exit();
    });
    access(|asm| {
        asm.load(Size::W, Reg::R1, Reg::R1, 0);
        asm.atomic(Width::W32, AtomicOp::Add { fetch: false }, Reg::R1, 0, Reg::R2).exit();
    });
}

#[test]
fn an_endless_program_exceeds_its_budget() {
    let endless = fault(|asm| {
        let again = asm.label();
        asm.bind(again).add(Reg::R0, 1).jump(again).exit();
    });
    assert_eq!((endless.slot, endless.kind), (1, FaultKind::Budget));
    // Eight levels of functions that each call the next a hundred times run practically without end.
    let tree = fault(|asm| {
        let functions: Vec<_> = (0..7).map(|level| asm.declare(&format!("f{level}"), 0)).collect();
        for level in 0..8 {
            if level > 0 {
                asm.function(functions[level - 1]);
            }
            if let Some(&next) = functions.get(level) {
                for _ in 0..100 {
                    asm.call_function(next);
                }
            }
            asm.exit();
        }
    });
    assert_eq!(tree.kind, FaultKind::Budget);
    let deep = fault(|asm| {
        let again = asm.declare("again", 0);
        asm.call_function(again).exit();
        asm.function(again).call_function(again).exit();
    });
    assert_eq!(deep.kind, FaultKind::CallDepth);
}

#[test]
fn a_loop_within_the_budget_runs_to_its_end() {
    let mut sum = Loaded::asm(|asm| {
        let again = asm.label();
        asm.mov(Reg::R0, 0).mov(Reg::R1, 1000);
        asm.bind(again).add(Reg::R0, Reg::R1).alu(AluOp::Sub, Reg::R1, 1);
        asm.branch(Cond::Ne, Reg::R1, 0, again).exit();
    });
    assert_eq!(sum.returns(), 500_500);
    sum.machine = Machine::new(0).with_budget(2000);
    let (outcome, _) = sum.run(&[0; 64]);
    assert_eq!(outcome.fault.unwrap().kind, FaultKind::Budget);
}

#[test]
fn helper_arguments_that_the_verifier_rejects_are_faults() {
    for helper in [Helper::MapLookupElem, Helper::RedirectMap, Helper::RingbufReserve, Helper::XdpAdjustHead]
    {
        let kind = fault(|asm| {
            asm.mov(Reg::R1, 5).mov(Reg::R2, 0).call(helper).exit();
        })
        .kind;
        assert_eq!(kind, FaultKind::Argument, "{helper:?}");
    }
    // A lookup in a ring, a redirect into an array, a key at an invalid address, an update of a device map.
    let with = |def: MapDef, helper: Helper| {
        fault(|asm| {
            let map = asm.map(def);
            asm.load_map(Reg::R1, map).mov(Reg::R2, 64).mov(Reg::R3, 0).call(helper).exit();
        })
        .kind
    };
    assert_eq!(with(MapDef::array("m", 8, 1), Helper::RedirectMap), FaultKind::Argument);
    assert_eq!(with(MapDef::array("m", 8, 1), Helper::RingbufReserve), FaultKind::Argument);
    assert_eq!(with(MapDef::array("m", 8, 1), Helper::MapLookupElem), FaultKind::Access { address: 64 });
    assert_eq!(with(MapDef::devmap("m", 8), Helper::MapUpdateElem), FaultKind::Argument);
    assert_eq!(with(MapDef::ringbuf("m", 4096), Helper::RingbufSubmit), FaultKind::Argument);
}

fn refused(slots: &[Insn]) -> LoadErrorKind {
    let mut asm = Asm::new("refused");
    asm.map(MapDef::array("m", 8, 1));
    for &insn in slots {
        asm.insn(insn);
    }
    let program = asm.finish().unwrap();
    let maps = program.maps.iter().map(|def| Map::new(def, 1).unwrap()).collect();
    Image::new(&program, maps).unwrap_err().kind
}

#[test]
fn programs_whose_execution_could_leave_the_code_are_refused() {
    let mov = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R0, src: Operand::Imm(0) };
    let wide = |imm| Insn::LoadImm64 { dst: Reg::R1, imm };
    assert_eq!(refused(&[mov]), LoadErrorKind::NoExit);
    assert_eq!(refused(&[Insn::Jump { off: 1 }, Insn::Exit]), LoadErrorKind::Target);
    assert_eq!(refused(&[Insn::Jump { off: -2 }, Insn::Exit]), LoadErrorKind::Target);
    assert_eq!(refused(&[Insn::JumpLong { off: i32::MAX }, Insn::Exit]), LoadErrorKind::Target);
    assert_eq!(refused(&[Insn::Jump { off: 1 }, wide(Imm64::Value(0)), Insn::Exit]), LoadErrorKind::Target);
    assert_eq!(refused(&[Insn::CallLocal { off: 1 }, Insn::Exit]), LoadErrorKind::Target);
    // From one function into another, by a jump and by falling through.
    let across = [Insn::CallLocal { off: 1 }, Insn::Exit, Insn::Jump { off: -2 }];
    assert_eq!(refused(&across), LoadErrorKind::Target);
    assert_eq!(refused(&[Insn::CallLocal { off: 0 }, Insn::Exit]), LoadErrorKind::NoExit);
}

#[test]
fn unavailable_helpers_are_refused_by_name() {
    let r10 = Insn::Alu { width: Width::W64, op: AluOp::Add, dst: Reg::R10, src: Operand::Imm(8) };
    assert_eq!(refused(&[r10, Insn::Exit]), LoadErrorKind::WritesFramePointer);
    let wide = |imm| [Insn::LoadImm64 { dst: Reg::R1, imm }, Insn::Exit];
    assert_eq!(refused(&wide(Imm64::Map(1))), LoadErrorKind::Map);
    assert_eq!(refused(&wide(Imm64::MapValue { map: 0, off: 8 })), LoadErrorKind::Map);
    assert_eq!(refused(&wide(Imm64::Func(7))), LoadErrorKind::Target);
    for imm in [Imm64::MapFd(3), Imm64::BtfId { id: 1, btf_fd: 0 }] {
        assert_eq!(refused(&wide(imm)), LoadErrorKind::Unsupported);
    }
    assert_eq!(refused(&[Insn::CallKfunc { id: 1, btf: 0 }, Insn::Exit]), LoadErrorKind::Unsupported);
    let call = |id| LoadError { slot: 4, kind: refused(&[Insn::CallHelper { id }, Insn::Exit]) }.to_string();
    assert_eq!(call(Helper::SkbLoadBytes.id()), "slot 4: helper bpf_skb_load_bytes is not available here");
    assert_eq!(call(110), "slot 4: helper bpf_tcp_gen_syncookie is not available here");
    assert_eq!(call(169), "slot 4: helper bpf_timer_init is not available here");
    assert_eq!(call(9999), "slot 4: helper 9999 is not available here");
}

#[test]
fn the_maps_of_an_image_must_match_the_program_and_fit() {
    let program = crate::Recipe::steer(4791, 1).program("p", ProgramKind::Xdp).unwrap();
    assert_eq!(Image::new(&program, Vec::new()).unwrap_err().kind, LoadErrorKind::NumberOfMaps);
    let big = Map::new(&MapDef::new("big", MapKind::Array, 4, 1 << 20, 1 << 8), 1).unwrap();
    let mut asm = Asm::new("big");
    for number in 0..16 {
        asm.map(MapDef { name: format!("big{number}"), ..big.def().clone() });
    }
    asm.ret(XdpAction::Pass);
    let program = asm.finish().unwrap();
    let kind = Image::new(&program, vec![big; 16]).unwrap_err().kind;
    assert_eq!(kind, LoadErrorKind::MapsTooLarge);
    let empty = Program { slots: Vec::<Slot>::new(), maps: Vec::new(), ..program };
    assert_eq!(Image::new(&empty, Vec::new()).unwrap_err().kind, LoadErrorKind::Empty);
}
