//! Waiting calls, and [`poll`]. A waiting thread registers its eventfd with each socket, arms the completion
//! queues, and sleeps. A thread that makes progress on a socket wakes all threads that are registered there,
//! because it may have consumed the event that they wait for. Asynchronous tasks (`net`) register a waker
//! instead.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use crate::settings::Settings;
use crate::socket::Socket;
use crate::stream::{Inner, Phase, State};
use sys::{EventFd, PollFd, generation, now_ns, poll_interruptible};

/// The eventfds of the threads that wait for a socket, and the waker of its tasks.
#[derive(Default)]
pub(super) struct Waiters {
    threads: Mutex<Vec<Arc<EventFd>>>,
    tasks: OnceLock<Waker>,
}

impl Waiters {
    /// Wakes all waiting threads and tasks.
    pub(super) fn notify(&self) {
        for eventfd in &*self.threads.lock().unwrap_or_else(PoisonError::into_inner) {
            eventfd.signal(1);
        }
        if let Some(tasks) = self.tasks.get() {
            tasks.wake_by_ref();
        }
    }

    /// Registers the waker of all tasks; the first one stays.
    pub(super) fn set_tasks(&self, tasks: Waker) {
        let _first_stays = self.tasks.set(tasks);
    }

    fn add(&self, eventfd: &Arc<EventFd>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(eventfd));
    }

    fn remove(&self, eventfd: &Arc<EventFd>) {
        let mut waiters = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = waiters.iter().position(|other| Arc::ptr_eq(other, eventfd)) {
            waiters.swap_remove(at);
        }
    }
}

thread_local! {
    /// This thread's eventfd, and the process that created it: a forked child needs its own.
    static OWN: RefCell<Option<(u32, Arc<EventFd>)>> = const { RefCell::new(None) };
}

fn thread_eventfd() -> io::Result<Arc<EventFd>> {
    OWN.with_borrow_mut(|own| {
        let generation = generation();
        if let Some((of, eventfd)) = own
            && *of == generation
        {
            return Ok(Arc::clone(eventfd));
        }
        let eventfd = Arc::new(EventFd::new()?);
        *own = Some((generation, Arc::clone(&eventfd)));
        Ok(eventfd)
    })
}

/// Registers an eventfd with a socket until this is dropped.
struct Registration<'a> {
    waiters: &'a Waiters,
    eventfd: &'a Arc<EventFd>,
}

impl<'a> Registration<'a> {
    fn new(waiters: &'a Waiters, eventfd: &'a Arc<EventFd>) -> Self {
        waiters.add(eventfd);
        Self { waiters, eventfd }
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.waiters.remove(self.eventfd);
    }
}

/// A socket that calls can wait for.
pub(super) trait Waitable {
    /// Protected by the socket's lock.
    type State;

    fn state(&self) -> &Mutex<Self::State>;

    fn waiters(&self) -> &Waiters;

    /// Handles everything that is pending.
    fn progress(&self, state: &mut Self::State);

    /// Arms the socket, makes progress once more, and returns the descriptors that become readable on new
    /// work.
    fn prepare(&self, state: &mut Self::State) -> Vec<PollFd>;

    /// Returns those of `events` for which a call would not wait now; POLLHUP and POLLERR are always
    /// included.
    fn ready(&self, state: &Self::State, events: Ready) -> Ready;

    fn lock(&self) -> MutexGuard<'_, Self::State> {
        self.state().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes progress and returns those of `events` that are ready.
    fn poll_ready(&self, events: Ready) -> Ready {
        let mut state = self.lock();
        self.progress(&mut state);
        self.ready(&state, events)
    }

    /// Arms the socket; returns the descriptors to wait for, and those of `events` that are ready.
    fn arm(&self, events: Ready) -> (Vec<PollFd>, Ready) {
        let mut state = self.lock();
        let fds = self.prepare(&mut state);
        (fds, self.ready(&state, events))
    }

    /// Waits until `ready` returns a value.
    ///
    /// # Errors
    /// `WouldBlock` instead of waiting if `nonblocking`; those of poll(2) except `EINTR`: a signal handler
    /// does not end the wait.
    fn wait_for<T>(
        &self,
        nonblocking: bool,
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
            if nonblocking {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let now = now_ns();
            if now >= *polls_until.get_or_insert(now + Settings::get().polling_ns) {
                break;
            }
        }
        let eventfd = thread_eventfd()?;
        loop {
            let registration = Registration::new(self.waiters(), &eventfd);
            let mut state = self.lock();
            let mut fds = self.prepare(&mut state);
            if let Some(answer) = ready(&mut state) {
                return Ok(answer);
            }
            drop(state);
            fds.push(PollFd::readable(eventfd.as_raw_fd()));
            // A signal ends only this sleep, not the wait. The thread may be cancelled here.
            match poll_interruptible(&mut fds, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            drop(registration);
            // Empty unless another thread signaled it.
            eventfd.take().ok();
            let mut state = self.lock();
            self.progress(&mut state);
            if let Some(answer) = ready(&mut state) {
                return Ok(answer);
            }
        }
    }
}

impl Inner {
    /// Handles all completions; returns true if there was one.
    pub(super) fn reap(&self, state: &mut State) -> bool {
        if !matches!(state.phase, Phase::Connected { .. }) {
            return false;
        }
        let Some(endpoint) = state.endpoint.as_mut() else { return false };
        let reaped = endpoint.reap();
        let Some(reaped) = state.ok_or_fail(reaped) else { return true };
        if let Some(control) = reaped.control {
            state.handle_control(control);
        }
        reaped.any
    }
}

impl Waitable for Inner {
    type State = State;

