//! Finds the processes of this network namespace that have a roxie device, queries them, and explains why
//! one does not reply.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use roxie::hook::control::{ControlError, Remote};
use roxie::registry::DomainConfig;
use sys::effective_uid;

use crate::failure::{During, Failure, Outcome};

/// The engines of one process, or of all processes that this user may query.
///
/// # Errors
/// If a process was named: it does not exist, has no device, or belongs to another user.
pub fn engines(pid: Option<u32>) -> Outcome<Vec<Remote>> {
    let domain = DomainConfig::from_env().during("ROXIE_DOMAIN")?;
    let found = Remote::find(&domain, pid);
    match pid {
        Some(pid) if found.is_empty() => Err(absent(pid)),
        Some(pid) => found
            .into_iter()
            .map(|(_, slot)| Remote::connect(&domain, pid, slot).map_err(|error| unreached(pid, error)))
            .collect(),
        // Processes of other users are left out, and so are those that have just exited.
        None => {
            let connect = |(pid, slot)| Remote::connect(&domain, pid, slot).ok();
            Ok(found.into_iter().filter_map(connect).collect())
        }
    }
}

/// The reason that a process did not reply.
#[must_use]
pub fn unanswered(pid: u32, error: &ControlError) -> Failure {
    let failure = Failure::new(format!("process {pid}: {error}"));
    match error.remedy() {
        Some(remedy) => failure.hint(remedy),
        None => failure,
    }
}

fn unreached(pid: u32, error: io::Error) -> Failure {
    match error.raw_os_error() {
        Some(nix::libc::EPERM) => of_another(pid),
        Some(nix::libc::ECONNREFUSED) => Failure::new(format!("process {pid} has just ended")),
        _ => unanswered(pid, &error.into()),
    }
}

fn of_another(pid: u32) -> Failure {
    Failure::new(format!("process {pid} is another user's")).hint("only that user and root may look into it")
}

/// The failure when no process with this id listens here.
fn absent(pid: u32) -> Failure {
    let process = Path::new("/proc").join(pid.to_string());
    let Ok(owner) = process.metadata().map(|meta| meta.uid()) else {
        return Failure::new(format!("there is no process {pid}"));
    };
    let own = effective_uid();
    if own != 0 && own != owner {
        return of_another(pid);
    }
    let namespace = |process: &Path| process.join("ns/net").read_link().ok();
    let there = namespace(&process);
    if there.is_some() && there != namespace(Path::new("/proc/self")) {
        return Failure::new(format!("process {pid} is in another network namespace"))
            .hint(format!("as root: nsenter -t {pid} -n roxie ..."));
    }
    Failure::new(format!("process {pid} has no device of roxie"))
        .hint("'roxie hook list' lists processes with a device; 'roxie run -- PROGRAM' starts one")
}
