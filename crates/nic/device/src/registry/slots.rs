//! Claiming slots. A process takes one for each engine when it joins, and further ones when it has more queue
//! pairs than a slot has numbers.
//!
//! A slot belongs to the process that has bound its abstract name; the kernel frees the name when the process
//! ends. The table of owners in the journal file says which engine a slot belongs to, without a system call
//! for each name. It is a hint: a process that was killed leaves its entries.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use super::domain::SMALL_SLOTS;
use super::group::{Found, SocketSet};
use super::journal::JournalFile;
use super::names::GroupNames;
use super::{DomainConfig, JoinError, SLOTS};
use sys::{Credentials, PollFd, now_ns};

/// A slot beside the first one of an engine.
#[derive(Debug)]
pub struct FurtherSlot {
    /// Its number.
    pub slot: u16,
    /// The socket that receives the packets for its QPNs.
    pub queue: OwnedFd,
}

/// How long to wait for a process that adds pages. It takes some milliseconds of its CPU, for which it waits
/// where a thousand processes start at once.
const GROWING_NS: u64 = 60_000_000_000;
/// How long to wait for one that is stopped, or that is of another user.
const STOPPED_NS: u64 = 2_000_000_000;
/// Interval at which a waiting process checks whether that one is stopped.
const CHECK_NS: u64 = 500_000_000;
/// Pause before each wait: the process may have just taken the name.
const PAUSE: Duration = Duration::from_millis(1);
/// Processes that can wait at once; further ones pause.
const WAITING_MAX: i32 = 4096;

/// Claims a free slot of those that `config` takes with `claim`, which binds the given name; adds pages to
/// the group if there is none.
///
/// # Errors
/// Those of [`SocketSet::grow`]; [`JoinError::Growing`] if another process does not finish adding a page.
pub(super) fn take<T>(
    group: &GroupNames,
    set: &SocketSet,
    journal_file: &JournalFile,
    config: &DomainConfig,
    claim: impl Fn(&str) -> io::Result<T>,
) -> io::Result<(u16, T, OwnedFd)> {
    let start = now_ns();
    loop {
        let pages = set.pages()?;
        let owners = journal_file.owners();
        let there = |slot: &u16| config.takes(*slot) && set.has_slot(*slot, pages);
        let has_owner = |slot: u16| owners.get(usize::from(slot)).is_some_and(Option::is_some);
        // Slots of killed processes come last: their peers may still send.
        let unowned = slots_at_random().filter(there).filter(|slot| !has_owner(*slot));
        let owned = slots_at_random().filter(there).filter(|slot| has_owner(*slot));
        for slot in unowned.chain(owned) {
            let name = match claim(&group.slot(slot)) {
                Ok(name) => name,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
                Err(error) => return Err(error),
            };
            loop {
                match set.queue_of(slot)? {
                    Found::Bound(queue) => return Ok((slot, name, queue)),
                    Found::Incomplete if now_ns() - start > GROWING_NS => {
                        return Err(JoinError::Growing { pid: 0, is_stopped: false }.into());
                    }
                    Found::Incomplete => grow(group, set, 0, config.udp_port, start)?,
                    Found::NoPage => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
                }
            }
        }
        if config.small_qpns && (0..SMALL_SLOTS).all(|slot| set.has_slot(slot, pages)) {
            return Err(JoinError::NoSmallSlot.into());
        }
        grow(group, set, pages, config.udp_port, start)?;
    }
}

/// Adds pages if there are `pages` still; or waits for the process that is adding some, after which the
/// caller looks again. `start`: when the caller began to wait.
fn grow(group: &GroupNames, set: &SocketSet, pages: usize, port: u16, start: u64) -> io::Result<()> {
    let (name, waited_ns) = (group.growth(), now_ns() - start);
    let late = |pid, is_stopped| Err(JoinError::Growing { pid, is_stopped }.into());
    match sys::bind_seqpacket(&name) {
        Ok(lock) => {
            // Those that wait are connected until this process closes its end.
            sys::listen(lock.as_fd(), WAITING_MAX)?;
            return set.grow(pages, port);
        }
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
        Err(_) => {}
    }
    // Any user can take the name, and write to a connection.
    sys::pause(PAUSE);
    let Ok(connection) = sys::connect_seqpacket(&name) else {
        return if waited_ns > GROWING_NS { late(0, false) } else { Ok(()) };
    };
    let Credentials { pid, uid } = sys::peer_credentials(connection.as_fd())?;
    let (was_stopped, is_stranger) = (sys::is_stopped(pid), uid != sys::effective_uid() && uid != 0);
    if waited_ns > if is_stranger { STOPPED_NS } else { GROWING_NS } {
        return late(pid, was_stopped);
    }
    sys::poll(&mut [PollFd::readable(connection.as_raw_fd())], Some(CHECK_NS))?;
    let is_stopped = was_stopped && sys::is_stopped(pid);
    if is_stopped && waited_ns > STOPPED_NS { late(pid, true) } else { Ok(()) }
}

/// Returns all slots in random order.
pub(super) fn slots_at_random() -> impl Iterator<Item = u16> {
    // One number more than there are slots is a power of two, so any odd step reaches all numbers.
    const { assert!((SLOTS + 1).is_power_of_two()) };
    let random = sys::random_u64();
    let (first, step) = (random as u16, (random >> 16) as u16 | 1);
    (0..=SLOTS).map(move |i| i.wrapping_mul(step).wrapping_add(first) & SLOTS).filter(|slot| *slot < SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_order_contains_every_slot_once() {
        let mut slots: Vec<_> = slots_at_random().collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>());
    }
}
