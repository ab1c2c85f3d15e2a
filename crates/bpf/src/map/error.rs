//! What map operations answer when they fail.

use std::fmt;

/// Why a map operation failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MapError {
    /// There is no such entry.
    NoEntry,
    /// The entry is there already.
    Exists,
    /// The map is full, or the index beyond its end.
    TooBig,
    /// A trie is full.
    NoSpace,
    /// Key, value or definition has the wrong size or form.
    Invalid,
    /// Contents are constant.
    ReadOnly,
    /// Maps of this type cannot do that, or are not implemented.
    Unsupported,
    /// The definition asks for more memory than [`MapError::BYTES_MAX`].
    NoMemory,
}

impl MapError {
    /// Bytes of the values of one map at most. A program addresses at most 3.75 GiB of values altogether.
    pub const BYTES_MAX: u64 = 1 << 30;

    /// Linux error number, positive.
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
