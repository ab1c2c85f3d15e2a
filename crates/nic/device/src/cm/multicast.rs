//! Joining multicast groups (rdma_join_multicast(3)). On RoCE the group's IP address identifies it, so no
//! subnet manager is involved: the event follows at once. The QP is attached when the application reads the
//! event, as in librdmacm.

use std::net::IpAddr;
use std::sync::Arc;

use transport::refusal::{ip_halves, ip_of};
use transport::{AddressVector, VerbsError, refuse};
use wire::{Gid, QKey, Qpn};

use super::event::{CmEvent, CmEventKind, Param, RawEvent, UdParam};
use super::id::{Id, IdInner};
use super::out_of_phase;
use super::state::Phase;

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
    pub fn join_multicast(&self, group: IpAddr, send_only: bool, cookie: u64) -> Result<(), VerbsError> {
        let mut state = self.0.lock();
        let ready = matches!(state.phase, Phase::Bound | Phase::AddrResolved | Phase::RouteResolved);
        let [low, high] = ip_halves(group);
        if !group.is_multicast() {
            return Err(refuse!(EINVAL, "multicast group", "addr"; low, high; let ip = ip_of(low, high);
                "{ip} is not a multicast address"));
        }
        if !self.0.port_space.is_datagram() {
            let port_space = self.0.port_space as u16;
            return Err(refuse!(EINVAL, "identifier", "ps"; port_space;
                "groups are for the port spaces of datagrams, the identifier is of {port_space:#x}"));
        }
        if !ready || state.local.is_none() {
            return Err(out_of_phase!(state.phase, "rdma_join_multicast needs an address of the device"));
        }
        let join = Join { group: Gid::from(group), cookie, send_only };
        if state.groups.iter().any(|other| other.group == join.group) {
            return Err(refuse!(EADDRINUSE, "multicast group", "addr"; low, high;
                let ip = ip_of(low, high); "the identifier has joined the group {ip}"));
        }
        state.groups.push(join);
        self.0.push(RawEvent::Joined(join));
        Ok(())
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it has not joined.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), VerbsError> {
        let ([low, high], group) = (ip_halves(group), Gid::from(group));
        let mut state = self.0.lock();
        let at = state.groups.iter().position(|join| join.group == group);
        state.groups.swap_remove(at.ok_or_else(|| {
            refuse!(EADDRNOTAVAIL, "multicast group", "addr"; low, high;
                let ip = ip_of(low, high); "the identifier has not joined the group {ip}")
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
