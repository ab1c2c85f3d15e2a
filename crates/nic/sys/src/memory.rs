//! Memory that processes share by passing a descriptor (memfd_create(2)).

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{WriteSignals, check};

/// Creates an empty file in memory, freed with its last descriptor. `name` is shown in /proc.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    create(name, 0)
}

/// Creates such a file with `len` bytes, sealed against resizing: a mapping of it stays valid.
///
/// # Errors
/// `EMFILE`, `ENOMEM`; `EFBIG` if the limit of file sizes (ulimit -f) forbids it.
pub(super) fn sealed_memory_file(name: &CStr, len: u64) -> io::Result<File> {
    let file = create(name, libc::MFD_ALLOW_SEALING)?;
    if len > 0 {
        let _signals = WriteSignals::block();
        // Allocates all memory now: a page that cannot be had later would kill the process.
        // SAFETY: fallocate takes no pointer.
        check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) })?;
    }
    let seals = LENGTH_SEALS | libc::F_SEAL_SEAL;
    // SAFETY: fcntl takes a number here.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

/// Whether the file is sealed against resizing.
pub(super) fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: fcntl takes nothing here.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & LENGTH_SEALS == LENGTH_SEALS
}

const LENGTH_SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

fn create(name: &CStr, flags: libc::c_uint) -> io::Result<File> {
    // SAFETY: `name` is a string that ends with a zero byte.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | flags) })?;
    // SAFETY: `fd` is new and has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
