//! Finds the verbs libraries, and makes the private directory with the names that programs load.
//!
//! Invariant: a directory that goes into `LD_LIBRARY_PATH` belongs to this user and other users cannot
//! enter it. Otherwise another user could place code there. Under `/tmp` another user may have created the
//! name first, so ownership and mode are checked on the directory itself, never through a link.

use std::fs::{self, DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::Uid;

use crate::failure::{During, Failure, Outcome};

/// The two libraries, each with the names that programs load: NCCL opens the `.so` without a version, all
/// other programs the SONAME.
const NAMES: [(&str, [&str; 2]); 2] = [
    ("libibverbs.so", ["libibverbs.so.1", "libibverbs.so"]),
    ("librdmacm.so", ["librdmacm.so.1", "librdmacm.so"]),
];

/// Start of the names of these directories; a fingerprint of the path follows.
const PREFIX: &str = "lib-";
/// Number of names that are tried in a directory where other users may create them.
const TEMPORARY_NAMES: u32 = 16;
/// An empty directory is kept for this long: another process may be about to fill it.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The built libraries.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// Directory that holds both.
    pub(crate) dir: PathBuf,
    files: [PathBuf; 2],
}

impl Libraries {
    /// Looks beside the executable, in its `deps`, and in `../lib/roxie`.
    pub(crate) fn find() -> Outcome<Self> {
        let exe = std::env::current_exe().during("finding my own executable")?;
        let bin = exe.parent().unwrap_or(Path::new("/"));
        let places = [bin.to_owned(), bin.join("deps"), bin.join("../lib/roxie")];
        places.iter().find_map(|dir| Self::inside(dir)).ok_or_else(|| {
            Failure::new(format!("libibverbs.so and librdmacm.so are not beside {}", exe.display())).hint(
                "'cargo build --release' builds all three; keep them in one directory, or put the \
                     libraries into ../lib/roxie",
            )
        })
    }

    fn inside(dir: &Path) -> Option<Self> {
        let find = |(_, names): &(&str, [&str; 2])| {
            names.iter().map(|name| dir.join(name)).find(|path| path.is_file())
        };
        let files = [find(&NAMES[0])?, find(&NAMES[1])?];
        Some(Self { dir: dir.canonicalize().ok()?, files })
    }

    /// Creates or updates a private directory that has all four names as links to the libraries.
    pub(crate) fn link(&self) -> Outcome<PathBuf> {
        let dir = private_dir(&format!("{PREFIX}{:016x}", fingerprint(&self.dir)))?;
        if let Some(base) = dir.parent() {
            sweep(base, SystemTime::now());
        }
        for ((_, names), file) in NAMES.iter().zip(&self.files) {
            let target = file.canonicalize().during(&file.display().to_string())?;
            for name in names {
                point(&dir.join(name), &target)?;
            }
        }
        Ok(dir)
    }
}

/// A directory of this user with mode 0700, under `XDG_RUNTIME_DIR`, or under `roxie-<uid>` in `TMPDIR` or
/// `/tmp`.
pub(crate) fn private_dir(name: &str) -> Outcome<PathBuf> {
    let uid = Uid::effective();
    let base = match runtime_dir(uid) {
        Some(runtime) => {
            let base = runtime.join("roxie");
            own(&base, uid)?;
            base
        }
        None => temporary(&temp_dir(), uid)?,
    };
    let dir = base.join(name);
    own(&dir, uid)?;
    Ok(dir)
}

/// `roxie-<uid>` in a directory that all users may write to. Another user may have created that name; in
/// two user namespaces the same number can mean two users.
fn temporary(dir: &Path, uid: Uid) -> Outcome<PathBuf> {
    let others = (2..=TEMPORARY_NAMES).map(|n| format!("roxie-{uid}-{n}"));
    let places: Vec<_> =
        std::iter::once(format!("roxie-{uid}")).chain(others).map(|name| dir.join(name)).collect();
    let is_ours = |place: &&PathBuf| fs::symlink_metadata(place).is_ok_and(|meta| is_private(&meta, uid));
    if let Some(place) = places.iter().find(is_ours) {
        return Ok(place.clone());
    }
    let (first, others) = places.split_first().expect("there are some names");
    let refusal = match own(first, uid) {
        Ok(()) => return Ok(first.clone()),
        Err(refusal) => refusal,
    };
    others.iter().find(|place| own(place, uid).is_ok()).cloned().ok_or(refusal)
}

