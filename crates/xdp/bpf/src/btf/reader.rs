//! Reads the types (BTF) of a program, of an object file or of the kernel without a panic (`linux/btf.h`).

use std::cell::OnceCell;
use std::collections::HashMap;

use super::Btf;

// `linux/btf.h`.
pub(super) const MAGIC: u16 = 0xeb9f;
pub(super) const VERSION: u8 = 1;
pub(super) const HEADER_LEN: u32 = 24;
/// Most names and qualifiers in front of a type, and most arrays within each other.
const DEPTH_MAX: usize = 32;

/// Kinds of types (`BTF_KIND_*`).
pub(crate) mod kind {
    pub(crate) const INT: u32 = 1;
    pub(crate) const PTR: u32 = 2;
    pub(crate) const ARRAY: u32 = 3;
    pub(crate) const STRUCT: u32 = 4;
    pub(crate) const UNION: u32 = 5;
    pub(crate) const ENUM: u32 = 6;
    pub(crate) const FWD: u32 = 7;
    pub(crate) const TYPEDEF: u32 = 8;
    pub(crate) const VOLATILE: u32 = 9;
    pub(crate) const CONST: u32 = 10;
    pub(crate) const RESTRICT: u32 = 11;
    pub(crate) const FUNC: u32 = 12;
    pub(crate) const FUNC_PROTO: u32 = 13;
    pub(crate) const VAR: u32 = 14;
    pub(crate) const DATASEC: u32 = 15;
    pub(crate) const FLOAT: u32 = 16;
    pub(crate) const DECL_TAG: u32 = 17;
    pub(crate) const TYPE_TAG: u32 = 18;
    pub(crate) const ENUM64: u32 = 19;
}

/// Linkage of a variable or function that another object defines.
pub(crate) const EXTERN: u32 = 2;

/// A member of a structure or union.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) name: u32,
    pub(crate) ty: u32,
    /// Offset in bits.
    pub(crate) at: u32,
    /// Bits of a bit field; 0 for other members.
    pub(crate) bits: u32,
}

/// A variable in a section: its type, offset and length in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) ty: u32,
    pub(crate) at: u32,
    pub(crate) len: u32,
}

/// One type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Type<'a> {
    pub(crate) kind: u32,
    pub(crate) name: u32,
    /// Number of members or parameters; the linkage of a function.
    pub(crate) count: u32,
    /// Bit fields in a structure, or signed enumerators.
    pub(crate) flag: bool,
    /// The type that it refers to, or its size.
    pub(crate) word: u32,
    /// What follows the common part.
    body: &'a [u8],
}

