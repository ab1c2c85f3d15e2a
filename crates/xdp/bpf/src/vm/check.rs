//! Checks a program before it runs, and lowers it to operations.
//!
//! After these checks execution cannot leave the code: every jump stays in its function and every function
//! has an end. The contents of registers and memory are checked at run time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::fuse::fuse;
use super::image::{LoadError, LoadErrorKind};
use super::op::{Code, Op};
use super::space::{self, Space};
use super::{call, extra};
use crate::insn::{Imm64, Insn, Operand, Reg, decode_all};
use crate::map::{Map, MapKind};
use crate::program::{Kfunc, NO_KFUNC, POISON, Program};

/// Operations of a program and of those in its program arrays, one after the other.
#[derive(Debug, Default)]
pub(super) struct Lowered {
    pub(super) ops: Vec<Op>,
    /// Slot of each operation.
    pub(super) slots: Vec<u32>,
    /// First operation and length of each program.
    pub(super) programs: Vec<(usize, u64)>,
    /// Length of each function, by its first operation.
    pub(super) functions: BTreeMap<usize, u64>,
    pub(super) kfuncs: Vec<Kfunc>,
}

/// Appends a program.
pub(super) fn lower(
    program: &Program,
    maps: &[Arc<Map>],
    space: &Space,
    out: &mut Lowered,
) -> Result<(), LoadError> {
    let insns = decode_all(&program.slots)
        .map_err(|error| LoadError { slot: error.at, kind: LoadErrorKind::Decode(error) })?;
    if insns.is_empty() {
        return Err(LoadError { slot: 0, kind: LoadErrorKind::Empty });
    }
    let mut code = Lowering {
        op_of_slot: vec![None; program.slots.len()],
        functions: BTreeSet::from([0]),
        maps,
        space,
        base: out.ops.len(),
        kfuncs: &program.kfuncs,
        kfunc_base: out.kfuncs.len(),
    };
    for (op, &(slot, _)) in insns.iter().enumerate() {
        code.op_of_slot[slot] = Some(op);
    }
    for &(slot, insn) in &insns {
        let (Insn::CallLocal { off } | Insn::LoadImm64 { imm: Imm64::Func(off), .. }) = insn else {
            continue;
        };
        let target = code.target(slot, off.into());
        code.functions.insert(target.ok_or(LoadError { slot, kind: LoadErrorKind::Target })?);
    }
    let count = insns.len();
    let mut ops = Vec::with_capacity(count);
    for (op, (slot, insn)) in insns.iter().enumerate() {
        let lowered = code.op(op, *slot, insn, count).map_err(|kind| LoadError { slot: *slot, kind })?;
        ops.push(lowered);
    }
    fuse(&mut ops);
    let ends = code.functions.iter().skip(1).copied().chain([count]);
    let lens = code.functions.iter().zip(ends).map(|(start, end)| (code.base + start, (end - start) as u64));
    out.functions.extend(lens);
    out.programs.push((code.base, count as u64));
    out.ops.extend(ops);
    out.slots.extend(insns.iter().map(|&(slot, _)| slot as u32));
    out.kfuncs.extend(program.kfuncs.iter().cloned());
    Ok(())
}

struct Lowering<'a> {
    op_of_slot: Vec<Option<usize>>,
    /// First operation of each function.
    functions: BTreeSet<usize>,
    maps: &'a [Arc<Map>],
    space: &'a Space,
    /// Number of the program's first operation.
    base: usize,
    kfuncs: &'a [Kfunc],
    kfunc_base: usize,
}

