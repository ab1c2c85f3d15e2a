//! Mutated object files: each is refused or gives programs that can be listed, vetted and loaded. Nothing
//! panics, and no file makes the reader allocate much more than its own length.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use object::elf::R_BPF_64_32;
use object::write::{Object, Relocation, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope,
};
use roxie_tests::random::Rng;

use super::elf::FILE_MAX;
use super::{Candidate, Kernel, add_tails, candidates, clang, programs_of, write};
use crate::insn::{Imm64, Insn, Reg, encode};
use crate::map::{Initial, Map, MapDef, MapKind};
use crate::program::{Program, ProgramKind};
use crate::vet::vet;
use crate::vm::Image;
use crate::{Recipe, XdpAction};

/// Mutations of each object file. Builds of nights set `ROXIE_MUTATIONS`.
const MUTATIONS: u64 = 600;

fn mutations() -> u64 {
    std::env::var("ROXIE_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(MUTATIONS)
}

fn recipes() -> Vec<(String, Vec<u8>)> {
    let counted = Recipe { counters: true, ..Recipe::verdict(XdpAction::Drop) };
    let named =
        [("steer", Recipe::steer(4791, 4)), ("drop", counted), ("pass", Recipe::verdict(XdpAction::Pass))];
    named
        .into_iter()
        .map(|(name, recipe)| {
            let program = recipe.program(name, ProgramKind::Xdp).unwrap();
            (name.to_owned(), write(&program).unwrap())
        })
        .collect()
}

fn compiled() -> Vec<(String, Vec<u8>)> {
    let names = ["adapt", "calls", "filter", "flows", "hash", "kernel", "mixed", "redirect", "tail"];
    let built = |name: &str| {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/object/{name}.c"));
        if own.exists() { clang::build_file(&own, "v3") } else { clang::build(name, "v3") }
    };
    let build = |name: &str| match built(name) {
        Ok(object) => Some((name.to_owned(), object)),
        Err(reason) => {
            println!("{reason}");
            None
        }
    };
    names.into_iter().map_while(build).collect()
}

fn use_program(program: &Program) {
    drop(program.listing().to_string());
    assert!(vet(program).iter().all(|objection| !objection.to_string().is_empty()));
    // Larger maps take time to clear.
    if program.maps.iter().map(|map| map.memory_bytes(2)).fold(0, u64::saturating_add) < 1 << 24 {
        let maps: Result<Vec<_>, _> = program.maps.iter().map(|def| Map::new(def, 2)).collect();
        if let Ok(maps) = maps {
            drop(Image::new(program, maps));
        }
    }
}

fn read(file: &[u8], kernel_types: Option<&[u8]>) {
    let config = Some("CONFIG_BPF=y\n");
    let kernel = Kernel { types: kernel_types, version: Some(6 << 16), config, cpus: Some(2) };
    for candidate in candidates(file, &kernel).unwrap_or_default() {
        match candidate.program {
            Ok(program) => {
                use_program(&program);
                assert!(program.maps.len() <= 1000);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn types_of(file: &[u8]) -> Option<Vec<u8>> {
    use object::{Object, ObjectSection};
    let file = object::read::elf::ElfFile64::<object::Endianness>::parse(file).ok()?;
    file.section_by_name(".BTF")?.data().ok().map(<[u8]>::to_vec)
}

/// Runs the mutations of each file; the panics are the differences in a list.
fn survive(files: &[(String, Vec<u8>)]) {
    let mut panics = BTreeSet::new();
    for (name, file) in files {
        let kernel_types = types_of(file);
        read(file, kernel_types.as_deref());
        for seed in 0..mutations() {
            let mutated = Rng(seed).overwrite(file);
            let reads = AssertUnwindSafe(|| read(&mutated, kernel_types.as_deref()));
            if catch_unwind(reads).is_err() {
                panics.insert(format!("{name} with seed {seed}"));
            }
        }
    }
    assert!(
        panics.is_empty(),
        "{} of {} mutations panic: {panics:?}",
        panics.len(),
        mutations() * files.len() as u64
    );
}

#[test]
fn mutated_files_of_recipes_cause_no_panic() {
    survive(&recipes());
}

#[test]
fn mutated_files_of_clang_cause_no_panic() {
    survive(&compiled());
}

/// Returns an object file with a program of two instructions and this many bytes of zeros.
fn with_zeros(size: u64) -> Vec<u8> {
    let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
    let text = file.add_section(Vec::new(), b"xdp".to_vec(), SectionKind::Text);
    let code = [0xb7, 0, 0, 0, 2, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
    file.append_section_data(text, &code, 8);
    file.add_symbol(Symbol {
        name: b"pass".to_vec(),
        value: 0,
        size: code.len() as u64,
        kind: SymbolKind::Text,
        scope: SymbolScope::Linkage,
        weak: false,
        section: SymbolSection::Section(text),
        flags: SymbolFlags::None,
    });
    let zeros = file.add_section(Vec::new(), b".bss".to_vec(), SectionKind::UninitializedData);
    file.append_section_bss(zeros, size, 1);
    file.write().expect("a file")
}

/// The target of the call does not fit into 64 bits.
#[test]
fn a_call_beyond_the_end_of_the_address_space_is_refused() {
    for value in [i64::MAX as u64, u64::MAX] {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
        let text = file.add_section(Vec::new(), b"xdp".to_vec(), SectionKind::Text);
        let code = [0x85, 0x10, 0, 0, 5, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
        file.append_section_data(text, &code, 8);
        let mut symbol = |name: &str, value, size, kind| {
            file.add_symbol(Symbol {
                name: name.as_bytes().to_vec(),
                value,
                size,
                kind,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(text),
                flags: SymbolFlags::None,
            })
        };
        symbol("main", 0, 16, SymbolKind::Text);
        let symbol = symbol("far", value, 8, SymbolKind::Data);
        let flags = RelocationFlags::Elf { r_type: R_BPF_64_32 };
        file.add_relocation(text, Relocation { offset: 0, symbol, addend: 0, flags }).expect("it fits");
        let refused = programs_of(&file.write().expect("a file"), None).expect_err("no function").to_string();
        assert!(refused.contains("no function"), "{value:#x}: {refused}");
    }
}

/// Each of 50 programs names all others: the copies would take 50 times the space of the file.
#[test]
fn programs_that_name_each_other_are_counted() {
    let program = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
    let names: Vec<String> = (0..50).map(|number| format!("step_{number}")).collect();
    let entries = (0..).zip(&names).map(|(key, name)| (key, Initial::Program(name.clone()))).collect();
    let steps = MapDef { entries, ..MapDef::new("steps", MapKind::ProgArray, 4, 4, 50) };
    let mut slots = Vec::new();
    encode(&Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Map(0) }, &mut slots);
    slots.extend(program.slots.clone());
    let all = |bytes_max| {
        let mut all: Vec<Candidate> = names
            .iter()
            .map(|name| {
                let (name, slots, maps) = (name.clone(), slots.clone(), vec![steps.clone()]);
                let program = Program { name: name.clone(), slots, maps, ..program.clone() };
                let section = "xdp".to_owned();
                Candidate { name, section, kind: Some(ProgramKind::Xdp), program: Ok(program) }
            })
            .collect();
        add_tails(&mut all, bytes_max);
        all.into_iter().map(|one| one.program.map(|program| program.tails.len())).collect::<Vec<_>>()
    };
    assert!(all(usize::MAX).iter().all(|tails| *tails == Ok(49)));
    let few = all(1 << 19);
    assert!(few[0] == Ok(49) && few[49].clone().unwrap_err().to_string().contains("are too large"));
}

/// Such a section takes no space in the file, so that the file may name any size.
#[test]
fn a_section_of_zeros_that_exceeds_the_memory_is_refused() {
    assert_eq!(programs_of(&with_zeros(64), None).expect("it is small").len(), 1);
    for size in [FILE_MAX + 1, 1 << 40, 1 << 63, u64::MAX - 1, u64::MAX] {
        let refused = programs_of(&with_zeros(size), None).expect_err("it is too large").to_string();
        assert!(refused.contains("its sections are too large"), "{size}: {refused}");
    }
}
