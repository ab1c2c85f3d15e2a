//! What is known about single packets of a window, besides where it begins: sets of packet numbers.

use crate::time::Instant;

/// Packet numbers that a set tells apart; more than any window of ours.
pub(crate) const SPAN: u64 = 768;
const WORDS: u64 = SPAN / 64;
/// A period and a half, so that a whole one is over whenever in a half a packet was sent.
const HALVES: usize = 3;

/// A set of packet numbers out of [`SPAN`] consecutive ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketSet([u64; WORDS as usize]);

impl PacketSet {
    fn place(position: u64) -> (usize, u64) {
        ((position / 64 % WORDS) as usize, 1 << (position % 64))
    }

    pub(crate) fn contains(&self, position: u64) -> bool {
        let (word, bit) = Self::place(position);
        self.0[word] & bit != 0
    }

    /// Adds a number. Returns whether it is new.
    pub(crate) fn insert(&mut self, position: u64) -> bool {
        let (word, bit) = Self::place(position);
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    /// Removes a number. Returns whether it was there.
    pub(crate) fn remove(&mut self, position: u64) -> bool {
        let (word, bit) = Self::place(position);
        let was = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        was
    }

    /// Removes `from..to`; returns how many were there.
    pub(crate) fn remove_range(&mut self, from: u64, to: u64) -> u32 {
        (from..to.min(from + SPAN)).map(|position| u32::from(self.remove(position))).sum()
    }

    /// The first number of `from..to` that is in the set, or is not; `to` when there is none.
    pub(crate) fn first(&self, from: u64, to: u64, present: bool) -> u64 {
        let mut at = from;
        while at < to {
            // Nothing to be found in the rest of this word?
            let word = self.0[(at / 64 % WORDS) as usize];
            let wanted = if present { word } else { !word } >> (at % 64);
            if wanted != 0 {
                return (at + u64::from(wanted.trailing_zeros())).min(to);
            }
            at = (at / 64 + 1) * 64;
        }
        to
    }
}

/// What a requester knows about the packets on their way. Empty, and looked at by nobody, while nothing is lost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scoreboard {
    /// To be sent again; how many.
    lost: PacketSet,
    lost_count: u32,
    /// Sent again in this half of a period, and in those before: a report of their loss is older than their repetition.
    recent: [PacketSet; HALVES],
    half_end: Instant,
    /// Answers of READs and atomics that were placed ahead of a missing one.
    received: PacketSet,
    /// Answers that end a part of a READ that was asked for again.
    ends: PacketSet,
    /// The peer has said that something is missing.
    reported: bool,
    /// One past the furthest member that any set has had; 0 when all are empty.
    end: u64,
}

