//! Asynchronous RDMA: streams, message sockets and completions for tokio (feature `tokio`) and for smol or
//! any other executor (feature `smol`).
//!
//! | type | is | peer in C |
//! |---|---|---|
//! | [`RdmaStream`], [`RdmaListener`] | a byte stream, as TCP is one | rsockets: `rsocket(7)`, `rstream` |
//! | [`MessageSocket`], [`MessageListener`] | messages (SEND and RECV), READ, WRITE, atomics | librdmacm |
//! | [`Completions`] | the completions of a completion queue | |
//! | [`CmEvents`] | the events of the connection manager | |
//!
//! The modules `tokio` and `smol` name these types for one executor each: `roxie_net::tokio::RdmaStream`.
//!
//! Every future is cancellation-safe: dropping it loses no received byte or message, and a message was either
//! posted whole or not at all. Memory that a cancelled READ or WRITE still uses stays reserved until the
//! device has completed it. No call blocks the executor's thread, except for the microseconds in which the
//! device registers memory or starts.
//!
//! # Example
//! A server echoes one line over a stream.
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use roxie_net::tokio::{RdmaListener, RdmaStream};
//! use roxie::registry::DomainConfig;
//! use roxie::verbs::{Device, DeviceConfig};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The device on `lo`, in a domain of its own: other processes use UDP port 4791.
//! let config = DeviceConfig {
//!     netdev: Some("lo".to_owned()),
//!     domain: DomainConfig::parse("net-example:14793"),
//!     ..DeviceConfig::default()
//! };
//! let context = Device::open(&config)?.context()?;
//!
//! let listener = RdmaListener::bind(&context, SocketAddr::from(([127, 0, 0, 1], 0)))?;
//! let address = listener.local_addr()?;
//! let server = async {
//!     let (mut stream, _peer) = listener.accept().await?;
//!     let mut line = Vec::new();
//!     stream.read_to_end(&mut line).await?;
//!     stream.write_all(&line).await?;
//!     stream.shutdown().await
//! };
//! let client = async {
//!     let mut stream = RdmaStream::connect(&context, address).await?;
//!     stream.write_all(b"hello, RDMA").await?;
//!     stream.shutdown().await?;
//!     let mut echoed = String::new();
//!     stream.read_to_string(&mut echoed).await?;
//!     std::io::Result::Ok(echoed)
//! };
//! let (served, echoed) = tokio::join!(server, client);
//! served?;
//! assert_eq!(echoed?, "hello, RDMA");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod completions;
mod events;
mod link;
mod listener;
mod message;
mod one_sided;
mod reactor;
mod remote;
#[cfg(feature = "smol")]
pub mod smol;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
mod waiting;

pub use completions::Completions;
pub use events::CmEvents;
pub use listener::{RdmaListener, StreamBuilder};
pub use message::{MessageBuilder, MessageListener, MessageSocket};
pub use reactor::Reactor;
pub use remote::RemoteMemory;
pub use stream::RdmaStream;

/// Returns an error with this errno, as the C library reports it.
fn errno(number: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}
