//! Extended type information (`.BTF.ext`) and the records in it that adapt instructions to the kernel's
//! structures (CO-RE), checked before `aya-obj` applies them.

use super::check::Code;
use super::types::{Type, Types, kind, word};

/// Lengths of the records that `aya-obj` reads, at least: functions, lines, adaptations.
const RECORD_MIN: [usize; 3] = [8, 16, 16];
const RECORD_MAX: usize = 256;
/// Most adaptations of an object file. Each compares names of the kernel's types.
const ADAPTATIONS_MAX: usize = 10_000;
/// Most indices of an access path, and the largest one.
const PATH_MAX: usize = 64;
const INDEX_MAX: usize = 1 << 16;

/// Kinds of adaptations (`enum bpf_core_relo_kind`): the first six are about fields.
const FIELD_BYTE_OFFSET: u32 = 0;
const FIELD_LAST: u32 = 5;
const KIND_MAX: u32 = 11;

/// Instruction classes of loads and stores.
const MEMORY_CLASSES: std::ops::RangeInclusive<u8> = 1..=3;

/// Checks the section; returns what is wrong with it.
pub(super) fn check(
    ext: &[u8],
    types: &Types<'_>,
    code: &Code<'_>,
    kernel: Option<&Types<'_>>,
) -> Result<(), &'static str> {
    let subsections = subsections(ext).ok_or("the header of its extended type information is wrong")?;
    let mut adaptations = 0;
    for (index, subsection) in subsections.into_iter().enumerate() {
        let Some((record_len, mut rest)) = split_word(subsection) else { continue };
        let record_len = record_len as usize;
        if !(RECORD_MIN[index]..=RECORD_MAX).contains(&record_len) || !record_len.is_multiple_of(4) {
            return Err("a record of its extended type information has a wrong length");
        }
        // The reader stops where no further record fits.
        while rest.len() > 8 {
            let (name, count) = (word(rest, 0), word(rest, 4));
            let section = name.and_then(|name| types.text(name)).ok_or(OUTSIDE)?;
            let len = (count.ok_or(OUTSIDE)? as usize).checked_mul(record_len).ok_or(OUTSIDE)?;
            let records = rest.get(8..).and_then(|rest| rest.get(..len)).ok_or(OUTSIDE)?;
            rest = &rest[8 + len..];
            if index == 1 && !records.chunks_exact(record_len).is_sorted_by_key(|record| word(record, 0)) {
                return Err("the lines of its extended type information are not in order");
            }
            if index == 2 {
                adaptations += records.len() / record_len;
                if adaptations > ADAPTATIONS_MAX {
                    return Err("it adapts too many instructions");
                }
                for record in records.chunks_exact(record_len) {
                    Adaptation::parse(record, types)
                        .and_then(|adaptation| adaptation.is_sound(section, types, code, kernel))
                        .filter(|sound| *sound)
                        .ok_or("it adapts an instruction to a type in a way that is not supported")?;
                }
            }
        }
    }
    Ok(())
}

/// Returns whether the section adapts instructions.
pub(super) fn adapts(ext: &[u8]) -> bool {
    subsections(ext).is_some_and(|[_, _, adaptations]| !adaptations.is_empty())
}

const OUTSIDE: &str = "a record is outside of its extended type information";

/// Returns the bytes of the three subsections; an absent one is empty.
fn subsections(ext: &[u8]) -> Option<[&[u8]; 3]> {
    let header_len = word(ext, 4)? as usize;
    // Older headers have no adaptations.
    if ![24, 32].contains(&header_len) || ext.len() < header_len {
        return None;
    }
    let part = |at: usize| {
        if at >= header_len {
            return Some(&ext[..0]);
        }
        let (start, len) = (word(ext, at)? as usize, word(ext, at + 4)? as usize);
        let part = ext.get(header_len..)?.get(start..)?.get(..len)?;
        (len == 0 || len >= 4).then_some(part)
    };
    Some([part(8)?, part(16)?, part(24)?])
}

