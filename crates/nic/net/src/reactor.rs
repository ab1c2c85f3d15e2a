//! What this crate needs of an executor.

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

/// Names the types of the crate for one reactor.
#[cfg(any(feature = "tokio", feature = "smol"))]
macro_rules! name_types {
    ($reactor:ty) => {
        /// A byte stream.
        pub type RdmaStream = super::RdmaStream<$reactor>;
        /// Accepts byte streams.
        pub type RdmaListener = super::RdmaListener<$reactor>;
        /// A connection for messages and one-sided operations.
        pub type MessageSocket = super::MessageSocket<$reactor>;
        /// Accepts message sockets.
        pub type MessageListener = super::MessageListener<$reactor>;
        /// The completions of a completion queue.
        pub type Completions = super::Completions<$reactor>;
        /// The events of the connection manager.
        pub type CmEvents = super::CmEvents<$reactor>;
    };
}
#[cfg(any(feature = "tokio", feature = "smol"))]
pub(super) use name_types;
