//! Directories by descriptor: how roxie creates, reads, replaces, locks and removes files.
//!
//! A [`Dir`] is an open directory. What is done with the names in it is done by its descriptor, so it happens
//! in the directory that was checked, whatever another user renames meanwhile. [`Dir::prove`] also proves its
//! path: no user but root and the user of this process can make that path name another directory. So the path
//! may be given to the loader, to a program, or to a socket address.

#[cfg(any(test, feature = "testing"))]
mod adversary;
mod at;
mod named;
#[cfg(test)]
mod tests;
mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[cfg(any(test, feature = "testing"))]
pub use adversary::between_calls;
pub use named::NamedFile;
pub use walk::{Untrusted, Walk};

use crate::{effective_uid, random_u64};
use walk::Place;

/// Directories within directories that are removed with a private directory.
const DEPTH_MAX: u32 = 32;

/// An open directory.
#[derive(Debug)]
pub struct Dir {
    file: File,
    path: PathBuf,
}

impl Dir {
    /// Opens a directory that only root and this user can put another one in place of, now or later. Its
    /// [`path`](Self::path) has no symbolic links. A relative path begins at the current directory.
    ///
    /// # Errors
    /// A directory or link on the way belongs to another user or may be written by others, or cannot be
    /// opened or made.
    pub fn prove(path: &Path, rules: Walk) -> Result<Dir, Untrusted> {
        let failed = |error| Untrusted::Failed { path: path.to_owned(), error };
        let path = std::path::absolute(path).map_err(failed)?;
        let from_root = path.strip_prefix("/").unwrap_or(&path);
        Place::root(rules)?.walk(from_root, rules).map(Self::from)
    }

    /// Goes on to `path` below this directory, as [`Self::prove`] does.
    ///
    /// # Errors
    /// As [`Self::prove`].
    pub fn below(&self, path: &Path, rules: Walk) -> Result<Dir, Untrusted> {
        let failed = |error| Untrusted::Failed { path: self.path.clone(), error };
        let file = self.file.try_clone().map_err(failed)?;
        Place::at(file, self.path.clone())?.walk(path, rules).map(Self::from)
    }

