//! What an executable says about the libraries that it loads (elf(5)).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A 64-bit executable of this machine.
#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Elf {
    /// Path of the loader (`PT_INTERP`); `None` for a statically linked program.
    pub(crate) loader: Option<String>,
    /// Names of the libraries that it is linked to (`DT_NEEDED`).
    pub(crate) needed: Vec<String>,
}

/// A row of the table of segments.
struct Segment {
    ty: u32,
    offset: u64,
    address: u64,
    size: u64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// Longest section that is read, in bytes. Larger ones belong to no program that is known.
const SECTION_MAX: u64 = 1 << 20;
/// Longest name of a library or loader, in bytes.
const NAME_MAX: usize = 4096;

impl Elf {
    /// Reads a file; `None` unless it is a little-endian 64-bit ELF file.
    pub(crate) fn read(program: &Path) -> Option<Self> {
        let file = File::open(program).ok()?;
        let mut header = [0; 64];
        file.read_exact_at(&mut header, 0).ok()?;
        if header[..6] != *b"\x7fELF\x02\x01" {
            return None;
        }
        let segments = segments(&file, &header)?;
        let of_type = |ty| segments.iter().find(|segment| segment.ty == ty);
        let loader = of_type(PT_INTERP).and_then(|segment| string(&file, segment.offset));
        let needed = of_type(PT_DYNAMIC).and_then(|dynamic| needed(&file, dynamic, &segments));
        Some(Self { loader, needed: needed.unwrap_or_default() })
    }
}

fn segments(file: &File, header: &[u8; 64]) -> Option<Vec<Segment>> {
    let table = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let size = u16::from_le_bytes(header[54..56].try_into().ok()?);
    let count = u16::from_le_bytes(header[56..58].try_into().ok()?);
    (0..count)
        .map(|row| {
            let mut bytes = [0; 40];
            let at = table.checked_add(u64::from(row) * u64::from(size))?;
            file.read_exact_at(&mut bytes, at).ok()?;
            let word = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
            let ty = u32::from_le_bytes(bytes[..4].try_into().ok()?);
            Some(Segment { ty, offset: word(8)?, address: word(16)?, size: word(32)? })
        })
        .collect()
}

fn needed(file: &File, dynamic: &Segment, segments: &[Segment]) -> Option<Vec<String>> {
    let mut bytes = vec![0; usize::try_from(dynamic.size.min(SECTION_MAX)).ok()?];
    file.read_exact_at(&mut bytes, dynamic.offset).ok()?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let entries: Vec<_> =
        bytes.chunks_exact(16).map(|entry| (word(&entry[..8]), word(&entry[8..]))).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let load = segments.iter().find(|segment| {
        let end = segment.address.saturating_add(segment.size);
        segment.ty == PT_LOAD && (segment.address..end).contains(&strings)
    })?;
    let table = load.offset.checked_add(strings - load.address)?;
    let names = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    Some(names.filter_map(|(_, at)| string(file, table.checked_add(*at)?)).collect())
}

/// The text at `offset`, up to a zero.
fn string(file: &File, offset: u64) -> Option<String> {
    let mut bytes = [0; NAME_MAX];
    let read = file.read_at(&mut bytes, offset).ok()?;
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_programs_have_a_loader_and_need_the_c_library() {
        let sh = Elf::read(Path::new("/bin/sh")).expect("an ELF file");
        assert!(sh.loader.is_some_and(|loader| loader.contains("/ld")));
        assert!(sh.needed.iter().any(|name| name.starts_with("libc.so")), "{:?}", sh.needed);
        assert_eq!(Elf::read(Path::new("/etc/passwd")), None);
    }
}
