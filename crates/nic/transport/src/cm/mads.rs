//! Management datagrams: where they came from, and those that are repeated until the peer responds.

use core::time::Duration;

use wire::Gid;
use wire::mad::MAD_LEN;

/// A management datagram.
pub type MadBytes = [u8; MAD_LEN];

/// Source and destination address of a MAD that arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Arrival {
    pub(super) src: Gid,
    pub(super) dst: Gid,
}

/// A message that is repeated until the peer responds.
#[derive(Debug)]
pub(super) struct AwaitingResponse {
    pub(super) mad: Box<MadBytes>,
    pub(super) interval: Duration,
    pub(super) retries_left: u8,
}
