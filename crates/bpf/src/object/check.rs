//! Checks of an object file before `aya-obj` reads it, which panics on many that no compiler writes: indices
//! outside of tables, instructions cut in half, sizes that exceed the memory. Nothing here panics, and
//! no allocation has a size that the file alone names.

use object::elf::{
    self, FileHeader64, Rel64, Rela64, SHF_EXECINSTR, STT_FUNC, STT_GNU_IFUNC, STT_SECTION, SectionHeader64,
    Sym64,
};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym, SymbolTable};
use object::{Endianness, SectionIndex, SymbolIndex};

use super::adapt;
use super::types::Types;
use crate::insn::Slot;

/// Largest object file, and largest section of zeros, in bytes. Programs have at most some 100,000
/// instructions.
pub const FILE_MAX: u64 = 16 << 20;
/// Most functions of all programs. The linker calls itself for each function that a function calls; threads
/// of applications have small stacks. The kernel permits 256 in one program.
const FUNCTIONS_MAX: usize = 256;
/// Each program gets the maps and the functions that it needs; all of that together has at most this many
/// bytes.
const COPIES_MAX: u64 = 256 << 20;
/// Most references from code to maps and functions.
const RELOCATIONS_MAX: usize = 1 << 16;
/// The instruction that loads 64 bits, in two slots; a call.
const LOAD_IMM64: u8 = 0x18;
const CALL: u8 = 0x85;
/// Why a section, a symbol or a relocation cannot be read.
const DAMAGED: &str = "its tables are damaged";

type Header = FileHeader64<Endianness>;

/// Returns what is wrong with an object file.
pub(super) fn check(file: &[u8], kernel: Option<&[u8]>) -> Result<(), String> {
    let wrong = |error: object::read::Error| error.to_string();
    let header = Header::parse(file).map_err(wrong)?;
    let endian = header.endian().map_err(wrong)?;
    let machine = header.e_machine(endian);
    if machine != elf::EM_BPF {
        return Err(format!("it is not for BPF but for machine {machine}"));
    }
    if file.len() as u64 > FILE_MAX {
        return Err(format!("it is longer than {FILE_MAX} bytes"));
    }
    if endian != Endianness::Little || cfg!(target_endian = "big") {
        return Err("it is not for a little-endian machine".to_owned());
    }
    let sections = header.sections(endian, file).map_err(wrong)?;
    let symbols = sections.symbols(endian, file, elf::SHT_SYMTAB).map_err(wrong)?;
    let code = Code::collect(file, endian, &sections, &symbols)?;
    code.check_references(&symbols)?;
    let section = |name: &[u8]| {
        let named = sections.section_by_name(endian, name);
        named.and_then(|(_, section)| section.data(endian, file).ok())
    };
    let Some(blob) = section(b".BTF") else { return Ok(()) };
    let types = Types::parse(blob).ok_or("its type information is malformed")?;
    let Some(ext) = section(b".BTF.ext") else { return Ok(()) };
    let kernel = match kernel.filter(|_| adapt::adapts(ext)) {
        Some(blob) => Some(Types::parse(blob).ok_or("the kernel's type information is malformed")?),
        None => None,
    };
    Ok(adapt::check(ext, &types, &code, kernel.as_ref())?)
}

/// A function: section, first byte, and the byte behind its last one.
#[derive(Clone, Copy, Debug)]
struct Function {
    section: SectionIndex,
    start: u64,
    end: u64,
}

/// The sections with code.
pub(super) struct Code<'a> {
    file: &'a [u8],
    endian: Endianness,
    sections: &'a SectionTable<'a, Header>,
    functions: Vec<Function>,
}

