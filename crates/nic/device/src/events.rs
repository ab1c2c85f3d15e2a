//! Event queues with a file descriptor: completion channels, asynchronous events, CM events.
//!
//! They behave like the kernel's channels. The descriptor is readable while there are unread events. `get`
//! blocks unless the program set `O_NONBLOCK`. Destroying an object removes its unread events.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use sys::EventFd;
use transport::AsyncEventKind;

/// An event of an object that is not a completion (ibv_get_async_event(3)).
///
/// Every context of a device gets the events of its port. `PortErr`: the netdev went down or lost its
/// carrier; queue pairs retry, and fail when their retries are used up. `PortActive`: it is up and has a
/// carrier again. `GidChange`: an address came or went, one event for each. `DeviceFatal`: the netdev was
/// removed, or moved to another network namespace; all queue pairs have failed, and the device does not come
/// back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AsyncEvent {
    /// The kind of event.
    pub kind: AsyncEventKind,
    /// The object.
    pub element: AsyncElement,
}

/// The object of an [`AsyncEvent`], identified by the cookie of its creator.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AsyncElement {
    /// A completion queue.
    Cq(u64),
    /// A queue pair.
    Qp(u64),
    /// A shared receive queue.
    Srq(u64),
    /// A port number; also in `DeviceFatal`.
    Port(u8),
}

/// An event queue; the descriptor's counter is the length of the queue.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: EventFd,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { fd: EventFd::semaphore()?, queue: Mutex::new(VecDeque::with_capacity(64)) })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// True if `O_NONBLOCK` is set on the descriptor.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.fd.is_nonblocking()
    }

    /// Sets `O_NONBLOCK` on the descriptor.
    pub(crate) fn set_nonblocking(&self) -> std::io::Result<()> {
        self.fd.set_nonblocking()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn push(&self, event: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        self.fd.signal(1);
    }

    /// Returns the oldest event; waits for one.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking and there is no event; `Interrupted` on a signal.
    pub(crate) fn get(&self) -> std::io::Result<T> {
        loop {
            self.fd.take()?;
            if let Some(event) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                return Ok(event);
            }
        }
    }

    /// Calls `look` for each unread event.
    pub(crate) fn for_each(&self, look: impl FnMut(&T)) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(look);
    }

    /// Drops the unread events for which `keep` is false, and reduces the descriptor's counter.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.len();
        queue.retain(|event| keep(event));
        for _ in queue.len()..before {
            // A reader may have reduced the counter already; then it finds an empty queue and waits again.
            // That reader needs the lock, so waiting for the counter here would be a deadlock.
            self.fd.try_take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use sys::{PollFd, poll};

    #[test]
    fn removing_events_makes_the_descriptor_unreadable() {
        let queue = EventQueue::new().unwrap();
        queue.push(1u64);
        queue.push(2);
        queue.push(1);
        queue.retain(|event| *event != 1);
        assert_eq!(queue.get().unwrap(), 2);
        let mut readable = [PollFd::readable(queue.fd())];
        assert_eq!(poll(&mut readable, Some(0)).unwrap(), 0);
    }

    #[test]
    fn removing_events_under_a_waiting_reader_does_not_wait_for_it() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let (done, finished) = mpsc::channel();
        let reader = {
            let (queue, done) = (Arc::clone(&queue), done.clone());
            thread::spawn(move || {
                while queue.get().unwrap() != u32::MAX {}
                done.send(()).unwrap();
            })
        };
        let remover = thread::spawn(move || {
            for n in 0..50_000 {
                queue.push(n);
                queue.retain(|_| false);
            }
            queue.push(u32::MAX);
            done.send(()).unwrap();
        });
        for _ in 0..2 {
            finished.recv_timeout(Duration::from_secs(20)).expect("reader and remover wait for each other");
        }
        reader.join().unwrap();
        remover.join().unwrap();
    }
}
