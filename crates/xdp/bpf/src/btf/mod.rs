//! BPF type information (BTF). It contains what the kernel, libxdp and bpftool need to accept an assembled
//! program: the types of its functions and of their argument `struct xdp_md`, and a record that ties each
//! function to its first instruction. See `Documentation/bpf/btf.rst` of the kernel.

#[cfg(feature = "object")]
mod extension;
#[cfg_attr(not(feature = "object"), allow(dead_code, reason = "object files need all of it"))]
pub(crate) mod reader;
mod types;
mod writer;

#[cfg(feature = "object")]
pub(crate) use extension::extended;
pub(crate) use reader::function_named;
pub use types::{Leaf, MapTypes, Typed, Types};
#[cfg(feature = "object")]
pub(crate) use writer::blob;
pub(crate) use writer::{FunctionName, describe};

/// Type information (BTF) of one program.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Btf {
    /// The BTF blob, as `BPF_BTF_LOAD` takes it.
    pub blob: Vec<u8>,
    /// One record per function, sorted by `slot`. The first is at slot 0.
    pub func_info: Vec<FuncInfo>,
    /// Source lines (`struct bpf_line_info`, 16 bytes each); empty if the program has no source.
    pub line_info: Vec<u8>,
}

/// Function record (`struct bpf_func_info`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FuncInfo {
    /// First slot of the function.
    pub slot: u32,
    /// Id of the function's type in the blob.
    pub type_id: u32,
}

impl Btf {
    /// Length of a function record in bytes (`func_info_rec_size`).
    pub const FUNC_INFO_LEN: u32 = 8;
    /// Length of a line record in bytes (`line_info_rec_size`).
    pub const LINE_INFO_LEN: u32 = 16;

    /// Returns the function records as `BPF_PROG_LOAD` takes them.
    #[must_use]
    pub fn func_info_bytes(&self) -> Vec<u8> {
        self.func_info
            .iter()
            .flat_map(|info| [info.slot.to_le_bytes(), info.type_id.to_le_bytes()])
            .flatten()
            .collect()
    }
}
