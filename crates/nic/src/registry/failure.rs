//! When members die: what they left to be said, and who will see our own end.
//!
//! Every member is connected to at least one other, if there is another: to the one that gave it the socket set, or to one it
//! looked for when the last connection broke. So every death is seen by somebody.

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use transport::cm::Farewell;

use super::join::{Neighbour, slots_at_random};
use super::{Membership, SLOTS, group};
use sys::now_ns;

/// After a death the book is looked through once more. A process that is killed closes its descriptors one by one, so
/// its connection breaks before its name is free; and of two that die at once only one may be seen.
const RESCAN_NS: u64 = 200_000_000;

impl Membership {
    /// What is to be said for members that have died, and for the last owner of our slot. It stands in our will, from which it is
    /// to be removed when it was said. To be asked after every [`poll_listener`](Self::poll_listener), and at
    /// [`second_look_at`](Self::second_look_at).
    pub fn take_disconnect_notices(&self) -> Vec<Farewell> {
        let mut notices = std::mem::take(&mut *self.inherited.lock().unwrap_or_else(PoisonError::into_inner));
        let suspects = self.server.take_suspects();
        let rescan = self.rescan_at().is_some_and(|at| at <= now_ns());
        if suspects.is_empty() && !rescan {
            return notices;
        }
        let next = if suspects.is_empty() { 0 } else { now_ns() + RESCAN_NS };
        self.rescan_at.store(next, Ordering::Relaxed);
        let concerns = |slot: &u8| suspects.contains(slot) || self.journal_file.has_rows(*slot);
        for slot in (0..SLOTS).filter(|slot| *slot != self.slot).filter(concerns) {
            notices.extend(self.take_over_journal(slot));
        }
        if !self.server.has_neighbour() {
            self.find_neighbour();
        }
        notices
    }

    /// Names all slots of this process, its own among them.
    pub(crate) fn set_sibling_slots(&self, slots: Vec<u8>) {
        let first_time = self.server.sibling_slots.set(slots);
        debug_assert!(first_time.is_ok());
    }

