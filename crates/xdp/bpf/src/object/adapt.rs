//! Adapts instructions to the kernel's structures (CO-RE, `struct bpf_core_relo`).
//!
//! A record names an instruction, a type of the object file, and a path of members in it. The instruction
//! gets the offset, size or existence of the same path in the kernel's type of that name.

use super::ext::Record;
use crate::btf::reader::{Member, Type, Types, flavorless, kind};
use crate::insn::slot::{ALU, ALU64, CLASS, JMP, LDX, OP_CALL, OP_LOAD_IMM64, SIZE, ST, STX};
use crate::insn::{Size, Slot};
use crate::program::POISON;

/// Most steps of a path, and most members that are searched for one name.
const PATH_MAX: usize = 64;
const SEARCH_MAX: usize = 4096;
/// Most types of one name that are compared.
const CANDIDATES_MAX: usize = 64;

/// Kinds of adaptations (`enum bpf_core_relo_kind`).
const FIELD_BYTE_OFFSET: u32 = 0;
const FIELD_BYTE_SIZE: u32 = 1;
const FIELD_EXISTS: u32 = 2;
const FIELD_SIGNED: u32 = 3;
const FIELD_LSHIFT_U64: u32 = 4;
const FIELD_RSHIFT_U64: u32 = 5;
const TYPE_ID_LOCAL: u32 = 6;
const TYPE_ID_TARGET: u32 = 7;
const TYPE_EXISTS: u32 = 8;
const TYPE_SIZE: u32 = 9;
const ENUMVAL_EXISTS: u32 = 10;
const ENUMVAL_VALUE: u32 = 11;
const TYPE_MATCHES: u32 = 12;

/// An access along a path: the last member or element.
#[derive(Clone, Copy, Debug)]
struct Place {
    ty: u32,
    /// Offset from the start of the root type, in bits.
    at: u64,
    /// Bits of a bit field, else 0.
    bits: u32,
}

/// A step of a path: a member by name, or the element of an array.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Named(&'a [u8]),
    Element(u32),
}

/// Adapts the instruction at slot `at`. Without `kernel` only records about the file's own types can be
/// used; `Ok(false)` tells that the kernel's types are needed.
///
/// # Errors
/// What is wrong with the record or the instruction.
pub(super) fn adapt(
    slots: &mut [Slot],
    at: usize,
    record: &Record<'_>,
    types: &Types<'_>,
    kernel: Option<&Types<'_>>,
) -> Result<bool, String> {
    let (root, path, kind) = (record.word(1), record.word(2), record.word(3));
    let wrong = || format!("the record that adapts it to type {root} is malformed");
    let path = path_of(types.name(path).ok_or_else(wrong)?).ok_or_else(wrong)?;
    let name = types.get(root).and_then(|ty| types.text(ty.name)).unwrap_or_default();
    let value = if kind == TYPE_ID_LOCAL {
        Some(u64::from(root))
    } else {
        let Some(kernel) = kernel else { return Ok(false) };
        let local = Local { types, root, path: &path, kind };
        local.value_in(kernel, name).ok_or_else(wrong)?
    };
    let own =
        matches!(kind, FIELD_BYTE_OFFSET | FIELD_BYTE_SIZE).then(|| place(types, root, &path)).flatten();
    let load = own.filter(|own| kind == FIELD_BYTE_OFFSET && own.bits == 0).and_then(|own| {
        // A load must be as wide as the kernel's field.
        Some((
            types.size(own.ty)?,
            value.and_then(|_| {
                Local { types, root, path: &path, kind: FIELD_BYTE_SIZE }.value_in(kernel?, name).flatten()
            })?,
        ))
    });
    patch(slots, at, value, load).map_err(|why| format!("type {}: {why}", String::from_utf8_lossy(name)))?;
    Ok(true)
}

fn path_of(text: &str) -> Option<Vec<u32>> {
    let path = text.split(':').map(|index| index.parse().ok()).collect::<Option<Vec<u32>>>()?;
    (path.len() <= PATH_MAX).then_some(path)
}

/// A path in a type of the object file.
struct Local<'t, 'a> {
    types: &'t Types<'a>,
    root: u32,
    path: &'t [u32],
    kind: u32,
}

