//! Maps of an object file: variables in section `.maps` described by BTF, structures in the older section
//! `maps`, and the sections of global data, each of which becomes an array with one entry.

use std::collections::BTreeSet;

use super::elf::File;
use super::externs::{CONFIG_SECTION, Configuration};
use crate::btf::reader::{Type, Types, kind, word};
use crate::map::{Initial, MapDef, MapKind};

/// Most maps of an object file.
const MAPS_MAX: usize = 1000;
/// Most entries with initial values of one map.
const INITIAL_MAX: usize = 1 << 12;
/// Lengths of the older definition: type, key, value, entries; and flags.
const OLD_LEN: usize = 16;
/// Length of an old definition if no symbol tells it (`struct bpf_map_def`).
const OLD_LEN_WITH_FLAGS: u64 = 20;

/// A map and where the code's references to it point.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) def: MapDef,
    pub(super) section: usize,
    /// Bytes of the section that stand for the map.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Whether references are addresses within the map's value.
    pub(super) is_data: bool,
    /// Why the definition cannot be used. Such maps come last.
    pub(super) broken: Option<String>,
}

/// Returns all maps sorted by name, so that programs that share a map agree on its index.
///
/// # Errors
/// A text that names the map and what is wrong with it.
pub(super) fn find(
    file: &File<'_>,
    types: Option<&Types<'_>>,
    config: &Configuration,
    cpus: Option<u32>,
) -> Result<Vec<Found>, String> {
    let mut found = data_sections(file, types);
    if !config.is_empty() {
        let mut def = MapDef::array(CONFIG_SECTION, config.bytes.len() as u32, 1);
        (def.initial, def.frozen, def.flags) = (config.bytes.clone(), true, MapDef::RDONLY_PROG);
        found.push(Found { def, section: usize::MAX, start: 0, end: u64::MAX, is_data: true, broken: None });
    }
    for (number, section) in file.sections.iter().enumerate() {
        if section.name == ".maps" {
            let types = types.ok_or("section .maps needs type information: compile with -g")?;
            described(file, number, types, &mut found)?;
        } else if section.name == "maps" || section.name.starts_with("maps/") {
            old(file, number, &mut found)?;
        }
    }
    let is_array = |kind| matches!(kind, MapKind::Array | MapKind::PercpuArray | MapKind::Xskmap);
    for map in found.iter_mut().filter(|map| map.broken.is_none() && !has_size(&map.def)) {
        if let Some(cpus) = cpus.filter(|_| is_array(map.def.kind)) {
            map.def.max_entries = cpus;
            continue;
        }
        let name = &map.def.name;
        map.broken =
            Some(format!("map {name}: its definition has 0 entries; the program's own tool sets them"));
    }
    if found.len() > MAPS_MAX {
        return Err(format!("it has more than {MAPS_MAX} maps"));
    }
    found.sort_by(|a, b| (a.broken.is_some(), &a.def.name).cmp(&(b.broken.is_some(), &b.def.name)));
    references(file, types, &mut found)?;
    Ok(found)
}

/// Whether the map can be created. Maps with an entry for each CPU, and those with initial entries, need no
/// number.
fn has_size(def: &MapDef) -> bool {
    def.max_entries > 0
        || matches!(
            def.kind,
            MapKind::PerfEventArray
                | MapKind::Cpumap
                | MapKind::ProgArray
                | MapKind::ArrayOfMaps
                | MapKind::HashOfMaps
        )
}

/// Whether the section becomes an array with this content.
fn is_data(name: &str) -> bool {
    [".bss", ".data", ".rodata"].iter().any(|prefix| name.starts_with(prefix))
}

fn data_sections(file: &File<'_>, types: Option<&Types<'_>>) -> Vec<Found> {
    let data =
        file.sections.iter().enumerate().filter(|(_, section)| is_data(section.name) && section.size > 0);
    data.map(|(number, section)| {
        let frozen = section.name.starts_with(".rodata");
        let flags = if frozen { MapDef::RDONLY_PROG } else { 0 };
        let value_type = types.and_then(|types| types.find(kind::DATASEC, section.name)).unwrap_or(0);
        let def = MapDef {
            flags,
            frozen,
            initial: section.data.to_vec(),
            types: [0, value_type],
            ..MapDef::array(section.name, section.size.try_into().unwrap_or(u32::MAX), 1)
        };
        Found { def, section: number, start: 0, end: section.size, is_data: true, broken: None }
    })
    .collect()
}

