//! Files below the prefix of an installation.
//!
//! Root follows no symbolic link there: the directories of a prefix may belong to a group, as /usr/local does
//! on Debian, and a link would lead root to any directory. Each directory is opened once, and files are read,
//! written and removed by the open directory. So a user that replaces a directory by a link between two steps
//! gains nothing. The prefix itself may contain links.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{Uid, UnlinkatFlags, unlinkat};

/// What to do with symbolic links to directories below the prefix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Links {
    Follow,
    Refuse,
}

impl Links {
    /// Root refuses them.
    pub(super) fn of_user() -> Self {
        if Uid::effective().is_root() { Self::Refuse } else { Self::Follow }
    }
}

/// A file below the prefix, by its open directory: other users cannot put a link on the way to it any more.
pub(super) struct Below<'a> {
    dir: OwnedFd,
    name: &'a OsStr,
}

impl<'a> Below<'a> {
    /// Opens the directory of `path`, which is relative and has no `..`.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist; `ENOTDIR` if a part of it is no directory, or a link that is refused.
    pub(super) fn open(prefix: &Path, path: &'a Path, links: Links) -> io::Result<Self> {
        Self::walk(prefix, path, links, false)
    }

    /// As [`Self::open`], and makes the directories that do not exist (mode 0755, less the umask).
    pub(super) fn create(prefix: &Path, path: &'a Path, links: Links) -> io::Result<Self> {
        std::fs::create_dir_all(prefix)?;
        Self::walk(prefix, path, links, true)
    }

