//! Which user is at the other end of a socket: the only place that decides this.
//!
//! The kernel reports the user id of a peer (SO_PEERCRED) as the user namespace of the reader shows it. Two
//! things follow:
//!
//! - An id without a mapping appears as the overflow id, 65534. A process with its own id shown as 65534 (it
//!   is `nobody`, or its namespace maps nothing) would take every user without a mapping for its own. So the
//!   overflow id identifies a user only in a namespace that maps every id.
//! - A user may run programs in user namespaces of their own, as sandboxes do. The kernel does not let them
//!   trace the user's other processes (ptrace(2)). So equal ids are the same user only within one namespace.
//!
//! A process that cannot show that it is in the same namespace may connect through the user's private
//! directory instead (`meeting.rs`): only that user and root can enter it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use sys::{Credentials, IdView, PeerNamespace};

/// What the peer is to this process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Relation {
    /// The same user: it may do whatever this process may.
    Same,
    /// The root user of this process's user namespace.
    Root,
    /// The user with the reported id, or a process with the id of this user in another user namespace.
    Other,
    /// A user that has no id in this process's user namespace.
    Unknown,
}

/// The process at the other end of a socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer {
    /// What the kernel says of it.
    pub credentials: Credentials,
    /// What it is to this process.
    pub relation: Relation,
}

impl Peer {
    /// The process that connected to this socket, or that listens at its other end.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn of(connection: &OwnedFd) -> io::Result<Peer> {
        let credentials = sys::peer_credentials(connection.as_fd())?;
        let namespace = || sys::peer_namespace(connection.as_fd(), credentials);
        let relation = relation(id_view(), sys::effective_uid(), credentials.uid, namespace)?;
        Ok(Peer { credentials, relation })
    }

    /// A process that connected through the private directory, or listens there.
    pub(super) fn through_private_dir(connection: &OwnedFd) -> io::Result<Peer> {
        let credentials = sys::peer_credentials(connection.as_fd())?;
        Ok(Peer { credentials, relation: Relation::Same })
    }
}

/// True if this process is root on a machine, or in a container that maps root.
#[must_use]
pub fn is_root() -> bool {
    let view = id_view();
    sys::effective_uid() == 0 && (view.maps_every_uid || view.overflow_uid != 0)
}

/// Decides from the reported id; asks for the peer's namespace only if the answer depends on it.
fn relation(
    view: IdView,
    own_uid: u32,
    uid: u32,
    namespace: impl FnOnce() -> io::Result<PeerNamespace>,
) -> io::Result<Relation> {
    let is_one_user = view.maps_every_uid || uid != view.overflow_uid;
    if uid != own_uid {
        return Ok(match (is_one_user, uid) {
            (false, _) => Relation::Unknown,
            (true, 0) => Relation::Root,
            (true, _) => Relation::Other,
        });
    }
    // Every file of root belongs to this id, whatever namespace the process is in.
    let is_machine_root = uid == 0 && view.maps_every_uid;
    let is_same = is_machine_root
        || match namespace()? {
            // The kernel has compared the users themselves.
            PeerNamespace::Same => true,
            PeerNamespace::SameById => is_one_user,
            PeerNamespace::Other | PeerNamespace::Unknown => false,
        };
    Ok(match (is_same, is_one_user) {
        (true, _) => Relation::Same,
        (false, true) => Relation::Other,
        (false, false) => Relation::Unknown,
    })
}

/// The view that /proc showed last: a program may hide /proc from itself later (chroot). The overflow id,
/// bit 32 for a map of every id, bit 33 if there is a view.
static LAST_VIEW: AtomicU64 = AtomicU64::new(0);
const MAPS_EVERY_UID: u64 = 1 << 32;
const IS_KNOWN: u64 = 1 << 33;

/// Notes the present view, while /proc is visible and descriptors are free.
pub(super) fn prepare() {
    id_view();
}

