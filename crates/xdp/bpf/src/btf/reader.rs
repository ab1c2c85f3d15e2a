//! Reads names of types from a BTF blob of the assembler or of a compiler.

use super::Btf;
use super::writer::KIND_FUNC;

impl Btf {
    /// Returns the name of the type with this id, or `None` if there is no such type or it has no name.
    #[must_use]
    pub fn name_of(&self, type_id: u32) -> Option<String> {
        let parts = Parts::of(&self.blob)?;
        let mut types = parts.types;
        for _ in 1..type_id {
            types = after_first(types)?;
        }
        String::from_utf8(parts.name(types)?.to_vec()).ok().filter(|name| !name.is_empty())
    }
}

/// Returns the id of the function with this name in a BTF blob, or `None` if there is none or the blob is
/// malformed.
pub(crate) fn function_named(blob: &[u8], name: &str) -> Option<u32> {
    let parts = Parts::of(blob)?;
    let (mut types, mut id) = (parts.types, 1);
    while kind(types)? != KIND_FUNC || parts.name(types) != Some(name.as_bytes()) {
        (types, id) = (after_first(types)?, id + 1);
    }
    Some(id)
}

/// The two sections of a BTF blob.
pub(super) struct Parts<'a> {
    pub(super) types: &'a [u8],
    pub(super) strings: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Returns the records and the strings of a blob, or `None` if it is malformed.
    pub(super) fn of(blob: &'a [u8]) -> Option<Parts<'a>> {
        let part = |offset: usize| {
            let [start, len] = [word(blob, offset)? as usize, word(blob, offset + 4)? as usize];
            blob.get(word(blob, 4)? as usize..)?.get(start..)?.get(..len)
        };
        Some(Parts { types: part(8)?, strings: part(16)? })
    }

    /// Returns the name of the first record.
    fn name(&self, types: &[u8]) -> Option<&'a [u8]> {
        let text = self.strings.get(word(types, 0)? as usize..)?;
        text.split(|&byte| byte == 0).next().filter(|name| name.len() < text.len())
    }

    /// Returns the number of types, or `None` if the blob contains an unknown kind.
    #[cfg(feature = "object")]
    pub(super) fn count(&self) -> Option<u32> {
        let (mut types, mut count) = (self.types, 0);
        while !types.is_empty() {
            types = after_first(types)?;
            count += 1;
        }
        Some(count)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the kind of the first record.
fn kind(types: &[u8]) -> Option<u32> {
    Some(word(types, 4)? >> 24 & 0x1f)
}

/// Returns the bytes after the first record.
fn after_first(types: &[u8]) -> Option<&[u8]> {
    let count = word(types, 4)? as usize & 0xffff;
    types.get(12 + trailer_len(kind(types)?, count)?..)
}

/// Returns the length of the bytes after the common part of a type (`linux/btf.h`), or `None` for an unknown
/// kind.
fn trailer_len(kind: u32, vlen: usize) -> Option<usize> {
    match kind {
        // Pointers, forward declarations, typedefs, qualifiers, functions, floats, type tags.
        2 | 7 | 8 | 9 | 10 | 11 | 12 | 16 | 18 => Some(0),
        // Integers, variables, declaration tags.
        1 | 14 | 17 => Some(4),
        // Arrays.
        3 => Some(12),
        // Enumerations, prototypes.
        6 | 13 => Some(8 * vlen),
        // Structures, unions, sections, 64-bit enumerations.
        4 | 5 | 15 | 19 => Some(12 * vlen),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Asm, XdpAction};

    #[test]
    fn a_function_is_found_by_its_name() {
        let mut asm = Asm::new("first");
        asm.ret(XdpAction::Pass);
        let btf = asm.finish().unwrap().btf.unwrap();
        let id = function_named(&btf.blob, "first").unwrap();
        assert_eq!(btf.name_of(id).as_deref(), Some("first"));
        // A prefix, the name of a structure, and a cut blob.
        for name in ["firs", "xdp_md", ""] {
            assert_eq!(function_named(&btf.blob, name), None, "{name}");
        }
        assert_eq!(function_named(&btf.blob[..btf.blob.len() - 1], "first"), None);
    }
}
