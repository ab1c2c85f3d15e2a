//! The thread that sends and receives while no application thread polls.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::Raw;
use sys::{PollFd, poll, spawn_without_signals};

/// Time between two checks whether application threads still poll. Half: the checks take 2 % of a CPU.
/// Double: a frame waits longer after the application has stopped to poll without arming its completion
/// queue.
const CHECK_NS: u64 = 1_000_000;
/// Time between two attempts to send frames that the kernel did not take.
const RETRY_NS: u64 = 100_000;
/// The longest sleep without frames to wait for: until the thread sees that the device has ended.
const IDLE_NS: u64 = 10_000_000_000;

/// Starts the thread; it ends when no other reference to `raw` is left.
pub(super) fn spawn(raw: &Arc<Raw>) -> std::io::Result<()> {
    let (weak, kick) = (Arc::downgrade(raw), Arc::clone(&raw.kick));
    spawn_without_signals("roxie-raw", move || {
        let (mut seen, mut fds) = (0, Vec::new());
        while let Some(timeout_ns) = round(&weak, &mut seen, &mut fds) {
            fds.push(PollFd::readable(kick.as_raw_fd()));
            if poll(&mut fds, Some(timeout_ns)).is_err() {
                // More descriptors than the limit permits.
                sys::pause(std::time::Duration::from_nanos(CHECK_NS));
            }
            let _none = kick.take();
        }
    })
}

/// Serves the ports once, unless an application thread has polled since the last round. Returns how long to
/// sleep on `fds`; `None` if the device was dropped.
fn round(weak: &Weak<Raw>, seen: &mut u64, fds: &mut Vec<PollFd>) -> Option<u64> {
    let raw = weak.upgrade()?;
    let engine = raw.engine.upgrade()?;
    fds.clear();
    raw.is_watching.store(false, Ordering::Relaxed);
    if !raw.is_active.load(Ordering::Relaxed) {
        return Some(IDLE_NS);
    }
    let polls = raw.polls.load(Ordering::Relaxed);
    if std::mem::replace(seen, polls) != polls && !engine.has_sleeper() {
        raw.is_watching.store(true, Ordering::SeqCst);
        // An application that armed a CQ before this store had no reason to wake this thread.
        if !engine.has_sleeper() {
            return Some(CHECK_NS);
        }
    }
    let mut state = raw.lock();
    while state.poll(&engine) > 0 && raw.polls.load(Ordering::Relaxed) == polls {
        raw.publish(&state);
        // Threads that post or change a rule wait for the lock.
        drop(state);
        std::thread::yield_now();
        state = raw.lock();
    }
    raw.publish(&state);
    let is_active = state.is_active();
    raw.is_active.store(is_active, Ordering::Relaxed);
    fds.extend(state.ports.fd().map(PollFd::readable));
    Some(if state.has_staged() { RETRY_NS } else { IDLE_NS })
}
