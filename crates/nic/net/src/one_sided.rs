//! One-sided operations of a message socket: the peer's program takes no part.

use std::future::poll_fn;
use std::io;

use crate::link::{Link, OneSided};
use crate::message::MessageSocket;
use crate::reactor::Reactor;
use crate::remote::RemoteMemory;
use crate::waiting::Interest;

/// Bytes of an atomic operation.
const ATOMIC_LEN: usize = 8;

/// A posted operation. Dropping it leaves its slot to the device until the operation has completed.
struct Posted<'a> {
    link: &'a Link,
    slot: Option<usize>,
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.link.abandon(slot);
        }
    }
}

impl<R: Reactor> MessageSocket<R> {
    /// Reads the first bytes of the peer's memory, as many as `to` has (RDMA READ).
    ///
    /// # Errors
    /// `EMSGSIZE` if `to` is longer than the peer's memory or than this side's `message_len`.
    /// `PermissionDenied` if the peer does not permit it; this ends the connection. The error that ended the
    /// connection before.
    pub async fn read(&self, from: RemoteMemory, to: &mut [u8]) -> io::Result<()> {
        self.one_sided(OneSided::Read, from, &[], to).await
    }

    /// Writes to the first bytes of the peer's memory (RDMA WRITE), and waits for the acknowledgement.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn write(&self, to: RemoteMemory, from: &[u8]) -> io::Result<()> {
        let op = OneSided::Write;
        let posted = self.start(op, to, from, from.len()).await?;
        self.finish(posted, &mut []).await
    }

    /// Replaces the peer's aligned 8 bytes by `swap` if they are `compare`, and returns their former value.
    /// The numbers are in the peer's byte order.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn compare_swap(&self, at: RemoteMemory, compare: u64, swap: u64) -> io::Result<u64> {
        let mut before = [0; ATOMIC_LEN];
        self.one_sided(OneSided::CompareSwap { compare, swap }, at, &[], &mut before).await?;
        Ok(u64::from_ne_bytes(before))
    }

    /// Adds to the peer's aligned 8 bytes, and returns their former value.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn fetch_add(&self, at: RemoteMemory, add: u64) -> io::Result<u64> {
        let mut before = [0; ATOMIC_LEN];
        self.one_sided(OneSided::FetchAdd { add }, at, &[], &mut before).await?;
        Ok(u64::from_ne_bytes(before))
    }

    async fn one_sided(&self, op: OneSided, at: RemoteMemory, from: &[u8], to: &mut [u8]) -> io::Result<()> {
        let posted = self.start(op, at, from, to.len()).await?;
        self.finish(posted, to).await
    }

    async fn start(&self, op: OneSided, at: RemoteMemory, from: &[u8], len: usize) -> io::Result<Posted<'_>> {
        let link = &self.link;
        let start = || link.start(op, at, from, len);
        let slot = poll_fn(|cx| self.poll(cx, Interest::Write, start)).await?;
        Ok(Posted { link, slot: Some(slot) })
    }

    async fn finish(&self, mut posted: Posted<'_>, to: &mut [u8]) -> io::Result<()> {
        let Some(slot) = posted.slot else { return Ok(()) };
        let done = poll_fn(|cx| self.poll(cx, Interest::Write, || self.link.take_result(slot, to))).await;
        posted.slot = None;
        done
    }
}
