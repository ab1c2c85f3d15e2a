//! `errno`, and the ways in which C functions report failure. Each takes a [`Failure`]: no errno leaves
//! without the reason of the refusal, unless it is an answer.

use std::ffi::{CStr, c_char, c_int};
use std::panic::Location;
use std::{io, ptr};

use roxie::transport::refusal::{Os, Rule, Value};
use roxie::transport::{Errno, VerbsError, refuse};
use roxie::verbs::cause;

use crate::refused::{self, Function};

/// Why a function fails.
pub(crate) enum Failure {
    /// The call was refused, for this reason.
    Refused(VerbsError),
    /// The errno is the answer to the call: there is no event yet, a signal interrupted the wait.
    Answer(Answer),
}

/// An errno that answers a call.
pub(crate) struct Answer(Errno);

impl From<VerbsError> for Failure {
    fn from(refused: VerbsError) -> Self {
        Self::Refused(refused)
    }
}

impl Failure {
    /// Turns an I/O error into a failure. An error that was a refusal becomes that refusal again, and an
    /// errno that answers becomes the answer. `rule` makes a refusal of any other; its value is the system's
    /// error.
    #[cold]
    pub(crate) fn of_io(error: &io::Error, rule: Rule) -> Self {
        let number = of_io(error);
        match Errno::new(number) {
            _ if let Some(refused) = VerbsError::in_io(error) => Self::Refused(*refused),
            answer @ (Errno::EAGAIN | Errno::EINTR | Errno::EINPROGRESS) => Self::Answer(Answer(answer)),
            errno => Self::Refused(VerbsError::new(errno, rule, [Os(number).pack()])),
        }
    }

    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::Refused(refused) => refused.errno(),
            Self::Answer(Answer(errno)) => errno.number(),
        }
    }
}

/// The failure of an I/O error: `failed!(error, "object", "field"; "what failed")`.
macro_rules! failed {
    ($error:expr, $object:literal, $field:literal; $sentence:literal) => {
        $crate::errno::Failure::of_io(
            &$error,
            roxie::transport::rule!($object, $field; os as roxie::transport::refusal::Os;
                let what = $sentence; "{what}: {os}"),
        )
    };
}
pub(crate) use failed;

/// The refusal of an argument that is NULL. `roxie check` turns a pointer to a destroyed object into NULL.
macro_rules! no_argument {
    ($name:expr) => {{
        let null = 0_u64;
        roxie::transport::refuse!(EINVAL, "argument", $name; null;
            is "NULL, or an object that was destroyed")
    }};
}
pub(crate) use no_argument;

/// Unwraps arguments that may be NULL, or leaves the function with `return fail(refusal)`:
/// `given!(code; qp, attr)`. An argument with another name in C: `room as "attr"`.
macro_rules! given {
    ($fail:ident; $($name:ident $(as $c_name:literal)?),+) => {
        $(
            let Some($name) = $name else {
                return $fail($crate::errno::no_argument!($crate::errno::given!(@name $name $($c_name)?)));
            };
            let _ = &$name;
        )+
    };
    (@name $name:ident) => { stringify!($name) };
    (@name $name:ident $c_name:literal) => { $c_name };
}
pub(crate) use given;

/// Leaves the function with `return fail(refusal)` for bits that are not known.
macro_rules! known_bits {
    ($fail:ident; $errno:ident, $object:literal, $field:literal; $value:expr, $known:expr) => {{
        let (value, known) = ($value, $known);
        if value & !known != 0 {
            return $fail(roxie::transport::refuse!($errno, $object, $field; value, known;
                is "{value:#x}, the known bits are {known:#x}"));
        }
    }};
}
pub(crate) use known_bits;

/// Leaves the function with `return fail(refusal)` unless all needed bits are set.
macro_rules! needed_bits {
    ($fail:ident; $object:literal, $field:literal; $value:expr, $needed:expr) => {{
        let (value, needed) = ($value, $needed);
        if value & needed != needed {
            return $fail(roxie::transport::refuse!(EINVAL, $object, $field; value, needed;
                is "{value:#x}, the bits {needed:#x} are needed"));
        }
    }};
}
pub(crate) use needed_bits;

/// The refusal to destroy an object that others use; the sentence names them.
macro_rules! busy {
    ($object:literal; $sentence:literal) => {{
        let users = 1;
        roxie::transport::refuse!(EBUSY, $object, "users"; users; $sentence)
    }};
}
pub(crate) use busy;

/// The refusal of a call for which the C heap has no memory.
macro_rules! no_memory {
    ($field:literal) => {{
        let entries = 1;
        roxie::transport::refuse!(ENOMEM, "process", $field; entries; "the C library has no memory for it")
    }};
}
pub(crate) use no_memory;

/// Unwraps a result, or leaves the function with `return fail(error)`.
macro_rules! done {
    ($fail:ident; $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return $fail(error),
        }
    };
}
pub(crate) use done;

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

/// Sets `errno`, notes the refusal, and returns the errno.
#[track_caller]
fn fail(failure: &Failure) -> c_int {
    match failure {
        Failure::Refused(refused) => refused::note(refused, Function::At(Location::caller())),
        Failure::Answer(_) => refused::forget(),
    }
    set_errno(failure.errno());
    failure.errno()
}

/// Sets `errno` and returns -1.
#[track_caller]
pub(crate) fn minus1(failure: impl Into<Failure>) -> c_int {
    fail(&failure.into());
    -1
}

/// Sets `errno` and returns NULL.
#[track_caller]
pub(crate) fn null<T>(failure: impl Into<Failure>) -> *mut T {
    fail(&failure.into());
    ptr::null_mut()
}

/// Sets `errno` and returns it. For functions that return 0 or an errno: their callers often print `errno`
/// instead.
#[track_caller]
pub(crate) fn code(failure: impl Into<Failure>) -> c_int {
    fail(&failure.into())
}

/// Sets `errno` and returns its negative value.
#[track_caller]
pub(crate) fn minus_code(failure: impl Into<Failure>) -> c_int {
    -fail(&failure.into())
}

/// Returns 0, or sets `errno` and returns it.
#[track_caller]
pub(crate) fn status(result: Result<(), impl Into<Failure>>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(failure) => code(failure),
    }
}

/// Returns 0, or sets `errno` and returns -1.
#[track_caller]
pub(crate) fn status_minus1(result: Result<(), impl Into<Failure>>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(failure) => minus1(failure),
    }
}

/// Returns the errno of an I/O error; `EIO` for an error without one.
fn of_io(error: &io::Error) -> c_int {
    let own = Some(cause(error).0).filter(|number| *number != libc::EIO);
    own.unwrap_or(match error.kind() {
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
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    let name = name.to_str().unwrap_or_default();
    refused::note_unsupported(name);
    let refused =
        refuse!((Errno::new(errno)), "library", "function"; errno; "the function is not implemented");
    refused::note(&refused, Function::Named(name));
    set_errno(errno);
    returns
}
