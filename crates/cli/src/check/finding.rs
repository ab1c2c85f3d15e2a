//! A finding, as a process records it.

use roxie::finding::{DOMAIN_GIVEN, FLAGS_SET, FindingKind};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// A mistake of the application, with addresses.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Finding {
    #[serde(deserialize_with = "kind")]
    pub(super) kind: FindingKind,
    pub(super) text: String,
    pub(super) stacks: Vec<Stack>,
    /// The numbers of the queue pair and of its peer, for findings about a connection.
    #[serde(default)]
    pub(super) ends: Option<(u32, u32)>,
    /// The process failed, and may have had no time to end what it began.
    #[serde(default)]
    pub(super) failed: Option<Failed>,
    /// The process that made it ([`Processes::id`]), and its command line.
    #[serde(skip)]
    pub(super) process: u32,
    #[serde(skip)]
    pub(super) command: String,
}

/// How a process failed: what it left may follow from another mistake.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Failed {
    /// With an exit code.
    Exit,
    /// With an exit code, after findings of its own.
    Beside,
    /// By a signal, which may end a program that makes no mistake.
    Signal,
}

/// Reads the name of a kind.
fn kind<'de, D: Deserializer<'de>>(from: D) -> Result<FindingKind, D::Error> {
    let name = String::deserialize(from)?;
    FindingKind::from_name(&name).ok_or_else(|| Error::custom("no kind of findings"))
}

/// What happened at a call stack that is the mistake, and not the request that was refused because of it.
const THEIRS: [&str; 2] = [FLAGS_SET, DOMAIN_GIVEN];

impl Finding {
    /// Adds what the other end tells, unless this end has told it.
    pub(super) fn explain(&mut self, reason: &Self) {
        if self.text.contains(&reason.text) {
            return;
        }
        self.text += &format!(" At the peer: {}", reason.text);
        let process = Some(reason.process).filter(|process| *process != self.process);
        let theirs = reason.stacks.iter().cloned().map(|stack| Stack { process, ..stack });
        let is_theirs = matches!(reason.stacks.first(), Some(first) if THEIRS.contains(&&*first.what));
        let at = if is_theirs { 0 } else { self.stacks.len() };
        self.stacks.splice(at..at, theirs);
    }
}

/// A call stack.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Stack {
    /// Its process, if that is not the one of the finding.
    #[serde(skip)]
    pub(super) process: Option<u32>,
    /// What happened there.
    pub(super) what: String,
    pub(super) thread: String,
    /// Object files and addresses in them, innermost first.
    pub(super) frames: Vec<(String, u64)>,
}
