//! Errors of calls of the application, one variant per errno.

use core::fmt;

/// Why a verbs call was refused. A refused call changes nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Hash)]
pub enum VerbsError {
    /// An argument is wrong, or not allowed in this state (EINVAL).
    Invalid,
    /// The queue is full or a limit is reached (ENOMEM).
    NoMem,
    /// The device does not support this (EOPNOTSUPP).
    NotSupported,
    /// The object is in use (EBUSY).
    Busy,
    /// No such device (ENODEV).
    NoDev,
    /// No such entry (ENODATA).
    NoData,
    /// Nothing available now (EAGAIN).
    Again,
    /// Not permitted (EACCES).
    Perm,
    /// An address that cannot be accessed (EFAULT).
    Fault,
    /// The address is in use (EADDRINUSE).
    AddrInUse,
    /// The address is not a local one (EADDRNOTAVAIL).
    AddrNotAvail,
    /// Timed out (ETIMEDOUT).
    TimedOut,
    /// Not connected (ENOTCONN).
    NotConn,
    /// The process lacks a capability (EPERM).
    NotPermitted,
    /// No place for such an entry (ENOSPC).
    NoSpc,
}

impl VerbsError {
    /// The Linux error number, positive.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Invalid => 22,
            Self::NoMem => 12,
            Self::NotSupported => 95,
            Self::Busy => 16,
            Self::NoDev => 19,
            Self::NoData => 61,
            Self::Again => 11,
            Self::Perm => 13,
            Self::Fault => 14,
            Self::AddrInUse => 98,
            Self::AddrNotAvail => 99,
            Self::TimedOut => 110,
            Self::NotConn => 107,
            Self::NotPermitted => 1,
            Self::NoSpc => 28,
        }
    }
}

/// The name of a Linux error number that verbs or rdma_cm calls return; `None` for any other.
#[must_use]
pub const fn errno_name(errno: i32) -> Option<&'static str> {
    Some(match errno {
        1 => "EPERM",
        2 => "ENOENT",
        4 => "EINTR",
        5 => "EIO",
        9 => "EBADF",
        11 => "EAGAIN",
        12 => "ENOMEM",
        13 => "EACCES",
        14 => "EFAULT",
        16 => "EBUSY",
        17 => "EEXIST",
        19 => "ENODEV",
        22 => "EINVAL",
        24 => "EMFILE",
        28 => "ENOSPC",
        38 => "ENOSYS",
        61 => "ENODATA",
        71 => "EPROTO",
        90 => "EMSGSIZE",
        95 => "EOPNOTSUPP",
        98 => "EADDRINUSE",
        99 => "EADDRNOTAVAIL",
        101 => "ENETUNREACH",
        104 => "ECONNRESET",
        106 => "EISCONN",
        107 => "ENOTCONN",
        110 => "ETIMEDOUT",
        111 => "ECONNREFUSED",
        113 => "EHOSTUNREACH",
        _ => return None,
    })
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid argument or state",
            Self::NoMem => "queue full or limit reached",
            Self::NotSupported => "not supported",
            Self::Busy => "in use",
            Self::NoDev => "no such device",
            Self::NoData => "no such entry",
            Self::Again => "nothing available now",
            Self::Perm => "not permitted",
            Self::Fault => "bad address",
            Self::AddrInUse => "address in use",
            Self::AddrNotAvail => "address not available",
            Self::TimedOut => "timed out",
            Self::NotConn => "not connected",
            Self::NotPermitted => "a capability is missing",
            Self::NoSpc => "no place for such an entry",
        })
    }
}

impl core::error::Error for VerbsError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// `errno-base.h`, `errno.h` of Linux.
    #[test]
    fn each_error_has_its_number() {
        use VerbsError::*;
        let all = [
            Invalid,
            NoMem,
            NotSupported,
            Busy,
            NoDev,
            NoData,
            Again,
            Perm,
            Fault,
            AddrInUse,
            AddrNotAvail,
            TimedOut,
            NotConn,
        ];
        let numbers = [22, 12, 95, 16, 19, 61, 11, 13, 14, 98, 99, 110, 107];
        assert_eq!(all.map(VerbsError::errno), numbers);
    }
}
