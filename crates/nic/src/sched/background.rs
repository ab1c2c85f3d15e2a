//! The engine's own thread: sleeps in poll(2), and takes over when nobody drives the engine inline.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::engine::{self, Engine};
use crate::port::RxQueues;
use crate::sched::reliance::Reliance;
use sys::{PollFd, Slice, now_ns, process_cpu_ns};

/// After traffic it keeps polling for this long: a wake-up from sleep costs 20-40 us (2 cores AMD EPYC,
/// kernel 6.18).
const SPIN_NS: u64 = 50_000;
/// While it spins, and nobody waits for completions to be told of, it looks after everything this often, and in between at the sockets of
/// connections only: it answers READs and atomics for a program that does not poll, and a look at everything takes several times as long.
/// The rest (GSI, other processes, control) waits eight batches longer at most.
const SPINS_OF_ALL: u32 = 8;
/// A yield that takes longer has let in somebody who does not give way.
const CROWDED_YIELD_NS: u64 = 50_000;
/// So much of the CPU, lost in such yields beyond its [`LOSS_SHARE`], shows that somebody else wants it all the time; a slice of who
/// spins takes 3 ms (two virtual CPUs, kernel 6.18). Below that it is interrupts, and a host that gives the CPU to other guests.
const CROWDED_LOSS_NS: u64 = 1_000_000;
/// The part of all time, that of sleep included, that is forgiven: one in so many.
const LOSS_SHARE: u64 = 64;
/// For so long the thread then does not spin: it would wait for a turn each time, and a wake-up goes before the others.
const CROWDED_NS: u64 = 100_000_000;
/// While it serves the sockets, those who spin on memory meanwhile give way to it at once, and not after milliseconds: this is
/// the shortest slice that Linux grants.
const SERVING_SLICE_NS: u64 = 100_000;
/// Longest sleep, so that the engine notices when it is the last to hold itself.
const SLEEP_MAX_NS: u64 = 500_000_000;
/// Longest sleep for [`BRIEF_FOR_NS`] after packets. It ends before the peer of who posts meanwhile is overdue (400 us), so that
/// he need not wake the thread, which would take his CPU while he holds the engine's lock.
const BRIEF_SLEEP_NS: u64 = 250_000;
const BRIEF_FOR_NS: u64 = 10_000_000;

/// Sockets of the port, the members' listener, the kick, the hooks' control, the netdev's monitor; unused places are -1, which poll(2) skips.
const WAIT_FDS_MAX: usize = 8;

/// Starts the thread; it ends when nobody else holds the engine.
pub(crate) fn spawn(engine: &Arc<Engine>) -> std::io::Result<()> {
    let weak = Arc::downgrade(engine);
    sys::spawn_without_signals("roxie-engine", move || run(&weak))
}

fn run(weak: &Weak<Engine>) {
    let Some(fds) = weak.upgrade().map(|engine| engine.wait_fds()) else { return };
    let mut reliance = Reliance::default();
    let mut rest = Rest::default();
    let mut slice = Slice::default();
    let mut spins: u32 = 0;
    // CPU time of the process during the last watch.
    let mut ran_ns = 0;
    loop {
        let Some(engine) = weak.upgrade() else { return };
        let polls = engine.inline_polls.load(Ordering::Relaxed);
        let armed = engine.armed_cqs.load(Ordering::Relaxed) > 0;
        if !armed && reliance.leaves_to_pollers(polls, now_ns()) {
            // Who polls would notice if he were preempted for each look at him.
            slice.set(None);
            engine.watching.store(true, Ordering::Relaxed);
            engine.serve_members();
            engine.offer_held();
            engine.cm.poll(engine::now(), &*engine);
            engine.serve_control();
            let kick = [engine.kick.as_raw_fd(), engine.control_fd(), engine.monitor_fd()];
            drop(engine);
            let before = process_cpu_ns();
            let news = wait(&kick, reliance.watch_ns());
            ran_ns = process_cpu_ns().saturating_sub(before);
            awake(weak, news);
            continue;
        }
        slice.set(Some(SERVING_SLICE_NS));
        spins = if rest.spins(now_ns()) { spins.wrapping_add(1) } else { 0 };
        let worked = if armed || spins.is_multiple_of(SPINS_OF_ALL) {
            engine.serve_control();
            engine.poll_all() + engine.serve_members()
        } else {
            engine.poll_batches(RxQueues::SLOT)
        };
        let now = now_ns();
        reliance.took(worked, ran_ns, now);
        if worked > 0 {
            rest.worked(now);
        }
        if rest.spins(now) {
            drop(engine);
            std::thread::yield_now();
            // Whoever spins on memory does so through his slice; who waits for events gives the CPU back soon.
            if !armed {
                rest.yielded(now, now_ns());
            }
            continue;
        }
        let latest = rest.ends(now);
        let deadline = engine.next_deadline().map_or(latest, |at| at.0.min(latest));
        engine.sleeps_until.store(deadline, Ordering::Relaxed);
        // A post between `next_deadline` and the store saw the old value; look once more before sleeping.
        let settled = engine.next_deadline().is_none_or(|at| at.0 >= deadline);
        let may_wait = engine.may_wait();
        drop(engine);
        let news = settled && may_wait && wait(&fds, deadline.saturating_sub(now_ns()));
        if let Some(engine) = weak.upgrade() {
            engine.lock().port.set_need_wakeup(false);
        }
        awake(weak, news);
    }
}

