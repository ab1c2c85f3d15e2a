//! Failure detection: a member that dies is noticed by another member, which takes over its disconnect
//! journal.
//!
//! Every member keeps a connection to at least one other member (its neighbour), if there is one: the member
//! that sent the socket set, or one chosen after the last connection broke. So at least one member notices
//! every death.

use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use transport::cm::DisconnectNotice;

use super::group::Found;
use super::join::Neighbour;
use super::slots::slots_at_random;
use super::{Membership, Registry, group, meeting};
use sys::now_ns;

/// Shortest time between two scans of the journal after a death. Half: twice the system calls in the first
/// second. Double: the second of two members that die at once may be noticed 200 ms later.
const RESCAN_NS: u64 = 200_000_000;
/// A process that dies needs CPU time to exit, and a busy host may have none for it. So the scans go on for
/// this long. Half or double: so slow a process goes unnoticed, or is noticed.
const RESCANS_NS: u64 = 20_000_000_000;

/// When the journal is scanned after the scan at `now_ns`, for a death that was noticed at `noticed_ns`. The
/// kernel closes the descriptors of a killed process one by one, so its connection breaks before its name is
/// free. If two members die at once, the survivor may notice only one broken connection. The intervals grow
/// with the time since the death: a process that exits late is noticed by a quarter of that later.
#[must_use]
pub fn next_scan_ns(noticed_ns: u64, now_ns: u64) -> Option<u64> {
    let since_ns = now_ns.saturating_sub(noticed_ns);
    (since_ns < RESCANS_NS).then(|| now_ns + (since_ns / 4).max(RESCAN_NS))
}

impl Membership {
    /// Returns the disconnect notices of members that have died, and of the last owner of this slot. They are
    /// now in this member's journal; the caller removes each one after it has been sent.
    pub(super) fn take_dead_notices(&self) -> Vec<DisconnectNotice> {
        let mut notices = std::mem::take(&mut *self.inherited.lock().unwrap_or_else(PoisonError::into_inner));
        let (suspects, now) = (self.server.take_suspects(), now_ns());
        let rescan = self.rescan_at().is_some_and(|at| at <= now);
        if suspects.is_empty() && !rescan {
            return notices;
        }
        if !suspects.is_empty() {
            self.noticed_at.store(now, Ordering::Relaxed);
        }
        let next = next_scan_ns(self.noticed_at.load(Ordering::Relaxed), now);
        self.rescan_at.store(next.unwrap_or(0), Ordering::Relaxed);
        for (slot, owner) in (0..).zip(self.journal_file.owners()) {
            let Some(owner) = owner.filter(|owner| *owner != self.slot) else { continue };
            if suspects.contains(&owner) || self.journal_file.has_rows(slot) {
                notices.extend(self.take_over_journal(slot));
            }
        }
        if !self.server.has_neighbour() {
            self.find_neighbour();
        }
        notices
    }

    /// Takes over the journal of a slot after its owner died, and stops its socket from queueing datagrams.
    fn take_over_journal(&self, slot: u16) -> Vec<DisconnectNotice> {
        // The holder of the name may take over. If the name is taken, the owner is alive, or another process
        // is taking over.
        let Ok(_name) = sys::bind_seqpacket(&self.server.group.slot(slot)) else { return Vec::new() };
        if let Ok(Found::Bound(queue)) = self.server.socket_set.queue_of(slot) {
            // See `drop`. If this process is out of descriptors, the next owner drains the socket.
            let _not_ours = group::disable_queue(queue.as_fd());
        }
        let notices = self.journal_file.transfer(slot, &mut self.journal());
        self.journal_file.set_owner(slot, None);
        notices
    }

