//! epoll(7) for sockets and other descriptors (repoll_create, repoll_ctl, repoll_wait), level-triggered.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libc::epoll_event;
use roxie_rsocket::{self as rsocket, PollEntry};
use sys::EventFd;

use super::poll::entry;
use super::socket::{no_buffer, refused};
use super::table::no_fd;
use crate::errno::{done, failed, known_bits, minus1, status_minus1};
use crate::handle::typed;
use roxie::transport::{VerbsError, refuse};

/// Longest time that a thread waits for the members that the set had when it began to wait. A change of the
/// set wakes only one of several waiting threads; the others look at the new members after this time.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A set of descriptors.
struct Epoll {
    /// Its descriptor is the number of the set. Signalled when the set changes, to wake a waiting thread.
    changed: EventFd,
    members: Mutex<BTreeMap<c_int, Member>>,
}

#[derive(Clone, Copy)]
struct Member {
    events: u32,
    data: u64,
}

static EPOLLS: LazyLock<Mutex<HashMap<c_int, Arc<Epoll>>>> = LazyLock::new(Mutex::default);

fn epolls() -> MutexGuard<'static, HashMap<c_int, Arc<Epoll>>> {
    EPOLLS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Epoll {
    fn find(number: c_int) -> Result<Arc<Self>, VerbsError> {
        epolls().get(&number).cloned().ok_or_else(|| no_fd(number))
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<c_int, Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self, op: c_int, fd: c_int, event: Option<&epoll_event>) -> Result<(), VerbsError> {
        let mut members = self.members();
        let known = members.contains_key(&fd);
        match (op, event) {
            (libc::EPOLL_CTL_DEL, _) if known => drop(members.remove(&fd)),
            (libc::EPOLL_CTL_ADD, Some(_)) if known => {
                return Err(refuse!(EEXIST, "epoll set", "fd"; fd as i32; "the set has the descriptor {fd}"));
            }
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _) if !known => {
                return Err(
                    refuse!(ENOENT, "epoll set", "fd"; fd as i32; "the set lacks the descriptor {fd}"),
                );
            }
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => {
                members.insert(fd, Member { events: event.events, data: event.u64 });
            }
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return Err(no_buffer("event")),
            _ => {
                return Err(
                    refuse!(EINVAL, "argument", "op"; op as i32; is "{op}: EPOLL_CTL_ADD, _MOD or _DEL"),
                );
            }
        }
        drop(members);
        self.changed.signal(1);
        Ok(())
    }

    fn wait(&self, found: &mut [epoll_event], timeout: Option<Duration>) -> io::Result<usize> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let members: Vec<(c_int, Member)> =
                self.members().iter().map(|(fd, member)| (*fd, *member)).collect();
            let mut entries: Vec<PollEntry> = members.iter().map(|(fd, _)| entry(*fd)).collect();
            // The lower bits are those of poll(2). A member with EPOLLONESHOT that was reported has none.
            let mut events: Vec<i16> = members.iter().map(|(_, member)| member.events as i16).collect();
            entries.push(PollEntry::Fd(self.changed.as_raw_fd()));
            events.push(libc::POLLIN);
            let left = deadline.map_or(RECHECK_INTERVAL, |deadline| {
                deadline.saturating_duration_since(Instant::now()).min(RECHECK_INTERVAL)
            });
            let mut ready = vec![0; entries.len()];
            rsocket::poll(&entries, &events, &mut ready, Some(left.as_nanos() as u64))?;
            if ready.pop() != Some(0) {
                // Fails if another thread took the signal first.
                self.changed.take().ok();
            }
            let reported = members.iter().zip(ready).filter(|(_, ready)| *ready != 0);
            let mut count = 0;
            for (((fd, member), ready), to) in reported.zip(&mut *found) {
                *to = epoll_event { events: u32::from(ready.cast_unsigned()), u64: member.data };
                count += 1;
                if member.events & libc::EPOLLONESHOT as u32 != 0 {
                    self.members().entry(*fd).and_modify(|member| member.events = 0);
                }
            }
            if count > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(count);
            }
        }
    }
}

pub(crate) unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    known_bits!(minus1; EINVAL, "epoll set", "flags"; flags, libc::O_CLOEXEC | libc::O_NONBLOCK);
    match EventFd::new() {
        Ok(changed) => {
            let number = changed.as_raw_fd();
            epolls().insert(number, Arc::new(Epoll { changed, members: Mutex::default() }));
            number
        }
        Err(error) => minus1(failed!(error, "epoll set", "fd"; "a set cannot be created")),
    }
}

/// Removes a set; returns false if there is none with that number.
pub(super) fn close(number: c_int) -> bool {
    epolls().remove(&number).is_some()
}

pub(crate) unsafe extern "C" fn repoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if fd < 0 {
        return minus1(no_fd(fd));
    }
    if fd == epfd {
        return minus1(
            refuse!(EINVAL, "epoll set", "fd"; fd as i32; is "{fd}, the number of the set itself"),
        );
    }
    // SAFETY: rsocket(7), epoll_ctl(2).
    let event: Option<&epoll_event> = unsafe { typed(event.cast_const()) };
    status_minus1(Epoll::find(epfd).and_then(|epoll| epoll.control(op, fd, event)))
}

pub(crate) unsafe extern "C" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    let Some(room) = usize::try_from(most).ok().filter(|room| *room > 0) else {
        return minus1(
            refuse!(EINVAL, "argument", "maxevents"; most as i32; is "{most}: a number of events"),
        );
    };
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    // SAFETY: rsocket(7), epoll_wait(2); any bytes are valid events.
    let found: Option<&mut [epoll_event]> = unsafe { typed((events, room)) };
    let Some(found) = found else { return minus1(no_buffer("event")) };
    let epoll = done!(minus1; Epoll::find(epfd));
    let waited = epoll.wait(found, timeout);
    waited.map_or_else(|error| minus1(refused(&error)), |count| c_int::try_from(count).unwrap_or(c_int::MAX))
}
