//! A map of a hook or of the kernel, behind one interface.

use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use bpf::{MapDef, MapKind, ProgramKind, Types, UpdateMode};
use roxie_hook::HookMap;
use roxie_hook::control::{ControlError, Remote};
use sys::bpf::{Map, Program, extensions_of};

use super::MapView;
use super::types::parse;
use crate::engines::unanswered;
use crate::failure::{During, Failure, Outcome};
use crate::netdev::link as interface;
use crate::xdp::entry_program;

/// Entries of a map: the key, and the value of each CPU.
pub(crate) type Entries = Vec<(Vec<u8>, Vec<Vec<u8>>)>;

/// A map with entries that can be read and changed.
pub(crate) trait Table {
    /// Definition and types.
    fn view(&self) -> &MapView;

    /// The program that has it, and where that is, if there are several places: `ingress`.
    fn place(&self) -> Option<(String, String)>;

    /// Passes entries to `take`, in pieces. Entries of arrays that are all zero are left out unless
    /// `zeros` is set.
    fn each(&self, zeros: bool, take: &mut dyn FnMut(Entries) -> Outcome) -> Outcome;

    /// The id, of a map in the kernel.
    fn id(&self) -> Option<u32> {
        None
    }

    /// Whether a user means this map by `text`.
    fn is_called(&self, text: &str) -> bool {
        self.view().def.name == text
    }

    /// The values of exactly this key.
    fn lookup(&self, key: &[u8]) -> Outcome<Option<Vec<Vec<u8>>>>;

    /// Sets the value of a key, for every CPU.
    fn update(&self, key: &[u8], value: &[u8]) -> Outcome;

    /// Deletes an entry; false if there is none.
    fn delete(&self, key: &[u8]) -> Outcome<bool>;

    /// Loads the program that `FILE` or `FILE:PROGRAM` names, for an entry of this map.
    fn entry_program(&self, file: &str) -> Outcome<Program>;
}

/// Cuts the value as system calls give it into those of the CPUs.
fn of_cpus(def: &MapDef, value: &[u8]) -> Vec<Vec<u8>> {
    let len = def.value_size as usize;
    if !def.kind.is_percpu() {
        return vec![value.to_vec()];
    }
    value.chunks(len.next_multiple_of(8).max(1)).map(|one| one[..len.min(one.len())].to_vec()).collect()
}

/// A map in another process, which may be hostile.
pub(crate) struct Hooked {
    /// The engine.
    pub(crate) remote: Rc<Remote>,
    /// The map as the process describes it.
    pub(crate) map: HookMap,
    /// The types of its program.
    pub(crate) types: Option<Rc<Types>>,
    /// Stands behind the point: see [`device_suffixes`](crate::engines::device_suffixes).
    device: String,
    view: MapView,
}

/// Most maps of one engine that are listed, and most entries of one map that are read: what another process
/// reports is limited. A hook has at most 1 GiB of maps.
const MAPS_MAX: usize = 4096;
const ENTRIES_MAX: usize = 1 << 24;
/// Most pages of one map that are read: each page examines up to 1 MiB of a map, or returns more than half of
/// a reply of 128 KiB.
const PAGES_MAX: u32 = 1 << 15;

impl Hooked {
    /// All maps of an engine; `device` is its part of
    /// [`device_suffixes`](crate::engines::device_suffixes).
    ///
    /// # Errors
    /// The process does not answer.
    pub(crate) fn all(remote: &Rc<Remote>, device: &str) -> Result<Vec<Hooked>, ControlError> {
        let mut tables: Vec<Hooked> = Vec::new();
        for map in remote.maps()?.into_iter().take(MAPS_MAX) {
            // The maps of one program come one after the other and have the same types.
            let known = tables.last().filter(|last: &&Hooked| {
                (last.map.id.hook, &last.map.program) == (map.id.hook, &map.program)
            });
            let types = match known {
                Some(last) => last.types.clone(),
                None => parse(remote.types(map.id)?),
            };
            let view = MapView::new(map.def.clone(), types.as_ref());
            let (remote, device) = (Rc::clone(remote), device.to_owned());
            tables.push(Hooked { remote, map, types, device, view });
        }
        Ok(tables)
    }

    /// The point, with the device if the process has several.
    pub(crate) fn at(&self) -> String {
        format!("{}{}", self.map.point, self.device)
    }

    fn failed(&self, error: &ControlError) -> Failure {
        unanswered(self.remote.pid(), error)
    }

