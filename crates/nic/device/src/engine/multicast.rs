//! Multicast groups: which queue pairs of this process receive from which group (ibv_attach_mcast(3), Annex
//! A17.9.2).
//!
//! A socket of this process joins each group, so the kernel speaks IGMP and MLD, and gives a copy of each
//! packet to every process that listens, on the sending host as well. The membership ends when the kernel
//! closes the socket, however the process ends. Within the process a packet goes to each queue pair of its
//! group.

use std::io;
use std::mem;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use transport::refusal::{Os, ip_halves, ip_of};
use transport::{VerbsError, refuse};
use wire::Gid;

use crate::qp_numbers::QpIndex;

/// Largest number of attachments of queue pairs to groups in one process; a queue pair in two groups counts
/// twice.
pub(crate) const MEMBERS_MAX: usize = 4096;
/// The loopback interface: packets from a loopback address stay on it.
const LOOPBACK: u32 = 1;

/// The multicast groups of one process.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(super) members: Vec<(Gid, QpIndex)>,
    joined: Vec<Joined>,
    has_ended: bool,
}

/// Membership of the host in a group; ends when the socket is closed.
#[derive(Debug)]
struct Joined {
    group: Gid,
    _socket: OwnedFd,
}

impl Groups {
    /// True once after the last queue pair has left its group.
    pub(super) fn take_end(&mut self) -> bool {
        mem::take(&mut self.has_ended) && self.members.is_empty()
    }

    /// True if the queue pair is in a group.
    pub(crate) fn contains(&self, index: QpIndex) -> bool {
        self.members.iter().any(|(_, member)| *member == index)
    }

    pub(super) fn attach(
        &mut self,
        group: Gid,
        index: QpIndex,
        join: impl FnOnce() -> io::Result<OwnedFd>,
    ) -> Result<(), VerbsError> {
        if self.members.contains(&(group, index)) {
            return Ok(());
        }
        if self.members.len() >= MEMBERS_MAX {
            let most = MEMBERS_MAX;
            return Err(refuse!(ENOMEM, "device", "multicast memberships"; most;
                "the device has {most} memberships in multicast groups"));
        }
        if !self.joined.iter().any(|joined| joined.group == group) {
            let socket = join().map_err(|error| {
                let ([low, high], os) = (ip_halves(group.ip()), Os::from(&error));
                refuse!(EINVAL, "multicast group", "gid"; low, high, os as Os; let ip = ip_of(low, high);
                    "the netdev cannot join {ip}: {os}")
            })?;
            self.joined.push(Joined { group, _socket: socket });
        }
        self.members.push((group, index));
        Ok(())
    }

    pub(super) fn detach(&mut self, group: Gid, index: QpIndex) -> Result<(), VerbsError> {
        let at = self.members.iter().position(|member| *member == (group, index));
        self.members.swap_remove(at.ok_or_else(|| {
            let [low, high] = ip_halves(group.ip());
            refuse!(EINVAL, "multicast group", "gid"; low, high, index; let ip = ip_of(low, high);
                "the queue pair {index} of the engine is not attached to {ip}")
        })?);
        self.leave_unused();
        Ok(())
    }

    /// Removes a destroyed queue pair from all groups.
    pub(crate) fn remove_qp(&mut self, index: QpIndex) {
        self.members.retain(|(_, member)| *member != index);
        self.leave_unused();
    }

    fn leave_unused(&mut self) {
        let members = &self.members;
        self.has_ended |= !self.joined.is_empty();
        self.joined.retain(|joined| members.iter().any(|(group, _)| *group == joined.group));
    }
}

/// Joins a group on the netdev, and on the loopback interface for processes of this host.
pub(super) fn join(group: IpAddr, ifindex: u32) -> io::Result<OwnedFd> {
    let socket = sys::udp_socket(group.is_ipv6())?;
    sys::join_group(socket.as_fd(), group, ifindex)?;
    if ifindex != LOOPBACK {
        // Without a loopback interface, no process sends on it.
        let _absent = sys::join_group(socket.as_fd(), group, LOOPBACK);
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use transport::Errno;

    use super::*;

    fn group(last: u8) -> Gid {
        Gid::from(IpAddr::from([239, 1, 2, last]))
    }

    fn socket() -> io::Result<OwnedFd> {
        sys::udp_socket(false)
    }

    #[test]
    fn a_group_is_joined_once_and_left_with_its_last_member() {
        let mut groups = Groups::default();
        let must_not_join = || -> io::Result<OwnedFd> { panic!("the group is joined twice") };
        assert_eq!(groups.attach(group(1), 5, socket), Ok(()));
        assert_eq!(groups.attach(group(1), 5, must_not_join), Ok(()), "attaching twice has no effect");
        assert_eq!(groups.attach(group(1), 6, must_not_join), Ok(()));
        assert_eq!(groups.attach(group(2), 5, socket), Ok(()));
        assert_eq!(groups.joined.len(), 2);
        assert_eq!(groups.detach(group(1), 5), Ok(()));
        assert_eq!(groups.detach(group(1), 5).map_err(|refused| refused.kind()), Err(Errno::EINVAL));
        assert_eq!(groups.joined.len(), 2);
        groups.remove_qp(6);
        assert_eq!(groups.joined.iter().map(|j| j.group).collect::<Vec<_>>(), [group(2)]);
        assert!(groups.contains(5) && !groups.contains(6) && !groups.take_end());
        groups.remove_qp(5);
        assert!(groups.take_end() && groups.joined.is_empty());
        groups.remove_qp(7);
        assert!(!groups.take_end(), "it was in no group, so there is nothing to tell the port");
    }

    #[test]
    fn a_group_that_cannot_be_joined_has_no_member() {
        let mut groups = Groups::default();
        let refuse = || Err(io::ErrorKind::NotFound.into());
        assert_eq!(groups.attach(group(1), 5, refuse).map_err(|refused| refused.kind()), Err(Errno::EINVAL));
        assert!(!groups.contains(5) && !groups.take_end());
    }
}
