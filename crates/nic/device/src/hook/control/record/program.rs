//! Encoding of programs: code, maps, and what the machine needs besides. The types are for readers of the
//! maps.

use bpf::{Btf, Initial, Kfunc, MapDef, MapKind, Program, ProgramKind, Slot};

use super::{Reader, Writer};

/// Most programs in the program arrays of one program.
const TAILS_MAX: usize = 1024;

impl Writer {
    /// Writes a program and the programs in its program arrays, which have the same maps.
    pub(super) fn program(&mut self, program: &Program) {
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
    /// Returns the program; `None` if the bytes are none.
    pub(super) fn program(&mut self) -> Option<Program> {
        let program = self.code()?;
        let maps = self.list(Reader::map)?;
        let mut tails = self.list(Reader::code)?;
        // Each has a copy of the maps.
        let bytes = maps.iter().map(|map| map.initial.len()).sum::<usize>();
        if tails.len() > TAILS_MAX || bytes.saturating_mul(tails.len()) > MAPS_BYTES_MAX {
            return None;
        }
        tails.iter_mut().for_each(|tail| tail.maps.clone_from(&maps));
        let blob = Some(self.bytes()?).filter(|blob| !blob.is_empty());
        let btf = blob.map(|blob| Btf { blob: blob.to_vec(), ..Btf::default() });
        Some(Program { maps, tails, btf, ..program })
    }

    fn code(&mut self) -> Option<Program> {
        Some(Program {
            name: self.text()?,
            license: self.text()?,
            frags: self.u8()? != 0,
            slots: self.list(|fields| fields.array().map(Slot::parse))?,
            kfuncs: self.list(|fields| Some(Kfunc { name: fields.text()?, id: None }))?,
            kind: ProgramKind::Xdp,
            ..Program::default()
        })
    }

    pub(super) fn map(&mut self) -> Option<MapDef> {
        let name = self.text()?;
        let kind = MapKind::from_number(self.u32()?)?;
        let (key_size, value_size) = (self.u32()?, self.u32()?);
        let (max_entries, flags, extra) = (self.u32()?, self.u32()?, self.u64()?);
        Some(MapDef {
            flags,
            extra,
            initial: self.bytes()?.to_vec(),
            frozen: self.u8()? != 0,
            entries: self.list(|fields| {
                let key = fields.u32()?;
                let initial = match fields.u8()? {
                    0 => Initial::Program(fields.text()?),
                    1 => Initial::Map(fields.u32()?),
                    _ => return None,
                };
                Some((key, initial))
            })?,
            ..MapDef::new(&name, kind, key_size, value_size, max_entries)
        })
    }
}

/// Most bytes of initial contents of the maps of all programs of a record.
const MAPS_BYTES_MAX: usize = 64 << 20;
