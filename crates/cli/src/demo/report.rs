//! Reports of the children to the parent: one JSON object per line on standard output.

use std::io::Write;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::failure::{During, Outcome};
use crate::terminal;

/// One report.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase", tag = "say")]
pub(crate) enum Report {
    /// The server takes connections.
    Listening { port: u16 },
    /// The connection is established.
    Connected { local_qpn: u32, remote_qpn: u32, took_us: u32 },
    /// The operation in progress.
    Doing { what: String },
    /// An operation was verified, byte by byte.
    Verified { operation: String, what: String },
    /// A measurement: as text, and as a number with its unit.
    Figure { what: String, value: String, note: String, number: f64, unit: String },
    /// The device's counters at the end of the client.
    Counters { dropped: u64, retransmitted: u64 },
    /// The child finished without an error.
    Done,
    /// The child failed.
    Failed { why: String },
    /// The child has exited; the parent's reader thread adds this report.
    Ended { how: String },
}

impl Report {
    /// Writes the report. Fails if the parent has exited.
    pub(super) fn say(&self) -> Outcome {
        let line = serde_json::to_string(self).during("reporting")?;
        let mut out = terminal::data();
        writeln!(out, "{line}").and_then(|()| out.flush()).during("reporting")
    }
}

/// Runs a child's part; reports its failure, and returns its exit code.
pub(super) fn child(part: impl FnOnce() -> Outcome) -> Outcome {
    // Without a parent no other process would end this one.
    set_pdeathsig(Signal::SIGKILL).during("asking to die with the parent")?;
    match part() {
        Ok(()) => Report::Done.say(),
        Err(failure) => {
            Report::Failed { why: failure.to_string() }.say()?;
            std::process::exit(1);
        }
    }
}
