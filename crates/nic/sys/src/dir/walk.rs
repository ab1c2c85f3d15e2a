//! The walk from `/` to a directory, one component at a time, by open directories.
//!
//! Invariant: no user but root and the user of this process can make the path that the walk returns name
//! another directory, then or later. For this each directory and each symbolic link on the way belongs to one
//! of the two, and directories that others may write are sticky: there only the owner of a name can remove or
//! rename it.
//!
//! A user namespace shows each owner without a mapping as one number, root of the machine among them. There
//! such an owner is accepted for the directories of [`OF_ROOT`] only.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::at;
use crate::{IdView, effective_uid, id_view};

/// Directories that belong to root on every machine (Filesystem Hierarchy Standard 3.0).
const OF_ROOT: [&str; 11] =
    ["/", "/tmp", "/var", "/var/tmp", "/run", "/run/user", "/home", "/dev", "/dev/shm", "/etc", "/usr"];

/// Links on the way, as for the kernel (path_resolution(7)).
const LINKS_MAX: u32 = 40;
/// Components on the way, with those of the links' targets.
const COMPONENTS_MAX: usize = 1024;

/// What a walk accepts and makes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Walk {
    /// Make directories that do not exist, with this mode.
    pub make: Option<u32>,
    /// The group of a directory may write to it, as in /usr/local of Debian.
    pub trust_groups: bool,
    /// Refuse symbolic links, also those of root and of the user.
    pub refuse_links: bool,
}

/// Why a directory is not used.
#[derive(Debug)]
pub enum Untrusted {
    /// It cannot be made or examined.
    Failed {
        /// The directory or link.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// It belongs to another user, which can rename what is in it.
    Owner {
        /// The directory or link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Other users may rename what is in it.
    Writable {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Other users can enter a directory that is to be private.
    Open {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Its file system is a process that names any owner (fuse(4)).
    Fuse {
        /// The directory.
        path: PathBuf,
    },
    /// It is a symbolic link where none is allowed.
    Link {
        /// The link.
        path: PathBuf,
    },
}

impl Untrusted {
    /// True if it does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Untrusted::Failed { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// The kernel's error, if that is the reason.
    #[must_use]
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Untrusted::Failed { error, .. } => Some(error.kind()),
            _ => None,
        }
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untrusted::Failed { path, error } => write!(f, "{}: {error}", path.display()),
            Untrusted::Owner { path, owner } => {
                let path = path.display();
                let owner = if *owner == 0 { "root".to_owned() } else { format!("user {owner}") };
                write!(f, "{path} belongs to {owner}, not to this user")
            }
            Untrusted::Writable { path, mode } => write!(
                f,
                "other users may write to {} (mode {mode:04o}, not sticky) and replace what is in it",
                path.display()
            ),
            Untrusted::Open { path, mode } => {
                write!(f, "other users can enter {} (mode {mode:04o})", path.display())
            }
            Untrusted::Fuse { path } => {
                write!(f, "{} is on a FUSE file system, which may show false owners", path.display())
            }
            Untrusted::Link { path } => write!(f, "{} is a symbolic link", path.display()),
        }
    }
}

impl std::error::Error for Untrusted {}

impl From<Untrusted> for io::Error {
    fn from(untrusted: Untrusted) -> io::Error {
        let kind = untrusted.kind().unwrap_or(io::ErrorKind::PermissionDenied);
        io::Error::new(kind, untrusted)
    }
}

/// Where a walk is: an open directory, and its path without links.
pub(super) struct Place {
    pub(super) dir: File,
    pub(super) path: PathBuf,
    device: u64,
    owners: Owners,
}

impl Place {
    /// The root directory.
    pub(super) fn root(rules: Walk) -> Result<Place, Untrusted> {
        let path = PathBuf::from("/");
        let failed = |error| Untrusted::Failed { path: "/".into(), error };
        let dir = at::root().map_err(failed)?;
        let (meta, owners) = (dir.metadata().map_err(failed)?, Owners::now());
        owners.trust(&path, &meta, rules)?;
        Ok(Place { dir, path, device: meta.dev(), owners })
    }

