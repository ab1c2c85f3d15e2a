//! eBPF as bytes: programs assembled at run time, programs from object files, and a machine that runs both.
//!
//! This crate touches bytes and maps: no system call, no clock, no RDMA, no unsafe. A [`Program`] is a value; the
//! `roxie` crate puts it into the kernel or onto a hook of its own, and the verdict is the same in both places.
//!
//! Ways to a program: a [`Recipe`] of ready blocks (parse, police, sample, steer, forward), the assembler
//! ([`Asm`]) underneath it, or a clang-built object file.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod insn;

mod asm;
mod btf;
mod disasm;
mod helper;
mod map;
mod program;
mod tap;
mod xdp;

#[cfg(feature = "object")]
pub mod object;
pub mod recipe;
pub mod vet;
pub mod vm;

pub use asm::{Asm, AsmError, Function, Label};
pub use btf::{Btf, FuncInfo};
pub use disasm::Listing;
pub use helper::Helper;
pub use insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Slot, Swap, Width};
pub use map::{Map, MapDef, MapError, MapKind, MapRef, Ring, UpdateMode};
pub use program::{LinkError, Program, ProgramKind};
pub use recipe::{Action, Pick, Recipe, RecipeError, Select, Stage};
pub use tap::{TAP, TAP_QPS, TAP_STATE, TAP_STATE_LEN, Tap, TapConditions, TapHeader, TapOpcode};
pub use xdp::{XdpAction, XdpMd};
