//! Tests of arithmetic, byte orders, comparisons and atomics.

use proptest::prelude::*;

use super::Loaded;
use crate::insn::{AluOp, AtomicOp, Cond, Insn, Operand, Reg, Size, Swap, Width};
use crate::{Asm, MapDef};

/// Returns R0 of a program that starts with R1 = a, R2 = b.
fn result(a: u64, b: u64, insns: &[Insn]) -> u64 {
    let mut loaded = Loaded::asm(|asm| {
        let map = asm.map(MapDef::array("out", 8, 1));
        asm.load_imm64(Reg::R1, a).load_imm64(Reg::R2, b);
        for &insn in insns {
            asm.insn(insn);
        }
        asm.load_map_value(Reg::R9, map, 0).store(Size::Dw, Reg::R9, 0, Reg::R0).exit();
    });
    loaded.returns();
    u64::from_le_bytes(loaded.map("out").lookup(&[0; 4]).unwrap().try_into().unwrap())
}

fn alu(width: Width, op: AluOp, a: u64, b: u64) -> u64 {
    let (dst, src) = (Reg::R1, Operand::Reg(Reg::R2));
    let copy = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R0, src: Operand::Reg(Reg::R1) };
    result(a, b, &[Insn::Alu { width, op, dst, src }, copy])
}

#[test]
fn arithmetic_follows_the_corner_cases_of_the_standard() {
    use AluOp::*;
    use Width::*;
    let min64 = i64::MIN as u64;
    for (width, op, a, b, expected) in [
        (W64, Div, 7, 0, 0),
        (W64, Mod, 7, 0, 7),
        (W32, Mod, 0xffff_ffff_0000_0007, 0, 7),
        (W32, Div, 0xffff_ffff_0000_0007, 2, 3),
        (W64, SDiv, min64, u64::MAX, min64),
        (W64, SMod, min64, u64::MAX, 0),
        (W64, SDiv, -7_i64 as u64, 2, -3_i64 as u64),
        (W64, SMod, -7_i64 as u64, 2, -1_i64 as u64),
        (W32, SDiv, 0x8000_0000, 0xffff_ffff, 0x8000_0000),
        (W32, SMod, -7_i32 as u32 as u64, 2, 0xffff_ffff),
        (W64, Lsh, 1, 65, 2),
        (W32, Lsh, 1, 33, 2),
        (W64, Arsh, min64, 63, u64::MAX),
        (W32, Arsh, 0x8000_0000, 31, 0xffff_ffff),
        (W32, Rsh, 0xffff_ffff_8000_0000, 31, 1),
        (W32, Mov, 0, 0xffff_ffff_ffff_ffff, 0xffff_ffff),
        (W64, Mul, 1 << 63, 2, 0),
        (W32, Sub, 0, 1, 0xffff_ffff),
    ] {
        assert_eq!(alu(width, op, a, b), expected, "{width:?} {op:?} {a:#x} {b:#x}");
    }
}

#[test]
fn immediates_are_sign_extended() {
    let add = |width| {
        [
            Insn::Alu { width, op: AluOp::Add, dst: Reg::R1, src: Operand::Imm(-1) },
            Insn::Alu { width: Width::W64, op: AluOp::Mov, dst: Reg::R0, src: Operand::Reg(Reg::R1) },
        ]
    };
    assert_eq!(result(0, 0, &add(Width::W64)), u64::MAX);
    assert_eq!(result(0, 0, &add(Width::W32)), 0xffff_ffff);
}

#[test]
fn sign_extensions_and_byte_swaps_follow_the_standard() {
    let (dst, src) = (Reg::R0, Reg::R1);
    let value = 0x0102_0304_8586_8788;
    let movsx = |width, from| result(value, 0, &[Insn::MovSx { width, from, dst, src }]);
    assert_eq!(movsx(Width::W64, Size::B), 0xffff_ffff_ffff_ff88);
    assert_eq!(movsx(Width::W64, Size::H), 0xffff_ffff_ffff_8788);
    assert_eq!(movsx(Width::W64, Size::W), 0xffff_ffff_8586_8788);
    assert_eq!(movsx(Width::W32, Size::B), 0xffff_ff88);
    assert_eq!(movsx(Width::W32, Size::H), 0xffff_8788);
    let copy = Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src: src.into() };
    let swap = |to, size| result(value, 0, &[copy, Insn::Swap { to, size, dst }]);
    for to in [Swap::ToBe, Swap::Always] {
        assert_eq!(swap(to, Size::H), 0x8887);
        assert_eq!(swap(to, Size::W), 0x8887_8685);
        assert_eq!(swap(to, Size::Dw), 0x8887_8685_0403_0201);
    }
    assert_eq!(swap(Swap::ToLe, Size::H), 0x8788);
    assert_eq!(swap(Swap::ToLe, Size::W), 0x8586_8788);
    assert_eq!(swap(Swap::ToLe, Size::Dw), value);
    assert_eq!(result(value, 0, &[Insn::Neg { width: Width::W64, dst: src }, copy]), value.wrapping_neg());
    let negated = u64::from((value as u32).wrapping_neg());
    assert_eq!(result(value, 0, &[Insn::Neg { width: Width::W32, dst: src }, copy]), negated);
}

