//! The eBPF instruction set: the meaning of each instruction, independent of its encoding (RFC 9669).
//!
//! An instruction is encoded as *slots* of eight bytes ([`Slot`]); a 64-bit load has two slots. The enums
//! cover version 4 of the instruction set and the later acquire loads and release stores. They do not cover
//! the packet loads of classic BPF, which XDP programs may not use.

mod decode;
mod encode;
pub(crate) mod slot;

pub use decode::{DecodeError, DecodeErrorKind, decode, decode_all};
pub use encode::encode;
pub use slot::Slot;

use std::fmt;

use crate::numbered::numbered;

numbered! {
    /// One of the eleven registers. R1..R5 carry arguments and are clobbered by calls; R6..R9 are preserved;
    /// R0 is the result; R10 is the end of the stack frame (read-only).
    #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
    #[repr(u8)]
    #[allow(missing_docs, reason = "the names are those of the standard")]
    pub enum Reg {
        R0 = 0 "r0",
        R1 = 1 "r1",
        R2 = 2 "r2",
        R3 = 3 "r3",
        R4 = 4 "r4",
        R5 = 5 "r5",
        R6 = 6 "r6",
        R7 = 7 "r7",
        R8 = 8 "r8",
        R9 = 9 "r9",
        R10 = 10 "r10",
    }
    number: u8, from_number;
    /// Returns the name in listings.
    name
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Width of arithmetic or a comparison: the lower 32 bits or all 64 bits. A 32-bit result clears the upper
/// half.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the names state the width")]
pub enum Width {
    W32,
    W64,
}

numbered! {
    /// Number of bytes that a load or store moves.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Size {
        /// 1 byte.
        B = 0x10 "u8",
        /// 2 bytes.
        H = 0x08 "u16",
        /// 4 bytes.
        W = 0x00 "u32",
        /// 8 bytes.
        Dw = 0x18 "u64",
    }
    code: u8, from_code;
    /// Returns the name of the unsigned number with this size, as the listing shows it.
    name
}

impl Size {
    /// Returns 1, 2, 4 or 8.
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
#[allow(missing_docs, reason = "the type describes the variants")]
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

numbered! {
    /// Arithmetic, `dst = dst OP src`. Division by zero gives 0, remainder by zero leaves `dst`; shift counts
    /// wrap at the width.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[allow(missing_docs, reason = "the names are those of the standard")]
    pub enum AluOp {
        Add = 0x00 "+",
        Sub = 0x10 "-",
        Mul = 0x20 "*",
        /// Unsigned division.
        Div = 0x30 "/",
        Or = 0x40 "|",
        And = 0x50 "&",
        /// Shift left.
        Lsh = 0x60 "<<",
        /// Shift right, unsigned.
        Rsh = 0x70 ">>",
        /// Unsigned remainder.
        Mod = 0x90 "%",
        Xor = 0xa0 "^",
        Mov = 0xb0 "",
        /// Shift right, signed (arithmetic).
        Arsh = 0xc0 "s>>",
        /// Signed division.
        SDiv = 0x130 "s/",
        /// Signed remainder; it has the sign of the dividend.
        SMod = 0x190 "s%",
    }
    code: u16, from_code;
    /// Returns the sign of the operation, as the listing shows it.
    sign
}

numbered! {
    /// Condition of a branch, `dst COND src`.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Cond {
        /// Equal.
        Eq = 0x10 "==",
        /// Greater, unsigned.
        Gt = 0x20 ">",
        /// Greater or equal, unsigned.
        Ge = 0x30 ">=",
        /// `dst & src` is not 0.
        Set = 0x40 "&",
        /// Not equal.
        Ne = 0x50 "!=",
        /// Greater, signed.
        SGt = 0x60 "s>",
        /// Greater or equal, signed.
        SGe = 0x70 "s>=",
        /// Less, unsigned.
        Lt = 0xa0 "<",
        /// Less or equal, unsigned.
        Le = 0xb0 "<=",
        /// Less, signed.
        SLt = 0xc0 "s<",
        /// Less or equal, signed.
        SLe = 0xd0 "s<=",
    }
    code: u8, from_code;
    /// Returns the sign of the comparison, as the listing shows it.
    sign
}

/// Byte order conversion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Swap {
    /// Host to little-endian or back. On a little-endian host this only truncates.
    ToLe,
    /// Host to big-endian or back.
    ToBe,
    /// Byte swap on every host (version 4).
    Always,
}

/// Atomic read-modify-write of 4 or 8 bytes at `[base + off]`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOp {
    /// `*p += src`.
    Add {
        /// Whether `src` receives the old value.
        fetch: bool,
    },
    /// `*p |= src`.
    Or {
        /// Whether `src` receives the old value.
        fetch: bool,
    },
    /// `*p &= src`.
    And {
        /// Whether `src` receives the old value.
        fetch: bool,
    },
    /// `*p ^= src`.
    Xor {
        /// Whether `src` receives the old value.
        fetch: bool,
    },
    /// Exchanges memory and `src`.
    Xchg,
    /// Stores `src` if the memory equals R0. R0 receives the old value.
    CmpXchg,
}