/// Adds the maps of section `.maps`.
fn described(
    file: &File<'_>,
    number: usize,
    types: &Types<'_>,
    found: &mut Vec<Found>,
) -> Result<(), String> {
    let of_section = |symbol: &&super::elf::Symbol<'_>| symbol.section == Some(number) && !symbol.is_section;
    for symbol in file.symbols.iter().filter(of_section).filter(|symbol| !symbol.name.is_empty()) {
        let wrong = |why: &str| format!("map {}: {why}", symbol.name);
        let variable = types.find(kind::VAR, symbol.name).and_then(|ty| types.get(ty));
        let variable = variable.ok_or_else(|| wrong("it has no type information"))?;
        let (_, record) = types.resolved(variable.word).ok_or_else(|| wrong("its type is malformed"))?;
        let (def, broken) = match definition(types, symbol.name, &record, 0) {
            Ok(def) => (def, None),
            Err(why) => (MapDef::array(symbol.name, 0, 0), Some(wrong(&why))),
        };
        let end = symbol.value.saturating_add(symbol.size.max(1));
        found.push(Found { def, section: number, start: symbol.value, end, is_data: false, broken });
    }
    Ok(())
}

/// Returns the number that a member stores as the length of an array (`__uint()` of libbpf).
fn number(types: &Types<'_>, ty: u32) -> Option<u32> {
    let (_, pointer) = types.resolved(ty).filter(|(_, ty)| ty.kind == kind::PTR)?;
    let (_, array) = types.resolved(pointer.word)?;
    array.array().map(|(_, count)| count)
}

/// Returns the number and size of the type that a member points to (`__type()`).
fn pointed(types: &Types<'_>, ty: u32) -> Option<(u32, u32)> {
    let (_, pointer) = types.resolved(ty).filter(|(_, ty)| ty.kind == kind::PTR)?;
    Some((pointer.word, types.size(pointer.word)?))
}

/// Returns the map that a structure defines.
fn definition(types: &Types<'_>, name: &str, record: &Type<'_>, depth: u32) -> Result<MapDef, String> {
    if record.kind != kind::STRUCT {
        return Err("its type is no structure".to_owned());
    }
    let mut def = MapDef { kind: MapKind::Hash, flags: 0, ..MapDef::array(name, 0, 0) };
    (def.key_size, def.value_size) = (0, 0);
    let mut has_kind = false;
    for member in record.members() {
        let field = types.name(member.name).unwrap_or_default();
        let wrong = || format!("its field {field} is malformed");
        let count = || number(types, member.ty).ok_or_else(wrong);
        match field {
            "type" => {
                let number = count()?;
                let kind = MapKind::from_number(number);
                def.kind = kind.ok_or_else(|| format!("type {number} is not supported for XDP"))?;
                has_kind = true;
            }
            "max_entries" => def.max_entries = count()?,
            "map_flags" => def.flags = count()?,
            "key_size" => def.key_size = count()?,
            "value_size" => def.value_size = count()?,
            "map_extra" => def.extra = count()?.into(),
            "pinning" => def.pinned = count()? == 1,
            // Placement of memory; roxie leaves it to the kernel.
            "numa_node" => {}
            "key" | "value" => {
                let (ty, size) = pointed(types, member.ty).ok_or_else(wrong)?;
                let index = usize::from(field == "value");
                *(if index == 0 { &mut def.key_size } else { &mut def.value_size }) = size;
                def.types[index] = ty;
            }
            "values" => {
                let inner = inner(types, member.ty, depth).ok_or_else(wrong)??;
                if let Some(mut inner) = inner {
                    inner.name = format!("{name}.inner");
                    def.inner = Some(Box::new(inner));
                }
                (def.key_size, def.value_size) = (4.max(def.key_size), 4);
            }
            _ => return Err(format!("the field {field} of its definition is unknown")),
        }
    }
    if !has_kind {
        return Err("its definition has no type".to_owned());
    }
    complete(&mut def);
    Ok(def)
}

/// Sizes that a definition may leave out, and types that the kernel does not take.
fn complete(def: &mut MapDef) {
    match def.kind {
        MapKind::PerfEventArray | MapKind::ProgArray | MapKind::ArrayOfMaps | MapKind::HashOfMaps => {
            def.key_size = if def.key_size == 0 { 4 } else { def.key_size };
            def.value_size = if def.value_size == 0 { 4 } else { def.value_size };
        }
        // The kernel takes no other ones.
        MapKind::LpmTrie => def.flags |= MapDef::NO_PREALLOC,
        _ => {}
    }
    if !def.kind.has_types() {
        def.types = [0, 0];
    }
}

/// Returns the definition that an array of pointers to maps or functions contains: of maps the inner
/// one. `None` if malformed.
fn inner(types: &Types<'_>, ty: u32, depth: u32) -> Option<Result<Option<MapDef>, String>> {
    let (_, array) = types.resolved(ty)?;
    let (element, _) = array.array()?;
    let (_, pointer) = types.resolved(element).filter(|(_, ty)| ty.kind == kind::PTR)?;
    let (_, target) = types.resolved(pointer.word)?;
    match target.kind {
        kind::FUNC_PROTO => Some(Ok(None)),
        _ if depth > 0 => Some(Err("maps of maps of maps do not exist".to_owned())),
        _ => Some(definition(types, "inner", &target, depth + 1).map(Some)),
    }
}

