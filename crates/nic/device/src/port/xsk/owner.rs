//! The process that owns an interface: one per network namespace at a time, because an interface takes
//! one XDP program and a queue one owner of its rings.
//!
//! An abstract Unix name identifies the owner. It is claimed before anything else, so a process need not
//! guess from a program on the interface whether its owner lives. The name is released as soon as its
//! owner dies. Any user can take a name, so there are several: names of users that cannot own an interface
//! do not count.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::{XskError, XskStep};
use crate::registry::identity::{Peer, Relation};

/// This process's claim to an interface; released on drop.
#[derive(Debug)]
pub(crate) struct Owner(OwnedFd);

/// Connections that may wait until [`Owner::accept_waiting`]; the kernel has a limit of its own.
const BACKLOG: i32 = 4096;

/// Attempts of a process that finds another one claiming the interface at the same time.
const ATTEMPTS: u32 = 5;
/// Between two attempts: longer than the other process needs to look at all names.
const PAUSE: Duration = Duration::from_millis(5);

/// A name that this process has bound. Other processes see no owner until it listens.
struct Bound {
    name: String,
    socket: OwnedFd,
}

impl Owner {
    /// Claims an interface.
    ///
    /// # Errors
    /// [`XskError::Owned`] if another process has the interface.
    pub(crate) fn claim(ifindex: u32) -> Result<Owner, XskError> {
        for _ in 0..ATTEMPTS {
            let Some(bound) = Bound::first_free(ifindex)? else { break };
            if let Some(owner) = bound.listen(ifindex)? {
                return Ok(owner);
            }
            // The other process may have found this one, and given up as well.
            sys::pause(PAUSE);
        }
        Err(XskError::Owned { pid: of(ifindex) })
    }

    /// Accepts and closes the connections of processes that look up the owner; their connect(2) has told
    /// them.
    pub(crate) fn accept_waiting(&self) {
        while sys::accept(self.0.as_fd()).is_ok() {}
    }
}

impl Bound {
    /// Binds the first free name; `None` if an owner has one before it.
    fn first_free(ifindex: u32) -> Result<Option<Bound>, XskError> {
        for name in names(ifindex) {
            match sys::bind_seqpacket(&name) {
                Ok(socket) => return Ok(Some(Bound { name, socket })),
                Err(error) if error.raw_os_error() != Some(libc::EADDRINUSE) => return Err(failed(error)),
                Err(_) if owner_by(&name).is_some() => return Ok(None),
                // A stranger's, or its process has not listened yet.
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Listens, and then looks for an owner with another name; `None` if there is one. Of two processes that
    /// do this at least one finds the other: the one that listens last.
    fn listen(self, ifindex: u32) -> Result<Option<Owner>, XskError> {
        sys::listen(self.socket.as_fd(), BACKLOG).map_err(failed)?;
        let has_owner = names(ifindex).any(|name| name != self.name && owner_by(&name).is_some());
        Ok((!has_owner).then_some(Owner(self.socket)))
    }
}

fn failed(error: io::Error) -> XskError {
    XskError::Socket { step: XskStep::Claim, error }
}

/// Whether a process has claimed the interface.
pub(crate) fn is_claimed(ifindex: u32) -> bool {
    names(ifindex).any(|name| owner_by(&name).is_some())
}

/// Returns the process that has claimed an interface; `None` if there is none, or it is not visible in
/// this pid namespace.
pub(crate) fn of(ifindex: u32) -> Option<u32> {
    let owner = names(ifindex).find_map(|name| owner_by(&name))?;
    u32::try_from(owner.credentials.pid).ok().filter(|pid| *pid != 0)
}

/// The process with this name, if it may own an interface: it is of the same user, or root.
fn owner_by(name: &str) -> Option<Peer> {
    let connection = sys::connect_seqpacket(name).ok()?;
    let peer = Peer::of(&connection).ok()?;
    matches!(peer.relation, Relation::Same | Relation::Root).then_some(peer)
}

/// Number of names of an interface. Two users with a name each are unlikely already.
const NAMES: u32 = 16;

/// The names do not depend on the domain, because interfaces do not.
fn names(ifindex: u32) -> impl Iterator<Item = String> {
    (1..=NAMES).map(move |n| {
        if n == 1 { format!("roxie/1/xsk/{ifindex}") } else { format!("roxie/1/xsk/{ifindex}/{n}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_one_known_owner_and_is_free_after_its_end() {
        // No interface has this number.
        let ifindex = u32::MAX - 7;
        let (me, first) = (Some(std::process::id()), Owner::claim(ifindex).unwrap());
        for _ in 0..3 {
            assert!(matches!(Owner::claim(ifindex), Err(XskError::Owned { pid }) if pid == me));
        }
        assert_eq!((of(ifindex), is_claimed(ifindex)), (me, true));
        first.accept_waiting();
        assert_eq!(sys::accept(first.0.as_fd()).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(first);
        assert_eq!((of(ifindex), is_claimed(ifindex)), (None, false));
        Owner::claim(ifindex).map(drop).unwrap();
    }
    /// The first process has bound its name and not listened yet, so the second one may take it for a
    /// stranger.
    #[test]
    fn of_two_processes_that_claim_at_the_same_time_one_becomes_the_owner() {
        let ifindex = u32::MAX - 8;
        let first = Bound::first_free(ifindex).unwrap().unwrap();
        let second = Owner::claim(ifindex).unwrap();
        assert!(first.listen(ifindex).unwrap().is_none());
        drop(second);
        let (first, second) = (Bound::first_free(ifindex), Bound::first_free(ifindex));
        let first = first.unwrap().unwrap().listen(ifindex).unwrap();
        assert!(first.is_some() && second.unwrap().unwrap().listen(ifindex).unwrap().is_none());
    }

    #[test]
    fn a_name_that_a_stranger_released_does_not_make_a_second_owner() {
        let ifindex = u32::MAX - 9;
        let stranger = sys::bind_seqpacket(&names(ifindex).next().unwrap()).unwrap();
        let _owner = Owner::claim(ifindex).unwrap();
        drop(stranger);
        assert!(matches!(Owner::claim(ifindex), Err(XskError::Owned { .. })));
    }
}
