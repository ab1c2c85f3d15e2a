//! A private directory of one command, such as the one into which its processes write findings.
//!
//! Its name is `PREFIX-PID-RANDOM`: processes of two process-ID namespaces that share the directory above may
//! have the same number. The process that made it holds its lock (flock(2)) while the command runs. So a
//! later command can tell a directory in use from one that a killed process left, in whatever namespace that
//! was.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, SystemTime};

use roxie::private_dir::PrivateDir;
use sys::Dir;

use crate::failure::Outcome;
use crate::user_dir::{base_dir, not_trusted};

/// What a directory is for: the first part of its name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    /// The programs of a command tell that they opened the device. The audit library takes over the lock and
    /// removes the directory at the end of the command.
    Run,
    /// The processes of a checked command record findings.
    Check,
    /// The threads of a traced command record events.
    Trace,
    /// The socket for the engines of a captured command.
    Capture,
}

impl Purpose {
    const ALL: [Purpose; 4] = [Purpose::Run, Purpose::Check, Purpose::Trace, Purpose::Capture];

    fn prefix(self) -> &'static str {
        match self {
            Purpose::Run => "run",
            Purpose::Check => "check",
            Purpose::Trace => "trace",
            Purpose::Capture => "capture",
        }
    }
}

/// A directory without a lock is kept for this long: the command may be starting, between the end of `roxie`
/// and the constructor of the audit library.
const ABANDONED: Duration = Duration::from_secs(60);

/// Whether `dir` is the directory of a `roxie run` of this user.
pub(crate) fn is_of_a_run(dir: &Path) -> bool {
    let name = dir.file_name().and_then(OsStr::to_str);
    name.and_then(|name| name.strip_prefix(Purpose::Run.prefix())).is_some_and(|rest| rest.starts_with('-'))
        && base_dir().is_ok_and(|base| dir.parent() == Some(base.dir().path()))
        && Dir::own(dir).is_ok()
}

/// The directory of a command of this process; removed on drop.
#[derive(Debug)]
pub(crate) struct CommandDir {
    base: PrivateDir,
    dir: Dir,
}

impl CommandDir {
    /// Makes a directory, and takes its lock.
    pub(crate) fn new(purpose: Purpose) -> Outcome<Self> {
        Self::in_base(base_dir()?, purpose)
    }

    pub(crate) fn in_base(base: PrivateDir, purpose: Purpose) -> Outcome<Self> {
        let made = base.dir().new_private(purpose.prefix(), std::process::id());
        let dir = made.map_err(|why| not_trusted(&why))?;
        Ok(Self { base, dir })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Opens the directory a second time, without its lock.
    pub(crate) fn reopen(&self) -> Outcome<Dir> {
        Dir::own(self.path()).map_err(|why| not_trusted(&why))
    }

    /// Its path, for the environment of the command.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for CommandDir {
    fn drop(&mut self) {
        let Some(name) = self.dir.path().file_name() else { return };
        // If it fails, a later command removes the directory.
        self.base.dir().remove_private(name).ok();
    }
}

/// Removes the directories of commands that ended without doing so, as by a signal.
/// `names` are those in `base`.
pub(crate) fn sweep(base: &Dir, names: &[OsString], now: SystemTime) {
    let is_ours = |name: &&OsString| {
        let purpose = name.to_str().and_then(|name| name.split_once('-')).map(|(purpose, _)| purpose);
        Purpose::ALL.iter().any(|ours| Some(ours.prefix()) == purpose)
    };
    for name in names.iter().filter(is_ours).filter(|name| is_abandoned(base, name, now)) {
        // What remains does no harm, and the next call tries again.
        base.remove_private(name).ok();
    }
}

fn is_abandoned(base: &Dir, name: &OsString, now: SystemTime) -> bool {
    let Ok(dir) = base.open_private(name) else { return false };
    dir.age(now).is_some_and(|age| age >= ABANDONED) && dir.try_lock().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;

    use sys::Walk;

    use super::*;

    #[test]
    fn only_directories_without_a_lock_are_removed() {
        let path = Path::new("/tmp").join(format!("roxie-command-{:016x}", sys::random_u64()));
        let base = Dir::prove(&path, Walk { make: Some(0o700), ..Walk::default() }).expect("made");
        let used = base.new_private("check", 1).expect("made");
        // The same number in another namespace.
        let other = base.new_private("check", 1).expect("made").path().to_owned();
        fs::write(other.join("1-0.jsonl"), "a finding").expect("written");
        let foreign = base.private(OsStr::new("lab")).expect("made");
        let names = base.names().expect("listed");
        sweep(&base, &names, SystemTime::now());
        assert!(other.exists(), "its command may be starting");
        sweep(&base, &names, SystemTime::now() + 2 * ABANDONED);
        assert!(!other.exists());
        assert!(used.path().exists() && foreign.path().exists());
        fs::remove_dir_all(path).expect("cleaned");
    }

    /// A caller with another user's rights may have left any path in the environment.
    #[test]
    fn only_directories_of_commands_are_taken_for_one() {
        let (run, check) = (CommandDir::new(Purpose::Run), CommandDir::new(Purpose::Check));
        let (run, check) = (run.expect("made"), check.expect("made"));
        assert!(is_of_a_run(run.path()));
        let inside = run.path().join("run-1-0");
        fs::create_dir(&inside).expect("made");
        for other in [check.path(), &inside, Path::new("/run-1-0"), Path::new("/tmp"), Path::new("")] {
            assert!(!is_of_a_run(other), "{other:?}");
        }
        fs::remove_dir(inside).expect("removed");
    }
}
