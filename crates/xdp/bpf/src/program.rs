//! A program as a value, for the kernel's loader and for the user-space machine.

use std::fmt;

use crate::btf::Btf;
use crate::insn::slot::{ALU64, CALL_KFUNC, JMP, OP_CALL, OP_MOV};
use crate::insn::{DecodeError, Imm64, Insn, Slot, decode_all, encode};
use crate::map::{MapDef, MapRef};

/// Place where a program runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ProgramKind {
    /// On packets that an interface receives.
    #[default]
    Xdp,
    /// In an entry of a CPUMAP, on the CPU to which the packet was redirected.
    XdpCpumap,
    /// In an entry of a DEVMAP, before the device transmits the packet.
    XdpDevmap,
    /// On packets in the network stack (traffic control classifier).
    Classifier,
}

impl ProgramKind {
    /// Returns the program type for the load (`enum bpf_prog_type`).
    #[must_use]
    pub const fn program_type(self) -> u32 {
        match self {
            ProgramKind::Xdp | ProgramKind::XdpCpumap | ProgramKind::XdpDevmap => 6,
            ProgramKind::Classifier => 3,
        }
    }

    /// Returns `expected_attach_type` for the load (`enum bpf_attach_type`); 0 if the kernel does not need
    /// one.
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

/// A program with all that is needed to load it.
///
/// Instructions refer to maps by their index in `maps` ([`Imm64::Map`], [`Imm64::MapValue`]). The loader
/// creates the maps; [`Program::link`] replaces the indices by file descriptors.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Program {
    /// Name; the kernel takes up to 15 letters, digits, `_` and `.`.
    pub name: String,
    /// Place where the program runs.
    pub kind: ProgramKind,
    /// The code.
    pub slots: Vec<Slot>,
    /// The maps that the code refers to; it may use only some of them.
    pub maps: Vec<MapDef>,
    /// License as in `MODULE_LICENSE()`. Some helpers are only available to GPL-compatible programs.
    pub license: String,
    /// Whether the program supports packets of several fragments (`BPF_F_XDP_HAS_FRAGS`).
    pub frags: bool,
    /// Type information with function names. The libxdp dispatcher and xdpdump need it.
    pub btf: Option<Btf>,
    /// Functions of the kernel that the code calls; the instructions have the index.
    pub kfuncs: Vec<Kfunc>,
    /// Programs that initial values of program arrays name. They have the same maps, and no `tails`.
    pub tails: Vec<Program>,
}

/// The helper number in an instruction that has no equivalent in this kernel. The verifier accepts it where
/// it is never reached, and names the number where it is (libbpf uses the same one).
pub(crate) const POISON: i32 = 195_896_080;
/// Helper number of a call to a weak function that the kernel does not have. A program asks with
/// `bpf_ksym_exists()` first, so that the verifier finds the call unreachable.
pub(crate) const NO_KFUNC: i32 = 2_002_000_000;

/// Error number of a hint that the driver does not have for a packet.
const ENODATA: i32 = 61;

/// A function of the kernel that programs can call (kfunc).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Kfunc {
    /// Its name.
    pub name: String,
    /// Id of its type in the kernel's BTF; `None` if those types were not known.
    pub id: Option<u32>,
}

impl Kfunc {
    /// Whether it reads metadata of the receiving device. A program with such a function is loaded for one
    /// interface (`BPF_F_XDP_DEV_BOUND_ONLY`).
    #[must_use]
    pub fn is_device_bound(&self) -> bool {
        self.name.starts_with("bpf_xdp_metadata_rx_")
    }
}

impl Program {
    /// Load flag `BPF_F_XDP_HAS_FRAGS`.
    pub const HAS_FRAGS: u32 = 1 << 5;
    /// License of assembled programs. The kernel treats it as GPL-compatible.
    pub const LICENSE: &str = "Dual MIT/GPL";

