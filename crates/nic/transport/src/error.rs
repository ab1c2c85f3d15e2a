//! The error numbers of Linux that verbs and rdma_cm calls return.

use core::fmt;

/// A Linux error number.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub struct Errno(i32);

/// The numbers by their names (`errno-base.h`, `errno.h` of Linux).
macro_rules! numbers {
    ($($name:ident = $number:literal)*) => {
        #[allow(missing_docs)] // the names are those of Linux
        impl Errno {
            $(pub const $name: Self = Self($number);)*

            /// Its name; `None` for a number that verbs and rdma_cm calls do not return.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    EPERM = 1
    ENOENT = 2
    EINTR = 4
    EIO = 5
    EBADF = 9
    EAGAIN = 11
    ENOMEM = 12
    EACCES = 13
    EFAULT = 14
    EBUSY = 16
    EEXIST = 17
    ENODEV = 19
    EINVAL = 22
    EMFILE = 24
    ENOSPC = 28
    EPIPE = 32
    ENOSYS = 38
    ENODATA = 61
    EPROTO = 71
    EDESTADDRREQ = 89
    EMSGSIZE = 90
    EPROTONOSUPPORT = 93
    EOPNOTSUPP = 95
    EAFNOSUPPORT = 97
    EADDRINUSE = 98
    EADDRNOTAVAIL = 99
    ENETDOWN = 100
    ENETUNREACH = 101
    ECONNRESET = 104
    ENOBUFS = 105
    EISCONN = 106
    ENOTCONN = 107
    ETIMEDOUT = 110
    ECONNREFUSED = 111
    EHOSTUNREACH = 113
    EALREADY = 114
    EINPROGRESS = 115
}

impl Errno {
    /// The error with this number, which is positive.
    #[must_use]
    pub const fn new(number: i32) -> Self {
        Self(number)
    }

    /// The number, positive.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "error {}", self.0),
        }
    }
}
