//! The sending half of a stream, as numbers: what may leave, from which part of the staging ring, and to where.
//!
//! Three things limit it: the peer's grants ([`Segment`]s of its memory, each filled before the next is begun), its
//! credits (messages it has room for), and our own ring and queue, which the completions of the WRITEs free again in order.

use std::collections::VecDeque;

use wire::rsocket::Segment;

use super::Violation;

/// Bytes that must fit before a message is begun (rdma-core's RS_SNDLOWAT): a trickle of tiny WRITEs helps nobody.
const LOW_WATER: usize = 2048;
/// Largest message (rdma-core's RS_MAX_TRANSFER): the rest of a long transfer is copied while this one is on its way.
const MESSAGE_MAX: usize = 65536;
/// Grants that a table of two entries can hold beyond the one in use.
const GRANTS_AHEAD: usize = 2;

/// What may be sent.
#[derive(Debug)]
pub(super) struct Outbound {
    /// Bytes of the staging ring, where the next message begins, and how many are free.
    ring: usize,
    at: usize,
    free: usize,
    /// Work requests that may be posted.
    slots: u32,
    /// Messages sent, and the number at which credits end, modulo 2^16.
    sent: u16,
    limit: u16,
    /// Memory of the peer that is being filled, and what comes after it.
    grant: Segment,
    ahead: VecDeque<Segment>,
}

/// Up to two pieces of a ring, as offsets and lengths; the second is empty unless the first ends where the ring does.
pub(super) type Pieces = [(usize, usize); 2];

/// `len` bytes from `at` on of a ring of `ring` bytes.
pub(super) fn pieces(ring: usize, at: usize, len: usize) -> Pieces {
    let first = len.min(ring - at);
    [(at, first), (0, len - first)]
}

impl Outbound {
    pub(super) fn new(ring: usize, slots: u32) -> Self {
        let ahead = VecDeque::with_capacity(GRANTS_AHEAD);
        Self { ring, at: 0, free: ring, slots, sent: 0, limit: 0, grant: Segment::default(), ahead }
    }

    /// The peer's first grant and credits.
    pub(super) fn open(&mut self, grant: Segment, credits: u16) {
        (self.grant, self.limit) = (grant, credits);
    }

    /// The peer has room for messages up to `limit`.
    pub(super) fn credit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// The peer gives more memory.
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

    /// Whether there is room for a message of ours: ring, queue, and the peer's credits.
    fn may_send(&self) -> bool {
        self.slots > 0 && self.free >= LOW_WATER.min(self.ring) && self.sent != self.limit
    }

    /// Bytes of the stream that may leave in one message now.
    pub(super) fn room(&self) -> usize {
        if self.may_send() { self.free.min(self.grant.length as usize).min(MESSAGE_MAX) } else { 0 }
    }

    /// Begins a message of `len` bytes, at most [`room`](Self::room): where to stage it and where it goes.
    pub(super) fn take(&mut self, len: usize) -> (Pieces, Segment) {
        let to = Segment { length: len as u32, ..self.grant };
        self.grant.addr = self.grant.addr.wrapping_add(len as u64);
        self.grant.length -= len as u32;
        self.next_grant();
        self.sent = self.sent.wrapping_add(1);
        (self.stage(len), to)
    }

    /// Bytes that may be written to memory that is not part of the stream: no grant is needed, and no credit.
    pub(super) fn room_beside(&self) -> usize {
        if self.slots > 0 && self.free >= LOW_WATER.min(self.ring) { self.free.min(MESSAGE_MAX) } else { 0 }
    }

    /// Begins such a WRITE.
    pub(super) fn take_beside(&mut self, len: usize) -> Pieces {
        self.stage(len)
    }

    /// Whether an entry of `len` bytes may be written into the peer's table; it costs a credit.
    pub(super) fn has_room_for_entry(&self, len: usize) -> bool {
        self.may_send() && self.free >= len
    }

    /// Begins that.
    pub(super) fn take_entry(&mut self, len: usize) -> Pieces {
        self.sent = self.sent.wrapping_add(1);
        self.stage(len)
    }

    fn stage(&mut self, len: usize) -> Pieces {
        let staged = pieces(self.ring, self.at, len);
        self.at = (self.at + len) % self.ring;
        self.free -= len;
        self.slots -= 1;
        staged
    }

    /// The oldest WRITE, of `len` bytes, is complete.
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
    fn a_message_ends_with_its_grant_and_the_next_begins_in_the_next() {
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
    fn the_ring_wraps_and_is_freed_in_order() {
        let mut out = open(4096, 9, 9, 1 << 20);
        assert_eq!(out.take(3000).0, [(0, 3000), (0, 0)]);
        assert_eq!(out.room(), 0, "below the low-water mark");
        out.completed(3000);
        assert_eq!(out.room(), 4096);
        assert_eq!(out.take(2000).0, [(3000, 1096), (0, 904)]);
    }

    #[test]
    fn credits_and_slots_end() {
        let mut out = open(8192, 2, 1, 1 << 20);
        out.take(1);
        assert_eq!(out.room(), 0, "no credit");
        out.credit(10);
        assert_eq!(out.room(), 8191);
        out.take(1);
        assert_eq!(out.room(), 0, "no slot");
        out.completed(1);
        assert_eq!(out.room(), 8191);
    }

    #[test]
    fn credits_are_counted_modulo_their_size() {
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
    fn more_grants_than_the_table_has_entries_are_refused() {
        let mut out = open(8192, 1, 1, 10);
        assert!(out.grant(memory(0, 10)).is_ok() && out.grant(memory(0, 10)).is_ok());
        assert!(out.grant(memory(0, 10)).is_err());
    }
}
