//! Finds the processes of this network namespace that have a roxie device, queries them, and explains why
//! one does not reply.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clap::Args;
use roxie::printable;
use roxie::registry::{DomainConfig, is_root};
use roxie_hook::control::{ControlError, Listing, Remote, Users};
use sys::effective_uid;

use crate::failure::{During, Failure, Outcome};

/// The option of root for the engines of other users, where a subcommand shows more than one process.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct UsersArgs {
    /// Show the processes of all users of this network namespace (needs root)
    ///
    /// Names and counters of another user's process are what that process reports.
    #[arg(long)]
    all_users: bool,
}

impl UsersArgs {
    /// The users that own the shown engines.
    #[must_use]
    pub fn users(self) -> Users {
        if self.all_users { Users::All } else { Users::Own }
    }

    /// Says how many processes of other users are not shown; `None` if there are none.
    #[must_use]
    pub fn hidden_note(self, hidden: usize) -> Option<String> {
        let processes = if hidden == 1 { "process" } else { "processes" };
        let remedy = match self.users() {
            Users::Own if is_root() => "--all-users shows them",
            Users::Own => "root sees them with --all-users",
            Users::All if is_root() => "their names are those of other processes",
            Users::All => "only root sees them",
        };
        (hidden > 0).then(|| format!("{hidden} {processes} of other users hidden: {remedy}"))
    }
}

/// The engines of one process. Naming a process is enough for root to see another user's.
///
/// # Errors
/// The process does not exist, has no device, or belongs to another user.
pub fn engines_of(pid: u32) -> Outcome<Vec<Remote>> {
    let domain = DomainConfig::from_env().during("ROXIE_DOMAIN")?;
    let listing = Listing::read(&domain);
    let connect = |(_, slot)| listing.connect(pid, slot, Users::All).map_err(|error| unreached(pid, error));
    let found = listing.engines().filter(|(there, _)| *there == pid);
    let engines = found.map(connect).collect::<Outcome<Vec<_>>>()?;
    if engines.is_empty() { Err(absent(pid)) } else { Ok(engines) }
}

/// Name and interface of the device that an engine belongs to.
///
/// # Errors
/// The process does not answer.
pub fn device_of(remote: &Remote) -> Outcome<(String, String)> {
    let status = remote.engine().map_err(|error| unanswered(remote.pid(), &error))?;
    Ok((status.device, status.netdev))
}

/// For each engine a space and the name of its device; nothing if all are of one device.
///
/// # Errors
/// A process does not answer.
pub fn device_suffixes<'a>(engines: impl IntoIterator<Item = &'a Remote>) -> Outcome<Vec<String>> {
    let names = engines.into_iter().map(|remote| Ok(format!(" {}", device_of(remote)?.0)));
    let names = names.collect::<Outcome<Vec<_>>>()?;
    let is_one = names.windows(2).all(|pair| pair[0] == pair[1]);
    Ok(if is_one { vec![String::new(); names.len()] } else { names })
}

/// The engines of all processes of these users, and the number of other processes.
///
/// # Errors
/// `ROXIE_DOMAIN` cannot be parsed.
pub fn all_engines(users: Users) -> Outcome<(Vec<Remote>, usize)> {
    let domain = DomainConfig::from_env().during("ROXIE_DOMAIN")?;
    let (mut engines, mut hidden) = (Vec::new(), BTreeSet::new());
    let listing = Listing::read(&domain);
    for (pid, slot) in listing.engines() {
        match listing.connect(pid, slot, users) {
            Ok(remote) => engines.push(remote),
            Err(error) if is_hidden(&error) => _ = hidden.insert(pid),
            // It has just exited.
            Err(_) => {}
        }
    }
    Ok((engines, hidden.len()))
}

/// True if a process could not be connected to because it belongs to another user.
#[must_use]
pub fn is_hidden(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::libc::EPERM)
}

/// Name of the program of a process, safe for a terminal: a process chooses its own name.
#[must_use]
pub fn command_of(pid: u32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    printable(String::from_utf8_lossy(&name).trim_end_matches('\n'))
}

/// The reason that a process did not reply.
#[must_use]
pub fn unanswered(pid: u32, error: &ControlError) -> Failure {
    Failure::new(format!("process {pid}: {error}")).hint_if(error.remedy())
}

fn unreached(pid: u32, error: io::Error) -> Failure {
    match error.raw_os_error() {
        _ if is_hidden(&error) => of_another(pid),
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
