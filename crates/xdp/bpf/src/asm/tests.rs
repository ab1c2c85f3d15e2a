//! Tests of the assembler: labels, functions, maps, and its errors.

use super::super::*;
use crate::insn::decode_all;
use crate::{AluOp, Cond, Helper, Insn, MapKind, Reg, XdpAction};

#[test]
fn jump_distances_count_both_slots_of_a_64_bit_load() {
    let mut asm = Asm::new("jumps");
    let map = asm.map(MapDef::array("m", 4, 1));
    let (back, out) = (asm.label(), asm.label());
    asm.bind(back).branch(Cond::Eq, Reg::R1, 0, out).load_map(Reg::R1, map).jump(back);
    asm.bind(out).ret(XdpAction::Pass);
    let program = asm.finish().unwrap();
    let insns: Vec<Insn> = decode_all(&program.slots).unwrap().into_iter().map(|(_, insn)| insn).collect();
    assert!(matches!(insns[0], Insn::Branch { off: 3, .. }));
    assert_eq!(insns[2], Insn::Jump { off: -4 });
    assert_eq!(program.map_slots().unwrap(), [(1, map)]);
}

#[test]
fn linking_replaces_map_indices_by_descriptors() {
    let mut asm = Asm::new("link");
    let first = asm.map(MapDef::array("first", 8, 1));
    let second = asm.map(MapDef::xskmap("second", 4));
    asm.load_map_value(Reg::R1, first, 16).load_map(Reg::R2, second).ret(XdpAction::Drop);
    let program = asm.finish().unwrap();
    let bytes = program.link(&[7, 9]).unwrap();
    assert_eq!(bytes.len(), 6 * Slot::LEN);
    assert_eq!(bytes[..16], [0x18, 0x21, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]);
    assert_eq!(bytes[16..32], [0x18, 0x12, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(program.link(&[7]), Err(LinkError::NoSuchMap(1)));
}

#[test]
fn functions_are_called_by_distance_and_have_type_information() {
    let mut asm = Asm::new("main");
    let twice = asm.declare("twice", 1);
    asm.mov(Reg::R1, 21).call_function(twice).exit();
    asm.function(twice).mov(Reg::R0, Reg::R1).alu(AluOp::Add, Reg::R0, Reg::R1).exit();
    let program = asm.finish().unwrap();
    assert_eq!(decode_all(&program.slots).unwrap()[1].1, Insn::CallLocal { off: 1 });
    let btf = program.btf.unwrap();
    assert_eq!(btf.func_info.iter().map(|info| info.slot).collect::<Vec<_>>(), [0, 3]);
    for name in ["main", "twice", "xdp_md", "rx_queue_index"] {
        assert!(btf.blob.windows(name.len() + 2).any(|s| s == format!("\0{name}\0").as_bytes()), "{name}");
    }
    let word = |at: usize| u32::from_le_bytes(btf.blob[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(24 + word(12) + word(20), btf.blob.len(), "the header states the length of the sections");
    assert_eq!(word(12), word(16), "strings follow the types");
}

#[test]
fn finish_reports_the_first_error() {
    let mut asm = Asm::new("x");
    let label = asm.label();
    asm.jump(label);
    assert_eq!(asm.clone().finish(), Err(AsmError::NotBound(label)));
    asm.bind(label).bind(label).map(MapDef::array("m", 4, 1));
    asm.map(MapDef::array("m", 8, 1));
    assert_eq!(asm.finish(), Err(AsmError::BoundTwice(label)));
    assert_eq!(Asm::new("x").finish(), Err(AsmError::Empty));

    let mut asm = Asm::new("x");
    let function = asm.declare("f", 0);
    asm.exit();
    assert_eq!(asm.finish(), Err(AsmError::NotDefined(function)));

    let mut asm = Asm::new("x");
    asm.map(MapDef::array("m", 4, 1));
    asm.map(MapDef::new("m", MapKind::Hash, 4, 4, 1));
    assert_eq!(asm.finish(), Err(AsmError::MapRedefined("m".to_owned())));
}

#[test]
fn a_jump_beyond_16_bits_is_an_error() {
    let mut asm = Asm::new("far");
    let out = asm.label();
    asm.jump(out);
    for _ in 0..40_000 {
        asm.call(Helper::KtimeGetNs);
    }
    asm.bind(out).ret(XdpAction::Pass);
    assert_eq!(asm.finish(), Err(AsmError::TooFar { slot: 0, distance: 40_000 }));
}