/// What the thread does when nothing has come.
#[derive(Default)]
struct Rest {
    spin_until: u64,
    crowded_until: u64,
    /// What long yields have taken, of which some is forgiven all the time.
    lost_ns: u64,
    lost_at: u64,
    brief_until: u64,
}

impl Rest {
    /// Packets came.
    fn worked(&mut self, now: u64) {
        self.brief_until = now + BRIEF_FOR_NS;
        if now >= self.crowded_until {
            self.spin_until = now + SPIN_NS;
        }
    }

    fn spins(&self, now: u64) -> bool {
        now < self.spin_until
    }

    /// The thread left the CPU to others and has it `back`.
    fn yielded(&mut self, now: u64, back: u64) {
        let away = back.saturating_sub(now);
        if away <= CROWDED_YIELD_NS {
            return;
        }
        let forgiven = now.saturating_sub(self.lost_at) / LOSS_SHARE;
        self.lost_ns = self.lost_ns.saturating_sub(forgiven) + away;
        self.lost_at = back;
        if self.lost_ns > CROWDED_LOSS_NS {
            (self.spin_until, self.crowded_until, self.lost_ns) = (0, back + CROWDED_NS, 0);
        }
    }

    /// When a sleep that begins now is over at the latest.
    fn ends(&self, now: u64) -> u64 {
        now + if now < self.brief_until { BRIEF_SLEEP_NS } else { SLEEP_MAX_NS }
    }
}

/// Back from sleep: no kick is needed, and those that came are spent. There may be `news` of the netdev.
fn awake(weak: &Weak<Engine>, news: bool) {
    if let Some(engine) = weak.upgrade() {
        engine.watching.store(false, Ordering::Relaxed);
        engine.sleeps_until.store(0, Ordering::Relaxed);
        // Nothing there is fine: the sleep may have ended for another reason.
        let _spent = engine.kick.take();
        if news {
            engine.follow_netdev();
        }
    }
}

/// Waits for any of `fds`; whether the last of them is ready.
fn wait(fds: &[RawFd], timeout_ns: u64) -> bool {
    let mut polled: [PollFd; WAIT_FDS_MAX] =
        std::array::from_fn(|i| PollFd::readable(fds.get(i).copied().unwrap_or(-1)));
    if sys::poll(&mut polled, Some(timeout_ns)).is_err() {
        // Only a descriptor limit below `WAIT_FDS_MAX` can do this; the engine then runs by the clock.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    polled[fds.len() - 1].is_ready()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Traffic, and a yield that takes `away_ns`, every `interval_ns`; for how many of these the thread goes on spinning.
    fn spins(interval_ns: u64, away_ns: u64) -> usize {
        let mut rest = Rest::default();
        let is_spinning = |turn| {
            let at = turn * interval_ns;
            rest.worked(at);
            rest.yielded(at, at + away_ns);
            rest.worked(at + away_ns);
            rest.spins(at + away_ns)
        };
        (0..100).map(is_spinning).take_while(|spins| *spins).count()
    }

    #[test]
    fn interrupts_do_not_make_the_cpu_crowded() {
        assert_eq!(spins(10 * MS, 140_000), 100);
        assert_eq!(spins(CROWDED_YIELD_NS, CROWDED_YIELD_NS), 100, "as long as it comes back soon");
    }

    #[test]
    fn who_spins_makes_the_cpu_crowded_at_once_and_who_often_works_after_a_while() {
        assert_eq!(spins(10 * MS, 3 * MS), 0);
        assert_eq!(spins(MS, 140_000), 7);
    }

    #[test]
    fn later_it_is_tried_again() {
        let mut rest = Rest::default();
        rest.yielded(0, 3 * MS);
        for (after_ns, spins) in [(CROWDED_NS - 1, false), (CROWDED_NS, true)] {
            rest.worked(3 * MS + after_ns);
            assert_eq!(rest.spins(3 * MS + after_ns), spins);
        }
    }
}
