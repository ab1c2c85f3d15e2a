//! The reuseport group, and the socket set that contains the group and the journal file.
//!
//! The first socket of the group is the GSI queue. The others are in *pages*: page p has the sockets of the
//! slots with positions 64 p and following. The position of a slot depends on a random key of the group, so
//! the slots of the first page are spread over all QPNs, and a QPN of one process tells nothing about the
//! slots of others.
//!
//! The socket set is a pair of Unix sockets, of which every member holds both ends. Its queue has one record
//! per page, with the sockets of the page. The records are never taken out of the queue, only peeked at: so
//! no socket of the group closes while one member lives. The kernel selects a socket by its number in the
//! group, and would renumber the group if one closed.
//!
//! A member that finds no free slot adds a page under a lock (`slots.rs`). It queues the record before it
//! binds the sockets, one after another, to the port. If it dies in between, the next holder of the lock
//! binds the rest.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::journal::JournalFile;
use super::key::{Key, PAGE_SLOTS};
use super::program::steering;
use super::{JoinError, SLOTS};
use crate::port::{RECEIVE_BUFFER, receive_socket};
use sys::{DescriptorLimit, Opt, SockAddr};

/// Pages of a full group. The position of the number behind the last slot stays unused.
pub(super) const PAGES_MAX: usize = (SLOTS as usize + 1) / PAGE_SLOTS;
/// Pages that are added at once: 5 ms of a process. With half of it, a thousand processes that start at once
/// wait five times for more; with the double a process that needs one slot may take twice as long.
const NEW_PAGES_MAX: usize = 8;
/// Pages of a new group of several users: sockets of one user only can share a port, so the others
/// cannot add a page.
const SHARED_PAGES: usize = 4;
/// The GSI queue and the journal file come before and behind the sockets of page 0.
const FIRST_PAGE_LEN: usize = PAGE_SLOTS + 2;

/// Length of the record of a page: `u32` magic, `u32` number, and the key (`u32` factor, `u32` summand).
const RECORD_LEN: usize = 16;
const MAGIC: u32 = u32::from_le_bytes(*b"RXG1");
/// Peeks at a page before giving up: another process may move the offset between this process's two calls.
const PEEKS_MAX: usize = 1000;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct SocketSet {
    /// The end with the queue of the records.
    queue: OwnedFd,
    /// The end that adds records.
    into: OwnedFd,
    key: Key,
}

/// What all members share besides the slots.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) gsi: OwnedFd,
    pub(super) journal_file: JournalFile,
}

/// What a look for the socket of a slot finds.
#[derive(Debug)]
pub(super) enum Found {
    /// The socket.
    Bound(OwnedFd),
    /// The page exists, but a process has not bound all of its sockets yet.
    Incomplete,
    /// The page does not exist.
    NoPage,
}

impl SocketSet {
    /// Creates the group on `port`. Of several processes that call this at once one succeeds. `is_shared`:
    /// other users may join.
    ///
    /// # Errors
    /// Kind `AddrInUse` if another socket has the port, even with SO_REUSEPORT;
    /// [`JoinError::TooManyInFlight`].
    pub(super) fn create(port: u16, is_shared: bool) -> io::Result<(SocketSet, Common)> {
        let _limit = DescriptorLimit::raise();
        // The first socket binds without SO_REUSEPORT, so it fails if any socket has the port: another
        // program's, or that of another process in this place. The option then lets the others join.
        let (gsi, v6) = receive_socket()?;
        let address = any_address(v6, port);
        sys::bind(gsi.as_fd(), &address)?;
        sys::set_opt(gsi.as_fd(), Opt::REUSE_PORT, 1)?;
        let (into, queue) = sys::seqpacket_pair()?;
        let set = SocketSet { queue, into, key: Key::random() };
        let journal_file = JournalFile::new()?;
        let sockets = page_sockets()?;
        let mut passed: Vec<BorrowedFd<'_>> = vec![gsi.as_fd()];
        passed.extend(sockets.iter().map(AsFd::as_fd));
        passed.push(journal_file.file().as_fd());
        set.put(0, &passed)?;
        sys::bind(sockets[0].as_fd(), &address)?;
        // Now there is a group. A datagram that arrived without the program is discarded by the next owner of
        // its slot.
        sys::attach_reuseport_filter(gsi.as_fd(), &steering(set.key))?;
        bind_rest(&sockets, &address)?;
        if is_shared {
            for page in 1..SHARED_PAGES {
                set.add_page(page, &address)?;
            }
        }
        Ok((set, Common { gsi, journal_file }))
    }

