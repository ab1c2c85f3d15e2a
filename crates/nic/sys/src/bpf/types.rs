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

/// `struct bpf_line_info`: slot, file, text, line and column.
type LineInfo = [u32; 4];
/// Opcode of a load of 64 bits, and `BPF_PSEUDO_MAP_FD` in the upper half of the byte behind it. For user
/// space the kernel puts the id of the map there.
const LOAD_IMM64: u8 = 0x18;
const OF_MAP: u8 = 1;

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

    /// Returns where the code loads the address of a map: the id of the map, the place of the source line
    /// in the strings of its types, and the column in it. Nothing for a program without source lines.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN.
    pub fn map_lines(&self) -> io::Result<Vec<(u32, u32, u32)>> {
        let size: ProgramRaw = info(self.as_fd())?;
        let mut code = vec![[0_u8; 8]; size.code_len as usize / 8];
        let mut lines: Vec<LineInfo> = vec![[0; 4]; size.line_count as usize];
        // The vectors outlive the call, and their lengths are beside them.
        let mut raw = ProgramRaw {
            code_len: size.code_len / 8 * 8,
            code: super::pointer_mut(&mut code),
            line_count: size.line_count,
            lines: super::pointer_mut(&mut lines),
            line_len: size_of::<LineInfo>() as u32,
            ..ProgramRaw::default()
        };
        info_into(self.as_fd(), &mut raw)?;
        let loads = (0..).zip(&code).filter(|(_, slot)| slot[0] == LOAD_IMM64 && slot[1] >> 4 == OF_MAP);
        let found = loads.filter_map(|(at, [.., a, b, c, d])| {
            let before = lines.partition_point(|line| line[0] <= at);
            let [_, _, text, place] = *lines.get(before.checked_sub(1)?)?;
            Some((u32::from_ne_bytes([*a, *b, *c, *d]), text, place & 0x3ff))
        });
        Ok(found.collect())
    }
}
