//! The directory of this user that no other user can enter: for links to the libraries, and for sockets.
//!
//! It is `XDG_RUNTIME_DIR/roxie`, or `roxie-<uid>` in `TMPDIR`, `/tmp` or `/var/tmp`. A place is used only if
//! no other user can put another directory there, now or later (`sys::Dir`).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sys::{Dir, Untrusted, Walk, effective_uid};

/// Number of names that are tried in a directory where other users may create them.
const TEMPORARY_NAMES: u32 = 16;
/// Where every machine has temporary files.
const TEMPORARY: [&str; 2] = ["/tmp", "/var/tmp"];

/// Returns a directory, or why it is not used.
type Accept = fn(Dir) -> Result<Dir, Untrusted>;

/// The private directory, and the places that were passed over for it.
#[derive(Debug)]
pub struct PrivateDir {
    dir: Dir,
    refused: Vec<Refused>,
}

/// A place that a variable names and that is not used.
#[derive(Debug)]
pub struct Refused {
    /// `XDG_RUNTIME_DIR` or `TMPDIR`.
    pub variable: &'static str,
    /// Its value.
    pub place: PathBuf,
    /// The reason.
    pub why: Untrusted,
}

impl PrivateDir {
    /// Opens the private directory of this user, in which it can make files. Makes it if necessary.
    ///
    /// # Errors
    /// No place can be used.
    pub fn open() -> Result<PrivateDir, NoPrivateDir> {
        Self::find(Dir::writable)
    }

    fn find(accept: Accept) -> Result<PrivateDir, NoPrivateDir> {
        let temporary = TEMPORARY.map(Path::new);
        Self::among(named("XDG_RUNTIME_DIR").as_deref(), named("TMPDIR").as_deref(), &temporary, accept)
    }

    /// As [`Self::open`], with these places in place of `XDG_RUNTIME_DIR`, `TMPDIR`, and what every machine
    /// has; `accept` refuses a directory for another reason.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn among(
        runtime: Option<&Path>,
        own: Option<&Path>,
        everywhere: &[&Path],
        accept: Accept,
    ) -> Result<PrivateDir, NoPrivateDir> {
        let mut refused = Vec::new();
        let mut note = |variable, place: &Path, why: Untrusted| {
            // A login without a session, and a container, have that variable without its directory.
            if variable != "XDG_RUNTIME_DIR" || !why.is_missing() {
                refused.push(Refused { variable, place: place.to_owned(), why });
            }
        };
        if let Some(place) = runtime {
            match below_runtime_dir(place).and_then(accept) {
                Ok(dir) => return Ok(PrivateDir { dir, refused }),
                Err(why) => note("XDG_RUNTIME_DIR", place, why),
            }
        }
        if let Some(place) = own {
            match temporary(place).and_then(accept) {
                Ok(dir) => return Ok(PrivateDir { dir, refused }),
                Err(why) => note("TMPDIR", place, why),
            }
        }
        let mut tried = Vec::new();
        for place in everywhere.iter().filter(|place| Some(**place) != own) {
            match temporary(place).and_then(accept) {
                Ok(dir) => return Ok(PrivateDir { dir, refused }),
                Err(why) => tried.push(why),
            }
        }
        tried.extend(refused.into_iter().map(|refused| refused.why));
        Err(NoPrivateDir { tried })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The directory, without what was passed over.
    #[must_use]
    pub fn into_dir(self) -> Dir {
        self.dir
    }

    /// The places that were passed over.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not used: {}", self.variable, self.why)
    }
}

/// Opens the directory `name` of the private directory. Makes it if necessary. In a container its file system
/// may be read-only.
///
/// # Errors
/// As [`PrivateDir::open`].
pub fn private_dir(name: &str) -> Result<Dir, NoPrivateDir> {
    let base = PrivateDir::find(Ok)?;
    base.dir.private(OsStr::new(name)).map_err(|why| NoPrivateDir { tried: vec![why] })
}

/// Whether the private directory is below `XDG_RUNTIME_DIR`.
#[must_use]
pub fn has_runtime_dir() -> bool {
    named("XDG_RUNTIME_DIR").is_some_and(|place| below_runtime_dir(&place).is_ok())
}

/// The value of a variable, if it is a path from the root directory.
fn named(variable: &str) -> Option<PathBuf> {
    Some(PathBuf::from(std::env::var_os(variable)?)).filter(|place| place.is_absolute())
}

/// Opens a directory if programs can load libraries from its path: the loader splits `LD_LIBRARY_PATH` at
/// colons and semicolons, and replaces `$LIB` and the like by other names, which are not proven.
fn prove(place: &Path) -> Result<Dir, Untrusted> {
    let dir = Dir::prove(place, Walk::default())?;
    if dir.path().as_os_str().as_bytes().iter().any(|byte| b":;$".contains(byte)) {
        let error = io::Error::new(ErrorKind::InvalidInput, "the loader gives ':', ';' and '$' a meaning");
        return Err(Untrusted::Failed { path: dir.path().to_owned(), error });
    }
    Ok(dir)
}

/// `roxie` in a directory that belongs to this user alone: `su` keeps the variable of the other user.
fn below_runtime_dir(place: &Path) -> Result<Dir, Untrusted> {
    let dir = prove(place)?;
    let meta = dir.own_metadata().map_err(|error| Untrusted::Failed { path: place.to_owned(), error })?;
    let mode = meta.mode() & 0o7777;
    if meta.uid() != effective_uid() {
        return Err(Untrusted::Owner { path: place.to_owned(), owner: meta.uid() });
    }
    if mode & 0o077 != 0 {
        return Err(Untrusted::Open { path: place.to_owned(), mode });
    }
    dir.private(OsStr::new("roxie"))
}

