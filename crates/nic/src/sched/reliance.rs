//! Whether the background thread may leave the sockets to those who poll inline.
//!
//! As a rule it may: who polls drives. But some programs poll once or twice a turn and then spin on memory that the peer
//! writes (perftest's latency tests over UC and XRC); then packets lie unread until the thread has watched in vain. Where
//! that happens again and again the thread takes over, and tries anew after a while. Invariant: who polls steadily is left
//! alone, because only packets that lay unread for a whole watch count against him, and only while he had the CPU.

/// How long the thread serves the sockets before it relies on inline pollers again, at first and after trying in vain: each
/// time it is twice as long, since the turns it takes to see last milliseconds where somebody spins on the same CPU.
const TAKEOVER_NS: u64 = 100_000_000;
const TAKEOVER_MAX_NS: u64 = 1_600_000_000;
/// So many turns in a row have left packets lying. A steady poller on a busy machine does so in one of five.
const TURNS: u8 = 8;
/// A turn of such a program has at most one watch at whose end somebody has polled: who polls for so many is steady.
const STEADY_WATCHES: u8 = 2;
/// How long a watch takes: each time somebody has polled at the end of so many in a row, it becomes twice as long, so many times at most.
/// So what lies there when he stops waits for two watches at most, each an eighth of the time that he has polled for, and no more than
/// 4 ms. A wake-up costs who polls some 20 us (two virtual CPUs, Xeon, kernel 6.18), which is 7 % of his CPU with the shortest ones and
/// 2 % with 1 ms.
const WATCH_NS: u64 = 250_000;
const LONGER_AFTER: u8 = 16;
const LONGER_MAX: u8 = 4;
/// CPU time of the process in a watch, from which on somebody ran who did not poll. One who waits for the CPU is to get it, not to
/// be preempted for each packet.
const RAN_NS: u64 = 100_000;

/// See the module documentation. Times are nanoseconds of one clock.
#[derive(Debug, Default)]
pub(crate) struct Reliance {
    /// Inline polls when they were counted last; `None` before that.
    seen: Option<u64>,
    /// The last thing the thread did was to watch.
    watched: bool,
    /// Watches in a row at whose end somebody had polled.
    steady: u8,
    /// Turns in a row that left packets lying.
    turns: u8,
    /// Takeovers in a row, between which nobody polled steadily.
    takeovers: u32,
    /// The thread serves the sockets until then.
    takeover_until: u64,
}

impl Reliance {
    /// Whether somebody has polled since the last call and is relied upon: the thread is going to watch. `polls` counts
    /// inline polls.
    pub(crate) fn leaves_to_pollers(&mut self, polls: u64, now_ns: u64) -> bool {
        if now_ns < self.takeover_until || self.seen.replace(polls) == Some(polls) {
            return false;
        }
        if std::mem::replace(&mut self.watched, true) {
            self.steady = self.steady.saturating_add(1);
            if self.steady >= STEADY_WATCHES {
                (self.turns, self.takeovers) = (0, 0);
            }
        }
        true
    }

    /// How long to watch now (nanoseconds).
    pub(crate) fn watch_ns(&self) -> u64 {
        WATCH_NS << (self.steady / LONGER_AFTER).min(LONGER_MAX)
    }

    /// The thread has looked itself, and took so many trains; since it watched, the process has used `ran_ns` of CPU time.
    pub(crate) fn took(&mut self, trains: usize, ran_ns: u64, now_ns: u64) {
        if std::mem::take(&mut self.watched) && trains > 0 && ran_ns >= RAN_NS {
            self.turns += 1;
            if self.turns == TURNS {
                self.takeover_until = now_ns + (TAKEOVER_NS << self.takeovers.min(31)).min(TAKEOVER_MAX_NS);
                self.takeovers += 1;
                self.turns = 0;
            }
        }
        self.steady = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One turn of a program that polls until its own request is acknowledged and then spins on memory. Whether the thread
    /// watched.
    fn turn(reliance: &mut Reliance, polls: &mut u64, now_ns: u64) -> bool {
        *polls += 8;
        let watched = reliance.leaves_to_pollers(*polls, now_ns);
        *polls += 8;
        let again = watched && reliance.leaves_to_pollers(*polls, now_ns);
        assert!(!again || !reliance.leaves_to_pollers(*polls, now_ns), "nobody has polled meanwhile");
        reliance.took(1, RAN_NS, now_ns);
        watched
    }

    #[test]
    fn packets_that_lie_unread_turn_after_turn_are_taken_over() {
        let (mut reliance, mut polls, mut now) = (Reliance::default(), 0, 0);
        for takeover_ns in [100, 200, 400, 800, 1600, 1600].map(|ms| ms * 1_000_000) {
            for _ in 0..TURNS {
                assert!(turn(&mut reliance, &mut polls, now), "pollers get a chance");
            }
            assert!(!turn(&mut reliance, &mut polls, now));
            now += takeover_ns;
            assert!(!turn(&mut reliance, &mut polls, now - 1));
        }
        for _ in 0..4 {
            polls += 1;
            assert!(reliance.leaves_to_pollers(polls, now), "who uses it is relied upon");
        }
        for _ in 0..TURNS {
            assert!(turn(&mut reliance, &mut polls, now));
        }
        assert!(!turn(&mut reliance, &mut polls, now + TAKEOVER_NS - 1));
        assert!(turn(&mut reliance, &mut polls, now + TAKEOVER_NS), "and not held guilty");
    }

    #[test]
    fn a_steady_poller_is_left_alone() {
        let mut reliance = Reliance::default();
        for round in 0..100 {
            assert!(reliance.leaves_to_pollers(round, 0));
            if round % 4 == 0 {
                // He was busy with something else for once.
                assert!(!reliance.leaves_to_pollers(round, 0));
                reliance.took(1, RAN_NS, 0);
            }
        }
    }

    #[test]
    fn a_steady_poller_is_looked_at_less_often_until_he_stops() {
        let mut reliance = Reliance::default();
        let mut polled_for = 0;
        for round in 0..300 {
            assert!(reliance.leaves_to_pollers(round, 0));
            let watch = reliance.watch_ns();
            assert!((WATCH_NS..=4_000_000).contains(&watch) && (round < 16 || watch <= polled_for / 8));
            polled_for += watch;
        }
        assert_eq!(reliance.watch_ns(), 4_000_000);
        assert!(!reliance.leaves_to_pollers(299, 0));
        reliance.took(0, RAN_NS, 0);
        assert_eq!(reliance.watch_ns(), WATCH_NS);
    }

    #[test]
    fn a_poller_without_a_cpu_is_left_alone() {
        let mut reliance = Reliance::default();
        for round in 0..100 {
            assert!(reliance.leaves_to_pollers(round, 0));
            assert!(!reliance.leaves_to_pollers(round, 0));
            reliance.took(1, RAN_NS - 1, 0);
        }
    }

    #[test]
    fn a_poller_who_stops_while_nothing_comes_is_relied_upon() {
        let mut reliance = Reliance::default();
        for round in 0..10 {
            assert!(reliance.leaves_to_pollers(round, 0));
            assert!(!reliance.leaves_to_pollers(round, 0));
            reliance.took(0, RAN_NS, 0);
            reliance.took(1, RAN_NS, 0);
        }
    }
}
