//! rsockets: the socket calls of rdma-core over RDMA connections (rsocket(7)), wire-compatible with it.
//!
//! A [`Stream`] writes what is sent into memory that its peer has granted ([`wire::rsocket`]), each WRITE with immediate
//! data that says how much it was. `outbound.rs` and `inbound.rs` are the numbers of that, `endpoint.rs` the queue pair
//! and the memory, `stream.rs` the socket, `wait.rs` how calls wait. There is no thread behind a socket: whoever calls
//! does what is due.
//!
//! A [`Datagram`] sends each message with a UD queue pair (`messages.rs`), whose number it learns from its peer over UDP.

mod connect;
mod datagram;
mod endpoint;
mod inbound;
mod iomap;
mod messages;
mod outbound;
mod settings;
mod socket;
mod stream;
mod transfer;
mod wait;

pub use datagram::Datagram;
pub use settings::Sizes;
pub use socket::Socket;
pub use stream::{Shutdown, Stream};
pub use transfer::Flags;
pub use wait::{PollEntry, Ready, poll};

/// The peer claims more than it was given.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Violation;

/// The connection is over, for this errno.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Broken(i32);

impl From<Violation> for Broken {
    fn from(Violation: Violation) -> Self {
        Self(libc::EPROTO)
    }
}
