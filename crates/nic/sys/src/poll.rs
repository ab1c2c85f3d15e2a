//! Waiting for descriptors with nanosecond timeouts (ppoll(2)).

use std::io;
use std::os::fd::RawFd;

use super::call;

/// A descriptor to wait for, and the events found on it.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct PollFd(libc::pollfd);

impl PollFd {
    /// Waits for `fd` to become readable.
    #[must_use]
    pub fn readable(fd: RawFd) -> PollFd {
        PollFd(libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    /// Waits for `fd` to become writable.
    #[must_use]
    pub fn writable(fd: RawFd) -> PollFd {
        PollFd(libc::pollfd { fd, events: libc::POLLOUT, revents: 0 })
    }

    /// Waits for `events` of poll(2); a negative `fd` is skipped.
    #[must_use]
    pub fn new(fd: RawFd, events: i16) -> PollFd {
        PollFd(libc::pollfd { fd, events, revents: 0 })
    }

    /// The events that the last [`poll`] found.
    #[must_use]
    pub fn found(&self) -> i16 {
        self.0.revents
    }

    /// Whether the last [`poll`] found a requested event, an error, or a hang-up.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.revents != 0
    }

    /// Whether the last [`poll`] found that the descriptor is not open.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.revents & libc::POLLNVAL != 0
    }
}

/// Waits until one of `fds` is ready, at most `timeout_ns` (`None`: no limit). Returns how many are
/// ready; an interruption by a signal counts as none.
///
/// # Errors
/// `EINVAL` (more descriptors than RLIMIT_NOFILE), `ENOMEM`.
pub fn poll(fds: &mut [PollFd], timeout_ns: Option<u64>) -> io::Result<usize> {
    // SAFETY: `PollFd` is a transparent pollfd, `poll_by` gives their number and a time to overwrite.
    let polled = poll_by(fds, timeout_ns, |fds, count, limit| unsafe { call::ppoll(fds, count, limit) });
    match polled {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        result => result,
    }
}

/// Like [`poll`], but an interruption by a signal is an error, and the calling thread may be cancelled
/// (pthread_cancel(3)).
///
/// # Errors
/// `EINTR`, and those of [`poll`].
pub fn poll_interruptible(fds: &mut [PollFd], timeout_ns: Option<u64>) -> io::Result<usize> {
    // SAFETY: as in `poll`.
    poll_by(fds, timeout_ns, |fds, count, limit| unsafe {
        libc::ppoll(fds, count as libc::nfds_t, limit, std::ptr::null())
    })
}

fn poll_by(
    fds: &mut [PollFd],
    timeout_ns: Option<u64>,
    call: impl FnOnce(*mut libc::pollfd, usize, *mut libc::timespec) -> libc::c_int,
) -> io::Result<usize> {
    if timeout_ns != Some(0) {
        crate::may_wait();
    }
    let mut limit = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let limit = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let ready = call(fds.as_mut_ptr().cast(), fds.len(), limit);
    usize::try_from(ready).map_err(|_| {
        let error = io::Error::last_os_error();
        for fd in fds {
            fd.0.revents = 0;
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EventFd;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_the_ready_descriptor_is_reported() {
        let (quiet, loud) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let mut fds = [PollFd::readable(quiet.as_raw_fd()), PollFd::readable(loud.as_raw_fd())];
        assert_eq!(poll(&mut fds, Some(1000)).unwrap(), 0);
        loud.signal(1);
        assert_eq!(poll(&mut fds, None).unwrap(), 1);
        assert!(!fds[0].is_ready() && fds[1].is_ready());
    }
}
