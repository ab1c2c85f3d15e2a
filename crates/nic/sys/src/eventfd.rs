//! eventfd: a counter that is a descriptor (eventfd(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{call, check, fork};

/// A counter that is readable while it is not zero. A forked child, which shares it with its parent,
/// leaves it alone.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    generation: u32,
}

impl EventFd {
    /// Creates a non-blocking counter for wake-ups: [`take`](EventFd::take) resets it to zero.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn new() -> io::Result<EventFd> {
        Self::open(libc::EFD_NONBLOCK)
    }

    /// Creates a counter that each [`take`](EventFd::take) lowers by one: one unit per queued event. It
    /// is blocking, like verbs event channels, until the application changes that with `fcntl`.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn semaphore() -> io::Result<EventFd> {
        Self::open(libc::EFD_SEMAPHORE)
    }

    /// Adds `n` to the counter.
    pub fn signal(&self, n: u64) {
        if self.is_inherited() {
            return;
        }
        // SAFETY: the buffer is 8 bytes long, which is what eventfd reads.
        let ret = unsafe { call::write(self.fd.as_raw_fd(), (&raw const n).cast(), 8) };
        // The write fails only when the counter would exceed 2^64 - 2 (it is readable then anyway) or
        // when the application closed the descriptor, and then there is no listener.
        debug_assert!(ret == 8 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL));
    }

    /// Takes one unit (semaphore) or all; waits if there is none and the descriptor is blocking.
    ///
    /// # Errors
    /// `EAGAIN` if there is nothing and the descriptor is non-blocking; `EINTR`; `EBADF` in a forked child.
    pub fn take(&self) -> io::Result<u64> {
        if self.is_inherited() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let mut value = 0u64;
        // SAFETY: the buffer is 8 bytes long, which is what eventfd writes.
        let ret = unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut value).cast(), 8) };
        if ret == 8 { Ok(value) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes one unit if there is one, without waiting, whatever flags the application has set on the
    /// descriptor. Linux before 5.8 cannot do that; there nothing is taken.
    pub fn try_take(&self) {
        if self.is_inherited() {
            return;
        }
        let mut value = 0u64;
        let part = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: 8 };
        // -1 is the current offset, in two words. musl has the function since 1.2.5 only.
        let (fd, offset): (_, libc::c_long) = (libc::c_long::from(self.fd.as_raw_fd()), -1);
        // SAFETY: the one part is 8 bytes long, which is what eventfd writes.
        let _units = unsafe {
            libc::syscall(libc::SYS_preadv2, fd, &raw const part, 1_usize, offset, offset, libc::RWF_NOWAIT)
        };
    }

    /// Whether the descriptor, which the application may have changed, is non-blocking.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        is_nonblocking(self.as_fd())
    }

    /// Makes [`take`](EventFd::take) fail where it would wait.
    ///
    /// # Errors
    /// `EBADF` if the application closed our descriptor.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        // SAFETY: F_GETFL takes no pointer.
        let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
        // SAFETY: F_SETFL takes an int.
        check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
        Ok(())
    }

    /// True in a child of the process that created it.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    fn open(flags: libc::c_int) -> io::Result<EventFd> {
        // SAFETY: eventfd takes no pointer.
        let fd = check(unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) })?;
        // SAFETY: `fd` is new and has no other owner.
        Ok(EventFd { fd: unsafe { OwnedFd::from_raw_fd(fd) }, generation: fork::generation() })
    }
}

/// Whether `O_NONBLOCK` is set on a descriptor.
pub(super) fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: F_GETFL takes no pointer.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semaphore_gives_one_unit_per_take() {
        let event = EventFd::semaphore().unwrap();
        assert!(!event.is_nonblocking());
        event.signal(2);
        assert_eq!(event.take().unwrap(), 1);
        assert_eq!(event.take().unwrap(), 1);
    }

    #[test]
    fn trying_to_take_never_waits() {
        let event = EventFd::semaphore().unwrap();
        event.try_take();
        event.signal(3);
        event.try_take();
        event.try_take();
        assert_eq!(event.take().unwrap(), 1);
        event.try_take();
    }

    #[test]
    fn one_take_resets_a_wake_up() {
        let event = EventFd::new().unwrap();
        assert!(event.is_nonblocking());
        event.signal(2);
        event.signal(3);
        assert_eq!(event.take().unwrap(), 5);
        assert_eq!(event.take().unwrap_err().raw_os_error(), Some(libc::EAGAIN));
    }
}