    fn state(&self) -> &Mutex<State> {
        &self.state
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    fn progress(&self, state: &mut State) {
        let managed = self.manage(state);
        let reaped = self.reap(state);
        if managed || reaped {
            self.waiters.notify();
        }
    }

    fn prepare(&self, state: &mut State) -> Vec<PollFd> {
        let mut fds = vec![PollFd::readable(self.channel.fd())];
        if let Some(endpoint) = &state.endpoint
            && matches!(state.phase, Phase::Connected { .. })
        {
            fds.push(endpoint.arm());
        }
        let before = state.phase;
        self.progress(state);
        // The socket has just connected, so its completion queue is not armed yet.
        if state.phase != before && matches!(state.phase, Phase::Connected { .. }) {
            return self.prepare(state);
        }
        fds
    }

    fn ready(&self, state: &State, events: Ready) -> Ready {
        let requested = |event: Ready, is: bool| if is { events & event } else { 0 };
        let (readable_now, out) = (libc::POLLIN | libc::POLLRDNORM, libc::POLLOUT | libc::POLLWRNORM);
        let end = readable_now | libc::POLLRDHUP;
        let unread = state.endpoint.as_ref().is_some_and(|endpoint| endpoint.unread() > 0);
        match state.phase {
            Phase::Idle | Phase::Bound | Phase::Opening => 0,
            Phase::Listening => requested(readable_now, self.channel.has_events()),
            Phase::Connected { readable, writable } => {
                let room = state.endpoint.as_ref().is_some_and(|endpoint| endpoint.has_room());
                requested(readable_now, unread || !readable)
                    | requested(libc::POLLRDHUP, !readable)
                    | requested(out, !writable || room)
            }
            // Programs stop reading at POLLHUP, so it waits until all data is read.
            Phase::Disconnected if unread => requested(end | out, true),
            Phase::Disconnected => requested(end | out, true) | libc::POLLHUP,
            Phase::Failed => requested(end | out, true) | libc::POLLHUP | libc::POLLERR,
            Phase::Closed => libc::POLLNVAL,
        }
    }
}

/// Events of poll(2).
pub type Ready = i16;

/// An entry of [`poll`].
pub enum PollEntry {
    /// An rsocket.
    Socket(Socket),
    /// A descriptor of the kernel; negative ones are ignored.
    Fd(RawFd),
}

/// Waits until an entry is ready, or `timeout_ns` has passed (`None`: no limit). `events` has the requested
/// events of each entry. Writes the ready events to `ready`, and returns the number of ready entries.
///
/// # Errors
/// Those of poll(2), including `EINTR`.
///
/// # Panics
/// If the three slices differ in length.
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
        let found = poll_entries(entries, events, ready, &mut fds)?;
        let now = now_ns();
        if found > 0 || deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(found);
        }
        if now >= polls_until {
            break;
        }
    }
    let eventfd = thread_eventfd()?;
    loop {
        let mut registrations = Vec::with_capacity(entries.len());
        fds.clear();
        fds.push(PollFd::readable(eventfd.as_raw_fd()));
        let mut found = 0;
        for ((entry, events), ready) in entries.iter().zip(events).zip(&mut *ready) {
            *ready = 0;
            match entry {
                PollEntry::Socket(socket) => {
                    registrations.push(Registration::new(socket.waiters(), &eventfd));
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
        drop(registrations);
        eventfd.take().ok();
        let found = poll_entries(entries, events, ready, &mut fds)?;
        if found > 0 || deadline.is_some_and(|deadline| now_ns() >= deadline) {
            return Ok(found);
        }
    }
}

/// Makes progress on all entries; returns the number of ready ones.
fn poll_entries(
    entries: &[PollEntry],
    events: &[Ready],
    ready: &mut [Ready],
    fds: &mut Vec<PollFd>,
) -> io::Result<usize> {
    fds.clear();
    for ((entry, events), ready) in entries.iter().zip(events).zip(&mut *ready) {
        match entry {
            PollEntry::Socket(socket) => *ready = socket.poll_ready(*events),
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
