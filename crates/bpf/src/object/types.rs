//! Type information (BTF) of an object file or of the kernel, checked record by record.
//!
//! `aya-obj` indexes its tables with the numbers of these records. A blob that [`Types::parse`] accepts gives
//! it none that is outside a table, and no value that its enumerations do not have.

use std::collections::HashSet;

/// Length of the header that compilers write.
const HEADER_LEN: usize = 24;
const MAGIC: u32 = 0xeb9f;
/// Largest type in bytes: its length in bits is a 32-bit number.
const SIZE_MAX: u32 = 1 << 28;
/// Qualifiers and names in front of a type.
const DEPTH_MAX: usize = 32;

/// Kinds of types (`linux/btf.h`).
pub(super) mod kind {
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
    pub(crate) const FUNC_PROTO: u32 = 13;
    pub(crate) const VAR: u32 = 14;
    pub(crate) const DATASEC: u32 = 15;
    pub(crate) const FLOAT: u32 = 16;
    pub(crate) const DECL_TAG: u32 = 17;
    pub(crate) const TYPE_TAG: u32 = 18;
    pub(crate) const ENUM64: u32 = 19;
}

/// A member of a structure or union.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) name: u32,
    pub(super) ty: u32,
    /// Bits of a bit field; 0 for other members.
    pub(super) bits: u32,
}

#[derive(Debug)]
pub(super) struct Type {
    pub(super) kind: u32,
    pub(super) name: u32,
    /// The type that it refers to, or its size.
    pub(super) word: u32,
    pub(super) members: Vec<Member>,
    /// Element type of an array, and their number.
    pub(super) element: u32,
    count: u32,
}

impl Type {
    /// Whether `word` is its size.
    fn is_sized(&self) -> bool {
        matches!(
            self.kind,
            kind::INT | kind::STRUCT..=kind::ENUM | kind::DATASEC | kind::FLOAT | kind::ENUM64
        )
    }
}

