//! Finds the verbs libraries, and makes the private directory with the names that programs load.
//!
//! A directory that goes into `LD_LIBRARY_PATH` must be private: otherwise another user could place code
//! there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use roxie::private_dir::{FULL, PrivateDir, is_full};
use sys::{Dir, Untrusted, Walk};

use crate::command_dir;
use crate::failure::{During, Failure, Outcome};
use crate::own::bundle::Bundle;
use crate::own::unpacked::unpack;
use crate::user_dir::{LINKS_PREFIX, base_dir, link_dir_name, not_trusted};

/// The library that `LD_AUDIT` names: it makes programs load the other two.
pub(crate) const AUDIT: &str = "libroxie_audit.so";
/// The library that the audit library gives to the program `rdma`.
pub(crate) const PRELOAD: &str = "libroxie_preload.so";

/// The libraries, each with the names that programs load: NCCL opens the `.so` without a version, all other
/// programs the SONAME.
const NAMES: [(&str, &[&str]); 4] = [
    ("libibverbs.so", &["libibverbs.so.1", "libibverbs.so"]),
    ("librdmacm.so", &["librdmacm.so.1", "librdmacm.so", LOADER]),
    (AUDIT, &[AUDIT]),
    (PRELOAD, &[PRELOAD]),
];

/// The loader of glibc, which the libraries need for their thread-local data. A program with glibc has loaded
/// it already. musl's loader searches for the name, and has the functions itself: there librdmacm.so stands
/// in for it. The types of both C libraries are equal on x86-64 only.
const LOADER: &str = "ld-linux-x86-64.so.2";

/// An empty directory is kept for this long: another process may be about to fill it.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The built libraries.
#[derive(Debug)]
pub(crate) struct Libraries {
    /// Directory that holds them.
    pub(crate) dir: PathBuf,
    files: [PathBuf; NAMES.len()],
}

impl Libraries {
    /// Unpacks those that this program contains; otherwise looks beside the executable, in its `deps`, and
    /// in `../lib/roxie`.
    pub(crate) fn find() -> Outcome<Self> {
        let exe = std::env::current_exe().during("finding my own executable")?;
        if let Some(mut bundle) = Bundle::open(&exe).reading(&exe)? {
            let dir = unpack(&mut bundle)?;
            return Self::inside(&dir)
                .ok_or_else(|| Failure::new(format!("{} contains other libraries", exe.display())));
        }
        let bin = exe.parent().unwrap_or(Path::new("/"));
        let places = [bin.to_owned(), bin.join("deps"), bin.join("../lib/roxie")];
        let found = places.iter().find_map(|dir| Self::inside(dir)).ok_or_else(|| {
            let all = format!("libibverbs.so, librdmacm.so, {AUDIT} and {PRELOAD}");
            Failure::new(format!("{all} are not beside {}", exe.display())).hint(
                "'cargo build --release' builds them; keep them in one directory, put the libraries \
                     into ../lib/roxie, or make one file of them with 'roxie self bundle'",
            )
        })?;
        found.refuse_strangers(&exe)?;
        Ok(found)
    }

    /// Fails if another user than root, this user and the owner of this program may have put a library there:
    /// in a directory such as /tmp every user can put one beside a program.
    fn refuse_strangers(&self, exe: &Path) -> Outcome {
        let meta = |path: &Path| fs::symlink_metadata(path).reading(path);
        let trusted = [0, sys::effective_uid(), fs::metadata(exe).reading(exe)?.uid()];
        let targets = self.files.iter().filter(|file| file.is_symlink());
        let targets = targets.filter_map(|file| file.canonicalize().ok());
        // A user that can replace the directory of the program can replace the program, too.
        if Some(&*self.dir) != exe.parent() {
            match Dir::prove(&self.dir, Walk { trust_groups: true, ..Walk::default() }) {
                Err(Untrusted::Owner { owner, .. }) if trusted.contains(&owner) => {}
                Err(why) => return Err(not_trusted(&why)),
                Ok(_) => {}
            }
        }
        for path in self.files.iter().cloned().chain(targets) {
            let owner = meta(&path)?.uid();
            if !trusted.contains(&owner) {
                let text = format!("{} belongs to user {owner}: its code is not used", path.display());
                let hint = "keep the program and its libraries in a directory of your own";
                return Err(Failure::new(text).hint(hint));
            }
        }
        Ok(())
    }

