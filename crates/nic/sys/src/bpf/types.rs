//! Type information (BTF) of loaded programs.

use std::io;
use std::os::fd::AsFd;

use super::object::{self, Info, ProgramRaw, info, info_into};
use super::{Command, Program};

/// `struct bpf_btf_info`, up to the id.
#[derive(Default)]
#[repr(C)]
struct BtfInfo {
    blob: u64,
    len: u32,
    id: u32,
}

// SAFETY: plain integers; `blob` is zero except in `Program::types`.
unsafe impl Info for BtfInfo {}

/// Largest blob that is read: the kernel's own types, 6 MiB, fit.
const LEN_MAX: usize = 64 << 20;

impl Program {
    /// Returns the type information it was loaded with, as a BTF blob; `None` if there is none.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn types(&self) -> io::Result<Option<Vec<u8>>> {
        let raw: ProgramRaw = info(self.as_fd())?;
        if raw.btf_id == 0 {
            return Ok(None);
        }
        let btf = object::by_id(Command::BtfFdById, raw.btf_id)?;
        let size: BtfInfo = info(btf.as_fd())?;
        let mut blob = vec![0; (size.len as usize).min(LEN_MAX)];
        // The vector outlives the call, and its length is in `len`.
        let pointer = super::pointer_mut(&mut blob);
        let mut about = BtfInfo { blob: pointer, len: blob.len() as u32, ..BtfInfo::default() };
        info_into(btf.as_fd(), &mut about)?;
        Ok(Some(blob))
    }
}
