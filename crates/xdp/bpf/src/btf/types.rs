//! Reads types from a BTF blob, and decodes bytes by them (`Documentation/bpf/btf.rst`).
//!
//! The blob may come from a hostile process, so nothing here trusts it: ids, offsets and lengths are checked,
//! and nesting, the number of types and the number of decoded values are limited.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Btf;
use super::reader::{self, kind};

/// The types of one program.
#[derive(Clone, Debug)]
pub struct Types {
    /// By id, which begins with 1.
    types: Vec<Type>,
    by_name: HashMap<String, Vec<u32>>,
    strings: Vec<u8>,
}

/// Types of the keys and values of a map.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MapTypes {
    /// Type id of the key.
    pub key: Option<u32>,
    /// Type id of the value.
    pub value: Option<u32>,
}

/// Bytes as their type describes them.
#[derive(Clone, Debug, PartialEq)]
pub enum Typed {
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// A `bool`.
    Bool(bool),
    /// A floating-point number.
    Float(f64),
    /// A constant of an enumeration, or an array of `char` with a text.
    Text(String),
    /// Elements of an array.
    List(Vec<Typed>),
    /// Members of a structure or union, or variables of a data section.
    Struct(Vec<(String, Typed)>),
    /// Bytes without a more specific type.
    Bytes(Vec<u8>),
}

/// One scalar of a value, for writing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Leaf {
    /// Offset in bytes.
    pub at: usize,
    /// Length in bytes.
    pub len: usize,
}

#[derive(Clone, Debug)]
struct Type {
    name: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Int {
        len: usize,
        is_signed: bool,
        is_char: bool,
        is_bool: bool,
    },
    Float {
        len: usize,
    },
    Pointer {
        to: u32,
    },
    Array {
        of: u32,
        entries: u32,
    },
    /// Structures and unions.
    Struct {
        len: usize,
        members: Vec<Member>,
        is_union: bool,
    },
    Enum {
        len: usize,
        constants: Vec<(String, u64)>,
        is_signed: bool,
    },
    /// Typedefs, qualifiers and type tags.
    Alias {
        of: u32,
    },
    Variable {
        of: u32,
    },
    Section {
        members: Vec<Member>,
    },
    Other,
}

#[derive(Clone, Debug)]
struct Member {
    name: String,
    of: u32,
    bit: u32,
    /// Length in bits of a bit field, else 0.
    bits: u32,
}

/// Maximum number of types. vmlinux has some 150,000; a program's object has some hundreds.
const TYPES_MAX: usize = 1 << 18;
/// Maximum nesting of structures, arrays and aliases.
const DEPTH_MAX: u32 = 32;
/// Maximum number of values in one decoded value; the rest is shown as bytes.
const VALUES_MAX: usize = 1 << 16;

impl Types {
    /// Parses the types of a blob. Returns `None` if it is malformed or has more types than a program needs.
    #[must_use]
    pub fn parse(btf: &Btf) -> Option<Types> {
        let read = reader::Types::parse(&btf.blob)?;
        if read.numbers().len() > TYPES_MAX {
            return None;
        }
        let types = read.numbers().map(|id| Type::of(&read, id)).collect::<Option<Vec<Type>>>()?;
        let mut by_name: HashMap<String, Vec<u32>> = HashMap::new();
        for (id, one) in (1..).zip(&types).filter(|(_, one)| !one.name.is_empty()) {
            by_name.entry(one.name.clone()).or_default().push(id);
        }
        Some(Types { types, by_name, strings: read.parts().1.to_vec() })
    }

    /// Returns the full names of the maps in section `.maps` that the kernel shows by this name.
    #[must_use]
    pub fn maps_like(&self, name: &str) -> Vec<&str> {
        let variables = self.types.iter().filter(|one| matches!(one.kind, Kind::Variable { .. }));
        let names = variables.map(|one| &one.name[..]).filter(|full| *full == name || is_cut(name, full));
        names.filter(|full| self.definition(full).is_some()).collect()
    }

    /// Returns a text by its place, such as a source line.
    #[must_use]
    pub fn text(&self, at: u32) -> Option<&str> {
        let text = self.strings.get(at as usize..)?.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(text).ok()
    }

    /// Returns the types of a map's keys and values: those that its definition in section `.maps` names, or
    /// the variables of a data section. `name` may be cut to 15 characters, as in the kernel.
    #[must_use]
    pub fn map(&self, name: &str) -> MapTypes {
        if let Some(section) = self.section(name) {
            return MapTypes { key: None, value: Some(section) };
        }
        let Some(members) = self.definition(name) else { return MapTypes::default() };
        let of = |wanted: &str| {
            let member = members.iter().find(|member| member.name == wanted)?;
            match self.kind(self.resolved(member.of))? {
                Kind::Pointer { to } => Some(*to).filter(|to| self.len_of(*to).is_some()),
                _ => None,
            }
        };
        MapTypes { key: of("key"), value: of("value") }
    }

