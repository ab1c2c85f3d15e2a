//! Programs from ELF object files of `clang -target bpf`, and object files of assembled programs
//! ([`write()`]).
//!
//! Each program is linked on its own: its functions, their references to maps and global data, and the
//! adaptation to the kernel's structures (CO-RE). What is wrong with one program does not affect another one
//! ([`candidates`]). Maps come from section `.maps` and the older `maps`. A data section becomes an array
//! with one entry that starts with the section's contents; `.rodata` is constant. A malformed file gives an
//! error, never a panic.
//!
//! ```
//! use roxie_bpf::object::{programs_of, write};
//! use roxie_bpf::{ProgramKind, Recipe, XdpAction};
//!
//! let recipe = Recipe { counters: true, ..Recipe::verdict(XdpAction::Drop) };
//! let program = recipe.program("drop", ProgramKind::Xdp)?;
//! // An ELF file, as clang makes it and `ip link set dev eth0 xdp object FILE` loads it.
//! let elf = write(&program)?;
//! let loaded = programs_of(&elf, None)?;
//! assert_eq!((&loaded[0].name[..], &loaded[0].maps[0].name[..]), ("drop", "counters"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adapt;
mod elf;
mod ext;
mod externs;
mod kernel_types;
mod link;
mod maps;
mod sections;
mod write;

pub use elf::FILE_MAX;
pub use write::write;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use ext::Ext;
use externs::Configuration;
use link::{Function, Linker};

use crate::btf::reader::Types;
use crate::insn::{DecodeError, decode_all};
use crate::map::{Initial, MapDef};
use crate::program::{Program, ProgramKind};

/// Most XDP programs of an object file, and most bytes of the code and types of all of them.
const PROGRAMS_MAX: usize = 1024;
const BYTES_MAX: usize = 256 << 20;

/// What programs take from the running kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel<'a> {
    /// Its types (`/sys/kernel/btf/vmlinux`). Programs that adapt to its structures or call its functions
    /// (kfuncs) need them.
    pub types: Option<&'a [u8]>,
    /// `LINUX_VERSION_CODE`: 65536 times the version, plus 256 times the patch level, plus the sublevel.
    pub version: Option<u32>,
    /// Its configuration, as `/proc/config.gz` has it.
    pub config: Option<&'a str>,
    /// Number of possible CPUs: the size of arrays with 0 entries in their definition. The program's own tool
    /// would set it.
    pub cpus: Option<u32>,
}

impl<'a> Kernel<'a> {
    /// Returns [`version`](Self::version) for a release, such as `6.12.3-amd64`
    /// (`/proc/sys/kernel/osrelease`).
    #[must_use]
    pub fn version_of(release: &str) -> Option<u32> {
        let numbers = release.trim().split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
        let mut numbers = numbers.map(|number: u32| number.min(255));
        let (version, patch_level) = (numbers.next()?, numbers.next()?);
        Some(version << 16 | patch_level << 8 | numbers.next().unwrap_or(0))
    }

    /// Returns an entry of the configuration.
    fn config(&self, name: &str) -> Option<&'a str> {
        let mut entries = self.config?.lines().filter_map(|line| line.split_once('='));
        entries.find(|(key, _)| *key == name).map(|(_, value)| value.trim())
    }
}

/// A program of an object file.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Name of its section.
    pub section: String,
    /// Place where it runs, if the section has a name of XDP.
    pub kind: Option<ProgramKind>,
    /// The program, or why it cannot be linked. Without `kind` it is one for interfaces.
    pub program: Result<Program, ObjectError>,
}

impl Candidate {
    /// Returns whether a user means this program by a section, a name, or both. The `?` in front of a
    /// section's name only says that libbpf does not load the program by itself.
    #[must_use]
    pub fn is(&self, section: Option<&str>, name: Option<&str>) -> bool {
        let own = self.section.strip_prefix('?').unwrap_or(&self.section);
        section.is_none_or(|section| section == own || section == self.section)
            && name.is_none_or(|name| name == self.name)
    }
}

/// Returns the XDP programs of an object file, sorted by name. Each has all maps of the file in the same
/// order, so that programs that share a map agree on its index. Programs that cannot be linked are left out
/// if there is another one, and so are programs in sections without a name of XDP; [`candidates`] returns
/// them too.
///
/// `kernel_types` is the type information of the running kernel (`/sys/kernel/btf/vmlinux`). Programs that
/// adapt to the layout of kernel structures need it.
///
/// # Errors
/// [`ObjectError`] if the file is malformed, contains no XDP program, or none that can be linked.
pub fn programs_of(elf: &[u8], kernel_types: Option<&[u8]>) -> Result<Vec<Program>, ObjectError> {
    let kernel = Kernel { types: kernel_types, ..Kernel::default() };
    let (mut programs, mut first_error) = (Vec::new(), ObjectError::NoPrograms);
    for candidate in candidates(elf, &kernel)?.into_iter().filter(|one| one.kind.is_some()) {
        match candidate.program {
            Ok(program) => programs.push(program),
            Err(error) if first_error == ObjectError::NoPrograms => first_error = error,
            Err(_) => {}
        }
    }
    if programs.is_empty() { Err(first_error) } else { Ok(programs) }
}