    /// Opens the socket set of a group from its two ends.
    ///
    /// # Errors
    /// [`JoinError::TooFewDescriptors`]; `EPROTO` if it is not a socket set.
    pub(super) fn open(ends: [OwnedFd; 2]) -> io::Result<(SocketSet, Common)> {
        let [queue, into] = ends;
        let (key, mut fds) = peek(queue.as_fd(), 0)?;
        if fds.len() != FIRST_PAGE_LEN {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        // From the end, so that the other index stays valid.
        let journal_file = JournalFile::from(fds.swap_remove(FIRST_PAGE_LEN - 1));
        Ok((SocketSet { queue, into, key }, Common { gsi: fds.swap_remove(0), journal_file }))
    }

    /// Both ends, as [`open`](Self::open) takes them.
    pub(super) fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.queue.as_fd(), self.into.as_fd()]
    }

    /// The number of pages.
    pub(super) fn pages(&self) -> io::Result<usize> {
        Ok(sys::queued_bytes(self.queue.as_fd())? / RECORD_LEN)
    }

    /// True if the slot is in one of the first `pages` pages.
    pub(super) fn has_slot(&self, slot: u16, pages: usize) -> bool {
        self.key.page(slot) < pages
    }

    /// Returns the socket of a slot.
    ///
    /// # Errors
    /// [`JoinError::TooFewDescriptors`].
    pub(super) fn queue_of(&self, slot: u16) -> io::Result<Found> {
        let page = self.key.page(slot);
        if page >= self.pages()? {
            return Ok(Found::NoPage);
        }
        let mut sockets = self.sockets(page)?;
        let place = usize::from(self.key.position(slot)) % PAGE_SLOTS;
        // They are bound in this order.
        let is_complete = sys::local_port(sockets[PAGE_SLOTS - 1].as_fd())? != 0;
        Ok(if is_complete { Found::Bound(sockets.swap_remove(place)) } else { Found::Incomplete })
    }

    /// Completes the last page. If there are `pages` still, doubles their number, by [`NEW_PAGES_MAX`] at
    /// most. The caller holds the lock.
    ///
    /// # Errors
    /// [`JoinError::Full`], [`JoinError::OtherOwner`], [`JoinError::TooManyInFlight`],
    /// [`JoinError::TooFewDescriptors`].
    pub(super) fn grow(&self, pages: usize, port: u16) -> io::Result<()> {
        let _limit = DescriptorLimit::raise();
        let there = self.pages()?;
        let last =
            self.sockets(there.checked_sub(1).ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTO))?)?;
        let owner = sys::socket_owner(last[0].as_fd())?;
        let address = any_address(sys::is_ipv6(last[0].as_fd())?, port);
        bind_rest(&last, &address)?;
        // A process with few descriptors has none for these and for those of another page.
        drop(last);
        if there > pages {
            return Ok(());
        }
        if there >= PAGES_MAX {
            return Err(JoinError::Full.into());
        }
        if owner != sys::effective_uid() {
            return Err(JoinError::OtherOwner { slots: there * PAGE_SLOTS, owner }.into());
        }
        for page in there..(2 * there).min(there + NEW_PAGES_MAX).min(PAGES_MAX) {
            // Otherwise the members could not pass the socket set on, and no process could join any more.
            let in_flight = FIRST_PAGE_LEN + page * PAGE_SLOTS;
            let is_limited = sys::effective_uid() != 0 && in_flight as u64 > sys::descriptor_limit();
            let added = if is_limited {
                Err(JoinError::TooManyInFlight.into())
            } else {
                self.add_page(page, &address)
            };
            // Only the last page may be incomplete. One more is enough for the caller.
            match added {
                Err(error) if page == there => return Err(error),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn add_page(&self, page: usize, address: &SockAddr) -> io::Result<()> {
        let sockets = page_sockets()?;
        let passed: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
        self.put(page, &passed)?;
        bind_rest(&sockets, address)
    }

    /// Adds a page and binds only the first `bound` of its sockets.
    #[cfg(test)]
    pub(super) fn add_unfinished_page(&self, page: usize, bound: usize, port: u16) -> io::Result<()> {
        let sockets = page_sockets()?;
        self.put(page, &sockets.iter().map(AsFd::as_fd).collect::<Vec<_>>())?;
        let address = any_address(sys::is_ipv6(sockets[0].as_fd())?, port);
        sockets[..bound].iter().try_for_each(|socket| sys::bind(socket.as_fd(), &address))
    }

    /// Queues the record of a page.
    fn put(&self, page: usize, passed: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut record = [0; RECORD_LEN];
        let words = [MAGIC, page as u32, self.key.factor.into(), self.key.summand.into()];
        for (bytes, word) in record.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        sys::send_record(self.into.as_fd(), &record, &[], passed).map_err(|error| {
            match error.raw_os_error() {
                Some(libc::ETOOMANYREFS) => JoinError::TooManyInFlight.into(),
                _ => error,
            }
        })
    }

    /// The sockets of a page that exists.
    fn sockets(&self, page: usize) -> io::Result<Vec<OwnedFd>> {
        let (key, mut fds) = peek(self.queue.as_fd(), page)?;
        let wanted = if page == 0 { FIRST_PAGE_LEN } else { PAGE_SLOTS };
        if key != self.key || fds.len() != wanted {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        if page == 0 {
            fds.pop();
            fds.remove(0);
        }
        Ok(fds)
    }
}

/// Returns the key and the descriptors of a page that exists.
fn peek(queue: BorrowedFd<'_>, page: usize) -> io::Result<(Key, Vec<OwnedFd>)> {
    let _limit = DescriptorLimit::raise();
    for _ in 0..PEEKS_MAX {
        sys::set_peek_offset(queue, (page * RECORD_LEN) as i32)?;
        let (mut record, mut fds) = ([0; RECORD_LEN], Vec::with_capacity(FIRST_PAGE_LEN));
        let received = match sys::recv_record(queue, &mut record, &mut fds, true) {
            // Another process has moved the offset to the end.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            received => received?,
        };
        let word = |at: usize| record[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if received.len != RECORD_LEN || word(0) != MAGIC {
            break;
        }
        if word(4) as usize != page {
            continue;
        }
        if received.truncated {
            return Err(JoinError::TooFewDescriptors.into());
        }
        let (factor, summand) = (word(8) as u16 & Key::MASK, word(12) as u16 & Key::MASK);
        return Ok((Key { factor, summand }, fds));
    }
    Err(io::Error::from_raw_os_error(libc::EPROTO))
}

/// Creates the sockets of a page, not bound.
fn page_sockets() -> io::Result<Vec<OwnedFd>> {
    let new = |_| {
        let (socket, _) = receive_socket()?;
        sys::set_opt(socket.as_fd(), Opt::REUSE_PORT, 1)?;
        disable_queue(socket.as_fd())?;
        Ok(socket)
    };
    (0..PAGE_SLOTS).map(new).collect()
}

/// Binds the sockets of a page that are not bound yet, in order.
fn bind_rest(sockets: &[OwnedFd], address: &SockAddr) -> io::Result<()> {
    // The last one is the last that was bound.
    if sockets.last().is_none_or(|last| sys::local_port(last.as_fd()).is_ok_and(|port| port != 0)) {
        return Ok(());
    }
    for socket in sockets {
        if sys::local_port(socket.as_fd())? == 0 {
            sys::bind(socket.as_fd(), address)?;
        }
    }
    Ok(())
}

fn any_address(v6: bool, port: u16) -> SockAddr {
    let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    SockAddr::ip(any, port, 0)
}

/// Prepares a slot's socket for its new owner, and discards the datagrams that are queued.
pub(super) fn enable_queue(queue: BorrowedFd<'_>) -> io::Result<()> {
    // The last owner may have joined multicast groups.
    sys::hear_all_groups(queue, false)?;
    sys::discard_waiting(queue);
    sys::set_receive_buffer(queue, RECEIVE_BUFFER)
}

/// Shrinks the buffer of a socket that has no reader to one datagram. Otherwise a peer that sends to an
/// unowned slot would fill a whole receive buffer of kernel memory.
pub(super) fn disable_queue(queue: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel raises 0 to its minimum.
    sys::set_receive_buffer(queue, 0)?;
    sys::discard_waiting(queue);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_position_of_its_own() {
        let keys = [Key { factor: 1, summand: 0 }, Key { factor: 0xfff, summand: 0xfff }, Key::random()];
        for key in keys {
            let mut positions: Vec<_> = (0..=SLOTS).map(|slot| key.position(slot)).collect();
            positions.sort_unstable();
            assert!(positions.into_iter().eq(0..=SLOTS), "{key:?}");
        }
    }
}