    /// Connects to any other member, if there is one.
    fn find_neighbour(&self) {
        let config = &self.server.config;
        let owners = self.journal_file.owners();
        let is_first = |slot: &u16| owners.get(usize::from(*slot)) == Some(&Some(*slot));
        let is_other = |slot: &u16| *slot != self.slot && !self.server.is_sibling(*slot);
        for slot in slots_at_random().filter(is_first).filter(is_other) {
            let Ok((connection, peer)) = meeting::connect(&self.server.group.slot(slot)) else { continue };
            if config.admits(peer) && self.server.watch_neighbour(Neighbour { slot, connection }).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use transport::cm::JournalChange;

    use super::super::SLOTS;
    use super::super::journal::Journal;
    use super::super::tests::{members_of, new_domain, notice_of, spawn_member, while_serving};
    use super::*;
    use sys::PollFd;

    #[test]
    fn scans_follow_a_death_at_growing_intervals() {
        let (noticed_ns, mut at_ns, mut scans) = (1_000_000_000, 1_000_000_000, Vec::new());
        while let Some(next_ns) = next_scan_ns(noticed_ns, at_ns) {
            let late_ns = (next_ns - at_ns) * 4;
            assert!(late_ns <= (at_ns - noticed_ns).max(4 * RESCAN_NS), "{scans:?}");
            at_ns = next_ns;
            scans.push((at_ns - noticed_ns) / 1_000_000);
        }
        assert_eq!(scans[..6], [200, 400, 600, 800, 1000, 1250], "ms");
        assert!(scans.len() < 25 && scans.last() > Some(&20_000), "{scans:?}");
    }

    /// Serves `members` until `count` disconnect notices have arrived, and a little longer; returns the
    /// notices of each member. For a count of 0 it serves them for 3 seconds at most.
    fn notices_to(members: &[&Membership], count: usize) -> Vec<Vec<DisconnectNotice>> {
        let mut got = vec![Vec::new(); members.len()];
        let mut until = now_ns() + if count == 0 { 3_000_000_000 } else { 60_000_000_000 };
        while now_ns() < until {
            let mut fds: Vec<_> = members.iter().map(|m| PollFd::readable(m.listener_fd())).collect();
            sys::poll(&mut fds, Some(20_000_000)).unwrap();
            let before = got.concat().len();
            for (member, got) in members.iter().zip(&mut got) {
                member.poll_listener(&mut |_| {});
                got.extend(member.take_disconnect_notices());
            }
            let all = got.concat().len();
            if all > before && all >= count {
                until = now_ns() + 2 * RESCAN_NS;
            }
        }
        got
    }

    /// Stops a process, and waits until it is stopped (proc_pid_stat(5): the state follows the name).
    fn stop(process: &Child) {
        let id = process.id();
        assert!(Command::new("sh").args(["-c", &format!("kill -STOP {id}")]).status().unwrap().success());
        while !std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
    }

    #[test]
    fn exactly_one_survivor_gets_the_notices_of_a_killed_member() {
        let config = new_domain();
        let all = members_of(&config, 3);
        let ((mut child, slot), _) = while_serving(&all.iter().collect::<Vec<_>>(), || spawn_member(&config));
        child.kill().unwrap();
        child.wait().unwrap();
        let got = notices_to(&all.iter().collect::<Vec<_>>(), 1);
        assert_eq!(got.concat(), [notice_of(slot)], "{got:?}");
        assert!(!all[0].journal_file.has_rows(slot));
    }

    #[test]
    fn members_that_lost_their_neighbour_connect_to_another_member() {
        let config = new_domain();
        let (mut founder, _) = spawn_member(&config);
        let a = Membership::join(&config).unwrap();
        // `a` does not answer meanwhile, so `b` joins through the founder.
        let (mut b, slot) = spawn_member(&config);
        founder.kill().unwrap();
        founder.wait().unwrap();
        // One of the two takes over the founder's notices, and they connect to each other.
        notices_to(&[&a], 0);
        assert!(a.server.has_neighbour());
        b.kill().unwrap();
        b.wait().unwrap();
        assert_eq!(notices_to(&[&a], 1), [[notice_of(slot)]]);
    }

    #[test]
    fn two_members_that_die_at_once_are_both_noticed() {
        let config = new_domain();
        let (mut founder, founder_slot) = spawn_member(&config);
        let a = Membership::join(&config).unwrap();
        let (mut b, b_slot) = spawn_member(&config);
        // Otherwise the second one may take over the notices of the first.
        stop(&b);
        stop(&founder);
        b.kill().unwrap();
        founder.kill().unwrap();
        b.wait().unwrap();
        founder.wait().unwrap();
        let mut got = notices_to(&[&a], 2).concat();
        got.sort_unstable_by_key(|notice| notice.id);
        let mut slots = [b_slot, founder_slot];
        slots.sort_unstable();
        assert_eq!(got, slots.map(notice_of));
    }

    #[test]
    fn the_next_owner_of_a_slot_gets_the_notices_of_the_last_owner() {
        let config = new_domain();
        let a = Membership::join(&config).unwrap();
        for slot in (0..SLOTS).filter(|slot| *slot != a.slot()) {
            Journal::open(&a.journal_file, slot)
                .0
                .change(&a.journal_file, JournalChange::Add(notice_of(slot)))
                .unwrap();
        }
        let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
        let left = notice_of(b.slot());
        assert_eq!(b.take_disconnect_notices(), [left]);
        assert!(b.take_disconnect_notices().is_empty());
        assert_eq!(
            Journal::open(&b.journal_file, b.slot()).1,
            [left],
            "the notice stays until it is removed"
        );
        b.update_journal(JournalChange::Remove(left.id)).unwrap();
        assert!(Journal::open(&b.journal_file, b.slot()).1.is_empty());
    }

    #[test]
    fn notices_that_a_killed_survivor_had_taken_over_are_taken_over_again() {
        let config = new_domain();
        let a = Membership::join(&config).unwrap();
        let ((mut b, slot), _) = while_serving(&[&a], || spawn_member(&config));
        // As if this member had just taken over the journal of another slot.
        let other = notice_of(slot ^ 1);
        Journal::open(&a.journal_file, slot).0.change(&a.journal_file, JournalChange::Add(other)).unwrap();
        b.kill().unwrap();
        b.wait().unwrap();
        assert_eq!(notices_to(&[&a], 2).concat(), [notice_of(slot), other]);
    }
}
