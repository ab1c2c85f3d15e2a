//! The directory into which a program unpacks the libraries that it contains.
//!
//! All processes of a user that run the same build share one directory. Its name has the fingerprint of the
//! libraries, so builds do not disturb each other. The files are compared with their CRC at each start.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::statvfs::{FsFlags, fstatvfs};
use roxie::private_dir::{FULL, PrivateDir, is_full};
use sys::{Dir, Untrusted, Walk};

use super::bundle::Bundle;
use crate::failure::{Failure, Outcome};
use crate::user_dir::{self, link_dir_name, not_trusted};

/// Start of the directory's name; the fingerprint follows.
pub(super) const PREFIX: &str = "files-";
/// The directory of a build is kept for this long after its last use. Programs that `roxie env` started may
/// use it for longer: it is also kept while a process names it.
pub(crate) const UNUSED: Duration = Duration::from_secs(7 * 24 * 3600);
/// The time of the last use is written at most this often.
const USE_STEP: Duration = Duration::from_secs(3600);

/// Makes the directory of this build contain its libraries, and returns it.
pub(crate) fn unpack(bundle: &mut Bundle) -> Outcome<PathBuf> {
    let (base, dir) = directory(&format!("{PREFIX}{:08x}", bundle.fingerprint))?;
    let now = SystemTime::now();
    if dir.age(now).is_none_or(|age| age > USE_STEP) {
        // Only the removal of old builds reads it.
        dir.set_modified(now).ok();
    }
    bundle.unpack(&dir).map_err(|error| not_unpacked(dir.path(), &error))?;
    sweep(&base, PREFIX, now, UNUSED);
    Ok(dir.path().to_owned())
}

/// The private directory and the one with this name in it, on a file system from which libraries can be
/// loaded.
fn directory(name: &str) -> Outcome<(Dir, Dir)> {
    let inside = |base: &Dir| base.private(OsStr::new(name)).map_err(|why| not_trusted(&why));
    let base = user_dir::base_dir()?.into_dir();
    let dir = inside(&base)?;
    if may_execute(&dir) {
        return Ok((base, dir));
    }
    let refused = || {
        let shown = dir.path().display();
        Failure::new(format!("{shown} is on a file system without execution (noexec)"))
            .hint("set XDG_CACHE_HOME or TMPDIR to a directory where libraries may be loaded")
    };
    // The empty directory stays for another user or process that is about to fill it.
    let base = cache_base(true).ok_or_else(refused)?.map_err(|why| not_trusted(&why))?;
    let dir = inside(&base)?;
    if may_execute(&dir) { Ok((base, dir)) } else { Err(refused()) }
}

/// `roxie` in the cache directory of the user.
fn cache_base(shall_make: bool) -> Option<Result<Dir, Untrusted>> {
    let rules = Walk { make: shall_make.then_some(0o700), ..Walk::default() };
    let name = OsStr::new("roxie");
    // The path of the libraries is that of links, which the loader does not read.
    Some(Dir::prove(&cache_dir()?, rules).and_then(|dir| match shall_make {
        true => dir.private(name),
        false => dir.open_private(name),
    }))
}

/// Where a user keeps files that can be made again.
fn cache_dir() -> Option<PathBuf> {
    let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    named.or_else(|| Some(home()?.join(".cache")))
}

fn may_execute(dir: &Dir) -> bool {
    fstatvfs(dir).is_ok_and(|fs| !fs.flags().contains(FsFlags::ST_NOEXEC))
}

fn not_unpacked(dir: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        kind if is_full(kind) => Some(FULL),
        ErrorKind::InvalidData => Some("copy the program again; 'strip' damages it"),
        _ => None,
    };
    Failure::new(format!("unpacking the libraries into {}: {error}", dir.display())).hint_if(hint)
}

/// Removes the private directories with this start of their names that were not used for `unused` and that no
/// process names.
pub(crate) fn sweep(base: &Dir, prefix: &str, now: SystemTime, unused: Duration) -> Vec<PathBuf> {
    let is_old = |name: &OsString| {
        let dir = base.open_private(name).ok().filter(|dir| dir.age(now).is_some_and(|age| age >= unused));
        dir.is_some_and(|dir| !is_named(dir.path()))
    };
    let is_ours = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with(prefix));
    let names = base.names().unwrap_or_default().into_iter().filter(is_ours);
    let removed = names.filter(is_old).filter(|name| base.remove_private(name).is_ok());
    removed.map(|name| base.path().join(name)).collect()
}

/// The unpacked directories of this user, in each place where they may be.
pub(super) fn bases() -> Vec<Dir> {
    let temporary = user_dir::base_dir().ok().map(PrivateDir::into_dir);
    temporary.into_iter().chain(cache_base(false).and_then(Result::ok)).collect()
}

/// Whether a process of this user has loaded a library of `dir`, or loads the libraries in programs that it
/// will start: its environment names the directory of the links.
fn is_named(dir: &Path) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    let mut words = vec![dir.to_string_lossy().into_owned()];
    words.extend(dir.canonicalize().map(|dir| link_dir_name(&dir)));
    let names = |file: PathBuf| {
        let Ok(text) = fs::read(file) else { return false };
        words.iter().any(|word| contains(&text, word.as_bytes()))
    };
    let own = std::process::id().to_string();
    processes
        .flatten()
        .filter(|process| process.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|process| process.file_name().to_string_lossy() != own)
        .any(|process| names(process.path().join("maps")) || names(process.path().join("environ")))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    !word.is_empty() && text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_old_builds_are_removed_unless_a_process_names_them() {
        let path = Path::new("/tmp").join(format!("roxie-unpacked-{:016x}", sys::random_u64()));
        let base = Dir::prove(&path, Walk { make: Some(0o700), ..Walk::default() }).expect("made");
        let make = |name: &str| {
            let dir = base.private(OsStr::new(name)).expect("made").path().to_owned();
            fs::write(dir.join("libibverbs.so"), "").expect("a library");
            dir
        };
        let (old, named, other) = (make("files-00000001"), make("files-00000002"), make("other-00000003"));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("ROXIE_TEST", named.join("libibverbs.so"))
            .spawn()
            .expect("a process");
        let now = SystemTime::now();
        assert!(sweep(&base, PREFIX, now, UNUSED).is_empty(), "all are new");
        let removed = sweep(&base, PREFIX, now + 2 * UNUSED, UNUSED);
        child.kill().and_then(|()| child.wait()).expect("ended");
        assert_eq!(removed, [old]);
        assert!(named.exists() && other.exists());
        fs::remove_dir_all(path).expect("cleaned");
    }
}
