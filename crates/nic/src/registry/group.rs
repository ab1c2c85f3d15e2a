//! The reuseport group, and the socket set that contains the group and the disconnect journal.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::journal::JournalFile;
use super::program::STEERING;
use super::{JoinError, SLOTS};
use crate::port::{RECEIVE_BUFFER, receive_socket};
use sys::{DescriptorLimit, Opt, SockAddr};

/// GSI queue and slots.
const GROUP_LEN: usize = 1 + SLOTS as usize;
/// The group, then the journal file: the largest number of descriptors that one SCM_RIGHTS message carries.
const SET_LEN: usize = GROUP_LEN + 1;
/// Index of the GSI queue.
const GSI: usize = 0;

/// Creates the group on `port` and returns the socket set. Of several processes that call this at once one
/// succeeds.
///
/// # Errors
/// Kind `AddrInUse` if another socket has the port, even with SO_REUSEPORT.
pub(super) fn create(port: u16) -> io::Result<OwnedFd> {
    let _limit = DescriptorLimit::raise();
    // The first socket binds without SO_REUSEPORT, so it fails if any socket has the port: another program's,
    // or that of another process in this place. The option then lets the others join.
    let (gsi, v6) = receive_socket()?;
    let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let address = SockAddr::ip(any, port, 0);
    sys::bind(gsi.as_fd(), &address)?;
    sys::set_opt(gsi.as_fd(), Opt::REUSE_PORT, 1)?;
    let mut sockets = Vec::with_capacity(GROUP_LEN);
    sockets.push(gsi);
    for index in 1..GROUP_LEN {
        let (socket, _) = receive_socket()?;
        sys::set_opt(socket.as_fd(), Opt::REUSE_PORT, 1)?;
        sys::bind(socket.as_fd(), &address)?;
        if index == 1 {
            // Now there is a group. A datagram that arrived without the filter is discarded below.
            sys::attach_reuseport_filter(sockets[GSI].as_fd(), &STEERING)?;
        }
        disable_queue(socket.as_fd())?;
        sockets.push(socket);
    }
    let (into, socket_set) = sys::seqpacket_pair()?;
    let journal_file = JournalFile::new()?;
    let mut borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    borrowed.push(journal_file.file().as_fd());
    sys::send_record(into.as_fd(), b"sockets", &[], &borrowed)?;
    Ok(socket_set)
}

/// What a member takes out of the socket set.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) gsi: OwnedFd,
    /// The socket of one slot.
    pub(super) queue: OwnedFd,
    pub(super) journal_file: JournalFile,
}

/// Returns the GSI socket, the socket of `slot`, and the journal file of the socket set.
///
/// # Errors
/// [`JoinError::TooFewDescriptors`]; `EPROTO` if the descriptor is not a socket set.
pub(super) fn peek(socket_set: BorrowedFd<'_>, slot: u8) -> io::Result<Contents> {
    let _limit = DescriptorLimit::raise();
    let mut contents = Vec::with_capacity(SET_LEN);
    let received = sys::recv_record(socket_set, &mut [0; 16], &mut contents, true)?;
    if received.truncated {
        return Err(JoinError::TooFewDescriptors.into());
    }
    if contents.len() != SET_LEN {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    // From the end, so that the other indices stay valid.
    let journal_file = JournalFile::from(contents.swap_remove(GROUP_LEN));
    let queue = contents.swap_remove(1 + usize::from(slot));
    Ok(Contents { gsi: contents.swap_remove(GSI), queue, journal_file })
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
