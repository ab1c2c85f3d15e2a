//! Sections of an object file that hold XDP programs.
//!
//! `aya-obj` rejects a whole file if it does not know the name of a program section. [`prepare`] hides the
//! sections of other program types from it, and renames the XDP sections with names that it does not know.

use std::collections::{BTreeMap, HashMap};

use object::elf::{self, SectionHeader64};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, U32, U64, pod};

use super::types::word;
use crate::program::ProgramKind;

/// Longest name of a program section, in bytes. Each renamed section needs a copy of its name.
const NAME_MAX: usize = 255;
/// A prefix that `aya-obj` accepts in front of any name.
const PREFIX: &str = "socket/";
/// Length of the headers of sections `.BTF` and `.BTF.ext` that compilers write.
const BTF_HEADER_LEN: usize = 24;

/// Place where a program runs, and whether it supports packets of several fragments.
pub(super) type Place = (ProgramKind, bool);

/// An object file that `aya-obj` accepts.
pub(super) struct Prepared {
    pub(super) file: Vec<u8>,
    /// The sections with XDP programs, by number.
    pub(super) places: BTreeMap<usize, Place>,
}

/// Returns where the programs of a section run; `None` if the name is not one of XDP. Names are those of
/// libbpf (`xdp`, `xdp.frags`, `xdp/devmap`, `xdp.frags/cpumap`) and the older ones with any ending
/// (`xdp/NAME`, `xdp_NAME`, `xdp_devmap/NAME`).
fn place_of(name: &str) -> Option<Place> {
    let (rest, frags) = match name.strip_prefix("xdp.frags") {
        Some(rest) => (rest, true),
        None => (name.strip_prefix("xdp")?, false),
    };
    let ending = match rest.strip_prefix(if frags { &['/'][..] } else { &['/', '_'] }) {
        Some(ending) => ending,
        None => return rest.is_empty().then_some((ProgramKind::Xdp, frags)),
    };
    let kind = match ending.split('/').next() {
        Some("devmap") => ProgramKind::XdpDevmap,
        Some("cpumap") => ProgramKind::XdpCpumap,
        _ => ProgramKind::Xdp,
    };
    Some((kind, frags))
}

/// Whether `aya-obj` knows the name.
fn is_known(name: &str) -> bool {
    let mut parts = name.split('/');
    matches!(parts.next(), Some("xdp" | "xdp.frags"))
        && matches!(parts.next(), None | Some("cpumap" | "devmap"))
}

/// Hides and renames the sections that `aya-obj` does not know. It ignores sections that are not marked as
/// code, so this function clears the mark of other program types.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn prepare(file: &[u8]) -> Result<Prepared, String> {
    let wrong = |error: object::read::Error| error.to_string();
    let header = elf::FileHeader64::<Endianness>::parse(file).map_err(wrong)?;
    let endian = header.endian().map_err(wrong)?;
    let sections = header.sections(endian, file).map_err(wrong)?;
    let mut out = file.to_vec();
    let mut headers: Vec<SectionHeader64<Endianness>> = sections.iter().copied().collect();
    let (mut places, mut renamed, mut unknown) = (BTreeMap::new(), HashMap::new(), Vec::new());
    for (index, section) in sections.iter().enumerate() {
        let name = sections.section_name(endian, section).map_err(wrong)?;
        let flags = section.sh_flags(endian);
        if flags & u64::from(elf::SHF_EXECINSTR) == 0 || name.starts_with(b".text") {
            continue;
        }
        let text = std::str::from_utf8(name).unwrap_or_default();
        if let Some(place) = place_of(text) {
            places.insert(index, place);
            if text.len() > NAME_MAX {
                return Err(format!("the name of section {index} is longer than {NAME_MAX} bytes"));
            }
            if !is_known(text) {
                renamed.insert(text.to_owned(), format!("{PREFIX}{text}"));
                unknown.push((index, text.to_owned()));
            }
        } else if !name.starts_with(b"xdp") {
            headers[index].sh_flags = U64::new(endian, flags & !u64::from(elf::SHF_EXECINSTR));
        }
    }
    if !renamed.is_empty() {
        let names = header.shstrndx(endian, file).map_err(wrong)? as usize;
        let number = |name| sections.section_by_name(endian, name).map(|(index, _)| index.0);
        let data = |index: usize| sections.iter().nth(index)?.data(endian, file).ok();
        let old = data(names).ok_or("it has no section names")?;
        let (strings, at) = with_strings(old, &renamed);
        for (index, name) in unknown {
            headers[index].sh_name = U32::new(endian, at[&name]);
        }
        append(&mut out, &mut headers[names], endian, &strings);
        if let (Some(types), Some(ext)) = (number(b".BTF"), number(b".BTF.ext")) {
            let read =
                data(types).zip(data(ext)).and_then(|(types, ext)| rename_in_types(types, ext, &renamed));
            let (new_types, new_ext) = read.ok_or("its type information is malformed")?;
            append(&mut out, &mut headers[types], endian, &new_types);
            append(&mut out, &mut headers[ext], endian, &new_ext);
        }
    }
    let at = header.e_shoff(endian) as usize;
    out[at..][..size_of_val(&headers[..])].copy_from_slice(pod::bytes_of_slice(&headers));
    Ok(Prepared { file: out, places })
}

