//! A thread that blocks until a completion event serves the engine itself (ibv_get_cq_event(3)). A packet
//! then wakes the thread that needs it. Otherwise it would wake the progress thread, and that the other one;
//! beside CPU-bound processes each of these wake-ups may wait for a CPU.
//!
//! While a thread attends to the engine, the progress thread only checks that it still does. Between two
//! events the application may compute for as long as it likes, so these checks are [`Tuning::watch_ns`]
//! apart; they become rare ([`Tuning::sleep_max_ns`]) during a single long wait. A thread that is cancelled
//! in its wait (pthread_cancel(3)) makes no more rounds: after a second the progress thread serves the
//! engine again, and no thread of the process attends any more.
//!
//! Threads attend only with `ROXIE_WAITS=serve`: a program that cancels threads in their wait would lose
//! that second, and one that expects EINTR would not get it.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use sys::Cancellation;
use transport::Instant;

use super::Tuning;
use super::governor::Governor;
use super::sleep::{Sleeper, WaitFds};
use crate::engine::Engine;
use crate::port::RxQueues;
use crate::runtime::Runtime;

/// How long the answer to [`Runtime::may_attend`] holds.
const HANDLERS_HOLD_NS: u64 = 1_000_000_000;

/// The attendance of an engine.
#[derive(Debug)]
pub(crate) struct Attendance {
    /// Held by the thread that attends.
    attendant: Mutex<Attendant>,
    is_on: AtomicBool,
    /// How often threads have begun to attend.
    begun: AtomicU64,
    /// Rounds of all of them.
    rounds: AtomicU64,
    /// Until when the progress thread sleeps and leaves the engine to them (nanoseconds); 0 if it does not.
    left_until: AtomicU64,
    sleeper: Sleeper,
}

/// What a thread that attends leaves to the next one.
#[derive(Debug)]
struct Attendant {
    governor: Governor,
    /// The descriptors of the event queue and of the engine.
    fds: WaitFds,
}

/// The progress thread's view of an [`Attendance`].
#[derive(Debug, Default)]
pub(super) struct Watch {
    begun: u64,
    rounds: u64,
    /// When `rounds` changed.
    changed_ns: u64,
    wait_ns: u64,
}

impl Attendance {
    pub(crate) fn new(tuning: &Tuning) -> io::Result<Self> {
        Ok(Self {
            attendant: Mutex::new(Attendant { governor: Governor::new(*tuning), fds: WaitFds::default() }),
            is_on: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            left_until: AtomicU64::new(0),
            sleeper: Sleeper::new()?,
        })
    }

    /// The thread that attends.
    pub(crate) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Whether the progress thread leaves the engine to threads that attend.
    pub(crate) fn is_left(&self) -> bool {
        self.left_until.load(Ordering::SeqCst) != 0
    }

    /// Whether a thread attends now.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// The progress thread sleeps until then, and leaves the engine to a thread that attends; 0: it is
    /// awake.
    pub(super) fn leave_until(&self, at_ns: u64) {
        self.left_until.store(at_ns, Ordering::SeqCst);
    }

    fn begin(&self) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.is_on.store(true, Ordering::SeqCst);
    }

    /// Returns whether the progress thread is to be woken: it would sleep for long.
    fn end(&self, now: u64, tuning: &Tuning) -> bool {
        self.is_on.store(false, Ordering::SeqCst);
        self.left_until.load(Ordering::SeqCst) > now + tuning.watch_ns
    }
}

impl Watch {
    /// How long the progress thread may leave the engine to a thread that attends; `None` if there is none.
    pub(super) fn wait_ns(&mut self, of: &Attendance, now: u64, tuning: &Tuning) -> Option<u64> {
        let rounds = of.rounds.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.rounds, rounds) != rounds {
            self.changed_ns = now;
        }
        let begun = of.begun.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.begun, begun) != begun {
            self.wait_ns = tuning.watch_ns;
            return Some(self.wait_ns);
        }
        // A thread makes a round at least once in `sleep_max_ns`.
        let is_gone = now.saturating_sub(self.changed_ns) > 2 * tuning.sleep_max_ns;
        if is_gone || !of.is_on() {
            return None;
        }
        self.wait_ns = (2 * self.wait_ns).min(tuning.sleep_max_ns);
        Some(self.wait_ns)
    }
}

impl Engine {
    /// Serves the engine until `is_done`, which becomes true when `fd` is readable, or until `end_ns`
    /// (`u64::MAX` for no end). Returns false at once if another thread attends.
    ///
    /// # Errors
    /// `EINTR` after a signal with a handler that does not restart system calls; `EBADF` if `fd` is closed.
    pub(crate) fn attend(&self, fd: RawFd, end_ns: u64, is_done: impl Fn() -> bool) -> io::Result<bool> {
        let Some(mut attendant) = self.runtime().try_lock(&self.attendance.attendant) else {
            return Ok(false);
        };
        // The locks of the engine outlive a thread that is cancelled while it holds them.
        let cancellation = sys::Cancellation::disable();
        self.attendance.begin();
        let result = attendant.serve_until(self, &cancellation, (fd, end_ns), is_done);
        if self.attendance.end(self.runtime().now_ns(), self.tuning()) {
            self.progress.wake();
        }
        result.map(|()| true)
    }
}