    /// Returns whether the program defines a map of this name in section `.maps`.
    #[must_use]
    pub fn defines(&self, map: &str) -> bool {
        self.definition(map).is_some()
    }

    /// Returns the id of the structure, union, enumeration or typedef with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<u32> {
        let ids = self.by_name.get(name)?;
        ids.iter().copied().find(|id| match self.kind(*id) {
            Some(Kind::Struct { .. } | Kind::Enum { .. } | Kind::Alias { .. }) => self.len_of(*id).is_some(),
            _ => false,
        })
    }

    /// Returns the length of a type in bytes, or `None` if it has none.
    #[must_use]
    pub fn len_of(&self, id: u32) -> Option<usize> {
        self.len_within(id, DEPTH_MAX)
    }

    /// Decodes bytes by the type. Bytes that the type does not cover, or that are too few for it, become
    /// [`Typed::Bytes`].
    #[must_use]
    pub fn decode(&self, id: u32, bytes: &[u8]) -> Typed {
        let mut left = VALUES_MAX;
        self.decode_within(id, bytes, DEPTH_MAX, &mut left).unwrap_or_else(|| Typed::Bytes(bytes.to_vec()))
    }

    /// Returns the scalars of a type in order, or `None` if it has parts that cannot be written as numbers.
    #[must_use]
    pub fn leaves(&self, id: u32) -> Option<Vec<Leaf>> {
        let (mut leaves, mut left) = (Vec::new(), VALUES_MAX);
        self.leaves_within(id, 0, DEPTH_MAX, &mut left, &mut leaves)?;
        Some(leaves)
    }

    /// Returns the number of an enumeration's constant.
    #[must_use]
    pub fn constant(&self, id: u32, name: &str) -> Option<u64> {
        match self.kind(self.resolved(id))? {
            Kind::Enum { constants, .. } => {
                constants.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
            }
            _ => None,
        }
    }

    fn kind(&self, id: u32) -> Option<&Kind> {
        self.types.get((id as usize).checked_sub(1)?).map(|one| &one.kind)
    }

    /// Follows typedefs and qualifiers.
    fn resolved(&self, mut id: u32) -> u32 {
        for _ in 0..DEPTH_MAX {
            match self.kind(id) {
                Some(Kind::Alias { of } | Kind::Variable { of }) => id = *of,
                _ => break,
            }
        }
        id
    }

    /// Whether values of the type are IP addresses: 4 bytes in the byte order of the network, or `in6_addr`.
    fn is_address(&self, id: u32) -> bool {
        let one = (id as usize).checked_sub(1).and_then(|at| self.types.get(at));
        one.is_some_and(|one| match one.kind {
            Kind::Alias { .. } => one.name == "__be32",
            Kind::Struct { len, .. } => one.name == "in6_addr" && len == 16,
            _ => false,
        })
    }

    /// The members of a map's definition.
    fn definition(&self, name: &str) -> Option<&[Member]> {
        // The name in the kernel may be cut; then others may begin with it.
        let is_exact = self.by_name.contains_key(name);
        let is_it = |one: &&Type| {
            let is_named = one.name == name || !is_exact && is_cut(name, &one.name);
            matches!(one.kind, Kind::Variable { .. }) && is_named
        };
        self.types.iter().filter(is_it).find_map(|one| match one.kind {
            Kind::Variable { of } => match self.kind(self.resolved(of)) {
                Some(Kind::Struct { members, .. }) if members.iter().any(|m| m.name == "type") => {
                    Some(&members[..])
                }
                _ => None,
            },
            _ => None,
        })
    }

    /// The data section of this name. libbpf puts the name of the object in front of it.
    fn section(&self, name: &str) -> Option<u32> {
        let name = &name[name.find('.')?..];
        let ids = self.by_name.get(name)?;
        ids.iter().copied().find(|id| matches!(self.kind(*id), Some(Kind::Section { .. })))
    }

    fn len_within(&self, id: u32, depth: u32) -> Option<usize> {
        let depth = depth.checked_sub(1)?;
        match self.kind(id)? {
            Kind::Int { len, .. } | Kind::Float { len } | Kind::Enum { len, .. } => Some(*len),
            Kind::Struct { len, .. } => Some(*len),
            Kind::Pointer { .. } => Some(8),
            Kind::Array { of, entries } => self.len_within(*of, depth)?.checked_mul(*entries as usize),
            Kind::Alias { of } | Kind::Variable { of } => self.len_within(*of, depth),
            Kind::Section { .. } | Kind::Other => None,
        }
    }

    fn decode_within(&self, id: u32, bytes: &[u8], depth: u32, left: &mut usize) -> Option<Typed> {
        let depth = depth.checked_sub(1)?;
        *left = left.checked_sub(1)?;
        Some(match self.kind(id)? {
            _ if self.is_address(id) => Typed::Text(match self.len_of(id) {
                Some(4) => Ipv4Addr::from(*bytes.first_chunk::<4>()?).to_string(),
                _ => Ipv6Addr::from(*bytes.first_chunk::<16>()?).to_string(),
            }),
            Kind::Alias { of } | Kind::Variable { of } => {
                return self.decode_within(*of, bytes, depth, left);
            }
            Kind::Int { len, is_signed, is_bool, .. } => {
                let word = word_of(bytes.get(..*len)?)?;
                if *is_bool {
                    Typed::Bool(word != 0)
                } else if *is_signed {
                    Typed::Signed(extended(word, *len as u32 * 8))
                } else {
                    Typed::Unsigned(word)
                }
            }
            Kind::Float { len: 4 } => Typed::Float(f32::from_bits(word_of(bytes.get(..4)?)? as u32).into()),
            Kind::Float { len: 8 } => Typed::Float(f64::from_bits(word_of(bytes.get(..8)?)?)),
            Kind::Pointer { .. } => Typed::Unsigned(word_of(bytes.get(..8)?)?),
            Kind::Enum { len, constants, is_signed } => {
                let word = word_of(bytes.get(..*len)?)?;
                match constants.iter().find(|(_, value)| *value == word) {
                    Some((name, _)) => Typed::Text(name.clone()),
                    None if *is_signed => Typed::Signed(extended(word, *len as u32 * 8)),
                    None => Typed::Unsigned(word),
                }
            }
            Kind::Array { of, entries } => {
                let len = self.len_within(*of, depth)?;
                let bytes = bytes.get(..len.checked_mul(*entries as usize)?)?;
                return self.array(*of, len, bytes, depth, left);
            }
            Kind::Struct { members, .. } | Kind::Section { members } => {
                let mut out = Vec::new();
                for member in members {
                    let value = self.member(member, bytes, depth, left)?;
                    out.push((member.name.clone(), value));
                }
                Typed::Struct(out)
            }
            Kind::Float { .. } | Kind::Other => return None,
        })
    }

    fn array(&self, of: u32, len: usize, bytes: &[u8], depth: u32, left: &mut usize) -> Option<Typed> {
        if let Some(Kind::Int { len: 1, is_char, is_bool: false, .. }) = self.kind(self.resolved(of)) {
            let text = is_char.then(|| text_of(bytes)).flatten();
            return Some(text.map_or_else(|| Typed::Bytes(bytes.to_vec()), Typed::Text));
        }
        if len == 0 {
            return Some(Typed::List(Vec::new()));
        }
        let elements = bytes.chunks_exact(len).map(|one| self.decode_within(of, one, depth, left));
        elements.collect::<Option<Vec<_>>>().map(Typed::List)
    }

    fn member(&self, member: &Member, bytes: &[u8], depth: u32, left: &mut usize) -> Option<Typed> {
        if member.bits == 0 {
            return self.decode_within(member.of, bytes.get(member.bit as usize / 8..)?, depth, left);
        }
        // A bit field of at most 64 bits lies within nine bytes.
        let first = member.bit as usize / 8;
        let mut wide = [0; 16];
        let there = bytes.get(first..)?;
        let there = &there[..there.len().min(9)];
        wide[..there.len()].copy_from_slice(there);
        let value = (u128::from_le_bytes(wide) >> (member.bit % 8)) as u64;
        let value = if member.bits >= 64 { value } else { value & ((1 << member.bits) - 1) };
        Some(match self.kind(self.resolved(member.of))? {
            Kind::Int { is_signed: true, .. } => Typed::Signed(extended(value, member.bits)),
            Kind::Int { is_bool: true, .. } => Typed::Bool(value != 0),
            _ => Typed::Unsigned(value),
        })
    }

    fn leaves_within(
        &self,
        id: u32,
        at: usize,
        depth: u32,
        left: &mut usize,
        out: &mut Vec<Leaf>,
    ) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        *left = left.checked_sub(1)?;
        match self.kind(id)? {
            Kind::Alias { of } | Kind::Variable { of } => self.leaves_within(*of, at, depth, left, out),
            Kind::Int { len, .. } | Kind::Enum { len, .. } if *len <= 8 => {
                out.push(Leaf { at, len: *len });
                Some(())
            }
            Kind::Array { of, entries } => {
                let len = self.len_within(*of, depth)?;
                (0..*entries as usize).try_for_each(|index| {
                    self.leaves_within(*of, at.checked_add(len.checked_mul(index)?)?, depth, left, out)
                })
            }
            // Of a union, the first member with its length.
            Kind::Struct { len, members, is_union: true } => {
                let is_whole = |one: &&Member| self.len_within(one.of, depth) == Some(*len);
                self.leaves_within(members.iter().find(is_whole)?.of, at, depth, left, out)
            }
            Kind::Struct { members, .. } => members.iter().try_for_each(|member| {
                let whole = member.bits == 0 && member.bit.is_multiple_of(8);
                whole.then_some(())?;
                self.leaves_within(member.of, at.checked_add(member.bit as usize / 8)?, depth, left, out)
            }),
            _ => None,
        }
    }
}

