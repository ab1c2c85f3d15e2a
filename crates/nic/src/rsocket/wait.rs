//! How calls wait, and [`poll`]: whoever waits leaves a descriptor of its own with each socket, arms its completion queue,
//! and sleeps. Whoever finds something on a socket, waiting or not, wakes all who wait there: the event that it took may
//! have been theirs.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::settings::Settings;
use super::socket::Socket;
use super::stream::{Inner, Phase, State};
use sys::{EventFd, PollFd, generation, now_ns, poll as sys_poll, poll_interruptible};

/// Those who wait for something on a socket.
#[derive(Default)]
pub(super) struct Watchers(Mutex<Vec<Arc<EventFd>>>);

impl Watchers {
    /// Wakes them.
    pub(super) fn notify(&self) {
        for watcher in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            watcher.signal(1);
        }
    }

    fn add(&self, watcher: &Arc<EventFd>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(watcher));
    }

    fn remove(&self, watcher: &Arc<EventFd>) {
        let mut watchers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = watchers.iter().position(|other| Arc::ptr_eq(other, watcher)) {
            watchers.swap_remove(at);
        }
    }
}

thread_local! {
    /// This thread's descriptor, and the process it is of: a forked child needs another.
    static OWN: RefCell<Option<(u32, Arc<EventFd>)>> = const { RefCell::new(None) };
}

fn own_watcher() -> io::Result<Arc<EventFd>> {
    OWN.with_borrow_mut(|own| {
        let generation = generation();
        if let Some((of, watcher)) = own
            && *of == generation
        {
            return Ok(Arc::clone(watcher));
        }
        let watcher = Arc::new(EventFd::new()?);
        *own = Some((generation, Arc::clone(&watcher)));
        Ok(watcher)
    })
}

/// A watcher that is with a socket; it leaves when this is dropped.
struct Watch<'a> {
    watchers: &'a Watchers,
    watcher: &'a Arc<EventFd>,
}

impl<'a> Watch<'a> {
    fn new(watchers: &'a Watchers, watcher: &'a Arc<EventFd>) -> Self {
        watchers.add(watcher);
        Self { watchers, watcher }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.watchers.remove(self.watcher);
    }
}

/// A socket that calls wait for.
pub(super) trait Waits {
    /// What its lock protects.
    type State;

    fn state(&self) -> &Mutex<Self::State>;

    fn watchers(&self) -> &Watchers;

    /// Does what is due.
    fn progress(&self, state: &mut Self::State);

    /// Arms the socket, looks once more, and says which descriptors become readable when there is something to look at.
    fn prepare(&self, state: &mut Self::State) -> Vec<PollFd>;

    /// Which of `events` would not make a call wait, as things are; POLLHUP and POLLERR are always among them.
    fn ready(&self, state: &Self::State, events: Ready) -> Ready;

    fn lock(&self) -> MutexGuard<'_, Self::State> {
        self.state().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of `events` there are when what is due is done.
    fn look(&self, events: Ready) -> Ready {
        let mut state = self.lock();
        self.progress(&mut state);
        self.ready(&state, events)
    }

    /// Arms it; what to wait for, and which of `events` are there already.
    fn arm(&self, events: Ready) -> (Vec<PollFd>, Ready) {
        let mut state = self.lock();
        let fds = self.prepare(&mut state);
        (fds, self.ready(&state, events))
    }

    /// Waits until `ready` has an answer. With `Some` it does not wait.
    ///
    /// # Errors
    /// `WouldBlock` if it had to wait; those of poll(2), not `EINTR`: a signal handler does not end a wait.
    fn wait_for<T>(
        &self,
        nonblocking: Option<()>,
        mut ready: impl FnMut(&mut Self::State) -> Option<T>,
    ) -> io::Result<T> {
        let mut polls_until = None;
        loop {
            let mut state = self.lock();
            self.progress(&mut state);
            if let Some(answer) = ready(&mut state) {
                return Ok(answer);
            }
            drop(state);
            if nonblocking.is_some() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let now = now_ns();
            if now >= *polls_until.get_or_insert(now + Settings::get().polling_ns) {
                break;
            }
        }
        let watcher = own_watcher()?;
        loop {
            let watch = Watch::new(self.watchers(), &watcher);
            let mut state = self.lock();
            let mut fds = self.prepare(&mut state);
            if let Some(answer) = ready(&mut state) {
                return Ok(answer);
            }
            drop(state);
            fds.push(PollFd::readable(watcher.as_raw_fd()));
            sys_poll(&mut fds, None)?;
            drop(watch);
            // Empty unless somebody woke us.
            watcher.take().ok();
            let mut state = self.lock();
            self.progress(&mut state);
            if let Some(answer) = ready(&mut state) {
                return Ok(answer);
            }
        }
    }
}

impl Inner {
    /// Looks at what has completed; whether there was anything.
    pub(super) fn reap(&self, state: &mut State) -> bool {
        if !matches!(state.phase, Phase::Connected { .. }) {
            return false;
        }
        let Some(endpoint) = state.endpoint.as_mut() else { return false };
        let reaped = endpoint.reap();
        let Some(heard) = state.note(reaped) else { return true };
        if let Some(control) = heard.control {
            state.heard(control);
        }
        heard.any
    }
}

impl Waits for Inner {
    type State = State;

