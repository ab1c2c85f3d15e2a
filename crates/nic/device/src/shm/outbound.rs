//! Writing batches to a ring.

use wire::Gid;
use wire::icrc::ICRC_LEN;

use super::{ALIGN, BATCH_BYTES_MAX, BatchHeader, HEADER_LEN};
use crate::port::{FlowId, FlowKey};
use crate::registry::RingLink;
use sys::byte_ring::{Broken, Producer, RING_BYTES};
use sys::now_ns;

/// The producer of a ring that another process reads.
#[derive(Debug)]
pub(super) struct Outbound {
    ring: Producer,
    pub(super) link: RingLink,
    /// The other process has accepted the ring.
    pub(super) is_open: bool,
    /// Bytes of complete batches that are not published.
    written: usize,
    /// The open batch after them.
    batch: Option<Batch>,
    /// Packets in both.
    packets: usize,
    /// Free bytes of the crowded ring when they last changed, and the time of that change (nanoseconds).
    crowd: Option<(usize, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    flow: FlowId,
    header: BatchHeader,
    /// Bytes of its packets, and of each packet but the last.
    bytes: usize,
    segment: usize,
    count: u16,
    /// A shorter packet was added, which must be the last one.
    is_complete: bool,
}

/// A ring with more bytes than this is crowded: it gets no more packets, as long as its reader reads. The
/// rest is reserved for one transmit quantum: 124 packets.
const CROWDED_BYTES: usize = RING_BYTES / 4;
/// A reader that has read nothing for this time (nanoseconds) does not delay other flows: its packets may
/// be lost here, as at a full socket buffer.
const CROWDED_NS: u64 = 1_000_000;

impl Outbound {
    pub(super) fn new(ring: Producer, link: RingLink) -> Outbound {
        Outbound { ring, link, is_open: false, written: 0, batch: None, packets: 0, crowd: None }
    }

    /// Returns the index of a packet of `len` bytes in its batch if it is committed next.
    pub(super) fn identification(&self, flow: FlowId, len: usize) -> u16 {
        self.batch.filter(|batch| batch.takes(flow, len)).map_or(0, |batch| batch.count)
    }

    /// Adds a packet with free space in place of its ICRC; a full batch is published at once. Returns how
    /// many packets were published, `None` if there is no space for this one.
    #[inline]
    pub(super) fn commit(
        &mut self,
        flow: FlowId,
        header: &BatchHeader,
        packet: &mut [u8],
    ) -> Result<Option<usize>, Broken> {
        let len = packet.len();
        if !self.batch.as_ref().is_some_and(|batch| batch.takes(flow, len)) {
            self.end_batch();
        }
        let before = self.batch.map_or(0, |batch| batch.bytes);
        let at = self.written + HEADER_LEN + before;
        if self.ring.room(at + len + ALIGN)? < at + len + ALIGN {
            return Ok(None);
        }
        let batch = self.batch.get_or_insert(Batch {
            flow,
            header: *header,
            bytes: 0,
            segment: len,
            count: 0,
            is_complete: false,
        });
        if let Some(icrc) = packet.last_chunk_mut::<ICRC_LEN>() {
            // The space holds bytes of an earlier packet, which the reader must not see.
            *icrc = [0; ICRC_LEN];
        }
        if !self.ring.write(at, packet) {
            return Err(Broken);
        }
        batch.bytes += len;
        batch.count += 1;
        batch.is_complete = len < batch.segment;
        self.packets += 1;
        let is_full = batch.bytes + len > BATCH_BYTES_MAX;
        Ok(Some(if is_full { self.publish() } else { 0 }))
    }

    /// Publishes the written batches, and wakes the reader if it sleeps; returns the number of packets.
    pub(super) fn publish(&mut self) -> usize {
        self.end_batch();
        if self.written > 0 {
            self.ring.publish(self.written);
            self.written = 0;
            if self.ring.take_wakeup_request() {
                self.link.wake();
            }
        }
        std::mem::take(&mut self.packets)
    }

    /// Whether the sender should wait before it writes more.
    pub(super) fn is_crowded(&mut self) -> bool {
        const ENOUGH: usize = RING_BYTES - CROWDED_BYTES;
        // An invalid index of the reader is detected at the next packet.
        let room = self.ring.room(ENOUGH).unwrap_or(RING_BYTES);
        if room >= ENOUGH {
            self.crowd = None;
            return false;
        }
        let now = now_ns();
        let since = self.crowd.filter(|(seen, _)| *seen == room).map_or(now, |(_, since)| since);
        self.crowd = Some((room, since));
        now - since < CROWDED_NS
    }

    fn end_batch(&mut self) {
        let Some(mut batch) = self.batch.take() else { return };
        batch.header[..4].copy_from_slice(&(batch.bytes as u32).to_le_bytes());
        batch.header[4..6].copy_from_slice(&(batch.segment as u16).to_le_bytes());
        // There was room for it with the first packet.
        let is_there = self.ring.write(self.written, &batch.header);
        debug_assert!(is_there, "the room was there");
        self.written = (self.written + HEADER_LEN + batch.bytes).next_multiple_of(ALIGN);
    }
}

impl Batch {
    #[inline]
    fn takes(&self, flow: FlowId, len: usize) -> bool {
        self.flow == flow && len <= self.segment && !self.is_complete && self.bytes + len <= BATCH_BYTES_MAX
    }
}

/// Returns the header of a flow's batches.
pub(super) fn header(key: &FlowKey, src_port: u16, dst_port: u16) -> BatchHeader {
    let mut header = [0; HEADER_LEN];
    header[6..8].copy_from_slice(&src_port.to_le_bytes());
    header[8..10].copy_from_slice(&dst_port.to_le_bytes());
    header[10..12].copy_from_slice(&[key.tos, key.ttl]);
    header[16..32].copy_from_slice(&Gid::from(key.src).0);
    header[32..48].copy_from_slice(&Gid::from(key.dst).0);
    header
}
