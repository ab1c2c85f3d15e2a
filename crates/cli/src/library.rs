//! Where the verbs libraries are, and the private directory that gives them the names programs ask for.
//!
//! Invariant: a directory that goes into `LD_LIBRARY_PATH` belongs to this user and is closed to everybody else;
//! otherwise another user could plant code. Under `/tmp` somebody may have made the name first, so ownership and
//! mode are checked on the directory itself, never through a link.

use std::fs::{self, DirBuilder, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use crate::failure::{During, Failure, Outcome};

/// The two libraries, each with the names it is loaded by: NCCL opens the bare `.so`, everybody else the SONAME.
const NAMES: [(&str, [&str; 2]); 2] = [
    ("libibverbs.so", ["libibverbs.so.1", "libibverbs.so"]),
    ("librdmacm.so", ["librdmacm.so.1", "librdmacm.so"]),
];

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
            Failure::new(format!(
                "libibverbs.so and librdmacm.so are not built (looked beside {})",
                exe.display()
            ))
            .hint("run: cargo build --release")
        })
    }

    fn inside(dir: &Path) -> Option<Self> {
        let find = |(_, names): &(&str, [&str; 2])| {
            names.iter().map(|name| dir.join(name)).find(|path| path.is_file())
        };
        let files = [find(&NAMES[0])?, find(&NAMES[1])?];
        Some(Self { dir: dir.canonicalize().ok()?, files })
    }

    /// A private directory with all four names as links to the libraries, made or brought up to date.
    pub(crate) fn link(&self) -> Outcome<PathBuf> {
        let dir = private_dir(&format!("lib-{:016x}", fingerprint(&self.dir)))?;
        for ((_, names), file) in NAMES.iter().zip(&self.files) {
            let target = file.canonicalize().during(&file.display().to_string())?;
            for name in names {
                point(&dir.join(name), &target)?;
            }
        }
        Ok(dir)
    }
}

/// A directory of this user's own, mode 0700, under `XDG_RUNTIME_DIR` or `/tmp/roxie-<uid>`.
fn private_dir(name: &str) -> Outcome<PathBuf> {
    let uid = Uid::effective();
    let base = match runtime_dir(uid) {
        Some(runtime) => runtime.join("roxie"),
        None => PathBuf::from(format!("/tmp/roxie-{uid}")),
    };
    own(&base, uid)?;
    let dir = base.join(name);
    own(&dir, uid)?;
    Ok(dir)
}

/// `XDG_RUNTIME_DIR` if it is this user's: `su` leaves somebody else's in the environment.
fn runtime_dir(uid: Uid) -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    // The loader splits its path at these.
    let splits = dir.to_string_lossy().contains([':', ';']);
    let meta = fs::symlink_metadata(&dir).ok()?;
    (dir.is_absolute() && !splits && is_private(&meta, uid)).then_some(dir)
}

fn is_private(meta: &Metadata, uid: Uid) -> bool {
    meta.is_dir() && meta.uid() == uid.as_raw() && meta.mode() & 0o077 == 0
}

/// Makes `dir`, or checks that what is there is safe to use.
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
        "{} is not a directory of user {uid} that others cannot enter (owner {}, mode {:04o}): not used, it could hold somebody else's code",
        dir.display(),
        meta.uid(),
        meta.mode() & 0o7777
    ))
    .hint("remove it, or set XDG_RUNTIME_DIR to a directory of your own with mode 0700"))
}

/// Makes `link` point to `target`. A rename replaces an old link, so a program starting now sees one or the other.
fn point(link: &Path, target: &Path) -> Outcome {
    if fs::read_link(link).is_ok_and(|now| now == target) {
        return Ok(());
    }
    let fresh = link.with_extension(format!("new-{}", std::process::id()));
    let made = match symlink(target, &fresh) {
        // Left by a killed process that had our number.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(&fresh).and_then(|()| symlink(target, &fresh))
        }
        made => made,
    };
    made.and_then(|()| fs::rename(&fresh, link)).during(&format!("linking {}", link.display()))
}

/// FNV-1a of a path: two builds get two directories, so neither disturbs a program of the other.
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
