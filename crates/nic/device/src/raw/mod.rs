//! Raw packet queue pairs: whole Ethernet frames between the application and the netdev of the device, and
//! the flow rules that say which frames they get (ibv_create_flow(3)).
//!
//! Frames go through packet sockets (`ports.rs`), so the network stack gets them as well. This is beside the
//! engine and its port: a raw queue pair has an RC queue pair that never leaves RESET, which reserves its
//! number. The paths of RC contain no case for raw queue pairs.
//!
//! Application threads that poll an empty completion queue send and receive here (`Raw::poll`), else the
//! thread of `thread.rs` does.
//!
//! Lock order: `Raw::state`, then the lock of one engine, for its table of keys. A polling thread takes the
//! lock of the engine that it polls, any other thread that of the first engine.

mod key;
mod packet_port;
mod ports;
mod qp;
mod queue;
mod rss;
mod spec;
mod state;
mod table;
mod thread;
mod wq;

pub use qp::{Flow, RawQp, RawQpAttr};
pub use rss::RxHash;
pub use spec::{FlowSpecs, SPEC_HEADER_LEN, SPECS_MAX};
pub use table::{FlowAttr, FlowType};
pub use wq::{IndTable, RawWq, WqState};

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};

use sys::EventFd;
use transport::refusal::Os;
use transport::{Errno, VerbsError, refuse};

use self::table::QueueId;
use crate::engine::Engine;
use crate::locked::Locked;
use crate::runtime::Runtime;
use crate::status::Row;
pub(crate) use state::State;

/// The raw packet queue pairs of a device. See the module documentation.
pub(crate) struct Raw {
    pub(crate) state: Mutex<State>,
    engine: Weak<Engine>,
    /// There are rules, or frames to send.
    is_active: AtomicBool,
    /// Polls by application threads, so that the thread can tell whether they poll.
    polls: AtomicU64,
    /// The thread leaves the ports to application threads.
    is_watching: AtomicBool,
    /// Wakes the thread. It may sleep on it when this is dropped.
    kick: Arc<EventFd>,
    /// The counters as of the last batch, for readers that must not wait for the state: they hold the lock of
    /// an engine.
    published: [AtomicU64; State::COUNTERS.len()],
}

impl Raw {
    /// Returns the raw packet queue pairs of a device, given its first engine.
    ///
    /// # Errors
    /// `EOPNOTSUPP` in a simulation; `ENOMEM` if the process is out of descriptors or threads.
    pub(crate) fn of(engine: &Arc<Engine>) -> Result<&Arc<Self>, VerbsError> {
        if !matches!(engine.runtime(), Runtime::Kernel) {
            let simulated = 1;
            return Err(refuse!(EOPNOTSUPP, "device", "simulated"; simulated;
                "a simulated device has no raw packet queue pairs"));
        }
        if let Some(raw) = engine.place.raw() {
            return Ok(raw);
        }
        let new = Arc::new(Self {
            state: Mutex::new(State::new(engine.services.gids.get().ifindex)),
            engine: Arc::downgrade(engine),
            is_active: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            is_watching: AtomicBool::new(false),
            kick: Arc::new(EventFd::new().map_err(|error| no_resource(&error))?),
            published: Default::default(),
        });
        thread::spawn(&new).map_err(|error| no_resource(&error))?;
        Ok(engine.place.set_raw(new))
    }

    fn lock(&self) -> Locked<'_, State> {
        Locked::new(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `work` on the state, under the lock of the first engine, which gives access to memory; then sends
    /// what waits.
    fn with<R>(&self, work: impl FnOnce(&mut State, &Engine) -> R) -> Result<R, VerbsError> {
        let engine = self.engine.upgrade().ok_or_else(|| {
            let engines = 0;
            refuse!(ENODEV, "device", "engines"; engines; "the engine of the device has ended")
        })?;
        let mut state = self.lock();
        let done = work(&mut state, &engine);
        state.transmit(engine.now());
        self.publish(&state);
        let is_active = state.is_active();
        let waits = state.has_staged();
        if self.is_active.swap(is_active, Ordering::Relaxed) != is_active || waits {
            self.kick.signal(1);
        }
        Ok(done)
    }

    /// Sends and receives one batch in the calling thread of the application, unless another thread does.
    /// Returns whether frames arrived.
    pub(crate) fn poll(&self, engine: &Engine) -> bool {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if !self.is_active.load(Ordering::Relaxed) {
            return false;
        }
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let mut state = Locked::new(state);
        let has_frames = state.poll(engine) > 0;
        if has_frames {
            self.publish(&state);
        }
        has_frames
    }

    /// The calling thread stops polling: wakes the thread, which then receives.
    pub(crate) fn hand_over(&self) {
        // SeqCst: as in `Engine::hand_over`, which the caller has called before.
        if self.is_watching.load(Ordering::SeqCst) {
            self.kick.signal(1);
        }
    }

    /// Makes the counters visible to [`rows`](Self::rows).
    fn publish(&self, state: &State) {
        for (published, value) in self.published.iter().zip(state.counters()) {
            published.store(value, Ordering::Relaxed);
        }
    }

    /// Name and value of every counter; as of the last batch while another thread has the state.
    pub(crate) fn rows(&self) -> Vec<Row> {
        if let Ok(state) = self.state.try_lock() {
            self.publish(&state);
        }
        let values = self.published.iter().map(|value| value.load(Ordering::Relaxed));
        State::COUNTERS.into_iter().zip(values).collect()
    }
}

impl Drop for Raw {
    /// Wakes the thread, which ends then.
    fn drop(&mut self) {
        self.kick.signal(1);
    }
}

#[cold]
fn no_resource(error: &io::Error) -> VerbsError {
    let os = Os::from(error);
    refuse!(ENOMEM, "process", "threads and descriptors"; os as Os;
        "a thread or descriptor of the raw packet queue pairs cannot be made: {os}")
}

/// Returns the refusal of a verb for the error of a packet socket.
#[cold]
fn socket_refused(error: &io::Error) -> VerbsError {
    let (os, errno) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let os = Os::from(error);
            return refuse!(EPERM, "device", "packet socket"; os as Os;
                "raw packet queue pairs need CAP_NET_RAW";
                "run the program as root, or in a network namespace of your own ('roxie lab')");
        }
        Some(libc::ENODEV | libc::ENXIO) => (Os::from(error), Errno::ENODEV),
        Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT | libc::ENOPROTOOPT) => {
            (Os::from(error), Errno::EOPNOTSUPP)
        }
        _ => (Os::from(error), Errno::ENOMEM),
    };
    refuse!((errno), "device", "packet socket"; os as Os;
        "the packet sockets of the raw queue pairs cannot be used: {os}")
}

/// The refusal of a call for a queue that was destroyed.
#[cold]
fn no_queue(id: QueueId) -> VerbsError {
    refuse!(EINVAL, "raw queue", "id"; id; "the raw queue {id} was destroyed")
}