/// `TMPDIR` if its path can be in `LD_LIBRARY_PATH`, else `/tmp`.
fn temp_dir() -> PathBuf {
    let dir = std::env::temp_dir();
    if dir.is_absolute() && !is_split(&dir) { dir } else { PathBuf::from("/tmp") }
}

/// The loader splits `LD_LIBRARY_PATH` at these characters.
fn is_split(dir: &Path) -> bool {
    dir.to_string_lossy().contains([':', ';'])
}

/// Whether `XDG_RUNTIME_DIR` exists and belongs to this user.
pub(crate) fn has_runtime_dir() -> bool {
    runtime_dir(Uid::effective()).is_some()
}

/// `XDG_RUNTIME_DIR` if it belongs to this user: `su` keeps the value of the other user.
fn runtime_dir(uid: Uid) -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    let meta = fs::symlink_metadata(&dir).ok()?;
    (dir.is_absolute() && !is_split(&dir) && is_private(&meta, uid)).then_some(dir)
}

fn is_private(meta: &Metadata, uid: Uid) -> bool {
    meta.is_dir() && meta.uid() == uid.as_raw() && meta.mode() & 0o077 == 0
}

/// Creates `dir`, or checks that an existing one is safe to use.
fn own(dir: &Path, uid: Uid) -> Outcome {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Failure::new(format!("making {}: {error}", dir.display()))),
    }
    let meta = fs::symlink_metadata(dir).during(&dir.display().to_string())?;
    if is_private(&meta, uid) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} is not a directory of user {uid} that other users cannot enter (owner {}, mode {:04o}): \
         not used, it could hold the code of another user",
        dir.display(),
        meta.uid(),
        meta.mode() & 0o7777
    ))
    .hint("remove it, or set XDG_RUNTIME_DIR to a directory of your own with mode 0700"))
}

/// Makes `link` point to `target`. It replaces an old link by a rename, so a program that starts meanwhile
/// finds the old or the new one.
fn point(link: &Path, target: &Path) -> Outcome {
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
        let ours = dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        let age = fs::symlink_metadata(&dir).ok().filter(Metadata::is_dir).and_then(|meta| {
            // A time in the future counts as now: clocks differ.
            now.duration_since(meta.modified().ok()?).ok()
        });
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

/// FNV-1a hash of a path: two builds get two directories and do not disturb each other's programs.
fn fingerprint(path: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("roxie-cli-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the test");
        dir
    }

    #[test]
    fn a_new_directory_is_closed_to_others() {
        let dir = scratch("new").join("own");
        own(&dir, Uid::effective()).expect("made");
        assert_eq!(fs::metadata(&dir).expect("there").mode() & 0o777, 0o700);
        own(&dir, Uid::effective()).expect("usable the second time");
        fs::remove_dir_all(dir.parent().expect("parent")).expect("cleaned");
    }

    #[test]
    fn a_link_or_an_open_directory_in_its_place_is_refused() {
        let base = scratch("refuse");
        let (link, open) = (base.join("link"), base.join("open"));
        symlink("/tmp", &link).expect("link");
        fs::create_dir(&open).expect("open directory");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("mode");
        assert!(own(&link, Uid::effective()).is_err());
        assert!(own(&open, Uid::effective()).is_err());
        assert!(own(&base, Uid::from_raw(Uid::effective().as_raw() + 1)).is_err());
        fs::remove_dir_all(base).expect("cleaned");
    }

    #[test]
    fn a_name_that_another_user_has_taken_is_not_used() {
        let (base, uid) = (scratch("taken"), Uid::effective());
        let name = |n: &str| base.join(format!("roxie-{uid}{n}"));
        symlink("/tmp", name("")).expect("link");
        fs::create_dir(name("-2")).expect("open directory");
        fs::set_permissions(name("-2"), fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(temporary(&base, uid).expect("another name"), name("-3"));
        fs::remove_file(name("")).expect("removed");
        assert_eq!(temporary(&base, uid).expect("the same again"), name("-3"));
        (4..=TEMPORARY_NAMES).for_each(|n| fs::write(name(&format!("-{n}")), "").expect("a file"));
        fs::remove_dir(name("-3")).expect("empty");
        fs::write(name(""), "").and_then(|()| fs::write(name("-3"), "")).expect("files");
        let refusal = temporary(&base, uid).expect_err("no name is left").to_string();
        assert!(refusal.contains(&*name("").to_string_lossy()), "{refusal}");
        fs::remove_dir_all(base).expect("cleaned");
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
