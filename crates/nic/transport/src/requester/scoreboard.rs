//! What the requester knows about single packets of the window: sets of packet numbers.

use crate::in_flight::SPAN;
use crate::time::Instant;

const WORDS: u64 = SPAN / 64;
/// Half periods that are remembered: a period and a half, so that each packet is remembered for at least one
/// period.
const HALVES: usize = 3;
/// A retransmission is lost when a packet has arrived that left so many packets later (RFC 6675: 3). A path
/// may change the order of fewer.
const OVERTAKEN: u64 = 3;

/// A set of packet numbers out of [`SPAN`] consecutive ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketSet([u64; WORDS as usize]);

impl PacketSet {
    const EMPTY: Self = Self([0; WORDS as usize]);

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
            // Skips the rest of a word without a match.
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

/// Packets that were retransmitted in one half period.
#[derive(Clone, Copy, Debug)]
struct Retransmitted {
    packets: PacketSet,
    /// The packet that was to leave next for the first time, at the latest retransmission.
    next: u64,
}

impl Retransmitted {
    const NONE: Self = Self { packets: PacketSet::EMPTY, next: 0 };
}

/// The sets of a [`Scoreboard`].
#[derive(Clone, Copy, Debug)]
struct Sets {
    /// Packets to be retransmitted.
    lost: PacketSet,
    /// Packets retransmitted in this half period, and in those before. A report of their loss may be older
    /// than that.
    recent: [Retransmitted; HALVES],
    /// Responses of READs and atomics that were placed ahead of a missing one.
    received: PacketSet,
    /// Responses that end a retransmitted part of a READ.
    ends: PacketSet,
}

impl Sets {
    const EMPTY: &Self = &Self {
        lost: PacketSet::EMPTY,
        recent: [Retransmitted::NONE; HALVES],
        received: PacketSet::EMPTY,
        ends: PacketSet::EMPTY,
    };
}

/// What the requester knows about the packets in flight. Empty and not consulted while nothing is lost.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    /// Allocated at the first retransmission: 600 bytes that most queue pairs never need.
    sets: Option<Box<Sets>>,
    half_end: Instant,
    /// One past the furthest member that any set has had; 0 when all are empty.
    end: u64,
    lost_count: u32,
    /// The peer has reported a missing packet.
    reported: bool,
}

impl Scoreboard {
    fn sets(&self) -> &Sets {
        self.sets.as_deref().unwrap_or(Sets::EMPTY)
    }

    fn sets_mut(&mut self) -> &mut Sets {
        self.sets.get_or_insert_with(|| Box::new(*Sets::EMPTY))
    }