    /// When [`take_farewells`](Self::take_farewells) wants to be asked (nanoseconds of [`now_ns`]).
    #[must_use]
    pub fn rescan_at(&self) -> Option<u64> {
        Some(self.rescan_at.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Takes the will of a slot whose owner is dead, and closes its socket to further datagrams.
    fn take_over_journal(&self, slot: u8) -> Vec<Farewell> {
        // Whoever holds the name may. If it is taken, the owner lives, or a new one or another survivor does this.
        let Ok(_name) = sys::bind_seqpacket(&self.server.config.slot_name(slot)) else { return Vec::new() };
        if let Ok(contents) = group::peek(self.server.socket_set.as_fd(), slot) {
            // As in `drop`; without descriptors the next owner drains it.
            let _not_ours = group::disable_queue(contents.queue.as_fd());
        }
        self.journal_file.transfer(slot, &mut self.journal())
    }

    /// Connects to any other member, if there is one.
    fn find_neighbour(&self) {
        let config = &self.server.config;
        for slot in slots_at_random().filter(|slot| *slot != self.slot && !self.server.is_sibling(*slot)) {
            let Ok(connection) = sys::connect_seqpacket(&config.slot_name(slot)) else { continue };
            let admitted = sys::peer_credentials(connection.as_fd()).is_ok_and(|c| config.admits(c));
            if admitted && self.server.watch_neighbour(Neighbour { slot, connection }).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use transport::cm::WillChange;

    use super::super::journal::Journal;
    use super::super::tests::{members_of, new_domain, notice_of, spawn_member, while_serving};
    use super::*;
    use sys::PollFd;

    /// Serves `members` until farewells come, and a little longer; what each got.
    fn notices_to(members: &[&Membership]) -> Vec<Vec<Farewell>> {
        let mut got = vec![Vec::new(); members.len()];
        let mut until = now_ns() + 3_000_000_000;
        while now_ns() < until {
            let mut fds: Vec<_> = members.iter().map(|m| PollFd::readable(m.listener_fd())).collect();
            sys::poll(&mut fds, Some(20_000_000)).unwrap();
            for (member, got) in members.iter().zip(&mut got) {
                member.poll_listener(&mut |_| {});
                let notices = member.take_disconnect_notices();
                if !notices.is_empty() {
                    until = now_ns() + 2 * RESCAN_NS;
                }
                got.extend(notices);
            }
        }
        got
    }

    #[test]
    fn one_survivor_says_what_a_killed_member_left() {
        let config = new_domain();
        let all = members_of(&config, 3);
        let ((mut child, slot), _) = while_serving(&all.iter().collect::<Vec<_>>(), || spawn_member(&config));
        child.kill().unwrap();
        child.wait().unwrap();
        let got = notices_to(&all.iter().collect::<Vec<_>>());
        assert_eq!(got.concat(), [notice_of(slot)], "{got:?}");
        assert!(!all[0].journal_file.has_rows(slot));
    }

    #[test]
    fn members_that_lost_their_neighbour_find_another() {
        let config = new_domain();
        let (mut founder, _) = spawn_member(&config);
        let a = Membership::join(&config).unwrap();
        // `a` does not answer meanwhile, so the founder is the one that knows `b`.
        let (mut b, slot) = spawn_member(&config);
        founder.kill().unwrap();
        founder.wait().unwrap();
        // One of the two says what it left, and they find each other.
        notices_to(&[&a]);
        assert!(a.server.has_neighbour());
        b.kill().unwrap();
        b.wait().unwrap();
        assert_eq!(notices_to(&[&a]), [[notice_of(slot)]]);
    }

    #[test]
    fn of_two_that_die_at_once_both_are_heard() {
        let config = new_domain();
        let (mut founder, founder_slot) = spawn_member(&config);
        let a = Membership::join(&config).unwrap();
        let (mut b, b_slot) = spawn_member(&config);
        b.kill().unwrap();
        founder.kill().unwrap();
        b.wait().unwrap();
        founder.wait().unwrap();
        let mut got = notices_to(&[&a]).concat();
        got.sort_unstable_by_key(|notice| notice.id);
        let mut slots = [b_slot, founder_slot];
        slots.sort_unstable();
        assert_eq!(got, slots.map(notice_of));
    }

    #[test]
    fn the_next_owner_of_a_slot_says_what_the_last_one_left() {
        let config = new_domain();
        let a = Membership::join(&config).unwrap();
        for slot in (0..SLOTS).filter(|slot| *slot != a.slot()) {
            Journal::open(&a.journal_file, slot)
                .0
                .change(&a.journal_file, WillChange::Add(notice_of(slot)))
                .unwrap();
        }
        let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
        let left = notice_of(b.slot());
        assert_eq!(b.take_disconnect_notices(), [left]);
        assert!(b.take_disconnect_notices().is_empty());
        assert_eq!(Journal::open(&b.journal_file, b.slot()).1, [left], "until it is said");
        b.update_journal(WillChange::Remove(left.id)).unwrap();
        assert!(Journal::open(&b.journal_file, b.slot()).1.is_empty());
    }

    #[test]
    fn a_survivor_that_is_killed_as_well_leaves_what_it_took_over() {
        let config = new_domain();
        let a = Membership::join(&config).unwrap();
        let ((mut b, slot), _) = while_serving(&[&a], || spawn_member(&config));
        // As if it had just buried the owner of another slot.
        let other = notice_of(slot ^ 1);
        Journal::open(&a.journal_file, slot).0.change(&a.journal_file, WillChange::Add(other)).unwrap();
        b.kill().unwrap();
        b.wait().unwrap();
        assert_eq!(notices_to(&[&a]).concat(), [notice_of(slot), other]);
    }
}
