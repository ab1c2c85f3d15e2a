//! Reasons why a program cannot be attached, for people.

use std::fmt;
use std::io;

use sys::bpf::{LoadError, Program};
use sys::{AttachedXdp, XdpMode};

/// Why a program could not be attached to an interface.
#[derive(Debug)]
pub enum AttachError {
    /// The kernel refuses the program, or this process may not load one.
    Load(LoadError),
    /// There is a program already.
    Occupied {
        /// Id of that program.
        id: u32,
        /// Its name, or why that is not known.
        name: String,
        /// Where it runs.
        mode: XdpMode,
    },
    /// The kernel refuses to attach it.
    Refused {
        /// The mode that was tried.
        mode: XdpMode,
        /// Its error.
        error: io::Error,
        /// Its explanation, if it gives one.
        why: Option<String>,
    },
    /// A preceding step failed: querying the interface, or filling a map.
    Setup(io::Error),
}

impl AttachError {
    /// Returns the error for this program.
    pub(crate) fn occupied(there: AttachedXdp) -> AttachError {
        AttachError::Occupied { id: there.program_id, name: program_name(there.program_id), mode: there.mode }
    }

    /// The underlying error of the kernel.
    #[must_use]
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            AttachError::Load(LoadError { error, .. })
            | AttachError::Refused { error, .. }
            | AttachError::Setup(error) => Some(error),
            AttachError::Occupied { .. } => None,
        }
    }
}

/// Returns the name of a program, or why it is not known.
pub(super) fn program_name(id: u32) -> String {
    let info = Program::by_id(id).and_then(|program| program.info());
    info.map_or_else(|error| format!("name unknown: {error}"), |info| info.name)
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Load(error) => error.fmt(f),
            AttachError::Occupied { id, name, mode } => {
                write!(f, "XDP program already attached (id {id}, {name}, {mode} mode)")
            }
            AttachError::Refused { mode, error, why } => {
                write!(f, "no XDP in {mode} mode: ")?;
                match why {
                    Some(why) => write!(f, "{} ({error})", why.trim_end_matches(['.', '\n'])),
                    None => error.fmt(f),
                }
            }
            AttachError::Setup(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AttachError {}

impl From<LoadError> for AttachError {
    fn from(error: LoadError) -> AttachError {
        AttachError::Load(error)
    }
}

impl From<io::Error> for AttachError {
    fn from(error: io::Error) -> AttachError {
        AttachError::Setup(error)
    }
}