    /// Whether a packet is to be retransmitted.
    #[inline]
    pub(crate) fn has_lost(&self) -> bool {
        self.lost_count > 0
    }

    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.end > 0
    }

    /// The first packet of `from..to` that is to be retransmitted; `to` when there is none.
    pub(crate) fn first_lost(&self, from: u64, to: u64) -> u64 {
        self.sets().lost.first(from, to, true)
    }

    /// The first packet of `from..to` that is not to be retransmitted; `to` when there is none.
    pub(crate) fn first_not_lost(&self, from: u64, to: u64) -> u64 {
        self.sets().lost.first(from, to, false)
    }

    /// The peer reports a packet missing when `furthest` has arrived (0: unknown). Returns whether that is
    /// new: it is not if the packet was retransmitted recently, unless [`OVERTAKEN`] packets left between
    /// that and `furthest`.
    pub(crate) fn report(&mut self, position: u64, furthest: u64) -> bool {
        let is_under_way =
            |half: &Retransmitted| half.packets.contains(position) && furthest < half.next + OVERTAKEN;
        let sets = self.sets();
        if sets.received.contains(position) || sets.recent.iter().any(is_under_way) {
            return false;
        }
        self.reported = true;
        self.lose(position)
    }

    /// Whether the peer has reported a missing packet and may still miss it.
    #[inline]
    pub(crate) fn is_repairing(&self) -> bool {
        self.reported
    }

    /// A packet is to be retransmitted, however recently it was. Returns whether that is new.
    pub(crate) fn lose(&mut self, position: u64) -> bool {
        self.end = self.end.max(position + 1);
        let new = self.sets_mut().lost.insert(position);
        self.lost_count += u32::from(new);
        new
    }

    /// `from..to` are retransmitted now, and `next` is the next packet to leave for the first time.
    pub(crate) fn retransmitted(&mut self, from: u64, to: u64, next: u64) {
        self.end = self.end.max(to);
        let sets = self.sets_mut();
        sets.recent[0].next = next;
        for position in from..to {
            sets.recent[0].packets.insert(position);
        }
        self.lost_count -= sets.lost.remove_range(from, to);
    }

    /// Forgets which packets were retransmitted more than a period ago. Returns whether half a period has
    /// passed.
    pub(crate) fn age(&mut self, now: Instant, period_ns: u64) -> bool {
        if now < self.half_end {
            return false;
        }
        let half_ns = period_ns / 2;
        if let Some(sets) = &mut self.sets {
            // After a pause all retransmissions are old.
            if now >= self.half_end.plus_ns(period_ns) {
                sets.recent = [Retransmitted::NONE; HALVES];
            } else {
                let mut end = self.half_end;
                while end <= now {
                    sets.recent.rotate_right(1);
                    sets.recent[0] = Retransmitted::NONE;
                    end = end.plus_ns(half_ns);
                }
            }
        }
        self.half_end = now.plus_ns(half_ns);
        true
    }

    pub(crate) fn has_received(&self, position: u64) -> bool {
        self.is_in_use() && self.sets().received.contains(position)
    }

    /// A response was placed ahead of a missing one.
    pub(crate) fn receive(&mut self, position: u64) {
        self.end = self.end.max(position + 1);
        let sets = self.sets_mut();
        sets.received.insert(position);
        self.lost_count -= u32::from(sets.lost.remove(position));
    }

    /// The first of `from..to` that was not received; `to` when there is none.
    pub(crate) fn first_missing(&self, from: u64, to: u64) -> u64 {
        if self.is_in_use() { self.sets().received.first(from, to, false) } else { from.min(to) }
    }

    /// The first of `from..to` that was received; `to` when there is none.
    pub(crate) fn first_received(&self, from: u64, to: u64) -> u64 {
        self.sets().received.first(from, to, true)
    }

    /// The retransmitted part of a READ ends with this response.
    pub(crate) fn set_end(&mut self, position: u64) {
        self.sets_mut().ends.insert(position);
    }

    /// One past the first response of `from..to` that ends a retransmitted part; `to` when there is none.
    pub(crate) fn first_end(&self, from: u64, to: u64) -> u64 {
        if self.is_in_use() { (self.sets().ends.first(from, to, true) + 1).min(to) } else { to }
    }

    pub(crate) fn may_end(&self, position: u64) -> bool {
        self.is_in_use() && self.sets().ends.contains(position)
    }

    /// The cursor goes back to `position`, so everything from there will be sent anyway.
    pub(crate) fn going_back(&mut self, position: u64, next: u64) {
        if self.is_in_use() {
            self.lost_count -= self.sets_mut().lost.remove_range(position, next);
        }
    }

    /// `from..to` are acknowledged.
    pub(crate) fn done(&mut self, from: u64, to: u64) {
        if to >= self.end {
            let mut sets = self.sets.take();
            if let Some(sets) = &mut sets {
                **sets = *Sets::EMPTY;
            }
            *self = Self { sets, ..Self::default() };
            return;
        }
        let sets = self.sets_mut();
        for half in &mut sets.recent {
            half.packets.remove_range(from, to);
        }
        for set in [&mut sets.received, &mut sets.ends] {
            set.remove_range(from, to);
        }
        self.lost_count -= sets.lost.remove_range(from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    proptest::proptest! {
        #[test]
        fn a_packet_set_behaves_as_a_set_anywhere_in_the_numbers(
            base in 0_u64..1 << 40,
            ops in proptest::collection::vec((0_u8..4, 0..SPAN, 0..SPAN), 0..60),
        ) {
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
    fn a_report_counts_again_when_the_retransmission_is_old() {
        let mut board = Scoreboard::default();
        let at = |us: u64| Instant(us * 1000);
        board.age(at(0), 90_000);
        assert!(board.report(7, 0) && !board.report(7, 0));
        board.retransmitted(7, 8, 9);
        assert!(!board.report(7, 0) && !board.has_lost());
        assert!(board.age(at(45), 90_000) && !board.age(at(89), 90_000));
        assert!(board.age(at(90), 90_000));
        assert!(!board.report(7, 0), "within a period");
        board.age(at(135), 90_000);
        assert!(board.report(7, 0));
        board.retransmitted(7, 8, 9);
        board.age(at(1000), 90_000);
        assert!(board.report(7, 0), "after a pause");
    }
}