impl Lowering<'_> {
    fn op(&self, op: usize, slot: usize, insn: &Insn, count: usize) -> Result<Op, LoadErrorKind> {
        if written(insn) == Some(Reg::R10) {
            return Err(LoadErrorKind::WritesFramePointer);
        }
        let end = self.functions.range(op + 1..).next().copied().unwrap_or(count);
        let ends = matches!(insn, Insn::Exit | Insn::Jump { .. } | Insn::JumpLong { .. });
        if op + 1 == end && !ends {
            return Err(LoadErrorKind::NoExit);
        }
        let start = self.functions.range(..=op).next_back().copied().unwrap_or(0);
        let jump = |off: i64| match self.target(slot, off) {
            Some(target) if (start..end).contains(&target) => i32::try_from(self.base + target).ok(),
            _ => None,
        };
        let jump = |off: i64| jump(off).ok_or(LoadErrorKind::Target);
        match *insn {
            Insn::Jump { off } => Ok(Op { off: jump(off.into())?, ..Op::new(Code::Jump) }),
            Insn::JumpLong { off } => Ok(Op { off: jump(off.into())?, ..Op::new(Code::Jump) }),
            Insn::Branch { width, cond, dst, src, off } => {
                Ok(Op::branch(width, cond, dst, src, jump(off.into())?))
            }
            Insn::CallLocal { off } => {
                let target = self.target(slot, off.into()).ok_or(LoadErrorKind::Target)?;
                let end = self.functions.range(target + 1..).next().copied().unwrap_or(count);
                let off = i32::try_from(self.base + target).map_err(|_| LoadErrorKind::Target)?;
                Ok(Op { off, imm: (end - target) as i64, ..Op::new(Code::CallLocal) })
            }
            Insn::CallHelper { id: POISON | NO_KFUNC } => Ok(Op::new(Code::Poison)),
            Insn::CallKfunc { id, btf: 0 } if !self.kfuncs.is_empty() => {
                let kfunc = usize::try_from(id).ok().and_then(|index| self.kfuncs.get(index));
                let kfunc = kfunc.ok_or(LoadErrorKind::Unsupported)?;
                if !extra::has_kfunc(kfunc) {
                    return Err(LoadErrorKind::Kfunc(kfunc.name.clone()));
                }
                Ok(Op { imm: self.kfunc_base as i64 + i64::from(id), ..Op::new(Code::CallKfunc) })
            }
            Insn::LoadImm64 { dst, imm: Imm64::Func(off) } => {
                let target = self.target(slot, off.into()).ok_or(LoadErrorKind::Target)?;
                if self.base + target >= 1 << space::SEGMENT_BITS {
                    return Err(LoadErrorKind::Target);
                }
                Ok(Op::imm(dst, space::base(space::FUNCTIONS) + (self.base + target) as u64))
            }
            Insn::CallHelper { id } if !call::available(id) => Err(LoadErrorKind::Helper(id)),
            Insn::LoadImm64 { dst, imm } => Ok(Op::imm(dst, self.imm64(imm)?)),
            ref plain => Op::of(plain).ok_or(LoadErrorKind::Unsupported),
        }
    }

    /// Returns the operation at a distance from the slot after this one-slot instruction.
    fn target(&self, slot: usize, off: i64) -> Option<usize> {
        let target = usize::try_from(slot as i64 + 1 + off).ok()?;
        self.op_of_slot.get(target).copied().flatten()
    }

    fn imm64(&self, imm: Imm64) -> Result<u64, LoadErrorKind> {
        match imm {
            Imm64::Value(value) => Ok(value),
            Imm64::Map(map) if (map as usize) < self.maps.len() => {
                let used = &self.maps[map as usize];
                if !used.is_usable() {
                    let def = used.def();
                    return Err(LoadErrorKind::MapKind(format!("{} ({})", def.name, def.kind)));
                }
                Ok(space::base(space::HANDLES) + u64::from(map))
            }
            Imm64::MapValue { map, off } => {
                let def = self.maps.get(map as usize).ok_or(LoadErrorKind::Map)?.def();
                let base = self.space.base_of(map as usize).ok_or(LoadErrorKind::Map)?;
                if def.kind != MapKind::Array || off >= def.value_size {
                    return Err(LoadErrorKind::Map);
                }
                Ok(base + u64::from(off))
            }
            Imm64::Map(_) => Err(LoadErrorKind::Map),
            Imm64::MapFd(_) | Imm64::MapFdValue { .. } | Imm64::BtfId { .. } | Imm64::Func(_) => {
                Err(LoadErrorKind::Unsupported)
            }
        }
    }
}

/// Returns the register that an instruction writes, except for calls.
fn written(insn: &Insn) -> Option<Reg> {
    match *insn {
        Insn::Alu { dst, .. }
        | Insn::Neg { dst, .. }
        | Insn::MovSx { dst, .. }
        | Insn::Swap { dst, .. }
        | Insn::LoadImm64 { dst, .. }
        | Insn::Load { dst, .. }
        | Insn::LoadAcquire { dst, .. } => Some(dst),
        Insn::Atomic { op, src, .. } => match op {
            crate::AtomicOp::Add { fetch: false }
            | crate::AtomicOp::Or { fetch: false }
            | crate::AtomicOp::And { fetch: false }
            | crate::AtomicOp::Xor { fetch: false }
            | crate::AtomicOp::CmpXchg => None,
            _ => Some(src),
        },
        Insn::Store { src: Operand::Reg(_) | Operand::Imm(_), .. }
        | Insn::StoreRelease { .. }
        | Insn::Jump { .. }
        | Insn::JumpLong { .. }
        | Insn::Branch { .. }
        | Insn::CallHelper { .. }
        | Insn::CallLocal { .. }
        | Insn::CallKfunc { .. }
        | Insn::Exit => None,
    }
}
