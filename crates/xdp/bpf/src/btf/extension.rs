//! Type information that libbpf expects in an object file: maps as variables of section `.maps`, and the
//! section `.BTF.ext`, which tells where functions start.
//!
//! Each property of a map is a member of the variable's structure. The member points to an array; its length
//! is the value of the property (`__uint()` of libbpf's bpf_helpers.h).

use super::reader::{HEADER_LEN, MAGIC, VERSION};
use super::writer::Writer;
use super::{Btf, FuncInfo};
use crate::insn::Slot;
use crate::map::MapDef;

/// Type information of an object file.
pub(crate) struct Extended {
    /// Content of section `.BTF`.
    pub(crate) types: Vec<u8>,
    /// Content of section `.BTF.ext`.
    pub(crate) ext: Vec<u8>,
    /// Length of each map's variable in bytes, in order and without gaps.
    pub(crate) map_lens: Vec<u32>,
}

/// Length of a pointer in bytes.
const MEMBER_LEN: u32 = 8;

/// Adds the maps, and places the functions in section `section`. Returns `None` if the blob is malformed.
pub(crate) fn extended(btf: &Btf, maps: &[MapDef], section: &str) -> Option<Extended> {
    let mut writer = Writer::resume(btf)?;
    let int = writer.int("int", 4, Writer::SIGNED);
    let (mut variables, mut map_lens, mut at) = (Vec::new(), Vec::new(), 0);
    for map in maps {
        let properties = [
            ("type", map.kind.number()),
            ("key_size", map.key_size),
            ("value_size", map.value_size),
            ("max_entries", map.max_entries),
            ("map_flags", map.flags),
        ];
        let given: Vec<_> = properties.into_iter().filter(|(_, value)| *value != 0).collect();
        let members: Vec<_> = given
            .iter()
            .map(|(name, value)| {
                let array = writer.array(int, *value);
                (*name, writer.pointer(array))
            })
            .collect();
        let definition = writer.structure(&members, MEMBER_LEN);
        let len = members.len() as u32 * MEMBER_LEN;
        variables.push([writer.variable(&map.name, definition), at, len]);
        map_lens.push(len);
        at += len;
    }
    if !maps.is_empty() {
        writer.section(".maps", at, &variables);
    }
    let section = writer.string(section);
    Some(Extended { ext: ext(section, &btf.func_info), types: writer.blob(), map_lens })
}

/// Returns `.BTF.ext` with one section of function records and no source lines.
fn ext(section: u32, functions: &[FuncInfo]) -> Vec<u8> {
    let mut records = vec![Btf::FUNC_INFO_LEN, section, functions.len() as u32];
    records.extend(functions.iter().flat_map(|info| [info.slot * Slot::LEN as u32, info.type_id]));
    let len = records.len() as u32 * 4;
    let mut ext = Vec::new();
    ext.extend(MAGIC.to_le_bytes());
    ext.extend([VERSION, 0]);
    // Length of the header; then offset and length of the function records and of the source lines.
    for word in [HEADER_LEN, 0, len, len, 0].into_iter().chain(records) {
        ext.extend(word.to_le_bytes());
    }
    ext
}