/// Value of a 64-bit load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Imm64 {
    /// A number.
    Value(u64),
    /// A map, as a file descriptor of the process that loads the program.
    MapFd(i32),
    /// Address inside the only value of an array map, by file descriptor.
    MapFdValue {
        /// File descriptor of the map.
        fd: i32,
        /// Byte offset into the value.
        off: u32,
    },
    /// A map, as an index into [`Program::maps`](crate::Program::maps). To the kernel this form is an index
    /// into the loader's `fd_array`.
    Map(u32),
    /// Address inside the only value of an array map, by index.
    MapValue {
        /// Index of the map.
        map: u32,
        /// Byte offset into the value.
        off: u32,
    },
    /// A kernel variable, by BTF id and descriptor of the module's BTF (0 is the kernel's own BTF).
    BtfId {
        /// Id of the variable.
        id: i32,
        /// File descriptor of the BTF object that contains it.
        btf_fd: u32,
    },
    /// Address of a function of the program, as a distance in slots from the next instruction.
    Func(i32),
}

/// One instruction. Jump distances are in slots, counted from the following instruction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Insn {
    /// `dst = dst OP src`.
    Alu {
        /// Width of the operation.
        width: Width,
        /// Operation.
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
    /// `dst = src` with the lowest `from` bytes sign-extended. `from` is less than the width.
    MovSx {
        /// Width of the result.
        width: Width,
        /// Number of bytes of `src` that are extended.
        from: Size,
        /// Result.
        dst: Reg,
        /// Source.
        src: Reg,
    },
    /// Converts the byte order of the lowest `size` bytes of `dst`; the upper bytes become 0. `size` is never
    /// [`Size::B`].
    Swap {
        /// Conversion.
        to: Swap,
        /// Number of bytes.
        size: Size,
        /// Operand and result.
        dst: Reg,
    },
    /// `dst = imm`, in two slots.
    LoadImm64 {
        /// Result.
        dst: Reg,
        /// Value.
        imm: Imm64,
    },
    /// `dst = *(base + off)`.
    Load {
        /// Number of bytes.
        size: Size,
        /// Sign-extend (never with [`Size::Dw`]) instead of zero-extend.
        signed: bool,
        /// Result.
        dst: Reg,
        /// Register with the address.
        base: Reg,
        /// Offset from the address, in bytes.
        off: i16,
    },
    /// `*(base + off) = src`.
    Store {
        /// Number of bytes.
        size: Size,
        /// Register with the address.
        base: Reg,
        /// Offset from the address, in bytes.
        off: i16,
        /// Value to store. An immediate is sign-extended to 8 bytes.
        src: Operand,
    },
    /// Atomic read-modify-write.
    Atomic {
        /// 4 or 8 bytes.
        width: Width,
        /// Operation.
        op: AtomicOp,
        /// Register with the address.
        base: Reg,
        /// Offset from the address, in bytes.
        off: i16,
        /// Operand; receives the old value if the operation fetches.
        src: Reg,
    },
    /// `dst = *(base + off)` with acquire ordering.
    LoadAcquire {
        /// Number of bytes.
        size: Size,
        /// Result.
        dst: Reg,
        /// Register with the address.
        base: Reg,
        /// Offset from the address, in bytes.
        off: i16,
    },
    /// `*(base + off) = src` with release ordering.
    StoreRelease {
        /// Number of bytes.
        size: Size,
        /// Register with the address.
        base: Reg,
        /// Offset from the address, in bytes.
        off: i16,
        /// Value to store.
        src: Reg,
    },
    /// Unconditional jump with a 16-bit distance.
    Jump {
        /// Distance in slots.
        off: i16,
    },
    /// Unconditional jump with a 32-bit distance (`gotol`, version 4).
    JumpLong {
        /// Distance in slots.
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
        /// Distance in slots.
        off: i16,
    },
    /// Call of a kernel helper by number; see [`Helper`](crate::Helper).
    CallHelper {
        /// Number of the helper.
        id: i32,
    },
    /// Call of a function of the same program.
    CallLocal {
        /// Distance to the first instruction of the function, in slots.
        off: i32,
    },
    /// Call of a kernel function by BTF id.
    CallKfunc {
        /// BTF id of the function.
        id: i32,
        /// Index of the module's BTF in the loader's `fd_array`; 0 is the kernel's own BTF.
        btf: i16,
    },
    /// Return to the caller. R0 is the result.
    Exit,
}

impl Insn {
    /// Returns the number of slots: 2 for a 64-bit load, otherwise 1.
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
