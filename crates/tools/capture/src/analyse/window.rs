//! The packet sequence numbers of one direction, with the packets that had them.

use std::collections::VecDeque;

use wire::{Opcode, Psn};

use super::copies::Point;
use super::finding::At;

/// Acknowledged numbers kept, to recognise late copies.
const HISTORY: usize = 1024;
/// Most numbers kept; older ones are removed.
pub(super) const WINDOW_MAX: usize = 1 << 17;
/// Most packets that the first captured one may precede although they have lower numbers.
pub(super) const OVERTAKEN_MAX: i32 = 64;
/// A larger jump of the number is a new connection on the same queue pair.
const JUMP_MAX: i32 = 1 << 16;

/// One packet sequence number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    /// The first request packet with it; number 0 if none was captured.
    pub(super) sent: At,
    /// The latest packet with it.
    pub(super) again: At,
    /// Number of the READ response packet with it, or 0.
    pub(super) answered: u64,
    /// Invariant CRC of the first packet.
    pub(super) icrc: u32,
    /// IPv4 identification of the first packet.
    pub(super) ip_id: u16,
    /// UDP source port of the first packet.
    pub(super) sport: u16,
    /// Bytes of its UDP payload.
    pub(super) len: u16,
    pub(super) opcode: Opcode,
    pub(super) ack_req: bool,
    /// Where the first packet was captured.
    pub(super) point: Point,
    /// Packets before it were missing when it was captured.
    pub(super) behind_gap: bool,
    /// The packet was out of order.
    pub(super) late: bool,
    /// The number was missing when later ones were captured, and no packet with it has been captured so far.
    pub(super) missing: bool,
    /// It may belong to a READ before it, of which the number of responses is not known.
    pub(super) guessed: bool,
}

/// How a number relates to those captured before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Order {
    /// The first number of the direction.
    First,
    /// The next one.
    Next,
    /// This many numbers are missing before it.
    Gap(u32),
    /// A number that was missing before.
    FillsGap,
    /// A number that was captured before.
    Repeated,
    /// Older than the numbers kept.
    TooOld,
    /// Far from all others: a new connection on the queue pair.
    Restart,
}

/// Consecutive packet sequence numbers up to the latest.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
    /// The number after the last slot.
    next: Psn,
    started: bool,
    /// Slots were removed from the beginning.
    trimmed: bool,
}

impl Window {
    /// The next number in sequence.
    #[must_use]
    pub(super) fn next(&self) -> Psn {
        self.next
    }

    /// Classifies `psn`.
    #[must_use]
    pub(super) fn order(&self, psn: Psn) -> Order {
        if !self.started {
            return Order::First;
        }
        match psn.distance_from(self.next) {
            0 => Order::Next,
            ahead @ 1..JUMP_MAX => Order::Gap(ahead as u32),
            JUMP_MAX.. => Order::Restart,
            behind => match self.get(psn) {
                Some(slot) if slot.sent.number == 0 => Order::FillsGap,
                Some(_) => Order::Repeated,
                None if behind < -JUMP_MAX => Order::Restart,
                None => Order::TooOld,
            },
        }
    }

    /// Whether it is one of the lowest numbers that were captured.
    pub(super) fn is_near_begin(&self, psn: Psn) -> bool {
        !self.trimmed && self.index(psn).is_some_and(|index| index < OVERTAKEN_MAX as usize)
    }

    /// The slot of a number, if it is kept.
    #[must_use]
    pub(super) fn get(&self, psn: Psn) -> Option<&Slot> {
        self.slots.get(self.index(psn)?)
    }

    /// The slot of a number, if it is kept.
    pub(super) fn get_mut(&mut self, psn: Psn) -> Option<&mut Slot> {
        let index = self.index(psn)?;
        self.slots.get_mut(index)
    }

    fn index(&self, psn: Psn) -> Option<usize> {
        let behind = self.next.distance_from(psn);
        self.slots.len().checked_sub(usize::try_from(behind).ok()?)
    }

