//! Operations: the form in which programs run. They have a fixed size, and everything that does not depend on
//! run-time data is decided in advance.
//!
//! One table lists arithmetic and comparisons. The operation codes, their selection and their execution are
//! generated from it.

use crate::helper::Helper;
use crate::insn::{AluOp, AtomicOp, Cond, Insn, Operand, Reg, Size, Swap, Width};

/// Calls `$then!` with two lists: `(AluOp, codes..., 64-bit function, 32-bit function)` and `(Cond, codes...,
/// 64-bit predicate, 32-bit predicate)`. The four codes are: 64-bit with register, 64-bit with immediate,
/// 32-bit with register, 32-bit with immediate.
macro_rules! operations {
    ($then:ident) => {
        $then! {
            (Add, Add64, Add64Imm, Add32, Add32Imm, u64::wrapping_add, u32::wrapping_add)
            (Sub, Sub64, Sub64Imm, Sub32, Sub32Imm, u64::wrapping_sub, u32::wrapping_sub)
            (Mul, Mul64, Mul64Imm, Mul32, Mul32Imm, u64::wrapping_mul, u32::wrapping_mul)
            (Div, Div64, Div64Imm, Div32, Div32Imm,
                |a: u64, b: u64| a.checked_div(b).unwrap_or(0),
                |a: u32, b: u32| a.checked_div(b).unwrap_or(0))
            (Or, Or64, Or64Imm, Or32, Or32Imm, |a: u64, b: u64| a | b, |a: u32, b: u32| a | b)
            (And, And64, And64Imm, And32, And32Imm, |a: u64, b: u64| a & b, |a: u32, b: u32| a & b)
            (Lsh, Lsh64, Lsh64Imm, Lsh32, Lsh32Imm,
                |a: u64, b: u64| a.wrapping_shl(b as u32), |a: u32, b: u32| a.wrapping_shl(b))
            (Rsh, Rsh64, Rsh64Imm, Rsh32, Rsh32Imm,
                |a: u64, b: u64| a.wrapping_shr(b as u32), |a: u32, b: u32| a.wrapping_shr(b))
            (Mod, Mod64, Mod64Imm, Mod32, Mod32Imm,
                |a: u64, b: u64| a.checked_rem(b).unwrap_or(a),
                |a: u32, b: u32| a.checked_rem(b).unwrap_or(a))
            (Xor, Xor64, Xor64Imm, Xor32, Xor32Imm, |a: u64, b: u64| a ^ b, |a: u32, b: u32| a ^ b)
            (Mov, Mov64, Mov64Imm, Mov32, Mov32Imm, |_: u64, b: u64| b, |_: u32, b: u32| b)
            (Arsh, Arsh64, Arsh64Imm, Arsh32, Arsh32Imm,
                |a: u64, b: u64| (a as i64).wrapping_shr(b as u32) as u64,
                |a: u32, b: u32| (a as i32).wrapping_shr(b) as u32)
            (SDiv, SDiv64, SDiv64Imm, SDiv32, SDiv32Imm,
                |a: u64, b: u64| if b == 0 { 0 } else { (a as i64).wrapping_div(b as i64) as u64 },
                |a: u32, b: u32| if b == 0 { 0 } else { (a as i32).wrapping_div(b as i32) as u32 })
            (SMod, SMod64, SMod64Imm, SMod32, SMod32Imm,
                |a: u64, b: u64| if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 },
                |a: u32, b: u32| if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 })
            ;
            (Eq, Eq64, Eq64Imm, Eq32, Eq32Imm, |a: u64, b: u64| a == b, |a: u32, b: u32| a == b)
            (Gt, Gt64, Gt64Imm, Gt32, Gt32Imm, |a: u64, b: u64| a > b, |a: u32, b: u32| a > b)
            (Ge, Ge64, Ge64Imm, Ge32, Ge32Imm, |a: u64, b: u64| a >= b, |a: u32, b: u32| a >= b)
            (Set, Set64, Set64Imm, Set32, Set32Imm, |a: u64, b: u64| a & b != 0, |a: u32, b: u32| a & b != 0)
            (Ne, Ne64, Ne64Imm, Ne32, Ne32Imm, |a: u64, b: u64| a != b, |a: u32, b: u32| a != b)
            (SGt, SGt64, SGt64Imm, SGt32, SGt32Imm,
                |a: u64, b: u64| a as i64 > b as i64, |a: u32, b: u32| a as i32 > b as i32)
            (SGe, SGe64, SGe64Imm, SGe32, SGe32Imm,
                |a: u64, b: u64| a as i64 >= b as i64, |a: u32, b: u32| a as i32 >= b as i32)
            (Lt, Lt64, Lt64Imm, Lt32, Lt32Imm, |a: u64, b: u64| a < b, |a: u32, b: u32| a < b)
            (Le, Le64, Le64Imm, Le32, Le32Imm, |a: u64, b: u64| a <= b, |a: u32, b: u32| a <= b)
            (SLt, SLt64, SLt64Imm, SLt32, SLt32Imm,
                |a: u64, b: u64| (a as i64) < b as i64, |a: u32, b: u32| (a as i32) < b as i32)
            (SLe, SLe64, SLe64Imm, SLe32, SLe32Imm,
                |a: u64, b: u64| a as i64 <= b as i64, |a: u32, b: u32| a as i32 <= b as i32)
        }
    };
}
pub(super) use operations;

