//! Finds the verbs libraries, and makes the private directory with the names that programs load.
//!
//! A directory that goes into `LD_LIBRARY_PATH` must be private: otherwise another user could place code
//! there.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use roxie::private_dir::PrivateDirError;

use crate::failure::{During, Failure, Outcome};
use crate::own::{self, Bundle};

/// The library that `LD_AUDIT` names: it makes programs load the other two.
pub(crate) const AUDIT: &str = "libroxie_audit.so";

/// The libraries, each with the names that programs load: NCCL opens the `.so` without a version, all other
/// programs the SONAME.
const NAMES: [(&str, &[&str]); 3] = [
    ("libibverbs.so", &["libibverbs.so.1", "libibverbs.so"]),
    ("librdmacm.so", &["librdmacm.so.1", "librdmacm.so", LOADER]),
    (AUDIT, &[AUDIT]),
];

/// The loader of glibc, which the libraries need for their thread-local data. A program with glibc has loaded
/// it already. musl's loader searches for the name, and has the functions itself: there librdmacm.so stands
/// in for it. The types of both C libraries are equal on x86-64 only.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Start of the names of these directories; a fingerprint of the path follows.
const PREFIX: &str = "lib-";
/// Start of the names of the directories of running commands; a process id follows.
const RUN_PREFIX: &str = "run-";
/// Start of the names of the directories of checked commands; a process id follows.
const CHECK_PREFIX: &str = "check-";
/// Start of the names of the directories of traced commands; a process id follows.
const TRACE_PREFIX: &str = "trace-";
/// Start of the names of the directories of captured commands; a process id follows.
const CAPTURE_PREFIX: &str = "capture-";
/// An empty directory is kept for this long: another process may be about to fill it.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The built libraries.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// Directory that holds them.
    pub(crate) dir: PathBuf,
    files: [PathBuf; 3],
}

impl Libraries {
    /// Unpacks those that this program contains; otherwise looks beside the executable, in its `deps`, and
    /// in `../lib/roxie`.
    pub(crate) fn find() -> Outcome<Self> {
        let exe = std::env::current_exe().during("finding my own executable")?;
        if let Some(mut bundle) = Bundle::open(&exe).during(&exe.display().to_string())? {
            let dir = own::unpack(&mut bundle)?;
            return Self::inside(&dir)
                .ok_or_else(|| Failure::new(format!("{} contains other libraries", exe.display())));
        }
        let bin = exe.parent().unwrap_or(Path::new("/"));
        let places = [bin.to_owned(), bin.join("deps"), bin.join("../lib/roxie")];
        places.iter().find_map(|dir| Self::inside(dir)).ok_or_else(|| {
            Failure::new(format!("libibverbs.so, librdmacm.so and {AUDIT} are not beside {}", exe.display()))
                .hint(
                    "'cargo build --release' builds all four; keep them in one directory, put the libraries \
                     into ../lib/roxie, or make one file of them with 'roxie self bundle'",
                )
        })
    }

    /// The libraries as pairs of file name and contents.
    pub(crate) fn read(&self) -> Outcome<Vec<(String, Vec<u8>)>> {
        let read = |((name, _), file): (&(&str, _), &PathBuf)| {
            let contents = fs::read(file).during(&file.display().to_string())?;
            Ok(((*name).to_owned(), contents))
        };
        NAMES.iter().zip(&self.files).map(read).collect()
    }

    /// For each library the names that programs load, and its contents.
    pub(crate) fn by_names(&self) -> Outcome<impl Iterator<Item = (&'static [&'static str], Vec<u8>)>> {
        Ok(NAMES.iter().map(|(_, names)| *names).zip(self.read()?.into_iter().map(|(_, bytes)| bytes)))
    }

    /// Those in `dir`, if it has all of them.
    pub(crate) fn inside(dir: &Path) -> Option<Self> {
        let find = |(_, names): &(&str, &[&str])| {
            names.iter().map(|name| dir.join(name)).find(|path| path.is_file())
        };
        let files = [find(&NAMES[0])?, find(&NAMES[1])?, find(&NAMES[2])?];
        Some(Self { dir: dir.canonicalize().ok()?, files })
    }

    /// Creates or updates a private directory that has all names as links to the libraries.
    pub(crate) fn link(&self) -> Outcome<PathBuf> {
        let dir = private_dir(&link_dir_name(&self.dir))?;
        if let Some(base) = dir.parent() {
            sweep(base, SystemTime::now());
        }
        for ((_, names), file) in NAMES.iter().zip(&self.files) {
            let target = file.canonicalize().during(&file.display().to_string())?;
            for name in *names {
                point(&dir.join(name), &target)?;
            }
        }
        Ok(dir)
    }
}

/// The directory by which the programs of one command tell that they opened the device. It is named after
/// this process, which becomes the command; the audit library removes it at the end of the command.
pub(crate) fn run_dir() -> Outcome<PathBuf> {
    private_dir(&format!("{RUN_PREFIX}{}", std::process::id()))
}

/// The directory in which the processes of a checked command record findings, named after this process.
pub(crate) fn check_dir() -> Outcome<PathBuf> {
    empty_dir(CHECK_PREFIX)
}

/// The directory in which the threads of a traced command record events, named after this process.
pub(crate) fn trace_dir() -> Outcome<PathBuf> {
    empty_dir(TRACE_PREFIX)
}

/// The directory with the socket for the engines of a captured command, named after this process.
pub(crate) fn capture_dir() -> Outcome<PathBuf> {
    empty_dir(CAPTURE_PREFIX)
}

