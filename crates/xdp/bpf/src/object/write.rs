//! Writes object files of assembled programs, for loaders based on libbpf: ip(8), bpftool and xdp-loader.

use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind};
use object::{SymbolFlags, SymbolKind, SymbolScope, elf};

use super::ObjectError;
use crate::btf;
use crate::insn::{Imm64, Insn, Slot, decode_all, encode};
use crate::program::{Program, ProgramKind};

/// Returns an object file with this program and its maps, which start empty.
///
/// # Errors
/// [`ObjectError::Unwritable`] if the program has no type information, has inner functions or is not for
/// interfaces, or if a map has initial contents.
pub fn write(program: &Program) -> Result<Vec<u8>, ObjectError> {
    write_section(program, if program.frags { "xdp.frags" } else { "xdp" })
}

/// As [`write()`], with the program in this section.
pub(super) fn write_section(program: &Program, section: &str) -> Result<Vec<u8>, ObjectError> {
    let unwritable = |why: &str| ObjectError::Unwritable(format!("{}: {why}", program.name));
    let types = program.btf.as_ref().ok_or_else(|| unwritable("it has no type information"))?;
    if types.func_info.len() != 1 {
        return Err(unwritable("it has inner functions"));
    }
    if program.kind != ProgramKind::Xdp {
        return Err(unwritable("it is not for an interface"));
    }
    if program.maps.iter().any(|map| !map.initial.is_empty()) {
        return Err(unwritable("it has maps with initial contents"));
    }
    let extended = btf::extended(types, &program.maps, section)
        .ok_or_else(|| unwritable("its type information is malformed"))?;

    let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let add = |file: &mut Object<'_>, name: &str, kind, data: &[u8]| {
        let section = file.add_section(Vec::new(), name.into(), kind);
        file.append_section_data(section, data, 8);
        section
    };
    let (code, references) = code(program)?;
    let text = add(&mut file, section, SectionKind::Text, &code);
    let mut license = program.license.clone().into_bytes();
    license.push(0);
    add(&mut file, "license", SectionKind::Data, &license);
    add(&mut file, ".BTF", SectionKind::Other, &extended.types);
    add(&mut file, ".BTF.ext", SectionKind::Other, &extended.ext);
    symbol(&mut file, text, SymbolKind::Text, &program.name, 0, code.len() as u64);
    let mut symbols = Vec::new();
    // Readers reject an empty section of maps as damaged.
    if !program.maps.is_empty() {
        let variables = vec![0; extended.map_lens.iter().sum::<u32>() as usize];
        let maps = add(&mut file, ".maps", SectionKind::Data, &variables);
        let mut at = 0;
        for (map, len) in program.maps.iter().zip(extended.map_lens) {
            symbols.push(symbol(&mut file, maps, SymbolKind::Data, &map.name, at, u64::from(len)));
            at += u64::from(len);
        }
    }
    for (offset, map) in references {
        let symbol = *symbols.get(map as usize).ok_or_else(|| unwritable("a map is missing"))?;
        let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
        let relocation = Relocation { offset, symbol, addend: 0, flags };
        file.add_relocation(text, relocation).map_err(|error| unwritable(&error.to_string()))?;
    }
    file.write().map_err(|error| unwritable(&error.to_string()))
}

/// A reference to a map: byte offset in the code, and index of the map.
type Reference = (u64, u32);

/// Returns the code with map references cleared, and the list of these references.
fn code(program: &Program) -> Result<(Vec<u8>, Vec<Reference>), ObjectError> {
    let wrong = |error| ObjectError::Code(program.name.clone(), error);
    let (mut slots, mut references) = (Vec::new(), Vec::new());
    for (at, insn) in decode_all(&program.slots).map_err(wrong)? {
        let insn = match insn {
            Insn::LoadImm64 { dst, imm: Imm64::Map(map) } => {
                references.push(((at * Slot::LEN) as u64, map));
                Insn::LoadImm64 { dst, imm: Imm64::Value(0) }
            }
            Insn::LoadImm64 { imm: Imm64::MapValue { .. }, .. } => {
                let why = "it points into the values of a map";
                return Err(ObjectError::Unwritable(format!("{}: {why}", program.name)));
            }
            other => other,
        };
        encode(&insn, &mut slots);
    }
    Ok((slots.into_iter().flat_map(Slot::to_bytes).collect(), references))
}

fn symbol(
    file: &mut Object<'_>,
    section: SectionId,
    kind: SymbolKind,
    name: &str,
    value: u64,
    size: u64,
) -> SymbolId {
    file.add_symbol(Symbol {
        name: name.into(),
        value,
        size,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::programs_of;
    use crate::{Recipe, XdpAction};

    #[test]
    fn a_program_without_maps_survives_writing_and_reading() {
        let program = Recipe::verdict(XdpAction::Drop).program("drop", ProgramKind::Xdp).unwrap();
        assert_eq!(program.maps, []);
        let [back] = &programs_of(&write(&program).unwrap(), None).unwrap()[..] else { panic!() };
        assert_eq!((&back.slots, &back.maps), (&program.slots, &program.maps));
    }

    #[test]
    fn a_program_survives_writing_and_reading() {
        for frags in [false, true] {
            let recipe = Recipe { frags, ..Recipe::steer(4791, 4) };
            let program = recipe.program("steer", ProgramKind::Xdp).unwrap();
            let [back] = &programs_of(&write(&program).unwrap(), None).unwrap()[..] else { panic!() };
            assert_eq!((&back.name, back.frags, back.kind), (&program.name, frags, ProgramKind::Xdp));
            assert_eq!(back.license, program.license);
            // The reader sorts the maps.
            let mut maps = program.maps.clone();
            maps.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(back.maps, maps);
            let fds = |of: &Program| -> Vec<i32> {
                of.maps.iter().map(|map| program.map(&map.name).unwrap().index() as i32).collect()
            };
            assert_eq!(back.link(&fds(back)).unwrap(), program.link(&fds(&program)).unwrap());
            let types = back.btf.as_ref().unwrap();
            assert_eq!(types.name_of(types.func_info[0].type_id).as_deref(), Some("steer"));
        }
    }

    #[test]
    fn a_program_that_a_file_cannot_hold_is_refused() {
        let plain = Recipe::verdict(XdpAction::Pass).program("plain", ProgramKind::Xdp).unwrap();
        assert!(write(&plain).is_ok());
        let on_processor = Program { kind: ProgramKind::XdpCpumap, ..plain.clone() };
        let untyped = Program { btf: None, ..plain };
        for (program, words) in [(on_processor, "not for an interface"), (untyped, "no type information")] {
            let error = write(&program).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
