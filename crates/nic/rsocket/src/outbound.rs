//! Accounting of the sending half of a stream: how much may be sent, from which part of the staging ring, and
//! to which address.
//!
//! There are three limits. The peer's grants are [`Segment`]s of its memory; each is filled before the next
//! one begins. The peer's credits are the messages that it can receive. The local ring and send queue are
//! freed in order as the WRITEs complete.

use std::collections::VecDeque;

use wire::rsocket::Segment;

use crate::Violation;

/// Free bytes that a new message needs (rdma-core's RS_SNDLOWAT); avoids a sequence of tiny WRITEs.
const LOW_WATER: usize = 2048;
/// Largest message (rdma-core's RS_MAX_TRANSFER). Copying the rest of a long transfer overlaps with the
/// message in flight.
const MESSAGE_MAX: usize = 65536;
/// Grants beyond the current one: the table has two entries.
const GRANTS_AHEAD: usize = 2;

/// State of the sending half.
#[derive(Debug)]
pub(super) struct Outbound {
    /// Size of the staging ring, offset of the next message, and free bytes.
    ring: usize,
    at: usize,
    free: usize,
    /// Free entries of the send queue.
    slots: u32,
    /// Number of messages sent, and the number at which credits end, modulo 2^16.
    sent: u16,
    limit: u16,
    /// The peer's memory that is being filled, and further grants.
    grant: Segment,
    ahead: VecDeque<Segment>,
}

/// One or two pieces of a ring, as offset and length; the second is empty unless the range wraps.
pub(super) type Pieces = [(usize, usize); 2];

/// Returns the pieces of `len` bytes at offset `at` in a ring of `ring` bytes.
pub(super) fn pieces(ring: usize, at: usize, len: usize) -> Pieces {
    let first = len.min(ring - at);
    [(at, first), (0, len - first)]
}

impl Outbound {
    pub(super) fn new(ring: usize, slots: u32) -> Self {
        let ahead = VecDeque::with_capacity(GRANTS_AHEAD);
        Self { ring, at: 0, free: ring, slots, sent: 0, limit: 0, grant: Segment::default(), ahead }
    }

    /// Sets the peer's first grant and credits.
    pub(super) fn open(&mut self, grant: Segment, credits: u16) {
        (self.grant, self.limit) = (grant, credits);
    }

    /// Sets the number of messages at which the peer's credits end.
    pub(super) fn credit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Adds a grant of the peer.
    pub(super) fn grant(&mut self, segment: Segment) -> Result<(), Violation> {
        if self.ahead.len() == GRANTS_AHEAD {
            return Err(Violation);
        }
        self.ahead.push_back(segment);
        self.next_grant();
        Ok(())
    }

    fn next_grant(&mut self) {
        if self.grant.length == 0
            && let Some(next) = self.ahead.pop_front()
        {
            self.grant = next;
        }
    }

    /// True if ring, send queue and credits permit a message.
    fn may_send(&self) -> bool {
        self.room_for_write() > 0 && self.sent != self.limit
    }

    /// Returns the number of stream bytes that the next message may have.
    pub(super) fn room(&self) -> usize {
        if self.may_send() { self.room_for_write().min(self.grant.length as usize) } else { 0 }
    }

    /// Begins a message of `len` bytes, at most [`room`](Self::room). Returns where to stage it and its
    /// destination.
    pub(super) fn take(&mut self, len: usize) -> (Pieces, Segment) {
        let to = Segment { length: len as u32, ..self.grant };
        self.grant.addr = self.grant.addr.wrapping_add(len as u64);
        self.grant.length -= len as u32;
        self.next_grant();
        self.sent = self.sent.wrapping_add(1);
        (self.take_write(len), to)
    }

    /// Returns the number of bytes that a WRITE outside the stream may have; it needs neither a grant nor a
    /// credit.
    pub(super) fn room_for_write(&self) -> usize {
        if self.slots > 0 && self.free >= LOW_WATER.min(self.ring) { self.free.min(MESSAGE_MAX) } else { 0 }
    }