    fn state(&self) -> &Mutex<State> {
        &self.state
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    fn progress(&self, state: &mut State) {
        let managed = self.manage(state);
        let reaped = self.reap(state);
        if managed || reaped {
            self.watchers.notify();
        }
    }

    fn prepare(&self, state: &mut State) -> Vec<PollFd> {
        let mut fds = vec![PollFd::readable(self.channel.fd())];
        if let Some(endpoint) = &state.endpoint
            && matches!(state.phase, Phase::Connected { .. })
        {
            endpoint.arm();
            fds.push(PollFd::readable(endpoint.channel().fd()));
        }
        let before = state.phase;
        self.progress(state);
        // It has just become connected, so its completion queue is not armed.
        if state.phase != before && matches!(state.phase, Phase::Connected { .. }) {
            return self.prepare(state);
        }
        fds
    }

    fn ready(&self, state: &State, events: Ready) -> Ready {
        let asked = |event: Ready, is: bool| if is { events & event } else { 0 };
        let (readable_now, out) = (libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM);
        let end = readable_now | libc::POLLRDHUP;
        let unread = state.endpoint.as_ref().is_some_and(|endpoint| endpoint.unread() > 0);
        match state.phase {
            Phase::Idle | Phase::Bound | Phase::Opening => 0,
            Phase::Listening => asked(readable_now, self.channel.has_events()),
            Phase::Connected { readable, writable } => {
                let room = state.endpoint.as_ref().is_some_and(|endpoint| endpoint.has_room());
                asked(readable_now, unread || !readable)
                    | asked(libc::POLLRDHUP, !readable)
                    | asked(out, !writable || room)
            }
            // Programs take a hang-up for the end of what they can read.
            Phase::Disconnected if unread => asked(end | out, true),
            Phase::Disconnected => asked(end | out, true) | libc::POLLHUP,
            Phase::Failed => asked(end | out, true) | libc::POLLHUP | libc::POLLERR,
            Phase::Closed => libc::POLLNVAL,
        }
    }
}

/// Events as poll(2) has them.
pub type Ready = i16;

/// Something to wait for.
pub enum PollEntry {
    /// A socket of this module.
    Socket(Socket),
    /// A descriptor of the kernel; negative ones are passed over.
    Fd(RawFd),
}

/// Waits until something is ready, at most `timeout_ns` (`None`: for ever). `events` says for each entry what is asked for;
/// the answer goes to `ready`, and the number of entries that are ready is returned.
///
/// # Errors
/// Those of poll(2), `EINTR` among them.
///
/// # Panics
/// Unless there are as many of each.
pub fn poll(
    entries: &[PollEntry],
    events: &[Ready],
    ready: &mut [Ready],
    timeout_ns: Option<u64>,
) -> io::Result<usize> {
    assert!(entries.len() == events.len() && entries.len() == ready.len());
    let begun = now_ns();
    let deadline = timeout_ns.map(|timeout| begun.saturating_add(timeout));
    let polls_until = begun.saturating_add(Settings::get().polling_ns);
    let mut fds = Vec::with_capacity(2 * entries.len() + 1);
    loop {
        let found = look(entries, events, ready, &mut fds)?;
        let now = now_ns();
        if found > 0 || deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(found);
        }
        if now >= polls_until {
            break;
        }
    }
    let watcher = own_watcher()?;
    loop {
        let mut watches = Vec::with_capacity(entries.len());
        fds.clear();
        fds.push(PollFd::readable(watcher.as_raw_fd()));
        let mut found = 0;
        for ((entry, events), ready) in entries.iter().zip(events).zip(&mut *ready) {
            *ready = 0;
            match entry {
                PollEntry::Socket(socket) => {
                    watches.push(Watch::new(socket.watchers(), &watcher));
                    let prepared = socket.arm(*events);
                    fds.extend(prepared.0);
                    *ready = prepared.1;
                    found += usize::from(*ready != 0);
                }
                PollEntry::Fd(fd) => fds.push(PollFd::new(*fd, *events)),
            }
        }
        let now = now_ns();
        let left = deadline.map(|deadline| deadline.saturating_sub(now));
        poll_interruptible(&mut fds, if found > 0 { Some(0) } else { left })?;
        drop(watches);
        watcher.take().ok();
        let found = look(entries, events, ready, &mut fds)?;
        if found > 0 || deadline.is_some_and(|deadline| now_ns() >= deadline) {
            return Ok(found);
        }
    }
}

/// Which entries are ready now.
fn look(
    entries: &[PollEntry],
    events: &[Ready],
    ready: &mut [Ready],
    fds: &mut Vec<PollFd>,
) -> io::Result<usize> {
    fds.clear();
    for ((entry, events), ready) in entries.iter().zip(events).zip(&mut *ready) {
        match entry {
            PollEntry::Socket(socket) => *ready = socket.look(*events),
            PollEntry::Fd(fd) => fds.push(PollFd::new(*fd, *events)),
        }
    }
    if !fds.is_empty() {
        poll_interruptible(fds, Some(0))?;
        let others =
            entries.iter().zip(ready.iter_mut()).filter(|(entry, _)| matches!(entry, PollEntry::Fd(_)));
        for ((_, ready), fd) in others.zip(fds.iter()) {
            *ready = fd.found();
        }
    }
    Ok(ready.iter().filter(|ready| **ready != 0).count())
}