fn id_view() -> IdView {
    if let Some(view) = sys::id_view() {
        let maps = if view.maps_every_uid { MAPS_EVERY_UID } else { 0 };
        LAST_VIEW.store(IS_KNOWN | maps | u64::from(view.overflow_uid), Ordering::Relaxed);
        return view;
    }
    match LAST_VIEW.load(Ordering::Relaxed) {
        0 => IdView { overflow_uid: 65_534, maps_every_uid: false },
        known => IdView { overflow_uid: known as u32, maps_every_uid: known & MAPS_EVERY_UID != 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PeerNamespace as Ns;
    use Relation::{Other, Root, Same, Unknown};

    const NOBODY: u32 = 65_534;
    /// The first namespace of the machine.
    const MACHINE: IdView = IdView { overflow_uid: NOBODY, maps_every_uid: true };
    /// A container, or a bare `unshare --user`.
    const CONTAINER: IdView = IdView { overflow_uid: NOBODY, maps_every_uid: false };

    fn of(view: IdView, own: u32, uid: u32, namespace: Ns) -> Relation {
        relation(view, own, uid, || Ok(namespace)).unwrap()
    }

    #[test]
    fn only_a_process_of_the_same_namespace_with_the_same_id_is_the_same_user() {
        for view in [MACHINE, CONTAINER] {
            assert_eq!(of(view, 3000, 3000, Ns::Same), Same);
            assert_eq!(of(view, 3000, 3000, Ns::SameById), Same);
            // The same id in two namespaces that share a network namespace.
            assert_eq!(of(view, 3000, 3000, Ns::Other), Other);
            assert_eq!(of(view, 3000, 3000, Ns::Unknown), Other);
            assert_eq!(of(view, 3000, 4000, Ns::Same), Other);
            assert_eq!(of(view, 0, 3000, Ns::Same), Other);
        }
    }

    /// A process in a bare `unshare --user` is 65534 to itself, and so is every other user.
    #[test]
    fn the_overflow_id_identifies_no_user_where_ids_have_no_mapping() {
        for namespace in [Ns::Other, Ns::Unknown, Ns::SameById] {
            assert_eq!(of(CONTAINER, NOBODY, NOBODY, namespace), Unknown);
        }
        assert_eq!(of(CONTAINER, 3000, NOBODY, Ns::Same), Unknown);
        assert_eq!(of(CONTAINER, 0, NOBODY, Ns::Same), Unknown);
        // Here the kernel has compared the users behind the ids.
        assert_eq!(of(CONTAINER, NOBODY, NOBODY, Ns::Same), Same);
        let odd = IdView { overflow_uid: 1000, ..CONTAINER };
        assert_eq!(of(odd, 1000, 1000, Ns::Unknown), Unknown);
        assert_eq!(of(odd, NOBODY, NOBODY, Ns::Same), Same);
        // A machine with the overflow id 0 has no root in its containers.
        assert_eq!(of(IdView { overflow_uid: 0, ..CONTAINER }, 3000, 0, Ns::Same), Unknown);
    }

    #[test]
    fn nobody_is_a_user_like_others_where_every_id_has_a_mapping() {
        assert_eq!(of(MACHINE, NOBODY, NOBODY, Ns::Same), Same);
        assert_eq!(of(MACHINE, NOBODY, NOBODY, Ns::Other), Other);
        assert_eq!(of(MACHINE, 3000, NOBODY, Ns::Same), Other);
        assert_eq!(of(MACHINE, NOBODY, 3000, Ns::Same), Other);
    }

    #[test]
    fn root_is_known_in_every_namespace_and_is_one_user_on_the_machine() {
        assert_eq!([MACHINE, CONTAINER].map(|view| of(view, 3000, 0, Ns::Other)), [Root, Root]);
        assert_eq!(of(MACHINE, 0, 0, Ns::Unknown), Same);
        // The root of a container is an ordinary user of the machine, with namespaces of its own.
        assert_eq!(of(CONTAINER, 0, 0, Ns::Unknown), Other);
        assert_eq!(of(CONTAINER, 0, 0, Ns::Same), Same);
    }
}