/// Adds the maps of an older section, which contains their attributes as numbers.
fn old(file: &File<'_>, number: usize, found: &mut Vec<Found>) -> Result<(), String> {
    let data = file.sections[number].data;
    let mut symbols: Vec<_> = file.symbols.iter().filter(|symbol| symbol.section == Some(number)).collect();
    symbols.retain(|symbol| !symbol.is_section && !symbol.name.is_empty());
    symbols.sort_by_key(|symbol| symbol.value);
    for (index, symbol) in symbols.iter().enumerate() {
        let wrong = |why: &str| format!("map {}: {why}", symbol.name);
        let next = symbols.get(index + 1).map_or(file.sections[number].size, |next| next.value);
        let size = match (symbol.size, next.checked_sub(symbol.value)) {
            (0, Some(size)) if size > 0 => size,
            (0, _) => OLD_LEN_WITH_FLAGS,
            (size, _) => size,
        };
        let range = usize::try_from(symbol.value).ok().zip(usize::try_from(size).ok());
        let bytes = range.and_then(|(start, len)| data.get(start..)?.get(..len));
        let bytes = bytes.filter(|bytes| bytes.len() >= OLD_LEN);
        let bytes = bytes.ok_or_else(|| wrong("its definition is outside of its section"))?;
        let field = |index: usize| word(bytes, index * 4).unwrap_or(0);
        let kind = MapKind::from_number(field(0));
        let broken = kind.is_none().then(|| wrong(&format!("type {} is not supported for XDP", field(0))));
        let kind = kind.unwrap_or(MapKind::Array);
        let mut def = MapDef::new(symbol.name, kind, field(1), field(2), field(3));
        def.flags = field(4);
        complete(&mut def);
        let end = symbol.value.saturating_add(size);
        found.push(Found { def, section: number, start: symbol.value, end, is_data: false, broken });
    }
    Ok(())
}

/// Adds the initial entries of maps of maps and of program arrays: relocations of section `.maps`.
fn references(file: &File<'_>, types: Option<&Types<'_>>, found: &mut [Found]) -> Result<(), String> {
    let Some((number, section)) = file.section(".maps") else { return Ok(()) };
    let growing: BTreeSet<usize> = (0..found.len()).filter(|at| found[*at].def.max_entries == 0).collect();
    for relocation in &section.relocations {
        let target = file.symbols.get(relocation.symbol).ok_or("a relocation of .maps has no symbol")?;
        let around = |map: &Found| map.section == number && (map.start..map.end).contains(&relocation.at);
        let Some(index) = found.iter().position(around).filter(|at| found[*at].broken.is_none()) else {
            continue;
        };
        let wrong = |why: &str| format!("map {}: {why}", found[index].def.name);
        let values = types.and_then(|types| values_at(types, &found[index].def.name));
        let values = values.ok_or_else(|| wrong("it has initial values of an unknown form"))?;
        let at = (relocation.at - found[index].start).checked_sub(values);
        let key = at.filter(|at| at.is_multiple_of(8)).and_then(|at| u32::try_from(at / 8).ok());
        let key = key.ok_or_else(|| wrong("an initial value is outside of its array"))?;
        let initial = if target.is_function {
            Initial::Program(target.name.to_owned())
        } else {
            let map = found.iter().position(|map| {
                Some(map.section) == target.section && map.start == target.value && !map.is_data
            });
            let map = map.ok_or_else(|| wrong(&format!("the initial value {} is no map", target.name)))?;
            Initial::Map(map as u32)
        };
        let def = &mut found[index].def;
        if def.entries.len() >= INITIAL_MAX {
            return Err(format!("map {}: it has more than {INITIAL_MAX} initial values", def.name));
        }
        def.entries.push((key, initial));
        if growing.contains(&index) {
            let entries = key.checked_add(1);
            let entries = entries.ok_or_else(|| format!("map {}: it has too many entries", def.name))?;
            def.max_entries = def.max_entries.max(entries);
        }
    }
    Ok(())
}

/// Returns the byte offset of the initial values in the variable of a map.
fn values_at(types: &Types<'_>, name: &str) -> Option<u64> {
    let variable = types.get(types.find(kind::VAR, name)?)?;
    let (_, record) = types.resolved(variable.word)?;
    let mut members = record.members();
    members.find(|member| types.text(member.name) == Some(b"values")).map(|member| u64::from(member.at) / 8)
}