    fn has_lengths(&self, key: &[u8], value: &[u8]) -> bool {
        let def = &self.map.def;
        let len = def.value_size as usize;
        let len = if def.kind.is_percpu() { len.next_multiple_of(8) } else { len };
        key.len() == def.key_size as usize && value.len() == len
    }
}

impl Table for Hooked {
    fn view(&self) -> &MapView {
        &self.view
    }

    fn place(&self) -> Option<(String, String)> {
        Some((self.map.program.clone(), self.at()))
    }

    fn each(&self, zeros: bool, take: &mut dyn FnMut(Entries) -> Outcome) -> Outcome {
        let (mut from, mut left, mut pages) = (Some(0), ENTRIES_MAX, 0);
        while let Some(at) = from {
            pages += 1;
            if pages > PAGES_MAX {
                let (name, pid) = (&self.map.def.name, self.remote.pid());
                return Err(Failure::new(format!("map {name}: process {pid} sends it in too many pieces")));
            }
            let page = self.remote.page(self.map.id, at, zeros).map_err(|error| self.failed(&error))?;
            let entries: Entries = page
                .entries
                .into_iter()
                .filter(|(key, value)| self.has_lengths(key, value))
                .take(left)
                .map(|(key, value)| (key, of_cpus(&self.map.def, &value)))
                .collect();
            left -= entries.len();
            take(entries)?;
            // The process must not keep this command reading for ever.
            from = page.next.filter(|next| left > 0 && *next > at && *next < self.map.def.max_entries);
        }
        Ok(())
    }

    fn lookup(&self, key: &[u8]) -> Outcome<Option<Vec<Vec<u8>>>> {
        let value = self.remote.lookup(self.map.id, key).map_err(|error| self.failed(&error))?;
        let value = value.filter(|value| self.has_lengths(key, value));
        Ok(value.map(|value| of_cpus(&self.map.def, &value)))
    }

    fn update(&self, key: &[u8], value: &[u8]) -> Outcome {
        let mut value = value.to_vec();
        if self.map.def.kind.is_percpu() {
            // A hook's program runs on one thread, which has one value.
            value.resize(value.len().next_multiple_of(8), 0);
        }
        let done = self.remote.update(self.map.id, key, &value, UpdateMode::Any);
        done.map_err(|error| self.failed(&error))
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        if self.lookup(key)?.is_none() {
            return Ok(false);
        }
        self.remote.delete(self.map.id, key).map_err(|error| self.failed(&error))?;
        Ok(true)
    }

    fn entry_program(&self, file: &str) -> Outcome<Program> {
        let (name, pid) = (&self.map.def.name, self.remote.pid());
        Err(Failure::new(format!("map {name}: programs in map entries do not run in hooks")).hint(format!(
            "'roxie hook attach {pid} egress {file}' runs it on every packet that leaves; name the program \
             (FILE:PROGRAM) if it is for entries"
        )))
    }
}

/// A map of the kernel, of the program on an interface, or of one that entries of its maps name.
pub(crate) struct Kernel {
    netdev: String,
    /// The map itself.
    pub(crate) map: Map,
    id: u32,
    /// The name in the kernel, which may be cut.
    cut_name: String,
    /// The other program that has it.
    program: Option<(String, String)>,
    view: MapView,
}

/// Most entries of a map that are searched for programs.
const ENTRIES_SEARCHED: usize = 1 << 12;

impl Kernel {
    /// All maps of the program on `netdev` that roxie knows the kinds of, and the types of the program.
    /// Those of programs in entries of its maps follow.
    ///
    /// # Errors
    /// The kernel refuses to show them.
    pub(crate) fn all(netdev: &str, program: &Program) -> io::Result<(Vec<Kernel>, Option<Rc<Types>>)> {
        let mut tables: Vec<Kernel> = Vec::new();
        let types = Kernel::add(&mut tables, netdev, program, None)?;
        let id = program.info()?.id;
        let mut seen = BTreeSet::from([id]);
        // A dispatcher of libxdp calls these.
        let (mut others, mut place) = (extensions_of(id)?, "called");
        let mut at = 0;
        loop {
            for id in others.into_iter().filter(|id| seen.insert(*id)) {
                // It may be freed by now.
                let Ok(other) = Program::by_id(id) else { continue };
                let name = other.info()?.name;
                Kernel::add(&mut tables, netdev, &other, Some((name, place.to_owned())))?;
            }
            place = "entry";
            let Some(table) = tables.get(at) else { break };
            others = table.programs();
            at += 1;
        }
        Ok((tables, types))
    }