/// Returns all programs of an object file, sorted by name, also those that cannot be linked. Each has all
/// maps of the file in the same order.
///
/// # Errors
/// [`ObjectError`] if the file or its type information is malformed, or contains no program.
pub fn candidates(elf: &[u8], kernel: &Kernel<'_>) -> Result<Vec<Candidate>, ObjectError> {
    let file = elf::File::parse(elf).map_err(ObjectError::Parse)?;
    let data =
        |name: &str| file.section(name).map(|(_, section)| section.data).filter(|data| !data.is_empty());
    let malformed = || ObjectError::Parse("its type information is malformed".to_owned());
    let types = data(".BTF").map(|blob| Types::parse(blob).ok_or_else(malformed)).transpose()?;
    let ext = match (data(".BTF.ext"), &types) {
        (Some(ext), Some(types)) => {
            Ext::parse(ext, types).map_err(|why| ObjectError::Parse(why.to_owned()))?
        }
        _ => Ext::default(),
    };
    let entries = entries(&file)?;
    let kernel_types = kernel.types.filter(|_| needs_kernel(&file, &ext));
    let kernel_types = kernel_types.map(|blob| {
        Types::parse(blob)
            .ok_or_else(|| ObjectError::Parse("the kernel's type information is malformed".into()))
    });
    let kernel_types = kernel_types.transpose()?;
    let is_weak = |name: &str| file.symbols.iter().any(|symbol| symbol.name == name && symbol.is_weak);
    let config = match &types {
        Some(types) => externs::configuration(types, kernel, is_weak).map_err(ObjectError::Link)?,
        None => Configuration::default(),
    };
    let found = maps::find(&file, types.as_ref(), &config, kernel.cpus).map_err(ObjectError::Map)?;
    let linker = Linker {
        file: &file,
        types: types.as_ref(),
        ext: &ext,
        maps: &found,
        config: &config,
        kernel,
        kernel_types: kernel_types.as_ref(),
    };
    let blob = types.as_ref().map(|types| kernel_types::for_kernel(&file, types));
    let defs: Vec<MapDef> =
        found.iter().filter(|map| map.broken.is_none()).map(|map| map.def.clone()).collect();
    let license = data("license").map(|bytes| bytes.split(|&byte| byte == 0).next().unwrap_or_default());
    let license = String::from_utf8_lossy(license.unwrap_or_default()).into_owned();

    let (mut all, mut bytes) = (Vec::new(), 0);
    for Entry { name, section, kind, frags, function } in entries {
        let program = linker.link(&name, function).and_then(|linked| {
            decode_all(&linked.slots).map_err(|error| ObjectError::Code(name.clone(), error))?;
            let btf = link::btf_of(blob.as_deref(), &linked);
            bytes += linked.slots.len() * 16 + btf.as_ref().map_or(0, |btf| btf.blob.len());
            bytes += defs.iter().map(|def| def.initial.len()).sum::<usize>();
            if bytes > BYTES_MAX {
                return Err(ObjectError::Parse("its sections are too large".to_owned()));
            }
            Ok(Program {
                name: name.clone(),
                kind: kind.unwrap_or_default(),
                slots: linked.slots,
                maps: defs.clone(),
                license: license.clone(),
                frags,
                btf,
                kfuncs: linked.kfuncs,
                tails: Vec::new(),
            })
        });
        all.push(Candidate { name, section, kind, program });
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    add_tails(&mut all, BYTES_MAX);
    Ok(all)
}

/// A symbol that is the main function of a program.
struct Entry {
    name: String,
    section: String,
    kind: Option<ProgramKind>,
    frags: bool,
    function: Function,
}

fn entries(file: &elf::File<'_>) -> Result<Vec<Entry>, ObjectError> {
    let mut entries = Vec::new();
    for symbol in file.symbols.iter().filter(|symbol| symbol.is_function && !symbol.is_local) {
        let Some(number) = symbol.section else { continue };
        let section = &file.sections[number];
        if !section.is_code || section.name.starts_with(".text") {
            continue;
        }
        let (kind, frags) = sections::place_of(section.name);
        let end = symbol.value.checked_add(symbol.size);
        let end = end.ok_or_else(|| ObjectError::Parse(format!("{}: its size is wrong", symbol.name)))?;
        let function = Function { section: number, start: symbol.value, end };
        let (name, section) = (symbol.name.to_owned(), section.name.to_owned());
        entries.push(Entry { name, section, kind, frags, function });
    }
    match entries.len() {
        0 => Err(ObjectError::NoPrograms),
        count if count > PROGRAMS_MAX => {
            Err(ObjectError::Parse(format!("it has more than {PROGRAMS_MAX} programs")))
        }
        _ => Ok(entries),
    }
}

/// Whether a program may need the kernel's types: it adapts instructions, or refers to a symbol that the
/// file does not define.
fn needs_kernel(file: &elf::File<'_>, ext: &Ext<'_>) -> bool {
    !ext.adaptations.is_empty()
        || file.symbols.iter().any(|symbol| symbol.section.is_none() && !symbol.name.is_empty())
}

/// Gives each program the programs that initial values of its program arrays name, and those that these
/// name in turn. A program is refused if it would make the programs that were given exceed `bytes_max`.
fn add_tails(all: &mut [Candidate], bytes_max: usize) {
    let linked: Vec<Option<Program>> = all.iter().map(|one| one.program.as_ref().ok().cloned()).collect();
    if !linked.iter().flatten().any(|program| program.maps.iter().any(|map| !map.entries.is_empty())) {
        return;
    }
    let by_name: HashMap<&str, &Program> =
        linked.iter().flatten().map(|program| (&program.name[..], program)).collect();
    let mut bytes = 0;
    for (one, own) in all.iter_mut().zip(&linked) {
        let (Ok(program), Some(own)) = (&mut one.program, own) else { continue };
        let (mut seen, mut todo) = (BTreeSet::from([&own.name[..]]), vec![own]);
        let mut is_too_large = false;
        while let Some(next) = todo.pop().filter(|_| !is_too_large) {
            let used: BTreeSet<usize> =
                next.map_slots().unwrap_or_default().iter().map(|(_, map)| map.index()).collect();
            let entries = used.iter().filter_map(|map| next.maps.get(*map)).flat_map(|map| &map.entries);
            for (_, initial) in entries {
                let Initial::Program(name) = initial else { continue };
                let Some((&name, &found)) = by_name.get_key_value(&name[..]) else { continue };
                if !seen.insert(name) {
                    continue;
                }
                bytes += memory_bytes(found);
                if bytes > bytes_max {
                    is_too_large = true;
                    break;
                }
                program.tails.push(found.clone());
                todo.push(found);
            }
        }
        if is_too_large {
            let why = "the programs that its program arrays name are too large";
            one.program = Err(ObjectError::Link(format!("{}: {why}", own.name)));
        }
    }
}

/// Returns how many bytes a copy of the program takes, about.
fn memory_bytes(program: &Program) -> usize {
    let Program { slots, maps, btf, .. } = program;
    let maps = maps.iter().map(|def| {
        let entries = def.entries.len() * size_of::<(u32, Initial)>();
        size_of::<MapDef>() + def.name.len() + def.initial.len() + entries
    });
    size_of::<Program>()
        + size_of_val(&slots[..])
        + btf.as_ref().map_or(0, |btf| btf.blob.len())
        + maps.sum::<usize>()
}

/// Reason why an object file gives no programs, or a program no object file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ObjectError {
    /// The file or its type information is malformed.
    Parse(String),
    /// A reference cannot be resolved: the text names program, section, offset and symbol.
    Link(String),
    /// The text names the map and what is wrong with its definition.
    Map(String),
    /// The named program has slots that are no instructions.
    Code(String, DecodeError),
    /// An object file cannot hold this program.
    Unwritable(String),
    /// The file contains no XDP program.
    NoPrograms,
    /// The programs adapt to kernel structures, and `kernel_types` was not given.
    NeedsKernelTypes,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::Parse(reason) => write!(f, "the object file cannot be read: {reason}"),
            ObjectError::Link(reason) => write!(f, "the object file cannot be linked: {reason}"),
            ObjectError::Map(reason) => write!(f, "the object file cannot be read: {reason}"),
            ObjectError::Code(name, error) => write!(f, "program {name}: {error}"),
            ObjectError::Unwritable(reason) => write!(f, "cannot write an object file of program {reason}"),
            ObjectError::NoPrograms => f.write_str("the object file has no XDP program"),
            ObjectError::NeedsKernelTypes => {
                f.write_str("the programs need the kernel's type information (/sys/kernel/btf/vmlinux)")
            }
        }
    }
}

impl std::error::Error for ObjectError {}

#[cfg(test)]
#[path = "object/tests/clang.rs"]
mod clang;
#[cfg(test)]
pub(crate) use clang::build;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod tests;
