//! Where processes meet: each listener has an abstract Unix name, and a socket in the user's private
//! directory if there is one.
//!
//! The abstract name is the one that counts: the kernel gives it to one process and frees it when the process
//! ends. Every user can connect to it, or take it first, so each end asks the kernel for the identity of the
//! other one (`identity.rs`). The file is for processes of the same user that cannot show this, because they
//! are in another user namespace (`roxie run --device-files`): a process that can connect to it can enter the
//! directory.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sys::Dir;

use super::identity::{Peer, Relation};
use crate::private_dir::private_dir;

/// A listener, with one or two sockets.
#[derive(Debug)]
pub struct Listener {
    // Dropped first: the next process with the name makes the file again.
    /// The socket in the private directory, if there is one.
    pub private: Option<PrivateSocket>,
    /// The socket with the abstract name.
    pub public: OwnedFd,
}

/// A listening socket in the private directory. Its file is removed on drop.
#[derive(Debug)]
pub struct PrivateSocket {
    /// The socket.
    pub socket: OwnedFd,
    pub(crate) file: SocketFile,
}

/// The file of a socket.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The process that made it. A forked child must not remove it.
    pid: u32,
}

/// Which socket of a listener accepted a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListenerKind {
    /// The abstract name.
    Public,
    /// The private directory.
    Private,
}

/// A file without a listener is kept for this long: its process may be about to listen.
const ABANDONED: Duration = Duration::from_secs(60);

/// Takes an abstract name and listens on it.
///
/// # Errors
/// `EADDRINUSE` if another process has the name.
pub fn listen(name: &str, backlog: i32) -> io::Result<Listener> {
    let public = sys::bind_seqpacket(name)?;
    sys::listen(public.as_fd(), backlog)?;
    // Without the private socket only processes in other user namespaces are out of reach.
    Ok(Listener { private: listen_privately(name, backlog), public })
}

/// The caller holds the abstract name, so a file that exists has no owner.
fn listen_privately(name: &str, backlog: i32) -> Option<PrivateSocket> {
    let (dir, file) = place(name)?;
    let _absent = dir.remove_file(&file);
    let path = dir.path().join(file);
    let socket = sys::bind_seqpacket_file(&path).ok()?;
    let file = SocketFile { path, pid: std::process::id() };
    sys::listen(socket.as_fd(), backlog).ok()?;
    Some(PrivateSocket { socket, file })
}

/// Connects to the listener with this name. If its process is not known to be of the same user, and the
/// private directory has a socket for the name, connects to that one.
///
/// # Errors
/// `ECONNREFUSED` without a listener, `EAGAIN` if its backlog is full.
pub fn connect(name: &str) -> io::Result<(OwnedFd, Peer)> {
    let connection = sys::connect_seqpacket(name)?;
    let peer = Peer::of(&connection)?;
    if peer.relation != Relation::Same
        && let Some((dir, file)) = place(name)
        && let Ok(private) = sys::connect_seqpacket_file(&dir.path().join(file))
    {
        let peer = Peer::through_private_dir(&private)?;
        return Ok((private, peer));
    }
    Ok((connection, peer))
}

/// The process that made this connection to a listener.
pub fn peer(connection: &OwnedFd, kind: ListenerKind) -> io::Result<Peer> {
    match kind {
        ListenerKind::Public => Peer::of(connection),
        ListenerKind::Private => Peer::through_private_dir(connection),
    }
}

/// The files that a sweep examines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Swept {
    /// Those of all network namespaces: listeners of other ones get a connection that is closed at once.
    All,
    /// Those of this network namespace. Its listeners are not disturbed.
    Network,
}

/// Removes the files that processes left which were killed, or exited without closing their device.
pub(super) fn sweep(swept: Swept) {
    sweep_older_than(swept, ABANDONED);
}

fn sweep_older_than(swept: Swept, min_age: Duration) {
    let (Ok(dir), Some(network)) = (private_dir(DIR), network_prefix()) else { return };
    // A listener has its abstract name as long as its file.
    let alive: HashSet<String> =
        sys::abstract_names("").iter().map(|name| format!("{network}{}", file_part(name))).collect();
    let now = SystemTime::now();
    for file in dir.names().unwrap_or_default() {
        let name = file.to_string_lossy();
        if alive.contains(&*name) || (swept == Swept::Network && !name.starts_with(&network)) {
            continue;
        }
        let modified = dir.metadata(&file).and_then(|meta| meta.modified());
        let age = modified.ok().and_then(|modified| now.duration_since(modified).ok());
        if age.is_none_or(|age| age < min_age) {
            continue;
        }
        let refused = sys::connect_seqpacket_file(&dir.path().join(&file)).err();
        // A guide is a link to nothing.
        let is_left =
            |error: io::Error| matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT));
        if refused.is_some_and(is_left) {
            let _removed_by_another = dir.remove_file(&file);
        }
    }
}

