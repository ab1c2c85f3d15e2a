//! Sections of an object file that hold XDP programs.

use object::elf;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, U64, pod};

/// Returns the object file without programs of types other than XDP. `aya-obj` rejects a whole file if it
/// does not know the name of a program section, and it does not know all names (`tc`, `tcx/ingress`, ...). It
/// ignores sections that are not marked as code, so this function clears that mark.
pub(super) fn without_other_programs(file: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = file.to_vec();
    let wrong = |error: object::read::Error| error.to_string();
    let header = elf::FileHeader64::<Endianness>::parse(file).map_err(wrong)?;
    let endian = header.endian().map_err(wrong)?;
    let sections = header.sections(endian, file).map_err(wrong)?;
    let headers = header.e_shoff(endian) as usize;
    for (index, section) in sections.iter().enumerate() {
        let name = sections.section_name(endian, section).map_err(wrong)?;
        let flags = section.sh_flags(endian);
        if flags & u64::from(elf::SHF_EXECINSTR) == 0 || is_ours(name) {
            continue;
        }
        let mut header = *section;
        header.sh_flags = U64::new(endian, flags & !u64::from(elf::SHF_EXECINSTR));
        let at = headers + index * size_of_val(section);
        out[at..][..size_of_val(section)].copy_from_slice(pod::bytes_of(&header));
    }
    Ok(out)
}

/// Returns whether the section holds XDP programs (also misnamed ones) or functions that they call.
fn is_ours(name: &[u8]) -> bool {
    name.starts_with(b"xdp") || name.starts_with(b".text")
}
