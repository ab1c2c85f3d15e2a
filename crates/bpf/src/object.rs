//! Programs from ELF object files of `clang -target bpf`, and object files of assembled programs
//! ([`write()`]).
//!
//! `aya-obj` parses and links the file and adapts it to the kernel's structures. This module converts the
//! result to [`Program`]s. Maps come from section `.maps` and the older `maps`. A data section becomes an
//! array with one entry that starts with the section's contents; `.rodata` is constant.
//!
//! Requests to pin a map and maps of maps are not supported. Programs of types other than XDP are skipped.
//! `aya-obj` panics on some malformed files, so `check` refuses them first.
//!
//! ```
//! use roxie_bpf::object::{programs_of, write};
//! use roxie_bpf::{ProgramKind, Recipe, XdpAction};
//!
//! let recipe = Recipe { counters: true, ..Recipe::verdict(XdpAction::Drop) };
//! let program = recipe.program("drop", ProgramKind::Xdp)?;
//! // An ELF file, as clang makes it and `ip link set dev eth0 xdp object FILE` loads it.
//! let elf = write(&program)?;
//! let loaded = programs_of(&elf, None)?;
//! assert_eq!((&loaded[0].name[..], &loaded[0].maps[0].name[..]), ("drop", "counters"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adapt;
mod check;
mod sections;
mod types;
mod write;

pub use check::FILE_MAX;
pub use write::write;

use std::collections::HashSet;
use std::fmt;

use aya_obj::btf::BtfFeatures;
use aya_obj::{EbpfSectionKind, Function};

use crate::btf::{Btf, FuncInfo};
use crate::insn::{DecodeError, Imm64, Insn, Slot, decode_all, encode};
use crate::map::{MapDef, MapKind};
use crate::program::Program;

