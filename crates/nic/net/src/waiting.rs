//! Waiting tasks. All tasks of one object share one waker: an event of any descriptor, and any progress of
//! another task, wakes all of them. Each tries its operation again.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::reactor::Reactor;

/// Descriptors of one object: connection events and completions.
const SOURCES: usize = 2;

/// What a task waits for. A task that reads and writes has a registration for each.
#[derive(Clone, Copy, Debug)]
pub(super) enum Interest {
    Read,
    Write,
}

/// The wakers of the waiting tasks, by [`Interest`].
#[derive(Default)]
struct Tasks([Mutex<Vec<Waker>>; 2]);

impl Tasks {
    fn add(&self, interest: Interest, waker: &Waker) {
        let mut wakers = self.0[interest as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }

    fn remove(&self, interest: Interest, waker: &Waker) {
        let mut wakers = self.0[interest as usize].lock().unwrap_or_else(PoisonError::into_inner);
        wakers.retain(|other| !other.will_wake(waker));
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        for wakers in &self.0 {
            let woken = mem::take(&mut *wakers.lock().unwrap_or_else(PoisonError::into_inner));
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

/// The tasks that wait for an object, and its registered descriptors.
pub(super) struct Waiting<R: Reactor> {
    tasks: Arc<Tasks>,
    sources: [OnceLock<R::Source>; SOURCES],
}

impl<R: Reactor> Waiting<R> {
    pub(super) fn new() -> Self {
        Self { tasks: Arc::default(), sources: [const { OnceLock::new() }; SOURCES] }
    }

    /// Returns the waker of all waiting tasks.
    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.tasks))
    }

    /// Registers descriptor number `index` of the object, once.
    ///
    /// # Errors
    /// `EMFILE`; those of [`Reactor::register`].
    pub(super) fn watch(&self, index: usize, fd: BorrowedFd<'_>) -> io::Result<()> {
        if self.sources[index].get().is_none() {
            let _watched_already = self.sources[index].set(R::register(fd.try_clone_to_owned()?)?);
        }
        Ok(())
    }

    fn watched(&self) -> usize {
        self.sources.iter().filter(|source| source.get().is_some()).count()
    }

    /// Makes one attempt. If it would block, wakes the task when there may be progress. `arm` discards the
    /// events that were read and requests new ones; it may [`watch`](Self::watch) another descriptor.
    pub(super) fn poll<T>(
        &self,
        cx: &mut Context<'_>,
        interest: Interest,
        mut attempt: impl FnMut() -> io::Result<T>,
        mut arm: impl FnMut() -> io::Result<()>,
    ) -> Poll<io::Result<T>> {
        let blocked = |outcome: &io::Result<T>| {
            outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        // The attempt may wake the waiting tasks; this one is running.
        self.tasks.remove(interest, cx.waker());
        let outcome = attempt();
        if !blocked(&outcome) {
            return Poll::Ready(outcome);
        }
        self.tasks.add(interest, cx.waker());
        let shared = self.waker();
        let mut shared = Context::from_waker(&shared);
        loop {
            // An event after this makes the descriptor readable again, so `arm` may discard earlier ones.
            for source in self.sources.iter().filter_map(OnceLock::get) {
                while let Poll::Ready(readable) = R::poll_readable(source, &mut shared) {
                    readable?;
                }
            }
            let watched = self.watched();
            arm()?;
            if self.watched() == watched {
                break;
            }
        }
        let outcome = attempt();
        if blocked(&outcome) { Poll::Pending } else { Poll::Ready(outcome) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wake_reaches_every_waiting_task_once() {
        let tasks = Arc::new(Tasks::default());
        let counts: [Arc<Count>; 2] = Default::default();
        let wakers = counts.clone().map(Waker::from);
        tasks.add(Interest::Read, &wakers[0]);
        tasks.add(Interest::Read, &wakers[0]);
        tasks.add(Interest::Read, &wakers[1]);
        tasks.add(Interest::Write, &wakers[1]);
        tasks.remove(Interest::Write, &wakers[1]);
        Waker::from(Arc::clone(&tasks)).wake_by_ref();
        assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [1, 1]);
        Waker::from(tasks).wake();
        assert_eq!(counts.each_ref().map(|count| count.0.load(Ordering::Relaxed)), [1, 1]);
    }
}