macro_rules! codes {
    ($(($alu:ident, $a64:ident, $a64i:ident, $a32:ident, $a32i:ident, $f64:expr, $f32:expr))* ;
     $(($cond:ident, $c64:ident, $c64i:ident, $c32:ident, $c32i:ident, $p64:expr, $p32:expr))*) => {
        /// Operation code.
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub(super) enum Code {
            $($a64, $a64i, $a32, $a32i,)*
            $($c64, $c64i, $c32, $c32i,)*
            Neg64,
            Neg32,
            /// `dst = src` with the sign of the lowest byte extended; the narrow ones clear the upper half.
            Sx8,
            Sx16,
            Sx32,
            Sx8Narrow,
            Sx16Narrow,
            /// Truncation: conversion to the byte order of the host.
            Cut16,
            Cut32,
            Swap16,
            Swap32,
            Swap64,
            /// `dst = imm`
            Imm,
            Load8,
            Load16,
            Load32,
            Load64,
            LoadSx8,
            LoadSx16,
            LoadSx32,
            Store8,
            Store16,
            Store32,
            Store64,
            Store8Imm,
            Store16Imm,
            Store32Imm,
            Store64Imm,
            /// `dst` is the pointer; `imm` the [`atomic_number`].
            Atomic32,
            Atomic64,
            /// No operation: conversion of 64 bits to the byte order of the host.
            Nop,
            /// Continue at operation `off`.
            Jump,
            /// Call of the function at operation `off`; `imm` is its length.
            CallLocal,
            /// `imm` is the number of the helper.
            CallHelper,
            /// `bpf_map_lookup_elem`, the helper that programs call most.
            LookupElem,
            /// A helper that changes the flow of control: `imm` is its number.
            Control,
            /// Function of the kernel: `imm` is its index.
            CallKfunc,
            /// An instruction that has no equivalent here. Programs ask first, and do not reach it.
            Poison,
            /// `dst = src + imm`, then skip one operation; see `fuse`.
            CopyAdd,
            /// As `CopyAdd`, then the comparison in the third operation.
            AddThenGt,
            /// Load, then the comparison in the second operation.
            Load8ThenEq,
            Load16ThenEq,
            Load32ThenEq,
            Load8ThenNe,
            Load16ThenNe,
            Load32ThenNe,
            Exit,
        }

        /// Returns whether this is arithmetic or a comparison with a register.
        pub(super) fn reads_src(code: Code) -> bool {
            matches!(code, $(Code::$a64 | Code::$a32)|* | $(Code::$c64 | Code::$c32)|*)
        }

        fn alu_code(op: AluOp, width: Width, src: Operand) -> Code {
            match (op, width, src) {
                $(
                    (AluOp::$alu, Width::W64, Operand::Reg(_)) => Code::$a64,
                    (AluOp::$alu, Width::W64, Operand::Imm(_)) => Code::$a64i,
                    (AluOp::$alu, Width::W32, Operand::Reg(_)) => Code::$a32,
                    (AluOp::$alu, Width::W32, Operand::Imm(_)) => Code::$a32i,
                )*
            }
        }

        /// Returns whether the comparison `a COND b` holds.
        pub(crate) fn holds(cond: Cond, width: Width, a: u64, b: u64) -> bool {
            match (cond, width) {
                $(
                    (Cond::$cond, Width::W64) => ($p64)(a, b),
                    (Cond::$cond, Width::W32) => ($p32)(a as u32, b as u32),
                )*
            }
        }

        fn cond_code(cond: Cond, width: Width, src: Operand) -> Code {
            match (cond, width, src) {
                $(
                    (Cond::$cond, Width::W64, Operand::Reg(_)) => Code::$c64,
                    (Cond::$cond, Width::W64, Operand::Imm(_)) => Code::$c64i,
                    (Cond::$cond, Width::W32, Operand::Reg(_)) => Code::$c32,
                    (Cond::$cond, Width::W32, Operand::Imm(_)) => Code::$c32i,
                )*
            }
        }
    };
}
operations!(codes);