/// All types; the index is the number of the type.
#[derive(Debug)]
pub(super) struct Types<'a> {
    types: Vec<Type>,
    strings: &'a [u8],
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl<'a> Types<'a> {
    /// Returns the types of a blob; `None` if it is malformed.
    pub(super) fn parse(blob: &'a [u8]) -> Option<Self> {
        let field = |at| word(blob, at).map(|value| value as usize);
        let [header_len, type_start, type_len] = [field(4)?, field(8)?, field(12)?];
        let [string_start, string_len] = [field(16)?, field(20)?];
        let is_plain = header_len == HEADER_LEN && type_start == 0 && string_start == type_len;
        if word(blob, 0)? & 0xffff != MAGIC || !is_plain {
            return None;
        }
        let rest = blob.get(HEADER_LEN..)?;
        let strings = rest.get(string_start..)?.get(..string_len)?;
        if strings.first() != Some(&0) || strings.last() != Some(&0) {
            return None;
        }
        let void = Type { kind: 0, name: 0, word: 0, members: Vec::new(), element: 0, count: 0 };
        let mut this = Self { types: vec![void], strings };
        let mut records = rest.get(..type_len)?;
        while !records.is_empty() {
            let (ty, len) = this.record(records)?;
            this.types.push(ty);
            records = records.get(len..)?;
        }
        let numbers_are_valid = this.types.iter().all(|ty| {
            let refers =
                matches!(ty.kind, kind::PTR | kind::TYPEDEF..=kind::VAR | kind::DECL_TAG | kind::TYPE_TAG);
            (!refers || this.get(ty.word).is_some())
                && (!ty.is_sized() || ty.word <= SIZE_MAX)
                && this.get(ty.element).is_some()
                && ty.members.iter().all(|member| this.is_sound(member))
                && (ty.kind != kind::ARRAY || this.fits(ty))
        });
        numbers_are_valid.then_some(this)
    }

    /// Parses the first record; returns it and its length.
    fn record(&self, records: &[u8]) -> Option<(Type, usize)> {
        let [name, info, ty] = [word(records, 0)?, word(records, 4)?, word(records, 8)?];
        let (kind, count) = (info >> 24 & 0x1f, info as usize & 0xffff);
        self.text(name)?;
        let item_len = match kind {
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12,
            kind::ENUM | kind::FUNC_PROTO => 8,
            _ => 0,
        };
        let fixed_len = match kind {
            kind::INT | kind::VAR | kind::DECL_TAG => 4,
            kind::ARRAY => 12,
            1..=kind::ENUM64 => 0,
            _ => return None,
        };
        let len = 12 + fixed_len + item_len * count;
        let body = records.get(12..len)?;
        let is_named = kind != kind::DATASEC;
        let mut members = Vec::new();
        if item_len > 0 {
            for item in body.chunks_exact(item_len) {
                let [first, second] = [word(item, 0)?, word(item, 4)?];
                if is_named {
                    self.text(first)?;
                }
                if matches!(kind, kind::STRUCT | kind::UNION) {
                    let bits = if info >> 31 == 1 { word(item, 8)? >> 24 } else { 0 };
                    members.push(Member { name: first, ty: second, bits });
                }
            }
        }
        // The linkage of a variable: static, global or external.
        if kind == kind::VAR && word(body, 0)? > 2 {
            return None;
        }
        let is_array = kind == kind::ARRAY;
        let (element, count) = if is_array { (word(body, 0)?, word(body, 8)?) } else { (0, 0) };
        Some((Type { kind, name, word: ty, members, element, count }, len))
    }

    /// Whether the member's type exists; for a bit field an integer or enumeration of a size that a CPU
    /// loads.
    fn is_sound(&self, member: &Member) -> bool {
        match self.get(member.ty) {
            None => false,
            Some(_) if member.bits == 0 => true,
            Some(_) => self.resolved(member.ty).and_then(|ty| self.get(ty)).is_some_and(|ty| {
                matches!(ty.kind, kind::INT | kind::ENUM | kind::ENUM64)
                    && [1, 2, 4, 8, 16].contains(&ty.word)
            }),
        }
    }

    /// Whether the array is no larger than [`SIZE_MAX`].
    fn fits(&self, array: &Type) -> bool {
        let (mut count, mut at) = (array.count, array.element);
        let is_small = |size: u32, count: u32| size.checked_mul(count).is_some_and(|size| size <= SIZE_MAX);
        for _ in 0..DEPTH_MAX {
            let Some(ty) = self.get(at) else { return false };
            match ty.kind {
                kind::ARRAY => (count, at) = (ty.count, ty.element),
                kind::PTR => return is_small(8, count),
                _ if ty.is_sized() => return is_small(ty.word, count),
                0 | kind::FWD | kind::FUNC_PROTO => return true,
                _ => at = ty.word,
            }
        }
        // The function that needs the size returns an error.
        true
    }

    pub(super) fn get(&self, ty: u32) -> Option<&Type> {
        self.types.get(ty as usize)
    }

    /// Returns the text at an offset; `None` if there is none.
    pub(super) fn text(&self, at: u32) -> Option<&'a [u8]> {
        self.strings.get(at as usize..)?.split(|byte| *byte == 0).next()
    }

    /// Returns the type without names and qualifiers; `None` if there are too many of them.
    pub(super) fn resolved(&self, mut ty: u32) -> Option<u32> {
        for _ in 0..DEPTH_MAX {
            let at = self.get(ty)?;
            match at.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    ty = at.word
                }
                _ => return Some(ty),
            }
        }
        None
    }

    /// Returns the types with this kind and this name, without the suffix that a flavor adds.
    pub(super) fn candidates(&self, kind: u32, name: &[u8]) -> impl Iterator<Item = u32> {
        let numbered = (0..).zip(&self.types);
        let is_meant = move |ty: &Type| {
            ty.kind == kind && self.text(ty.name).is_some_and(|text| flavorless(text) == flavorless(name))
        };
        numbered.filter(move |(_, ty)| is_meant(ty)).map(|(number, _)| number)
    }

    /// Returns the member with this name of a structure or union, also inside of members without a name.
    pub(super) fn member(&self, ty: u32, name: &[u8]) -> Option<Member> {
        let (mut seen, mut left) = (HashSet::new(), vec![ty]);
        while let Some(ty) = left.pop() {
            let Some(ty) = self.resolved(ty).filter(|ty| seen.insert(*ty)) else { continue };
            let members = &self.get(ty)?.members;
            for member in members {
                match self.text(member.name)? {
                    b"" => left.push(member.ty),
                    text if text == name => return Some(*member),
                    _ => {}
                }
            }
        }
        None
    }
}

fn flavorless(name: &[u8]) -> &[u8] {
    let end = name.windows(3).position(|part| part == b"___");
    &name[..end.unwrap_or(name.len())]
}
