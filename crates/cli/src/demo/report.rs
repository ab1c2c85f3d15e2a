//! What the children tell the parent: one JSON object a line on standard output.

use std::io::Write;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::failure::{During, Failure, Outcome};

/// One thing said.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase", tag = "say")]
pub(super) enum Report {
    /// The server takes connections.
    Listening { port: u16 },
    /// The connection stands.
    Connected { local_qpn: u32, remote_qpn: u32, took_us: u32 },
    /// What is going on.
    Doing { what: String },
    /// An operation did what it should, to the byte.
    Verified { operation: String, what: String },
    /// Something measured.
    Figure { what: String, value: String, note: String },
    /// Finished, all well.
    Done,
    /// Finished, not well.
    Failed { why: String },
    /// The process is gone; said by the parent's reader on its behalf.
    Ended { how: String },
}

impl Report {
    /// Says it. Fails if the parent is gone.
    pub(super) fn say(&self) -> Outcome {
        let line = serde_json::to_string(self).during("reporting")?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).during("reporting")
    }
}

/// Runs a child's part; its failure is reported, and also its exit code.
pub(super) fn child(part: impl FnOnce() -> Outcome) -> Outcome {
    // No parent, no purpose: without it nobody would end us.
    set_pdeathsig(Signal::SIGKILL).during("asking to die with the parent")?;
    match part() {
        Ok(()) => Report::Done.say(),
        Err(failure) => {
            Report::Failed { why: failure.to_string() }.say()?;
            std::process::exit(1);
        }
    }
}

/// A child ended without finding what it should.
pub(super) fn wrong(what: impl Into<String>) -> Failure {
    Failure::new(what)
}