    /// True if an entry of `len` bytes may be written into the peer's table; it costs a credit.
    pub(super) fn has_room_for_entry(&self, len: usize) -> bool {
        self.may_send() && self.free >= len
    }

    /// Begins the WRITE of a table entry.
    pub(super) fn take_entry(&mut self, len: usize) -> Pieces {
        self.sent = self.sent.wrapping_add(1);
        self.take_write(len)
    }

    /// Begins a WRITE outside the stream.
    pub(super) fn take_write(&mut self, len: usize) -> Pieces {
        let staged = pieces(self.ring, self.at, len);
        self.at = (self.at + len) % self.ring;
        self.free -= len;
        self.slots -= 1;
        staged
    }

    /// Frees the space of the oldest WRITE, which had `len` bytes.
    pub(super) fn completed(&mut self, len: usize) {
        self.free += len;
        self.slots += 1;
    }
}

#[cfg(test)]
mod tests {
    use wire::Rkey;

    use super::*;

    fn memory(addr: u64, length: u32) -> Segment {
        Segment { addr, key: Rkey(7), length }
    }

    fn open(ring: usize, slots: u32, credits: u16, grant: u32) -> Outbound {
        let mut out = Outbound::new(ring, slots);
        assert_eq!(out.room(), 0);
        out.open(memory(0x1000, grant), credits);
        out
    }

    #[test]
    fn a_message_does_not_cross_the_end_of_a_grant() {
        let mut out = open(8192, 9, 9, 100);
        out.grant(memory(0x9000, 50)).unwrap();
        assert_eq!(out.room(), 100);
        assert_eq!(out.take(60), ([(0, 60), (0, 0)], memory(0x1000, 60)));
        assert_eq!(out.room(), 40);
        assert_eq!(out.take(40), ([(60, 40), (0, 0)], memory(0x103c, 40)));
        assert_eq!(out.room(), 50);
        assert_eq!(out.take(50).1, memory(0x9000, 50));
        assert_eq!(out.room(), 0);
        out.grant(memory(0x1000, 100)).unwrap();
        assert_eq!(out.room(), 100);
    }

    #[test]
    fn the_staging_ring_wraps_and_is_freed_in_order() {
        let mut out = open(4096, 9, 9, 1 << 20);
        assert_eq!(out.take(3000).0, [(0, 3000), (0, 0)]);
        assert_eq!(out.room(), 0, "below the low-water mark");
        out.completed(3000);
        assert_eq!(out.room(), 4096);
        assert_eq!(out.take(2000).0, [(3000, 1096), (0, 904)]);
    }

    #[test]
    fn sending_stops_without_credits_or_queue_entries() {
        let mut out = open(8192, 2, 1, 1 << 20);
        out.take(1);
        assert_eq!(out.room(), 0, "no credit");
        out.credit(10);
        assert_eq!(out.room(), 8191);
        out.take(1);
        assert_eq!(out.room(), 0, "no queue entry");
        out.completed(1);
        assert_eq!(out.room(), 8191);
    }

    #[test]
    fn credits_are_counted_modulo_65536() {
        let mut out = open(8192, 1, u16::MAX, 1 << 28);
        for sent in 0..=u16::MAX {
            out.credit(sent.wrapping_add(1));
            assert!(out.room() > 0, "message {sent}");
            out.take(1);
            out.completed(1);
            assert_eq!(out.room(), 0);
        }
    }

    #[test]
    fn more_grants_than_table_entries_are_a_violation() {
        let mut out = open(8192, 1, 1, 10);
        assert!(out.grant(memory(0, 10)).is_ok() && out.grant(memory(0, 10)).is_ok());
        assert!(out.grant(memory(0, 10)).is_err());
    }
}
