//! Memory that processes share by passing a descriptor (memfd_create(2)).

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

/// An empty file in memory, gone with its last descriptor. `name` is for people who look into /proc.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn memory_file(name: &CStr) -> io::Result<File> {
    // SAFETY: `name` is a string that ends with a zero byte.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: `fd` is new and nobody else owns it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