impl Local<'_, '_> {
    /// Returns the value for the instruction; `Some(None)` if the kernel has no such field. `None` if the
    /// record does not fit the file's types.
    fn value_in(&self, kernel: &Types<'_>, name: &[u8]) -> Option<Option<u64>> {
        let (_, own) = self.types.resolved(self.root)?;
        let own_kind = self.types.get(self.root)?.kind;
        let candidates = kernel.named(name).iter().copied().take(CANDIDATES_MAX).filter(|ty| {
            kernel.get(*ty).is_some_and(|ty| ty.kind == own_kind || is_enum(ty.kind) && is_enum(own_kind))
        });
        let mut found = candidates.filter(|ty| kernel.resolved(*ty).is_some_and(|(_, ty)| fits(&own, &ty)));
        match self.kind {
            FIELD_BYTE_OFFSET..=FIELD_RSHIFT_U64 => {
                let steps = steps(self.types, self.root, self.path)?;
                let place = found.find_map(|ty| follow(kernel, ty, &steps));
                Some(field_value(self.kind, kernel, place))
            }
            // 0 if the kernel has no such type.
            TYPE_ID_TARGET => Some(Some(found.next().map_or(0, u64::from))),
            TYPE_EXISTS | TYPE_MATCHES => Some(Some(found.next().is_some().into())),
            TYPE_SIZE => Some(Some(found.next().and_then(|ty| kernel.size(ty)).map_or(0, u64::from))),
            ENUMVAL_EXISTS | ENUMVAL_VALUE => {
                let index = *self.path.first()? as usize;
                let (name, _) = *own.enumerators().get(index)?;
                let name = flavorless(self.types.text(name)?);
                let value = found.find_map(|ty| {
                    let (_, ty) = kernel.resolved(ty)?;
                    let mut all = ty.enumerators().into_iter();
                    all.find(|(n, _)| kernel.text(*n).map(flavorless) == Some(name)).map(|(_, value)| value)
                });
                Some(if self.kind == ENUMVAL_EXISTS { Some(value.is_some().into()) } else { value })
            }
            _ => None,
        }
    }
}

fn is_enum(kind: u32) -> bool {
    matches!(kind, kind::ENUM | kind::ENUM64)
}

/// Whether two types of one name can stand for each other.
fn fits(own: &Type<'_>, other: &Type<'_>) -> bool {
    own.kind == other.kind || is_enum(own.kind) && is_enum(other.kind)
}

/// Returns the value of a record about a field; `None` if the kernel has no such field.
fn field_value(kind: u32, kernel: &Types<'_>, place: Option<Place>) -> Option<u64> {
    if kind == FIELD_EXISTS {
        return Some(place.is_some().into());
    }
    let place = place?;
    let size = u64::from(kernel.size(place.ty)?);
    let (_, ty) = kernel.resolved(place.ty)?;
    let (mut start, mut len) = (place.at / 8, size);
    if place.bits > 0 {
        // The aligned word that has all bits of the field.
        let wanted = u64::from(place.bits);
        start = place.at / 8 / size.max(1) * size;
        while place.at + wanted > (start + len) * 8 {
            len *= 2;
            if len > 8 {
                return None;
            }
            start = place.at / 8 / len * len;
        }
    }
    let bits = if place.bits > 0 { u64::from(place.bits) } else { size * 8 };
    match kind {
        FIELD_BYTE_OFFSET => Some(start),
        FIELD_BYTE_SIZE => Some(len),
        FIELD_SIGNED => Some(ty.is_signed().into()),
        FIELD_LSHIFT_U64 => 64_u64.checked_sub(place.at - start * 8 + bits),
        FIELD_RSHIFT_U64 => 64_u64.checked_sub(bits),
        _ => None,
    }
}

