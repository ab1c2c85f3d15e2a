//! When members die: what they left to be said, and who will see our own end.
//!
//! Every member is connected to at least one other, if there is another: to the one that gave it the bag, or to one it
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
const SECOND_LOOK_NS: u64 = 200_000_000;

impl Membership {
    /// What is to be said for members that have died, and for the last owner of our slot. It stands in our will, from which it is
    /// to be removed when it was said. To be asked after every [`poll_listener`](Self::poll_listener), and at
    /// [`second_look_at`](Self::second_look_at).
    pub fn take_farewells(&self) -> Vec<Farewell> {
        let mut farewells =
            std::mem::take(&mut *self.inherited.lock().unwrap_or_else(PoisonError::into_inner));
        let departed = self.server.take_departed();
        let second_look = self.second_look_at().is_some_and(|at| at <= now_ns());
        if departed.is_empty() && !second_look {
            return farewells;
        }
        let next = if departed.is_empty() { 0 } else { now_ns() + SECOND_LOOK_NS };
        self.second_look_at.store(next, Ordering::Relaxed);
        let concerns = |slot: &u8| departed.contains(slot) || self.book.has_rows(*slot);
        for slot in (0..SLOTS).filter(|slot| *slot != self.slot).filter(concerns) {
            farewells.extend(self.bury(slot));
        }
        if !self.server.has_neighbour() {
            self.find_neighbour();
        }
        farewells
    }

    /// Names all slots of this process, its own among them.
    pub(crate) fn has_kin(&self, slots: Vec<u8>) {
        let first_time = self.server.kin.set(slots);
        debug_assert!(first_time.is_ok());
    }

    /// When [`take_farewells`](Self::take_farewells) wants to be asked (nanoseconds of [`now_ns`]).
    #[must_use]
    pub fn second_look_at(&self) -> Option<u64> {
        Some(self.second_look_at.load(Ordering::Relaxed)).filter(|at| *at != 0)
    }

    /// Takes the will of a slot whose owner is dead, and closes its socket to further datagrams.
    fn bury(&self, slot: u8) -> Vec<Farewell> {
        // Whoever holds the name may. If it is taken, the owner lives, or a new one or another survivor does this.
        let Ok(_name) = sys::bind_seqpacket(&self.server.config.slot_name(slot)) else { return Vec::new() };
        if let Ok(contents) = group::peek(self.server.bag.as_fd(), slot) {
            // As in `drop`; without descriptors the next owner drains it.
            let _not_ours = group::silence(contents.queue.as_fd());
        }
        self.book.hand_down(slot, &mut self.will())
    }

    /// Connects to any other member, if there is one.
    fn find_neighbour(&self) {
        let config = &self.server.config;
        for slot in slots_at_random().filter(|slot| *slot != self.slot && !self.server.is_kin(*slot)) {
            let Ok(connection) = sys::connect_seqpacket(&config.slot_name(slot)) else { continue };
            let admitted = sys::peer_credentials(connection.as_fd()).is_ok_and(|c| config.admits(c));
            if admitted && self.server.befriend(Neighbour { slot, connection }).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use transport::cm::WillChange;

    use super::super::tests::{farewell_of, members_of, new_domain, spawn_member, while_serving};
    use super::super::will::Will;
    use super::*;
    use sys::PollFd;

    /// Serves `members` until farewells come, and a little longer; what each got.
    fn farewells_to(members: &[&Membership]) -> Vec<Vec<Farewell>> {
        let mut got = vec![Vec::new(); members.len()];
        let mut until = now_ns() + 3_000_000_000;
        while now_ns() < until {
            let mut fds: Vec<_> = members.iter().map(|m| PollFd::readable(m.listener_fd())).collect();
            sys::poll(&mut fds, Some(20_000_000)).unwrap();
            for (member, got) in members.iter().zip(&mut got) {
                member.poll_listener(&mut |_| {});
                let farewells = member.take_farewells();
                if !farewells.is_empty() {
                    until = now_ns() + 2 * SECOND_LOOK_NS;
                }
                got.extend(farewells);
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
        let got = farewells_to(&all.iter().collect::<Vec<_>>());
        assert_eq!(got.concat(), [farewell_of(slot)], "{got:?}");
        assert!(!all[0].book.has_rows(slot));
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
        farewells_to(&[&a]);
        assert!(a.server.has_neighbour());
        b.kill().unwrap();
        b.wait().unwrap();
        assert_eq!(farewells_to(&[&a]), [[farewell_of(slot)]]);
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
        let mut got = farewells_to(&[&a]).concat();
        got.sort_unstable_by_key(|farewell| farewell.id);
        let mut slots = [b_slot, founder_slot];
        slots.sort_unstable();
        assert_eq!(got, slots.map(farewell_of));
    }

    #[test]
    fn the_next_owner_of_a_slot_says_what_the_last_one_left() {
        let config = new_domain();
        let a = Membership::join(&config).unwrap();
        for slot in (0..SLOTS).filter(|slot| *slot != a.slot()) {
            Will::open(&a.book, slot).0.change(&a.book, WillChange::Add(farewell_of(slot))).unwrap();
        }
        let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
        let left = farewell_of(b.slot());
        assert_eq!(b.take_farewells(), [left]);
        assert!(b.take_farewells().is_empty());
        assert_eq!(Will::open(&b.book, b.slot()).1, [left], "until it is said");
        b.change_will(WillChange::Remove(left.id)).unwrap();
        assert!(Will::open(&b.book, b.slot()).1.is_empty());
    }

    #[test]
    fn a_survivor_that_is_killed_as_well_leaves_what_it_took_over() {
        let config = new_domain();
        let a = Membership::join(&config).unwrap();
        let ((mut b, slot), _) = while_serving(&[&a], || spawn_member(&config));
        // As if it had just buried the owner of another slot.
        let other = farewell_of(slot ^ 1);
        Will::open(&a.book, slot).0.change(&a.book, WillChange::Add(other)).unwrap();
        b.kill().unwrap();
        b.wait().unwrap();
        assert_eq!(farewells_to(&[&a]).concat(), [farewell_of(slot), other]);
    }
}
