//! Compares the exported names and versions with rdma-core's own libraries, where they are installed.

mod libraries;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use object::elf;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Object, ObjectSection};

use libraries::built;

const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";

/// The C library musl (Debian: musl).
const MUSL: &str = "/usr/lib/x86_64-linux-musl/libc.so";
/// Some functions of glibc that musl lacks, for hosts without it.
const NOT_IN_MUSL: [&str; 5] =
    ["on_exit", "gnu_get_libc_version", "__memcpy_chk", "__snprintf_chk", "dlvsym"];
/// What the libraries of packages do without: they contain the unwinder, and zig's `pthread_atfork`.
const ONLY_HERE: [&str; 2] = ["_Unwind_", "__register_atfork"];

/// The symbols that a shared object defines, as `name@@VERSION` or `name@VERSION`, the names of those that it
/// needs, and its SONAME.
struct Exports {
    symbols: BTreeSet<String>,
    needs: BTreeSet<String>,
    soname: String,
}

#[test]
fn libibverbs_exports_everything_rdma_core_does() {
    superset_of_system("libibverbs.so", "libibverbs.so.1");
}

#[test]
fn librdmacm_exports_everything_rdma_core_does() {
    superset_of_system("librdmacm.so", "librdmacm.so.1");
}

#[test]
fn no_name_is_exported_without_a_version() {
    let Some(ours) = built("libibverbs.so").as_deref().and_then(exports) else { return };
    let bare: Vec<&String> = ours.symbols.iter().filter(|symbol| !symbol.contains('@')).collect();
    assert!(bare.is_empty(), "{bare:?}");
}

/// `repoll_create` and the other names of later rdma-core releases are in the list as well.
#[test]
fn only_listed_names_and_those_of_roxie_are_exported() {
    for (file, list) in [
        ("libibverbs.so", include_str!("../symbols/ibverbs.txt")),
        ("librdmacm.so", include_str!("../symbols/rdmacm.txt")),
    ] {
        let Some(ours) = built(file).as_deref().and_then(exports) else { return };
        let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let listed: BTreeSet<&str> = lines.filter_map(|line| line.split_whitespace().next()).collect();
        let is_known = |symbol: &&String| {
            let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
            match version.trim_start_matches('@') {
                "ROXIE_1" => {
                    name.starts_with("roxie_cm_")
                        || name.starts_with("roxie_nl_")
                        || name == "roxie_last_refusal"
                }
                _ => listed.contains(name),
            }
        };
        let foreign: Vec<&String> = ours.symbols.iter().filter(|symbol| !is_known(symbol)).collect();
        assert!(foreign.is_empty() && ours.symbols.len() > 50, "{file}: {foreign:?}");
    }
}

/// Tables that are empty at first must not be in the file: the one of protected pages has 400 KB.
#[test]
fn libibverbs_has_little_data_in_its_file() {
    const DATA_BYTES_MAX: u64 = 32 << 10;
    let Some(bytes) = built("libibverbs.so").and_then(|path| fs::read(path).ok()) else { return };
    let file = ElfFile64::<object::Endianness>::parse(&bytes[..]).expect("a 64-bit ELF shared object");
    let data = file.section_by_name(".data").expect("the section").size();
    assert!(data < DATA_BYTES_MAX, "{data} bytes");
}

/// Programs with musl load the same libraries (docs/install.md). musl's loader refuses a library with a
/// symbol that it does not find.
#[test]
fn the_libraries_need_nothing_that_musl_lacks() {
    let Some(verbs) = built("libibverbs.so").as_deref().and_then(exports) else { return };
    let musl = exports(Path::new(MUSL)).map(|musl| musl.symbols);
    let own: BTreeSet<&str> = verbs.symbols.iter().filter_map(|symbol| symbol.split('@').next()).collect();
    let lacks = |name: &str| match &musl {
        Some(musl) => !musl.contains(name) && !own.contains(name),
        None => NOT_IN_MUSL.contains(&name),
    };
    let is_only_here = |name: &str| ONLY_HERE.iter().any(|first| name.starts_with(first));
    for file in ["libibverbs.so", "librdmacm.so", "libroxie_audit.so"] {
        let Some(library) = built(file).as_deref().and_then(exports) else { continue };
        let missing: Vec<&String> =
            library.needs.iter().filter(|name| lacks(name) && !is_only_here(name)).collect();
        assert!(missing.is_empty() && !verbs.needs.is_empty(), "{file}: {missing:?}");
    }
}

