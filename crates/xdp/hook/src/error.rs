//! Reasons why a hook cannot be attached, and what the user can do about them.

use std::fmt;
use std::io;
use std::path::PathBuf;

use bpf::MapError;
use bpf::vet::Objection;
use bpf::vm::LoadError;

use roxie::stages::BadHook;

use super::HookPoint;

/// Why a hook was not attached or detached.
#[derive(Debug)]
pub enum HookError {
    /// Another hook is attached there.
    Occupied {
        /// The hook point.
        point: HookPoint,
        /// [`Hook::name`](super::Hook::name) of that hook.
        name: String,
    },
    /// No hook is attached there.
    NothingThere {
        /// The hook point.
        point: HookPoint,
    },
    /// A stage is not built in.
    NoSuchStage {
        /// Its text.
        text: String,
    },
    /// The file of a plan cannot be read.
    File {
        /// Its path.
        path: PathBuf,
        /// The kernel's error, or why the directory is not private.
        error: io::Error,
    },
    /// The file is no plan, one of another version, or one that exceeds a limit.
    NoPlan {
        /// Its path.
        path: PathBuf,
    },
    /// The interpreter refuses the program.
    Load {
        /// The program.
        name: String,
        /// The reason.
        error: LoadError,
    },
    /// The interpreter would accept the program, and end it with a fault.
    Vet {
        /// The program.
        name: String,
        /// What is wrong with it.
        error: Objection,
    },
    /// A map of the program cannot be created.
    Map {
        /// The map.
        name: String,
        /// The reason.
        error: MapError,
    },
    /// A native stage has no such parameter, or the value is invalid.
    Parameter {
        /// The stage.
        stage: &'static str,
        /// The text of the parameter.
        text: String,
        /// The valid parameters.
        usage: &'static str,
    },
    /// The hook that had this map was replaced or detached.
    MapGone,
    /// An entry of the map does not fit into a reply.
    ValueTooLarge {
        /// The map.
        name: String,
        /// Size of an entry.
        bytes: usize,
    },
    /// The maximum number of taps is reached.
    Tapped {
        /// That number.
        taps: usize,
    },
    /// The kernel has no memory for a tap's records.
    NoMemory(io::Error),
    /// The text between two `+`, or all of it, is empty.
    Empty,
    /// The engine started without this crate's plug-in, or its configuration is wrong.
    Device(BadHook),
    /// The device has started engines for several threads, and this hook would see the packets of one.
    SeveralEngines {
        /// Their number.
        engines: usize,
    },
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookError::Occupied { point, name } => write!(f, "{point} has a program already: {name}"),
            HookError::NothingThere { point } => write!(f, "{point} has no program"),
            HookError::File { path, error } => write!(f, "{}: {error}", path.display()),
            HookError::NoSuchStage { text } => {
                write!(f, "{text} is no built-in stage, and the device loads no object files")
            }
            HookError::NoPlan { path } => {
                write!(f, "{} is no hook of this version of roxie", path.display())
            }
            HookError::Load { name, error } => write!(f, "program {name}: {error}"),
            HookError::Vet { name, error } => write!(f, "program {name}: {error}"),
            HookError::Map { name, error } => write!(f, "map {name}: {error}"),
            HookError::Parameter { stage, text, usage } => {
                write!(f, "stage {stage} does not understand {text:?}; it is {usage}")
            }
            HookError::MapGone => f.write_str("the hook with this map was replaced or detached"),
            HookError::ValueTooLarge { name, bytes } => {
                let room = super::data::DATA_BYTES_MAX;
                write!(f, "map {name}: an entry takes {bytes} bytes, and a reply has room for {room}")
            }
            HookError::Tapped { taps } => write!(f, "{taps} captures of it are running already"),
            HookError::NoMemory(error) => write!(f, "memory for copies: {error}"),
            HookError::Empty => f.write_str("no stage is named"),
            HookError::Device(bad) => f.write_str(&bad.why),
            HookError::SeveralEngines { engines } => {
                write!(f, "the device has {engines} engines, and the hook would see the packets of one")
            }
        }
    }
}

impl HookError {
    /// The syntax of hooks, for a message.
    pub const SYNTAX: &str =
        "a hook is OBJECT[:PROGRAM], count, sample:..., impair:... or police:..., several joined by +";

    /// The stages of a device are not of this crate.
    pub(crate) fn other_plug_in() -> HookError {
        HookError::Device(BadHook { why: "the device started with another plug-in".to_owned(), remedy: None })
    }

    /// What the user can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            HookError::Occupied { .. } => Some("replace it (--replace), or detach it first".to_owned()),
            HookError::Tapped { .. } => Some("end one of them".to_owned()),
            HookError::Vet { .. } => Some(
                "the kernel refuses it as well: 'roxie xdp attach IF OBJECT' shows what its verifier says"
                    .to_owned(),
            ),
            HookError::SeveralEngines { .. } => {
                Some("attach it before several threads create queue pairs, or set ROXIE_ENGINES=1".to_owned())
            }
            HookError::Empty => Some(Self::SYNTAX.to_owned()),
            HookError::Device(bad) => bad.remedy.clone(),
            HookError::NoSuchStage { .. } => {
                Some("name an object file in 'roxie run --ingress' or '--egress', which load it".to_owned())
            }
            HookError::File { .. } | HookError::NoPlan { .. } => {
                Some("'roxie run' writes the file: start the command with it, as the same user".to_owned())
            }
            _ => None,
        }
    }
}

impl std::error::Error for HookError {}
