//! A program as a value: what the kernel's loader and the user-space machine both take.

use std::fmt;

use crate::btf::Btf;
use crate::insn::{DecodeError, Imm64, Insn, Slot, decode_all, encode};
use crate::map::{MapDef, MapRef};

/// Where a program is meant to run.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ProgramKind {
    /// On an interface.
    #[default]
    Xdp,
    /// In an entry of a CPUMAP, on the other CPU.
    XdpCpumap,
    /// In an entry of a DEVMAP, before the packet leaves.
    XdpDevmap,
    /// On packets in the network stack (traffic control).
    Classifier,
}

impl ProgramKind {
    /// Type of the load (`enum bpf_prog_type`).
    #[must_use]
    pub const fn program_type(self) -> u32 {
        match self {
            ProgramKind::Xdp | ProgramKind::XdpCpumap | ProgramKind::XdpDevmap => 6,
            ProgramKind::Classifier => 3,
        }
    }

    /// `expected_attach_type` of the load (`enum bpf_attach_type`); 0 where the kernel wants none.
    #[must_use]
    pub const fn attach_type(self) -> u32 {
        match self {
            ProgramKind::Xdp => 37,
            ProgramKind::XdpCpumap => 35,
            ProgramKind::XdpDevmap => 33,
            ProgramKind::Classifier => 0,
        }
    }
}

/// A program with everything that loading it takes.
///
/// Instructions name maps by their index in `maps` ([`Imm64::Map`], [`Imm64::MapValue`]); whoever loads the program
/// creates the maps and has the indices replaced by descriptors ([`Program::link`]).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Program {
    /// At most 15 of letters, digits, `_` and `.` reach the kernel.
    pub name: String,
    /// Where it runs.
    pub kind: ProgramKind,
    /// The code.
    pub slots: Vec<Slot>,
    /// The maps it refers to, and possibly more.
    pub maps: Vec<MapDef>,
    /// As `MODULE_LICENSE()`; some helpers are for GPL-compatible programs only.
    pub license: String,
    /// It copes with packets in several fragments (`BPF_F_XDP_HAS_FRAGS`).
    pub frags: bool,
    /// Types and function names; without them the libxdp dispatcher and xdpdump refuse the program.
    pub btf: Option<Btf>,
}

impl Program {
    /// `BPF_F_XDP_HAS_FRAGS`.
    pub const HAS_FRAGS: u32 = 1 << 5;
    /// What our own programs declare; the kernel reads it as GPL-compatible.
    pub const LICENSE: &str = "Dual MIT/GPL";

    /// `prog_flags` of the load.
    #[must_use]
    pub fn flags(&self) -> u32 {
        if self.frags { Self::HAS_FRAGS } else { 0 }
    }

    /// The map of this name.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<MapRef> {
        let index = self.maps.iter().position(|map| map.name == name)?;
        u32::try_from(index).ok().map(MapRef)
    }

    /// Slots that hold a map index, each with that index.
    pub fn map_slots(&self) -> Result<Vec<(usize, MapRef)>, DecodeError> {
        let refs = decode_all(&self.slots)?.into_iter().filter_map(|(at, insn)| match insn {
            Insn::LoadImm64 { imm: Imm64::Map(map) | Imm64::MapValue { map, .. }, .. } => {
                Some((at, MapRef(map)))
            }
            _ => None,
        });
        Ok(refs.collect())
    }

    /// The code as bytes for `BPF_PROG_LOAD`, with map indices replaced by `fds`, the descriptors of [`Program::maps`]
    /// in order. `insn_cnt` of the load is the length divided by [`Slot::LEN`].
    pub fn link(&self, fds: &[i32]) -> Result<Vec<u8>, LinkError> {
        let fd_of = |map: u32| fds.get(map as usize).copied().ok_or(LinkError::NoSuchMap(map));
        let mut linked = Vec::with_capacity(self.slots.len());
        for (_, insn) in decode_all(&self.slots)? {
            let insn = match insn {
                Insn::LoadImm64 { dst, imm: Imm64::Map(map) } => {
                    Insn::LoadImm64 { dst, imm: Imm64::MapFd(fd_of(map)?) }
                }
                Insn::LoadImm64 { dst, imm: Imm64::MapValue { map, off } } => {
                    Insn::LoadImm64 { dst, imm: Imm64::MapFdValue { fd: fd_of(map)?, off } }
                }
                other => other,
            };
            encode(&insn, &mut linked);
        }
        Ok(linked.into_iter().flat_map(Slot::to_bytes).collect())
    }
}

/// Why a program cannot be put into the form the kernel loads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkError {
    /// Not an instruction.
    Decode(DecodeError),
    /// The program refers to a map that has no descriptor.
    NoSuchMap(u32),
}

impl From<DecodeError> for LinkError {
    fn from(error: DecodeError) -> LinkError {
        LinkError::Decode(error)
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkError::Decode(error) => error.fmt(f),
            LinkError::NoSuchMap(map) => {
                write!(f, "the program refers to map {map}, which it does not define")
            }
        }
    }
}

impl std::error::Error for LinkError {}
