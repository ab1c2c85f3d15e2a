//! Sections, symbols and relocations of an object file (ELF, `EM_BPF`), read without a panic. No allocation
//! has a size that the file alone names.

use object::elf::{self, FileHeader64, RelocationType, SHF_EXECINSTR, STT_FUNC, STT_SECTION};
use object::elf::{SymbolBind, SymbolType};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};
use object::{Endianness, SectionIndex, SymbolIndex};

use crate::insn::Slot;

/// Largest object file, and largest sum of sections of zeros, in bytes. Programs have at most some 100,000
/// instructions.
pub const FILE_MAX: u64 = 16 << 20;
/// Most sections, symbols and relocations. Files of compilers have some hundreds.
const SECTIONS_MAX: usize = 1 << 12;
const SYMBOLS_MAX: usize = 1 << 16;
const RELOCATIONS_MAX: usize = 1 << 16;
/// Longest name of a section with a program, in bytes.
const NAME_MAX: usize = 255;
/// Why a section, a symbol or a relocation cannot be read.
const DAMAGED: &str = "its tables are damaged";

/// A relocation (`Elf64_Rel`): the 64-bit load or the call at byte `at` refers to a symbol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relocation {
    pub(super) at: u64,
    pub(super) symbol: usize,
    pub(super) kind: RelocationType,
}

/// A section with its contents, which are empty for sections of zeros.
#[derive(Debug)]
pub(super) struct Section<'a> {
    pub(super) name: &'a str,
    pub(super) data: &'a [u8],
    /// Length in bytes, also of sections of zeros.
    pub(super) size: u64,
    pub(super) is_code: bool,
    /// Sorted by `at`.
    pub(super) relocations: Vec<Relocation>,
}

/// A symbol of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol<'a> {
    pub(super) name: &'a str,
    /// The section that defines it; `None` for externs.
    pub(super) section: Option<usize>,
    pub(super) value: u64,
    pub(super) size: u64,
    pub(super) is_function: bool,
    /// Whether it stands for its section.
    pub(super) is_section: bool,
    pub(super) is_local: bool,
    pub(super) is_weak: bool,
    pub(super) is_hidden: bool,
}

/// The file in parts.
#[derive(Debug)]
pub(super) struct File<'a> {
    pub(super) sections: Vec<Section<'a>>,
    pub(super) symbols: Vec<Symbol<'a>>,
}

impl<'a> File<'a> {
    /// Returns the parts of a file, or what is wrong with it.
    pub(super) fn parse(file: &'a [u8]) -> Result<Self, String> {
        let wrong = |error: object::read::Error| error.to_string();
        let header = FileHeader64::<Endianness>::parse(file).map_err(wrong)?;
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
        let table = header.sections(endian, file).map_err(wrong)?;
        if table.len() > SECTIONS_MAX {
            return Err(format!("it has more than {SECTIONS_MAX} sections"));
        }
        let sections = sections(&table, endian, file)?;
        let symbols = table.symbols(endian, file, elf::SHT_SYMTAB).map_err(wrong)?;
        if symbols.len() > SYMBOLS_MAX {
            return Err(format!("it has more than {SYMBOLS_MAX} symbols"));
        }
        let mut this = Self { sections, symbols: Vec::new() };
        for (index, symbol) in symbols.enumerate() {
            let section =
                symbols.symbol_section(endian, symbol, SymbolIndex(index.0)).map_err(|_| DAMAGED)?;
            let section = section.map(|SectionIndex(number)| number);
            if section.is_some_and(|number| number >= this.sections.len()) {
                return Err(DAMAGED.to_owned());
            }
            let name = symbols.symbol_name(endian, symbol).map_err(|_| DAMAGED)?;
            this.symbols.push(Symbol {
                name: std::str::from_utf8(name).map_err(|_| DAMAGED)?,
                section,
                value: symbol.st_value(endian),
                size: symbol.st_size(endian),
                is_function: symbol.st_type() == STT_FUNC
                    || is_old_function(&this, section, symbol.st_type(), symbol.st_bind()),
                is_section: symbol.st_type() == STT_SECTION,
                is_local: symbol.st_bind() == elf::STB_LOCAL,
                is_weak: symbol.st_bind() == elf::STB_WEAK,
                is_hidden: matches!(symbol.st_visibility(), elf::STV_HIDDEN | elf::STV_INTERNAL),
            });
        }
        this.measure_functions();
        let mut count = 0;
        for section in table.iter() {
            let Some((list, _)) = section.rel(endian, file).map_err(|_| DAMAGED)? else { continue };
            count += list.len();
            if count > RELOCATIONS_MAX {
                return Err("it has too many relocations".to_owned());
            }
            let into = this.sections.get_mut(section.sh_info(endian) as usize).ok_or(DAMAGED)?;
            into.relocations.extend(list.iter().map(|rel| Relocation {
                at: rel.r_offset.get(endian),
                symbol: rel.r_sym(endian) as usize,
                kind: rel.r_type(endian),
            }));
        }
        for section in &mut this.sections {
            section.relocations.sort_by_key(|relocation| relocation.at);
        }
        Ok(this)
    }