/// One operation, 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) code: Code,
    /// Register number, 0..=10.
    pub(super) dst: u8,
    /// Register number, 0..=10.
    pub(super) src: u8,
    /// Index of the operation to jump to, or an address offset.
    pub(super) off: i32,
    /// Immediate, sign-extended.
    pub(super) imm: i64,
}

impl Op {
    pub(super) fn new(code: Code) -> Op {
        Op { code, dst: 0, src: 0, off: 0, imm: 0 }
    }

    fn on(code: Code, dst: Reg) -> Op {
        Op { dst: dst.number(), ..Op::new(code) }
    }

    fn with(self, src: Operand) -> Op {
        match src {
            Operand::Reg(src) => Op { src: src.number(), ..self },
            Operand::Imm(imm) => Op { imm: imm.into(), ..self },
        }
    }

    /// Returns the operation of an instruction that does not jump, call or load 64 bits.
    pub(super) fn of(insn: &Insn) -> Option<Op> {
        let op = match *insn {
            Insn::Alu { width, op, dst, src } => Op::on(alu_code(op, width, src), dst).with(src),
            Insn::Neg { width: Width::W64, dst } => Op::on(Code::Neg64, dst),
            Insn::Neg { width: Width::W32, dst } => Op::on(Code::Neg32, dst),
            Insn::MovSx { width, from, dst, src } => {
                let code = match (from, width) {
                    (Size::B, Width::W64) => Code::Sx8,
                    (Size::H, Width::W64) => Code::Sx16,
                    (Size::B, Width::W32) => Code::Sx8Narrow,
                    (Size::H, Width::W32) => Code::Sx16Narrow,
                    (Size::W | Size::Dw, _) => Code::Sx32,
                };
                Op::on(code, dst).with(src.into())
            }
            Insn::Swap { to, size, dst } => {
                let code = match (to, size) {
                    (Swap::ToLe, Size::B | Size::H) => Code::Cut16,
                    (Swap::ToLe, Size::W) => Code::Cut32,
                    (Swap::ToLe, Size::Dw) => Code::Nop,
                    (Swap::ToBe | Swap::Always, Size::B | Size::H) => Code::Swap16,
                    (Swap::ToBe | Swap::Always, Size::W) => Code::Swap32,
                    (Swap::ToBe | Swap::Always, Size::Dw) => Code::Swap64,
                };
                Op::on(code, dst)
            }
            Insn::Load { size, signed, dst, base, off } => {
                let code = match (size, signed) {
                    (Size::B, false) => Code::Load8,
                    (Size::H, false) => Code::Load16,
                    (Size::W, false) => Code::Load32,
                    (Size::Dw, _) => Code::Load64,
                    (Size::B, true) => Code::LoadSx8,
                    (Size::H, true) => Code::LoadSx16,
                    (Size::W, true) => Code::LoadSx32,
                };
                Op { off: off.into(), ..Op::on(code, dst).with(base.into()) }
            }
            // The machine executes loads and stores in program order. Acquire and release only matter for map
            // values, which other threads access; those are exchanged as whole words.
            Insn::LoadAcquire { size, dst, base, off } => {
                return Op::of(&Insn::Load { size, signed: false, dst, base, off });
            }
            Insn::StoreRelease { size, base, off, src } => {
                return Op::of(&Insn::Store { size, base, off, src: src.into() });
            }
            Insn::Store { size, base, off, src } => {
                let code = match (size, src) {
                    (Size::B, Operand::Reg(_)) => Code::Store8,
                    (Size::H, Operand::Reg(_)) => Code::Store16,
                    (Size::W, Operand::Reg(_)) => Code::Store32,
                    (Size::Dw, Operand::Reg(_)) => Code::Store64,
                    (Size::B, Operand::Imm(_)) => Code::Store8Imm,
                    (Size::H, Operand::Imm(_)) => Code::Store16Imm,
                    (Size::W, Operand::Imm(_)) => Code::Store32Imm,
                    (Size::Dw, Operand::Imm(_)) => Code::Store64Imm,
                };
                Op { off: off.into(), ..Op::on(code, base).with(src) }
            }
            Insn::Atomic { width, op, base, off, src } => {
                let code = match width {
                    Width::W32 => Code::Atomic32,
                    Width::W64 => Code::Atomic64,
                };
                Op { off: off.into(), imm: atomic_number(op), ..Op::on(code, base).with(src.into()) }
            }
            Insn::CallHelper { id } if id == Helper::MapLookupElem.id() => Op::new(Code::LookupElem),
            Insn::CallHelper { id } if is_control(id) => Op { imm: id.into(), ..Op::new(Code::Control) },
            Insn::CallHelper { id } => Op { imm: id.into(), ..Op::new(Code::CallHelper) },
            Insn::Exit => Op::new(Code::Exit),
            Insn::LoadImm64 { .. }
            | Insn::Jump { .. }
            | Insn::JumpLong { .. }
            | Insn::Branch { .. }
            | Insn::CallLocal { .. }
            | Insn::CallKfunc { .. } => return None,
        };
        Some(op)
    }

