//! Waiting for sockets and other descriptors together (rpoll, rselect).

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{fd_set, nfds_t, pollfd, timeval};
use roxie_rsocket::{self as rsocket, PollEntry};

use super::socket::no_buffer;
use super::table;
use crate::errno::{failed, minus1};
use crate::handle::{FromC, Out, typed};
use roxie::transport::refuse;

pub(crate) unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    // SAFETY: rsocket(7), poll(2).
    let fds: Option<&mut [pollfd]> = unsafe { typed((fds, usize::try_from(count).unwrap_or(0))) };
    let Some(fds) = fds else { return minus1(no_buffer("fds")) };
    let timeout_ns = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
    poll(fds, timeout_ns)
}

/// Returns the rsocket with this number, or else the kernel's descriptor.
pub(super) fn entry(fd: c_int) -> PollEntry {
    table::find(fd).map_or(PollEntry::Fd(fd), |socket| PollEntry::Socket(socket.rsocket.clone()))
}

#[track_caller]
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
        Err(error) => minus1(failed!(error, "rsocket", "fds"; "the sockets cannot be waited for")),
    }
}

/// A set of descriptors of select(2), or none.
struct Set<'a> {
    /// A copy, which stays as it is when the application gets the result.
    asked: Option<fd_set>,
    room: Option<Out<'a, fd_set>>,
}

impl FromC<*mut fd_set> for Set<'_> {
    unsafe fn from_c(set: *mut fd_set) -> Self {
        // SAFETY: NULL or an initialised set.
        let (asked, room): (Option<&fd_set>, Option<Out<fd_set>>) = unsafe { typed((set.cast_const(), set)) };
        Set { asked: asked.copied(), room }
    }
}

impl Set<'_> {
    /// Returns whether the application asks for `fd`, which is below FD_SETSIZE.
    fn has(&self, fd: c_int) -> bool {
        // SAFETY: an initialised set and a number within it.
        self.asked.as_ref().is_some_and(|set| unsafe { libc::FD_ISSET(fd, set) })
    }

    /// Gives the set of ready descriptors to the application; returns their number.
    fn give(&self, ready: impl Iterator<Item = c_int>) -> c_int {
        let Some(room) = &self.room else { return 0 };
        // SAFETY: zero bytes are the empty set.
        let mut set: fd_set = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut count = 0;
        for fd in ready {
            // SAFETY: a number below FD_SETSIZE.
            unsafe { libc::FD_SET(fd, &raw mut set) };
            count += 1;
        }
        room.write(set);
        count
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
        return minus1(refuse!(EINVAL, "argument", "nfds"; count as i32;
            is "{count}, more than FD_SETSIZE or negative"));
    }
    // SAFETY: rsocket(7), select(2).
    let (readable, writable, exceptional, timeout): (Set, Set, Set, Option<&timeval>) =
        unsafe { typed((readable, writable, exceptional, timeout.cast_const())) };
    let sets = [readable, writable, exceptional];
    let asked = |fd: c_int| {
        let events = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let events =
            sets.iter().zip(events).filter(|(set, _)| set.has(fd)).fold(0, |all, (_, event)| all | event);
        (events != 0).then_some(pollfd { fd, events, revents: 0 })
    };
    let mut fds: Vec<pollfd> = (0..count).filter_map(asked).collect();
    let timeout_ns = match timeout {
        None => None,
        Some(time) => {
            let (seconds, micros) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec));
            let (Ok(seconds), Ok(micros)) = (seconds, micros) else {
                let seconds = time.tv_sec as u64;
                return minus1(refuse!(EINVAL, "argument", "timeout"; seconds; is "negative"));
            };
            Some(seconds.saturating_mul(1_000_000_000).saturating_add(micros * 1000))
        }
    };
    if poll(&mut fds, timeout_ns) < 0 {
        return -1;
    }
    // As select(2) of Linux: the end of a stream and an error are readable, an error is writable.
    let causes = [libc::POLLIN | libc::POLLHUP | libc::POLLERR, libc::POLLOUT | libc::POLLERR, libc::POLLPRI];
    let given = sets.iter().zip(causes).map(|(set, causes)| {
        let ready: Vec<c_int> =
            fds.iter().filter(|fd| fd.revents & causes != 0 && set.has(fd.fd)).map(|fd| fd.fd).collect();
        set.give(ready.into_iter())
    });
    given.sum()
}