impl Scoreboard {
    /// Whether something is to be sent again.
    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        self.lost_count > 0
    }

    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.end > 0
    }

    /// The first packet of `from..to` that is to be sent again; `to` when there is none.
    pub(crate) fn first_lost(&self, from: u64, to: u64) -> u64 {
        self.lost.first(from, to, true)
    }

    /// Whether a packet is to be sent again.
    pub(crate) fn is_lost(&self, position: u64) -> bool {
        self.lost.contains(position)
    }

    /// A packet is reported missing; no news if it was sent again since the report was made. Returns whether it is.
    pub(crate) fn report(&mut self, position: u64) -> bool {
        if self.received.contains(position) || self.recent.iter().any(|set| set.contains(position)) {
            return false;
        }
        self.reported = true;
        self.lose(position)
    }

    /// Whether the peer has said that something is missing, and may still miss it.
    #[inline]
    pub(crate) fn is_repairing(&self) -> bool {
        self.reported
    }

    /// A packet is to be sent again, however recently it was. Returns whether that is new.
    pub(crate) fn lose(&mut self, position: u64) -> bool {
        self.end = self.end.max(position + 1);
        let new = self.lost.insert(position);
        self.lost_count += u32::from(new);
        new
    }

    /// `from..to` are sent again now.
    pub(crate) fn sent_again(&mut self, from: u64, to: u64) {
        self.lost_count -= self.lost.remove_range(from, to);
        self.end = self.end.max(to);
        for position in from..to {
            self.recent[0].insert(position);
        }
    }

    /// Forgets which packets were sent again more than a period ago. Returns whether time has moved on by half of one.
    pub(crate) fn age(&mut self, now: Instant, period_ns: u64) -> bool {
        if now < self.half_end {
            return false;
        }
        let half_ns = period_ns / 2;
        // After a silence all are old.
        if now >= self.half_end.plus_ns(period_ns) {
            self.recent = [PacketSet::default(); HALVES];
        } else {
            let mut end = self.half_end;
            while end <= now {
                self.recent.rotate_right(1);
                self.recent[0] = PacketSet::default();
                end = end.plus_ns(half_ns);
            }
        }
        self.half_end = now.plus_ns(half_ns);
        true
    }

    pub(crate) fn has_received(&self, position: u64) -> bool {
        self.is_in_use() && self.received.contains(position)
    }

    /// An answer was placed early.
    pub(crate) fn receive(&mut self, position: u64) {
        self.end = self.end.max(position + 1);
        self.received.insert(position);
        self.lost_count -= u32::from(self.lost.remove(position));
    }

    /// The first of `from..to` that was not received; `to` when there is none.
    pub(crate) fn first_missing(&self, from: u64, to: u64) -> u64 {
        if self.is_in_use() { self.received.first(from, to, false) } else { from.min(to) }
    }

    /// The first of `from..to` that was received; `to` when there is none.
    pub(crate) fn first_received(&self, from: u64, to: u64) -> u64 {
        self.received.first(from, to, true)
    }

    /// The answer that is asked for again ends with this packet.
    pub(crate) fn set_end(&mut self, position: u64) {
        self.ends.insert(position);
    }

    pub(crate) fn may_end(&self, position: u64) -> bool {
        self.is_in_use() && self.ends.contains(position)
    }

    /// Everything from `position` on will be sent anyway.
    pub(crate) fn going_back(&mut self, position: u64, next: u64) {
        if self.is_in_use() {
            self.lost_count -= self.lost.remove_range(position, next);
        }
    }

    /// `from..to` are done with.
    pub(crate) fn done(&mut self, from: u64, to: u64) {
        if to >= self.end {
            *self = Self::default();
            return;
        }
        self.lost_count -= self.lost.remove_range(from, to);
        for set in self.recent.iter_mut().chain([&mut self.received, &mut self.ends]) {
            set.remove_range(from, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    proptest::proptest! {
        /// As a plain set, anywhere in the numbers.
        #[test]
        fn a_set_behaves_as_a_set(base in 0_u64..1 << 40, ops in proptest::collection::vec((0_u8..4, 0..SPAN, 0..SPAN), 0..60)) {
            let (mut set, mut model) = (PacketSet::default(), BTreeSet::new());
            for (op, a, b) in ops {
                let (from, to) = (base + a.min(b), base + a.max(b));
                match op {
                    0 => proptest::prop_assert_eq!(set.insert(from), model.insert(from)),
                    1 => proptest::prop_assert_eq!(set.remove(from), model.remove(&from)),
                    2 => {
                        let there: Vec<u64> = model.range(from..to).copied().collect();
                        proptest::prop_assert_eq!(set.remove_range(from, to) as usize, there.len());
                        model.retain(|position| !there.contains(position));
                    }
                    _ => {
                        for position in from..to { set.insert(position); model.insert(position); }
                    }
                }
                proptest::prop_assert_eq!(set.contains(to), model.contains(&to));
                let present = model.range(from..to).next().copied().unwrap_or(to);
                proptest::prop_assert_eq!(set.first(from, to, true), present);
                let absent = (from..to).find(|position| !model.contains(position)).unwrap_or(to);
                proptest::prop_assert_eq!(set.first(from, to, false), absent);
            }
        }
    }

    #[test]
    fn a_report_is_believed_again_when_the_repetition_is_old() {
        let mut board = Scoreboard::default();
        let at = |us: u64| Instant(us * 1000);
        board.age(at(0), 90_000);
        assert!(board.report(7) && !board.report(7));
        board.sent_again(7, 8);
        assert!(!board.report(7) && !board.has_lost());
        assert!(board.age(at(45), 90_000) && !board.age(at(89), 90_000));
        assert!(board.age(at(90), 90_000));
        assert!(!board.report(7), "within a period");
        board.age(at(135), 90_000);
        assert!(board.report(7));
        board.sent_again(7, 8);
        board.age(at(1000), 90_000);
        assert!(board.report(7), "after a silence");
    }
}
