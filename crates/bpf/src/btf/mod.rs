//! Type information: the least that makes the kernel, libxdp and bpftool treat an assembled program as a C one.
//!
//! The blob describes the functions of the program and `struct xdp_md`, their argument; a function record ties each
//! to its first instruction. Read `Documentation/bpf/btf.rst` of the kernel first.

#[cfg(feature = "object")]
mod extension;
mod reader;
mod writer;

#[cfg(feature = "object")]
pub(crate) use extension::extended;
pub(crate) use writer::{FunctionName, describe};

/// Type information of one program.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Btf {
    /// What `BPF_BTF_LOAD` takes.
    pub blob: Vec<u8>,
    /// One record for each function, in order of `slot`, the first at 0.
    pub func_info: Vec<FuncInfo>,
    /// Source lines (`struct bpf_line_info`, 16 bytes each); empty for programs without source.
    pub line_info: Vec<u8>,
}

/// `struct bpf_func_info`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FuncInfo {
    /// First slot of the function.
    pub slot: u32,
    /// Its type in the blob.
    pub type_id: u32,
}

impl Btf {
    /// Bytes of a function record (`func_info_rec_size`).
    pub const FUNC_INFO_LEN: u32 = 8;
    /// Bytes of a line record (`line_info_rec_size`).
    pub const LINE_INFO_LEN: u32 = 16;

    /// The function records as `BPF_PROG_LOAD` takes them.
    #[must_use]
    pub fn func_info_bytes(&self) -> Vec<u8> {
        self.func_info
            .iter()
            .flat_map(|info| [info.slot.to_le_bytes(), info.type_id.to_le_bytes()])
            .flatten()
            .collect()
    }
}
