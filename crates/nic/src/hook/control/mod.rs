//! Hooks, taps and counters of a running process, from outside: what is said over the Unix socket that every engine listens on.
//!
//! The socket's abstract name is `<domain>/hook/<pid>/<slot>`. Whoever connects must have the process's own user id, or be root.
//! One record is one request, and one the reply. Programs come as instructions and map definitions: the process that
//! runs them parses no object file.

mod client;
mod record;
mod server;

pub use client::{ControlError, Remote};
#[cfg(feature = "fuzz")]
pub use record::{check_reply, check_request};
pub(crate) use server::{Answers, Control};

use super::plan::HookPlan;
use super::{HookPoint, HookStatus, KeptFrame, TapFilter};
use crate::registry::DomainConfig;
use crate::status::{EngineStatus, QpPage};

/// Largest record: the send buffer of an unprivileged socket takes it (wmem_max 212992).
const RECORD_MAX: usize = 192 * 1024;

/// Bytes of frames in one reply, each with 64 for what goes with it.
pub(crate) const FRAMES_BYTES_MAX: usize = 128 * 1024;

/// What can be asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    Attach {
        point: HookPoint,
        plan: HookPlan,
        replace: bool,
    },
    Detach {
        point: HookPoint,
    },
    Frames,
    Status,
    /// A tap that ends with the connection. The descriptor of its copies comes with the reply.
    Tap(TapFilter),
    /// Of the engine as a whole.
    Engine,
    /// Of queue pairs, from this index on.
    QueuePairs {
        from: u16,
    },
}

/// What is answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Reply {
    Done,
    /// Why not, and what can be done about it.
    Refused {
        why: String,
        remedy: Option<String>,
    },
    Status(Vec<HookStatus>),
    Frames(Vec<KeptFrame>),
    Engine(EngineStatus),
    QueuePairs(QpPage),
}

impl DomainConfig {
    /// What the names of all hook sockets begin with.
    fn hook_prefix(&self) -> String {
        format!("{}/hook/", self.name)
    }

    fn hook_name(&self, pid: u32, slot: u8) -> String {
        format!("{}{pid}/{slot}", self.hook_prefix())
    }
}

#[cfg(test)]
mod tests;
