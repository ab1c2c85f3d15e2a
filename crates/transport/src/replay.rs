//! The replay queue: the last `max_dest_rd_atomic` READs and atomics, so that a lost answer can be given again
//! (IBA 9.7.5.1.5). Answers leave in the order of the requests; a duplicate moves the answering back.

use wire::{Msn, Rkey};

use crate::ring::Ring;

/// What an answer is made from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Answer {
    /// READ: from memory, again for a replay.
    Read { va: u64, r_key: Rkey, dma_len: u32 },
    /// Atomic: the stored value; it is never executed twice.
    Atomic { original: u64 },
    /// FLUSH and ATOMIC WRITE: that it was done.
    Done,
}

/// A READ or atomic that was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Number of the first packet of the answer.
    pub(crate) first: u64,
    /// One past the last.
    pub(crate) end: u64,
    /// Messages complete, this one included.
    pub(crate) msn: Msn,
    pub(crate) answer: Answer,
    /// The whole answer was sent at least once, so the peer may have taken it off its books.
    answered: bool,
}

impl Entry {
    pub(crate) fn new(first: u64, end: u64, msn: Msn, answer: Answer) -> Self {
        Self { first, end, msn, answer, answered: false }
    }
}

/// The part of an answer that is being sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// Number of the next packet.
    pub(crate) at: u64,
    /// Number of the first packet: it has opcode First or Only.
    pub(crate) start: u64,
    /// One past the last packet.
    pub(crate) end: u64,
    /// Bytes of the entry before the end of the last packet.
    pub(crate) end_byte: u32,
}

/// The queue and the place of the answering in it.
#[derive(Debug)]
pub(crate) struct Replay {
    ring: Ring<Entry>,
    /// Index of the entry being answered; the end of the ring when there is none.
    index: u32,
    cursor: Cursor,
}

impl Replay {
    pub(crate) fn new(capacity: usize) -> Self {
        let ring = Ring::new(capacity);
        let index = ring.bounds().1;
        Self { ring, index, cursor: Cursor::default() }
    }

    /// Whether one more request is within the limit.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        !self.ring.is_full() || self.ring.front().is_some_and(|oldest| oldest.answered)
    }

    /// Appends a request, forgetting the oldest if need be; the caller made sure that there is room.
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.ring.is_full() {
            let (oldest, _) = self.ring.bounds();
            self.ring.pop();
            if self.index == oldest {
                self.begin(oldest.wrapping_add(1));
            }
        }
        let (_, index) = self.ring.bounds();
        let pushed = self.ring.push(entry);
        debug_assert!(pushed, "no room for a READ or atomic");
        if self.index == index {
            self.begin(index);
        }
    }

    /// Whether something is to be answered.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.index != self.ring.bounds().1
    }

    /// The request being answered and how far.
    #[inline]
    pub(crate) fn current(&self) -> Option<(Entry, Cursor)> {
        Some((*self.ring.get(self.index)?, self.cursor))
    }

    /// One packet of the answer was sent.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.cursor.at += 1;
        if self.cursor.at < self.cursor.end {
            return;
        }
        let end = self.cursor.end;
        if let Some(entry) = self.ring.get_mut(self.index) {
            entry.answered |= end == entry.end;
        }
        self.begin(self.index.wrapping_add(1));
    }

    /// A duplicate READ request: answers again from there, if it is a part of one in the queue.
    pub(crate) fn repeat_read(&mut self, at: u64, mtu: usize, va: u64, r_key: Rkey, dma_len: u32) -> bool {
        let Some((index, entry)) = self.find(at) else { return false };
        let Answer::Read { va: first_va, r_key: key, dma_len: whole } = entry.answer else { return false };
        let skipped = (at - entry.first) * mtu as u64;
        let end_byte = skipped + u64::from(dma_len);
        if key != r_key || va != first_va.wrapping_add(skipped) || end_byte > u64::from(whole) {
            return false;
        }
        let packets = u64::from(dma_len).div_ceil(mtu as u64).max(1);
        if at + packets > entry.end {
            return false;
        }
        if self.is_ahead_of(index) {
            return true;
        }
        self.index = index;
        self.cursor = Cursor { at, start: at, end: at + packets, end_byte: end_byte as u32 };
        true
    }

    /// A duplicate atomic: gives its result again, if it is in the queue.
    pub(crate) fn repeat_atomic(&mut self, at: u64) -> bool {
        let Some((index, entry)) = self.find(at) else { return false };
        if matches!(entry.answer, Answer::Read { .. }) {
            return false;
        }
        if !self.is_ahead_of(index) {
            self.begin(index);
        }
        true
    }

    /// Stops answering.
    pub(crate) fn clear(&mut self) {
        self.ring.clear();
        self.index = self.ring.bounds().1;
    }

    /// Whether an earlier request is still being answered, so that this one's turn comes anyway.
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
            let end_byte = match entry.answer {
                Answer::Read { dma_len, .. } => dma_len,
                Answer::Atomic { .. } | Answer::Done => 0,
            };
            self.cursor = Cursor { at: entry.first, start: entry.first, end: entry.end, end_byte };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(first: u64, packets: u64) -> Entry {
        let answer = Answer::Read { va: 0x1000, r_key: Rkey(7), dma_len: packets as u32 * 256 };
        Entry::new(first, first + packets, Msn::new(1), answer)
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
    fn answers_leave_in_order_of_the_requests() {
        let mut replay = Replay::new(2);
        replay.push(read(10, 3));
        replay.push(read(13, 2));
        assert!(!replay.has_room(), "two unanswered ones are the limit");
        assert_eq!(sent(&mut replay, 9), [10, 11, 12, 13, 14]);
        assert!(!replay.is_pending() && replay.has_room());
    }

    #[test]
    fn a_restart_inside_the_answer_abandons_it() {
        let mut replay = Replay::new(2);
        replay.push(read(10, 4));
        assert_eq!(sent(&mut replay, 3), [10, 11, 12]);
        assert!(replay.repeat_read(11, 256, 0x1100, Rkey(7), 3 * 256));
        assert_eq!(replay.current().unwrap().1.start, 11);
        assert_eq!(sent(&mut replay, 9), [11, 12, 13]);
    }

    #[test]
    fn a_duplicate_must_be_part_of_the_original() {
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
    fn a_stale_repetition_does_not_block_a_new_request() {
        let mut replay = Replay::new(1);
        replay.push(read(10, 4));
        sent(&mut replay, 4);
        assert!(replay.repeat_read(10, 256, 0x1000, Rkey(7), 4 * 256));
        assert!(replay.has_room());
        replay.push(read(14, 1));
        assert_eq!(sent(&mut replay, 9), [14]);
    }

    #[test]
    fn repeating_an_earlier_one_answers_the_later_ones_too() {
        let mut replay = Replay::new(4);
        replay.push(read(10, 1));
        replay.push(Entry::new(11, 12, Msn::new(2), Answer::Atomic { original: 5 }));
        replay.push(read(12, 1));
        sent(&mut replay, 3);
        assert!(replay.repeat_atomic(11));
        assert!(replay.repeat_read(12, 256, 0x1000, Rkey(7), 256), "comes anyway");
        assert_eq!(sent(&mut replay, 9), [11, 12]);
    }
}