/// The kernel keeps 15 characters of a map's name.
fn is_cut(short: &str, name: &str) -> bool {
    short.len() == 15 && name.starts_with(short)
}

fn word_of(bytes: &[u8]) -> Option<u64> {
    (bytes.len() <= 8).then(|| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// Extends the sign of a number of `bits` bits.
fn extended(word: u64, bits: u32) -> i64 {
    let unused = 64 - bits.clamp(1, 64);
    (word << unused).cast_signed() >> unused
}

/// The text of an array of `char`, if it is one: printable ASCII up to a zero, and zeros after it.
fn text_of(bytes: &[u8]) -> Option<String> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let is_text = bytes[..len].iter().all(|byte| (0x20..0x7f).contains(byte));
    let is_text = is_text && bytes[len..].iter().all(|byte| *byte == 0);
    is_text.then(|| String::from_utf8_lossy(&bytes[..len]).into_owned())
}

impl Type {
    fn of(types: &reader::Types<'_>, id: u32) -> Option<Type> {
        let ty = types.get(id)?;
        let (name, len) = (string(types, ty.name)?, ty.word as usize);
        let kind = match ty.kind {
            kind::INT => {
                let encoding = ty.encoding();
                // clang 14 does not mark `char`; its name does.
                let is_char = encoding & 2 != 0 || name == "char";
                Kind::Int { len, is_signed: encoding & 1 != 0, is_char, is_bool: encoding & 4 != 0 }
            }
            kind::PTR => Kind::Pointer { to: ty.word },
            kind::ARRAY => {
                let (of, entries) = ty.array()?;
                Kind::Array { of, entries }
            }
            kind::STRUCT | kind::UNION => {
                let member = |member: reader::Member| {
                    let reader::Member { name, ty: of, at: bit, bits } = member;
                    Some(Member { name: string(types, name)?, of, bit, bits })
                };
                let members = ty.members().map(member).collect::<Option<_>>()?;
                Kind::Struct { len, members, is_union: ty.kind == kind::UNION }
            }
            kind::ENUM | kind::ENUM64 => {
                let mask = if len >= 8 { u64::MAX } else { (1 << (len * 8)) - 1 };
                let constant = |(name, value)| Some((string(types, name)?, value & mask));
                let constants = ty.enumerators().into_iter().map(constant).collect::<Option<_>>()?;
                Kind::Enum { len, constants, is_signed: ty.flag }
            }
            kind::TYPEDEF..=kind::RESTRICT | kind::TYPE_TAG => Kind::Alias { of: ty.word },
            kind::VAR => Kind::Variable { of: ty.word },
            kind::DATASEC => {
                let member = |placed: reader::Placed| {
                    let name = string(types, types.get(placed.ty)?.name)?;
                    Some(Member { name, of: placed.ty, bit: placed.at.checked_mul(8)?, bits: 0 })
                };
                Kind::Section { members: ty.variables().map(member).collect::<Option<_>>()? }
            }
            kind::FLOAT => Kind::Float { len },
            // Forward declarations, functions, prototypes and declaration tags.
            _ => Kind::Other,
        };
        Some(Type { name, kind })
    }
}

/// Maximum length of a name in bytes (`KSYM_NAME_LEN` of the kernel); the rest is cut.
const NAME_MAX: usize = 512;

fn string(types: &reader::Types<'_>, at: u32) -> Option<String> {
    let text = types.text(at)?;
    Some(String::from_utf8_lossy(&text[..text.len().min(NAME_MAX)]).into_owned())
}

#[cfg(test)]
#[path = "types_tests.rs"]
mod tests;
