//! The types of an object file in the form that the kernel loads (`BPF_BTF_LOAD`). A compiler leaves out the
//! lengths of sections and the offsets of variables, and describes externs, which the kernel refuses.

use std::collections::HashSet;

use super::elf::File;
use crate::btf;
use crate::btf::reader::{EXTERN, Types, kind};

/// First words of a structure without name and members.
const EMPTY: [u32; 3] = [0, kind::STRUCT << 24, 0];

/// Returns the types for the kernel. Each type keeps its number. Sections without bytes in the file and
/// functions of the kernel become empty structures.
pub(super) fn for_kernel(file: &File<'_>, types: &Types<'_>) -> Vec<u8> {
    let (records, strings) = types.parts();
    // Functions with hidden visibility are verified where they are called, like static ones.
    let hidden: HashSet<&str> = file
        .symbols
        .iter()
        .filter(|symbol| symbol.is_function && symbol.is_hidden)
        .map(|symbol| symbol.name)
        .collect();
    let mut out = Vec::new();
    for number in types.numbers() {
        let (Some(ty), Some(start)) = (types.get(number), types.offset(number)) else { continue };
        let end = types.offset(number + 1).unwrap_or(records.len());
        let record = records.get(start..end).unwrap_or_default();
        let name = types.name(ty.name).unwrap_or_default();
        let info = ty.kind << 24 | ty.count | u32::from(ty.flag) << 31;
        match ty.kind {
            kind::DATASEC => match section(file, types, number) {
                Some(section) => out.extend(section),
                None => push(&mut out, &EMPTY),
            },
            kind::FUNC if ty.linkage() == EXTERN => push(&mut out, &EMPTY),
            kind::FUNC if hidden.contains(name) => push(&mut out, &[ty.name, kind::FUNC << 24, ty.word]),
            kind::VAR if ty.linkage() == EXTERN => push(&mut out, &[ty.name, info, ty.word, 1]),
            kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FWD if !is_identifier(name) => {
                // A name of a language with other rules than C.
                push(&mut out, &[0]);
                out.extend(record.get(4..).unwrap_or_default());
            }
            _ => out.extend(record),
        }
    }
    btf::blob(&out, strings)
}

fn push(out: &mut Vec<u8>, words: &[u32]) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// The kernel takes letters, digits and `_` (`btf_name_valid_identifier`).
fn is_identifier(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|first: char| first.is_ascii_digit())
}

/// Returns the record of a section with its length and the offsets of its variables; `None` if the file has
/// no such section.
fn section(file: &File<'_>, types: &Types<'_>, number: u32) -> Option<Vec<u8>> {
    let ty = types.get(number)?;
    let (index, section) = file.section(types.name(ty.name)?)?;
    let size = u32::try_from(section.size).ok().filter(|size| *size > 0)?;
    let mut variables = Vec::new();
    for placed in ty.variables() {
        let variable = types.get(placed.ty).filter(|ty| ty.kind == kind::VAR)?;
        let name = types.name(variable.name)?;
        let in_section = |symbol: &&super::elf::Symbol<'_>| symbol.section == Some(index);
        let symbol = file.symbols.iter().filter(in_section).find(|symbol| symbol.name == name);
        // A static variable without a symbol keeps what the compiler wrote.
        let at = symbol.map_or(placed.at, |symbol| symbol.value as u32);
        let len = types.size(variable.word).unwrap_or(placed.len);
        if len == 0 || at.checked_add(len)? > size {
            return None;
        }
        variables.push([at, placed.ty, len]);
    }
    variables.sort_unstable();
    if variables.windows(2).any(|pair| pair[0][0] + pair[0][2] > pair[1][0]) {
        return None;
    }
    let mut out = Vec::new();
    push(&mut out, &[ty.name, kind::DATASEC << 24 | variables.len() as u32, size]);
    variables.into_iter().for_each(|[at, ty, len]| push(&mut out, &[ty, at, len]));
    Some(out)
}
