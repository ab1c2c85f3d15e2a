//! Queues with a file descriptor: completion channels, asynchronous events, CM events.
//!
//! As the kernel's channels: the descriptor is readable while unread events exist, `get` blocks unless the
//! program put the descriptor into `O_NONBLOCK`, and removing an object removes its unread events.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use crate::sys::{EventFd, PollFd, poll};

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

    /// Drops the unread events for which `keep` is false, and their share of the descriptor's counter.
    pub(crate) fn retain(&self, mut keep: impl FnMut(&T) -> bool) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let before = queue.len();
        queue.retain(|event| keep(event));
        for _ in queue.len()..before {
            take_if_readable(&self.fd);
        }
    }
}

/// Lowers the counter without waiting, whatever the application made of the descriptor's flags.
fn take_if_readable(fd: &EventFd) {
    let mut readable = [PollFd::readable(fd.as_raw_fd())];
    if poll(&mut readable, Some(0)).is_ok_and(|n| n == 1) {
        // Losing the race to a reader leaves him an empty queue, which `get` takes for a spurious wake-up.
        let _unit = fd.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