/// The short list is true.
#[test]
fn musl_lacks_the_listed_functions() {
    let Some(musl) = exports(Path::new(MUSL)) else {
        println!("skipped: needs {MUSL}");
        return;
    };
    let there: Vec<&&str> = NOT_IN_MUSL.iter().filter(|name| musl.symbols.contains(**name)).collect();
    assert!(there.is_empty() && musl.symbols.contains("atexit"), "{there:?}");
}

fn superset_of_system(file: &str, soname: &str) {
    let Some(ours) = built(file).as_deref().and_then(exports) else { return };
    assert_eq!(ours.soname, soname);
    let Some(theirs) = exports(&Path::new(SYSTEM).join(soname)) else {
        println!("skipped: needs rdma-core's {soname} in {SYSTEM}");
        return;
    };
    let missing: Vec<&String> = theirs.symbols.difference(&ours.symbols).collect();
    println!("{} of {} symbols present", theirs.symbols.len() - missing.len(), theirs.symbols.len());
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(theirs.symbols.len() > 50);
}

fn exports(path: &Path) -> Option<Exports> {
    let bytes = fs::read(path).ok()?;
    Some(parse(&bytes).expect("a 64-bit ELF shared object"))
}

fn parse(bytes: &[u8]) -> object::Result<Exports> {
    let file = ElfFile64::<object::Endianness>::parse(bytes)?;
    let (endian, header, sections) = (file.endian(), file.elf_header(), file.elf_section_table());
    let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM)?;
    let versions = sections.versions(endian, bytes)?;
    let (mut found, mut needs) = (BTreeSet::new(), BTreeSet::new());
    for (index, symbol) in symbols.enumerate() {
        if symbol.st_shndx.get(endian) == elf::SHN_UNDEF && symbol.st_bind() == elf::STB_GLOBAL {
            needs.insert(String::from_utf8_lossy(symbols.symbol_name(endian, symbol)?).into_owned());
        }
        let defined = symbol.st_shndx.get(endian) != elf::SHN_UNDEF && symbol.st_bind() != elf::STB_LOCAL;
        if !defined || symbol.st_shndx.get(endian) == elf::SHN_ABS {
            continue;
        }
        let name = String::from_utf8_lossy(symbols.symbol_name(endian, symbol)?).into_owned();
        let version = versions.as_ref().map(|v| (v, v.version_index(endian, index)));
        let named = match version {
            Some((table, version)) => match table.version(version.into())? {
                Some(node) => {
                    let at = if version.is_hidden() { "@" } else { "@@" };
                    format!("{name}{at}{}", String::from_utf8_lossy(node.name()))
                }
                None => name,
            },
            None => name,
        };
        found.insert(named);
    }
    let soname = soname(header, endian, bytes)?;
    Ok(Exports { symbols: found, needs, soname })
}

fn soname<H: FileHeader<Endian = object::Endianness>>(
    header: &H,
    endian: object::Endianness,
    bytes: &[u8],
) -> object::Result<String> {
    let sections = header.sections(endian, bytes)?;
    let Some((dynamic, strings)) = sections.dynamic(endian, bytes)? else { return Ok(String::new()) };
    let strings = sections.strings(endian, bytes, strings)?;
    for entry in dynamic {
        use object::read::elf::Dyn;
        if entry.tag(endian) == elf::DT_SONAME {
            let at = entry.val32(endian).unwrap_or_default();
            return Ok(String::from_utf8_lossy(strings.get(at).unwrap_or_default()).into_owned());
        }
    }
    Ok(String::new())
}
