//! Programs as text, one instruction per line, in the style of the kernel's verifier log and of bpftool.
//!
//! Maps are shown by name instead of by number. If the program has type information, each function starts
//! with its name.

mod insn;

use std::fmt;

use crate::insn::{Imm64, Insn, Slot, decode};
use crate::program::Program;

/// Formats a program; returned by [`Program::listing`].
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    program: &'a Program,
}

impl Program {
    /// Returns the program as text with one line per instruction: `slot: (opcode) instruction`.
    #[must_use]
    pub fn listing(&self) -> Listing<'_> {
        Listing { program: self }
    }
}

/// One instruction.
struct Line<'a>(Listing<'a>, usize);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match decode(&self.0.program.slots, self.1) {
            Ok(insn) => self.0.insn(f, self.1, insn),
            Err(error) => write!(f, "?? {:?}", error.kind),
        }
    }
}

impl Listing<'_> {
    /// Returns the text of the instruction at `slot`.
    #[must_use]
    pub fn line(&self, slot: usize) -> String {
        Line(*self, slot).to_string()
    }

    /// The lines of the listing. A name in a line may contain any characters, newlines too.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let (listing, slots) = (*self, &self.program.slots);
        let mut at = 0;
        let instructions = std::iter::from_fn(move || {
            let Slot { opcode, .. } = slots.get(at)?;
            let (slot, name) = (at, listing.function_at(at).map(|name| format!("{name}:")));
            at += decode(slots, at).map_or(1, |insn| insn.slots());
            let line = format!("{slot:4}: ({opcode:02x}) {}", listing.line(slot));
            Some(name.into_iter().chain([line]))
        });
        instructions.flatten()
    }

    fn function_at(&self, slot: usize) -> Option<String> {
        let btf = self.program.btf.as_ref()?;
        let info = btf.func_info.iter().find(|info| info.slot as usize == slot)?;
        btf.name_of(info.type_id)
    }

    fn map_name(&self, map: u32) -> String {
        match self.program.maps.get(map as usize) {
            Some(def) => format!("map[{}]", def.name),
            None => format!("map[{map}?]"),
        }
    }

    fn insn(&self, f: &mut fmt::Formatter<'_>, at: usize, insn: Insn) -> fmt::Result {
        match insn {
            Insn::LoadImm64 { dst, imm: Imm64::Map(map) } => write!(f, "{dst} = {}", self.map_name(map)),
            Insn::LoadImm64 { dst, imm: Imm64::MapValue { map, off } } => {
                write!(f, "{dst} = {}[0]+{off}", self.map_name(map))
            }
            Insn::CallLocal { off } => {
                write!(f, "{insn}")?;
                let target = usize::try_from(at as i64 + 1 + i64::from(off)).ok();
                match target.and_then(|target| self.function_at(target)) {
                    Some(name) => write!(f, "#{name}"),
                    None => Ok(()),
                }
            }
            insn => write!(f, "{insn}"),
        }
    }
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests;
