//! What this module needs of an executor.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

/// A reactor that wakes tasks when a descriptor becomes readable.
pub trait Reactor: Send + Sync + Unpin + 'static {
    /// A registered descriptor; dropping it ends the registration.
    type Source: Send + Sync + Unpin;

    /// Registers a descriptor.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    fn register(fd: OwnedFd) -> io::Result<Self::Source>;

    /// Returns `Ready` if the descriptor has become readable since the last call that returned `Ready`.
    /// Otherwise wakes the task when it does.
    ///
    /// # Errors
    /// The reactor has ended.
    fn poll_readable(source: &Self::Source, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}
