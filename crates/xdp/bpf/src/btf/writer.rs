//! Builds a BTF blob: a header, type records and strings.

use std::collections::HashMap;

use super::reader::{HEADER_LEN, MAGIC, VERSION, kind};
use super::{Btf, FuncInfo};
use crate::xdp::XdpMd;

// `linux/btf.h`.
const INT_SIGNED: u32 = 1 << 24;
const LINKAGE_STATIC: u32 = 0;
const LINKAGE_GLOBAL: u32 = 1;

/// A function to describe: its name, its first slot, and the number of arguments unless it is the main
/// function.
pub(crate) struct FunctionName<'a> {
    pub(crate) name: &'a str,
    pub(crate) slot: u32,
    pub(crate) args: u8,
}

/// Describes a program. Its first function takes `struct xdp_md *`, the others take 64-bit numbers.
pub(crate) fn describe(functions: &[FunctionName<'_>]) -> Btf {
    let mut writer = Writer::default();
    let int = writer.int("int", 4, INT_SIGNED);
    let u32_ = writer.int("unsigned int", 4, 0);
    let xdp_md = writer.xdp_md(u32_);
    let ctx = writer.record("", kind::PTR, 0, xdp_md, &[]);
    let mut u64_ = None;
    let mut func_info = Vec::new();
    for (index, function) in functions.iter().enumerate() {
        let (proto, linkage) = if index == 0 {
            (writer.proto(int, &[("ctx", ctx)]), LINKAGE_GLOBAL)
        } else {
            let u64_ = *u64_.get_or_insert_with(|| writer.int("unsigned long long", 8, 0));
            let args = ["a", "b", "c", "d", "e"].map(|name| (name, u64_));
            (writer.proto(u64_, &args[..usize::from(function.args).min(args.len())]), LINKAGE_STATIC)
        };
        let type_id = writer.record(function.name, kind::FUNC, linkage, proto, &[]);
        func_info.push(FuncInfo { slot: function.slot, type_id });
    }
    Btf { blob: writer.blob(), func_info, line_info: Vec::new() }
}

/// Builds a new blob or continues an existing one.
#[derive(Default)]
pub(super) struct Writer {
    types: Vec<u8>,
    /// Number of types so far. Id 0 is void.
    count: u32,
    strings: Vec<u8>,
    offsets: HashMap<String, u32>,
}

impl Writer {
    /// Appends `struct btf_type` and the words that follow it for this kind. Returns the id of the type.
    fn record(&mut self, name: &str, kind: u32, vlen: u32, size_or_type: u32, words: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, kind << 24 | vlen, size_or_type].iter().chain(words) {
            self.types.extend(word.to_le_bytes());
        }
        self.count += 1;
        self.count
    }

    pub(super) fn int(&mut self, name: &str, bytes: u32, encoding: u32) -> u32 {
        self.record(name, kind::INT, 0, bytes, &[encoding | (bytes * 8)])
    }

    fn xdp_md(&mut self, field: u32) -> u32 {
        let members: Vec<u32> = XdpMd::FIELDS
            .iter()
            .flat_map(|(member, name)| [self.string(name), field, *member as u32 * 8])
            .collect();
        self.record("xdp_md", kind::STRUCT, XdpMd::FIELDS.len() as u32, XdpMd::LEN as u32, &members)
    }

    fn proto(&mut self, returns: u32, args: &[(&str, u32)]) -> u32 {
        let params: Vec<u32> = args.iter().flat_map(|&(name, id)| [self.string(name), id]).collect();
        self.record("", kind::FUNC_PROTO, args.len() as u32, returns, &params)
    }

    /// Returns the offset of the string. The empty string is at offset 0.
    pub(super) fn string(&mut self, text: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
            self.offsets.insert(String::new(), 0);
        }
        if let Some(&offset) = self.offsets.get(text) {
            return offset;
        }
        let offset = self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        self.offsets.insert(text.to_owned(), offset);
        offset
    }

    pub(super) fn blob(self) -> Vec<u8> {
        blob(&self.types, &self.strings)
    }
}

/// Returns a blob of these type records and strings.
pub(crate) fn blob(types: &[u8], strings: &[u8]) -> Vec<u8> {
    let types_len = types.len() as u32;
    let mut blob = Vec::new();
    blob.extend(MAGIC.to_le_bytes());
    blob.extend([VERSION, 0]);
    for word in [HEADER_LEN, 0, types_len, types_len, strings.len() as u32] {
        blob.extend(word.to_le_bytes());
    }
    blob.extend(types);
    blob.extend(strings);
    blob
}

/// Types that only object files need.
#[cfg(feature = "object")]
impl Writer {
    pub(super) const SIGNED: u32 = INT_SIGNED;

    /// Continues after the last type of a blob. Returns `None` if the blob is malformed.
    pub(super) fn resume(btf: &Btf) -> Option<Writer> {
        let known = super::reader::Types::parse(&btf.blob)?;
        let (types, strings) = known.parts();
        // The empty name must be the string at offset 0. Duplicates of other strings are harmless.
        let offsets = HashMap::from([(String::new(), 0)]);
        let count = known.numbers().len() as u32;
        Some(Writer { types: types.to_vec(), count, strings: strings.to_vec(), offsets })
    }

    pub(super) fn array(&mut self, of: u32, len: u32) -> u32 {
        self.record("", kind::ARRAY, 0, 0, &[of, of, len])
    }

    pub(super) fn pointer(&mut self, to: u32) -> u32 {
        self.record("", kind::PTR, 0, to, &[])
    }

    /// Adds a structure without a name. All members have the length `member_len` in bytes.
    pub(super) fn structure(&mut self, members: &[(&str, u32)], member_len: u32) -> u32 {
        let words: Vec<u32> = (0..)
            .zip(members)
            .flat_map(|(index, &(name, id))| [self.string(name), id, index * member_len * 8])
            .collect();
        let count = members.len() as u32;
        self.record("", kind::STRUCT, count, count * member_len, &words)
    }

    pub(super) fn variable(&mut self, name: &str, of: u32) -> u32 {
        self.record(name, kind::VAR, 0, of, &[LINKAGE_GLOBAL])
    }

    /// Adds a section. Each variable is its id, its offset and its length.
    pub(super) fn section(&mut self, name: &str, len: u32, variables: &[[u32; 3]]) -> u32 {
        self.record(name, kind::DATASEC, variables.len() as u32, len, variables.as_flattened())
    }
}