    /// Returns `prog_flags` for the load.
    #[must_use]
    pub fn flags(&self) -> u32 {
        if self.frags { Self::HAS_FRAGS } else { 0 }
    }

    /// Returns whether the program must be loaded for one interface.
    #[must_use]
    pub fn is_device_bound(&self) -> bool {
        self.kfuncs.iter().any(Kfunc::is_device_bound)
    }

    /// Returns the program with no receive hint for any packet (`ENODATA`): the kernel makes test runs only
    /// of programs that are not bound to a device.
    #[must_use]
    pub fn without_hints(&self) -> Program {
        let mut program = self.clone();
        let is_call = |slot: &&mut Slot| slot.opcode == OP_CALL | JMP && slot.src == CALL_KFUNC;
        for slot in program.slots.iter_mut().filter(is_call) {
            let before = self.kfuncs.get(..slot.imm as usize).unwrap_or_default();
            if self.kfuncs.get(before.len()).is_some_and(Kfunc::is_device_bound) {
                *slot = Slot { opcode: ALU64 | OP_MOV, imm: -ENODATA, ..Slot::default() };
            } else {
                slot.imm -= before.iter().filter(|kfunc| kfunc.is_device_bound()).count() as i32;
            }
        }
        program.kfuncs.retain(|kfunc| !kfunc.is_device_bound());
        program.tails = self.tails.iter().map(Program::without_hints).collect();
        program
    }

    /// Returns the map with this name.
    #[must_use]
    pub fn map(&self, name: &str) -> Option<MapRef> {
        let index = self.maps.iter().position(|map| map.name == name)?;
        u32::try_from(index).ok().map(MapRef)
    }

    /// Returns the slots that hold a map index, each with that index.
    ///
    /// # Errors
    /// [`DecodeError`] if the code is malformed.
    pub fn map_slots(&self) -> Result<Vec<(usize, MapRef)>, DecodeError> {
        let refs = decode_all(&self.slots)?.into_iter().filter_map(|(at, insn)| match insn {
            Insn::LoadImm64 { imm: Imm64::Map(map) | Imm64::MapValue { map, .. }, .. } => {
                Some((at, MapRef(map)))
            }
            _ => None,
        });
        Ok(refs.collect())
    }

    /// Returns the code as bytes for `BPF_PROG_LOAD`. `fds` are the file descriptors of [`Program::maps`] in
    /// order; they replace the map indices. `insn_cnt` of the load is the length divided by [`Slot::LEN`].
    ///
    /// # Errors
    /// [`LinkError`] if the code is malformed or `fds` is too short.
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
                Insn::CallKfunc { id, btf: 0 } if !self.kfuncs.is_empty() => {
                    let kfunc = usize::try_from(id).ok().and_then(|index| self.kfuncs.get(index));
                    let kfunc = kfunc.ok_or(LinkError::NoSuchKfunc(id))?;
                    let id = kfunc.id.ok_or_else(|| LinkError::UnknownKfunc(kfunc.name.clone()))?;
                    Insn::CallKfunc { id: id as i32, btf: 0 }
                }
                other => other,
            };
            encode(&insn, &mut linked);
        }
        Ok(linked.into_iter().flat_map(Slot::to_bytes).collect())
    }
}

/// Reason why [`Program::link`] failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LinkError {
    /// The code is malformed.
    Decode(DecodeError),
    /// The code refers to a map that has no file descriptor.
    NoSuchMap(u32),
    /// The code calls a kernel function that is not in [`Program::kfuncs`].
    NoSuchKfunc(i32),
    /// The id of this kernel function is not known: the program was linked without the kernel's types.
    UnknownKfunc(String),
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
            LinkError::NoSuchKfunc(index) => {
                write!(f, "the program calls kernel function {index}, which it does not name")
            }
            LinkError::UnknownKfunc(name) => {
                write!(f, "kernel function {name}: the kernel's types (/sys/kernel/btf/vmlinux) are needed")
            }
        }
    }
}

impl std::error::Error for LinkError {}
