//! The progress thread of an engine. It serves the port while no application thread polls often, or one
//! sleeps on a CQ, and sleeps in poll(2) when there is nothing to do. [`Governor`] decides which.

use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use sys::{EventFd, Slice};
use transport::Instant;

use crate::engine::Engine;
use crate::fork::EngineSlot;
use crate::port::{Readiness, RxQueues};
use crate::runtime::{Point, Runtime};
use crate::sched::governor::{Governor, State};

/// Starts the thread of an engine of the device with this slot. It ends when no other reference to the engine
/// is left.
pub(crate) fn spawn(engine: &Arc<Engine>, slot: &Arc<EngineSlot>) -> std::io::Result<()> {
    let (weak, runtime, slot) = (Arc::downgrade(engine), engine.runtime().clone(), Arc::downgrade(slot));
    runtime.clone().spawn("roxie-engine", move || Progress::run(&weak, runtime, slot))
}

struct Progress {
    runtime: Runtime,
    slot: Weak<EngineSlot>,
    governor: Governor,
    fds: WaitFds,
    /// Kept open: the engine signals it when it is dropped, and closes the other descriptors.
    _kick: Arc<EventFd>,
    slice: Slice,
    /// Rounds since the spinning began.
    spins: u32,
    /// CPU time of the other threads during the last sleep in `Inline`.
    ran_ns: u64,
}

impl Progress {
    fn run(weak: &Weak<Engine>, runtime: Runtime, slot: Weak<EngineSlot>) {
        let Some(engine) = weak.upgrade() else { return };
        let (governor, _kick) = (Governor::new(*engine.tuning()), engine.polling.progress.kick());
        drop(engine);
        let (fds, slice) = (WaitFds::default(), Slice::default());
        let mut this = Self { runtime, slot, governor, fds, _kick, slice, spins: 0, ran_ns: 0 };
        while let Some(engine) = weak.upgrade() {
            this.round(engine, weak);
        }
    }

    fn round(&mut self, engine: Arc<Engine>, weak: &Weak<Engine>) {
        let now = self.runtime.now_ns();
        let work = engine.polling.work();
        let has_sleeper = engine.has_sleeper();
        match self.governor.next_state(work, has_sleeper, now, || self.runtime.usage()) {
            State::Inline => self.watch(engine, weak),
            State::Background | State::Crowded => self.serve(engine, weak, has_sleeper),
        }
    }

    /// Leaves the port to the polling threads, serves the control plane once, and sleeps until the next
    /// check.
    fn watch(&mut self, engine: Arc<Engine>, weak: &Weak<Engine>) {
        // The ordinary slice: with a short one, the checks would preempt the polling threads.
        self.slice.set(None);
        self.runtime.reach(Point::Sleep);
        engine.polling.set_watching(true);
        engine.serve_control_plane();
        let kick = engine.watch_fds();
        // A thread that armed a CQ before `set_watching` had no reason to wake this thread: check again.
        let may_sleep = !engine.has_sleeper();
        drop(engine);
        let before = self.runtime.usage();
        let netdev_changed =
            may_sleep && self.runtime.sleep(&kick, self.runtime.now().plus_ns(self.governor.watch_ns()));
        self.ran_ns = self.runtime.usage().since(before).cpu_ns;
        if let Some(engine) = weak.upgrade() {
            engine.polling.set_watching(false);
            engine.polling.progress.spend_kicks();
            if netdev_changed {
                self.follow_netdev(&engine);
            }
        }
    }

    fn follow_netdev(&self, engine: &Engine) {
        engine.follow_netdev();
        if let Some(slot) = self.slot.upgrade() {
            engine.services.gids.end_unused(&slot);
        }
    }

    /// Serves the port, then spins or sleeps.
    fn serve(&mut self, engine: Arc<Engine>, weak: &Weak<Engine>, has_sleeper: bool) {
        let tuning = *engine.tuning();
        self.slice.set(Some(tuning.serving_slice_ns));
        let was_spinning = self.governor.spins(self.runtime.now_ns());
        self.spins = if was_spinning { self.spins.wrapping_add(1) } else { 0 };
        let batches = if has_sleeper || self.spins.is_multiple_of(tuning.spin_rounds) {
            engine.serve_everything()
        } else {
            engine.poll_batches(RxQueues::SLOT, false)
        };
        let now = self.runtime.now_ns();
        self.governor.served(batches, self.ran_ns, now);
        if self.governor.spins(now) {
            drop(engine);
            self.runtime.yield_now();
            self.governor.yielded(now, self.runtime.now_ns());
            return;
        }
        self.sleep(engine, weak, now);
    }

    fn sleep(&mut self, engine: Arc<Engine>, weak: &Weak<Engine>, now: u64) {
        let deadline = publish_sleep(&engine, self.governor.sleep_until(now));
        let fds = self.fds.of(&engine);
        drop(engine);
        let netdev_changed = deadline.is_some_and(|until| self.runtime.sleep(fds, Instant(until)));
        if let Some(engine) = weak.upgrade() {
            engine.lock().port.set_need_wakeup(false);
            engine.polling.progress.set_until(0);
            engine.polling.progress.spend_kicks();
            if netdev_changed {
                self.follow_netdev(&engine);
            }
        }
    }
}

/// Publishes when the sleep of the calling thread ends, at `latest`. Returns that time; `None` if there is
/// work.
fn publish_sleep(engine: &Engine, latest: u64) -> Option<u64> {
    let deadline = engine.next_deadline().map_or(latest, |at| at.0.min(latest));
    engine.runtime().reach(Point::Sleep);
    engine.polling.progress.set_until(deadline);
    engine.runtime().reach(Point::Sleep);
    // A post between `next_deadline` and the store saw the old value and woke no thread: check again.
    let is_settled = engine.next_deadline().is_none_or(|at| at.0 >= deadline);
    let readiness = engine.lock().port.set_need_wakeup(true);
    (is_settled && readiness == Readiness::Idle).then_some(deadline)
}

/// The descriptors that the progress thread sleeps on while it serves an engine.
#[derive(Debug, Default)]
pub(crate) struct WaitFds {
    fds: Vec<RawFd>,
    /// The number of slots that the engine had claimed then: each has a socket.
    claimed: u64,
}

impl WaitFds {
    /// The descriptors, the monitor of the netdev last.
    pub(crate) fn of(&mut self, engine: &Engine) -> &[RawFd] {
        let claimed = engine.services.claims.made();
        if self.fds.is_empty() || std::mem::replace(&mut self.claimed, claimed) != claimed {
            self.fds = engine.wait_fds();
        }
        &self.fds
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