    /// A function without a length ends where the next one begins, or its section ends.
    fn measure_functions(&mut self) {
        let mut starts: Vec<(usize, u64)> = Vec::new();
        for symbol in self.symbols.iter().filter(|symbol| symbol.is_function) {
            starts.extend(symbol.section.map(|section| (section, symbol.value)));
        }
        starts.sort_unstable();
        for symbol in self.symbols.iter_mut().filter(|symbol| symbol.is_function && symbol.size == 0) {
            let Some(section) = symbol.section else { continue };
            let next = starts.partition_point(|start| *start <= (section, symbol.value));
            let end = match starts.get(next) {
                Some((other, start)) if *other == section => *start,
                _ => self.sections[section].size,
            };
            symbol.size = end.saturating_sub(symbol.value);
        }
    }

    /// Returns the section of that name and its number.
    pub(super) fn section(&self, name: &str) -> Option<(usize, &Section<'a>)> {
        self.sections.iter().enumerate().find(|(_, section)| section.name == name)
    }

    /// Returns the instruction slots at bytes `start..end` of a section; `None` if they are outside of it or
    /// cut in half.
    pub(super) fn slots(&self, section: usize, start: u64, end: u64) -> Option<Vec<Slot>> {
        let bytes = self.sections.get(section)?.data;
        let bytes = bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?;
        let (slots, rest) = bytes.as_chunks::<{ Slot::LEN }>();
        (rest.is_empty() && start.is_multiple_of(Slot::LEN as u64))
            .then(|| slots.iter().map(Slot::parse).collect())
    }

    /// Returns the relocations of bytes `start..end` of a section.
    pub(super) fn relocations(&self, section: usize, start: u64, end: u64) -> &[Relocation] {
        let Some(section) = self.sections.get(section) else { return &[] };
        let list = &section.relocations;
        let first = list.partition_point(|relocation| relocation.at < start);
        let last = list.partition_point(|relocation| relocation.at < end);
        list.get(first..last).unwrap_or_default()
    }
}

/// Clang before version 8 gives functions neither a type nor a length.
fn is_old_function(file: &File<'_>, section: Option<usize>, kind: SymbolType, bind: SymbolBind) -> bool {
    kind == elf::STT_NOTYPE
        && bind != elf::STB_LOCAL
        && section.and_then(|section| file.sections.get(section)).is_some_and(|section| section.is_code)
}

type Table<'a> = SectionTable<'a, FileHeader64<Endianness>>;

fn sections<'a>(table: &Table<'a>, endian: Endianness, file: &'a [u8]) -> Result<Vec<Section<'a>>, String> {
    let (mut sections, mut zeros) = (Vec::new(), 0_u64);
    for section in table.iter() {
        let name = table.section_name(endian, section).map_err(|_| DAMAGED)?;
        let name = std::str::from_utf8(name).map_err(|_| DAMAGED)?;
        let data = section.data(endian, file).map_err(|_| DAMAGED)?;
        let is_code = section.sh_flags(endian).contains(SHF_EXECINSTR);
        if section.sh_type(endian) == elf::SHT_NOBITS {
            zeros = zeros.saturating_add(section.sh_size(endian));
        }
        if zeros > FILE_MAX {
            return Err("its sections are too large".to_owned());
        }
        if is_code && name.len() > NAME_MAX {
            return Err(format!("the name of section {} is longer than {NAME_MAX} bytes", sections.len()));
        }
        let size = if data.is_empty() { section.sh_size(endian) } else { data.len() as u64 };
        sections.push(Section { name, data, size, is_code, relocations: Vec::new() });
    }
    Ok(sections)
}
