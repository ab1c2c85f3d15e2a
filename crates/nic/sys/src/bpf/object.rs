//! Objects by name or number: pins in a bpf file system, ids, descriptions.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{Attr, Command, call, call_fd};

#[repr(C)]
struct PathAttr {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct IdAttr {
    id: u32,
    next_id: u32,
    flags: u32,
}

#[repr(C)]
struct InfoAttr {
    fd: u32,
    len: u32,
    info: u64,
}

// SAFETY: `path` is a terminated string that outlives the call.
unsafe impl Attr for PathAttr {}
// SAFETY: no pointers.
unsafe impl Attr for IdAttr {}
// SAFETY: `info` points to a structure of `len` bytes that outlives the call.
unsafe impl Attr for InfoAttr {}

/// A structure that BPF_OBJ_GET_INFO_BY_FD fills.
///
/// # Safety
/// Plain data of the kernel's layout, for which any bytes are valid, without pointers the kernel would
/// follow.
pub(super) unsafe trait Info: Default {}

/// Start of `struct bpf_map_info`.
#[derive(Default)]
#[repr(C)]
pub(super) struct MapInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) key_len: u32,
    pub(super) value_len: u32,
    pub(super) max_entries: u32,
    pub(super) flags: u32,
    pub(super) name: [u8; 16],
}

// SAFETY: integers only.
unsafe impl Info for MapInfo {}

/// Start of `struct bpf_prog_info`. With zero pointers and counts in it, the kernel writes nothing
/// elsewhere.
#[derive(Default)]
#[repr(C)]
pub(super) struct ProgramRaw {
    pub(super) kind: u32,
    pub(super) id: u32,
    pub(super) tag: [u8; 8],
    pub(super) jited_len: u32,
    pub(super) code_len: u32,
    pub(super) jited: u64,
    pub(super) code: u64,
    pub(super) load_time_ns: u64,
    pub(super) uid: u32,
    pub(super) map_count: u32,
    pub(super) map_ids: u64,
    pub(super) name: [u8; 16],
    pub(super) ifindex: u32,
    pub(super) flags: u32,
    pub(super) netns_dev: u64,
    pub(super) netns_ino: u64,
    /// Counts and pointers of symbols and lengths.
    pub(super) symbols: [u64; 3],
    pub(super) btf_id: u32,
    pub(super) func_info_len: u32,
    pub(super) func_info: u64,
    pub(super) func_info_count: u32,
    pub(super) line_count: u32,
    pub(super) lines: u64,
    pub(super) jited_lines: u64,
    pub(super) jited_line_count: u32,
    pub(super) line_len: u32,
    /// Tags.
    pub(super) between: [u64; 2],
    pub(super) run_time_ns: u64,
    pub(super) run_count: u64,
}

// SAFETY: plain integers; the pointers among them are zero except in `map_ids_of` and `Program::map_lines`.
unsafe impl Info for ProgramRaw {}

const _: () = assert!(mem::offset_of!(ProgramRaw, run_time_ns) == 192);

/// Returns the ids of the maps that the program behind `fd` uses.
pub(super) fn map_ids_of(fd: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let count: ProgramRaw = info(fd)?;
    let mut ids = vec![0u32; count.map_count as usize];
    // A program's maps do not change. The vector outlives the call, and its length is in `map_count`.
    let mut raw = ProgramRaw {
        map_count: ids.len() as u32,
        map_ids: if ids.is_empty() { 0 } else { ids.as_mut_ptr() as u64 },
        ..ProgramRaw::default()
    };
    info_into(fd, &mut raw)?;
    Ok(ids)
}

/// Returns what the kernel reports about the object behind `fd`; a short structure gets the start.
pub(super) fn info<I: Info>(fd: BorrowedFd<'_>) -> io::Result<I> {
    let mut info = I::default();
    info_into(fd, &mut info)?;
    Ok(info)
}

pub(super) fn info_into<I: Info>(fd: BorrowedFd<'_>, info: &mut I) -> io::Result<()> {
    let mut attr = InfoAttr {
        fd: fd.as_raw_fd() as u32,
        len: mem::size_of::<I>() as u32,
        info: std::ptr::from_mut(info) as u64,
    };
    call(Command::ObjInfo, &mut attr).map(drop)
}

/// Pins an object to a name in a bpf file system, which keeps it alive without a process.
///
/// # Errors
/// `EEXIST`; `EPERM` or `EINVAL` if the path is not in a bpf file system; `ENOENT` if its directory does
/// not exist.
pub fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = PathAttr { path: path.as_ptr() as u64, fd: fd.as_raw_fd() as u32, flags: 0 };
    call(Command::ObjPin, &mut attr).map(drop)
}

/// Opens the object of that name.
///
/// # Errors
/// `ENOENT`, `EACCES`, `EINVAL` if the file is no pin.
pub fn get_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    call_fd(Command::ObjGet, &mut PathAttr { path: path.as_ptr() as u64, fd: 0, flags: 0 })
}

/// Returns the ids of all loaded programs.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn program_ids() -> io::Result<Vec<u32>> {
    ids(Command::ProgNextId)
}

/// Returns the ids of all links.
pub(super) fn link_ids() -> io::Result<Vec<u32>> {
    ids(Command::LinkNextId)
}

fn ids(next: Command) -> io::Result<Vec<u32>> {
    let mut ids = Vec::new();
    let mut attr = IdAttr { id: 0, next_id: 0, flags: 0 };
    loop {
        match call(next, &mut attr) {
            Ok(_) => ids.push(attr.next_id),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
            Err(e) => return Err(e),
        }
        attr.id = attr.next_id;
    }
}

pub(super) fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(Command::ProgFdById, id)
}

pub(super) fn map_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(Command::MapFdById, id)
}

pub(super) fn link_by_id(id: u32) -> io::Result<OwnedFd> {
    by_id(Command::LinkFdById, id)
}

pub(super) fn by_id(command: Command, id: u32) -> io::Result<OwnedFd> {
    call_fd(command, &mut IdAttr { id, next_id: 0, flags: 0 })
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
