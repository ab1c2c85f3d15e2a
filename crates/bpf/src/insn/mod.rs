//! The instruction set: what one eBPF instruction means, apart from how it is encoded.
//!
//! An instruction is decoded from and encoded to *slots* of eight bytes ([`Slot`]), of which a 64-bit load
//! takes two. Everything of instruction set version 4 has a value here, and so have the acquire loads and release
//! stores that came after it; the packet loads of classic BPF do not, because XDP programs may not use them.
//! Read RFC 9669 first.

mod decode;
mod encode;
mod slot;

pub use decode::{DecodeError, DecodeErrorKind, decode, decode_all};
pub use encode::encode;
pub use slot::Slot;

use std::fmt;

/// One of the eleven registers. R1..R5 carry arguments and are lost in a call, R6..R9 survive it, R0 is the
/// result, R10 the end of the stack frame (read-only).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl Reg {
    /// All registers, by number.
    pub const ALL: [Reg; 11] =
        [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, Reg::R6, Reg::R7, Reg::R8, Reg::R9, Reg::R10];

    /// The register with this number, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Reg> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// 0..=10.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.number())
    }
}

/// Whether arithmetic or a comparison looks at the lower half of the registers or at all of them. A 32-bit result
/// clears the upper half.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Width {
    W32,
    W64,
}

/// Bytes a load or store moves.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Size {
    /// 1
    B,
    /// 2
    H,
    /// 4
    W,
    /// 8
    Dw,
}

impl Size {
    /// 1, 2, 4 or 8.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Size::B => 1,
            Size::H => 2,
            Size::W => 4,
            Size::Dw => 8,
        }
    }
}

/// The second operand: a register, or an immediate that is sign-extended to 64 bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Operand {
    Reg(Reg),
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Operand {
        Operand::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Operand {
        Operand::Imm(imm)
    }
}

/// `dst = dst OP src`. Division by zero gives 0, the remainder by zero leaves `dst`, shift counts wrap at the width.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum AluOp {
    Add,
    Sub,
    Mul,
    /// Unsigned.
    Div,
    Or,
    And,
    /// Shift left.
    Lsh,
    /// Shift right, zeros enter.
    Rsh,
    /// Unsigned.
    Mod,
    Xor,
    Mov,
    /// Shift right, the sign enters.
    Arsh,
    /// Signed.
    SDiv,
    /// Signed; the sign is that of the dividend.
    SMod,
}

/// Condition of a branch, `dst COND src`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cond {
    /// Equal.
    Eq,
    /// Greater, unsigned.
    Gt,
    /// Greater or equal, unsigned.
    Ge,
    /// `dst & src` is not 0.
    Set,
    /// Not equal.
    Ne,
    /// Greater, signed.
    SGt,
    /// Greater or equal, signed.
    SGe,
    /// Less, unsigned.
    Lt,
    /// Less or equal, unsigned.
    Le,
    /// Less, signed.
    SLt,
    /// Less or equal, signed.
    SLe,
}

/// Conversion of byte order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Swap {
    /// Host to little-endian or back: on the little-endian machines we load programs on, a truncation.
    ToLe,
    /// Host to big-endian or back.
    ToBe,
    /// Whatever the host's order is (version 4).
    Always,
}

/// Read-modify-write on memory at `[base + off]`, 4 or 8 bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOp {
    /// The old value is put in `src` if `fetch`.
    Add {
        /// Whether `src` becomes the old value.
        fetch: bool,
    },
    /// As `Add`.
    Or {
        /// Whether `src` becomes the old value.
        fetch: bool,
    },
    /// As `Add`.
    And {
        /// Whether `src` becomes the old value.
        fetch: bool,
    },
    /// As `Add`.
    Xor {
        /// Whether `src` becomes the old value.
        fetch: bool,
    },
    /// Memory and `src` change places.
    Xchg,
    /// Memory becomes `src` if it equals R0; R0 becomes the old value.
    CmpXchg,
}

/// What a two-slot load puts into its register.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Imm64 {
    /// A number.
    Value(u64),
    /// A map, by file descriptor of the process that loads the program.
    MapFd(i32),
    /// Address within the only value of an array map, by file descriptor.
    MapFdValue {
        /// The map.
        fd: i32,
        /// Byte offset into the value.
        off: u32,
    },
    /// A map, by its index in [`Program::maps`](crate::Program::maps). The kernel knows this form as an index into
    /// the loader's `fd_array`.
    Map(u32),
    /// Address within the only value of an array map, by index.
    MapValue {
        /// Index of the map.
        map: u32,
        /// Byte offset into the value.
        off: u32,
    },
    /// A kernel variable, by BTF id and the descriptor of the module's BTF (0: the kernel's own).
    BtfId {
        /// Id of the variable.
        id: i32,
        /// BTF object it is in.
        btf_fd: u32,
    },
    /// Address of a function of the program, relative to the next instruction, in slots.
    Func(i32),
}

