//! The labs that are up: one file each in a directory of this user.
//!
//! Invariant: the lab is the process named in its file. The start time identifies the process as well,
//! because process ids are reused. If that process has ended, the file means nothing: the kernel
//! has removed the lab.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::spec::Spec;
use crate::failure::{During, Outcome};
use crate::library::private_dir;

/// A lab that is up.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct State {
    #[serde(flatten)]
    pub(super) spec: Spec,
    pub(super) hosts_up: Vec<Host>,
    /// What drops packets.
    pub(super) lossy: Option<String>,
    /// The lab is in a user namespace.
    pub(super) user_namespace: bool,
    /// The process that holds the lab, and its start time (proc_pid_stat(5), field 22).
    pub(super) pid: u32,
    pub(super) started: u64,
}

/// A host of the lab.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) addresses: Vec<IpAddr>,
    /// The holder's descriptor of its network namespace.
    fd: i32,
}

/// The lock for changing labs; other commands wait for it.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "closing it unlocks")] File);

impl Host {
    pub(super) fn new(name: String, addresses: Vec<IpAddr>, fd: i32) -> Self {
        Self { name, addresses, fd }
    }
}

impl State {
    /// The lab with this name, if it is up.
    pub(super) fn load(name: &str) -> Outcome<Option<Self>> {
        let path = file(name)?;
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.during(&path.display().to_string())?,
        };
        let state: Self = serde_json::from_str(&text).during(&path.display().to_string())?;
        Ok(Some(state).filter(Self::is_up))
    }

    /// All labs that are up, by name.
    pub(super) fn load_all() -> Outcome<Vec<Self>> {
        let dir = directory()?;
        let mut names: Vec<String> = fs::read_dir(&dir)
            .during(&dir.display().to_string())?
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned()))
            .collect();
        names.sort();
        names.iter().filter_map(|name| Self::load(name).transpose()).collect()
    }

    /// Writes the file, and the hosts' names.
    pub(super) fn store(&self) -> Outcome {
        let (path, hosts) = (file(&self.spec.name)?, hosts_file(&self.spec.name)?);
        fs::write(&hosts, self.spec.hosts_file()).during(&hosts.display().to_string())?;
        let text = serde_json::to_string(self).during("describing the lab")?;
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path)).during(&path.display().to_string())
    }

    /// Removes the file.
    pub(super) fn forget(name: &str) -> Outcome {
        for path in [file(name)?, hosts_file(name)?] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).during(&path.display().to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn is_up(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// The network namespace of a host.
    pub(super) fn namespace(&self, host: &Host) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", self.pid, host.fd))
    }

    /// The processes that run on its hosts.
    pub(super) fn inhabitants(&self) -> Vec<u32> {
        let identity = |path: PathBuf| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        let own: Vec<_> = self.hosts_up.iter().filter_map(|host| identity(self.namespace(host))).collect();
        let process = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
        let lives_here = |pid: &u32| {
            identity(PathBuf::from(format!("/proc/{pid}/ns/net"))).is_some_and(|net| own.contains(&net))
        };
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(process).filter(lives_here).collect()
    }
}

/// Waits for the lock for changing labs.
pub(super) fn lock() -> Outcome<Lock> {
    let path = directory()?.join("lock");
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
    let file = file.and_then(|file| file.lock().map(|()| file)).during(&path.display().to_string())?;
    Ok(Lock(file))
}

/// The start time of a process, in clock ticks since boot; `None` if there is no such process.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_dead = fields.next()? == "Z";
    fields.nth(18)?.parse().ok().filter(|_| !is_dead)
}

/// The file with the names of the hosts, for hosts(5).
pub(super) fn hosts_file(name: &str) -> Outcome<PathBuf> {
    Ok(directory()?.join(format!("{name}.hosts")))
}

fn file(name: &str) -> Outcome<PathBuf> {
    Ok(directory()?.join(format!("{name}.json")))
}

/// The directory of these files.
pub(super) fn directory() -> Outcome<PathBuf> {
    private_dir("lab")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start() {
        let own = std::process::id();
        let started = start_time(own).expect("we run");
        assert_eq!(start_time(own), Some(started));
        assert!(start_time(1).is_none_or(|first| first <= started));
        assert_eq!(start_time(u32::MAX), None);
    }
}
