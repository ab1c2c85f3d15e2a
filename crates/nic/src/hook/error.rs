//! Why a hook cannot be had, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bpf::MapError;
use bpf::object::ObjectError;
use bpf::vet::Objection;
use bpf::vm::LoadError;

use super::HookPoint;

/// Why a hook was not attached or detached.
#[derive(Debug)]
pub enum HookError {
    /// Something is attached there already.
    Occupied {
        /// Where.
        point: HookPoint,
        /// [`Hook::name`](super::Hook::name) of what is there.
        name: String,
    },
    /// Nothing is attached there.
    NothingThere {
        /// Where.
        point: HookPoint,
    },
    /// The object file cannot be read.
    File {
        /// Its path.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// The object file is none, or has no program for us.
    Object {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        error: ObjectError,
    },
    /// The object file has several programs and none was named, or not the one that was.
    Which {
        /// Its path.
        path: PathBuf,
        /// What it has.
        programs: Vec<String>,
    },
    /// The machine refuses the program.
    Load {
        /// The program.
        name: String,
        /// Why.
        error: LoadError,
    },
    /// The machine would take the program, and end it.
    Vet {
        /// The program.
        name: String,
        /// What is wrong with it.
        error: Objection,
    },
    /// A map of the program cannot be had.
    Map {
        /// The map.
        name: String,
        /// Why.
        error: MapError,
    },
    /// A native stage has no such parameter, or not such a value of it.
    Parameter {
        /// The stage.
        stage: &'static str,
        /// What was said.
        text: String,
        /// What can be said.
        usage: &'static str,
    },
    /// There are as many taps as there can be.
    Tapped {
        /// How many.
        taps: usize,
    },
    /// The kernel gives no memory for copies.
    NoMemory(io::Error),
    /// Nothing between two `+`, or nothing at all.
    Empty,
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookError::Occupied { point, name } => write!(f, "{point} has a program already: {name}"),
            HookError::NothingThere { point } => write!(f, "{point} has no program"),
            HookError::File { path, error } => write!(f, "{}: {error}", path.display()),
            HookError::Object { path, error } => write!(f, "{}: {error}", path.display()),
            HookError::Which { path, programs } => {
                write!(f, "{} has these programs: {}", path.display(), programs.join(", "))
            }
            HookError::Load { name, error } => write!(f, "program {name}: {error}"),
            HookError::Vet { name, error } => write!(f, "program {name}: {error}"),
            HookError::Map { name, error } => write!(f, "map {name}: {error}"),
            HookError::Parameter { stage, text, usage } => {
                write!(f, "stage {stage} does not understand {text:?}; it is {usage}")
            }
            HookError::Tapped { taps } => write!(f, "{taps} captures of it are running already"),
            HookError::NoMemory(error) => write!(f, "memory for copies: {error}"),
            HookError::Empty => f.write_str("no stage is named"),
        }
    }
}

impl HookError {
    /// What can be done about it, if there is anything to say.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            HookError::Occupied { .. } => Some("replace it (--replace), or detach it first".to_owned()),
            HookError::Tapped { .. } => Some("end one of them".to_owned()),
            HookError::Which { path, programs } => {
                let name = programs.first()?;
                Some(format!("name one of them: {}:{name}", path.display()))
            }
            HookError::Vet { .. } => Some(
                "the kernel refuses it as well: 'roxie xdp attach IF OBJECT' shows what its verifier says"
                    .to_owned(),
            ),
            HookError::File { .. } | HookError::Empty => Some(
                "a hook is OBJECT[:PROGRAM], count, impair:... or police:..., several joined by +".to_owned(),
            ),
            _ => None,
        }
    }
}

impl std::error::Error for HookError {}
