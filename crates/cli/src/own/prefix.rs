//! The directory of an installation, and the files below it.
//!
//! Every file is read, written and removed by its open directory. Each directory on the way belongs to root
//! or to this user, and no other user may write to it; its group may, as in /usr/local of Debian. Below the
//! prefix root follows no symbolic link: a member of that group could lead root to any directory by one.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::unistd::Uid;
use sys::{Dir, Untrusted, Walk};

use crate::failure::{During, Failure, Outcome};
use crate::user_dir::not_trusted;

/// The directory below which roxie is installed.
#[derive(Debug)]
pub(super) struct Prefix(PathBuf);

impl Prefix {
    /// The directory that the user named; otherwise /usr/local for root, and ~/.local.
    pub(super) fn of(named: Option<&Path>) -> Outcome<Self> {
        let prefix = match named {
            Some(dir) => std::path::absolute(dir).reading(dir)?,
            None if Uid::effective().is_root() => PathBuf::from("/usr/local"),
            None => {
                let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
                home.ok_or_else(|| Failure::new("HOME is not set").hint("give the directory with --prefix"))?
                    .join(".local")
            }
        };
        Ok(Self(prefix))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    /// The open directory of `path`, which is relative and has no `..`, and the name in it.
    pub(super) fn open<'a>(&self, path: &'a Path) -> Result<(Dir, &'a OsStr), Untrusted> {
        self.walk(path, None)
    }

    fn walk<'a>(&self, path: &'a Path, make: Option<u32>) -> Result<(Dir, &'a OsStr), Untrusted> {
        let rules = Walk { make, trust_groups: true, ..Walk::default() };
        let below = Walk { refuse_links: Uid::effective().is_root(), ..rules };
        let dir = Dir::prove(&self.0, rules)?.below(path.parent().unwrap_or(Path::new("")), below)?;
        Ok((dir, path.file_name().unwrap_or_default()))
    }

    /// Writes a file, and makes the directories that do not exist (mode 0755, less the umask).
    pub(super) fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> Outcome {
        let hint = |error| (error == Some(ErrorKind::PermissionDenied)).then_some(OF_OTHERS);
        let (dir, name) =
            self.walk(path, Some(0o755)).map_err(|why| not_trusted(&why).hint_if(hint(why.kind())))?;
        dir.replace(name, bytes, mode).map_err(|error| {
            Failure::new(format!("writing {}: {error}", self.join(path).display()))
                .hint_if(hint(Some(error.kind())))
        })
    }

    /// Removes a file.
    pub(super) fn remove(&self, path: &Path) -> std::io::Result<()> {
        let (dir, name) = self.open(path)?;
        dir.remove_file(name)
    }

    /// Removes the directories above `path` that are empty, up to the prefix.
    pub(super) fn remove_empty_parents(&self, path: &Path) {
        for dir in path.ancestors().skip(1).take_while(|dir| !dir.as_os_str().is_empty()) {
            if self.open(dir).map_or(true, |(above, name)| above.remove_dir(name).is_err()) {
                break;
            }
        }
    }

    /// A link on the way to a file that this user must not follow.
    pub(super) fn refused_link(&self, path: &Path) -> Option<PathBuf> {
        match self.open(path) {
            Err(Untrusted::Link { path }) => Some(path),
            _ => None,
        }
    }
}

/// The remedy for a prefix of another user.
const OF_OTHERS: &str = "run it as root, or choose a --prefix of your own";

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A prefix with the file share/man/page and the link share/to to another directory with a file `page`.
    struct Tree(PathBuf);

    impl Tree {
        fn new() -> Self {
            let root = Path::new("/tmp").join(format!("roxie-prefix-{:016x}", sys::random_u64()));
            fs::create_dir_all(root.join("prefix/share/man")).expect("a new directory");
            fs::create_dir(root.join("elsewhere")).expect("a new directory");
            symlink("../../elsewhere", root.join("prefix/share/to")).expect("a new link");
            for file in ["prefix/share/man/page", "elsewhere/page"] {
                fs::write(root.join(file), b"text").expect("a new file");
            }
            Self(root)
        }

        fn prefix(&self) -> Prefix {
            Prefix(self.0.join("prefix"))
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("the directory of this test");
        }
    }

    #[test]
    fn root_follows_no_link_below_the_prefix() {
        let (tree, path) = (Tree::new(), Path::new("share/to/page"));
        if Uid::effective().is_root() {
            assert_eq!(tree.prefix().refused_link(path), Some(tree.prefix().join("share/to")));
            assert!(tree.prefix().write(path, b"new", 0o644).is_err());
            assert_eq!(fs::read(tree.0.join("elsewhere/page")).expect("untouched"), b"text");
        } else {
            tree.prefix().remove(path).expect("a link of this user is followed");
            assert!(!tree.0.join("elsewhere/page").exists());
        }
    }

    #[test]
    fn new_files_are_written_through_open_directories() {
        let tree = Tree::new();
        let page = Path::new("share/new/deep/page");
        tree.prefix().write(page, b"new", 0o644).expect("a new directory");
        assert_eq!(fs::read(tree.prefix().join(page)).expect("written"), b"new");

        // Another user replaces the directory by a link after it was opened: the file follows the directory.
        let prefix = tree.prefix();
        let (dir, name) = prefix.open(Path::new("share/man/page")).expect("directories");
        fs::rename(prefix.join("share/man"), prefix.join("moved")).expect("moved");
        symlink("../../elsewhere", prefix.join("share/man")).expect("a new link");
        dir.replace(name, b"new", 0o644).expect("the open directory");
        assert_eq!(fs::read(prefix.join("moved/page")).expect("written"), b"new");
        assert_eq!(fs::read(tree.0.join("elsewhere/page")).expect("untouched"), b"text");
        assert_eq!(fs::read_dir(prefix.join("moved")).expect("moved").count(), 1, "nothing temporary stays");

        // A link in place of the file itself is replaced, not followed.
        symlink("../../elsewhere/page", prefix.join("share/page")).expect("a new link");
        prefix.write(Path::new("share/page"), b"new", 0o644).expect("a file");
        assert_eq!(fs::read(tree.0.join("elsewhere/page")).expect("untouched"), b"text");
        assert!(prefix.join("share/page").symlink_metadata().expect("there").is_file());
    }
}
