//! A packet that outlives the batch in which it arrived.

use std::net::IpAddr;

use wire::{Gid, Mac};

use super::{Icrc, RxBatch, RxQueue};

/// A packet that outlives its GRO batch.
#[derive(Clone, Debug)]
pub struct OwnedPacket {
    src: IpAddr,
    src_port: u16,
    dst: IpAddr,
    dst_port: u16,
    ifindex: u32,
    tos: u8,
    ttl: u8,
    macs: Option<[Mac; 2]>,
    is_forwarded: bool,
    bytes: Vec<u8>,
}

impl OwnedPacket {
    /// A copy of the packet `bytes` of a batch.
    #[must_use]
    pub fn new(batch: &RxBatch<'_>, bytes: &[u8]) -> Self {
        let RxBatch { src, src_port, dst, dst_port, ifindex, tos, ttl, macs, .. } = *batch;
        let is_forwarded = batch.queue == RxQueue::Forwarded;
        let bytes = bytes.to_vec();
        Self { src, src_port, dst, dst_port, ifindex, tos, ttl, macs, is_forwarded, bytes }
    }

    /// Source and destination.
    pub(crate) fn addresses(&self) -> (Gid, Gid) {
        (Gid::from(self.src), Gid::from(self.dst))
    }

    /// The interface of a link-local destination, if it is known.
    pub(crate) fn scope(&self) -> Option<u32> {
        let is_link_local = matches!(self.dst, IpAddr::V6(ip) if ip.is_unicast_link_local());
        Some(self.ifindex).filter(|ifindex| is_link_local && *ifindex != 0)
    }

    /// Whether another process forwarded the packet; it is then not forwarded again.
    pub(crate) fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// The packet as a batch of one.
    #[must_use]
    pub fn batch(&self) -> RxBatch<'_> {
        let Self { src, src_port, dst, dst_port, ifindex, tos, ttl, macs, is_forwarded, ref bytes } = *self;
        let queue = if is_forwarded { RxQueue::Forwarded } else { RxQueue::Slot };
        let segment = bytes.len();
        RxBatch {
            src,
            src_port,
            dst,
            dst_port,
            ifindex,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_counts_as_forwarded_only_if_another_process_forwarded_it() {
        for queue in [RxQueue::Gsi, RxQueue::Slot, RxQueue::Forwarded] {
            let batch = RxBatch { queue, ..RxBatch::of_test(&[0; 20]) };
            let kept = OwnedPacket::new(&batch, batch.bytes);
            let is_forwarded = queue == RxQueue::Forwarded;
            assert_eq!(
                (kept.is_forwarded(), kept.batch().queue == queue),
                (is_forwarded, queue != RxQueue::Gsi)
            );
        }
    }
}
