//! Links one program: its function, the functions that it calls (static ones, those of `.text`, callbacks),
//! and their references to maps, data and the kernel. Nothing else of the file is looked at, so a program
//! that cannot be linked does not affect the others.

use std::collections::HashMap;

use object::elf::{R_BPF_64_32, R_BPF_64_64};

use super::adapt::adapt;
use super::elf::{File, Relocation, Symbol};
use super::ext::{Ext, within};
use super::externs::Configuration;
use super::maps::Found;
use super::{Kernel, ObjectError};
use crate::btf::reader::{Types, kind};
use crate::btf::{Btf, FuncInfo};
use crate::insn::slot::{CALL_KFUNC, CALL_LOCAL, IMM64_FUNC, JMP, OP_CALL, OP_LOAD_IMM64};
use crate::insn::{Imm64, Insn, Reg, Slot, encode};
use crate::program::{Kfunc, NO_KFUNC};

/// Most functions and slots of one program. The kernel permits 256 functions and a million instructions.
const FUNCTIONS_MAX: usize = 256;
const SLOTS_MAX: usize = 1 << 20;

const CALL: u8 = OP_CALL | JMP;
/// A function of the file: its section, its first byte, and the byte behind its last one.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Function {
    pub(super) section: usize,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// All that linking reads.
pub(super) struct Linker<'t, 'a> {
    pub(super) file: &'t File<'a>,
    pub(super) types: Option<&'t Types<'a>>,
    pub(super) ext: &'t Ext<'a>,
    pub(super) maps: &'t [Found],
    pub(super) config: &'t Configuration,
    pub(super) kernel: &'t Kernel<'t>,
    pub(super) kernel_types: Option<&'t Types<'t>>,
}

/// A linked program.
#[derive(Debug, Default)]
pub(super) struct Linked {
    pub(super) slots: Vec<Slot>,
    pub(super) kfuncs: Vec<Kfunc>,
    pub(super) func_info: Vec<FuncInfo>,
    pub(super) line_info: Vec<u8>,
}

/// Functions in their order, with the first slot of each, and calls to functions that are not placed yet.
#[derive(Default)]
struct Layout {
    out: Linked,
    placed: Vec<(Function, usize)>,
    index: HashMap<Function, usize>,
    /// Slot of a call or address, and the function.
    calls: Vec<(usize, Function)>,
}