impl<'a> Type<'a> {
    /// Returns the members of a structure or union.
    pub(crate) fn members(&self) -> impl Iterator<Item = Member> + use<'a> {
        let is_record = matches!(self.kind, kind::STRUCT | kind::UNION);
        let body = if is_record { self.body } else { &[] };
        let with_bits = self.flag;
        body.as_chunks::<12>().0.iter().map(move |item| {
            let [name, ty, at] = words(item);
            let (at, bits) = if with_bits { (at & 0xff_ffff, at >> 24) } else { (at, 0) };
            Member { name, ty, at, bits }
        })
    }

    /// Returns the variables of a section.
    pub(crate) fn variables(&self) -> impl Iterator<Item = Placed> + use<'a> {
        let body = if self.kind == kind::DATASEC { self.body } else { &[] };
        body.as_chunks::<12>().0.iter().map(|item| {
            let [ty, at, len] = words(item);
            Placed { ty, at, len }
        })
    }

    /// Returns the names and values of an enumeration.
    pub(crate) fn enumerators(&self) -> Vec<(u32, u64)> {
        let narrow = |item: &[u8; 8]| {
            let [name, value] = words(item);
            (name, if self.flag { value as i32 as u64 } else { value.into() })
        };
        let wide = |item: &[u8; 12]| {
            let [name, low, high] = words(item);
            (name, u64::from(high) << 32 | u64::from(low))
        };
        match self.kind {
            kind::ENUM => self.body.as_chunks::<8>().0.iter().map(narrow).collect(),
            kind::ENUM64 => self.body.as_chunks::<12>().0.iter().map(wide).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the type of the elements of an array and their number.
    pub(crate) fn array(&self) -> Option<(u32, u32)> {
        if self.kind != kind::ARRAY {
            return None;
        }
        let [element, _, count] = words(self.body.first_chunk::<12>()?);
        Some((element, count))
    }

    /// Returns the encoding of an integer: bit 0 says that it is signed, bit 1 that it is a character, bit 2
    /// that it is a truth value.
    pub(crate) fn encoding(&self) -> u32 {
        word(self.body, 0).unwrap_or(0) >> 24
    }

    /// Returns the linkage of a variable or function.
    pub(crate) fn linkage(&self) -> u32 {
        match self.kind {
            kind::VAR => word(self.body, 0).unwrap_or(0),
            kind::FUNC => self.count,
            _ => 0,
        }
    }

    /// Returns whether an integer is signed. Enumerations are if an enumerator is.
    pub(crate) fn is_signed(&self) -> bool {
        match self.kind {
            kind::INT => self.encoding() & 1 != 0,
            _ => self.flag,
        }
    }

    /// Whether `word` is its size.
    pub(crate) fn is_sized(&self) -> bool {
        matches!(
            self.kind,
            kind::INT | kind::STRUCT..=kind::ENUM | kind::DATASEC | kind::FLOAT | kind::ENUM64
        )
    }

    /// Whether it only names or qualifies another type.
    pub(crate) fn is_modifier(&self) -> bool {
        matches!(self.kind, kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG)
    }
}

/// All types of one blob. Number 0 is `void`.
#[derive(Debug)]
pub(crate) struct Types<'a> {
    records: &'a [u8],
    strings: &'a [u8],
    /// Offset of each record.
    at: Vec<u32>,
    /// Numbers of the types by name without flavor.
    by_name: OnceCell<HashMap<&'a [u8], Vec<u32>>>,
}

/// Returns the 32-bit number at an offset.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn words<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [u32; WORDS] {
    std::array::from_fn(|index| word(bytes, index * 4).unwrap_or(0))
}

/// Returns the length of a record of this kind (`linux/btf.h`), or `None` for an unknown kind.
fn record_len(kind: u32, count: usize) -> Option<usize> {
    Some(
        12 + match kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            kind::ENUM | kind::FUNC_PROTO => 8 * count,
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12 * count,
            kind::PTR | kind::FWD..=kind::FUNC | kind::FLOAT | kind::TYPE_TAG => 0,
            _ => return None,
        },
    )
}

impl<'a> Types<'a> {
    /// Returns the types of a blob; `None` if it is malformed.
    pub(crate) fn parse(blob: &'a [u8]) -> Option<Self> {
        let field = |at| word(blob, at).map(|value| value as usize);
        let [header_len, type_start, type_len] = [field(4)?, field(8)?, field(12)?];
        let [string_start, string_len] = [field(16)?, field(20)?];
        if word(blob, 0)? & 0xffff != u32::from(MAGIC) || header_len < HEADER_LEN as usize {
            return None;
        }
        let rest = blob.get(header_len..)?;
        let strings = rest.get(string_start..)?.get(..string_len)?;
        if strings.first() != Some(&0) || strings.last() != Some(&0) {
            return None;
        }
        let records = rest.get(type_start..)?.get(..type_len)?;
        let (mut at, mut next) = (vec![0], 0);
        while next < records.len() {
            at.push(u32::try_from(next).ok()?);
            let info = word(records, next + 4)?;
            let len = record_len(info >> 24 & 0x1f, info as usize & 0xffff)?;
            records.get(next..)?.get(..len)?;
            next += len;
        }
        Some(Self { records, strings, at, by_name: OnceCell::new() })
    }

