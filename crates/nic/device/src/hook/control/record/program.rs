//! Encoding of plans: built-in stages by their text, and programs by code, maps, and what the machine needs
//! besides. The types are for readers of the maps.
//!
//! A plan may come from a hostile process. Every count, size and index is checked here, against the limits
//! below and against the plan itself; the machine then checks what the instructions do.

use bpf::insn::decode_all;
use bpf::{Btf, Imm64, Initial, Insn, Kfunc, MapDef, MapKind, Program, ProgramKind, Slot};

use super::{Reader, Writer};
use crate::hook::plan::{HookPlan, PlannedStage};

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
        let mut out = Writer::new();
        out.plan(self);
        out.0
    }

    /// Returns the plan; `None` if the bytes are none of this version, or exceed a limit.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<HookPlan> {
        let mut fields = Reader::new(bytes).filter(|_| bytes.len() <= Self::BYTES_MAX)?;
        let plan = fields.plan()?;
        fields.0.is_empty().then_some(plan)
    }
}

impl Writer {
    pub(super) fn plan(&mut self, plan: &HookPlan) {
        self.list(&plan.stages, |out, stage| match stage {
            PlannedStage::Native(text) => {
                out.u8(0);
                out.text(text);
            }
            PlannedStage::Program(program) => {
                out.u8(1);
                out.program(program);
            }
        });
    }

    /// Writes a program and the programs in its program arrays, which have the same maps.
    fn program(&mut self, program: &Program) {
        self.code(program);
        self.list(&program.maps, Writer::map);
        self.list(&program.tails, Writer::code);
        self.bytes(program.btf.as_ref().map_or(&[], |btf| &btf.blob));
    }

    fn code(&mut self, program: &Program) {
        self.text(&program.name);
        self.text(&program.license);
        self.u8(u8::from(program.frags));
        self.list(&program.slots, |out, slot| out.0.extend(slot.to_bytes()));
        self.list(&program.kfuncs, |out, kfunc| out.text(&kfunc.name));
    }

    pub(super) fn map(&mut self, map: &MapDef) {
        self.text(&map.name);
        for field in [map.kind.number(), map.key_size, map.value_size, map.max_entries, map.flags] {
            self.u32(field);
        }
        self.u64(map.extra);
        self.bytes(&map.initial);
        self.u8(u8::from(map.frozen));
        self.list(&map.entries, |out, (key, initial)| {
            out.u32(*key);
            match initial {
                Initial::Program(name) => {
                    out.u8(0);
                    out.text(name);
                }
                Initial::Map(index) => {
                    out.u8(1);
                    out.u32(*index);
                }
            }
        });
    }
}

impl Reader<'_> {
    pub(super) fn plan(&mut self) -> Option<HookPlan> {
        let mut copies_bytes = 0;
        let stages = self.list_of(STAGES_MAX, |fields| match fields.u8()? {
            0 => Some(PlannedStage::Native(fields.name()?)),
            1 => Some(PlannedStage::Program(fields.program(&mut copies_bytes)?)),
            _ => None,
        });
        Some(HookPlan { stages: stages? })
    }

    /// `copies_bytes`: see [`COPIES_BYTES_MAX`]; of the programs before this one.
    fn program(&mut self, copies_bytes: &mut usize) -> Option<Program> {
        let program = self.code()?;
        let maps = self.list_of(MAPS_MAX, Reader::map)?;
        let mut tails = self.list_of(TAILS_MAX, Reader::code)?;
        let bytes: usize = maps.iter().map(memory_bytes).sum();
        *copies_bytes = copies_bytes.saturating_add(bytes.saturating_mul(tails.len()));
        if *copies_bytes > COPIES_BYTES_MAX {
            return None;
        }
        tails.iter_mut().for_each(|tail| tail.maps.clone_from(&maps));
        let blob = Some(self.bytes()?).filter(|blob| !blob.is_empty());
        let btf = blob.map(|blob| Btf { blob: blob.to_vec(), ..Btf::default() });
        let program = Program { maps, tails, btf, ..program };
        std::iter::once(&program).chain(&program.tails).all(refers_to_its_own).then_some(program)
    }

    fn code(&mut self) -> Option<Program> {
        Some(Program {
            name: self.name()?,
            license: self.name()?,
            frags: self.u8()? != 0,
            slots: self.list_of(SLOTS_MAX, |fields| fields.array().map(Slot::parse))?,
            kfuncs: self.list_of(KFUNCS_MAX, |fields| Some(Kfunc { name: fields.name()?, id: None }))?,
            kind: ProgramKind::Xdp,
            ..Program::default()
        })
    }

    /// Returns the map; `None` if its initial contents do not fit into it. Its sizes are checked before it is
    /// created.
    pub(super) fn map(&mut self) -> Option<MapDef> {
        let name = self.name()?;
        let kind = MapKind::from_number(self.u32()?)?;
        let (key_size, value_size) = (self.u32()?, self.u32()?);
        let (max_entries, flags, extra) = (self.u32()?, self.u32()?, self.u64()?);
        Some(MapDef {
            flags,
            extra,
            initial: self.bytes().filter(|initial| initial.len() <= value_size as usize)?.to_vec(),
            frozen: self.u8()? != 0,
            entries: self.list_of(ENTRIES_MAX, |fields| {
                let key = fields.u32().filter(|key| *key < max_entries)?;
                let initial = match fields.u8()? {
                    0 => Initial::Program(fields.name()?),
                    1 => Initial::Map(fields.u32()?),
                    _ => return None,
                };
                Some((key, initial))
            })?,
            ..MapDef::new(&name, kind, key_size, value_size, max_entries)
        })
    }

    fn name(&mut self) -> Option<String> {
        self.text().filter(|text| text.len() <= TEXT_MAX)
    }
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
