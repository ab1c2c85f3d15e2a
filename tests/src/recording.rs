//! Runs `roxie capture record` on an interface.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::process::{Running, eventually};

/// Time limit for a recording to begin, and to end.
const LIMIT: Duration = Duration::from_secs(10);
/// Longest time between a packet and its entry in the file.
const RECORDED: Duration = Duration::from_millis(150);

/// A recording that must see every packet.
#[derive(Debug)]
pub struct Recording(Running);

impl Recording {
    /// Waits until both classifiers of a new recording are attached.
    ///
    /// # Errors
    /// Its output, if they are not.
    pub fn begin(mut running: Running) -> Result<Self, String> {
        let listens = || {
            let shown = fs::read_dir(format!("/proc/{}/fd", running.pid())).into_iter().flatten().flatten();
            // /proc shows a link for each.
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

    /// Stops the recording process (SIGSTOP) while `f` runs.
    pub fn starve<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.signal(Signal::SIGSTOP);
        let result = work();
        self.0.signal(Signal::SIGCONT);
        result
    }

    /// Ends it with SIGINT; the file is complete then.
    ///
    /// # Errors
    /// Its output, if it failed or lost a packet, or lost none although it should have.
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
