//! Names of types in a blob, ours or a compiler's.

use super::Btf;

impl Btf {
    /// Name of the type with this id, if the blob has it and it has one.
    #[must_use]
    pub fn name_of(&self, type_id: u32) -> Option<String> {
        let word = |at: usize| {
            let bytes = self.blob.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*bytes))
        };
        let header_len = word(4)? as usize;
        let types = header_len.checked_add(word(8)? as usize)?;
        let strings = header_len.checked_add(word(16)? as usize)?;
        let mut at = types;
        for _ in 1..type_id {
            let info = word(at.checked_add(4)?)?;
            at = at.checked_add(12 + trailer_len(info >> 24 & 0x1f, info as usize & 0xffff)?)?;
        }
        if at >= strings {
            return None;
        }
        let text = self.blob.get(strings.checked_add(word(at)? as usize)?..)?;
        let len = text.iter().position(|&byte| byte == 0)?;
        String::from_utf8(text[..len].to_vec()).ok().filter(|name| !name.is_empty())
    }
}

/// Bytes that follow the common part of a type of this kind (`linux/btf.h`); `None` for kinds newer than us.
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