/// The name that [`set_guide`] noted last for a domain.
pub(super) fn guide(domain: &str) -> Option<String> {
    let (dir, file) = place(&format!("{domain}/guide"))?;
    dir.read_link(&file).ok()?.into_os_string().into_string().ok()
}

/// Notes the name of a listener for the next process that looks for one in this domain: the table of all
/// names (/proc/net/unix) is long where many processes run.
pub(super) fn set_guide(domain: &str, name: &str) {
    if let Some((dir, file)) = place(&format!("{domain}/guide")) {
        // A link, because a limit of file sizes does not apply to it. Without it the next process reads the
        // table.
        let _full = dir.point(&file, Path::new(name));
    }
}

/// Name of the directory of the sockets in the private directory.
const DIR: &str = "run";

/// The directory and the file for a name. An abstract name belongs to a network namespace, so the file name
/// contains its number: the directory may be visible in several. The directory's path is proven, as the
/// address of a socket must be: other users cannot put another directory there.
fn place(name: &str) -> Option<(Dir, OsString)> {
    Some((private_dir(DIR).ok()?, format!("{}{}", network_prefix()?, file_part(name)).into()))
}

/// The first part of the name of each file of this network namespace.
fn network_prefix() -> Option<String> {
    Some(format!("{:x}-", fs::metadata("/proc/thread-self/ns/net").ok()?.ino()))
}

/// The part of a file name that stands for an abstract name.
fn file_part(name: &str) -> String {
    name.strip_prefix("roxie/").unwrap_or(name).replace('/', "-")
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let (Some(dir), Some(file)) = (self.path.parent(), self.path.file_name()) else { return };
        if self.pid == std::process::id() {
            let _removed_by_another = Dir::own(dir).map(|dir| dir.remove_file(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> Option<PathBuf> {
        place(name).map(|(dir, file)| dir.path().join(file))
    }

    #[test]
    fn a_listener_is_reached_through_both_sockets_and_leaves_no_file() {
        let name = format!("roxie-test/{:016x}", sys::random_u64());
        let listener = listen(&name, 4).unwrap();
        assert_eq!(listen(&name, 4).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        let (_client, found) = connect(&name).unwrap();
        assert_eq!(found.relation, Relation::Same);
        let peer_at = |socket: &OwnedFd, kind| peer(&sys::accept(socket.as_fd()).unwrap(), kind).unwrap();
        let found = peer_at(&listener.public, ListenerKind::Public);
        assert_eq!((found.relation, found.credentials.pid), (Relation::Same, std::process::id() as i32));
        let private = listener.private.as_ref().unwrap();
        let path = private.file.path.clone();
        let _client = sys::connect_seqpacket_file(&path).unwrap();
        assert_eq!(peer_at(&private.socket, ListenerKind::Private).relation, Relation::Same);
        drop(listener);
        assert!(!path.exists());
        assert_eq!(connect(&name).unwrap_err().raw_os_error(), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn a_file_that_a_killed_process_left_does_not_stop_the_next_owner_of_the_name() {
        let name = format!("roxie-test/{:016x}", sys::random_u64());
        let mut left = listen(&name, 4).unwrap();
        // Its process has ended without removing the file.
        left.private.as_mut().unwrap().file.pid = 0;
        drop(left);
        assert!(path(&name).unwrap().exists());
        assert!(listen(&name, 4).unwrap().private.is_some());
        assert!(!path(&name).unwrap().exists());
    }

    #[test]
    fn a_process_that_joins_removes_the_files_that_others_left_in_its_network_namespace() {
        let names = [0, 1, 2].map(|_| format!("roxie-test/{:016x}", sys::random_u64()));
        let files = names.each_ref().map(|name| path(name).unwrap());
        let _alive = listen(&names[0], 4).unwrap();
        for name in &names[1..] {
            let mut left = listen(name, 4).unwrap();
            left.private.as_mut().unwrap().file.pid = 0;
        }
        let elsewhere = files[2].with_file_name(format!("0-{:016x}", sys::random_u64()));
        fs::rename(&files[2], &elsewhere).unwrap();
        sweep(Swept::Network);
        assert!(files[1].exists(), "its process may be about to listen");
        sweep_older_than(Swept::Network, Duration::ZERO);
        assert_eq!([&files[0], &files[1], &elsewhere].map(|file| file.exists()), [true, false, true]);
        sweep_older_than(Swept::All, Duration::ZERO);
        assert_eq!([&files[0], &elsewhere].map(|file| file.exists()), [true, false]);
    }
}
