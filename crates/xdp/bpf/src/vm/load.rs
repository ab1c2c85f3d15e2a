//! Loading a program: it is checked, lowered to operations, and gets its maps.

use std::sync::Arc;

use super::check::{Lowered, lower};
use super::image::{Image, LoadError, LoadErrorKind};
use super::op::Op;
use super::space::{Arrays, Space};
use crate::map::{Initial, Map, UpdateMode};
use crate::program::Program;

impl Image {
    /// Checks the program. `maps` are those of [`Program::maps`] in order. Pass the same `Arc` to programs
    /// that share a map.
    ///
    /// # Errors
    /// [`LoadError`] if the machine cannot run the program.
    pub fn new(program: &Program, maps: Vec<Arc<Map>>) -> Result<Image, LoadError> {
        let whole = |kind| LoadError { slot: 0, kind };
        if maps.len() != program.maps.len() {
            return Err(whole(LoadErrorKind::NumberOfMaps));
        }
        let space = Space::new(&maps).ok_or(whole(LoadErrorKind::MapsTooLarge))?;
        for (index, map) in maps.iter().enumerate() {
            fill(program, index, map);
        }
        let mut lowered = Lowered::default();
        for part in std::iter::once(program).chain(&program.tails) {
            lower(part, &maps, &space, &mut lowered)?;
        }
        let Lowered { ops, slots, programs, functions, kfuncs } = lowered;
        Ok(Image {
            name: program.name.clone(),
            constant: Op::constant(&ops),
            arrays: Arrays::new(&maps, &space),
            ops: ops.into(),
            slots: slots.into(),
            kfuncs: kfuncs.into(),
            programs: programs.into(),
            functions,
            maps: maps.into(),
            space,
        })
    }
}

/// Enters the initial values of a map of programs or maps: a program is its number, the map its index, both
/// plus one. A program array belongs to one image.
fn fill(program: &Program, index: usize, map: &Map) {
    for (key, initial) in program.maps.get(index).into_iter().flat_map(|def| &def.entries) {
        let number = match initial {
            Initial::Map(inner) => Some(*inner),
            Initial::Program(name) if *name == program.name => Some(0),
            Initial::Program(name) => {
                let position = program.tails.iter().position(|tail| tail.name == *name);
                position.map(|position| position as u32 + 1)
            }
        };
        if let Some(number) = number {
            // A key beyond the map's size has no entry; the kernel refuses the map.
            let _outside = map.update(&key.to_le_bytes(), &(number + 1).to_le_bytes(), UpdateMode::Any);
        }
    }
}