    /// Adds the maps of a program that are not among `tables`, and returns its types.
    fn add(
        tables: &mut Vec<Kernel>,
        netdev: &str,
        program: &Program,
        owner: Option<(String, String)>,
    ) -> io::Result<Option<Rc<Types>>> {
        // A program without types is shown without.
        let types = program.types().ok().flatten().and_then(parse);
        let lines = program.map_lines().unwrap_or_default();
        for id in program.map_ids()? {
            if tables.iter().any(|table| table.id == id) {
                continue;
            }
            let map = match Map::by_id(id) {
                Ok(map) => map,
                Err(error) if error.kind() == io::ErrorKind::Unsupported => continue,
                Err(error) => return Err(error),
            };
            let cut_name = map.name()?;
            let name = types.as_ref().and_then(|types| full_name(types, &cut_name, id, &lines));
            let def = MapDef::new(
                name.as_deref().unwrap_or(&cut_name),
                map.kind(),
                map.key_size() as u32,
                map.value_len() as u32,
                map.max_entries()?,
            );
            let view = MapView::new(def, types.as_ref());
            tables.push(Kernel {
                netdev: netdev.to_owned(),
                map,
                id,
                cut_name,
                program: owner.clone(),
                view,
            });
        }
        Ok(types)
    }

    /// Ids of the programs in its entries.
    fn programs(&self) -> Vec<u32> {
        let at = match (self.map.kind(), self.map.value_len()) {
            (MapKind::ProgArray, 4) => 0,
            (MapKind::Devmap | MapKind::DevmapHash | MapKind::Cpumap, 8) => 4,
            _ => return Vec::new(),
        };
        let (mut found, mut key) = (Vec::new(), None);
        let (mut next, mut value) = (vec![0; self.map.key_size()], vec![0; self.map.value_len()]);
        for _ in 0..ENTRIES_SEARCHED {
            if !self.map.next_key(key.as_deref(), &mut next).unwrap_or(false) {
                break;
            }
            if self.map.lookup(&next, &mut value).unwrap_or(false)
                && let Some(id) = value.get(at..).and_then(|id| id.first_chunk())
            {
                found.push(u32::from_ne_bytes(*id));
            }
            key = Some(next.clone());
        }
        found.retain(|id| *id != 0);
        found
    }

    /// Whether there is an entry with exactly this key: a look-up in a table of prefixes also finds a shorter
    /// prefix.
    fn has(&self, key: &[u8]) -> io::Result<bool> {
        if self.map.kind() != MapKind::LpmTrie {
            return self.map.lookup(key, &mut vec![0; self.map.value_size()]);
        }
        let mut next = vec![0; self.map.key_size()];
        let mut there = self.map.next_key(None, &mut next)?;
        while there && next != key {
            let last = next.clone();
            there = self.map.next_key(Some(&last), &mut next)?;
        }
        Ok(there)
    }

    fn read(&self, key: &[u8]) -> Outcome<Option<Vec<Vec<u8>>>> {
        let mut value = vec![0; self.map.value_size()];
        let there = self.map.lookup(key, &mut value).map_err(|error| self.refused("reading", &error))?;
        Ok(there.then(|| of_cpus(&self.view.def, &value)))
    }

    fn refused(&self, what: &str, error: &io::Error) -> Failure {
        let (netdev, kind) = (&self.netdev, self.map.kind());
        if error.raw_os_error() == Some(nix::libc::E2BIG) {
            return Failure::new(format!(
                "{netdev}: {what}: the key is beyond the map's size, or the map is full"
            ));
        }
        let failure = Failure::new(format!("{netdev}: {what}: {error}"));
        match kind {
            MapKind::ProgArray => {
                failure.hint("all its programs must support multi-buffer packets (xdp.frags), or none")
            }
            MapKind::Xskmap => failure
                .hint(format!("a map of kind {} can be read only by the process that made it", kind.name())),
            MapKind::Ringbuf | MapKind::PerfEventArray => {
                failure.hint(format!("it has records: 'roxie xdp samples {netdev} --map NAME' reads them"))
            }
            MapKind::Array | MapKind::PercpuArray => {
                failure.hint("an array has every entry up to its size, and none can be deleted")
            }
            _ => failure,
        }
    }
}

