//! Waiting for sockets and other descriptors together (rpoll, rselect).

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::{ptr, slice};

use libc::{fd_set, nfds_t, pollfd, timeval};
use roxie::rsocket::{self, PollEntry};

use super::table;
use crate::errno::{minus1, of_io};

pub(crate) unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let fds = match usize::try_from(count) {
        Ok(0) | Err(_) => &mut [][..],
        // SAFETY: the caller passes so many.
        Ok(count) => unsafe { slice::from_raw_parts_mut(fds, count) },
    };
    let timeout_ns = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
    poll(fds, timeout_ns)
}

/// A socket of ours, or a descriptor of the kernel.
pub(super) fn entry(fd: c_int) -> PollEntry {
    table::find(fd).map_or(PollEntry::Fd(fd), |socket| PollEntry::Socket(socket.rsocket.clone()))
}

fn poll(fds: &mut [pollfd], timeout_ns: Option<u64>) -> c_int {
    let entries: Vec<PollEntry> = fds.iter().map(|fd| entry(fd.fd)).collect();
    let events: Vec<i16> = fds.iter().map(|fd| fd.events).collect();
    let mut ready = vec![0; fds.len()];
    match rsocket::poll(&entries, &events, &mut ready, timeout_ns) {
        Ok(found) => {
            for (fd, ready) in fds.iter_mut().zip(ready) {
                fd.revents = ready;
            }
            c_int::try_from(found).unwrap_or(c_int::MAX)
        }
        Err(error) => minus1(of_io(&error)),
    }
}

/// A set of descriptors of select(2), or none.
struct Set(*mut fd_set);

impl Set {
    fn has(&self, fd: c_int) -> bool {
        // SAFETY: the caller's set, and `fd` is below FD_SETSIZE.
        !self.0.is_null() && unsafe { libc::FD_ISSET(fd, self.0) }
    }

    fn clear(&self) {
        // SAFETY: as above; zero bytes are the empty set.
        unsafe {
            if !self.0.is_null() {
                self.0.write(MaybeUninit::zeroed().assume_init());
            }
        }
    }

    /// Adds `fd` if it `is` ready; how many bits that makes.
    fn add(&self, fd: c_int, is: bool) -> c_int {
        if self.0.is_null() || !is {
            return 0;
        }
        // SAFETY: as above.
        unsafe { libc::FD_SET(fd, self.0) };
        1
    }
}

pub(crate) unsafe extern "C" fn rselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    exceptional: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    if !(0..=libc::FD_SETSIZE as c_int).contains(&count) {
        return minus1(libc::EINVAL);
    }
    let sets = [Set(readable), Set(writable), Set(exceptional)];
    let asked = |fd: c_int| {
        let events = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let events =
            sets.iter().zip(events).filter(|(set, _)| set.has(fd)).fold(0, |all, (_, event)| all | event);
        (events != 0).then_some(pollfd { fd, events, revents: 0 })
    };
    let mut fds: Vec<pollfd> = (0..count).filter_map(asked).collect();
    // SAFETY: the caller's time, or NULL.
    let timeout_ns = match unsafe { ptr::NonNull::new(timeout).map(|timeout| timeout.read()) } {
        None => None,
        Some(time) => {
            let (seconds, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
            let (Ok(seconds), Ok(micros)) = (seconds, micros) else { return minus1(libc::EINVAL) };
            Some(seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1000))
        }
    };
    if poll(&mut fds, timeout_ns) < 0 {
        return -1;
    }
    let wanted: Vec<[bool; 3]> = fds.iter().map(|fd| [0, 1, 2].map(|n: usize| sets[n].has(fd.fd))).collect();
    sets.iter().for_each(Set::clear);
    let mut bits = 0;
    for (fd, [read, write, except]) in fds.iter().zip(wanted) {
        let is = |events: i16| fd.revents & events != 0;
        // As select(2) of Linux: the end of a stream and an error are readable, an error is writable.
        bits += sets[0].add(fd.fd, read && is(libc::POLLIN | libc::POLLHUP | libc::POLLERR));
        bits += sets[1].add(fd.fd, write && is(libc::POLLOUT | libc::POLLERR));
        bits += sets[2].add(fd.fd, except && is(libc::POLLPRI));
    }
    bits
}
