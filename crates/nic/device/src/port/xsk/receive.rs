//! Receiving: descriptors in batches; each frame is one packet, or several in generic mode.

use super::super::headers::batch_of;
use super::super::{RxBatch, RxQueue};
use super::XskPort;
use sys::XdpMode;

/// Descriptors taken from one queue at a time: their packets should stay in the cache until they are
/// processed.
const BATCH_MAX: u32 = 128;
/// Longest frame: the maximum of an IP header's length field, and Ethernet.
const FRAME_MAX: usize = (1 << 16) + 18;

impl XskPort {
    /// Reads once from every queue.
    #[inline]
    pub(super) fn receive(&mut self, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let mut batches = 0;
        let may_be_joined = self.steering.as_ref().is_some_and(|s| s.mode() == XdpMode::Generic);
        let XskPort { sockets, joined, segments, udp_port, counters, extra, .. } = self;
        let mut consume = |frame: &[u8], f: &mut dyn FnMut(&RxBatch<'_>)| {
            let Some(mut batch) = batch_of(frame, *udp_port, RxQueue::Slot) else {
                counters.rx_malformed += 1;
                return;
            };
            if may_be_joined && let Some(icrc) = batch.icrc_header() {
                batch.segment = segments.length(&icrc, batch.ip_id.unwrap_or(0), batch.bytes);
            }
            counters.rx_batches += 1;
            counters.rx_packets += batch.bytes.len().div_ceil(batch.segment) as u64;
            counters.rx_bytes += batch.bytes.len() as u64;
            extra.rx_unjoined += u64::from(batch.segment < batch.bytes.len());
            f(&batch);
        };
        let mut descriptors = 0;
        for queue in &mut sockets.queues {
            let mut taken = 0;
            while taken < BATCH_MAX {
                let Some(piece) = queue.rings.rx.pop() else { break };
                taken += 1;
                if !piece.more {
                    consume(piece.bytes(), f);
                    sockets.rx_pool.put(piece.chunk);
                    batches += 1;
                    continue;
                }
                // The kernel publishes all pieces of a packet at once.
                joined.clear();
                let mut piece = Some(piece);
                while let Some(part) = piece.take() {
                    if joined.len() + part.bytes().len() <= FRAME_MAX {
                        joined.extend_from_slice(part.bytes());
                    }
                    sockets.rx_pool.put(part.chunk);
                    if part.more {
                        piece = queue.rings.rx.pop();
                        taken += 1;
                    }
                }
                extra.rx_joined += 1;
                consume(joined, f);
                batches += 1;
            }
            queue.release(taken);
            descriptors += taken;
        }
        if descriptors > 0 {
            sockets.fill();
        }
        batches
    }
}