/// The private directory of this process with this prefix, without the files of a process that had the number
/// of this one before.
fn empty_dir(prefix: &str) -> Outcome<PathBuf> {
    let dir = private_dir(&format!("{prefix}{}", std::process::id()))?;
    for old in fs::read_dir(&dir).during(&dir.display().to_string())?.flatten() {
        fs::remove_file(old.path()).ok();
    }
    Ok(dir)
}

/// A directory of this user that other users cannot enter.
pub(crate) fn private_dir(name: &str) -> Outcome<PathBuf> {
    roxie::private_dir::private_dir(name).map_err(|error| not_private(&error))
}

/// The failure to make a private directory.
pub(crate) fn not_private(error: &PrivateDirError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error.remedy() {
        Some(remedy) => failure.hint(remedy),
        None => failure,
    }
}

/// Makes `link` point to `target`. It replaces an old link by a rename, so a program that starts meanwhile
/// finds the old or the new one.
pub(crate) fn point(link: &Path, target: &Path) -> Outcome {
    if fs::read_link(link).is_ok_and(|now| now == target) {
        return Ok(());
    }
    let fresh = link.with_extension(format!("new-{}", std::process::id()));
    let made = match symlink(target, &fresh) {
        // Left by a killed process with the same process id.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(&fresh).and_then(|()| symlink(target, &fresh))
        }
        made => made,
    };
    made.and_then(|()| fs::rename(&fresh, link)).during(&format!("linking {}", link.display()))
}

/// Removes directories of builds that no longer exist. A directory in use has links to existing libraries.
/// Several processes may try to remove the same directory; one of them succeeds.
fn sweep(base: &Path, now: SystemTime) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for dir in entries.flatten().map(|entry| entry.path()) {
        let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let process = [RUN_PREFIX, CHECK_PREFIX, TRACE_PREFIX, CAPTURE_PREFIX];
        let process = process.iter().find_map(|prefix| name.strip_prefix(prefix));
        let has_ended = process.is_some_and(|pid| !Path::new("/proc").join(pid).exists());
        let ours = name.starts_with(PREFIX);
        let age = fs::symlink_metadata(&dir).ok().filter(Metadata::is_dir).and_then(|meta| {
            // A time in the future counts as now: clocks differ.
            now.duration_since(meta.modified().ok()?).ok()
        });
        if has_ended && age.is_some() {
            // Of a command that ended without running destructors, as by a signal.
            drop(fs::remove_dir_all(&dir));
            continue;
        }
        if !ours || age.is_none_or(|age| age < ABANDONED) {
            continue;
        }
        let Ok(links) = fs::read_dir(&dir) else { continue };
        let links: Vec<PathBuf> = links.flatten().map(|entry| entry.path()).collect();
        if links.iter().all(|link| link.is_symlink() && !link.exists()) {
            // What remains does no harm, and the next call tries again.
            links.iter().for_each(|link| drop(fs::remove_file(link)));
            drop(fs::remove_dir(&dir));
        }
    }
}

/// The name of the directory with the links to the libraries in `dir`.
pub(crate) fn link_dir_name(dir: &Path) -> String {
    format!("{PREFIX}{:016x}", fingerprint(dir))
}

/// FNV-1a hash of a path: two builds get two directories and do not disturb each other's programs.
fn fingerprint(path: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("roxie-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the test");
        dir
    }

    #[test]
    fn only_directories_of_builds_that_do_not_exist_are_removed() {
        let base = scratch("sweep");
        let library = base.join("libibverbs.so");
        fs::write(&library, "").expect("a library");
        let make = |name: &str, target: &Path| {
            let dir = base.join(name);
            fs::create_dir(&dir).expect("made");
            symlink(target, dir.join("libibverbs.so.1")).expect("linked");
            dir
        };
        let (used, gone) = (make("lib-used", &library), make("lib-gone", Path::new("/nonexistent/lib")));
        let (foreign, full) =
            (make("other", Path::new("/nonexistent")), make("lib-full", Path::new("/nonexistent")));
        fs::write(full.join("precious"), "").expect("a file of another program");
        // No process has a number above 4194304 (proc(5), pid_max).
        let runs =
            [format!("run-{}", std::process::id()), "run-5000000".to_owned()].map(|name| base.join(name));
        runs.iter().for_each(|dir| fs::create_dir(dir).expect("made"));
        sweep(&base, SystemTime::now());
        assert!(gone.exists(), "another process may be about to fill it");
        let later = SystemTime::now() + 2 * ABANDONED;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| sweep(&base, later));
            }
        });
        assert!(!gone.exists());
        assert!(used.join("libibverbs.so.1").exists() && full.join("precious").exists());
        assert!(foreign.join("libibverbs.so.1").is_symlink());
        assert!(runs[0].exists() && !runs[1].exists(), "only commands that have ended");
        fs::remove_dir_all(base).expect("cleaned");
    }

    #[test]
    fn a_link_follows_its_library() {
        let base = scratch("point");
        let link = base.join("libibverbs.so.1");
        for target in ["/a", "/b", "/b"] {
            point(&link, Path::new(target)).expect("linked");
            assert_eq!(fs::read_link(&link).expect("a link"), Path::new(target));
        }
        assert_eq!(fs::read_dir(&base).expect("listed").count(), 1, "nothing is left over");
        fs::remove_dir_all(base).expect("cleaned");
    }
}