impl<'a> Code<'a> {
    /// Finds the functions; checks the sizes of sections and symbols.
    fn collect(
        file: &'a [u8],
        endian: Endianness,
        sections: &'a SectionTable<'a, Header>,
        symbols: &SymbolTable<'_, Header>,
    ) -> Result<Self, &'static str> {
        let mut this = Self { file, endian, sections, functions: Vec::new() };
        let mut zeros = 0u64;
        for section in sections.iter() {
            let name = sections.section_name(endian, section).map_err(|_| DAMAGED)?;
            let bytes = section.data(endian, file).map_err(|_| DAMAGED)?;
            if is_memory(name) || this.is_code(section) {
                zeros = zeros.saturating_add(section.sh_size(endian));
                if section.sh_addr(endian) != 0 {
                    return Err("a section has an address");
                }
                if this.is_code(section) && bytes.chunks_exact(Slot::LEN).any(calls_too_far) {
                    return Err("a call leaves its section");
                }
            }
        }
        let (mut programs, mut instructions) = (0u64, 0u64);
        for (index, symbol) in symbols.enumerate() {
            let Some((number, section)) = this.section_of(symbols, symbol, index)? else { continue };
            let (start, len) = (symbol.st_value(endian), symbol.st_size(endian));
            let name = sections.section_name(endian, section).map_err(|_| DAMAGED)?;
            let is_function = is_function(symbol) && this.is_code(section);
            let bytes = section.data(endian, file).map_err(|_| DAMAGED)?.len() as u64;
            let fits = start.checked_add(len).is_some_and(|end| end <= bytes);
            if (is_function || name.starts_with(b"maps")) && !fits {
                return Err("a symbol is outside of its section");
            }
            if is_function {
                let slot = Slot::LEN as u64;
                if !start.is_multiple_of(slot) || !len.is_multiple_of(slot) {
                    return Err("a function begins or ends within an instruction");
                }
                programs += u64::from(!name.starts_with(b".text"));
                instructions += len;
                this.functions.push(Function { section: number, start, end: start + len });
            }
        }
        let once = zeros.saturating_add(file.len() as u64).saturating_add(instructions);
        let copied = once.saturating_mul(programs.max(1));
        if zeros > FILE_MAX || instructions > FILE_MAX || copied > COPIES_MAX {
            return Err("its sections are too large");
        }
        if this.functions.len() > FUNCTIONS_MAX {
            return Err("it has more than 256 functions");
        }
        Ok(this)
    }

    fn is_code(&self, section: &SectionHeader64<Endianness>) -> bool {
        let name = self.sections.section_name(self.endian, section);
        section.sh_flags(self.endian) & u64::from(SHF_EXECINSTR) != 0
            || name.is_ok_and(|name| name.starts_with(b".text"))
    }

    /// Returns the section that defines the symbol.
    fn section_of(
        &self,
        symbols: &SymbolTable<'_, Header>,
        symbol: &Sym64<Endianness>,
        index: SymbolIndex,
    ) -> Result<Option<(SectionIndex, &'a SectionHeader64<Endianness>)>, &'static str> {
        let number = symbols.symbol_section(self.endian, symbol, index).map_err(|_| DAMAGED)?;
        let Some(number) = number else { return Ok(None) };
        Ok(Some((number, self.sections.section(number).map_err(|_| DAMAGED)?)))
    }

    /// Checks the references from code to maps and functions.
    fn check_references(&self, symbols: &SymbolTable<'_, Header>) -> Result<(), &'static str> {
        let (endian, mut count) = (self.endian, 0);
        for section in self.sections.iter() {
            let target = SectionIndex(section.sh_info(endian) as usize);
            let rel = section.rel(endian, self.file).map_err(|_| DAMAGED)?;
            let rela = section.rela(endian, self.file).map_err(|_| DAMAGED)?;
            if rel.is_none() && rela.is_none() {
                continue;
            }
            let Ok(into) = self.sections.section(target) else { continue };
            if !self.is_code(into) {
                continue;
            }
            let rel = rel.into_iter().flat_map(|(list, _)| list).map(|rel: &Rel64<Endianness>| {
                (rel.r_offset.get(endian), rel.r_type(endian), rel.r_sym(endian))
            });
            let rela = rela.into_iter().flat_map(|(list, _)| list).map(|rela: &Rela64<Endianness>| {
                (rela.r_offset.get(endian), rela.r_type(endian, false), rela.r_sym(endian, false))
            });
            for (at, kind, symbol) in rel.chain(rela) {
                count += 1;
                if count > RELOCATIONS_MAX {
                    return Err("it has too many relocations");
                }
                let symbol = SymbolIndex(symbol as usize);
                if !self.is_reference(target, at, kind, symbol, symbols)? {
                    return Err(
                        "a relocation is of a kind that is not supported, or outside of its function",
                    );
                }
            }
        }
        Ok(())
    }

    fn is_reference(
        &self,
        section: SectionIndex,
        at: u64,
        kind: u32,
        index: SymbolIndex,
        symbols: &SymbolTable<'_, Header>,
    ) -> Result<bool, &'static str> {
        let symbol = symbols.symbol(index).map_err(|_| DAMAGED)?;
        let defined = self.section_of(symbols, symbol, index)?;
        let is_in_code = defined.is_some_and(|(_, section)| self.is_code(section));
        let is_function = is_function(symbol);
        // A function without a section has no code; code is named by function or section.
        let is_named = is_function || symbol.st_type() == STT_SECTION;
        if (is_function && defined.is_none()) || (is_in_code && !is_named) {
            return Ok(false);
        }
        let Some(slot) = self.slot(section, at) else { return Ok(false) };
        let (opcode, imm) = (slot[0], immediate(&slot));
        let is_whole = match (kind, opcode) {
            (elf::R_BPF_64_64, LOAD_IMM64) => {
                let address = i32::try_from(symbol.st_value(self.endian)).ok();
                let sum = address.and_then(|address| imm.checked_add(address));
                sum.is_some() && (imm >= 0 || !is_in_code) && self.is_inside(section, at, 2)
            }
            // The address of a function relative to its section begins one slot before it.
            (elf::R_BPF_64_32, CALL) => defined.is_none() || (is_in_code && (imm >= -1 || is_function)),
            _ => false,
        };
        Ok(is_whole)
    }

    /// Whether every function with the first slot has all of the slots.
    fn is_inside(&self, section: SectionIndex, at: u64, slots: u64) -> bool {
        let around = |f: &&Function| f.section == section && f.start <= at && at < f.end;
        self.functions.iter().filter(around).all(|f| at + slots * Slot::LEN as u64 <= f.end)
    }

    /// Returns the bytes of the instruction slot at an offset.
    fn slot(&self, section: SectionIndex, at: u64) -> Option<[u8; Slot::LEN]> {
        let section = self.sections.section(section).ok()?;
        let at = usize::try_from(at).ok().filter(|at| at.is_multiple_of(Slot::LEN))?;
        section.data(self.endian, self.file).ok()?.get(at..)?.first_chunk().copied()
    }

    /// Returns the opcode of the instruction at an offset of the named section.
    pub(super) fn opcode(&self, section: &[u8], at: u64) -> Option<u8> {
        let (number, _) = self.sections.section_by_name(self.endian, section)?;
        self.slot(number, at).map(|slot| slot[0])
    }
}

/// The last four bytes of an instruction slot.
fn immediate(slot: &[u8]) -> i32 {
    slot.last_chunk().map_or(0, |bytes| i32::from_le_bytes(*bytes))
}

/// A call relative to the next instruction with a target that is no 32-bit number.
fn calls_too_far(slot: &[u8]) -> bool {
    slot.first() == Some(&CALL) && immediate(slot) == i32::MAX
}

fn is_function(symbol: &Sym64<Endianness>) -> bool {
    [STT_FUNC, STT_GNU_IFUNC].contains(&symbol.st_type())
}

/// Whether the section becomes a map with this content.
fn is_memory(name: &[u8]) -> bool {
    [&b".bss"[..], b".data", b".rodata"].iter().any(|prefix| name.starts_with(prefix))
}