    /// Returns a type; `None` for `void` and for numbers without a type.
    pub(crate) fn get(&self, ty: u32) -> Option<Type<'a>> {
        let at = *self.at.get(ty as usize).filter(|_| ty != 0)? as usize;
        let [name, info, word] = words(self.records.get(at..)?.first_chunk::<12>()?);
        let (kind, count) = (info >> 24 & 0x1f, info & 0xffff);
        let body = self.records.get(at + 12..at + record_len(kind, count as usize)?)?;
        Some(Type { kind, name, count, flag: info >> 31 == 1, word, body })
    }

    /// Returns the numbers of all types.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        1..self.at.len() as u32
    }

    /// Returns the text at an offset; `None` if there is none.
    pub(crate) fn text(&self, at: u32) -> Option<&'a [u8]> {
        self.strings.get(at as usize..)?.split(|byte| *byte == 0).next()
    }

    /// Returns the text at an offset if it is UTF-8.
    pub(crate) fn name(&self, at: u32) -> Option<&'a str> {
        self.text(at).and_then(|text| std::str::from_utf8(text).ok())
    }

    /// Returns the bytes of all records, and of all names.
    pub(crate) fn parts(&self) -> (&'a [u8], &'a [u8]) {
        (self.records, self.strings)
    }

    /// Returns the offset of a record.
    pub(crate) fn offset(&self, ty: u32) -> Option<usize> {
        self.at.get(ty as usize).map(|at| *at as usize)
    }

    /// Returns the type without names and qualifiers, and its number.
    pub(crate) fn resolved(&self, mut ty: u32) -> Option<(u32, Type<'a>)> {
        for _ in 0..DEPTH_MAX {
            let at = self.get(ty)?;
            if !at.is_modifier() {
                return Some((ty, at));
            }
            ty = at.word;
        }
        None
    }

    /// Returns the size of a type in bytes.
    pub(crate) fn size(&self, mut ty: u32) -> Option<u32> {
        let mut count = 1_u32;
        for _ in 0..DEPTH_MAX {
            let (_, at) = self.resolved(ty)?;
            match at.array() {
                Some((element, len)) => (ty, count) = (element, count.checked_mul(len)?),
                None if at.kind == kind::PTR => return count.checked_mul(8),
                None if at.is_sized() => return count.checked_mul(at.word),
                None if at.kind == kind::VAR => ty = at.word,
                None => return None,
            }
        }
        None
    }

    /// Returns the numbers of the types with this name, without the suffix that a flavor adds.
    pub(crate) fn named(&self, name: &[u8]) -> &[u32] {
        let by_name = self.by_name.get_or_init(|| {
            let mut by_name: HashMap<&'a [u8], Vec<u32>> = HashMap::new();
            for ty in self.numbers() {
                let text = self.get(ty).and_then(|at| self.text(at.name)).unwrap_or_default();
                if !text.is_empty() {
                    by_name.entry(flavorless(text)).or_default().push(ty);
                }
            }
            by_name
        });
        by_name.get(flavorless(name)).map_or(&[], Vec::as_slice)
    }

    /// Returns the type of this kind and exactly this name.
    pub(crate) fn find(&self, kind: u32, name: &str) -> Option<u32> {
        let is_it = |ty: &Type<'_>| ty.kind == kind && self.text(ty.name) == Some(name.as_bytes());
        self.named(name.as_bytes()).iter().copied().find(|ty| self.get(*ty).is_some_and(|ty| is_it(&ty)))
    }
}

impl Btf {
    /// Returns the name of the type with this id, or `None` if there is no such type or it has no name.
    #[must_use]
    pub fn name_of(&self, type_id: u32) -> Option<String> {
        let types = Types::parse(&self.blob)?;
        types.name(types.get(type_id)?.name).filter(|name| !name.is_empty()).map(str::to_owned)
    }
}

/// Returns the id of the function with this name in a BTF blob, or `None` if there is none or the blob is
/// malformed.
pub(crate) fn function_named(blob: &[u8], name: &str) -> Option<u32> {
    let types = Types::parse(blob)?;
    let is_it = |ty: Type<'_>| ty.kind == kind::FUNC && types.name(ty.name) == Some(name);
    types.numbers().find(|id| types.get(*id).is_some_and(is_it))
}

/// Returns a name without its flavor (`task_struct___old`).
pub(crate) fn flavorless(name: &[u8]) -> &[u8] {
    match name.windows(3).rposition(|part| part == b"___") {
        Some(end) if end > 0 => &name[..end],
        _ => name,
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
