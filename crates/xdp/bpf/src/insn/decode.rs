//! Decodes slots to instructions. As in the kernel, fields that an instruction does not use must be 0.

use std::fmt;

use super::slot::*;
use super::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Swap, Width};

/// Slots that are no valid instruction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DecodeError {
    /// Index of the slot.
    pub at: usize,
    /// Reason.
    pub kind: DecodeErrorKind,
}

/// Reason of a [`DecodeError`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DecodeErrorKind {
    /// No instruction has this opcode, or none with this kind of operand.
    Opcode(u8),
    /// The register number is above 10.
    Register(u8),
    /// A field that the instruction does not use is not 0.
    Reserved,
    /// The second slot of a 64-bit load is missing.
    Truncated,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}: ", self.at)?;
        match self.kind {
            DecodeErrorKind::Opcode(code) => write!(f, "unknown instruction {code:#04x}"),
            DecodeErrorKind::Register(number) => write!(f, "there is no register r{number}"),
            DecodeErrorKind::Reserved => f.write_str("a reserved field is not 0"),
            DecodeErrorKind::Truncated => f.write_str("the second half of a 64-bit load is missing"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Decodes a program. Each instruction is returned with the index of its first slot.
pub fn decode_all(slots: &[Slot]) -> Result<Vec<(usize, Insn)>, DecodeError> {
    let mut insns = Vec::with_capacity(slots.len());
    let mut at = 0;
    while at < slots.len() {
        let insn = decode(slots, at)?;
        insns.push((at, insn));
        at += insn.slots();
    }
    Ok(insns)
}

/// Decodes the instruction at slot `at`. An index beyond the end is [`DecodeErrorKind::Truncated`].
pub fn decode(slots: &[Slot], at: usize) -> Result<Insn, DecodeError> {
    let fail = |kind| DecodeError { at, kind };
    let slot = slots.get(at).ok_or(fail(DecodeErrorKind::Truncated))?;
    match slot.opcode & CLASS {
        LD => load_imm64(slot, slots.get(at + 1)),
        LDX => load(slot),
        ST => store_imm(slot),
        STX if slot.opcode & MODE == MODE_ATOMIC => atomic(slot),
        STX => store_reg(slot),
        ALU | ALU64 => alu(slot),
        _ => jump(slot),
    }
    .map_err(fail)
}

type Decoded<T> = Result<T, DecodeErrorKind>;

impl Slot {
    fn dst_reg(&self) -> Decoded<Reg> {
        Reg::from_number(self.dst).ok_or(DecodeErrorKind::Register(self.dst))
    }

    fn src_reg(&self) -> Decoded<Reg> {
        Reg::from_number(self.src).ok_or(DecodeErrorKind::Register(self.src))
    }

    /// Decodes the second operand of arithmetic and branches.
    fn operand(&self) -> Decoded<Operand> {
        if self.opcode & SRC_REG != 0 {
            zero(self.imm)?;
            Ok(Operand::Reg(self.src_reg()?))
        } else {
            zero(self.src)?;
            Ok(Operand::Imm(self.imm))
        }
    }

    fn unknown<T>(&self) -> Decoded<T> {
        Err(DecodeErrorKind::Opcode(self.opcode))
    }

    fn size(&self) -> Size {
        Size::from_code(self.opcode & SIZE).unwrap_or(Size::Dw)
    }
}

fn zero(field: impl Into<i64>) -> Decoded<()> {
    if field.into() == 0 { Ok(()) } else { Err(DecodeErrorKind::Reserved) }
}

fn load_imm64(first: &Slot, second: Option<&Slot>) -> Decoded<Insn> {
    if first.opcode != OP_LOAD_IMM64 {
        return first.unknown();
    }
    let second = second.ok_or(DecodeErrorKind::Truncated)?;
    zero(first.off)?;
    if *second != (Slot { imm: second.imm, ..Slot::default() }) {
        return Err(DecodeErrorKind::Reserved);
    }
    let (low, high) = (first.imm, second.imm as u32);
    let imm = match first.src {
        0 => Imm64::Value(u64::from(high) << 32 | u64::from(low as u32)),
        IMM64_MAP_FD_VALUE => Imm64::MapFdValue { fd: low, off: high },
        IMM64_MAP_VALUE => Imm64::MapValue { map: low as u32, off: high },
        IMM64_BTF_ID => Imm64::BtfId { id: low, btf_fd: high },
        src => {
            zero(high)?;
            match src {
                IMM64_MAP_FD => Imm64::MapFd(low),
                IMM64_MAP => Imm64::Map(low as u32),
                IMM64_FUNC => Imm64::Func(low),
                _ => return Err(DecodeErrorKind::Reserved),
            }
        }
    };
    Ok(Insn::LoadImm64 { dst: first.dst_reg()?, imm })
}

fn load(slot: &Slot) -> Decoded<Insn> {
    let signed = match slot.opcode & MODE {
        MODE_MEM => false,
        MODE_MEMSX if slot.size() != Size::Dw => true,
        _ => return slot.unknown(),
    };
    zero(slot.imm)?;
    Ok(Insn::Load { size: slot.size(), signed, dst: slot.dst_reg()?, base: slot.src_reg()?, off: slot.off })
}

fn store_imm(slot: &Slot) -> Decoded<Insn> {
    if slot.opcode & MODE != MODE_MEM {
        return slot.unknown();
    }
    zero(slot.src)?;
    Ok(Insn::Store { size: slot.size(), base: slot.dst_reg()?, off: slot.off, src: Operand::Imm(slot.imm) })
}

fn store_reg(slot: &Slot) -> Decoded<Insn> {
    if slot.opcode & MODE != MODE_MEM {
        return slot.unknown();
    }
    zero(slot.imm)?;
    let src = Operand::Reg(slot.src_reg()?);
    Ok(Insn::Store { size: slot.size(), base: slot.dst_reg()?, off: slot.off, src })
}

fn atomic(slot: &Slot) -> Decoded<Insn> {
    let (dst, src, off, size) = (slot.dst_reg()?, slot.src_reg()?, slot.off, slot.size());
    match slot.imm {
        LOAD_ACQUIRE => return Ok(Insn::LoadAcquire { size, dst, base: src, off }),
        STORE_RELEASE => return Ok(Insn::StoreRelease { size, base: dst, off, src }),
        _ => {}
    }
    let width = match size {
        Size::W => Width::W32,
        Size::Dw => Width::W64,
        _ => return slot.unknown(),
    };
    let fetch = slot.imm & FETCH != 0;
    let op = match slot.imm & !FETCH {
        0x00 => AtomicOp::Add { fetch },
        0x40 => AtomicOp::Or { fetch },
        0x50 => AtomicOp::And { fetch },
        0xa0 => AtomicOp::Xor { fetch },
        0xe0 if fetch => AtomicOp::Xchg,
        0xf0 if fetch => AtomicOp::CmpXchg,
        _ => return slot.unknown(),
    };
    Ok(Insn::Atomic { width, op, base: dst, off, src })
}

fn alu(slot: &Slot) -> Decoded<Insn> {
    let width = if slot.opcode & CLASS == ALU { Width::W32 } else { Width::W64 };
    let dst = slot.dst_reg()?;
    let op = match slot.opcode & OP {
        OP_NEG => {
            if slot.opcode & SRC_REG != 0 {
                return slot.unknown();
            }
            zero(slot.src)?;
            zero(slot.off)?;
            zero(slot.imm)?;
            return Ok(Insn::Neg { width, dst });
        }
        OP_END => return swap(slot, width, dst),
        OP_MOV if slot.off != 0 => return mov_sx(slot, width, dst),
        // The offset 1 makes a division signed.
        code => AluOp::from_code(u16::from_le_bytes([code, u8::from(slot.off == 1)]))
            .or_else(|| AluOp::from_code(code.into()))
            .ok_or(DecodeErrorKind::Opcode(slot.opcode))?,
    };
    if !matches!(op, AluOp::SDiv | AluOp::SMod) {
        zero(slot.off)?;
    }
    Ok(Insn::Alu { width, op, dst, src: slot.operand()? })
}

fn mov_sx(slot: &Slot, width: Width, dst: Reg) -> Decoded<Insn> {
    let from = match (slot.off, width) {
        (8, _) => Size::B,
        (16, _) => Size::H,
        (32, Width::W64) => Size::W,
        _ => return Err(DecodeErrorKind::Reserved),
    };
    match slot.operand()? {
        Operand::Reg(src) => Ok(Insn::MovSx { width, from, dst, src }),
        Operand::Imm(_) => Err(DecodeErrorKind::Reserved),
    }
}

fn swap(slot: &Slot, width: Width, dst: Reg) -> Decoded<Insn> {
    let to = match (width, slot.opcode & SRC_REG != 0) {
        (Width::W32, false) => Swap::ToLe,
        (Width::W32, true) => Swap::ToBe,
        (Width::W64, false) => Swap::Always,
        (Width::W64, true) => return slot.unknown(),
    };
    zero(slot.src)?;
    zero(slot.off)?;
    let size = match slot.imm {
        16 => Size::H,
        32 => Size::W,
        64 => Size::Dw,
        _ => return Err(DecodeErrorKind::Reserved),
    };
    Ok(Insn::Swap { to, size, dst })
}

fn jump(slot: &Slot) -> Decoded<Insn> {
    let width = if slot.opcode & CLASS == JMP { Width::W64 } else { Width::W32 };
    let cond = match slot.opcode & OP {
        OP_JA => {
            if slot.opcode & SRC_REG != 0 {
                return slot.unknown();
            }
            zero(slot.dst)?;
            zero(slot.src)?;
            return match width {
                Width::W64 => zero(slot.imm).map(|()| Insn::Jump { off: slot.off }),
                Width::W32 => zero(slot.off).map(|()| Insn::JumpLong { off: slot.imm }),
            };
        }
        code => match Cond::from_code(code) {
            Some(cond) => cond,
            None => return call_or_exit(slot),
        },
    };
    Ok(Insn::Branch { width, cond, dst: slot.dst_reg()?, src: slot.operand()?, off: slot.off })
}

fn call_or_exit(slot: &Slot) -> Decoded<Insn> {
    const CALL: u8 = OP_CALL | JMP;
    const EXIT: u8 = OP_EXIT | JMP;
    zero(slot.dst)?;
    match (slot.opcode, slot.src) {
        (CALL, CALL_KFUNC) => Ok(Insn::CallKfunc { id: slot.imm, btf: slot.off }),
        (CALL, CALL_HELPER) => zero(slot.off).map(|()| Insn::CallHelper { id: slot.imm }),
        (CALL, CALL_LOCAL) => zero(slot.off).map(|()| Insn::CallLocal { off: slot.imm }),
        (CALL, _) => Err(DecodeErrorKind::Reserved),
        (EXIT, 0) => zero(slot.off).and(zero(slot.imm)).map(|()| Insn::Exit),
        _ => slot.unknown(),
    }
}
