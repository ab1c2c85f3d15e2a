//! The process that owns an interface: one per network namespace at a time, because an interface takes
//! one XDP program and a queue one owner of its rings.
//!
//! An abstract Unix name identifies the owner. It is claimed before anything else, so a process need not
//! guess from a program on the interface whether its owner lives. The name is released as soon as its
//! owner dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::XskError;
use sys;

/// This process's claim to an interface; released on drop.
#[derive(Debug)]
pub(super) struct Owner(OwnedFd);

/// Connections that may wait until [`Owner::accept_waiting`]; the kernel has a limit of its own.
const BACKLOG: i32 = 4096;

impl Owner {
    /// Claims an interface.
    ///
    /// # Errors
    /// [`XskError::Owned`] if another process has the interface.
    pub(super) fn claim(ifindex: u32) -> Result<Owner, XskError> {
        let name = name(ifindex);
        let claimed = sys::bind_seqpacket(&name).and_then(|fd| {
            sys::listen(fd.as_fd(), BACKLOG)?;
            Ok(Owner(fd))
        });
        claimed.map_err(|error| match error.raw_os_error() {
            Some(libc::EADDRINUSE) => XskError::Owned { pid: of(ifindex) },
            _ => XskError::Socket { step: "claim", error },
        })
    }

    /// Accepts and closes the connections of processes that look up the owner; their connect(2) has told
    /// them.
    pub(super) fn accept_waiting(&self) {
        while sys::accept(self.0.as_fd()).is_ok() {}
    }
}

/// Whether a process has claimed the interface.
pub(super) fn is_claimed(ifindex: u32) -> bool {
    let name = name(ifindex);
    sys::abstract_names(&name).contains(&name)
}

/// Returns the process that has claimed an interface; `None` if there is none, or it is not visible in
/// this pid namespace.
pub(super) fn of(ifindex: u32) -> Option<u32> {
    let asked: io::Result<_> =
        sys::connect_seqpacket(&name(ifindex)).and_then(|there| sys::peer_credentials(there.as_fd()));
    asked.ok().and_then(|owner| u32::try_from(owner.pid).ok()).filter(|pid| *pid != 0)
}

/// The name does not depend on the domain, because interfaces do not.
fn name(ifindex: u32) -> String {
    format!("roxie/1/xsk/{ifindex}")
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
        assert_eq!(sys::accept(first.0.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        assert_eq!((of(ifindex), is_claimed(ifindex)), (None, false));
        Owner::claim(ifindex).map(drop).unwrap();
    }
}
