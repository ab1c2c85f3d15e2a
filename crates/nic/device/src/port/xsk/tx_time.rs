//! How long the kernel holds packets, by transmit metadata (XDP_TXMD_FLAGS_TIMESTAMP, since Linux 6.8).
//!
//! In copy mode the kernel itself writes the time at which the packet was freed (`CLOCK_TAI`,
//! `xsk_destruct_skb` in net/xdp/xsk.c) into the metadata area in front of the packet, whatever the driver
//! offers. In zero-copy mode the driver writes the time of the NIC, a clock that cannot be compared with the
//! time of the request: nothing is measured then.

use sys::tai_ns;
use sys::xdp::Chunk;

/// Measures every so many packets of one transmit queue, one at a time.
#[derive(Debug)]
pub(super) struct TxTime {
    /// Packets until the next one is measured; `None` if the memory has no metadata areas.
    countdown: Option<u32>,
    pending: Option<Pending>,
    pub(super) counters: TxTimeCounters,
}

/// The packet that is measured.
#[derive(Debug)]
struct Pending {
    /// Its transmit unit.
    unit: u32,
    /// Offset of its metadata in the unit.
    metadata: usize,
    /// When it was pushed (`CLOCK_TAI`).
    since_ns: u64,
}

/// Sums over the measured packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct TxTimeCounters {
    /// Packets.
    pub(super) packets: u64,
    /// Their times in the kernel together, in nanoseconds.
    pub(super) sum_ns: u64,
}

/// Every so many packets are measured. It costs a look at a clock and the request, some 100 ns: 2 ns per
/// packet. Half: more of that. Double: a slow connection shows its time later.
const INTERVAL: u32 = 64;
/// Length of `struct xsk_tx_metadata`, and offset of the time in it (linux/if_xdp.h).
const METADATA_LEN: usize = 24;
const TIME_OFFSET: usize = 8;

impl TxTime {
    pub(super) fn new(has_metadata: bool) -> Self {
        Self { countdown: has_metadata.then_some(1), pending: None, counters: TxTimeCounters::default() }
    }

    /// Asks for the time of the packet at `offset` of `chunk`, if it is one to be measured; then it must be
    /// pushed with metadata.
    #[inline]
    pub(super) fn request(&mut self, chunk: &mut Chunk, offset: usize) -> bool {
        let Some(left) = &mut self.countdown else { return false };
        *left -= 1;
        if *left > 0 {
            return false;
        }
        *left = INTERVAL;
        let start = offset.checked_sub(METADATA_LEN).filter(|_| self.pending.is_none());
        let Some(area) = start.and_then(|start| chunk.bytes_mut().get_mut(start..offset)) else {
            return false;
        };
        area.fill(0);
        area[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_TIMESTAMP).to_ne_bytes());
        true
    }

    /// The requested packet, at `offset` of unit `unit`, was pushed.
    pub(super) fn pushed(&mut self, unit: u32, offset: usize) {
        let since_ns = tai_ns();
        self.pending = Some(Pending { unit, metadata: offset - METADATA_LEN, since_ns });
    }

    /// The kernel has returned a unit of this queue.
    #[inline]
    pub(super) fn completed(&mut self, chunk: &Chunk) {
        if let Some(Pending { metadata, since_ns, .. }) =
            self.pending.take_if(|pending| pending.unit == chunk.index())
        {
            let time = chunk.bytes().get(metadata + TIME_OFFSET..).and_then(|bytes| bytes.first_chunk());
            // 0 if it was not sent; earlier than the request if the clock was set meanwhile.
            if let Some(ns) = time.and_then(|time| u64::from_ne_bytes(*time).checked_sub(since_ns)) {
                self.counters.packets += 1;
                self.counters.sum_ns += ns;
            }
        }
    }
}
