//! Encoding of plans: built-in stages by their text, and programs by code, maps, and what the machine needs
//! besides. The types are for readers of the maps.
//!
//! A plan may come from a hostile process. Every count, size and index is checked here, against the limits
//! below and against the plan itself; the machine then checks what the instructions do.

use bpf::insn::decode_all;
use bpf::{Btf, Imm64, Initial, Insn, Kfunc, MapDef, MapKind, Program, ProgramKind, Slot};

use super::{Field, Reader, decoded, encoded, kinds, put_bytes, put_list};
use crate::plan::{HookPlan, PlannedStage};

/// Most stages of a hook. Users write a few by hand.
const STAGES_MAX: u32 = 64;
/// Longest name of a program, map or kernel function, license, or text of a built-in stage, in bytes. The
/// kernel has 15 bytes for a name; functions of C++ have hundreds.
const TEXT_MAX: usize = 4096;
/// Most slots of a program: the instructions that the kernel permits.
const SLOTS_MAX: u32 = 1 << 20;
/// Most kernel functions that a program calls: `MAX_KFUNC_DESCS` of the kernel.
const KFUNCS_MAX: u32 = 256;
/// Most programs in the program arrays of one program: those of an object file.
const TAILS_MAX: u32 = 1024;
/// Most maps of a program: those of an object file.
const MAPS_MAX: u32 = 1000;
/// Most entries with initial values of a map, as in an object file.
const ENTRIES_MAX: u32 = 1 << 12;
/// Most bytes of the maps' definitions in the programs of the program arrays of a plan: each has a copy.
const COPIES_BYTES_MAX: usize = 64 << 20;

impl HookPlan {
    /// Most bytes of a plan. An object file has 16 MiB at most, and a hook a few of them.
    pub const BYTES_MAX: usize = 64 << 20;

    /// The limits of [`from_bytes`](Self::from_bytes), for messages.
    pub const LIMITS: &str = "64 MiB and 64 stages; for each program 2^20 instructions, 256 kernel \
        functions, 1000 maps, 1024 tail calls and names of 4096 bytes";

    /// Returns the plan in the form that [`from_bytes`](Self::from_bytes) takes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        encoded(self)
    }

    /// Returns the plan; `None` if the bytes are none of this version, or exceed a limit.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<HookPlan> {
        if bytes.len() <= Self::BYTES_MAX { decoded(bytes) } else { None }
    }
}

impl Field for HookPlan {
    fn put(&self, out: &mut Vec<u8>) {
        self.stages.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let mut stages = from.list(STAGES_MAX, PlannedStage::get)?;
        let mut copies_bytes = 0_usize;
        let is_valid = |stage: &mut PlannedStage| match stage {
            PlannedStage::Native(text) => text.len() <= TEXT_MAX,
            PlannedStage::Program(program) => {
                let bytes: usize = program.maps.iter().map(memory_bytes).sum();
                copies_bytes = copies_bytes.saturating_add(bytes.saturating_mul(program.tails.len()));
                copies_bytes <= COPIES_BYTES_MAX && {
                    program.tails.iter_mut().for_each(|tail| tail.maps.clone_from(&program.maps));
                    refers_to_its_own(program) && program.tails.iter().all(refers_to_its_own)
                }
            }
        };
        stages.iter_mut().all(is_valid).then_some(HookPlan { stages })
    }
}

kinds! {
    PlannedStage {
        0 => Native(text),
        1 => Program(program),
    }
    Initial {
        0 => Program(name),
        1 => Map(index),
    }
}

/// A program and the programs in its program arrays, which have the same maps.
impl Field for Program {
    fn put(&self, out: &mut Vec<u8>) {
        put_code(self, out);
        self.maps.put(out);
        put_list(&self.tails, out, put_code);
        put_bytes(self.btf.as_ref().map_or(&[], |btf| &btf.blob), out);
    }

