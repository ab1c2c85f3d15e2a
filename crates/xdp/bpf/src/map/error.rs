//! Errors of map operations.

use std::fmt;

/// Reason why a map operation failed. [`MapError::errno`] is the kernel's error number for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MapError {
    /// There is no entry with this key (ENOENT).
    NoEntry,
    /// The entry exists already (EEXIST).
    Exists,
    /// The map is full, or the index is out of range (E2BIG).
    TooBig,
    /// The trie is full (ENOSPC).
    NoSpace,
    /// The key, the value or the definition has a wrong size or form (EINVAL).
    Invalid,
    /// The contents are constant.
    ReadOnly,
    /// Maps of this type do not support the operation, or it is not implemented.
    Unsupported,
    /// The definition needs more memory than [`MapError::BYTES_MAX`].
    NoMemory,
}

impl MapError {
    /// Largest memory of one map, in bytes. The values of all maps of a program together have at most
    /// 3.75 GiB.
    pub const BYTES_MAX: u64 = 1 << 30;

    /// Returns the Linux error number, positive.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            MapError::NoEntry => 2,
            MapError::Exists => 17,
            MapError::TooBig => 7,
            MapError::NoSpace => 28,
            MapError::Invalid => 22,
            MapError::ReadOnly => 1,
            MapError::Unsupported => 95,
            MapError::NoMemory => 12,
        }
    }
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapError::NoEntry => "no such entry",
            MapError::Exists => "the entry exists",
            MapError::TooBig => "the map is full or the index too large",
            MapError::NoSpace => "no space left in the trie",
            MapError::Invalid => "wrong size of key, value or map",
            MapError::ReadOnly => "the map is read-only",
            MapError::Unsupported => "not supported for maps of this type",
            MapError::NoMemory => "the map is too large",
        })
    }
}

impl std::error::Error for MapError {}
