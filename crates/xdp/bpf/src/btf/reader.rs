//! Reads names of types from a BTF blob of the assembler or of a compiler.

use super::Btf;

impl Btf {
    /// Returns the name of the type with this id, or `None` if there is no such type or it has no name.
    #[must_use]
    pub fn name_of(&self, type_id: u32) -> Option<String> {
        let parts = self.parts()?;
        let mut types = parts.types;
        for _ in 1..type_id {
            types = after_first(types)?;
        }
        let text = parts.strings.get(word(types, 0)? as usize..)?;
        let len = text.iter().position(|&byte| byte == 0)?;
        String::from_utf8(text[..len].to_vec()).ok().filter(|name| !name.is_empty())
    }

    /// Returns the records and the strings of the blob, or `None` if it is malformed.
    pub(super) fn parts(&self) -> Option<Parts<'_>> {
        let part = |offset: usize| {
            let [start, len] = [word(&self.blob, offset)? as usize, word(&self.blob, offset + 4)? as usize];
            self.blob.get(word(&self.blob, 4)? as usize..)?.get(start..)?.get(..len)
        };
        Some(Parts { types: part(8)?, strings: part(16)? })
    }
}

/// The two sections of a BTF blob.
pub(super) struct Parts<'a> {
    pub(super) types: &'a [u8],
    pub(super) strings: &'a [u8],
}

impl Parts<'_> {
    /// Returns the number of types, or `None` if the blob contains an unknown kind.
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

/// Returns the bytes after the first record.
fn after_first(types: &[u8]) -> Option<&[u8]> {
    let info = word(types, 4)?;
    types.get(12 + trailer_len(info >> 24 & 0x1f, info as usize & 0xffff)?..)
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