/// Returns the XDP programs of an object file, sorted by name. Each has all maps of the file in the same
/// order, so that programs that share a map agree on its index.
///
/// `kernel_types` is the type information of the running kernel (`/sys/kernel/btf/vmlinux`). Programs that
/// adapt to the layout of kernel structures need it.
///
/// # Errors
/// [`ObjectError`] if the file is malformed, cannot be linked, has an unsupported map, or contains no XDP
/// program.
pub fn programs_of(elf: &[u8], kernel_types: Option<&[u8]>) -> Result<Vec<Program>, ObjectError> {
    check::check(elf, kernel_types).map_err(parse_error)?;
    let sections::Prepared { file, places } = sections::prepare(elf).map_err(parse_error)?;
    let mut object = aya_obj::Object::parse(&file).map_err(parse_error)?;
    if object.has_btf_relocations() {
        let types = kernel_types.ok_or(ObjectError::NeedsKernelTypes)?;
        let types = aya_obj::btf::Btf::parse(types, object.endianness).map_err(parse_error)?;
        object.relocate_btf(&types).map_err(link_error)?;
    }

    let mut sources: Vec<(String, aya_obj::Map)> =
        object.maps.iter().map(|(name, map)| (name.clone(), map.clone())).collect();
    sources.sort_by(|(a, _), (b, _)| a.cmp(b));
    let maps = sources.iter().map(|(name, map)| map_def(name, map)).collect::<Result<Vec<_>, _>>()?;

    // Map indices take the place of file descriptors until the instructions are decoded.
    let text: HashSet<usize> = object.functions.keys().map(|&(section, _)| section).collect();
    let indices = (0..).zip(&sources).map(|(index, (name, map))| (name.as_str(), index, map));
    object.relocate_maps(indices, &text).map_err(link_error)?;
    object.relocate_calls(&text).map_err(link_error)?;
    let every_feature = BtfFeatures::new(true, true, true, true, true, true, true, true);
    let types = object.fixup_and_sanitize_btf(&every_feature).map_err(parse_error)?;
    let types = types.map(|types| types.to_bytes());

    let mut programs = Vec::new();
    for (name, source) in &object.programs {
        let Some(&(kind, frags)) = places.get(&source.function_key().0) else { continue };
        let function = object.functions.get(&source.function_key());
        let function = function.ok_or_else(|| ObjectError::Link(format!("{name} has no code")))?;
        programs.push(Program {
            name: name.clone(),
            kind,
            slots: slots_of(function).map_err(|error| ObjectError::Code(name.clone(), error))?,
            maps: maps.clone(),
            license: source.license.to_string_lossy().into_owned(),
            frags,
            btf: types.as_ref().and_then(|types| btf_of(types, function)),
        });
    }
    if programs.is_empty() {
        return Err(ObjectError::NoPrograms);
    }
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

fn map_def(name: &str, map: &aya_obj::Map) -> Result<MapDef, ObjectError> {
    let unsupported = || ObjectError::Map(name.to_owned());
    let kind = MapKind::from_number(map.map_type()).ok_or_else(unsupported)?;
    if map.inner().is_some() {
        return Err(unsupported());
    }
    Ok(MapDef {
        flags: map.map_flags(),
        initial: map.data().to_vec(),
        frozen: map.section_kind() == EbpfSectionKind::Rodata,
        ..MapDef::new(name, kind, map.key_size(), map.value_size(), map.max_entries())
    })
}

/// Returns the linked code. Relocation stored map indices in place of file descriptors.
fn slots_of(function: &Function) -> Result<Vec<Slot>, DecodeError> {
    let slots: Vec<Slot> = function
        .instructions
        .iter()
        .map(|insn| Slot {
            opcode: insn.code,
            dst: insn.dst_reg(),
            src: insn.src_reg(),
            off: insn.off,
            imm: insn.imm,
        })
        .collect();
    let mut out = Vec::with_capacity(slots.len());
    for (_, insn) in decode_all(&slots)? {
        let insn = match insn {
            Insn::LoadImm64 { dst, imm: Imm64::MapFd(map) } => {
                Insn::LoadImm64 { dst, imm: Imm64::Map(map as u32) }
            }
            Insn::LoadImm64 { dst, imm: Imm64::MapFdValue { fd, off } } => {
                Insn::LoadImm64 { dst, imm: Imm64::MapValue { map: fd as u32, off } }
            }
            other => other,
        };
        encode(&insn, &mut out);
    }
    Ok(out)
}

/// Returns the type information, or `None` if the object has types but no record for this program's
/// functions.
fn btf_of(types: &[u8], function: &Function) -> Option<Btf> {
    let records = &function.func_info.func_info;
    let func_info: Vec<FuncInfo> =
        records.iter().map(|record| FuncInfo { slot: record.insn_off, type_id: record.type_id }).collect();
    let line_info = function.line_info.line_info_bytes();
    (!func_info.is_empty()).then(|| Btf { blob: types.to_vec(), func_info, line_info })
}

/// Reason why an object file gives no programs, or a program no object file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ObjectError {
    /// The file or its type information is malformed.
    Parse(String),
    /// A symbol, map or function is missing.
    Link(String),
    /// The map has an unknown type, or contains maps.
    Map(String),
    /// The named program has slots that are no instructions.
    Code(String, DecodeError),
    /// An object file cannot hold this program.
    Unwritable(String),
    /// The file contains no XDP program.
    NoPrograms,
    /// The programs adapt to kernel structures, and `kernel_types` was not given.
    NeedsKernelTypes,
}

fn parse_error(error: impl fmt::Display) -> ObjectError {
    ObjectError::Parse(error.to_string())
}

fn link_error(error: impl fmt::Display) -> ObjectError {
    ObjectError::Link(error.to_string())
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::Parse(reason) => write!(f, "the object file cannot be read: {reason}"),
            ObjectError::Link(reason) => write!(f, "the object file cannot be linked: {reason}"),
            ObjectError::Map(name) => write!(f, "maps like {name} are not supported"),
            ObjectError::Code(name, error) => write!(f, "program {name}: {error}"),
            ObjectError::Unwritable(reason) => write!(f, "cannot write an object file of program {reason}"),
            ObjectError::NoPrograms => f.write_str("the object file has no XDP program"),
            ObjectError::NeedsKernelTypes => {
                f.write_str("the programs need the kernel's type information (/sys/kernel/btf/vmlinux)")
            }
        }
    }
}

impl std::error::Error for ObjectError {}

#[cfg(test)]
mod clang;
#[cfg(test)]
pub(crate) use clang::build;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
