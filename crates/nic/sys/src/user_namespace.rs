//! User namespaces: how this process sees user ids, and whether the process at the other end of a socket is
//! in the same namespace (user_namespaces(7)).
//!
//! The kernel shows an id that is not mapped into the reader's namespace as the overflow id, 65534, which is
//! also the id of `nobody`.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Credentials, PollFd, check, poll};

/// What a user namespace tells its processes about user ids.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct IdView {
    /// The id that stands for every id without a mapping.
    pub overflow_uid: u32,
    /// True if every id has a mapping, as in the first namespace of the machine: then the overflow id
    /// stands for one user only.
    pub maps_every_uid: bool,
}

/// The namespace of the process at the other end of a socket, compared with that of this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PeerNamespace {
    /// The same. The kernel also let this process inspect the other one, so both have one user, or this
    /// process is privileged over the other one.
    Same,
    /// The same, by a process id that may have been reused since the connection was made (before Linux 6.5).
    SameById,
    /// Another one.
    Other,
    /// The kernel does not say: the process has ended, is not visible, or must not be inspected.
    Unknown,
}

/// The kernel's default (include/linux/highuid.h).
const DEFAULT_OVERFLOW_UID: u32 = 65_534;
/// All ids but the invalid one, 2^32 - 1.
const ALL_IDS: u64 = u32::MAX as u64;
/// SO_PEERPIDFD (include/uapi/asm-generic/socket.h), since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// PIDFD_GET_USER_NAMESPACE (include/uapi/linux/pidfd.h), since Linux 6.11.
const PIDFD_GET_USER_NAMESPACE: u64 = 0xff09;

/// Reads the view of this process; `None` if /proc does not show it.
#[must_use]
pub fn id_view() -> Option<IdView> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    let overflow_uid = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_OVERFLOW_UID);
    Some(IdView { overflow_uid, maps_every_uid: mapped_ids(&map) >= ALL_IDS })
}

/// Number of ids in a map: lines of first id inside, first id outside, count.
fn mapped_ids(map: &str) -> u64 {
    let count = |line: &str| line.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum()
}

/// Compares the namespace of the process that connected to this socket, or listens at its other end.
///
/// # Errors
/// `EMFILE`, `ENFILE`: this takes two descriptors for a moment.
pub fn peer_namespace(fd: BorrowedFd<'_>, peer: Credentials) -> io::Result<PeerNamespace> {
    let Some(own) = identity(Path::new("/proc/self/ns/user")) else { return Ok(PeerNamespace::Unknown) };
    let compare = |theirs| if theirs == own { PeerNamespace::Same } else { PeerNamespace::Other };
    let found = |theirs: Option<Identity>| theirs.map_or(PeerNamespace::Unknown, compare);
    let pidfd = match peer_pidfd(fd) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            return match error.raw_os_error() {
                Some(libc::EMFILE | libc::ENFILE) => Err(error),
                Some(libc::ENOPROTOOPT) => Ok(match found(identity_by_id(peer.pid)) {
                    PeerNamespace::Same => PeerNamespace::SameById,
                    found => found,
                }),
                _ => Ok(PeerNamespace::Unknown),
            };
        }
    };
    match namespace_of(&pidfd) {
        Ok(namespace) => Ok(found(identity_of(&namespace))),
        Err(error) => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Err(error),
            // Before Linux 6.11. While the process lives its id is not reused.
            Some(libc::ENOTTY | libc::EINVAL) => {
                let found = found(identity_by_id(peer.pid));
                Ok(if is_alive(&pidfd) { found } else { PeerNamespace::Unknown })
            }
            _ => Ok(PeerNamespace::Unknown),
        },
    }
}

/// Device and inode of a namespace, which identify it.
type Identity = (u64, u64);

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

fn identity_of(namespace: &fs::File) -> Option<Identity> {
    namespace.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// By /proc, if /proc shows the process ids of this process's namespace.
fn identity_by_id(pid: i32) -> Option<Identity> {
    let shown = fs::read_link("/proc/self").ok()?;
    if pid <= 0 || shown.to_str() != Some(&std::process::id().to_string()) {
        return None;
    }
    identity(&Path::new("/proc").join(pid.to_string()).join("ns/user"))
}

fn peer_pidfd(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw mut pidfd).cast();
    // SAFETY: the kernel writes at most `len` bytes to `pidfd`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, &raw mut len) })?;
    // SAFETY: the kernel has just installed this descriptor for us, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

/// The kernel permits this only to a process that may read the other one's memory (ptrace(2),
/// PTRACE_MODE_READ_FSCREDS).
fn namespace_of(pidfd: &OwnedFd) -> io::Result<fs::File> {
    // SAFETY: this request takes no pointer.
    let namespace = check(unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_USER_NAMESPACE as _, 0) })?;
    // SAFETY: the kernel has just installed this descriptor for us, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(namespace) }.into())
}

/// A pidfd is readable when its process has ended.
fn is_alive(pidfd: &OwnedFd) -> bool {
    poll(&mut [PollFd::readable(pidfd.as_fd().as_raw_fd())], Some(0)).is_ok_and(|ready| ready == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_every_id_is_told_from_a_map_of_some() {
        assert!(mapped_ids("         0          0 4294967295\n") >= ALL_IDS);
        for some in ["", "0 1000 1\n", "0 100000 65536\n", "0 1000 1\n1 100000 65536\n", "nonsense\n"] {
            assert!(mapped_ids(some) < ALL_IDS, "{some}");
        }
    }

    #[test]
    fn both_ends_of_a_connection_within_a_process_have_one_namespace() {
        let name = format!("roxie-test-{:x}", crate::random_u64());
        let listener = crate::bind_seqpacket(&name).unwrap();
        crate::listen(listener.as_fd(), 1).unwrap();
        let client = crate::connect_seqpacket(&name).unwrap();
        let server = crate::accept(listener.as_fd()).unwrap();
        for end in [client, server] {
            let peer = crate::peer_credentials(end.as_fd()).unwrap();
            let found = peer_namespace(end.as_fd(), peer).unwrap();
            assert!(matches!(found, PeerNamespace::Same | PeerNamespace::SameById), "{found:?}");
        }
    }

    #[test]
    fn the_id_of_a_process_leads_to_its_namespace() {
        assert_eq!(identity_by_id(std::process::id() as i32), identity(Path::new("/proc/self/ns/user")));
        assert_eq!(identity_by_id(0), None);
    }
}
