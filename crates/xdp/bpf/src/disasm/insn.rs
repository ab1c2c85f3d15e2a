//! Formats one instruction as text.

use std::fmt;

use crate::helper::Helper;
use crate::insn::{AtomicOp, Imm64, Insn, Operand, Reg, Size, Swap, Width};

/// Name of a register in an operation of this width: `r1` or `w1`.
struct Sub(Width, Reg);

impl fmt::Display for Sub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.0 {
            Width::W32 => 'w',
            Width::W64 => 'r',
        };
        write!(f, "{letter}{}", self.1.number())
    }
}

/// Memory operand without the leading star: `(u32 *)(r1 +4)`.
struct At(&'static str, Reg, i16);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} *)({} {:+})", self.0, self.1, self.2)
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Insn::Alu { width, op, dst, src } => {
                write!(f, "{} {}= ", Sub(width, dst), op.sign())?;
                match src {
                    Operand::Reg(src) => write!(f, "{}", Sub(width, src)),
                    Operand::Imm(imm) => write!(f, "{imm}"),
                }
            }
            Insn::Neg { width, dst } => write!(f, "{0} = -{0}", Sub(width, dst)),
            Insn::MovSx { width, from, dst, src } => {
                write!(f, "{} = ({}){}", Sub(width, dst), signed(from), Sub(width, src))
            }
            Insn::Swap { to, size, dst } => {
                let name = match to {
                    Swap::ToLe => "le",
                    Swap::ToBe => "be",
                    Swap::Always => "bswap",
                };
                write!(f, "{dst} = {name}{} {dst}", size.bytes() * 8)
            }
            Insn::LoadImm64 { dst, imm } => load_imm64(f, dst, imm),
            Insn::Load { size, signed: sign, dst, base, off } => {
                let cast = if sign { signed(size) } else { size.name() };
                write!(f, "{dst} = *{}", At(cast, base, off))
            }
            Insn::Store { size, base, off, src } => {
                write!(f, "*{} = ", At(size.name(), base, off))?;
                match src {
                    Operand::Reg(src) => write!(f, "{src}"),
                    Operand::Imm(imm) => write!(f, "{imm}"),
                }
            }
            Insn::Atomic { width, op, base, off, src } => atomic(f, width, op, base, off, src),
            Insn::LoadAcquire { size, dst, base, off } => {
                write!(f, "{dst} = load_acquire({})", At(size.name(), base, off))
            }
            Insn::StoreRelease { size, base, off, src } => {
                write!(f, "store_release({}, {src})", At(size.name(), base, off))
            }
            Insn::Jump { off } => write!(f, "goto pc{off:+}"),
            Insn::JumpLong { off } => write!(f, "gotol pc{off:+}"),
            Insn::Branch { width, cond, dst, src, off } => {
                write!(f, "if {} {} ", Sub(width, dst), cond.sign())?;
                match src {
                    Operand::Reg(src) => write!(f, "{}", Sub(width, src))?,
                    Operand::Imm(imm) => write!(f, "{imm:#x}")?,
                }
                write!(f, " goto pc{off:+}")
            }
            Insn::CallHelper { id } => match Helper::from_id(id) {
                Some(helper) => write!(f, "call bpf_{}#{id}", helper.name()),
                None => write!(f, "call helper#{id}"),
            },
            Insn::CallLocal { off } => write!(f, "call pc{off:+}"),
            Insn::CallKfunc { id, .. } => write!(f, "call kernel-function#{id}"),
            Insn::Exit => f.write_str("exit"),
        }
    }
}

fn load_imm64(f: &mut fmt::Formatter<'_>, dst: Reg, imm: Imm64) -> fmt::Result {
    match imm {
        Imm64::Value(value) => write!(f, "{dst} = {value:#x}"),
        Imm64::MapFd(fd) => write!(f, "{dst} = map[fd:{fd}]"),
        Imm64::MapFdValue { fd, off } => write!(f, "{dst} = map[fd:{fd}][0]+{off}"),
        Imm64::Map(map) => write!(f, "{dst} = map[idx:{map}]"),
        Imm64::MapValue { map, off } => write!(f, "{dst} = map[idx:{map}][0]+{off}"),
        Imm64::BtfId { id, .. } => write!(f, "{dst} = btf[id:{id}]"),
        Imm64::Func(off) => write!(f, "{dst} = subprog[{off:+}]"),
    }
}

fn atomic(
    f: &mut fmt::Formatter<'_>,
    width: Width,
    op: AtomicOp,
    base: Reg,
    off: i16,
    src: Reg,
) -> fmt::Result {
    let (cast, bits) = match width {
        Width::W32 => ("u32", ""),
        Width::W64 => ("u64", "64"),
    };
    let at = At(cast, base, off);
    let (sign, name, fetch) = match op {
        AtomicOp::Add { fetch } => ("+", "add", fetch),
        AtomicOp::Or { fetch } => ("|", "or", fetch),
        AtomicOp::And { fetch } => ("&", "and", fetch),
        AtomicOp::Xor { fetch } => ("^", "xor", fetch),
        AtomicOp::Xchg => return write!(f, "{src} = atomic{bits}_xchg({at}, {src})"),
        AtomicOp::CmpXchg => return write!(f, "r0 = atomic{bits}_cmpxchg({at}, r0, {src})"),
    };
    if fetch {
        write!(f, "{src} = atomic{bits}_fetch_{name}({at}, {src})")
    } else {
        write!(f, "lock *{at} {sign}= {src}")
    }
}

fn signed(size: Size) -> &'static str {
    match size {
        Size::B => "s8",
        Size::H => "s16",
        Size::W => "s32",
        Size::Dw => "s64",
    }
}
