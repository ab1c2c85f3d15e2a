//! A program that is ready to run: checked, lowered to operations, with its maps.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::op::Op;
use super::space::{self, Arrays, Space};
use crate::insn::DecodeError;
use crate::map::{Map, MapRef};
use crate::program::Kfunc;

/// A program that can run on any number of threads.
#[derive(Debug)]
pub struct Image {
    pub(super) name: String,
    pub(super) ops: Box<[Op]>,
    /// Slot of each operation.
    pub(super) slots: Box<[u32]>,
    pub(super) maps: Box<[Arc<Map>]>,
    pub(super) space: Space,
    pub(super) arrays: Arrays,
    /// The return value, if the program only returns a constant.
    pub(super) constant: Option<u32>,
    pub(super) kfuncs: Box<[Kfunc]>,
    /// First operation and length of the program and of those in its program arrays.
    pub(super) programs: Box<[(usize, u64)]>,
    /// Length of each function, by its first operation.
    pub(super) functions: BTreeMap<usize, u64>,
}

impl Image {
    /// Returns the name of the program.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the return value if the program only returns a constant. Such a program need not be run.
    #[must_use]
    pub fn constant(&self) -> Option<u32> {
        self.constant
    }

    /// Returns the map that a redirect or [`Program::map`](crate::program::Program::map) refers to.
    #[must_use]
    pub fn map(&self, map: MapRef) -> Option<&Arc<Map>> {
        self.maps.get(map.index())
    }

    /// Returns the first operation and the length of a function that is an argument of a helper.
    pub(super) fn function(&self, address: u64) -> Option<(usize, u64)> {
        let at = space::offset(address);
        let len = self.functions.get(&at).filter(|_| address >> space::SEGMENT_BITS == space::FUNCTIONS);
        len.map(|len| (at, *len))
    }

    pub(super) fn slot_of(&self, op: usize) -> u32 {
        self.slots.get(op).copied().unwrap_or(0)
    }
}

/// Reason why the machine rejects a program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LoadError {
    /// Slot of the instruction.
    pub slot: usize,
    /// Reason.
    pub kind: LoadErrorKind,
}

/// Reason of a [`LoadError`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LoadErrorKind {
    /// The program has no instructions.
    Empty,
    /// The number of maps differs from that of [`Program::maps`](crate::program::Program::maps).
    NumberOfMaps,
    /// The maps do not fit into the address space.
    MapsTooLarge,
    /// A slot is no valid instruction.
    Decode(DecodeError),
    /// A jump or call leads out of its function or of the program, or into the middle of an instruction.
    Target,
    /// Execution can run past the last instruction of a function.
    NoExit,
    /// An instruction writes R10, which is read-only.
    WritesFramePointer,
    /// The program refers to a map that it does not define, or to an offset beyond the map's value.
    Map,
    /// The machine does not have this helper.
    Helper(i32),
    /// The machine does not have this function of the kernel.
    Kfunc(String),
    /// Programs of the machine cannot use this map.
    MapKind(String),
    /// The program uses kernel functions, kernel variables, addresses of functions, or file descriptors of
    /// maps.
    Unsupported,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let LoadErrorKind::Decode(error) = &self.kind {
            return error.fmt(f);
        }
        write!(f, "slot {}: ", self.slot)?;
        match &self.kind {
            LoadErrorKind::Empty => f.write_str("the program has no instructions"),
            LoadErrorKind::NumberOfMaps => {
                f.write_str("the number of maps differs from the program's definition")
            }
            LoadErrorKind::MapsTooLarge => f.write_str("the maps do not fit into the address space"),
            LoadErrorKind::Decode(error) => error.fmt(f),
            LoadErrorKind::Target => f.write_str("a jump leads out of the function"),
            LoadErrorKind::NoExit => f.write_str("a function does not end with an exit or a jump"),
            LoadErrorKind::WritesFramePointer => f.write_str("r10 is read-only"),
            LoadErrorKind::Map => f.write_str("no such map, or an offset beyond its value"),
            LoadErrorKind::Kfunc(name) => write!(f, "kernel function {name} is not available here"),
            LoadErrorKind::MapKind(name) => write!(f, "maps like {name} are not available here"),
            LoadErrorKind::Helper(id) => match crate::helper::name_of(*id) {
                Some(name) => write!(f, "helper bpf_{name} is not available here"),
                None => write!(f, "helper {id} is not available here"),
            },
            LoadErrorKind::Unsupported => {
                f.write_str("kernel symbols and file descriptors are not available here")
            }
        }
    }
}

impl std::error::Error for LoadError {}
