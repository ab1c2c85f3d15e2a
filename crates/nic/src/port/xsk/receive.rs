//! Receiving: descriptors in batches, each frame a train of one packet, or of several in generic mode.

use super::super::headers::train_of;
use super::super::{RxQueue, RxTrain};
use super::XskPort;
use sys::XdpMode;

/// Descriptors taken from one queue in one batch: what is in it should stay in the cache until it is consumed.
const BATCH_MAX: u32 = 128;
/// Longest frame: what an IP header can say, and Ethernet.
const FRAME_MAX: usize = (1 << 16) + 18;

impl XskPort {
    /// One batch from every queue.
    #[inline]
    pub(super) fn receive(&mut self, f: &mut dyn FnMut(&RxTrain<'_>)) -> usize {
        let mut trains = 0;
        let may_be_joined = self.steering.as_ref().is_some_and(|s| s.mode() == XdpMode::Generic);
        let XskPort { sockets, joined, segments, udp_port, counters, extra, .. } = self;
        let mut consume = |frame: &[u8], f: &mut dyn FnMut(&RxTrain<'_>)| {
            let Some(mut train) = train_of(frame, *udp_port, RxQueue::Slot) else {
                counters.rx_malformed += 1;
                return;
            };
            if may_be_joined && let Some(icrc) = train.icrc_header() {
                train.segment = segments.length(&icrc, train.ip_id.unwrap_or(0), train.bytes);
            }
            counters.rx_trains += 1;
            counters.rx_packets += train.bytes.len().div_ceil(train.segment) as u64;
            counters.rx_bytes += train.bytes.len() as u64;
            extra.rx_unjoined += u64::from(train.segment < train.bytes.len());
            f(&train);
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
                    trains += 1;
                    continue;
                }
                // The kernel shows all pieces of a packet at once.
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
                trains += 1;
            }
            queue.release(taken);
            descriptors += taken;
        }
        if descriptors > 0 {
            sockets.fill();
        }
        trains
    }
}
