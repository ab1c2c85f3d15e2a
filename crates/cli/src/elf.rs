//! What an executable says about the libraries that it loads (elf(5)).

use std::fs::File;
use std::path::Path;

use object::elf::{DT_NEEDED, DT_STRSZ, DT_STRTAB, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{LittleEndian, ReadCache};

/// A 64-bit executable of this machine.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Elf {
    /// Path of the loader (`PT_INTERP`); `None` for a statically linked program.
    pub(crate) loader: Option<String>,
    /// Names of the libraries that it is linked to (`DT_NEEDED`).
    pub(crate) needed: Vec<String>,
    /// The N of the newest version GLIBC_2.N that it needs.
    pub(crate) glibc: Option<u32>,
}

impl Elf {
    /// Reads a file; `None` unless it is a little-endian 64-bit ELF file.
    pub(crate) fn read(program: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(program).ok()?);
        let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, &cache).ok()?;
        let loader = segments.iter().find_map(|segment| segment.interpreter(endian, &cache).ok()?);
        let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, &cache).ok()?);
        let entries =
            || dynamic.unwrap_or_default().iter().map(|entry| (entry.tag(endian), entry.val(endian)));
        let value = |tag| entries().find(|entry| entry.0 == tag).map(|entry| entry.1);
        let names = value(DT_STRTAB).zip(value(DT_STRSZ)).and_then(|(at, len)| {
            segments.iter().find_map(|segment| segment.data_range(endian, &cache, at, len).ok()?)
        });
        let name = |at: u64| names?.get(usize::try_from(at).ok()?..)?.split(|byte| *byte == 0).next();
        let versions = names.unwrap_or_default().split(|byte| *byte == 0);
        let glibc = versions.filter_map(|name| {
            let version = str::from_utf8(name).ok()?.strip_prefix("GLIBC_2.")?;
            version.split('.').next()?.parse().ok()
        });
        let needed = entries().filter(|entry| entry.0 == DT_NEEDED).filter_map(|entry| text(name(entry.1)?));
        Some(Self { loader: loader.and_then(text), needed: needed.collect(), glibc: glibc.max() })
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_a_loader_and_need_the_c_library() {
        let sh = Elf::read(Path::new("/bin/sh")).expect("an ELF file");
        assert!(sh.loader.is_some_and(|loader| loader.contains("/ld")));
        assert!(sh.needed.iter().any(|name| name.starts_with("libc.so")), "{:?}", sh.needed);
        assert!(sh.glibc.is_some_and(|version| (2..100).contains(&version)), "{:?}", sh.glibc);
        assert_eq!(Elf::read(Path::new("/etc/passwd")), None);
    }
}