    /// Opens the directory `name` of this user that no other user can enter. Makes it with mode 0700 if it
    /// does not exist.
    ///
    /// # Errors
    /// [`Untrusted::Owner`] and [`Untrusted::Open`] if the name exists and is not such a directory.
    pub fn private(&self, name: &OsStr) -> Result<Dir, Untrusted> {
        let path = self.path.join(name);
        match at::make_private_dir(self.as_fd(), name) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Untrusted::Failed { path, error });
            }
            _ => {}
        }
        self.open_private(name)
    }

    /// As [`Self::private`], but the directory must exist.
    ///
    /// # Errors
    /// As [`Self::private`].
    pub fn open_private(&self, name: &OsStr) -> Result<Dir, Untrusted> {
        let path = self.path.join(name);
        // The kernel compares owner and user: a user namespace shows all ids without a mapping as one. Only
        // the owner may open with O_NOATIME, and a process that is privileged over a mapped owner (open(2)).
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NOATIME;
        let opened = at::open(self.as_fd(), name, flags, 0);
        let shown = match &opened {
            Ok(file) => file.metadata(),
            Err(_) => self.metadata(name),
        };
        let meta = match shown {
            Ok(meta) => meta,
            Err(error) => return Err(Untrusted::Failed { path, error }),
        };
        let mode = meta.mode() & 0o7777;
        match opened {
            _ if meta.uid() != effective_uid() => Err(Untrusted::Owner { path, owner: meta.uid() }),
            _ if !meta.is_dir() => Err(Untrusted::Failed { path, error: ErrorKind::NotADirectory.into() }),
            _ if mode & 0o077 != 0 => Err(Untrusted::Open { path, mode }),
            Ok(file) => Ok(Dir { file, path }),
            // Of another user without a mapping.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && mode & 0o700 == 0o700 => {
                Err(Untrusted::Owner { path, owner: meta.uid() })
            }
            Err(error) => Err(Untrusted::Failed { path, error }),
        }
    }

    /// Opens a private directory of this user by the path that another process of the user wrote into the
    /// environment. The path is looked up once, and its directories are not examined: what is there counts.
    ///
    /// # Errors
    /// As [`Self::private`].
    pub fn own(path: &Path) -> Result<Dir, Untrusted> {
        let failed = |error| Untrusted::Failed { path: path.to_owned(), error };
        let name = path.file_name().ok_or_else(|| failed(ErrorKind::InvalidInput.into()))?;
        let above = path.parent().unwrap_or(Path::new("/"));
        let above = Dir { file: at::named_dir(None, above).map_err(failed)?, path: above.to_owned() };
        let dir = above.open_private(name)?;
        match dir.file.metadata().and_then(|meta| walk::shows_false_owners(&dir.file, &meta)) {
            Ok(false) => Ok(dir),
            Ok(true) => Err(Untrusted::Fuse { path: path.to_owned() }),
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns the directory if this process can make files in it.
    ///
    /// # Errors
    /// `EROFS`, `EACCES`.
    pub fn writable(self) -> Result<Dir, Untrusted> {
        match at::may_write(self.as_fd()) {
            Ok(()) => Ok(self),
            Err(error) => Err(Untrusted::Failed { path: self.path, error }),
        }
    }

    /// Makes a private directory that did not exist: `PREFIX-NUMBER-RANDOM`, and holds its lock. The number
    /// is for people.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new_private(&self, prefix: &str, number: u32) -> Result<Dir, Untrusted> {
        let name = OsString::from(format!("{prefix}-{number}-{:016x}", random_u64()));
        let path = self.path.join(&name);
        at::make_private_dir(self.as_fd(), &name).map_err(|error| Untrusted::Failed { path, error })?;
        let dir = self.open_private(&name)?;
        // It is new, so no other process has the lock. On a file system without locks it is never taken for
        // left over.
        drop(dir.file.try_lock());
        Ok(dir)
    }

    /// The path. After [`Self::prove`] it has no links, and other users cannot change what it names.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock of the directory (flock(2)), which ends with this value and its process; returns false
    /// if another process has it.
    ///
    /// # Errors
    /// The file system has no locks.
    pub fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Sets the permissions of the directory.
    ///
    /// # Errors
    /// `EPERM` if it belongs to another user.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        // A directory that was walked to is open for its path only.
        at::set_mode(&at::open(self.as_fd(), OsStr::new("."), libc::O_RDONLY | libc::O_DIRECTORY, 0)?, mode)
    }

    /// Time since the last change; `None` if the kernel does not say. A time in the future counts as now:
    /// clocks differ.
    #[must_use]
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        Some(now.duration_since(self.file.metadata().ok()?.modified().ok()?).unwrap_or_default())
    }

    /// Sets the time of the last change. For a private directory.
    ///
    /// # Errors
    /// As of utimensat(2).
    pub fn set_modified(&self, time: SystemTime) -> io::Result<()> {
        self.file.set_modified(time)
    }

    /// The names in the directory.
    ///
    /// # Errors
    /// As of readdir(3).
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        at::names(self.as_fd())
    }

    /// What a name stands for; a link is not followed.
    ///
    /// # Errors
    /// `ENOENT` and the like.
    pub fn metadata(&self, name: &OsStr) -> io::Result<Metadata> {
        at::open(self.as_fd(), name, libc::O_PATH | libc::O_NOFOLLOW, 0)?.metadata()
    }

    /// The metadata of the directory itself.
    ///
    /// # Errors
    /// As of fstat(2).
    pub fn own_metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// `ELOOP` for a symbolic link, `InvalidInput` for what is neither a file nor a link.
    pub fn open(&self, name: &OsStr) -> io::Result<File> {
        // A pipe in place of the file must not make this wait.
        self.open_as(name, libc::O_RDONLY | libc::O_NONBLOCK)
    }

    /// Opens a regular file for writing behind its end, and makes it (mode 0600) if it does not exist.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn append(&self, name: &OsStr) -> io::Result<File> {
        self.open_as(name, libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NONBLOCK)
    }

    fn open_as(&self, name: &OsStr, flags: i32) -> io::Result<File> {
        let file = at::open(self.as_fd(), name, flags | libc::O_NOFOLLOW, 0o600)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(file)
    }

    /// Reads a regular file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn read(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(name)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Makes a file that did not exist, open for reading and writing.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn create_new(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        at::open(self.as_fd(), name, flags, mode)
    }

    /// Replaces the file by these bytes with this mode. Readers see the old file or the whole new one.
    ///
    /// # Errors
    /// It cannot be written; the old one stays then.
    pub fn replace(&self, name: &OsStr, bytes: &[u8], mode: u32) -> io::Result<()> {
        let fresh = fresh(name);
        let mut file = self.create_new(&fresh, mode)?;
        let written = file
            .write_all(bytes)
            // Less the umask until here.
            .and_then(|()| at::set_mode(&file, mode))
            .and_then(|()| self.rename(&fresh, name));
        if written.is_err() {
            // A part of a file is of no use; the disk may be full.
            self.remove_file(&fresh).ok();
        }
        written
    }

    /// Makes `name` a symbolic link to `target`; returns false if it was one already. An old link is replaced
    /// by a rename, so a program that starts meanwhile finds the old or the new one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn point(&self, name: &OsStr, target: &Path) -> io::Result<bool> {
        if self.read_link(name).is_ok_and(|now| now == target) {
            return Ok(false);
        }
        let fresh = fresh(name);
        at::symlink(self.as_fd(), target.as_os_str(), &fresh)?;
        self.rename(&fresh, name).inspect_err(|_| drop(self.remove_file(&fresh)))?;
        Ok(true)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for what is no link.
    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        at::read_link(self.as_fd(), name).map(PathBuf::from)
    }

    /// Renames a file in this directory; one that has the new name is replaced.
    ///
    /// # Errors
    /// `ENOENT` and the like.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        at::rename(self.as_fd(), from, to)
    }

    /// Removes a file or link.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        at::remove(self.as_fd(), name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTEMPTY`.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        at::remove(self.as_fd(), name, true)
    }

    /// Removes a private directory with what is in it.
    ///
    /// # Errors
    /// It is none, or what is in it cannot be removed.
    pub fn remove_private(&self, name: &OsStr) -> io::Result<()> {
        self.open_private(name)?.remove_all(DEPTH_MAX)?;
        self.remove_dir(name)
    }

    fn remove_all(&self, depth: u32) -> io::Result<()> {
        for name in self.names()? {
            let Err(error) = self.remove_file(&name) else { continue };
            // A program may have made directories in it.
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            let Ok(file) = at::open(self.as_fd(), &name, flags, 0) else { return Err(error) };
            let inner = Dir { file, path: self.path.join(&name) };
            inner.remove_all(depth.checked_sub(1).ok_or(error)?)?;
            self.remove_dir(&name)?;
        }
        Ok(())
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Place> for Dir {
    fn from(place: Place) -> Dir {
        Dir { file: place.dir, path: place.path }
    }
}

/// A name for a file that will be renamed to `name`.
fn fresh(name: &OsStr) -> OsString {
    let mut fresh = OsString::from(".");
    fresh.push(name);
    fresh.push(format!(".new-{:016x}", random_u64()));
    fresh
}
