//! Queues with a file descriptor: completion channels, asynchronous events, CM events.
//!
//! As the kernel's channels: the descriptor is readable while unread events exist, `get` blocks unless the
//! program put the descriptor into `O_NONBLOCK`, and removing an object removes its unread events.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use sys::EventFd;

/// A queue of events whose length the descriptor's counter mirrors.
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

    /// Whether the program put the descriptor into `O_NONBLOCK`.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.fd.is_nonblocking()
    }

    /// Puts it there.
    pub(crate) fn set_nonblocking(&self) -> std::io::Result<()> {
        self.fd.set_nonblocking()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn push(&self, event: T) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        self.fd.signal(1);
    }

    /// The oldest event; waits for one.
    ///
    /// # Errors
    /// `WouldBlock` when the descriptor is non-blocking and nothing is there; `Interrupted` on a signal.
    pub(crate) fn get(&self) -> std::io::Result<T> {
        loop {
            self.fd.take()?;
            if let Some(event) = self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                return Ok(event);
            }
        }
    }

    /// Looks at the unread events.
    pub(crate) fn for_each(&self, look: impl FnMut(&T)) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(look);
    }

    /// Drops the unread events for which `keep` is false, and their share of the descriptor's counter.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.len();
        queue.retain(|event| keep(event));
        for _ in queue.len()..before {
            // A reader may be faster and finds an empty queue, which `get` takes for a spurious wake-up. It needs the
            // lock for that, so waiting here for the unit it took would be for ever.
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
