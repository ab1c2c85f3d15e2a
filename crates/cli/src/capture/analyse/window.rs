//! The packet sequence numbers of one direction: which were seen, when, and what became of them.

use std::collections::VecDeque;

use wire::Psn;

use super::finding::At;

/// Numbers kept behind the acknowledged ones, to know a late copy again.
const HISTORY: usize = 1024;
/// Numbers kept altogether; a longer window loses its beginning.
const WINDOW_MAX: usize = 1 << 17;
/// Packets that the first one seen may have overtaken.
const OVERTAKEN_MAX: i32 = 64;
/// A jump of more numbers than this is another connection on the same QP.
const JUMP_MAX: i32 = 1 << 16;

/// One packet sequence number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    /// The request that has it; number 0 if that was not seen.
    pub(super) sent: At,
    /// The latest copy of it.
    pub(super) again: At,
    /// The READ response that has it.
    pub(super) answered: u64,
    /// Of the first copy.
    pub(super) icrc: u32,
    /// IPv4 identification of the first copy.
    pub(super) ip_id: u16,
    /// Where it was captured.
    pub(super) place: u32,
    /// It was overtaken.
    pub(super) late: bool,
}

/// How a number relates to those before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// The first of all.
    Start,
    /// The next one.
    Next,
    /// So many were left out.
    Gap(u32),
    /// One that was left out earlier.
    Filler,
    /// Seen before.
    Again,
    /// Older than what is kept.
    Ancient,
    /// Far from everything: the QP was connected anew.
    Restart,
}

/// A run of packet sequence numbers, ending with the latest.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
    /// The number behind the last slot.
    next: Psn,
    started: bool,
    /// The first slot is not the first number seen.
    trimmed: bool,
}

impl Window {
    /// The next new number.
    #[must_use]
    pub(super) fn next(&self) -> Psn {
        self.next
    }

    /// Where `psn` belongs.
    #[must_use]
    pub(super) fn place(&self, psn: Psn) -> Place {
        if !self.started {
            return Place::Start;
        }
        match psn.distance_from(self.next) {
            0 => Place::Next,
            ahead @ 1..JUMP_MAX => Place::Gap(ahead as u32),
            JUMP_MAX.. => Place::Restart,
            behind => match self.get(psn) {
                Some(slot) if slot.sent.number == 0 => Place::Filler,
                Some(_) => Place::Again,
                None if behind < -JUMP_MAX => Place::Restart,
                None => Place::Ancient,
            },
        }
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

    /// Makes room for `psn`, which was overtaken by the first packet seen. `false` if it is too old for that.
    pub(super) fn reach_back(&mut self, psn: Psn) -> bool {
        let missing = self.next.distance_from(psn) - self.slots.len() as i32;
        let fits = !self.trimmed && (1..=OVERTAKEN_MAX).contains(&missing);
        if fits {
            (0..missing).for_each(|_| self.slots.push_front(Slot::default()));
        }
        fits
    }

    /// Begins anew at `psn`.
    pub(super) fn restart(&mut self, psn: Psn) {
        self.slots.clear();
        self.trimmed = false;
        (self.next, self.started) = (psn, true);
    }

    /// Appends `count` numbers, all in this state.
    pub(super) fn push(&mut self, slot: Slot, count: u32) {
        let count = count.min(WINDOW_MAX as u32);
        self.slots.extend(std::iter::repeat_n(slot, count as usize));
        self.next = self.next.advance(count);
        let over = self.slots.len().saturating_sub(WINDOW_MAX);
        self.slots.drain(..over);
        self.trimmed |= over > 0;
    }

    /// Forgets what lies far behind `una`, the first number not acknowledged.
    pub(super) fn trim(&mut self, una: Psn) {
        let open = usize::try_from(self.next.distance_from(una)).unwrap_or(0);
        let over = self.slots.len().saturating_sub(open + 2 * HISTORY);
        if over > 0 {
            self.slots.drain(..over + HISTORY);
            self.trimmed = true;
        }
    }

    /// The request with the highest number.
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
    fn numbers_find_their_places() {
        let mut window = Window::default();
        let psn = |n: u32| Psn::new(0xff_fffe).advance(n);
        assert_eq!(window.place(psn(0)), Place::Start);
        window.restart(psn(0));
        window.push(seen(1), 1);
        assert_eq!(window.place(psn(1)), Place::Next);
        assert_eq!(window.place(psn(3)), Place::Gap(2));
        window.push(Slot::default(), 2);
        window.push(seen(2), 1);
        assert_eq!(window.next(), psn(4));
        assert_eq!(window.place(psn(2)), Place::Filler);
        assert_eq!(window.place(psn(0)), Place::Again);
        assert_eq!(window.place(psn(0).advance(0xff_fff0)), Place::Ancient);
        assert_eq!(window.place(psn(200_000)), Place::Restart);
        assert_eq!(window.last_sent(), Some(At { number: 2, ns: 2 }));
    }

    #[test]
    fn the_past_is_forgotten_but_not_at_once() {
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