    /// An open directory that was proven before.
    pub(super) fn at(dir: File, path: PathBuf) -> Result<Place, Untrusted> {
        match dir.metadata() {
            Ok(meta) => Ok(Place { dir, path, device: meta.dev(), owners: Owners::now() }),
            Err(error) => Err(Untrusted::Failed { path, error }),
        }
    }

    /// Goes on by the components of `path`; an absolute one begins at the root directory.
    pub(super) fn walk(mut self, path: &Path, rules: Walk) -> Result<Place, Untrusted> {
        let mut ahead: VecDeque<OsString> = VecDeque::new();
        if prepend(path, &mut ahead) {
            self = Place::root(rules)?;
        }
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            let Some(target) = self.step(&name, rules)? else { continue };
            links += 1;
            if links > LINKS_MAX || ahead.len() > COMPONENTS_MAX {
                let error = io::Error::from_raw_os_error(libc::ELOOP);
                return Err(Untrusted::Failed { path: path.to_owned(), error });
            }
            if prepend(Path::new(&target), &mut ahead) {
                self = Place::root(rules)?;
            }
        }
        Ok(self)
    }

    /// Enters the directory `name`, or returns the target of the link of that name.
    fn step(&mut self, name: &OsStr, rules: Walk) -> Result<Option<OsString>, Untrusted> {
        let mut path = self.path.clone();
        if name == ".." {
            path.pop();
        } else {
            path.push(name);
        }
        let failed = |error| Untrusted::Failed { path: path.clone(), error };
        let opened = self.open(name, rules).map_err(failed)?;
        let meta = opened.metadata().map_err(failed)?;
        if meta.is_symlink() {
            self.is_trusted_link(&path, &meta, rules)?;
            return at::read_link(opened.as_fd(), OsStr::new("")).map(Some).map_err(failed);
        }
        if !meta.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        self.owners.trust(&path, &meta, rules)?;
        if meta.dev() != self.device && shows_false_owners(&opened, &meta).map_err(failed)? {
            return Err(Untrusted::Fuse { path });
        }
        (self.dir, self.path, self.device) = (opened, path, meta.dev());
        Ok(None)
    }

    fn open(&self, name: &OsStr, rules: Walk) -> io::Result<File> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        // With O_DIRECTORY the kernel mounts what is mounted on demand (autofs).
        let open = |flags| at::open(self.dir.as_fd(), name, flags, 0);
        match open(flags | libc::O_DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let Some(mode) = rules.make else { return Err(error) };
                match at::make_dir(self.dir.as_fd(), name, mode) {
                    // Another process of the user made it.
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                    _ => open(flags | libc::O_DIRECTORY),
                }
            }
            // A link, or no directory.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => open(flags),
            opened => opened,
        }
    }

    fn is_trusted_link(&self, path: &Path, meta: &Metadata, rules: Walk) -> Result<(), Untrusted> {
        if rules.refuse_links {
            return Err(Untrusted::Link { path: path.to_owned() });
        }
        let made_by_root = || {
            // Of an owner without a mapping, in a directory of root that no other user may write.
            let closed = self.dir.metadata().is_ok_and(|dir| dir.mode() & 0o022 == 0);
            closed && self.owners.is_unmapped(meta.uid()) && is_of_root(&self.path)
        };
        if self.owners.is_own_or_root(meta.uid()) || made_by_root() {
            return Ok(());
        }
        Err(Untrusted::Owner { path: path.to_owned(), owner: meta.uid() })
    }
}

/// The owners that a walk trusts.
#[derive(Clone, Copy)]
pub(super) struct Owners {
    user: u32,
    view: IdView,
}

impl Owners {
    pub(super) fn now() -> Owners {
        // A process that does not see /proc takes the kernel's default, and no owner of that number for
        // known.
        let unseen = IdView { overflow_uid: 65_534, maps_every_uid: false };
        Owners { user: effective_uid(), view: id_view().unwrap_or(unseen) }
    }