    /// The programs of the program arrays do not have their maps yet.
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let program = code(from)?;
        let maps = from.list(MAPS_MAX, MapDef::get)?;
        let tails = from.list(TAILS_MAX, code)?;
        let blob = Some(from.bytes()?).filter(|blob| !blob.is_empty());
        let btf = blob.map(|blob| Btf { blob: blob.to_vec(), ..Btf::default() });
        Some(Program { maps, tails, btf, ..program })
    }
}

fn put_code(program: &Program, out: &mut Vec<u8>) {
    program.name.put(out);
    program.license.put(out);
    program.frags.put(out);
    put_list(&program.slots, out, |slot, out| out.extend(slot.to_bytes()));
    put_list(&program.kfuncs, out, |kfunc, out| kfunc.name.put(out));
}

fn code(from: &mut Reader<'_>) -> Option<Program> {
    Some(Program {
        name: name(from)?,
        license: name(from)?,
        frags: bool::get(from)?,
        slots: from.list(SLOTS_MAX, |from| from.array().map(Slot::parse))?,
        kfuncs: from.list(KFUNCS_MAX, |from| Some(Kfunc { name: name(from)?, id: None }))?,
        kind: ProgramKind::Xdp,
        ..Program::default()
    })
}

impl Field for MapDef {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        for field in [self.kind.number(), self.key_size, self.value_size, self.max_entries, self.flags] {
            field.put(out);
        }
        self.extra.put(out);
        put_bytes(&self.initial, out);
        self.frozen.put(out);
        self.entries.put(out);
    }

    /// `None` if the initial contents do not fit into the map. Its sizes are checked before it is created.
    fn get(from: &mut Reader<'_>) -> Option<Self> {
        let (name, kind) = (name(from)?, MapKind::from_number(u32::get(from)?)?);
        let (key_size, value_size) = (u32::get(from)?, u32::get(from)?);
        let (max_entries, flags, extra) = (u32::get(from)?, u32::get(from)?, u64::get(from)?);
        let entry = |from: &mut Reader<'_>| {
            let (key, initial) = <(u32, Initial)>::get(from)?;
            let is_short = !matches!(&initial, Initial::Program(name) if name.len() > TEXT_MAX);
            (key < max_entries && is_short).then_some((key, initial))
        };
        Some(MapDef {
            flags,
            extra,
            initial: from.bytes().filter(|initial| initial.len() <= value_size as usize)?.to_vec(),
            frozen: bool::get(from)?,
            entries: from.list(ENTRIES_MAX, entry)?,
            ..MapDef::new(&name, kind, key_size, value_size, max_entries)
        })
    }
}

fn name(from: &mut Reader<'_>) -> Option<String> {
    String::get(from).filter(|text| text.len() <= TEXT_MAX)
}

/// Returns about how many bytes a copy of the definition takes.
fn memory_bytes(map: &MapDef) -> usize {
    let names = map.entries.iter().map(|(_, initial)| match initial {
        Initial::Program(name) => name.len(),
        Initial::Map(_) => 0,
    });
    let entries = size_of_val(&map.entries[..]) + names.sum::<usize>();
    size_of::<MapDef>() + map.name.len() + map.initial.len() + entries
}

/// Whether the code decodes, and its references and those of the maps are to maps and kernel functions of
/// the program.
fn refers_to_its_own(program: &Program) -> bool {
    let Ok(insns) = decode_all(&program.slots) else { return false };
    let map = |index: u32| program.maps.get(index as usize);
    let is_own = |insn: &Insn| match *insn {
        Insn::LoadImm64 { imm: Imm64::Map(index), .. } => map(index).is_some(),
        Insn::LoadImm64 { imm: Imm64::MapValue { map: index, off }, .. } => {
            map(index).is_some_and(|def| off < def.value_size)
        }
        Insn::CallKfunc { id, .. } => usize::try_from(id).is_ok_and(|id| id < program.kfuncs.len()),
        _ => true,
    };
    let mut initials = program.maps.iter().flat_map(|def| &def.entries).map(|(_, initial)| initial);
    insns.iter().all(|(_, insn)| is_own(insn))
        && initials.all(|initial| !matches!(initial, Initial::Map(index) if map(*index).is_none()))
}
