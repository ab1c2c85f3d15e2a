//! eBPF in user space: an assembler, XDP programs composed of blocks or loaded from object files, a static
//! checker, and a machine that runs them.
//!
//! The crate works on bytes and maps. It makes no system call, reads no clock, and has no unsafe code. A
//! [`Program`] is a value. The kernel and the [machine](vm) give the same verdict for it.
//!
//! There are three ways to get a program: a [`Recipe`] of ready blocks (select, police, sample, steer,
//! forward), the assembler [`Asm`], or an object file of clang (module `object`, with the feature of that
//! name).
//!
//! # Example
//!
//! Assemble a program that drops and counts IPv6 packets, check it, and run it on a frame:
//!
//! ```
//! use roxie_bpf::vet::vet;
//! use roxie_bpf::vm::{Env, Image, Machine, XdpBuff};
//! use roxie_bpf::{Asm, AtomicOp, Cond, Map, MapDef, Reg, Size, Width, XdpAction, XdpMd};
//!
//! let mut asm = Asm::new("drop_ipv6");
//! let dropped = asm.map(MapDef::array("dropped", 8, 1));
//! let pass = asm.label();
//! // The kernel passes the context in R1. R2 is the start of the packet, R3 its end.
//! asm.load_ctx(Reg::R2, Reg::R1, XdpMd::Data).load_ctx(Reg::R3, Reg::R1, XdpMd::DataEnd);
//! asm.need(Reg::R4, Reg::R2, 14, Reg::R3, pass);
//! asm.load(Size::H, Reg::R5, Reg::R2, 12).to_be(Size::H, Reg::R5);
//! asm.branch(Cond::Ne, Reg::R5, 0x86dd, pass);
//! asm.load_map_value(Reg::R1, dropped, 0).mov(Reg::R2, 1);
//! asm.atomic(Width::W64, AtomicOp::Add { fetch: false }, Reg::R1, 0, Reg::R2);
//! asm.ret(XdpAction::Drop).bind(pass).ret(XdpAction::Pass);
//! let program = asm.finish()?;
//!
//! assert!(vet(&program).is_empty());
//!
//! // Services of the host that programs can call.
//! struct Host;
//! impl Env for Host {
//!     fn ktime_ns(&mut self) -> u64 {
//!         0
//!     }
//!     fn random(&mut self) -> u32 {
//!         4
//!     }
//! }
//!
//! let maps = program.maps.iter().map(|def| Map::new(def, 1)).collect::<Result<_, _>>()?;
//! let image = Image::new(&program, maps)?;
//!
//! // A frame of 60 bytes after 256 bytes of headroom.
//! let mut buffer = [0; 256 + 60];
//! buffer[256 + 12..][..2].copy_from_slice(&[0x86, 0xdd]);
//! let mut buff = XdpBuff::new(&mut buffer, 256..316).unwrap();
//! let outcome = Machine::new(0).run(&image, &mut buff, &mut Host);
//!
//! assert_eq!(outcome.action(), XdpAction::Drop);
//! assert_eq!(image.map(dropped).unwrap().lookup(&[0; 4]).unwrap(), 1u64.to_le_bytes());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod insn;

mod asm;
mod btf;
mod disasm;
mod helper;
mod hints;
mod join;
mod map;
mod numbered;
mod program;
mod tap;
mod xdp;

#[cfg(feature = "object")]
pub mod object;
pub mod recipe;
pub mod vet;
pub mod vm;

pub use asm::{Asm, AsmError, Function, Label};
pub use btf::{Btf, FuncInfo, Leaf, MapTypes, Typed, Types};
pub use disasm::Listing;
pub use helper::Helper;
pub use hints::{HintKfuncs, Hints};
pub use insn::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Reg, Size, Slot, Swap, Width};
pub use join::{JOINED_MAX, JoinError, Joined, join};
pub use map::{Initial, Map, MapDef, MapError, MapKind, MapRef, Page, Ring, UpdateMode};
pub use program::{Kfunc, LinkError, Program, ProgramKind};
pub use recipe::{Action, Pick, Recipe, RecipeError, Select, Stage};
pub use tap::{TAP, TAP_QPS, TAP_STATE, TAP_STATE_LEN, Tap, TapConditions, TapHeader, TapOpcode};
pub use xdp::{XdpAction, XdpMd};