    /// Returns the return value if the program only returns a constant.
    pub(super) fn constant(ops: &[Op]) -> Option<u32> {
        match ops {
            [Op { code: Code::Mov64Imm | Code::Mov32Imm, dst: 0, imm, .. }, Op { code: Code::Exit, .. }] => {
                Some(*imm as u32)
            }
            _ => None,
        }
    }

    /// Returns the comparison of a branch to operation `target`.
    pub(super) fn branch(width: Width, cond: Cond, dst: Reg, src: Operand, target: i32) -> Op {
        Op { off: target, ..Op::on(cond_code(cond, width, src), dst).with(src) }
    }

    /// `dst = value`
    pub(super) fn imm(dst: Reg, value: u64) -> Op {
        Op { imm: value as i64, ..Op::on(Code::Imm, dst) }
    }
}

/// Whether the helper with this number changes the flow of control.
pub(super) fn is_control(id: i32) -> bool {
    matches!(Helper::from_id(id), Some(Helper::TailCall | Helper::Loop | Helper::ForEachMapElem))
}

/// Encodes an atomic operation: the low bits are the number of the operation, bit 3 tells that the source
/// register receives the old value.
fn atomic_number(op: AtomicOp) -> i64 {
    let (number, fetch) = match op {
        AtomicOp::Add { fetch } => (0, fetch),
        AtomicOp::Or { fetch } => (1, fetch),
        AtomicOp::And { fetch } => (2, fetch),
        AtomicOp::Xor { fetch } => (3, fetch),
        AtomicOp::Xchg => (4, true),
        AtomicOp::CmpXchg => (5, false),
    };
    number | if fetch { FETCH } else { 0 }
}

/// See [`atomic_number`].
pub(super) const FETCH: i64 = 8;

/// [`atomic_number`] of an addition that does not fetch.
pub(super) const ATOMIC_ADD: i64 = 0;

/// Returns the new value of the memory, from the old value, the operand and R0.
pub(super) fn atomic_result(number: i64, old: u64, operand: u64, r0: u64) -> u64 {
    match number & !FETCH {
        0 => old.wrapping_add(operand),
        1 => old | operand,
        2 => old & operand,
        3 => old ^ operand,
        5 if old != r0 => old,
        _ => operand,
    }
}

/// Returns whether R0 receives the old value.
pub(super) fn is_cmpxchg(number: i64) -> bool {
    number == 5
}