/// One instruction. Jump distances count slots from the instruction that follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Insn {
    /// `dst = dst OP src`.
    Alu {
        /// Width of the operation.
        width: Width,
        /// What to do.
        op: AluOp,
        /// First operand and result.
        dst: Reg,
        /// Second operand.
        src: Operand,
    },
    /// `dst = -dst`.
    Neg {
        /// Width of the operation.
        width: Width,
        /// Operand and result.
        dst: Reg,
    },
    /// `dst = src`, whose lowest `from` bytes are sign-extended. `from` is less than the width.
    MovSx {
        /// Width of the result.
        width: Width,
        /// How much of `src` counts.
        from: Size,
        /// Result.
        dst: Reg,
        /// Source.
        src: Reg,
    },
    /// Byte order of the lowest `size` bytes of `dst`; the rest becomes 0. Never [`Size::B`].
    Swap {
        /// Which conversion.
        to: Swap,
        /// How many bytes.
        size: Size,
        /// Operand and result.
        dst: Reg,
    },
    /// Two slots.
    LoadImm64 {
        /// Result.
        dst: Reg,
        /// What to load.
        imm: Imm64,
    },
    /// `dst = *(base + off)`.
    Load {
        /// Bytes to load.
        size: Size,
        /// Extend the sign (never with [`Size::Dw`]) instead of zeros.
        signed: bool,
        /// Result.
        dst: Reg,
        /// Pointer.
        base: Reg,
        /// Added to the pointer.
        off: i16,
    },
    /// `*(base + off) = src`.
    Store {
        /// Bytes to store.
        size: Size,
        /// Pointer.
        base: Reg,
        /// Added to the pointer.
        off: i16,
        /// What to store; an immediate is sign-extended to 8 bytes.
        src: Operand,
    },
    /// Atomic read-modify-write.
    Atomic {
        /// 4 or 8 bytes.
        width: Width,
        /// What to do.
        op: AtomicOp,
        /// Pointer.
        base: Reg,
        /// Added to the pointer.
        off: i16,
        /// Operand, and the old value of fetching operations.
        src: Reg,
    },
    /// `dst = *(base + off)`, before everything that follows.
    LoadAcquire {
        /// Bytes to load.
        size: Size,
        /// Result.
        dst: Reg,
        /// Pointer.
        base: Reg,
        /// Added to the pointer.
        off: i16,
    },
    /// `*(base + off) = src`, after everything that precedes.
    StoreRelease {
        /// Bytes to store.
        size: Size,
        /// Pointer.
        base: Reg,
        /// Added to the pointer.
        off: i16,
        /// What to store.
        src: Reg,
    },
    /// Unconditional jump with a 16-bit distance.
    Jump {
        /// Distance.
        off: i16,
    },
    /// Unconditional jump with a 32-bit distance (`gotol`, version 4).
    JumpLong {
        /// Distance.
        off: i32,
    },
    /// Jump if `dst COND src`.
    Branch {
        /// Width of the comparison.
        width: Width,
        /// Condition.
        cond: Cond,
        /// First operand.
        dst: Reg,
        /// Second operand.
        src: Operand,
        /// Distance.
        off: i16,
    },
    /// Call of a kernel helper by number; see [`Helper`](crate::Helper).
    CallHelper {
        /// Its number.
        id: i32,
    },
    /// Call of a function of the same program.
    CallLocal {
        /// Distance to its first instruction.
        off: i32,
    },
    /// Call of a kernel function by BTF id.
    CallKfunc {
        /// Its id.
        id: i32,
        /// Index of the module's BTF in the loader's `fd_array`; 0 is the kernel's own.
        btf: i16,
    },
    /// Return to the caller, R0 is the result.
    Exit,
}

impl Insn {
    /// Slots the instruction takes: 2 for a 64-bit load, otherwise 1.
    #[must_use]
    pub const fn slots(&self) -> usize {
        match self {
            Insn::LoadImm64 { .. } => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests;
