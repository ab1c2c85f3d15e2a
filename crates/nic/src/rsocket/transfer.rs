//! Sending and receiving.

use std::io::{self, IoSlice, IoSliceMut};

use super::Broken;
use super::endpoint::Endpoint;
use super::stream::{Phase, State, Stream};
use super::wait::Waits;

/// How a transfer is done (send(2), recv(2)).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Flags {
    /// MSG_DONTWAIT: does not wait, whatever the socket says.
    pub nonblocking: bool,
    /// MSG_PEEK: what is received stays there.
    pub peek: bool,
    /// MSG_WAITALL: waits until the buffers are full.
    pub wait_all: bool,
}

impl Stream {
    /// Sends the parts in order, and returns how many bytes of them. Waits until all are on their way, unless it shall not
    /// wait; then it may be fewer.
    ///
    /// # Errors
    /// `WouldBlock`; `ENOTCONN` without a connection; `EPIPE` after [`shutdown`](Self::shutdown); `ECONNRESET` if the peer
    /// has closed it; once, the error that ended it.
    pub fn send(&self, parts: &[IoSlice<'_>], flags: Flags) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        self.transmit(total, flags, |endpoint, done| Some(endpoint.send(parts, done, total)))
    }

    /// Hands `total` bytes to the endpoint, as there is room for them. `step` hands over what comes after so many of them, and
    /// returns how much that was: 0 if there is no room; `None` if there is nowhere to put it, which ends the transfer.
    pub(super) fn transmit(
        &self,
        total: usize,
        flags: Flags,
        mut step: impl FnMut(&mut Endpoint, usize) -> Option<Result<usize, Broken>>,
    ) -> io::Result<usize> {
        let nonblocking = flags.nonblocking || self.is_nonblocking();
        let mut done = 0;
        let outcome = self.0.wait_for(nonblocking.then_some(()), |state| {
            if let Err(errno) = may_send(state)? {
                return Some(Err(errno));
            }
            if let Err(errno) = state.push_iomaps()? {
                return Some(Err(errno));
            }
            while done < total {
                let Some(sent) = step(state.endpoint.as_mut()?, done) else { break };
                match state.note(sent) {
                    Some(0) => return None,
                    Some(sent) => done += sent,
                    None => return Some(Err(state.error.unwrap_or(libc::ECONNRESET))),
                }
            }
            Some(Ok(()))
        });
        finish(outcome, done)
    }

    /// Receives into the parts in order, and returns how many bytes; 0 when the peer will send no more. Waits until there
    /// are some, or as many as there is room for.
    ///
    /// # Errors
    /// `WouldBlock`; `ENOTCONN` without a connection; once, the error that ended it.
    pub fn receive(&self, parts: &mut [IoSliceMut<'_>], flags: Flags) -> io::Result<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let nonblocking = flags.nonblocking || self.is_nonblocking();
        let mut done = 0;
        let mut parts = parts;
        let outcome = self.0.wait_for(nonblocking.then_some(()), |state| {
            let endpoint = state.endpoint.as_mut().filter(|endpoint| endpoint.unread() > 0);
            let Some(endpoint) = endpoint.filter(|_| done < total) else {
                // An error that came after what was received is for the next call.
                let enough = done == total || (done > 0 && !state.may_receive());
                return if enough { Some(Ok(())) } else { at_the_end(state) };
            };
            let taken = endpoint.peek(parts);
            if flags.peek {
                done = taken;
                return Some(Ok(()));
            }
            IoSliceMut::advance_slices(&mut parts, taken);
            done += taken;
            let told = endpoint.consume(taken);
            // Grants that cannot be told are of no use to a peer that is gone; what it sent is.
            state.note(told);
            (done == total || !flags.wait_all).then_some(Ok(()))
        });
        finish(outcome, done)
    }
}

/// What was done counts more than what came after it.
fn finish(outcome: io::Result<Result<(), i32>>, done: usize) -> io::Result<usize> {
    match outcome {
        _ if done > 0 => Ok(done),
        Ok(Ok(())) => Ok(0),
        Ok(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
        Err(error) => Err(error),
    }
}

/// Whether the state lets bytes leave; `None` if that must be waited for.
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
    /// Whether something may still come.
    fn may_receive(&self) -> bool {
        matches!(self.phase, Phase::Opening | Phase::Connected { readable: true, .. })
    }
}

/// What a receiver finds when nothing is there; `None` if something may still come.
fn at_the_end(state: &mut State) -> Option<Result<(), i32>> {
    match state.phase {
        _ if state.may_receive() => None,
        Phase::Opening | Phase::Connected { .. } | Phase::Disconnected => Some(Ok(())),
        Phase::Failed => Some(state.error.take().map_or(Ok(()), Err)),
        Phase::Idle | Phase::Bound | Phase::Listening => Some(Err(libc::ENOTCONN)),
        Phase::Closed => Some(Err(libc::EBADF)),
    }
}