/// `roxie-<uid>` in a directory that all users may write to. Another user may have created that name; in
/// two user namespaces the same number can mean two users.
fn temporary(place: &Path) -> Result<Dir, Untrusted> {
    let uid = effective_uid();
    let others = (2..=TEMPORARY_NAMES).map(|n| format!("roxie-{uid}-{n}"));
    let names: Vec<OsString> =
        std::iter::once(format!("roxie-{uid}")).chain(others).map(Into::into).collect();
    let dir = prove(place)?;
    if let Some(found) = names.iter().find_map(|name| dir.open_private(name).ok()) {
        return Ok(found);
    }
    let mut refusal = None;
    for name in &names {
        match dir.private(name) {
            Ok(made) => return Ok(made),
            Err(why) => _ = refusal.get_or_insert(why),
        }
    }
    Err(refusal.expect("there are some names"))
}

/// No place for a private directory.
#[derive(Debug)]
pub struct NoPrivateDir {
    tried: Vec<Untrusted>,
}

impl NoPrivateDir {
    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        if self.tried.iter().any(|why| why.kind().is_none()) {
            "make the temporary directory sticky (chmod 1777), or set TMPDIR below your home"
        } else if self.tried.iter().any(|why| why.kind().is_some_and(is_full)) {
            FULL
        } else {
            "make /tmp writable (mode 1777), or set TMPDIR to a directory of yours that exists"
        }
    }
}

/// What to do if the file system of the private directory is full.
pub const FULL: &str = "free some space there ('df' and 'df -i' show it), or set TMPDIR (without \
                        XDG_RUNTIME_DIR) to another directory";

/// Whether an error says that a file system or quota is full.
#[must_use]
pub fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

impl fmt::Display for NoPrivateDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no private directory for links and sockets")?;
        let mut separator = ": ";
        for why in &self.tried {
            write!(f, "{separator}{why}")?;
            separator = "; ";
        }
        Ok(())
    }
}

impl std::error::Error for NoPrivateDir {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A directory that only this user can write.
    fn scratch(name: &str) -> PathBuf {
        let dir = PathBuf::from(format!("/tmp/roxie-private-{:016x}-{name}", sys::random_u64()));
        fs::create_dir(&dir).expect("a directory for the test");
        dir
    }

    #[test]
    fn a_runtime_directory_is_used_only_if_no_other_user_can_enter_it() {
        let base = scratch("runtime");
        let mode = |bits| fs::set_permissions(&base, fs::Permissions::from_mode(bits)).expect("mode");
        for (bits, ok) in [(0o700, true), (0o755, false), (0o1777, false)] {
            mode(bits);
            assert_eq!(below_runtime_dir(&base).is_ok(), ok, "{bits:o}");
        }
        mode(0o700);
        let dir = below_runtime_dir(&base).expect("private");
        assert_eq!(dir.path(), base.join("roxie"));
        assert_eq!(dir.own_metadata().expect("open").mode() & 0o777, 0o700);
        fs::remove_dir_all(base).expect("cleaned");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_passed_over() {
        let (base, other) = (scratch("full"), scratch("free"));
        let places = || {
            PrivateDir::among(None, Some(&base), &[&other], |dir| {
                let is_full = dir.path().to_string_lossy().contains("-full/");
                let error = io::Error::from_raw_os_error(libc::EROFS);
                if is_full { Err(Untrusted::Failed { path: dir.path().to_owned(), error }) } else { Ok(dir) }
            })
        };
        let found = places().expect("the other one");
        assert!(found.dir().path().starts_with(&other) && found.refused().len() == 1);
        assert!(found.refused()[0].to_string().ends_with("Read-only file system (os error 30)"));
        fs::remove_dir_all(&base).expect("cleaned");
        let missing = places().expect("the other one");
        assert!(missing.refused()[0].to_string().starts_with("TMPDIR is not used: "));
        fs::remove_dir_all(&other).expect("cleaned");
        let why = places().expect_err("there is none");
        assert!(why.remedy().contains("TMPDIR to a directory of yours"), "{why}");
    }

    #[test]
    fn a_path_that_the_loader_reads_in_another_way_is_not_used() {
        let base = scratch("loader");
        for name in ["a:b", "a;b", "$LIB", "${ORIGIN}"] {
            fs::create_dir(base.join(name)).expect("a directory");
            assert!(temporary(&base.join(name)).is_err() && below_runtime_dir(&base.join(name)).is_err());
            symlink(name, base.join("link")).expect("a link");
            assert!(temporary(&base.join("link")).is_err(), "its path has no link");
            fs::remove_file(base.join("link")).expect("removed");
        }
        fs::remove_dir_all(base).expect("cleaned");
    }

    #[test]
    fn a_name_that_another_user_has_taken_is_not_used() {
        let (base, uid) = (scratch("taken"), effective_uid());
        let name = |n: &str| base.join(format!("roxie-{uid}{n}"));
        let found = || temporary(&base).map(|dir| dir.path().to_owned());
        symlink("/tmp", name("")).expect("link");
        fs::create_dir(name("-2")).expect("open directory");
        fs::set_permissions(name("-2"), fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(found().expect("another name"), name("-3"));
        fs::remove_file(name("")).expect("removed");
        assert_eq!(found().expect("the same again"), name("-3"));
        (4..=TEMPORARY_NAMES).for_each(|n| fs::write(name(&format!("-{n}")), "").expect("a file"));
        fs::remove_dir(name("-3")).expect("empty");
        fs::write(name(""), "").and_then(|()| fs::write(name("-3"), "")).expect("files");
        let refusal = found().expect_err("no name is left").to_string();
        assert!(refusal.contains(&*name("").to_string_lossy()), "{refusal}");
        fs::remove_dir_all(base).expect("cleaned");
    }
}