    /// Adds slots for `psn`, which precedes the first captured packet. Returns `false` if it is too old for
    /// that.
    pub(super) fn reach_back(&mut self, psn: Psn) -> bool {
        let missing = self.next.distance_from(psn) - self.slots.len() as i32;
        let fits = !self.trimmed && (1..=OVERTAKEN_MAX).contains(&missing);
        if fits {
            (0..missing).for_each(|_| self.slots.push_front(Slot::default()));
        }
        fits
    }

    /// Removes all slots; the next number is `psn`.
    pub(super) fn restart(&mut self, psn: Psn) {
        self.slots.clear();
        self.trimmed = false;
        (self.next, self.started) = (psn, true);
    }

    /// Appends `count` numbers with copies of `slot`.
    pub(super) fn push(&mut self, slot: Slot, count: u32) {
        let count = count.min(WINDOW_MAX as u32);
        self.slots.extend(std::iter::repeat_n(slot, count as usize));
        self.next = self.next.advance(count);
        let over = self.slots.len().saturating_sub(WINDOW_MAX);
        self.slots.drain(..over);
        self.trimmed |= over > 0;
    }

    /// Forgets the responses to `count` numbers from `psn` on.
    pub(super) fn forget_answers(&mut self, psn: Psn, count: u32) {
        let first = self.index(psn).unwrap_or(self.slots.len());
        self.slots.iter_mut().skip(first).take(count as usize).for_each(|slot| slot.answered = 0);
    }

    /// Number of missing packets from `una` on.
    #[must_use]
    pub(super) fn missing_from(&self, una: Psn) -> u64 {
        let open = usize::try_from(self.next.distance_from(una)).unwrap_or(0);
        let first = self.slots.len().saturating_sub(open);
        self.slots.range(first..).filter(|slot| slot.missing).count() as u64
    }

    /// Removes numbers far below `una`, the first unacknowledged number.
    pub(super) fn trim(&mut self, una: Psn) {
        let open = usize::try_from(self.next.distance_from(una)).unwrap_or(0);
        let over = self.slots.len().saturating_sub(open + 2 * HISTORY);
        if over > 0 {
            self.slots.drain(..over + HISTORY);
            self.trimmed = true;
        }
    }

    /// The captured request packet with the highest number.
    #[must_use]
    pub(super) fn last_sent(&self) -> Option<At> {
        self.slots.iter().rev().map(|slot| slot.sent).find(|sent| sent.number != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(number: u64) -> Slot {
        Slot { sent: At { number, ns: number }, ..Slot::default() }
    }

    #[test]
    fn numbers_are_classified() {
        let mut window = Window::default();
        let psn = |n: u32| Psn::new(0xff_fffe).advance(n);
        assert_eq!(window.order(psn(0)), Order::First);
        window.restart(psn(0));
        window.push(seen(1), 1);
        assert_eq!(window.order(psn(1)), Order::Next);
        assert_eq!(window.order(psn(3)), Order::Gap(2));
        window.push(Slot::default(), 2);
        window.push(seen(2), 1);
        assert_eq!(window.next(), psn(4));
        assert_eq!(window.order(psn(2)), Order::FillsGap);
        assert_eq!(window.order(psn(0)), Order::Repeated);
        assert_eq!(window.order(psn(0).advance(0xff_fff0)), Order::TooOld);
        assert_eq!(window.order(psn(200_000)), Order::Restart);
        assert_eq!(window.last_sent(), Some(At { number: 2, ns: 2 }));
    }

    #[test]
    fn acknowledged_numbers_are_removed_in_batches() {
        let mut window = Window::default();
        window.restart(Psn::new(0));
        for n in 0..3 * HISTORY as u32 {
            window.push(seen(n.into()), 1);
            window.trim(window.next());
        }
        assert!(window.slots.len() >= HISTORY && window.slots.len() <= 2 * HISTORY + 1);
        window.push(seen(9), u32::MAX);
        assert_eq!(window.slots.len(), WINDOW_MAX);
    }
}
