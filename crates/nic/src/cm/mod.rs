//! Connection management with the semantics of librdmacm (rdma_cm(7)), on top of [`transport::cm`].
//!
//! An [`Id`] is bound, resolved, and then listens or connects; what happens to it is read from its
//! [`EventChannel`]. QPs are moved exactly where librdmacm moves them: inside [`EventChannel::get_event`]
//! when the peer has accepted, inside [`Id::accept`] before the peer is told. MADs travel on QP1 of the
//! engine; `driver.rs` says how the two are kept from waiting for each other.

mod address;
mod channel;
mod connect;
mod driver;
mod event;
mod host;
mod id;
mod multicast;
mod option;
mod pace;
mod port;
mod qp;
mod resolve;

#[cfg(test)]
mod tests;

pub use channel::EventChannel;
pub use event::{CmEvent, CmEventKind, ConnParam, DEPTH_MAX, Param, UdParam};
pub(crate) use id::HOP_LIMIT;
pub use id::{Id, PathInfo};
pub use port::PortSpace;
pub use transport::cm::UDP_QKEY;

pub(crate) use driver::{CmDriver, CmLocks};
pub(crate) use transport::cm::MadOutcome;

use std::io;

use transport::VerbsError;

/// An error as the C library reports it: by errno.
fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn invalid() -> io::Error {
    errno(libc::EINVAL)
}

pub(crate) fn verbs(error: VerbsError) -> io::Error {
    errno(error.errno())
}
