//! A packet that outlives the batch in which it arrived.

use std::net::IpAddr;

use wire::{Gid, Mac};

use super::{Icrc, RxBatch, RxQueue};

/// A packet that outlives its GRO batch.
#[derive(Clone, Debug)]
pub(crate) struct OwnedPacket {
    src: IpAddr,
    src_port: u16,
    dst: IpAddr,
    dst_port: u16,
    tos: u8,
    ttl: u8,
    macs: Option<[Mac; 2]>,
    is_forwarded: bool,
    bytes: Vec<u8>,
}

impl OwnedPacket {
    pub(crate) fn new(batch: &RxBatch<'_>, bytes: &[u8]) -> Self {
        let RxBatch { src, src_port, dst, dst_port, tos, ttl, macs, .. } = *batch;
        let is_forwarded = batch.queue == RxQueue::Forwarded;
        Self { src, src_port, dst, dst_port, tos, ttl, macs, is_forwarded, bytes: bytes.to_vec() }
    }

    /// Source and destination.
    pub(crate) fn addresses(&self) -> (Gid, Gid) {
        (Gid::from(self.src), Gid::from(self.dst))
    }

    /// Whether another process forwarded the packet; it is then not forwarded again.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// The packet as a batch of one.
    pub(crate) fn batch(&self) -> RxBatch<'_> {
        let Self { src, src_port, dst, dst_port, tos, ttl, macs, ref bytes, .. } = *self;
        let (segment, queue) = (bytes.len(), RxQueue::Forwarded);
        RxBatch {
            src,
            src_port,
            dst,
            dst_port,
            tos,
            ttl,
            segment,
            macs,
            ip_id: None,
            bytes,
            queue,
            icrc: Icrc::Present,
        }
    }
}
