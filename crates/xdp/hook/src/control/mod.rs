//! The control socket of a running process, for hooks, taps and counters.
//!
//! Every engine listens on a Unix socket with the abstract name `<domain>/hook/<pid>/<slot>/<number>`. The
//! number is random, so a process of another user cannot take the name first. A client must be of the
//! user of the process, or root (`registry/identity.rs`). Each record is one request or one reply. Programs
//! are sent as instructions and map definitions: the process that runs them parses no object file.

/// The value in a reply of the expected kind.
macro_rules! expect {
    ($reply:expr, $kind:pat $(if $is_it:expr)? => $value:expr) => {
        match $reply {
            $kind $(if $is_it)? => Ok($value),
            _ => Err(ControlError::Io(std::io::ErrorKind::InvalidData.into())),
        }
    };
}

mod client;
mod data;
mod record;
mod requests;
mod server;

pub use client::{ControlError, Listing, Remote, Users};
#[cfg(feature = "fuzz")]
pub use record::{check_plan, check_reply, check_request};
pub(crate) use requests::Requests;
pub(crate) use server::Control;

use super::plan::HookPlan;
use super::{DataReply, DataRequest, HookPoint, HookStatus, KeptFrame, TapFilter};
use roxie::registry::DomainConfig;
use roxie::status::{EngineStatus, ObjectKind, ObjectPage, QpPage};

/// Largest record: fits the send buffer of an unprivileged socket (wmem_max 212992).
const RECORD_MAX: usize = 192 * 1024;

/// Bytes of frames in one reply, counting 64 more for each frame's metadata.
pub(crate) const FRAMES_BYTES_MAX: usize = 128 * 1024;

/// Requests of a client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    Attach {
        point: HookPoint,
        plan: HookPlan,
        replace: bool,
        /// Detach it when the connection of the client is closed.
        held: bool,
    },
    Detach {
        point: HookPoint,
    },
    Frames,
    Status,
    /// Starts a tap that ends with the connection. The reply carries the descriptor of its records.
    Tap(TapFilter),
    /// Asks for the status of the engine.
    Engine,
    /// Reads or changes data of attached programs.
    Data(DataRequest),
    /// Asks for the status of queue pairs, from this index on.
    QueuePairs {
        from: u32,
    },
    /// Asks for other objects of the device, from this number on.
    Objects {
        kind: ObjectKind,
        from: u32,
    },
}

/// Replies of the engine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Reply {
    Done,
    /// The reason of a refusal, and what the user can do about it.
    Refused {
        why: String,
        remedy: Option<String>,
    },
    Status(Vec<HookStatus>),
    Frames(Vec<KeptFrame>),
    Engine(EngineStatus),
    QueuePairs(QpPage),
    Objects(ObjectPage),
    Data(DataReply),
}

/// The prefix of the names of all control sockets of a domain.
fn domain_prefix(domain: &DomainConfig) -> String {
    format!("{}/hook/", domain.name)
}

/// The prefix of the names of one engine: its own, and those that other users may have taken.
fn engine_prefix(domain: &DomainConfig, pid: u32, slot: u16) -> String {
    format!("{}{pid}/{slot}/", domain_prefix(domain))
}

#[cfg(test)]
mod tests;
