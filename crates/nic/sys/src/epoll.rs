//! A set of descriptors that is itself a descriptor (epoll(7)), level-triggered.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::eventfd::is_nonblocking;
use super::{call, check};

/// A set of descriptors, each with a token.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: epoll_create1 takes no pointer.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` is new and has no other owner.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds `fd`, watched for input.
    ///
    /// # Errors
    /// `EEXIST`, `ENOMEM`, `ENOSPC`.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: `event` is valid for the call.
        check(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(drop)
    }

    /// Removes `fd`.
    ///
    /// # Errors
    /// `ENOENT` if it was not watched.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: EPOLL_CTL_DEL ignores the event pointer.
        check(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) }).map(drop)
    }

    /// Whether the application has made the descriptor of the set non-blocking. The kernel does not use that
    /// flag of a set.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        is_nonblocking(self.as_fd())
    }

    /// Writes the tokens of ready descriptors to `tokens` without waiting; returns how many.
    pub fn ready(&self, tokens: &mut [u64; 16]) -> usize {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let set = self.0.as_raw_fd();
        // SAFETY: `events` has room for the 16 events that are asked for.
        let n = unsafe { call::epoll_wait_now(set, events.as_mut_ptr(), 16) };
        // A failure (EINTR) counts as none ready: the caller polls again.
        let n = usize::try_from(n).unwrap_or(0);
        for (token, event) in tokens.iter_mut().zip(&events[..n]) {
            *token = event.u64;
        }
        n
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
