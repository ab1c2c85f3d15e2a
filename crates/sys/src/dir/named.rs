//! A file that the user named, such as the output of a command.
//!
//! The directory is opened once, by the path as the user gave it. What follows is done by its descriptor, so
//! a rename of a directory of the path by another user leads no byte elsewhere. A symbolic link in place of
//! the file is followed if root or this user made it, and no other user can put another one there.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Dir, Untrusted, at};
use crate::effective_uid;

/// Links from one file to the next, as for the kernel (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// A place for a file: an open directory and a name in it.
#[derive(Debug)]
pub struct NamedFile {
    dir: Dir,
    name: OsString,
}

impl NamedFile {
    /// The place that `path` names.
    ///
    /// # Errors
    /// The directory does not exist or cannot be entered; `PermissionDenied` for a link that another user
    /// made or can replace.
    pub fn at(path: &Path) -> io::Result<NamedFile> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            let place = Self::without_links(&path)?;
            match place.metadata() {
                Ok(meta) if meta.is_symlink() && !is_of_kernel(&path) => {
                    place.trust_link(&meta)?;
                    path = place.dir.path.join(place.dir.read_link(&place.name)?);
                }
                _ => return Ok(place),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    fn without_links(path: &Path) -> io::Result<NamedFile> {
        let name = path.file_name().ok_or(ErrorKind::IsADirectory)?.to_owned();
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(NamedFile { dir: Dir { file: at::named_dir(parent)?, path: parent.to_owned() }, name })
    }

    /// Only root or this user made the link, and no other user can replace it.
    fn trust_link(&self, link: &Metadata) -> io::Result<()> {
        let dir = self.dir.own_metadata()?;
        let path = self.path();
        for owner in [link.uid(), dir.uid()] {
            if owner != 0 && owner != effective_uid() {
                return Err(Untrusted::Owner { path, owner }.into());
            }
        }
        let mode = dir.mode() & 0o7777;
        if mode & 0o022 != 0 && mode & 0o1000 == 0 {
            return Err(Untrusted::Writable { path: self.dir.path.clone(), mode }.into());
        }
        Ok(())
    }

    /// The path, with links of its directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self.dir.path == Path::new(".") {
            true => PathBuf::from(&self.name),
            false => self.dir.path.join(&self.name),
        }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The name in it.
    #[must_use]
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// What is there.
    ///
    /// # Errors
    /// `ENOENT` and the like.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.dir.metadata(&self.name)
    }

    /// Opens the file for writing and empties it; makes it (mode 0666, less the umask) if it does not exist.
    ///
    /// # Errors
    /// As of open(2).
    pub fn create(&self) -> io::Result<File> {
        self.open_with(libc::O_CREAT | libc::O_TRUNC)
    }

    /// Opens the file for writing, if it exists.
    ///
    /// # Errors
    /// As of open(2).
    pub fn open_to_write(&self) -> io::Result<File> {
        self.open_with(0)
    }

    fn open_with(&self, flags: i32) -> io::Result<File> {
        let follow = if is_of_kernel(&self.path()) { 0 } else { libc::O_NOFOLLOW };
        at::open(self.dir.as_fd(), &self.name, libc::O_WRONLY | flags | follow, 0o666)
    }

    /// Makes the file (mode 0666, less the umask), which must not exist.
    ///
    /// # Errors
    /// `EEXIST`.
    pub fn create_new(&self) -> io::Result<File> {
        self.dir.create_new(&self.name, 0o666)
    }

    /// Removes the file.
    ///
    /// # Errors
    /// `ENOENT` and the like.
    pub fn remove(&self) -> io::Result<()> {
        self.dir.remove_file(&self.name)
    }
}

/// Links such as /dev/stdout and /proc/self/fd/1 name no path; only the kernel follows them.
fn is_of_kernel(path: &Path) -> bool {
    let streams = ["/dev/stdin", "/dev/stdout", "/dev/stderr"];
    path.starts_with("/proc")
        || path.starts_with("/dev/fd")
        || streams.iter().any(|name| path == Path::new(name))
}
