//! Encodes instructions as slots.

use super::slot::*;
use super::{AluOp, AtomicOp, Imm64, Insn, Operand, Reg, Size, Swap, Width};

/// Appends the slots of the instruction.
///
/// [`Insn`] can express some combinations that no instruction has: a sign-extending 8-byte load, a byte swap
/// of one byte, a `MovSx` that does not extend. They become slots that [`decode`](super::decode) and the
/// kernel reject.
pub fn encode(insn: &Insn, out: &mut Vec<Slot>) {
    let slot = match *insn {
        Insn::Alu { width, op, dst, src } => {
            let [code, off] = op.code().to_le_bytes();
            let opcode = code | alu_class(width);
            with_operand(Slot { opcode, dst: dst.number(), off: off.into(), ..Slot::default() }, src)
        }
        Insn::Neg { width, dst } => {
            Slot { opcode: OP_NEG | alu_class(width), dst: dst.number(), ..Slot::default() }
        }
        Insn::MovSx { width, from, dst, src } => Slot {
            opcode: AluOp::Mov.code() as u8 | SRC_REG | alu_class(width),
            dst: dst.number(),
            src: src.number(),
            off: bits(from) as i16,
            imm: 0,
        },
        Insn::Swap { to, size, dst } => {
            let opcode = OP_END
                | match to {
                    Swap::ToLe => ALU,
                    Swap::ToBe => ALU | SRC_REG,
                    Swap::Always => ALU64,
                };
            Slot { opcode, dst: dst.number(), imm: bits(size), ..Slot::default() }
        }
        Insn::LoadImm64 { dst, imm } => {
            let (src, low, high) = imm64_fields(imm);
            out.push(Slot { opcode: OP_LOAD_IMM64, dst: dst.number(), src, off: 0, imm: low });
            Slot { imm: high, ..Slot::default() }
        }
        Insn::Load { size, signed, dst, base, off } => {
            let mode = if signed { MODE_MEMSX } else { MODE_MEM };
            memory(LDX | mode | size.code(), dst, base, off, 0)
        }
        Insn::Store { size, base, off, src: Operand::Reg(src) } => {
            memory(STX | MODE_MEM | size.code(), base, src, off, 0)
        }
        Insn::Store { size, base, off, src: Operand::Imm(imm) } => {
            Slot { opcode: ST | MODE_MEM | size.code(), dst: base.number(), src: 0, off, imm }
        }
        Insn::Atomic { width, op, base, off, src } => {
            let size = match width {
                Width::W32 => Size::W,
                Width::W64 => Size::Dw,
            };
            memory(STX | MODE_ATOMIC | size.code(), base, src, off, atomic_code(op))
        }
        Insn::LoadAcquire { size, dst, base, off } => {
            memory(STX | MODE_ATOMIC | size.code(), dst, base, off, LOAD_ACQUIRE)
        }
        Insn::StoreRelease { size, base, off, src } => {
            memory(STX | MODE_ATOMIC | size.code(), base, src, off, STORE_RELEASE)
        }
        Insn::Jump { off } => Slot { opcode: OP_JA | JMP, off, ..Slot::default() },
        Insn::JumpLong { off } => Slot { opcode: OP_JA | JMP32, imm: off, ..Slot::default() },
        Insn::Branch { width, cond, dst, src, off } => {
            let class = match width {
                Width::W32 => JMP32,
                Width::W64 => JMP,
            };
            with_operand(Slot { opcode: cond.code() | class, dst: dst.number(), off, ..Slot::default() }, src)
        }
        Insn::CallHelper { id } => call(CALL_HELPER, 0, id),
        Insn::CallLocal { off } => call(CALL_LOCAL, 0, off),
        Insn::CallKfunc { id, btf } => call(CALL_KFUNC, btf, id),
        Insn::Exit => Slot { opcode: OP_EXIT | JMP, ..Slot::default() },
    };
    out.push(slot);
}

fn with_operand(slot: Slot, operand: Operand) -> Slot {
    match operand {
        Operand::Reg(src) => Slot { opcode: slot.opcode | SRC_REG, src: src.number(), ..slot },
        Operand::Imm(imm) => Slot { imm, ..slot },
    }
}

fn memory(opcode: u8, dst: Reg, src: Reg, off: i16, imm: i32) -> Slot {
    Slot { opcode, dst: dst.number(), src: src.number(), off, imm }
}

fn call(src: u8, off: i16, imm: i32) -> Slot {
    Slot { opcode: OP_CALL | JMP, dst: 0, src, off, imm }
}

fn alu_class(width: Width) -> u8 {
    match width {
        Width::W32 => ALU,
        Width::W64 => ALU64,
    }
}

fn atomic_code(op: AtomicOp) -> i32 {
    let fetching = |code: i32, fetch: bool| if fetch { code | FETCH } else { code };
    match op {
        AtomicOp::Add { fetch } => fetching(0x00, fetch),
        AtomicOp::Or { fetch } => fetching(0x40, fetch),
        AtomicOp::And { fetch } => fetching(0x50, fetch),
        AtomicOp::Xor { fetch } => fetching(0xa0, fetch),
        AtomicOp::Xchg => ATOMIC_XCHG,
        AtomicOp::CmpXchg => ATOMIC_CMPXCHG,
    }
}

fn bits(size: Size) -> i32 {
    size.bytes() as i32 * 8
}

/// Returns `src` and the immediates of both slots.
fn imm64_fields(imm: Imm64) -> (u8, i32, i32) {
    match imm {
        Imm64::Value(value) => (0, value as i32, (value >> 32) as i32),
        Imm64::MapFd(fd) => (IMM64_MAP_FD, fd, 0),
        Imm64::MapFdValue { fd, off } => (IMM64_MAP_FD_VALUE, fd, off as i32),
        Imm64::Map(map) => (IMM64_MAP, map as i32, 0),
        Imm64::MapValue { map, off } => (IMM64_MAP_VALUE, map as i32, off as i32),
        Imm64::BtfId { id, btf_fd } => (IMM64_BTF_ID, id, btf_fd as i32),
        Imm64::Func(off) => (IMM64_FUNC, off, 0),
    }
}