impl Attendant {
    fn serve_until(
        &mut self,
        engine: &Engine,
        cancellation: &Cancellation,
        (fd, end_ns): (RawFd, u64),
        is_done: impl Fn() -> bool,
    ) -> io::Result<()> {
        let runtime = engine.runtime();
        loop {
            // Most wake-ups are packets of connections.
            let mut batches = engine.poll_batches(RxQueues::SLOT, true);
            if batches == 0 {
                batches = engine.serve_everything();
            }
            engine.attendance.rounds.fetch_add(1, Ordering::Relaxed);
            let now = runtime.now_ns();
            self.governor.served(batches, 0, now);
            if is_done() || now >= end_ns {
                return Ok(());
            }
            if self.governor.spins(now) {
                runtime.yield_now();
                self.governor.yielded(now, runtime.now_ns());
            } else {
                self.sleep(engine, cancellation, fd, self.governor.sleep_until(now).min(end_ns))?;
            }
        }
    }

    fn sleep(
        &mut self,
        engine: &Engine,
        cancellation: &Cancellation,
        fd: RawFd,
        latest: u64,
    ) -> io::Result<()> {
        let sleeper = engine.attendance.sleeper();
        let fds = self.fds.with(engine, sleeper, fd);
        let until = sleeper.prepare(engine, latest);
        let sleep = |until| engine.runtime().sleep_or_signal(fds, Instant(until));
        let slept = until.map(|until| cancellation.with_enabled(|| sleep(until)));
        sleeper.end(engine);
        match slept {
            Some(Ok(true)) => engine.follow_netdev(),
            // Unlike read(2), poll(2) is never restarted by the kernel.
            Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted && sys::handlers_restart() => {}
            Some(Err(error)) => return Err(error),
            _ => {}
        }
        Ok(())
    }
}

/// The value of [`VARIABLE`] with which threads attend.
const SERVE: &str = "serve";
/// The variable that lets threads attend.
const VARIABLE: &str = "ROXIE_WAITS";

impl Runtime {
    /// Whether a thread that blocks may attend: it is wanted, and after a signal the wait goes on. (A signal
    /// that arrives during a round does not end the wait.) The answer holds for a second: a handler that is
    /// installed meanwhile may not end the present wait.
    pub(crate) fn may_attend(&self) -> bool {
        static WANTED: OnceLock<bool> = OnceLock::new();
        static RESTART: AtomicBool = AtomicBool::new(false);
        static UNTIL_NS: AtomicU64 = AtomicU64::new(0);
        if matches!(self, Self::Virtual(_)) {
            return true;
        }
        if !WANTED.get_or_init(|| std::env::var_os(VARIABLE).is_some_and(|value| value == SERVE)) {
            return false;
        }
        let now = self.now_ns();
        if now >= UNTIL_NS.load(Ordering::Relaxed) {
            RESTART.store(sys::handlers_restart(), Ordering::Relaxed);
            UNTIL_NS.store(now + HANDLERS_HOLD_NS, Ordering::Relaxed);
        }
        RESTART.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_progress_thread_stays_away_while_threads_attend() {
        let tuning = Tuning::default();
        let (attendance, mut watch) = (Attendance::new(&tuning).expect("a descriptor"), Watch::default());
        let mut now = 1_000_000_000;
        assert_eq!(watch.wait_ns(&attendance, now, &tuning), None, "no thread has attended");
        attendance.begin();
        assert_eq!(watch.wait_ns(&attendance, now, &tuning), Some(tuning.watch_ns));
        for _ in 0..20 {
            now += tuning.sleep_max_ns;
            attendance.rounds.fetch_add(1, Ordering::Relaxed);
            assert!(watch.wait_ns(&attendance, now, &tuning).is_some());
        }
        assert_eq!(watch.wait_ns, tuning.sleep_max_ns, "one long wait");
        // It handles the event, and comes back.
        attendance.leave_until(now + tuning.sleep_max_ns);
        assert!(attendance.end(now, &tuning), "the progress thread would sleep for long");
        attendance.leave_until(now + tuning.watch_ns);
        attendance.begin();
        assert!(!attendance.end(now, &tuning));
        assert_eq!(watch.wait_ns(&attendance, now, &tuning), Some(tuning.watch_ns), "the thread waits again");
        assert_eq!(watch.wait_ns(&attendance, now, &tuning), None, "no thread waits again");
    }

    #[test]
    fn a_thread_cancelled_in_its_wait_no_longer_attends() {
        let tuning = Tuning::default();
        let (attendance, mut watch) = (Attendance::new(&tuning).expect("a descriptor"), Watch::default());
        let now = 1_000_000_000;
        attendance.begin();
        attendance.rounds.fetch_add(1, Ordering::Relaxed);
        assert!(watch.wait_ns(&attendance, now, &tuning).is_some());
        assert!(watch.wait_ns(&attendance, now + 2 * tuning.sleep_max_ns, &tuning).is_some());
        assert_eq!(watch.wait_ns(&attendance, now + 2 * tuning.sleep_max_ns + 1, &tuning), None);
    }
}
