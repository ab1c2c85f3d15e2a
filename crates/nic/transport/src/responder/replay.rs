//! The replay queue: the last `max_dest_rd_atomic` READs and atomics, so that a lost response can be
//! retransmitted (IBA 9.7.5.1.5). Responses leave in request order. The response to a duplicate request
//! leaves before them; a duplicate request for the response in progress restarts it.

use core::mem;

use wire::{Msn, Rkey};

use crate::memory::PdId;
use crate::ring::Ring;

/// What a response is made from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Response {
    /// READ: from memory, again for a replay.
    Read { pd: PdId, va: u64, r_key: Rkey, dma_len: u32 },
    /// Atomic: the original value; the atomic is never executed twice.
    Atomic { original: u64 },
    /// FLUSH and ATOMIC WRITE: an empty response.
    Done,
}

/// A READ or atomic that was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Number of the first packet of the response.
    pub(super) first: u64,
    /// One past the last.
    pub(super) end: u64,
    /// Messages complete, this one included.
    pub(super) msn: Msn,
    pub(super) response: Response,
    /// The response was sent to its end at least once, so the peer may have completed the request.
    is_sent: bool,
}

impl Entry {
    pub(super) fn new(first: u64, end: u64, msn: Msn, response: Response) -> Self {
        Self { first, end, msn, response, is_sent: false }
    }
}

/// The part of a response that is being sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    /// Number of the next packet.
    pub(super) at: u64,
    /// Number of the first packet: it has opcode First or Only.
    pub(super) start: u64,
    /// One past the last packet.
    pub(super) end: u64,
    /// Bytes of the entry before the end of the last packet.
    pub(super) end_byte: u32,
}

/// Parts of responses that may wait for their retransmission. A roxie requester asks for one per gap in its
/// window of five READ requests, and repeats the requests that do not fit.
const PARTS: usize = 32;

/// A part of a response that is retransmitted.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Index of its entry.
    index: u32,
    cursor: Cursor,
}

/// A part that waits, in compact form, counted from the first packet of its entry.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    index: u32,
    skipped: u32,
    packets: u32,
    end_byte: u32,
}

impl Part {
    fn overlaps(&self, other: &Self) -> bool {
        self.cursor.at < other.cursor.end && other.cursor.at < self.cursor.end
    }
}

/// The queue, and how far its responses were sent.
#[derive(Debug)]
pub(super) struct Replay {
    ring: Ring<Entry>,
    /// Index of the entry with the response in progress; the end of the ring when there is none.
    index: u32,
    cursor: Cursor,
    /// The part that is retransmitted, before the response above.
    part: Option<Part>,
    parts: Ring<Waiting>,
}

impl Replay {
    pub(super) fn new(capacity: usize) -> Self {
        let ring = Ring::new(capacity);
        let index = ring.bounds().1;
        let parts = Ring::new(if capacity == 0 { 0 } else { PARTS });
        Self { ring, index, cursor: Cursor::default(), part: None, parts }
    }

