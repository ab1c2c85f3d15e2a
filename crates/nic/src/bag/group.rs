//! The socket group and the bag it lives in.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::program::STEERING;
use super::{JoinError, SLOTS};
use crate::port::{RECEIVE_BUFFER, receive_socket};
use crate::sys::{self, DescriptorLimit, Opt, SockAddr};

/// GSI queue and slots. One SCM_RIGHTS message carries 253 descriptors at most.
const GROUP_LEN: usize = 1 + SLOTS as usize;
/// Index of the GSI queue.
const GSI: usize = 0;

/// Founds the group on `port` and returns the bag. The caller holds the boot lock.
///
/// # Errors
/// Kind `AddrInUse` if anybody has the port, even with SO_REUSEPORT.
pub(super) fn found(port: u16) -> io::Result<OwnedFd> {
    let _limit = DescriptorLimit::raise();
    // A process of the same user could have the port with SO_REUSEPORT, and our sockets would join its group at
    // the wrong indices. A socket without that option finds out.
    let (probe, v6) = receive_socket()?;
    let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let address = SockAddr::ip(any, port, 0);
    sys::bind(probe.as_fd(), &address)?;
    drop(probe);
    let mut sockets = Vec::with_capacity(GROUP_LEN);
    for index in 0..GROUP_LEN {
        let (socket, _) = receive_socket()?;
        sys::set_opt(socket.as_fd(), Opt::REUSE_PORT, 1)?;
        if index == GSI {
            // Before bind, so that there is no moment without it.
            sys::attach_reuseport_filter(socket.as_fd(), &STEERING)?;
        }
        sys::bind(socket.as_fd(), &address)?;
        if index != GSI {
            silence(socket.as_fd())?;
        }
        sockets.push(socket);
    }
    let (into, bag) = sys::seqpacket_pair()?;
    let borrowed: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    sys::send_record(into.as_fd(), b"bag", &[], &borrowed)?;
    Ok(bag)
}

/// Looks into the bag for the GSI socket and the one of `slot`.
///
/// # Errors
/// [`JoinError::TooFewDescriptors`]; `EPROTO` if this is no bag.
pub(super) fn peek(bag: BorrowedFd<'_>, slot: u8) -> io::Result<(OwnedFd, OwnedFd)> {
    let _limit = DescriptorLimit::raise();
    let mut sockets = Vec::with_capacity(GROUP_LEN);
    let received = sys::recv_record(bag, &mut [0; 16], &mut sockets, true)?;
    if received.truncated {
        return Err(JoinError::TooFewDescriptors.into());
    }
    if sockets.len() != GROUP_LEN {
        return Err(io::Error::from_raw_os_error(libc::EPROTO));
    }
    let queue = sockets.swap_remove(1 + usize::from(slot));
    Ok((sockets.swap_remove(0), queue))
}

/// A slot's socket begins to receive for a process that has claimed it; what was meant for others is thrown away.
pub(super) fn open(queue: BorrowedFd<'_>) -> io::Result<()> {
    sys::discard_waiting(queue);
    sys::set_receive_buffer(queue, RECEIVE_BUFFER)
}

/// Nobody reads from this socket: it takes one datagram at most, instead of a full buffer of kernel memory for whoever
/// sends to a slot without a process.
pub(super) fn silence(queue: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel makes the least it allows of 0.
    sys::set_receive_buffer(queue, 0)?;
    sys::discard_waiting(queue);
    Ok(())
}
