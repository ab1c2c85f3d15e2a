//! A slot: eight bytes of a program, split into the fields of `struct bpf_insn` (`linux/bpf.h`).
//!
//! ```text
//! +--------+---+---+----------------+--------------------------------+
//! | opcode |dst|src|      off       |              imm               |   dst is the lower half of its byte
//! +--------+---+---+----------------+--------------------------------+
//! ```
//!
//! The encoding is that of little-endian programs. roxie supports little-endian machines only.

/// One slot. `to_bytes` cuts `dst` and `src` to four bits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Slot {
    /// Instruction class, operation and mode.
    pub opcode: u8,
    /// Destination register, 0..=15.
    pub dst: u8,
    /// Source register, 0..=15, or the kind of immediate.
    pub src: u8,
    /// Jump distance or address offset.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

impl Slot {
    /// Length of a slot in bytes.
    pub const LEN: usize = 8;

    /// Splits the bytes into fields. Every pattern is a slot, but not every slot is an instruction.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Slot {
        let [opcode, regs, off0, off1, imm @ ..] = *bytes;
        Slot {
            opcode,
            dst: regs & 0xf,
            src: regs >> 4,
            off: i16::from_le_bytes([off0, off1]),
            imm: i32::from_le_bytes(imm),
        }
    }

    /// Returns the bytes, as the kernel's loader takes them.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let [off0, off1] = self.off.to_le_bytes();
        let [imm0, imm1, imm2, imm3] = self.imm.to_le_bytes();
        [self.opcode, self.dst & 0xf | self.src << 4, off0, off1, imm0, imm1, imm2, imm3]
    }
}

// Instruction classes (RFC 9669, 3.1).
pub(crate) const CLASS: u8 = 0x07;
pub(crate) const LD: u8 = 0x00;
pub(crate) const LDX: u8 = 0x01;
pub(crate) const ST: u8 = 0x02;
pub(crate) const STX: u8 = 0x03;
pub(crate) const ALU: u8 = 0x04;
pub(crate) const JMP: u8 = 0x05;
pub(crate) const JMP32: u8 = 0x06;
pub(crate) const ALU64: u8 = 0x07;

/// Set if the second operand is a register.
pub(crate) const SRC_REG: u8 = 0x08;
/// Operation of arithmetic and jumps.
pub(crate) const OP: u8 = 0xf0;
pub(crate) const OP_NEG: u8 = 0x80;
pub(crate) const OP_MOV: u8 = 0xb0;
pub(crate) const OP_END: u8 = 0xd0;
pub(crate) const OP_JA: u8 = 0x00;
pub(crate) const OP_CALL: u8 = 0x80;
pub(crate) const OP_EXIT: u8 = 0x90;

/// Width of a load or store.
pub(crate) const SIZE: u8 = 0x18;
/// Mode of a load or store.
pub(crate) const MODE: u8 = 0xe0;
pub(crate) const MODE_IMM: u8 = 0x00;
pub(crate) const MODE_MEM: u8 = 0x60;
pub(crate) const MODE_MEMSX: u8 = 0x80;
pub(crate) const MODE_ATOMIC: u8 = 0xc0;
pub(crate) const OP_LOAD_IMM64: u8 = LD | MODE_IMM | 0x18;

pub(crate) const FETCH: i32 = 0x01;
pub(crate) const ATOMIC_XCHG: i32 = 0xe1;
pub(crate) const ATOMIC_CMPXCHG: i32 = 0xf1;
pub(crate) const LOAD_ACQUIRE: i32 = 0x100;
pub(crate) const STORE_RELEASE: i32 = 0x110;

/// `src` of a call.
pub(crate) const CALL_HELPER: u8 = 0;
pub(crate) const CALL_LOCAL: u8 = 1;
pub(crate) const CALL_KFUNC: u8 = 2;

/// `src` of a 64-bit load, `BPF_PSEUDO_*` in `linux/bpf.h`.
pub(crate) const IMM64_MAP_FD: u8 = 1;
pub(crate) const IMM64_MAP_FD_VALUE: u8 = 2;
pub(crate) const IMM64_BTF_ID: u8 = 3;
pub(crate) const IMM64_FUNC: u8 = 4;
pub(crate) const IMM64_MAP: u8 = 5;
pub(crate) const IMM64_MAP_VALUE: u8 = 6;
