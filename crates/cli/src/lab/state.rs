//! The labs that are up: one file each in a directory of this user.
//!
//! Invariant: the lab is the process named in its file, which holds the lock of the file `NAME.held` as long
//! as it lives. If no process holds that lock, the file means nothing: the kernel has removed the lab. A
//! process that holds it and is not seen is in another process-ID namespace, as in a container that shares
//! the directory. Process ids are reused, so the start time identifies the process as well.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sys::Dir;

use super::spec::Spec;
use crate::failure::{During, Failure, Outcome};
use crate::user_dir::private_dir;

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
        let (dir, file) = (directory()?, file(name, "json"));
        let step = dir.path().join(&file).display().to_string();
        let text = match dir.read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.during(&step)?,
        };
        let state: Self = serde_json::from_slice(&text).during(&step)?;
        if !state.is_up() && is_held(&dir, name) {
            let text = format!("lab '{name}' is held by a process in another process-ID namespace");
            return Err(Failure::new(text).hint("use it from there, or name another lab"));
        }
        Ok(Some(state).filter(Self::is_up))
    }

    /// All labs that are up, by name.
    pub(super) fn load_all() -> Outcome<Vec<Self>> {
        let dir = directory()?;
        let name = |file: OsString| Some(file.to_str()?.strip_suffix(".json")?.to_owned());
        let files = dir.names().reading(dir.path())?;
        let mut names: Vec<String> = files.into_iter().filter_map(name).collect();
        names.sort();
        let load = |name: &String| match Self::load(name) {
            Err(failure) if is_held(&dir, name) => {
                say!("roxie: {}", failure.what);
                None
            }
            loaded => loaded.transpose(),
        };
        names.iter().filter_map(load).collect()
    }

    /// Writes the file, and the hosts' names.
    pub(super) fn store(&self) -> Outcome {
        let (dir, text) = (directory()?, serde_json::to_string(self).during("describing the lab")?);
        for (ending, text) in [("hosts", self.spec.hosts_file()), ("json", text)] {
            let file = file(&self.spec.name, ending);
            dir.replace(&file, text.as_bytes(), 0o644).writing(&dir.path().join(&file))?;
        }
        Ok(())
    }

    /// Removes the files.
    pub(super) fn forget(name: &str) -> Outcome {
        let dir = directory()?;
        for ending in ["json", "hosts", "held"] {
            let file = file(name, ending);
            match dir.remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).writing(&dir.path().join(&file));
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
    let dir = directory()?;
    let file = dir.append("lock".as_ref()).and_then(|file| file.lock().map(|()| file));
    Ok(Lock(file.writing(&dir.path().join("lock"))?))
}

/// Holds the lab of this name until the returned file is closed. Called by the process that is the lab.
pub(super) fn hold(name: &str) -> Outcome<File> {
    let (dir, file) = (directory()?, file(name, "held"));
    let held = dir.append(&file).and_then(|file| file.lock().map(|()| file));
    held.writing(&dir.path().join(&file))
}

/// Whether a process holds the lab, in whatever namespace it is.
fn is_held(dir: &Dir, name: &str) -> bool {
    let held = dir.open(&file(name, "held"));
    held.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The start time of a process, in clock ticks since boot; `None` if there is no such process.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let fields = sys::stat_fields(&pid.to_string())?;
    let mut fields = fields.split_whitespace();
    let is_dead = fields.next()? == "Z";
    fields.nth(18)?.parse().ok().filter(|_| !is_dead)
}

/// The file with the names of the hosts, for hosts(5).
pub(super) fn hosts_file(name: &str) -> Outcome<PathBuf> {
    Ok(directory()?.path().join(file(name, "hosts")))
}

fn file(name: &str, ending: &str) -> OsString {
    format!("{name}.{ending}").into()
}

/// The directory of these files.
pub(super) fn directory() -> Outcome<Dir> {
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
