//! What asynchronous tasks need of a stream: steps that never wait, and the descriptors to wait for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::task::Waker;

use wire::rsocket::Control;

use crate::endpoint::Endpoint;
use crate::stream::{Phase, Stream};
use crate::wait::Waitable;

impl Stream {
    /// Wakes `tasks` whenever a call has made progress; only the first call counts.
    pub fn set_tasks(&self, tasks: Waker) {
        self.0.waiters.set_tasks(tasks);
    }

    /// Returns the descriptor of connection events.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.as_fd()
    }

    /// Calls `with` with the descriptor of completions once the stream has a queue pair.
    pub fn with_completion_fd<T>(&self, with: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let state = self.0.lock();
        state.endpoint.as_ref().map(|endpoint| with(endpoint.completion_fd()))
    }

    /// Discards events that were read, requests new ones, and makes progress.
    pub fn rearm(&self) {
        let mut state = self.0.lock();
        self.0.prepare(&mut state);
    }

    /// Returns the result of a connection attempt of a non-blocking stream.
    ///
    /// # Errors
    /// `WouldBlock` while it is in progress; then as [`connect`](Self::connect).
    pub fn try_connected(&self) -> io::Result<()> {
        let outcome = self.0.wait_for(true, |state| match state.phase {
            Phase::Opening => None,
            Phase::Failed => Some(Err(state.error.take().unwrap_or(libc::ECONNREFUSED))),
            _ => Some(Ok(())),
        });
        outcome?.map_err(io::Error::from_raw_os_error)
    }

    /// Ends sending: tells the peer, and succeeds when the peer's device has acknowledged everything.
    ///
    /// # Errors
    /// `WouldBlock` until then; once, the error that ended the connection.
    pub fn try_finish(&self) -> io::Result<()> {
        let outcome = self.0.wait_for(true, |state| {
            if let Phase::Connected { readable, writable: true } = state.phase {
                let endpoint = state.endpoint.as_mut()?;
                if !endpoint.has_room_for_control() {
                    return None;
                }
                let control = if readable { Control::Shutdown } else { Control::Disconnect };
                let sent = endpoint.control(control);
                state.phase = Phase::Connected { readable, writable: false };
                state.ok_or_fail(sent);
            }
            match state.phase {
                Phase::Connected { readable, .. } => {
                    if !state.endpoint.as_ref().is_none_or(Endpoint::is_idle) {
                        return None;
                    }
                    if !readable {
                        state.disconnected();
                    }
                    Some(Ok(()))
                }
                Phase::Opening => None,
                Phase::Failed => Some(state.error.take().map_or(Ok(()), Err)),
                Phase::Idle | Phase::Bound | Phase::Listening => Some(Err(libc::ENOTCONN)),
                Phase::Disconnected | Phase::Closed => Some(Ok(())),
            }
        });
        outcome?.map_err(io::Error::from_raw_os_error)
    }
}