    fn walk(prefix: &Path, path: &'a Path, links: Links, make: bool) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let below = if links == Links::Refuse { flags | OFlag::O_NOFOLLOW } else { flags };
        let mut dir = open(prefix, flags, Mode::empty())?;
        for part in path.parent().into_iter().flatten() {
            if make {
                match mkdirat(dir.as_fd(), part, Mode::from_bits_truncate(0o755)) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            dir = openat(dir.as_fd(), part, below, Mode::empty())?;
        }
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        Ok(Self { dir, name })
    }

    /// Replaces the file by these bytes with this mode. Readers see the old file or the whole new one.
    pub(super) fn replace(&self, bytes: &[u8], mode: u32) -> io::Result<()> {
        let fresh = format!(".{}.new-{:016x}", self.name.to_string_lossy(), sys::random_u64());
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(mode);
        let mut file = File::from(openat(self.dir.as_fd(), &*fresh, flags, mode)?);
        let written = file
            .write_all(bytes)
            .and_then(|()| Ok(fchmod(file.as_fd(), mode)?))
            .and_then(|()| Ok(renameat(self.dir.as_fd(), &*fresh, self.dir.as_fd(), self.name)?));
        if written.is_err() {
            // A part of a file is of no use; the disk may be full.
            unlinkat(self.dir.as_fd(), &*fresh, UnlinkatFlags::NoRemoveDir).ok();
        }
        written
    }

    /// Reads the file.
    ///
    /// # Errors
    /// `ELOOP` if it is a symbolic link.
    pub(super) fn read(&self) -> io::Result<Vec<u8>> {
        // A pipe in place of the file must not make this wait.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let mut bytes = Vec::new();
        File::from(openat(self.dir.as_fd(), self.name, flags, Mode::empty())?).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Removes the file.
    pub(super) fn remove_file(&self) -> io::Result<()> {
        Ok(unlinkat(self.dir.as_fd(), self.name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes the directory, which must be empty.
    pub(super) fn remove_dir(&self) -> io::Result<()> {
        Ok(unlinkat(self.dir.as_fd(), self.name, UnlinkatFlags::RemoveDir)?)
    }
}

/// Returns the first symbolic link among the directories of `path` below `prefix`.
pub(super) fn first_link(prefix: &Path, path: &Path) -> Option<PathBuf> {
    let mut dir = prefix.to_owned();
    path.parent().into_iter().flatten().find_map(|part| {
        dir.push(part);
        dir.is_symlink().then(|| dir.clone())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A prefix with the file share/man/page and the link share/to to another directory with a file `page`.
    struct Tree(PathBuf);

    impl Tree {
        fn new() -> Self {
            let root = std::env::temp_dir().join(format!("roxie-below-{:016x}", sys::random_u64()));
            fs::create_dir_all(root.join("prefix/share/man")).expect("a new directory");
            fs::create_dir(root.join("elsewhere")).expect("a new directory");
            symlink("../../elsewhere", root.join("prefix/share/to")).expect("a new link");
            for file in ["prefix/share/man/page", "elsewhere/page"] {
                fs::write(root.join(file), b"text").expect("a new file");
            }
            Self(root)
        }

        fn prefix(&self) -> PathBuf {
            self.0.join("prefix")
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("the directory of this test");
        }
    }

    #[test]
    fn a_link_to_another_directory_is_not_followed_if_it_is_refused() {
        let tree = Tree::new();
        let path = Path::new("share/to/page");
        let refused = Below::open(&tree.prefix(), path, Links::Refuse).err().expect("a link is refused");
        assert_eq!(refused.raw_os_error(), Some(nix::libc::ENOTDIR));
        assert_eq!(first_link(&tree.prefix(), path), Some(tree.prefix().join("share/to")));
        let followed = Below::open(&tree.prefix(), path, Links::Follow).expect("a link is followed");
        assert_eq!(followed.read().expect("a file"), b"text");
        followed.remove_file().expect("a file");
        assert!(!tree.0.join("elsewhere/page").exists());
    }

    #[test]
    fn new_files_are_written_through_open_directories_and_never_behind_a_link() {
        let tree = Tree::new();
        let create = |path| Below::create(&tree.prefix(), path, Links::Refuse);
        let page = Path::new("share/new/deep/page");
        create(page).and_then(|file| file.replace(b"new", 0o644)).expect("a new directory");
        assert_eq!(fs::read(tree.prefix().join(page)).expect("written"), b"new");
        let refused = create(Path::new("share/to/page")).err().expect("a link is refused");
        assert_eq!(refused.raw_os_error(), Some(nix::libc::ENOTDIR));

        // Another user replaces the directory by a link after it was opened: the file follows the directory.
        let file = create(Path::new("share/man/page")).expect("directories");
        fs::rename(tree.prefix().join("share/man"), tree.prefix().join("moved")).expect("moved");
        symlink("../../elsewhere", tree.prefix().join("share/man")).expect("a new link");
        file.replace(b"new", 0o644).expect("the open directory");
        assert_eq!(fs::read(tree.prefix().join("moved/page")).expect("written"), b"new");
        assert_eq!(fs::read(tree.0.join("elsewhere/page")).expect("untouched"), b"text");
        let names = fs::read_dir(tree.prefix().join("moved")).expect("moved").count();
        assert_eq!(names, 1, "nothing temporary stays");

        // A link in place of the file itself is replaced, not followed.
        symlink("../../elsewhere/page", tree.prefix().join("share/new/linked")).expect("a new link");
        create(Path::new("share/new/linked")).and_then(|file| file.replace(b"new", 0o644)).expect("replaced");
        assert_eq!(fs::read(tree.0.join("elsewhere/page")).expect("untouched"), b"text");
    }

    #[test]
    fn files_and_empty_directories_below_the_prefix_are_removed_and_links_are_not_read() {
        let tree = Tree::new();
        let below = |path| Below::open(&tree.prefix(), path, Links::Refuse).expect("directories");
        assert_eq!(first_link(&tree.prefix(), Path::new("share/man/page")), None);
        let link = below(Path::new("share/to")).read().expect_err("a link");
        assert_eq!(link.raw_os_error(), Some(nix::libc::ELOOP));
        assert!(below(Path::new("share/man")).remove_dir().is_err(), "it is not empty");
        below(Path::new("share/man/page")).remove_file().expect("a file");
        below(Path::new("share/man")).remove_dir().expect("an empty directory");
        assert!(!tree.prefix().join("share/man").exists());
        let missing = Below::open(&tree.prefix(), Path::new("share/man/page"), Links::Refuse).err();
        assert_eq!(missing.map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }
}
