//! `roxie capture record` on an interface, from its beginning to its end.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::process::{Running, eventually};

/// How long a recording may take to begin, and to end.
const LIMIT: Duration = Duration::from_secs(10);
/// Packets are in the recording this long after they passed at the latest.
const RECORDED: Duration = Duration::from_millis(150);

/// A recording that sees every packet.
#[derive(Debug)]
pub struct Recording(Running);

impl Recording {
    /// Waits until the two classifiers of a recording that was started are attached.
    ///
    /// # Errors
    /// What it said, if they are not.
    pub fn begin(mut running: Running) -> Result<Self, String> {
        let listens = || {
            let shown = fs::read_dir(format!("/proc/{}/fd", running.pid())).into_iter().flatten().flatten();
            // A link for each, by what /proc calls such descriptors.
            let links = shown
                .filter(|fd| fd.path().read_link().is_ok_and(|to| to.ends_with("anon_inode:bpf_link")))
                .count();
            links == 2
        };
        if eventually(LIMIT, listens) {
            return Ok(Self(running));
        }
        running.signal(Signal::SIGINT);
        Err(format!("it does not record\n{}", running.wait(LIMIT).describe()))
    }

    /// Keeps it from running while something is done.
    pub fn starve<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.signal(Signal::SIGSTOP);
        let result = work();
        self.0.signal(Signal::SIGCONT);
        result
    }

    /// Ends it as a person does; the file is whole then.
    ///
    /// # Errors
    /// What it said, if it has failed or lost a packet, or none if it should have lost some.
    pub fn end(mut self, loses: bool) -> Result<(), String> {
        sleep(RECORDED);
        self.0.signal(Signal::SIGINT);
        let said = self.0.wait(LIMIT);
        if said.succeeded() && said.output.contains(" 0 lost") != loses {
            Ok(())
        } else {
            Err(said.describe())
        }
    }
}