    /// Whether only root and this user can rename what is in a directory.
    pub(super) fn trust(self, path: &Path, meta: &Metadata, rules: Walk) -> Result<(), Untrusted> {
        let owner = meta.uid();
        let is_trusted = self.is_own_or_root(owner) || (self.is_unmapped(owner) && is_of_root(path));
        if !is_trusted {
            return Err(Untrusted::Owner { path: path.to_owned(), owner });
        }
        // An access control list shows its mask as the rights of the group.
        let others = if rules.trust_groups { 0o002 } else { 0o022 };
        let is_sticky = meta.mode() & 0o1000 != 0;
        if meta.mode() & others != 0 && !is_sticky && !self.is_written_by_user_alone(meta) {
            return Err(Untrusted::Writable { path: path.to_owned(), mode: meta.mode() & 0o7777 });
        }
        Ok(())
    }

    /// Whether others that may write are the group of this user alone: with such groups umask is often 0002.
    fn is_written_by_user_alone(self, meta: &Metadata) -> bool {
        meta.mode() & 0o002 == 0 && meta.uid() == self.user && is_private_group(meta.gid(), self.user)
    }

    /// True for root and this user, if their numbers stand for no other user.
    pub(super) fn is_own_or_root(self, owner: u32) -> bool {
        (owner == 0 || owner == self.user) && !self.is_unmapped(owner)
    }

    /// Whether this number stands for every user without a mapping.
    pub(super) fn is_unmapped(self, owner: u32) -> bool {
        !self.view.maps_every_uid && owner == self.view.overflow_uid
    }
}

fn is_of_root(path: &Path) -> bool {
    OF_ROOT.iter().any(|dir| path == Path::new(dir))
}

/// Puts the components of `path` in front of `ahead`; returns whether the path is absolute.
fn prepend(path: &Path, ahead: &mut VecDeque<OsString>) -> bool {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => ahead.push_front(name.to_owned()),
            Component::ParentDir => ahead.push_front("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    path.as_os_str().as_bytes().starts_with(b"/")
}

/// Whether /etc/group and /etc/passwd show a group that has the name of this user and no other member.
fn is_private_group(gid: u32, uid: u32) -> bool {
    let lines = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (users, groups) = (lines("/etc/passwd"), lines("/etc/group"));
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let is = |field: Option<&String>, number: u32| field.is_some_and(|field| *field == number.to_string());
    let users: Vec<_> = users.lines().map(fields).collect();
    let groups: Vec<_> = groups.lines().map(fields).filter(|group| is(group.get(2), gid)).collect();
    let Some(user) = users.iter().find(|user| is(user.get(2), uid)).and_then(|user| user.first()) else {
        return false;
    };
    let is_of_user = |group: &Vec<String>| {
        let members = group.get(3).map_or("", String::as_str).split(',').filter(|member| !member.is_empty());
        group.first() == Some(user) && members.into_iter().all(|member| member == user)
    };
    let others = users.iter().filter(|other| is(other.get(3), gid) && other.first() != Some(user));
    !groups.is_empty() && groups.iter().all(is_of_user) && others.count() == 0
}

/// Whether an open directory is on a file system of another user's process, which shows any owner (fuse(4)).
/// The file system of `/` is trusted, as in rootless containers.
pub(super) fn shows_false_owners(dir: &File, meta: &Metadata) -> io::Result<bool> {
    if !at::is_fuse(dir)? || at::root()?.metadata()?.dev() == meta.dev() {
        return Ok(false);
    }
    let device = format!("{}:{}", libc::major(meta.dev()), libc::minor(meta.dev()));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_trusted = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let is_it = mount.split(' ').nth(2) == Some(&*device);
        let user = system.split([' ', ',']).find_map(|word| word.strip_prefix("user_id="));
        let trusted = [0, effective_uid()].map(|uid| uid.to_string());
        // The host of a virtual machine serves virtiofs.
        let is_known =
            system.starts_with("virtiofs ") || user.is_some_and(|user| trusted.iter().any(|uid| uid == user));
        Some(is_it && is_known)
    };
    Ok(!mounts.lines().any(|line| is_trusted(line) == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_other_users_is_not_private() {
        // Root's group has root's name and no other member on every machine of ours.
        assert!(is_private_group(0, 0));
        assert!(!is_private_group(0, 1) && !is_private_group(4_000_000, 0));
    }
}