/// Atomics on map values and on the stack, in both widths. The other half of the word is unchanged.
#[test]
fn atomics_change_and_return_only_their_half_of_the_word() {
    let run = |on_stack: bool, width, off: i16, op, operand: u64, r0: u64| {
        let mut loaded = Loaded::asm(|asm| {
            let map = asm.map(MapDef::array("v", 8, 1));
            let out = asm.map(MapDef::array("out", 24, 1));
            if on_stack {
                asm.mov(Reg::R6, Reg::R10).add(Reg::R6, -8);
            } else {
                asm.load_map_value(Reg::R6, map, 0);
            }
            asm.load_imm64(Reg::R1, 0x1111_1111_2222_2222).store(Size::Dw, Reg::R6, 0, Reg::R1);
            asm.load_imm64(Reg::R2, operand).load_imm64(Reg::R0, r0);
            asm.atomic(width, op, Reg::R6, off, Reg::R2);
            asm.load_map_value(Reg::R9, out, 0).store(Size::Dw, Reg::R9, 0, Reg::R0);
            asm.store(Size::Dw, Reg::R9, 8, Reg::R2).load(Size::Dw, Reg::R1, Reg::R6, 0);
            asm.store(Size::Dw, Reg::R9, 16, Reg::R1).exit();
        });
        loaded.returns();
        let out = loaded.map("out").lookup(&[0; 4]).unwrap();
        let word = |at: usize| u64::from_le_bytes(out[at..at + 8].try_into().unwrap());
        (word(0), word(8), word(16))
    };
    let old = 0x1111_1111_2222_2222;
    for stack in [false, true] {
        let add = |fetch| AtomicOp::Add { fetch };
        assert_eq!(run(stack, Width::W64, 0, add(false), 1, 9), (9, 1, old + 1));
        assert_eq!(run(stack, Width::W64, 0, add(true), 1, 9), (9, old, old + 1));
        let high = 0x1111_1110_2222_2222;
        assert_eq!(run(stack, Width::W32, 4, add(true), u64::MAX, 9), (9, 0x1111_1111, high));
        let or = AtomicOp::Or { fetch: true };
        assert_eq!(run(stack, Width::W32, 0, or, 0xf, 9), (9, 0x2222_2222, old | 0xf));
        let and = AtomicOp::And { fetch: false };
        assert_eq!(run(stack, Width::W64, 0, and, 0xff, 9), (9, 0xff, 0x22));
        let xor = AtomicOp::Xor { fetch: false };
        assert_eq!(run(stack, Width::W64, 0, xor, old, 9), (9, old, 0));
        assert_eq!(run(stack, Width::W64, 0, AtomicOp::Xchg, 5, 9), (9, old, 5));
        assert_eq!(run(stack, Width::W64, 0, AtomicOp::CmpXchg, 5, old), (old, 5, 5));
        assert_eq!(run(stack, Width::W64, 0, AtomicOp::CmpXchg, 5, 4), (old, 5, old));
        // Only the lower half of R0 is compared, and the result clears its upper half.
        let narrow = run(stack, Width::W32, 0, AtomicOp::CmpXchg, 5, 0xffff_ffff_2222_2222);
        assert_eq!(narrow, (0x2222_2222, 5, 0x1111_1111_0000_0005));
    }
}

#[test]
fn signed_loads_extend_the_sign() {
    for (size, expected) in [(Size::B, -2_i64), (Size::H, -2), (Size::W, 0x7fff_fffe)] {
        let mut loaded = Loaded::asm(|asm| {
            let out = asm.map(MapDef::array("out", 8, 1));
            asm.load_imm64(Reg::R1, 0xffff_ffff_7fff_fffe).store(Size::Dw, Reg::R10, -8, Reg::R1);
            asm.insn(Insn::Load { size, signed: true, dst: Reg::R1, base: Reg::R10, off: -8 });
            asm.load_map_value(Reg::R9, out, 0).store(Size::Dw, Reg::R9, 0, Reg::R1).exit();
        });
        loaded.returns();
        let out = loaded.map("out").lookup(&[0; 4]).unwrap();
        assert_eq!(i64::from_le_bytes(out.try_into().unwrap()), expected, "{size:?}");
    }
}

