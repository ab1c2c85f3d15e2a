//! Mutated object files: each is refused or gives programs that can be listed, vetted and loaded. Nothing
//! panics, and no file makes the reader allocate much more than its own length.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::{clang, programs_of, write};
use crate::map::Map;
use crate::program::{Program, ProgramKind};
use crate::vet::vet;
use crate::vm::Image;
use crate::{Recipe, XdpAction};

/// Mutations of each object file. Builds of nights set `ROXIE_MUTATIONS`.
const MUTATIONS: u64 = 600;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns a byte that is often at the edge of a range.
    fn byte(&mut self) -> u8 {
        match self.below(4) {
            0 => 0,
            1 => 0xff,
            2 => 1 << self.below(8),
            _ => self.next() as u8,
        }
    }

    /// Returns the file with one to eight places changed, or cut.
    fn mutate(&mut self, file: &[u8]) -> Vec<u8> {
        let mut out = file.to_vec();
        for _ in 0..1 + self.below(8) {
            let at = self.below(out.len());
            let width = [1, 1, 2, 4, 8][self.below(5)].min(out.len() - at);
            for byte in &mut out[at..at + width] {
                *byte = self.byte();
            }
        }
        if self.below(20) == 0 {
            out.truncate(self.below(file.len()));
        }
        out
    }
}

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
    let names = ["adapt", "filter", "flows", "hash", "mixed", "redirect", "tail"];
    let adapt = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/object/adapt.c");
    let built =
        |name: &str| if name == "adapt" { clang::build_file(&adapt, "v3") } else { clang::build(name, "v3") };
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
    if let Ok(programs) = programs_of(file, kernel_types) {
        programs.iter().for_each(use_program);
        assert!(programs.iter().all(|program| program.maps.len() <= 1000));
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
            let mutated = Rng(seed).mutate(file);
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
