//! Sending and receiving on a stream.

use std::io::{self, IoSlice, IoSliceMut};

use crate::Broken;
use crate::endpoint::Endpoint;
use crate::stream::{Phase, State, Stream};
use crate::wait::Waitable;

/// Flags of a transfer (send(2), recv(2)).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// MSG_DONTWAIT: non-blocking even if the socket is not.
    pub nonblocking: bool,
    /// MSG_PEEK: received data stays unread.
    pub peek: bool,
    /// MSG_WAITALL: waits until the buffers are full.
    pub wait_all: bool,
}

impl Stream {
    /// Sends the parts in order, and returns the number of bytes. Waits until all bytes are posted; a
    /// non-blocking call may send fewer.
    ///
    /// # Errors
    /// `WouldBlock`; `ENOTCONN` without a connection; `EPIPE` after [`shutdown`](Self::shutdown);
    /// `ECONNRESET` if the peer has closed the connection; once, the error that ended it.
    pub fn send(&self, parts: &[IoSlice<'_>], flags: Flags) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        self.transmit(total, flags, |endpoint, done| Some(endpoint.send(parts, done, total)))
    }

    /// Passes `total` bytes to the endpoint while there is room. `step` sends the bytes after the first
    /// `done`, and returns their number: 0 if there is no space now, `None` if there is no destination, which
    /// ends the transfer.
    pub(super) fn transmit(
        &self,
        total: usize,
        flags: Flags,
        mut step: impl FnMut(&mut Endpoint, usize) -> Option<Result<usize, Broken>>,
    ) -> io::Result<usize> {
        let nonblocking = flags.nonblocking || self.is_nonblocking();
        let mut done = 0;
        let outcome = self.0.wait_for(nonblocking, |state| {
            if let Err(errno) = may_send(state)? {
                return Some(Err(errno));
            }
            if let Err(errno) = state.push_iomaps()? {
                return Some(Err(errno));
            }
            while done < total {
                let Some(sent) = step(state.endpoint.as_mut()?, done) else { break };
                match state.ok_or_fail(sent) {
                    Some(0) => return None,
                    Some(sent) => done += sent,
                    None => return Some(Err(state.error.unwrap_or(libc::ECONNRESET))),
                }
            }
            Some(Ok(()))
        });
        finish(outcome, done)
    }

    /// Receives into the parts in order, and returns the number of bytes; 0 if the peer has ended its stream.
    /// Waits for data, with `wait_all` until the parts are full.
    ///
    /// # Errors
    /// `WouldBlock`; `ENOTCONN` without a connection; once, the error that ended it.
    pub fn receive(&self, parts: &mut [IoSliceMut<'_>], flags: Flags) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let nonblocking = flags.nonblocking || self.is_nonblocking();
        let mut done = 0;
        let mut parts = parts;
        let outcome = self.0.wait_for(nonblocking, |state| {
            let endpoint = state.endpoint.as_mut().filter(|endpoint| endpoint.unread() > 0);
            let Some(endpoint) = endpoint.filter(|_| done < total) else {
                // An error that followed the received data is reported by the next call.
                let enough = done == total || (done > 0 && !state.may_receive());
                return if enough { Some(Ok(())) } else { result_without_data(state) };
            };
            let taken = endpoint.peek(parts);
            if flags.peek {
                done = taken;
                return Some(Ok(()));
            }
            IoSliceMut::advance_slices(&mut parts, taken);
            done += taken;
            let announced = endpoint.consume(taken);
            // If the connection has failed, the grant is lost, but the received data counts.
            state.ok_or_fail(announced);
            (done == total || !flags.wait_all).then_some(Ok(()))
        });
        finish(outcome, done)
    }
}

/// Bytes that were transferred take precedence over a later error.
fn finish(outcome: io::Result<Result<(), i32>>, done: usize) -> io::Result<usize> {
    match outcome {
        _ if done > 0 => Ok(done),
        Ok(Ok(())) => Ok(0),
        Ok(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
        Err(error) => Err(error),
    }
}

/// Checks that the state permits sending; `None` means wait.
fn may_send(state: &mut State) -> Option<Result<(), i32>> {
    Some(match state.phase {
        Phase::Opening => return None,
        Phase::Connected { writable: true, .. } => Ok(()),
        Phase::Connected { .. } => Err(libc::EPIPE),
        Phase::Disconnected => Err(libc::ECONNRESET),
        Phase::Failed => Err(state.error.take().unwrap_or(libc::EPIPE)),
        Phase::Idle | Phase::Bound | Phase::Listening => Err(libc::ENOTCONN),
        Phase::Closed => Err(libc::EBADF),
    })
}

impl State {
    /// True if more data can arrive.
    fn may_receive(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Connected { readable: true, .. })
    }
}

/// Returns the result of receiving without data; `None` means wait.
fn result_without_data(state: &mut State) -> Option<Result<(), i32>> {
    match state.phase {
        _ if state.may_receive() => None,
        Phase::Opening | Phase::Connected { .. } | Phase::Disconnected => Some(Ok(())),
        Phase::Failed => Some(state.error.take().map_or(Ok(()), Err)),
        Phase::Idle | Phase::Bound | Phase::Listening => Some(Err(libc::ENOTCONN)),
        Phase::Closed => Some(Err(libc::EBADF)),
    }
}