/// The full name of the map with this id, which the kernel shows as `cut`: the only one that begins so, or
/// the one that the program's source has where the code loads the map.
fn full_name(types: &Types, cut: &str, id: u32, lines: &[(u32, u32, u32)]) -> Option<String> {
    let all = types.maps_like(cut);
    if let [name] = all[..] {
        return Some(name.to_owned());
    }
    let mut named = lines.iter().filter(|(map, ..)| *map == id).filter_map(|(_, text, column)| {
        let line = types.text(*text)?;
        let line = line.get((*column as usize).saturating_sub(1)..).unwrap_or(line);
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let words = line.split(|c: char| !c.is_ascii() || !is_word(c as u8));
        words.into_iter().find_map(|word| all.iter().find(|name| **name == word))
    });
    let name = named.next()?;
    named.all(|other| other == name).then(|| (*name).to_owned())
}

impl Table for Kernel {
    fn view(&self) -> &MapView {
        &self.view
    }

    fn place(&self) -> Option<(String, String)> {
        self.program.clone()
    }

    fn id(&self) -> Option<u32> {
        Some(self.id)
    }

    fn is_called(&self, text: &str) -> bool {
        text == self.view.def.name || text == self.cut_name || text.parse() == Ok(self.id)
    }

    fn each(&self, zeros: bool, take: &mut dyn FnMut(Entries) -> Outcome) -> Outcome {
        let is_array = matches!(self.map.kind(), MapKind::Array | MapKind::PercpuArray);
        let mut key = None;
        let mut next = vec![0; self.map.key_size()];
        while self.map.next_key(key.as_deref(), &mut next).map_err(|error| self.refused("reading", &error))? {
            // The entry may have been deleted meanwhile.
            if let Some(value) = self.read(&next)?
                && (zeros || !is_array || value.concat().iter().any(|byte| *byte != 0))
            {
                take(vec![(next.clone(), value)])?;
            }
            key = Some(next.clone());
        }
        Ok(())
    }

    fn lookup(&self, key: &[u8]) -> Outcome<Option<Vec<Vec<u8>>>> {
        if self.has(key).map_err(|error| self.refused("reading", &error))? {
            self.read(key)
        } else {
            Ok(None)
        }
    }

    fn update(&self, key: &[u8], value: &[u8]) -> Outcome {
        let mut all = value.to_vec();
        if self.map.kind().is_percpu() {
            all.resize(value.len().next_multiple_of(8), 0);
            all = all.repeat(self.map.value_size() / all.len().max(1));
        }
        self.map.update(key, &all).map_err(|error| self.refused("setting an entry", &error))
    }

    fn delete(&self, key: &[u8]) -> Outcome<bool> {
        // Maps that cannot be read are not checked first.
        if self.has(key).is_ok_and(|there| !there) {
            return Ok(false);
        }
        self.map.delete(key).map_err(|error| self.refused("deleting an entry", &error))?;
        Ok(true)
    }

    fn entry_program(&self, file: &str) -> Outcome<Program> {
        let kind = match self.map.kind() {
            MapKind::Cpumap => ProgramKind::XdpCpumap,
            MapKind::ProgArray => ProgramKind::Xdp,
            _ => ProgramKind::XdpDevmap,
        };
        let program = entry_program(file, kind)?;
        // As the programs of one object file have them, maps of the same name are those of the program there.
        let link = interface(&self.netdev)?;
        let there = link.xdp.first().map(|there| Program::by_id(there.program_id)).transpose();
        let there = there.during(&self.netdev)?;
        let (shared, _types) = match &there {
            Some(there) => Kernel::all(&self.netdev, there).during(&self.netdev)?,
            None => (Vec::new(), None),
        };
        let same = |def: &MapDef| {
            // Constants of another object file may have the same name.
            shared.iter().filter(|_| !def.frozen).find(|table| {
                let there = &table.view.def;
                (&there.name, there.kind, there.key_size, there.value_size)
                    == (&def.name, def.kind, def.key_size, def.value_size)
            })
        };
        let maps = program.maps.iter().map(|def| match same(def) {
            Some(table) => table.map.again(),
            None => Map::create(def),
        });
        let maps: Vec<Map> = maps.collect::<io::Result<_>>().during("maps of the entry's program")?;
        Program::load(&program, &maps).map_err(|error| {
            let failure = Failure::new(format!("{}: {error:#}", program.name)).log(&error.log);
            failure.hint(
                "it must support multi-buffer packets (xdp.frags) exactly if the one on the interface does",
            )
        })
    }
}
