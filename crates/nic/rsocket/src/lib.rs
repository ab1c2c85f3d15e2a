//! rsockets: the socket calls of rdma-core over RDMA connections (rsocket(7)), wire-compatible with
//! rdma-core.
//!
//! A [`Stream`] writes sent bytes into memory that its peer has granted ([`wire::rsocket`]). Each WRITE
//! carries its length as immediate data. `outbound.rs` and `inbound.rs` do the accounting, `endpoint.rs` owns
//! the queue pair and the memory, `stream.rs` is the socket, and `wait.rs` lets calls wait. A socket has no
//! thread of its own: each call makes progress first.
//!
//! A [`Datagram`] sends each message with a UD queue pair (`messages.rs`). It learns the number of the peer's
//! queue pair over UDP.
#![forbid(unsafe_code)]

mod connect;
mod datagram;
mod endpoint;
mod inbound;
mod iomap;
mod messages;
mod outbound;
mod queues;
mod settings;
mod socket;
mod stream;
mod tasks;
mod transfer;
mod wait;

pub use datagram::Datagram;
pub use settings::Sizes;
pub use socket::Socket;
pub use stream::{Shutdown, Stream};
pub use transfer::Flags;
pub use wait::{PollEntry, Ready, poll};

/// Returns an error with this errno, as the C library reports it.
fn errno(number: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

/// The peer has used more than it was granted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Violation;

/// The connection has failed with this errno.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Broken(i32);

impl From<Violation> for Broken {
    fn from(_: Violation) -> Self {
        Self(libc::EPROTO)
    }
}
