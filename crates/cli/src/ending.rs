//! Signals that end a command in an orderly way: it still writes or shows its results.

use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};

use crate::failure::{During, Outcome};

/// Exit code of a command that a signal has ended, as of SIGINT in shells.
pub const STOPPED: u8 = 130;

/// Signals that are queued for this thread, and threads it starts, instead of ending them.
#[derive(Debug)]
pub struct Ending(SignalFd);

impl Ending {
    /// Blocks these signals and waits for them.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn by(signals: &[Signal]) -> Outcome<Self> {
        let mut set = SigSet::empty();
        set.extend(signals.iter().copied());
        set.thread_block().during("signals")?;
        SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map(Self).during("signals")
    }

    /// Whether a signal has arrived that [`has_come`](Self::has_come) has not reported.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Whether a signal has arrived since the last call; does not wait.
    ///
    /// # Errors
    /// Those of read(2), which are not expected here.
    pub fn has_come(&self) -> nix::Result<bool> {
        Ok(self.next()?.is_some())
    }

    /// Takes the next signal that has arrived; does not wait.
    ///
    /// # Errors
    /// As [`has_come`](Self::has_come).
    pub fn next(&self) -> nix::Result<Option<siginfo>> {
        self.0.read_signal()
    }
}

impl AsFd for Ending {
    /// Readable after a signal has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_told_once_and_ends_nothing() {
        let ending = Ending::by(&[Signal::SIGUSR1]).unwrap();
        assert!(!ending.has_come().unwrap());
        // Sent to this thread only: other threads have not blocked the signal.
        nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
        assert!(ending.is_due() && ending.is_due());
        assert!(ending.has_come().unwrap());
        assert!(!ending.is_due() && !ending.has_come().unwrap());
    }
}
