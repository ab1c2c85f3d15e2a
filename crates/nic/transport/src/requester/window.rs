//! The send window: which packets are acknowledged, in flight, and next to leave.
//!
//! Packets are numbered from `sq_psn` on without wrapping (see [`SendWqe`]). Invariant: `una <= cursor <=
//! next`. Packets before `una` are acknowledged; those before `cursor` are in flight, except those that the
//! scoreboard lists as lost; those from `cursor` to `next` were sent before the requester went back, and will
//! be retransmitted.

use super::send_queue::{SendQueue, SendWqe};

/// The send window of a requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendWindow {
    /// Oldest unacknowledged packet.
    una: u64,
    /// Payload bytes of all packets before `una`.
    una_byte: u64,
    /// One past the last packet ever sent.
    next: u64,
    /// The packet to send next, the work request that it belongs to, and the payload bytes of all packets
    /// before it.
    cursor: u64,
    cursor_index: u32,
    cursor_byte: u64,
    /// One past the furthest packet that is known to have arrived, or that the peer responded to, while an
    /// earlier one is missing.
    reached: u64,
}

impl SendWindow {
    /// An empty window before packet `psn` and the work request at `index`; no payload precedes it.
    pub(super) fn new(psn: u64, index: u32) -> Self {
        Self { una: psn, next: psn, cursor: psn, cursor_index: index, reached: psn, ..Self::default() }
    }

    #[inline]
    pub(super) fn una(&self) -> u64 {
        self.una
    }

    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    #[inline]
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    #[inline]
    pub(super) fn cursor_index(&self) -> u32 {
        self.cursor_index
    }

    #[inline]
    pub(super) fn cursor_byte(&self) -> u64 {
        self.cursor_byte
    }

    /// Whether every packet that was sent is acknowledged.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.una == self.next
    }

    /// Whether the packet at the cursor was sent before.
    #[inline]
    pub(super) fn is_resending(&self) -> bool {
        self.cursor < self.next
    }

    /// Whether packets behind a missing one are known to have arrived.
    #[inline]
    pub(super) fn has_gap(&self) -> bool {
        self.reached > self.una
    }

    /// Packets from the oldest unacknowledged one to the cursor.
    #[inline]
    pub(super) fn span(&self) -> u64 {
        self.cursor - self.una
    }

    /// Payload bytes of these packets.
    #[inline]
    pub(super) fn span_bytes(&self) -> u64 {
        self.cursor_byte - self.una_byte
    }

    /// Packets in flight: those known to have arrived behind a missing one are not.
    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.cursor.saturating_sub(self.una.max(self.reached))
    }

    /// Everything before `to` has arrived, was lost, or is being retransmitted.
    pub(super) fn reach(&mut self, to: u64) {
        self.reached = self.reached.max(to.min(self.cursor));
    }

    /// The packets of `wqe` before `cursor` have left.
    #[inline]
    pub(super) fn advance_cursor(&mut self, wqe: &SendWqe, cursor: u64, mtu: usize) {
        self.cursor = cursor;
        self.next = self.next.max(cursor);
        if cursor == wqe.end {
            self.cursor_index = self.cursor_index.wrapping_add(1);
            self.cursor_byte = wqe.first_byte + u64::from(wqe.length);
        } else {
            self.cursor_byte = wqe.first_byte + (cursor - wqe.first) * mtu as u64;
        }
    }

    /// The work request at the cursor has no packet and is done.
    #[inline]
    pub(super) fn skip_work_request(&mut self) {
        self.cursor_index = self.cursor_index.wrapping_add(1);
    }

    /// Moves the cursor back to `to`, a packet between `una` and `next`.
    pub(super) fn go_back(&mut self, to: u64, sq: &SendQueue, mtu: usize) {
        let mut index = sq.head();
        while index != sq.tail() && sq.wqe(index).end <= to && index != self.cursor_index {
            index = index.wrapping_add(1);
        }
        self.reached = self.una;
        self.cursor = to;
        self.cursor_index = index;
        self.cursor_byte = sq.byte_at(index, to, mtu);
    }

    /// Everything before `to` is acknowledged, and the completed work requests have left the queue.
    #[inline]
    pub(super) fn acknowledge(&mut self, to: u64, sq: &SendQueue, mtu: usize) {
        self.una = to;
        self.una_byte = sq.byte_at(sq.head(), to, mtu);
        if self.cursor <= to {
            self.cursor = to;
            self.cursor_index = sq.head();
            self.cursor_byte = self.una_byte;
        }
    }

    /// Closes the window: every packet of the queue, now empty, is done.
    pub(super) fn close(&mut self, sq: &SendQueue) {
        (self.una, self.next, self.cursor) = (sq.end(), sq.end(), sq.end());
        (self.una_byte, self.cursor_byte) = (sq.end_byte(), sq.end_byte());
        self.cursor_index = sq.tail();
    }
}