/// Returns the names and elements along a path; `None` if the path does not fit the type.
fn steps<'a>(types: &Types<'a>, root: u32, path: &[u32]) -> Option<Vec<Step<'a>>> {
    let (first, rest) = path.split_first()?;
    let (mut steps, mut at) = (vec![Step::Element(*first)], root);
    for index in rest {
        let (_, ty) = types.resolved(at)?;
        if let Some((element, _)) = ty.array() {
            steps.push(Step::Element(*index));
            at = element;
            continue;
        }
        let member = ty.members().nth(*index as usize)?;
        let name = types.text(member.name)?;
        if !name.is_empty() {
            steps.push(Step::Named(name));
        }
        at = member.ty;
    }
    Some(steps)
}

/// Returns the place at the end of a path in the file's own types.
fn place(types: &Types<'_>, root: u32, path: &[u32]) -> Option<Place> {
    follow(types, root, &steps(types, root, path)?)
}

/// Returns the place at the end of the steps.
fn follow(types: &Types<'_>, root: u32, steps: &[Step<'_>]) -> Option<Place> {
    let (first, rest) = steps.split_first()?;
    let mut place = Place { ty: root, at: 0, bits: 0 };
    if let Step::Element(index @ 1..) = first {
        place.at = u64::from(*index) * u64::from(types.size(root)?) * 8;
    }
    for step in rest {
        let (number, ty) = types.resolved(place.ty)?;
        match step {
            Step::Named(name) => {
                let (member, before) = member(types, number, name)?;
                let at = place.at + before + u64::from(member.at);
                place = Place { ty: member.ty, at, bits: member.bits };
            }
            Step::Element(index) => {
                let (element, _) = ty.array()?;
                let at = place.at + u64::from(*index) * u64::from(types.size(element)?) * 8;
                place = Place { ty: element, at, bits: 0 };
            }
        }
    }
    Some(place)
}

/// Returns the member with this name, also inside of members without a name, and the bits in front of the
/// structure that has it.
fn member(types: &Types<'_>, root: u32, name: &[u8]) -> Option<(Member, u64)> {
    let (mut left, mut seen) = (vec![(root, 0_u64)], 0);
    while let Some((ty, before)) = left.pop() {
        for member in types.resolved(ty)?.1.members() {
            seen += 1;
            if seen > SEARCH_MAX {
                return None;
            }
            match types.text(member.name)? {
                b"" => left.push((member.ty, before + u64::from(member.at))),
                text if text == name => return Some((member, before)),
                _ => {}
            }
        }
    }
    None
}

/// Writes the value into the instruction at slot `at`, or makes it one that must not be reached. `load` is
/// the size of the field in the file and in the kernel.
fn patch(
    slots: &mut [Slot],
    at: usize,
    value: Option<u64>,
    load: Option<(u32, u64)>,
) -> Result<(), &'static str> {
    let next = slots.get(at + 1).copied();
    let slot = slots.get_mut(at).ok_or("the record is outside of its function")?;
    let poison = Slot { opcode: OP_CALL | JMP, dst: 0, src: 0, off: 0, imm: POISON };
    let wide = slot.opcode == OP_LOAD_IMM64;
    if wide && next.is_none() {
        return Err("a 64-bit load is cut in half");
    }
    let Some(value) = value else {
        *slot = poison;
        if wide && let Some(second) = slots.get_mut(at + 1) {
            *second = poison;
        }
        return Ok(());
    };
    match slot.opcode & CLASS {
        _ if wide => {
            slot.imm = value as i32;
            if let Some(second) = slots.get_mut(at + 1) {
                second.imm = (value >> 32) as i32;
            }
        }
        ALU | ALU64 => slot.imm = i32::try_from(value).map_err(|_| "the value exceeds 32 bits")?,
        LDX | ST | STX => {
            slot.off = i16::try_from(value).map_err(|_| "the offset exceeds 16 bits")?;
            if let Some((own, theirs)) = load.filter(|(own, theirs)| u64::from(*own) != *theirs) {
                let size = match theirs {
                    1 => Size::B,
                    2 => Size::H,
                    4 => Size::W,
                    8 => Size::Dw,
                    _ => return Err("the kernel's field is no integer"),
                };
                if ![1, 2, 4, 8].contains(&own) {
                    return Err("the field is no integer");
                }
                slot.opcode = slot.opcode & !SIZE | size.code();
            }
        }
        _ => return Err("the instruction cannot be adapted"),
    }
    Ok(())
}
