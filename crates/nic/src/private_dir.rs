//! The directory of this user that no other user can enter: for links to the libraries, and for sockets.
//!
//! Invariant: a directory returned from here belongs to this user, and other users cannot enter it. Under
//! `/tmp` another user may have created the name first, so owner and mode are checked on the directory
//! itself, never through a link.

use std::fmt;
use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sys::effective_uid;

/// Number of names that are tried in a directory where other users may create them.
const TEMPORARY_NAMES: u32 = 16;

/// Returns a directory of this user with mode 0700, under `XDG_RUNTIME_DIR`, or under `roxie-<uid>` in
/// `TMPDIR` or `/tmp`. Creates it if necessary.
///
/// # Errors
/// No such directory can be created, or the names belong to other users.
pub fn private_dir(name: &str) -> Result<PathBuf, PrivateDirError> {
    let uid = effective_uid();
    let base = match runtime_dir(uid) {
        Some(runtime) => return private_dir_below(&runtime, name),
        None => temporary(&temp_dir(), uid)?,
    };
    let dir = base.join(name);
    own(&dir, uid)?;
    Ok(dir)
}

/// Returns the directory `roxie/NAME` below `parent`, both of this user with mode 0700. Creates them if
/// necessary. `parent` must exist.
///
/// # Errors
/// As [`private_dir`].
pub fn private_dir_below(parent: &Path, name: &str) -> Result<PathBuf, PrivateDirError> {
    let (uid, base) = (effective_uid(), parent.join("roxie"));
    own(&base, uid)?;
    let dir = base.join(name);
    own(&dir, uid)?;
    Ok(dir)
}

/// Whether `XDG_RUNTIME_DIR` exists and belongs to this user.
#[must_use]
pub fn has_runtime_dir() -> bool {
    runtime_dir(effective_uid()).is_some()
}

/// `roxie-<uid>` in a directory that all users may write to. Another user may have created that name; in
/// two user namespaces the same number can mean two users.
fn temporary(dir: &Path, uid: u32) -> Result<PathBuf, PrivateDirError> {
    let others = (2..=TEMPORARY_NAMES).map(|n| format!("roxie-{uid}-{n}"));
    let places: Vec<_> =
        std::iter::once(format!("roxie-{uid}")).chain(others).map(|name| dir.join(name)).collect();
    if let Some(place) = places.iter().find(|place| is_private(place, uid)) {
        return Ok(place.clone());
    }
    let mut refusal = None;
    for place in &places {
        match own(place, uid) {
            Ok(()) => return Ok(place.clone()),
            Err(error) => _ = refusal.get_or_insert(error),
        }
    }
    Err(refusal.expect("there are some names"))
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

/// `XDG_RUNTIME_DIR` if it belongs to this user: `su` keeps the value of the other user.
fn runtime_dir(uid: u32) -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    (dir.is_absolute() && !is_split(&dir) && is_private(&dir, uid)).then_some(dir)
}

/// True if the directory belongs to this user and no other user can enter it.
fn is_private(dir: &Path, uid: u32) -> bool {
    let closed = |meta: Metadata| meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0;
    fs::symlink_metadata(dir).is_ok_and(closed) && is_owner(dir)
}

/// Lets the kernel compare owner and user: a user namespace shows all ids without a mapping as one. Only the
/// owner may open with O_NOATIME, and a process that is privileged over a mapped owner (open(2)).
fn is_owner(dir: &Path) -> bool {
    let flags = libc::O_NOATIME | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(dir).is_ok()
}

/// Creates `dir`, or checks that an existing one is safe to use.
fn own(dir: &Path, uid: u32) -> Result<(), PrivateDirError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(PrivateDirError::NotMade { dir: dir.to_owned(), error }),
    }
    if is_private(dir, uid) {
        return Ok(());
    }
    match fs::symlink_metadata(dir) {
        Ok(meta) => {
            let (owner, mode) = (meta.uid(), meta.mode() & 0o7777);
            Err(PrivateDirError::NotPrivate { dir: dir.to_owned(), uid, owner, mode })
        }
        Err(error) => Err(PrivateDirError::NotMade { dir: dir.to_owned(), error }),
    }
}

/// Why there is no private directory.
#[derive(Debug)]
pub enum PrivateDirError {
    /// It cannot be created or examined.
    NotMade {
        /// Its path.
        dir: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// Its name exists, and other users may control it.
    NotPrivate {
        /// Its path.
        dir: PathBuf,
        /// The user of this process.
        uid: u32,
        /// The owner of the directory.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
}

impl PrivateDirError {
    /// What the user can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            PrivateDirError::NotMade { .. } => None,
            PrivateDirError::NotPrivate { .. } => {
                Some("remove it, or set XDG_RUNTIME_DIR to a directory of your own with mode 0700")
            }
        }
    }
}

impl fmt::Display for PrivateDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PrivateDirError::NotMade { dir, error } => write!(f, "making {}: {error}", dir.display()),
            PrivateDirError::NotPrivate { dir, uid, owner, mode } => write!(
                f,
                "{} is not a directory of user {uid} that other users cannot enter (owner {owner}, mode \
                 {mode:04o}): not used, it could hold the code of another user",
                dir.display()
            ),
        }
    }
}

impl std::error::Error for PrivateDirError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("roxie-private-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the test");
        dir
    }

    #[test]
    fn a_new_directory_is_closed_to_others() {
        let dir = scratch("new").join("own");
        own(&dir, effective_uid()).expect("made");
        assert_eq!(fs::metadata(&dir).expect("there").mode() & 0o777, 0o700);
        own(&dir, effective_uid()).expect("usable the second time");
        fs::remove_dir_all(dir.parent().expect("parent")).expect("cleaned");
    }

    #[test]
    fn a_link_or_an_open_directory_in_its_place_is_refused() {
        let base = scratch("refuse");
        let (link, open) = (base.join("link"), base.join("open"));
        symlink("/tmp", &link).expect("link");
        fs::create_dir(&open).expect("open directory");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("mode");
        assert!(own(&link, effective_uid()).is_err());
        assert!(own(&open, effective_uid()).is_err());
        assert!(own(&base, effective_uid() + 1).is_err());
        fs::remove_dir_all(base).expect("cleaned");
    }

    #[test]
    fn a_name_that_another_user_has_taken_is_not_used() {
        let (base, uid) = (scratch("taken"), effective_uid());
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
}