impl<'a> Linker<'_, 'a> {
    /// Links the program with the main function `main`.
    ///
    /// # Errors
    /// [`ObjectError::Link`] with section, offset and symbol; [`ObjectError::NeedsKernelTypes`].
    pub(super) fn link(&self, name: &str, main: Function) -> Result<Linked, ObjectError> {
        let mut layout = Layout::default();
        let mut todo = vec![main];
        layout.index.insert(main, 0);
        while let Some(function) = todo.pop() {
            if layout.placed.len() >= FUNCTIONS_MAX {
                return Err(ObjectError::Link(format!("{name}: it has more than {FUNCTIONS_MAX} functions")));
            }
            let base = layout.out.slots.len();
            let called = layout.calls.len();
            self.place(name, function, &mut layout)?;
            layout.placed.push((function, base));
            for at in (called..layout.calls.len()).rev() {
                let callee = layout.calls[at].1;
                if layout.index.insert(callee, 0).is_none() {
                    todo.push(callee);
                }
            }
        }
        let starts: HashMap<Function, usize> = layout.placed.iter().copied().collect();
        for &(at, callee) in &layout.calls {
            let start = starts.get(&callee).copied().unwrap_or(0);
            layout.out.slots[at].imm = (start as i64 - at as i64 - 1) as i32;
        }
        self.records(&mut layout);
        Ok(layout.out)
    }

    /// Appends a function with its references resolved.
    fn place(&self, program: &str, function: Function, layout: &mut Layout) -> Result<(), ObjectError> {
        let section = &self.file.sections[function.section];
        let fault = |at: u64, symbol: &str, why: &str| {
            let symbol = if symbol.is_empty() { String::new() } else { format!(", symbol {symbol}") };
            ObjectError::Link(format!("{program}: section {}+{at:#x}{symbol}: {why}", section.name))
        };
        let slots = self.file.slots(function.section, function.start, function.end);
        let mut slots = slots.ok_or_else(|| {
            fault(function.start, "", "the function is outside of its section, or cut within an instruction")
        })?;
        let base = layout.out.slots.len();
        if base + slots.len() > SLOTS_MAX {
            return Err(ObjectError::Link(format!("{program}: it has more than {SLOTS_MAX} instructions")));
        }
        self.adapt_all(function, &mut slots, &fault)?;
        let relocations = self.file.relocations(function.section, function.start, function.end);
        let mut relocated = vec![false; slots.len()];
        for relocation in relocations {
            let symbol = self.file.symbols.get(relocation.symbol);
            let symbol = symbol.ok_or_else(|| fault(relocation.at, "", "the relocation has no symbol"))?;
            let at = relocation.at - function.start;
            let at = (at / Slot::LEN as u64) as usize;
            let name = self.shown(symbol);
            let done = self.resolve(relocation, symbol, at, base, &mut slots, layout);
            done.map_err(|why| fault(relocation.at, &name, &why))?;
            relocated[at] = true;
        }
        for (at, slot) in slots.iter().enumerate() {
            let is_call = slot.opcode == CALL && slot.src == CALL_LOCAL;
            let is_address = slot.opcode == OP_LOAD_IMM64 && slot.src == IMM64_FUNC;
            if (is_call || is_address) && !relocated[at] {
                // A call within the section needs no relocation.
                let target = function.start as i64 + (at as i64 + 1 + i64::from(slot.imm)) * Slot::LEN as i64;
                let callee =
                    u64::try_from(target).ok().and_then(|start| self.function(function.section, start));
                let byte = function.start + (at * Slot::LEN) as u64;
                let callee = callee.ok_or_else(|| fault(byte, "", "it calls what is no function"))?;
                layout.calls.push((base + at, callee));
            }
        }
        layout.out.slots.extend(slots);
        Ok(())
    }

    /// The name of a symbol for messages.
    fn shown(&self, symbol: &Symbol<'_>) -> String {
        match symbol.section.and_then(|number| self.file.sections.get(number)) {
            Some(section) if symbol.name.is_empty() => section.name.to_owned(),
            _ => symbol.name.to_owned(),
        }
    }

    fn adapt_all(
        &self,
        function: Function,
        slots: &mut [Slot],
        fault: &dyn Fn(u64, &str, &str) -> ObjectError,
    ) -> Result<(), ObjectError> {
        let section = self.file.sections[function.section].name;
        let Some(types) = self.types else { return Ok(()) };
        for record in within(&self.ext.adaptations, section, function.start, function.end) {
            let byte = u64::from(record.at) - function.start;
            if !byte.is_multiple_of(Slot::LEN as u64) {
                return Err(fault(record.at.into(), "", "it adapts a part of an instruction"));
            }
            let at = (byte / Slot::LEN as u64) as usize;
            match adapt(slots, at, record, types, self.kernel_types) {
                Ok(true) => {}
                Ok(false) => return Err(ObjectError::NeedsKernelTypes),
                Err(why) => return Err(fault(record.at.into(), "", &why)),
            }
        }
        Ok(())
    }

    /// Resolves one reference at slot `at` of a function.
    fn resolve(
        &self,
        relocation: &Relocation,
        symbol: &Symbol<'_>,
        at: usize,
        base: usize,
        slots: &mut [Slot],
        layout: &mut Layout,
    ) -> Result<(), String> {
        if !relocation.at.is_multiple_of(Slot::LEN as u64) {
            return Err("the relocation is within an instruction".to_owned());
        }
        let slot = *slots.get(at).ok_or("the relocation is outside of its function")?;
        match (relocation.kind, slot.opcode) {
            (R_BPF_64_64, OP_LOAD_IMM64) if at + 1 < slots.len() => {}
            (R_BPF_64_32, CALL) => {}
            (kind, _) => {
                return Err(format!("relocation type {} is not supported at this instruction", kind.0));
            }
        }
        if slot.opcode == CALL {
            let Some(section) = symbol.section else { return self.kfunc(symbol, &mut slots[at], layout) };
            let offset = (i64::from(slot.imm) + 1) * Slot::LEN as i64;
            let start = symbol.value.checked_add_signed(offset);
            let callee = start.and_then(|start| self.function(section, start));
            layout.calls.push((base + at, callee.ok_or("it calls what is no function")?));
            (slots[at].src, slots[at].imm) = (CALL_LOCAL, 0);
            return Ok(());
        }
        let Some(section) = symbol.section else { return self.address(symbol, &mut slots[at..at + 2]) };
        if self.file.sections[section].is_code {
            let start = u64::try_from(i64::from(slot.imm)).ok().and_then(|imm| symbol.value.checked_add(imm));
            let callee = start.and_then(|start| self.function(section, start));
            layout.calls.push((base + at, callee.ok_or("it takes the address of what is no function")?));
            (slots[at].src, slots[at].imm, slots[at + 1].imm) = (IMM64_FUNC, 0, 0);
            return Ok(());
        }
        let offset = symbol.value.checked_add_signed(i64::from(slot.imm));
        let offset = offset.ok_or("the reference is outside of its section")?;
        let found = self.maps.iter().position(|map| {
            map.section == section && (map.is_data || (map.start..map.end).contains(&offset))
        });
        let map = found.ok_or("the reference is to no map and no data")?;
        if let Some(why) = &self.maps[map].broken {
            return Err(why.clone());
        }
        if self.maps[map].is_data {
            let off = u32::try_from(offset).map_err(|_| "the reference is outside of its section")?;
            load(&mut slots[at..at + 2], Imm64::MapValue { map: map as u32, off });
        } else if self.maps[map].start == offset {
            load(&mut slots[at..at + 2], Imm64::Map(map as u32));
        } else {
            return Err("the reference is to the middle of a map".to_owned());
        }
        Ok(())
    }

    /// Makes the call one of a kernel function.
    fn kfunc(&self, symbol: &Symbol<'_>, slot: &mut Slot, layout: &mut Layout) -> Result<(), String> {
        let id = self.kernel_types.and_then(|types| types.find(kind::FUNC, symbol.name));
        if id.is_none() && self.kernel_types.is_some() {
            if symbol.is_weak {
                *slot = Slot { opcode: CALL, dst: 0, src: 0, off: 0, imm: NO_KFUNC };
                return Ok(());
            }
            return Err("this kernel has no such function (kfunc)".to_owned());
        }
        let kfuncs = &mut layout.out.kfuncs;
        let index = kfuncs.iter().position(|kfunc| kfunc.name == symbol.name).unwrap_or_else(|| {
            kfuncs.push(Kfunc { name: symbol.name.to_owned(), id });
            kfuncs.len() - 1
        });
        *slot = Slot { opcode: CALL, dst: 0, src: CALL_KFUNC, off: 0, imm: index as i32 };
        Ok(())
    }

    /// Loads the address of an extern: a value of the configuration, or a variable or function of the kernel.
    fn address(&self, symbol: &Symbol<'_>, slots: &mut [Slot]) -> Result<(), String> {
        if let Some(&off) = self.config.at.get(symbol.name) {
            let map = self.maps.iter().position(|map| map.section == usize::MAX);
            let map = map.ok_or("the configuration of the kernel is not known")?;
            load(slots, Imm64::MapValue { map: map as u32, off });
            return Ok(());
        }
        let id = self.kernel_types.and_then(|types| {
            types.find(kind::VAR, symbol.name).or_else(|| types.find(kind::FUNC, symbol.name))
        });
        match id {
            Some(id) => load(slots, Imm64::BtfId { id: id as i32, btf_fd: 0 }),
            None if symbol.is_weak => load(slots, Imm64::Value(0)),
            None if self.kernel.types.is_none() => return Err("it needs the kernel's types".to_owned()),
            None => return Err("this kernel has no such variable or function".to_owned()),
        }
        Ok(())
    }

    /// Returns the function that begins at a byte of a section.
    pub(super) fn function(&self, section: usize, start: u64) -> Option<Function> {
        let is_it = |symbol: &&Symbol<'_>| {
            symbol.section == Some(section) && symbol.is_function && symbol.value == start && symbol.size > 0
        };
        self.file.sections.get(section).filter(|section| section.is_code)?;
        let symbol = self.file.symbols.iter().find(is_it)?;
        Some(Function { section, start, end: start.checked_add(symbol.size)? })
    }

    /// Collects the records of all placed functions. If one function lacks them, the kernel takes none.
    fn records(&self, layout: &mut Layout) {
        let (mut functions, mut lines) = (Vec::new(), Vec::new());
        for &(function, base) in &layout.placed {
            let section = self.file.sections[function.section].name;
            let slot_of =
                |at: u32| base as u32 + ((u64::from(at) - function.start) / Slot::LEN as u64) as u32;
            let first = within(&self.ext.functions, section, function.start, function.start + 1);
            let Some(record) = first.first() else { return };
            functions.push(FuncInfo { slot: base as u32, type_id: record.word(1) });
            let own = within(&self.ext.lines, section, function.start, function.end);
            if own.first().is_some_and(|record| u64::from(record.at) == function.start) {
                for record in own {
                    let words = [slot_of(record.at), record.word(1), record.word(2), record.word(3)];
                    lines.push((base, words));
                }
            }
        }
        let has_lines = |&(_, base): &(Function, usize)| lines.iter().any(|(of, _)| *of == base);
        if layout.placed.iter().all(has_lines) {
            layout.out.line_info =
                lines.iter().flat_map(|(_, words)| words.map(u32::to_le_bytes)).flatten().collect();
        }
        layout.out.func_info = functions;
    }
}

/// Replaces the value of a 64-bit load.
fn load(slots: &mut [Slot], imm: Imm64) {
    let Some(dst) = slots.first().and_then(|slot| Reg::from_number(slot.dst)) else { return };
    let mut out = Vec::new();
    encode(&Insn::LoadImm64 { dst, imm }, &mut out);
    slots.copy_from_slice(&out);
}

/// Returns the type information of a linked program: `types` are those for the kernel.
pub(super) fn btf_of(types: Option<&[u8]>, linked: &Linked) -> Option<Btf> {
    let blob = types.filter(|_| !linked.func_info.is_empty())?.to_vec();
    Some(Btf { blob, func_info: linked.func_info.clone(), line_info: linked.line_info.clone() })
}
