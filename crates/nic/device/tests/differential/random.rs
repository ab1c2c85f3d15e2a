//! Programs of random arithmetic: registers are loaded from the packet, so their values are unknown to
//! the verifier, and are stored in a map. The kernel runs the compiled form.

use bpf::{AluOp, Asm, Cond, Insn, Label, MapDef, Operand, Reg, Size, Swap, Width, XdpMd};

use crate::packets::packet;
use crate::twins::{Twins, possible};
use roxie_tests::random::Rng;

const PROGRAMS: u64 = 120;
const OPERATIONS: u64 = 60;

const ALU: [AluOp; 14] = [
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
    AluOp::SDiv,
    AluOp::SMod,
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

/// R0..R7; R8 and R9 hold pointers.
fn reg(rng: &mut Rng) -> Reg {
    Reg::ALL[rng.below(8)]
}

fn width(rng: &mut Rng) -> Width {
    rng.pick(&[Width::W32, Width::W64])
}

fn immediate(rng: &mut Rng) -> i32 {
    match rng.below(4) {
        0 => rng.next() as i32,
        1 => rng.below(9) as i32 - 4,
        2 => rng.pick(&[i32::MIN, i32::MAX, 0xffff, 0x8000, -0x8000]),
        _ => 1 << rng.below(31),
    }
}

fn operand(rng: &mut Rng) -> Operand {
    if rng.one_in(2) { reg(rng).into() } else { immediate(rng).into() }
}

/// Emits one instruction; the verifier refuses constants that are never valid.
fn operation(rng: &mut Rng, asm: &mut Asm, open: &mut Vec<(Label, u64)>) {
    let (width, dst) = (width(rng), reg(rng));
    match rng.below(10) {
        0 => {
            let cond = rng.pick(&CONDS);
            let label = asm.label();
            let src = operand(rng);
            match width {
                Width::W32 => asm.branch32(cond, dst, src, label),
                Width::W64 => asm.branch(cond, dst, src, label),
            };
            open.push((label, 1 + rng.below(5) as u64));
        }
        1 => {
            let to = rng.pick(&[Swap::ToLe, Swap::ToBe, Swap::Always]);
            let size = rng.pick(&[Size::H, Size::W, Size::Dw]);
            asm.insn(Insn::Swap { to, size, dst });
        }
        2 => {
            let from = match width {
                Width::W32 => rng.pick(&[Size::B, Size::H]),
                Width::W64 => rng.pick(&[Size::B, Size::H, Size::W]),
            };
            asm.insn(Insn::MovSx { width, from, dst, src: reg(rng) });
        }
        3 => {
            asm.insn(Insn::Neg { width, dst });
        }
        _ => {
            let op = rng.pick(&ALU);
            let bits = if width == Width::W64 { 64 } else { 32 };
            let src = match (op, operand(rng)) {
                (AluOp::Div | AluOp::Mod | AluOp::SDiv | AluOp::SMod, Operand::Imm(0)) => Operand::Imm(-1),
                (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(imm)) => {
                    Operand::Imm(imm.rem_euclid(bits))
                }
                (_, src) => src,
            };
            asm.insn(Insn::Alu { width, op, dst, src });
        }
    }
}

fn program(rng: &mut Rng) -> bpf::Program {
    let mut asm = Asm::new("random");
    let out = asm.map(MapDef::array("out", 64, 1));
    let short = asm.label();
    asm.load_ctx(Reg::R8, Reg::R1, XdpMd::Data).load_ctx(Reg::R2, Reg::R1, XdpMd::DataEnd);
    asm.mov(Reg::R0, 2).need(Reg::R3, Reg::R8, 40, Reg::R2, short).load_map_value(Reg::R9, out, 0);
    for number in 0..8 {
        let size = rng.pick(&[Size::B, Size::H, Size::W, Size::Dw]);
        asm.load(size, Reg::ALL[number], Reg::R8, rng.below(32) as i16);
    }
    let mut open: Vec<(Label, u64)> = Vec::new();
    for _ in 0..OPERATIONS {
        operation(rng, &mut asm, &mut open);
        for at in (0..open.len()).rev() {
            open[at].1 -= 1;
            if open[at].1 == 0 {
                let (label, _) = open.swap_remove(at);
                asm.bind(label);
            }
        }
    }
    for (label, _) in open {
        asm.bind(label);
    }
    for number in 0..8 {
        asm.store(Size::Dw, Reg::R9, number * 8, Reg::ALL[number as usize]);
    }
    asm.and(Reg::R0, 3).bind(short).exit();
    asm.finish().unwrap()
}

#[test]
fn kernel_and_interpreter_agree_on_random_arithmetic() {
    if !possible() {
        return;
    }
    let mut rng = Rng(20);
    for _ in 0..PROGRAMS {
        let mut twins = Twins::new(program(&mut rng));
        for _ in 0..10 {
            twins.run(&packet(&mut rng));
            twins.compare_maps();
        }
    }
}
