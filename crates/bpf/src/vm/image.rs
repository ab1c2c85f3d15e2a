//! A program made ready to run: checked, its operations decided, its maps in place.

use std::fmt;
use std::sync::Arc;

use super::check;
use super::op::Op;
use super::space::{Arrays, Space};
use crate::insn::DecodeError;
use crate::map::{Map, MapRef};
use crate::program::Program;

/// A program that can run, on any number of threads.
#[derive(Debug)]
pub struct Image {
    name: String,
    pub(super) ops: Box<[Op]>,
    /// Slot of each operation.
    slots: Box<[u32]>,
    pub(super) maps: Box<[Arc<Map>]>,
    pub(super) space: Space,
    pub(super) arrays: Arrays,
    /// What the program returns, if that is all it does.
    pub(super) constant: Option<u32>,
}

impl Image {
    /// Checks the program. `maps` are those of [`Program::maps`], in order; programs that share a map are given the
    /// same one.
    pub fn new(program: &Program, maps: Vec<Arc<Map>>) -> Result<Image, LoadError> {
        let whole = |kind| LoadError { slot: 0, kind };
        if maps.len() != program.maps.len() {
            return Err(whole(LoadErrorKind::NumberOfMaps));
        }
        let space = Space::new(&maps).ok_or(whole(LoadErrorKind::MapsTooLarge))?;
        let (ops, slots) = check::lower(program, &maps, &space)?;
        Ok(Image {
            name: program.name.clone(),
            constant: Op::constant(&ops),
            arrays: Arrays::new(&maps, &space),
            ops,
            slots,
            maps: maps.into(),
            space,
        })
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the program returns, if that is all it does: it need not be run then.
    #[must_use]
    pub fn constant(&self) -> Option<u32> {
        self.constant
    }

    /// The map a redirect or [`Program::map`] names.
    #[must_use]
    pub fn map(&self, map: MapRef) -> Option<&Arc<Map>> {
        self.maps.get(map.index())
    }

    pub(super) fn slot_of(&self, op: usize) -> u32 {
        self.slots.get(op).copied().unwrap_or(0)
    }
}

/// Why a program is not run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoadError {
    /// The instruction.
    pub slot: usize,
    /// What is wrong with it.
    pub kind: LoadErrorKind,
}

/// See [`LoadError`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LoadErrorKind {
    /// The program has no instructions.
    Empty,
    /// Not as many maps as the program defines.
    NumberOfMaps,
    /// The maps do not fit into the address space.
    MapsTooLarge,
    /// Not an instruction.
    Decode(DecodeError),
    /// A jump or call leads out of the function or the program, or into the middle of an instruction.
    Target,
    /// The end of a function can be reached.
    NoExit,
    /// R10 is not for writing.
    WritesFramePointer,
    /// A map that the program does not define, or an offset beyond its value.
    Map,
    /// A helper that the machine does not have.
    Helper(i32),
    /// Kernel functions, kernel variables, addresses of functions, or descriptors of maps.
    Unsupported,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let LoadErrorKind::Decode(error) = self.kind {
            return error.fmt(f);
        }
        write!(f, "slot {}: ", self.slot)?;
        match self.kind {
            LoadErrorKind::Empty => f.write_str("the program has no instructions"),
            LoadErrorKind::NumberOfMaps => f.write_str("not as many maps as the program defines"),
            LoadErrorKind::MapsTooLarge => f.write_str("the maps do not fit into the address space"),
            LoadErrorKind::Decode(error) => error.fmt(f),
            LoadErrorKind::Target => f.write_str("a jump leads out of the function"),
            LoadErrorKind::NoExit => f.write_str("a function does not end with an exit or a jump"),
            LoadErrorKind::WritesFramePointer => f.write_str("r10 cannot be written"),
            LoadErrorKind::Map => f.write_str("no such map, or an offset beyond its value"),
            LoadErrorKind::Helper(id) => match crate::Helper::from_id(id) {
                Some(helper) => write!(f, "helper bpf_{} is not available here", helper.name()),
                None => write!(f, "helper {id} is not available here"),
            },
            LoadErrorKind::Unsupported => {
                f.write_str("kernel symbols and descriptors are not available here")
            }
        }
    }
}

impl std::error::Error for LoadError {}