fn split_word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    Some((word(bytes, 0)?, bytes.get(4..)?))
}

/// `struct bpf_core_relo`.
struct Adaptation {
    at: u32,
    ty: u32,
    kind: u32,
    path: Vec<usize>,
}

impl Adaptation {
    /// Returns `None` for a wrong number or access path.
    fn parse(record: &[u8], types: &Types<'_>) -> Option<Self> {
        let [at, ty, path, kind] = [word(record, 0)?, word(record, 4)?, word(record, 8)?, word(record, 12)?];
        let text = std::str::from_utf8(types.text(path)?).ok()?;
        let path = text.split(':').map(|index| index.parse().ok()).collect::<Option<Vec<usize>>>()?;
        let is_short = path.len() <= PATH_MAX && path.iter().all(|index| *index <= INDEX_MAX);
        (is_short && kind <= KIND_MAX).then_some(Self { at, ty, kind, path })
    }

    /// Returns whether `aya-obj` can apply it to these types and to the kernel's.
    fn is_sound(
        &self,
        section: &[u8],
        types: &Types<'_>,
        code: &Code<'_>,
        kernel: Option<&Types<'_>>,
    ) -> Option<bool> {
        let opcode = code.opcode(section, u64::from(self.at))?;
        let root = types.get(types.resolved(self.ty)?)?;
        let is_data = matches!(root.kind, kind::INT..=kind::FWD | kind::FLOAT | kind::ENUM64);
        if !is_data || self.kind > FIELD_LAST {
            return Some(is_data);
        }
        let Some(path) = self.fields(types) else { return Some(true) };
        if self.kind != FIELD_BYTE_OFFSET || !MEMORY_CLASSES.contains(&(opcode & 7)) {
            return Some(true);
        }
        // A load of a bit field is no load of its bytes.
        let Some(Field::Named(_, bits)) = path.last() else { return Some(true) };
        if *bits > 0 {
            return Some(false);
        }
        let Some(kernel) = kernel else { return Some(true) };
        let ty = types.get(self.ty)?;
        let mut candidates = kernel.candidates(ty.kind, types.text(ty.name)?);
        Some(!candidates.any(|candidate| ends_in_bit_field(kernel, candidate, &path)))
    }

    /// Returns the fields along the access path; `None` if it does not fit the types, which `aya-obj`
    /// reports.
    fn fields<'a>(&self, types: &Types<'a>) -> Option<Vec<Field<'a>>> {
        let (mut fields, mut at) = (Vec::new(), types.resolved(self.ty)?);
        for index in self.path.iter().skip(1) {
            let ty: &Type = types.get(types.resolved(at)?)?;
            match ty.kind {
                kind::STRUCT | kind::UNION => {
                    let member = ty.members.get(*index)?;
                    if member.name != 0 {
                        fields.push(Field::Named(types.text(member.name)?, member.bits));
                    }
                    at = member.ty;
                }
                kind::ARRAY => {
                    fields.push(Field::Element);
                    at = ty.element;
                }
                _ => return None,
            }
        }
        Some(fields)
    }
}

/// A step of an access path: a member with the bits of its bit field, or an element of an array.
enum Field<'a> {
    Named(&'a [u8], u32),
    Element,
}

fn ends_in_bit_field(kernel: &Types<'_>, root: u32, path: &[Field<'_>]) -> bool {
    let (mut at, mut bits) = (Some(root), 0);
    for field in path {
        let Some(ty) = at.and_then(|at| kernel.resolved(at)) else { return false };
        match field {
            Field::Named(name, _) => {
                let member = kernel.member(ty, name);
                (at, bits) = (member.map(|member| member.ty), member.map_or(0, |member| member.bits));
            }
            Field::Element => at = kernel.get(ty).filter(|ty| ty.kind == kind::ARRAY).map(|ty| ty.element),
        }
    }
    at.is_some() && bits > 0
}
