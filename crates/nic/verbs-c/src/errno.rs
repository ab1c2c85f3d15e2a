//! `errno`, and the ways in which C functions report failure.

use std::ffi::{CStr, c_char, c_int};
use std::panic::Location;
use std::{io, ptr};

use roxie::transport::VerbsError;
use roxie::transport::refusal::refuse;

use crate::refused;

/// Reads `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library returns the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library returns the address of the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Sets `errno`, and notes the refusal.
#[track_caller]
fn fail(errno: c_int) {
    refused::note(errno, Location::caller());
    set_errno(errno);
}

/// Sets `errno` and returns -1.
#[track_caller]
pub(crate) fn minus1(errno: c_int) -> c_int {
    fail(errno);
    -1
}

/// Sets `errno` and returns NULL.
#[track_caller]
pub(crate) fn null<T>(errno: c_int) -> *mut T {
    fail(errno);
    ptr::null_mut()
}

/// Sets `errno` and returns it. For functions that return 0 or an errno: their callers often print `errno`
/// instead.
#[track_caller]
pub(crate) fn code(errno: c_int) -> c_int {
    fail(errno);
    errno
}

/// Sets `errno` to `EBUSY` and returns it; `why` names what uses the object.
#[track_caller]
pub(crate) fn busy(why: &str) -> c_int {
    code(refuse(VerbsError::Busy, format_args!("{why}")).errno())
}

/// Returns 0, or sets `errno` and returns it.
#[track_caller]
pub(crate) fn status(result: Result<(), VerbsError>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => code(error.errno()),
    }
}

/// Returns the errno of an I/O error; `EIO` for an error without one.
pub(crate) fn of_io(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::NotFound => libc::ENODEV,
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::ResourceBusy => libc::EBUSY,
        io::ErrorKind::PermissionDenied => libc::EPERM,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::EIO,
    })
}

/// Stands in for every exported function that is not implemented: sets `errno` and returns the constant that
/// `symbols/` names.
pub(crate) unsafe extern "C" fn unsupported(name: *const c_char, errno: c_int, returns: isize) -> isize {
    // SAFETY: the trampolines pass the address of a string constant.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    refused::note_unsupported(&name);
    let _refused = refuse(VerbsError::NotSupported, format_args!("{name} is not implemented"));
    fail(errno);
    returns
}