    /// The libraries as pairs of file name and contents.
    pub(crate) fn read(&self) -> Outcome<Vec<(String, Vec<u8>)>> {
        let read = |((name, _), file): (&(&str, _), &PathBuf)| {
            let contents = fs::read(file).reading(file)?;
            Ok(((*name).to_owned(), contents))
        };
        NAMES.iter().zip(&self.files).map(read).collect()
    }

    /// Their files.
    pub(crate) fn files(&self) -> &[PathBuf] {
        &self.files
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
        let [a, b, c, d] = NAMES.each_ref().map(find);
        let files = [a?, b?, c?, d?];
        Some(Self { dir: dir.canonicalize().ok()?, files })
    }

    /// Creates or updates a private directory that has all names as links to the libraries.
    pub(crate) fn link(&self) -> Outcome<PathBuf> {
        self.link_in(&base_dir()?)
    }

    pub(crate) fn link_in(&self, base: &PrivateDir) -> Outcome<PathBuf> {
        let name = link_dir_name(&self.dir);
        let dir = base.dir().private(OsStr::new(&name)).map_err(|why| not_trusted(&why))?;
        let names = base.dir().names().unwrap_or_default();
        command_dir::sweep(base.dir(), &names, SystemTime::now());
        let mut is_new = false;
        for ((_, names), file) in NAMES.iter().zip(&self.files) {
            let target = file.canonicalize().reading(file)?;
            for name in *names {
                is_new |= dir.point(OsStr::new(name), &target).map_err(|error| {
                    let what = format!("linking {}: {error}", dir.path().join(name).display());
                    Failure::new(what).hint_if(is_full(error.kind()).then_some(FULL))
                })?;
            }
        }
        if is_new {
            // Another build may have been removed.
            sweep(base.dir(), &names, SystemTime::now());
        }
        Ok(dir.path().to_owned())
    }
}

/// Removes directories of builds that no longer exist. A directory in use has links to existing libraries.
/// Several processes may try to remove the same directory; one of them succeeds.
/// `names` are those in `base`.
fn sweep(base: &Dir, names: &[OsString], now: SystemTime) {
    let is_ours = |name: &&OsString| name.to_str().is_some_and(|name| name.starts_with(LINKS_PREFIX));
    for name in names.iter().filter(is_ours) {
        let Ok(dir) = base.open_private(name) else { continue };
        if dir.age(now).is_none_or(|age| age < ABANDONED) {
            continue;
        }
        let Ok(links) = dir.names() else { continue };
        let is_dead = |link: &OsString| dir.read_link(link).is_ok_and(|target| !target.exists());
        if links.iter().all(is_dead) {
            // What remains does no harm, and the next call tries again.
            links.iter().for_each(|link| drop(dir.remove_file(link)));
            drop(base.remove_dir(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_directories_of_builds_that_do_not_exist_are_removed() {
        let path = Path::new("/tmp").join(format!("roxie-sweep-{:016x}", sys::random_u64()));
        let base = Dir::prove(&path, Walk { make: Some(0o700), ..Walk::default() }).expect("made");
        let library = path.join("libibverbs.so");
        fs::write(&library, "").expect("a library");
        let make = |name: &str, target: &Path| {
            let dir = base.private(OsStr::new(name)).expect("made").path().to_owned();
            symlink(target, dir.join("libibverbs.so.1")).expect("linked");
            dir
        };
        let (used, gone) = (make("lib-used", &library), make("lib-gone", Path::new("/nonexistent/lib")));
        let (foreign, full) =
            (make("other", Path::new("/nonexistent")), make("lib-full", Path::new("/nonexistent")));
        fs::write(full.join("precious"), "").expect("a file of another program");
        let names = base.names().expect("listed");
        sweep(&base, &names, SystemTime::now());
        assert!(gone.exists(), "another process may be about to fill it");
        let later = SystemTime::now() + 2 * ABANDONED;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| sweep(&base, &names, later));
            }
        });
        assert!(!gone.exists());
        assert!(used.join("libibverbs.so.1").exists() && full.join("precious").exists());
        assert!(foreign.join("libibverbs.so.1").is_symlink());
        fs::remove_dir_all(path).expect("cleaned");
    }
}
