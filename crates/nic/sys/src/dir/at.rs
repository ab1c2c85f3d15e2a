//! The system calls on names, each relative to an open directory. The crate makes no other calls with names.
//!
//! In tests an adversary runs before each of them (`testing::between_calls`).

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use libc::{c_int, mode_t};

use crate::{call, check};

/// Longest target of a symbolic link (PATH_MAX of the kernel).
const TARGET_MAX: usize = 4096;

/// A name as the kernel takes it. Only `.`, `..` and names without a slash: a path would be looked up by the
/// kernel in one step, unchecked.
fn name(name: &OsStr) -> io::Result<CString> {
    #[cfg(any(test, feature = "testing"))]
    super::adversary::act();
    if name.is_empty() || name.as_bytes().contains(&b'/') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(CString::new(name.as_bytes())?)
}

/// The root directory.
pub(super) fn root() -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a string that ends with a zero byte.
    owned(unsafe { call::openat(libc::AT_FDCWD, c"/".as_ptr(), flags, 0) })
}

/// A directory by a path as the user gave it: the kernel follows the links on the way. A relative path begins
/// at `base`, or at the current directory.
pub(super) fn named_dir(base: Option<BorrowedFd<'_>>, path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let base = base.map_or(libc::AT_FDCWD, |base| base.as_raw_fd());
    // SAFETY: a string that ends with a zero byte.
    owned(unsafe { call::openat(base, path.as_ptr(), flags, 0) })
}

pub(super) fn open(dir: BorrowedFd<'_>, of: &OsStr, flags: c_int, mode: mode_t) -> io::Result<File> {
    let of = name(of)?;
    // SAFETY: `of` ends with a zero byte and outlives the call.
    owned(unsafe { call::openat(dir.as_raw_fd(), of.as_ptr(), flags | libc::O_CLOEXEC, mode) })
}

fn owned(fd: c_int) -> io::Result<File> {
    let fd = check(fd)?;
    // SAFETY: `fd` is new and has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

pub(super) fn make_dir(dir: BorrowedFd<'_>, of: &OsStr, mode: mode_t) -> io::Result<()> {
    let of = name(of)?;
    // SAFETY: `of` ends with a zero byte and outlives the call.
    check(unsafe { libc::mkdirat(dir.as_raw_fd(), of.as_ptr(), mode) }).map(drop)
}

/// With mode 0700, also if the umask takes some of it away.
pub(super) fn make_private_dir(dir: BorrowedFd<'_>, of: &OsStr) -> io::Result<()> {
    make_dir(dir, of, 0o700)?;
    let of = name(of)?;
    // SAFETY: `of` ends with a zero byte and outlives the call.
    check(unsafe { libc::fchmodat(dir.as_raw_fd(), of.as_ptr(), 0o700, 0) }).map(drop)
}

/// Fails if this process may not make files in the directory, or its file system is read-only.
pub(super) fn may_write(dir: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: a string that ends with a zero byte.
    check(unsafe { libc::faccessat(dir.as_raw_fd(), c".".as_ptr(), libc::W_OK, libc::AT_EACCESS) }).map(drop)
}

pub(super) fn rename(dir: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
    let (from, to, dir) = (name(from)?, name(to)?, dir.as_raw_fd());
    // SAFETY: both names end with a zero byte and outlive the call.
    check(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) }).map(drop)
}

pub(super) fn remove(dir: BorrowedFd<'_>, of: &OsStr, is_dir: bool) -> io::Result<()> {
    let of = name(of)?;
    let flags = if is_dir { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: `of` ends with a zero byte and outlives the call.
    check(unsafe { libc::unlinkat(dir.as_raw_fd(), of.as_ptr(), flags) }).map(drop)
}

pub(super) fn symlink(dir: BorrowedFd<'_>, target: &OsStr, of: &OsStr) -> io::Result<()> {
    let (of, target) = (name(of)?, CString::new(target.as_bytes())?);
    // SAFETY: both strings end with a zero byte and outlive the call.
    check(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), of.as_ptr()) }).map(drop)
}

/// The target of the link `of`, or of `link` itself, opened with O_PATH, if `of` is empty.
pub(super) fn read_link(link: BorrowedFd<'_>, of: &OsStr) -> io::Result<OsString> {
    let of = if of.is_empty() { CString::default() } else { name(of)? };
    let mut target = vec![0_u8; TARGET_MAX];
    // SAFETY: `of` ends with a zero byte; the kernel writes at most the length of the buffer.
    let len =
        unsafe { libc::readlinkat(link.as_raw_fd(), of.as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    target.truncate(usize::try_from(len).map_err(|_| io::Error::last_os_error())?);
    Ok(OsString::from_vec(target))
}

pub(super) fn set_mode(file: &File, mode: mode_t) -> io::Result<()> {
    // SAFETY: fchmod takes no pointer.
    check(unsafe { libc::fchmod(file.as_raw_fd(), mode) }).map(drop)
}

/// Whether the file system of an open file is served by a process (fuse(4)), which names any owner.
pub(super) fn is_fuse(file: &File) -> io::Result<bool> {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel writes one statfs.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()) })?;
    // SAFETY: fstatfs succeeded.
    #[allow(clippy::useless_conversion, reason = "the type differs between C libraries")]
    Ok(i64::from(unsafe { system.assume_init() }.f_type) == FUSE_SUPER_MAGIC)
}

/// The names in a directory without `.` and `..`.
pub(super) fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    // A descriptor of its own: the position belongs to it.
    let own = open(dir, OsStr::new("."), libc::O_RDONLY | libc::O_DIRECTORY, 0)?.into_raw_fd();
    // SAFETY: `own` is a directory's and has no other owner from here on.
    let stream = unsafe { libc::fdopendir(own) };
    if stream.is_null() {
        let error = io::Error::last_os_error();
        // SAFETY: fdopendir did not take it.
        drop(unsafe { OwnedFd::from_raw_fd(own) });
        return Err(error);
    }
    let mut names = Vec::new();
    loop {
        // SAFETY: the stream is open, and no other thread has it.
        let entry = unsafe { libc::readdir64(stream) };
        if entry.is_null() {
            break;
        }
        // SAFETY: the entry is valid until the next call, and its name ends with a zero byte.
        let name = unsafe { std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()) }.to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    // SAFETY: opened above and not used after this.
    unsafe { libc::closedir(stream) };
    Ok(names)
}
