//! Which process has an interface: one of its network namespace at a time, because an interface takes one XDP program and
//! a queue one owner of its rings.
//!
//! An abstract Unix name says who. It is claimed before anything else, so that nobody has to guess from a program he
//! finds on the interface whether its owner lives, and it is free as soon as its owner dies.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::XskError;
use sys;

/// This process's claim to an interface; given up on drop.
#[derive(Debug)]
pub(super) struct Owner(OwnedFd);

/// Askers that may wait until [`Owner::greet`]; the kernel has a limit of its own.
const BACKLOG: i32 = 4096;

impl Owner {
    /// Claims an interface.
    ///
    /// # Errors
    /// [`XskError::Owned`] if another process has it.
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

    /// Lets go those who came to ask who it is; the answer is that they could connect.
    pub(super) fn greet(&self) {
        while sys::accept(self.0.as_fd()).is_ok() {}
    }
}

/// Whether some process has an interface.
pub(super) fn is_claimed(ifindex: u32) -> bool {
    let name = name(ifindex);
    sys::abstract_names(&name).contains(&name)
}

/// The process that has an interface; `None` if none does, or it lives where it cannot be seen from here.
pub(super) fn of(ifindex: u32) -> Option<u32> {
    let asked: io::Result<_> =
        sys::connect_seqpacket(&name(ifindex)).and_then(|there| sys::peer_credentials(there.as_fd()));
    asked.ok().and_then(|owner| u32::try_from(owner.pid).ok()).filter(|pid| *pid != 0)
}

/// Whatever the domain: an interface is one.
fn name(ifindex: u32) -> String {
    format!("roxie/1/xsk/{ifindex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_one_owner_who_is_known_and_replaced_when_gone() {
        // No interface has this number.
        let ifindex = u32::MAX - 7;
        let (me, first) = (Some(std::process::id()), Owner::claim(ifindex).unwrap());
        for _ in 0..3 {
            assert!(matches!(Owner::claim(ifindex), Err(XskError::Owned { pid }) if pid == me));
        }
        assert_eq!((of(ifindex), is_claimed(ifindex)), (me, true));
        first.greet();
        assert_eq!(sys::accept(first.0.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        assert_eq!((of(ifindex), is_claimed(ifindex)), (None, false));
        Owner::claim(ifindex).map(drop).unwrap();
    }
}