/// Returns the string table with the new names behind the old ones, and their offsets by old name.
fn with_strings(old: &[u8], renamed: &HashMap<String, String>) -> (Vec<u8>, HashMap<String, u32>) {
    let (mut strings, mut at) = (old.to_vec(), HashMap::new());
    strings.push(0);
    for (name, new) in renamed {
        at.insert(name.clone(), strings.len() as u32);
        strings.extend(new.as_bytes());
        strings.push(0);
    }
    (strings, at)
}

/// Appends new contents of a section to the file.
fn append(out: &mut Vec<u8>, header: &mut SectionHeader64<Endianness>, endian: Endianness, data: &[u8]) {
    out.resize(out.len().next_multiple_of(8), 0);
    header.sh_offset = U64::new(endian, out.len() as u64);
    header.sh_size = U64::new(endian, data.len() as u64);
    out.extend(data);
}

/// Returns `.BTF` and `.BTF.ext` with the new names; `None` if they are malformed.
fn rename_in_types(
    types: &[u8],
    ext: &[u8],
    renamed: &HashMap<String, String>,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let start = BTF_HEADER_LEN.checked_add(word(types, 16)? as usize)?;
    let len = word(types, 20)? as usize;
    let old = types.get(start..)?.get(..len)?;
    let (strings, at) = with_strings(old, renamed);
    let mut new_types = types[..start].to_vec();
    new_types[20..24].copy_from_slice(&(strings.len() as u32).to_le_bytes());
    new_types.extend(strings);

    let mut new_ext = ext.to_vec();
    let header_len = word(ext, 4)? as usize;
    // Records of functions, of lines, and (in newer files) of fields that adapt to the kernel.
    for table in (8..header_len.min(32)).step_by(8) {
        let (offset, len) = (word(ext, table)? as usize, word(ext, table + 4)? as usize);
        if len == 0 {
            continue;
        }
        let mut here = header_len.checked_add(offset)?;
        let end = here.checked_add(len)?;
        let record = word(ext, here)? as usize;
        here += 4;
        while here < end {
            let name = old.get(word(ext, here)? as usize..)?.split(|&byte| byte == 0).next()?;
            if let Some(new) = std::str::from_utf8(name).ok().and_then(|name| at.get(name)) {
                new_ext[here..here + 4].copy_from_slice(&new.to_le_bytes());
            }
            let records = (word(ext, here + 4)? as usize).checked_mul(record)?;
            here = here.checked_add(8)?.checked_add(records)?;
        }
    }
    Some((new_types, new_ext))
}

#[cfg(test)]
mod tests {
    use super::super::{programs_of, write};
    use super::*;
    use crate::{Recipe, XdpAction};

    #[test]
    fn programs_are_found_in_every_section_that_is_named_for_xdp() {
        let recipe = Recipe { counters: true, ..Recipe::verdict(XdpAction::Drop) };
        let program = recipe.program("drop", ProgramKind::Xdp).unwrap();
        for (section, kind, frags) in [
            ("xdp", ProgramKind::Xdp, false),
            ("xdp.frags", ProgramKind::Xdp, true),
            ("xdp/drop", ProgramKind::Xdp, false),
            ("xdp_drop", ProgramKind::Xdp, false),
            ("xdp_drop/first", ProgramKind::Xdp, false),
            ("xdp.frags/drop", ProgramKind::Xdp, true),
            ("xdp/devmap", ProgramKind::XdpDevmap, false),
            ("xdp_devmap/drop", ProgramKind::XdpDevmap, false),
            ("xdp.frags/cpumap", ProgramKind::XdpCpumap, true),
            ("xdp_cpumap/drop", ProgramKind::XdpCpumap, false),
        ] {
            let file = write::write_section(&program, section).unwrap();
            let programs = programs_of(&file, None).unwrap_or_else(|error| panic!("{section}: {error}"));
            let [back] = &programs[..] else { panic!("{section}") };
            assert_eq!((&back.name[..], back.kind, back.frags), ("drop", kind, frags), "{section}");
            assert_eq!((&back.slots, &back.maps), (&program.slots, &program.maps), "{section}");
            let types = back.btf.as_ref().unwrap_or_else(|| panic!("{section}: no type information"));
            assert_eq!(types.name_of(types.func_info[0].type_id).as_deref(), Some("drop"), "{section}");
        }
    }

    #[test]
    fn a_damaged_file_with_a_renamed_section_is_refused_without_a_panic() {
        let program = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
        let file = write::write_section(&program, "xdp_pass").unwrap();
        assert!(prepare(&file).is_ok());
        for at in 0..file.len() {
            for value in [0, 0x7f, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = value;
                let _outcome = programs_of(&damaged, None);
            }
            let _outcome = programs_of(&file[..at], None);
        }
        let long = write::write_section(&program, &format!("xdp_{}", "x".repeat(300))).unwrap();
        let error = programs_of(&long, None).unwrap_err().to_string();
        assert!(error.contains("longer than 255 bytes"), "{error}");
    }

    #[test]
    fn a_section_that_only_begins_like_xdp_is_refused_by_name() {
        let program = Recipe::verdict(XdpAction::Pass).program("pass", ProgramKind::Xdp).unwrap();
        let file = write::write_section(&program, "xdpx").unwrap();
        let error = programs_of(&file, None).unwrap_err().to_string();
        assert!(error.contains("xdpx"), "{error}");
    }
}