const CLASSIC: [AluOp; 12] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::Or,
    AluOp::And,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Mod,
    AluOp::Xor,
    AluOp::Mov,
    AluOp::Arsh,
];
const CONDS: [Cond; 11] = [
    Cond::Eq,
    Cond::Gt,
    Cond::Ge,
    Cond::Set,
    Cond::Ne,
    Cond::SGt,
    Cond::SGe,
    Cond::Lt,
    Cond::Le,
    Cond::SLt,
    Cond::SLe,
];

/// Numbers at which the results of operations change.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        any::<i8>().prop_map(|n| n as u64),
        Just(1 << 31),
        Just(1 << 63),
        Just(u64::from(u32::MAX))
    ]
}

/// One instruction on R0..R5 that rbpf supports too; branches skip up to three instructions.
fn insn() -> impl Strategy<Value = Insn> {
    let reg = || (0usize..6).prop_map(|number| Reg::ALL[number]);
    let width = || any::<bool>().prop_map(|wide| if wide { Width::W64 } else { Width::W32 });
    let operand =
        || prop_oneof![reg().prop_map(Operand::Reg), prop_oneof![any::<i32>(), -2..3].prop_map(Operand::Imm)];
    let alu = (width(), prop::sample::select(&CLASSIC[..]), reg(), operand());
    let branch = (width(), prop::sample::select(&CONDS[..]), reg(), operand(), 0i16..4);
    let swap = (any::<bool>(), prop::sample::select(vec![Size::H, Size::W, Size::Dw]), reg());
    prop_oneof![
        6 => alu.prop_map(|(width, op, dst, src)| {
            // The verifiers of the kernel and of rbpf reject constants that are never valid.
            let src = match (op, src) {
                (AluOp::Div | AluOp::Mod, Operand::Imm(0)) => Operand::Imm(1),
                // rbpf keeps the upper half if a 32-bit divisor is 0; RFC 9669 4.1 clears it.
                (AluOp::Mod, Operand::Reg(_)) if width == Width::W32 => Operand::Imm(7),
                (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(imm)) => Operand::Imm(imm & 31),
                (_, src) => src,
            };
            Insn::Alu { width, op, dst, src }
        }),
        2 => branch.prop_map(|(width, cond, dst, src, off)| {
            // rbpf does not sign-extend immediates of unsigned 64-bit comparisons; RFC 9669 5.4 does.
            let src = match (width, src) {
                (Width::W64, Operand::Imm(imm)) => Operand::Imm(imm & i32::MAX),
                (_, src) => src,
            };
            Insn::Branch { width, cond, dst, src, off }
        }),
        1 => swap.prop_map(|(be, size, dst)| {
            Insn::Swap { to: if be { Swap::ToBe } else { Swap::ToLe }, size, dst }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Straight code with forward branches gives the same sum of registers in this machine and in rbpf.
    #[test]
    fn the_machine_agrees_with_rbpf_on_random_code(
        start in prop::array::uniform6(number()),
        body in prop::collection::vec(insn(), 0..24),
    ) {
        let mut asm = Asm::new("same");
        for (number, value) in start.into_iter().enumerate() {
            asm.load_imm64(Reg::ALL[number], value);
        }
        for &insn in &body {
            asm.insn(insn);
        }
        // Targets of the last branches.
        for _ in 0..3 {
            asm.alu(AluOp::Add, Reg::R0, 1);
        }
        for number in 1..6 {
            asm.alu(AluOp::Xor, Reg::R0, Reg::ALL[number]).alu(AluOp::Mul, Reg::R0, 0x0100_01b3);
        }
        asm.mov(Reg::R1, Reg::R0).alu(AluOp::Rsh, Reg::R1, 32).alu(AluOp::Xor, Reg::R0, Reg::R1);
        asm.alu32(AluOp::Mov, Reg::R0, Reg::R0).exit();
        let program = asm.finish().unwrap();
        let bytes: Vec<u8> = program.slots.iter().flat_map(|slot| slot.to_bytes()).collect();
        let theirs = rbpf::EbpfVmNoData::new(Some(&bytes)).unwrap().execute_program().unwrap();
        let ours = Loaded::new(program).returns();
        prop_assert_eq!(u64::from(ours), theirs);
    }
}
