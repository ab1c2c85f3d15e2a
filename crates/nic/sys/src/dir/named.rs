//! A file that the user named, such as the output of a command.
//!
//! The directory is opened once, by the path as the user gave it. What follows is done by its descriptor, so
//! a rename of a directory of the path by another user leads no byte elsewhere. A symbolic link in place of
//! the file is followed if root or this user made it, and no other user can put another one there.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::walk::Owners;
use super::{Dir, Untrusted, Walk, at};

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
        let mut place = Self::without_links(None, path)?;
        for _ in 0..LINKS_MAX {
            let link = match place.metadata() {
                Ok(meta) if meta.is_symlink() && !is_of_kernel(&place.path()) => meta,
                _ => return Ok(place),
            };
            place.trust_link(&link)?;
            let target = place.dir.read_link(&place.name)?;
            place = Self::without_links(Some(&place.dir), &target)?;
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// A relative path begins at `base`, or at the current directory.
    fn without_links(base: Option<&Dir>, path: &Path) -> io::Result<NamedFile> {
        let is_dir = || io::Error::new(ErrorKind::IsADirectory, "not a regular file");
        let name = path.file_name().ok_or_else(is_dir)?.to_owned();
        let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let shown = base.map_or_else(|| parent.to_owned(), |base| base.path.join(parent));
        let file = at::named_dir(base.map(AsFd::as_fd), parent)?;
        Ok(NamedFile { dir: Dir { file, path: shown }, name })
    }

    /// Only root or this user made the link, and no other user can replace it.
    fn trust_link(&self, link: &Metadata) -> io::Result<()> {
        let owners = Owners::now();
        if !owners.is_own_or_root(link.uid()) {
            return Err(Untrusted::Owner { path: self.path(), owner: link.uid() }.into());
        }
        Ok(owners.trust(&self.dir.path, &self.dir.own_metadata()?, Walk::default())?)
    }

    /// In a directory that others may write another user may have put a file of its own, to read what is
    /// written, or a second name of a file of this user, to have it overwritten: refuses both. A pipe of
    /// another user would make this process wait.
    fn trust_existing(&self, file: &Metadata) -> io::Result<()> {
        let (dir, owners) = (self.dir.own_metadata()?, Owners::now());
        let is_known = owners.is_own_or_root(file.uid());
        let is_of_dir = file.uid() == dir.uid() && !owners.is_unmapped(file.uid());
        let may_others_write = dir.mode() & 0o022 != 0 || !owners.is_own_or_root(dir.uid());
        let refused = Err(Untrusted::Owner { path: self.path(), owner: file.uid() }.into());
        if file.file_type().is_fifo() {
            return if is_known || !may_others_write { Ok(()) } else { refused };
        }
        if !file.is_file() || !may_others_write {
            return Ok(());
        }
        if file.nlink() > 1 {
            let text =
                format!("{} has other names, and others may write its directory", self.path().display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        if is_known || is_of_dir { Ok(()) } else { refused }
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
    /// As of open(2); `PermissionDenied` for a file of another user in a directory that others may write.
    pub fn create(&self) -> io::Result<File> {
        let file = self.open_with(libc::O_CREAT)?;
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Opens the file for writing, if it exists.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn open_to_write(&self) -> io::Result<File> {
        self.open_with(0)
    }

    fn open_with(&self, flags: i32) -> io::Result<File> {
        if is_of_kernel(&self.path()) {
            return at::open(self.dir.as_fd(), &self.name, libc::O_WRONLY | flags, 0o666);
        }
        // A pipe of another user would make the next call wait.
        self.metadata().map_or(Ok(()), |there| self.trust_existing(&there))?;
        let file = at::open(self.dir.as_fd(), &self.name, libc::O_WRONLY | libc::O_NOFOLLOW | flags, 0o666)?;
        self.trust_existing(&file.metadata()?)?;
        Ok(file)
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
    let parts: Vec<_> = path.iter().filter_map(OsStr::to_str).collect();
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    match parts[..] {
        ["/", "dev", "stdin" | "stdout" | "stderr"] => true,
        ["/", "dev", "fd", fd] => is_number(fd),
        ["/", "proc", process, "fd", fd] => {
            (["self", "thread-self"].contains(&process) || is_number(process)) && is_number(fd)
        }
        _ => false,
    }
}