    /// Whether one more request is within the limit.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.ring.is_full() || self.ring.front().is_some_and(|oldest| oldest.is_sent)
    }

    /// Appends a request and drops the oldest if the queue is full; the caller has checked that there is
    /// room.
    pub(super) fn push(&mut self, entry: Entry) {
        if self.ring.is_full() {
            let (oldest, _) = self.ring.bounds();
            self.ring.pop();
            self.drop_parts(|part| part.index == oldest);
            if self.index == oldest {
                self.begin(oldest.wrapping_add(1));
            }
        }
        let (_, index) = self.ring.bounds();
        let pushed = self.ring.push(entry);
        debug_assert!(pushed, "no space for a READ or atomic");
        if self.index == index {
            self.begin(index);
        }
    }

    /// Whether a response is due.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.part.is_some() || self.has_unsent()
    }

    /// Whether a response was not sent for the first time, or not to its end.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.index != self.ring.bounds().1
    }

    /// The requests whose responses the responder has yet to send, wholly or in part, each with the number of
    /// its next response packet.
    pub(super) fn unsent(&self) -> impl Iterator<Item = (Entry, u64)> {
        let indices = (0..self.ring.bounds().1.wrapping_sub(self.index)).map(|i| self.index.wrapping_add(i));
        indices.filter_map(|index| {
            let entry = *self.ring.get(index)?;
            Some((entry, if index == self.index { self.cursor.at } else { entry.first }))
        })
    }

    /// Packets of the response that is due, if it is the only one and none of it was sent; else 0.
    #[inline]
    pub(super) fn isolated_packets(&self) -> u64 {
        let is_last = self.index.wrapping_add(1) == self.ring.bounds().1;
        let Cursor { at, start, end, .. } = self.cursor;
        if is_last && self.part.is_none() && at == start { end - at } else { 0 }
    }

    /// The request with the response in progress, and how far that was sent.
    #[inline]
    pub(super) fn current(&self) -> Option<(Entry, Cursor)> {
        let (index, cursor) = self.part.map_or((self.index, self.cursor), |part| (part.index, part.cursor));
        Some((*self.ring.get(index)?, cursor))
    }

    /// One packet of the response was sent. Returns whether the response has now left for the first time.
    #[inline]
    pub(super) fn advance(&mut self) -> bool {
        if let Some(part) = &mut self.part {
            part.cursor.at += 1;
            if part.cursor.at == part.cursor.end {
                self.part = self.next_part();
            }
            return false;
        }
        self.cursor.at += 1;
        if self.cursor.at < self.cursor.end {
            return false;
        }
        let is_first =
            self.ring.get_mut(self.index).is_some_and(|entry| !mem::replace(&mut entry.is_sent, true));
        self.begin(self.index.wrapping_add(1));
        is_first
    }

    /// Sends the response to a duplicate READ request again. Returns false if it is no part of a READ in the
    /// queue, or without room.
    pub(super) fn repeat_read(&mut self, at: u64, mtu: usize, va: u64, r_key: Rkey, dma_len: u32) -> bool {
        let Some((index, entry)) = self.find(at) else { return false };
        let Response::Read { va: first_va, r_key: key, dma_len: whole, .. } = entry.response else {
            return false;
        };
        let skipped = (at - entry.first) * mtu as u64;
        let end_byte = skipped + u64::from(dma_len);
        if key != r_key || va != first_va.wrapping_add(skipped) || end_byte > u64::from(whole) {
            return false;
        }
        let end = at + u64::from(dma_len).div_ceil(mtu as u64).max(1);
        if end > entry.end {
            return false;
        }
        self.repeat(Part { index, cursor: Cursor { at, start: at, end, end_byte: end_byte as u32 } })
    }

    /// Sends the response to a duplicate atomic again. Returns false if it is not in the queue, or without
    /// room.
    pub(super) fn repeat_atomic(&mut self, at: u64) -> bool {
        let Some((index, entry)) = self.find(at) else { return false };
        let cursor = Cursor { at, start: at, end: entry.end, end_byte: 0 };
        !matches!(entry.response, Response::Read { .. }) && self.repeat(Part { index, cursor })
    }

    fn repeat(&mut self, part: Part) -> bool {
        if self.is_pending_at(part.index) {
            if part.cursor.at >= self.cursor.at {
                return true;
            }
            if part.cursor.end > self.cursor.at {
                // Up to the end of the response, because the rest was never sent.
                self.cursor.at = part.cursor.at;
                self.cursor.start = part.cursor.at;
                self.drop_parts(|other| other.index == part.index && other.cursor.end > part.cursor.at);
                return true;
            }
        } else if self.is_ahead_of(part.index) {
            return true;
        }
        self.drop_parts(|other| other.overlaps(&part));
        if self.part.is_none() {
            self.part = Some(part);
            return true;
        }
        self.wait(part)
    }

    /// Queues a part; false without room.
    fn wait(&mut self, part: Part) -> bool {
        let Part { index, cursor } = part;
        let Some(first) = self.ring.get(index).map(|entry| entry.first) else { return false };
        // A response has at most 2^23 packets.
        let (skipped, packets) = ((cursor.at - first) as u32, (cursor.end - cursor.at) as u32);
        self.parts.push(Waiting { index, skipped, packets, end_byte: cursor.end_byte })
    }

    /// The part that has waited longest.
    fn next_part(&mut self) -> Option<Part> {
        let Waiting { index, skipped, packets, end_byte } = self.parts.pop()?;
        let at = self.ring.get(index)?.first + u64::from(skipped);
        let cursor = Cursor { at, start: at, end: at + u64::from(packets), end_byte };
        Some(Part { index, cursor })
    }

    /// Drops all responses.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.index = self.ring.bounds().1;
        self.part = None;
        self.parts.clear();
    }

    fn drop_parts(&mut self, unwanted: impl Fn(&Part) -> bool) {
        for _ in 0..self.parts.len() {
            if let Some(part) = self.next_part().filter(|part| !unwanted(part)) {
                // There is room: it was in the queue before.
                let _kept = self.wait(part);
            }
        }
        if self.part.as_ref().is_some_and(&unwanted) {
            self.part = self.next_part();
        }
    }

    /// Whether the response to this request is being sent for the first time.
    fn is_pending_at(&self, index: u32) -> bool {
        self.index == index && index != self.ring.bounds().1
    }

    /// Whether the response to an earlier request is being sent, so that this one follows anyway.
    fn is_ahead_of(&self, index: u32) -> bool {
        let (oldest, end) = self.ring.bounds();
        self.index != end && self.index.wrapping_sub(oldest) < index.wrapping_sub(oldest)
    }

    fn find(&self, at: u64) -> Option<(u32, Entry)> {
        let (oldest, end) = self.ring.bounds();
        (0..end.wrapping_sub(oldest)).rev().find_map(|i| {
            let index = oldest.wrapping_add(i);
            let entry = *self.ring.get(index)?;
            (entry.first <= at && at < entry.end).then_some((index, entry))
        })
    }

    fn begin(&mut self, index: u32) {
        self.index = index;
        if let Some(entry) = self.ring.get(index) {
            let end_byte = match entry.response {
                Response::Read { dma_len, .. } => dma_len,
                Response::Atomic { .. } | Response::Done => 0,
            };
            self.cursor = Cursor { at: entry.first, start: entry.first, end: entry.end, end_byte };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(first: u64, packets: u64) -> Entry {
        let response =
            Response::Read { pd: PdId(1), va: 0x1000, r_key: Rkey(7), dma_len: packets as u32 * 256 };
        Entry::new(first, first + packets, Msn::new(1), response)
    }

    fn sent(replay: &mut Replay, count: usize) -> Vec<u64> {
        (0..count)
            .map_while(|_| {
                let (_, cursor) = replay.current()?;
                replay.advance();
                Some(cursor.at)
            })
            .collect()
    }

    #[test]
    fn responses_leave_in_request_order() {
        let mut replay = Replay::new(2);
        replay.push(read(10, 3));
        replay.push(read(13, 2));
        assert!(!replay.has_room(), "two requests without response are the limit");
        assert_eq!(sent(&mut replay, 9), [10, 11, 12, 13, 14]);
        assert!(!replay.is_pending() && replay.has_room());
    }

    #[test]
    fn a_restart_inside_a_response_abandons_the_rest_of_it() {
        let mut replay = Replay::new(2);
        replay.push(read(10, 4));
        assert_eq!(sent(&mut replay, 3), [10, 11, 12]);
        assert!(replay.repeat_read(11, 256, 0x1100, Rkey(7), 3 * 256));
        assert_eq!(replay.current().unwrap().1.start, 11);
        assert_eq!(sent(&mut replay, 9), [11, 12, 13]);
    }

    #[test]
    fn a_duplicate_read_must_be_part_of_the_original() {
        let mut replay = Replay::new(2);
        replay.push(read(10, 4));
        sent(&mut replay, 4);
        assert!(!replay.repeat_read(9, 256, 0x0f00, Rkey(7), 256), "before it");
        assert!(!replay.repeat_read(11, 256, 0x1000, Rkey(7), 256), "other address");
        assert!(!replay.repeat_read(11, 256, 0x1100, Rkey(8), 256), "other key");
        assert!(!replay.repeat_read(11, 256, 0x1100, Rkey(7), 4 * 256), "past its end");
        assert!(!replay.repeat_atomic(10), "not an atomic");
        assert!(!replay.is_pending());
        assert!(replay.repeat_read(11, 256, 0x1100, Rkey(7), 256));
        assert_eq!(sent(&mut replay, 9), [11]);
    }

    #[test]
    fn a_requested_part_of_a_response_is_sent_again_alone() {
        let mut replay = Replay::new(2);
        replay.push(read(10, 4));
        assert_eq!(sent(&mut replay, 2), [10, 11]);
        assert!(replay.repeat_read(10, 256, 0x1000, Rkey(7), 2 * 256));
        let cursors: Vec<_> = core::iter::from_fn(|| {
            let (_, cursor) = replay.current()?;
            replay.advance();
            Some((cursor.start, cursor.at, cursor.end))
        })
        .collect();
        assert_eq!(cursors, [(10, 10, 12), (10, 11, 12), (10, 12, 14), (10, 13, 14)]);
    }

    /// A restart inside the response in progress drops the waiting parts of that response, and of no other.
    #[test]
    fn a_restart_of_a_response_keeps_waiting_parts_of_other_responses() {
        let mut replay = Replay::new(4);
        replay.push(read(10, 2));
        replay.push(read(12, 4));
        replay.push(read(16, 8));
        assert_eq!(sent(&mut replay, 8), [10, 11, 12, 13, 14, 15, 16, 17]);
        assert!(replay.repeat_read(12, 256, 0x1000, Rkey(7), 256));
        assert!(replay.repeat_read(10, 256, 0x1000, Rkey(7), 256));
        assert!(replay.repeat_read(16, 256, 0x1000, Rkey(7), 256));
        assert!(
            replay.repeat_read(17, 256, 0x1100, Rkey(7), 2 * 256),
            "it reaches into the response in progress"
        );
        assert_eq!(sent(&mut replay, 99), [12, 10, 16, 17, 18, 19, 20, 21, 22, 23]);
    }

    #[test]
    fn no_request_is_found_behind_the_youngest_one() {
        let mut replay = Replay::new(2);
        replay.push(Entry::new(10, 11, Msn::new(1), Response::Done));
        assert!(!replay.repeat_atomic(11) && !replay.repeat_atomic(9));
    }

    #[test]
    fn a_part_of_a_dropped_response_does_not_block_a_new_request() {
        let mut replay = Replay::new(1);
        replay.push(read(10, 4));
        sent(&mut replay, 4);
        assert!(replay.repeat_read(10, 256, 0x1000, Rkey(7), 4 * 256));
        assert!(replay.has_room());
        replay.push(read(14, 1));
        assert_eq!(sent(&mut replay, 9), [14]);
    }

    #[test]
    fn only_requested_parts_of_a_response_are_sent_again() {
        let mut replay = Replay::new(4);
        replay.push(read(10, 1));
        replay.push(Entry::new(11, 12, Msn::new(2), Response::Atomic { original: 5 }));
        replay.push(read(12, 1));
        sent(&mut replay, 3);
        assert!(replay.repeat_atomic(11));
        assert_eq!(sent(&mut replay, 9), [11], "only the requested part is retransmitted");
        assert!(replay.repeat_atomic(11));
        assert!(replay.repeat_read(12, 256, 0x1000, Rkey(7), 256));
        assert!(replay.repeat_atomic(11), "two duplicates, one response");
        assert_eq!(sent(&mut replay, 9), [12, 11]);
    }

    /// The requester requests the gaps while later responses are still being sent.
    #[test]
    fn requested_parts_leave_before_the_rest_of_the_response() {
        let mut replay = Replay::new(2);
        replay.push(read(10, 6));
        replay.push(read(16, 3));
        assert_eq!(sent(&mut replay, 7), [10, 11, 12, 13, 14, 15, 16]);
        assert!(replay.repeat_read(11, 256, 0x1100, Rkey(7), 256));
        assert!(replay.repeat_read(13, 256, 0x1300, Rkey(7), 512));
        let (_, cursor) = replay.current().unwrap();
        assert_eq!((cursor.at, cursor.end, cursor.end_byte), (11, 12, 512));
        assert_eq!(sent(&mut replay, 9), [11, 13, 14, 17, 18]);
    }
}
