//! Joining multicast groups (rdma_join_multicast(3)). On RoCE the group's IP address identifies it, so no
//! subnet manager is involved: the event follows at once. The QP is attached when the application reads the
//! event, as in librdmacm.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use transport::AddressVector;
use wire::{Gid, QKey, Qpn};

use super::event::{CmEvent, CmEventKind, Param, RawEvent, UdParam};
use super::id::{Id, IdInner, Phase};
use super::{invalid, refused};

/// A group that an identifier has joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Join {
    group: Gid,
    cookie: u64,
    /// The QP only sends to the group.
    send_only: bool,
}

impl Id {
    /// Joins a group; `MulticastJoin` or `MulticastError` follows, with `cookie`. From then on the
    /// identifier's QP receives messages to the group, unless `send_only`.
    ///
    /// # Errors
    /// `EINVAL` for an address that is not multicast, for an identifier without an address or of a connected
    /// service; `EADDRINUSE` if it has joined already.
    pub fn join_multicast(&self, group: IpAddr, send_only: bool, cookie: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        let ready = matches!(state.phase, Phase::Bound | Phase::AddrResolved | Phase::RouteResolved);
        if !group.is_multicast() || !ready || state.local.is_none() || !self.0.port_space.is_datagram() {
            return Err(invalid());
        }
        let join = Join { group: Gid::from(group), cookie, send_only };
        if state.groups.iter().any(|other| other.group == join.group) {
            return Err(refused(libc::EADDRINUSE, format_args!("the identifier has joined the group")));
        }
        state.groups.push(join);
        drop(state);
        self.0.push(RawEvent::Joined(join));
        Ok(())
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it has not joined.
    pub fn leave_multicast(&self, group: IpAddr) -> io::Result<()> {
        let group = Gid::from(group);
        let mut state = self.0.lock();
        let at = state.groups.iter().position(|join| join.group == group);
        state.groups.swap_remove(at.ok_or_else(|| {
            refused(libc::EADDRNOTAVAIL, format_args!("the identifier has not joined the group"))
        })?);
        let qp = state.qp.clone();
        drop(state);
        if let Some(qp) = qp {
            // Fails if the event was not read, or if the caller has detached the QP.
            let _done = qp.detach_mcast(group);
        }
        Ok(())
    }
}

impl IdInner {
    /// Fills in the event of a join and attaches the QP.
    pub(super) fn joined(self: &Arc<Self>, join: Join, event: &mut CmEvent) {
        let qp = self.lock().qp.clone().filter(|_| !join.send_only);
        let attached = qp.map_or(Ok(()), |qp| qp.attach_mcast(join.group));
        event.kind = CmEventKind::MulticastJoin;
        if let Err(error) = attached {
            event.kind = CmEventKind::MulticastError;
            event.status = -error.errno();
        }
        let av = AddressVector { dgid: join.group, ..self.address_vector() };
        event.param = Param::Ud(UdParam { av, qp_num: Qpn::MULTICAST, q_key: QKey::RDMA_UDP });
        event.join = Some(join.cookie);
    }

    /// Detaches the QP from the groups of the identifier, which stays a member.
    pub(super) fn detach_from_groups(&self) {
        let state = self.lock();
        let (groups, qp) = (state.groups.clone(), state.qp.clone());
        drop(state);
        if let Some(qp) = qp {
            for join in groups {
                // See `leave_multicast`.
                let _done = qp.detach_mcast(join.group);
            }
        }
    }

    /// Leaves all groups when the identifier ends.
    pub(super) fn leave_all(&self) {
        self.detach_from_groups();
        self.lock().groups.clear();
    }
}
