//! The lookup tables: communication ids, the peers' ids, and listeners.

use core::mem;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use wire::cm::ServiceId;
use wire::{Gid, Qpn};

use super::conn::Conn;
use super::event::CmResult;
use super::mads::Arrival;
use super::params::{BACKLOG_DEFAULT, CmId, ListenParams, ListenerId};
use super::{Cm, ConnState};
use crate::{VerbsError, refuse};

/// Most connections and SIDR exchanges at once: an eighth of the communication ids of a slot, so that an
/// unused one is found soon. Half would be too few for 100,000 connections.
const CONNECTIONS_MAX: usize = 131_072;

/// Checks that private data fits its message.
pub(super) fn check_private_data(data: &[u8], most: usize) -> CmResult<()> {
    let len = data.len();
    if len <= most {
        return Ok(());
    }
    Err(refuse!(EINVAL, "connection", "private_data_len"; len, most;
        "{len} bytes of private data, the message has room for {most}"))
}

/// The connection `id`, if the state of it permits the call.
pub(super) fn in_state(
    conns: &mut HashMap<CmId, Conn>,
    id: CmId,
    permits: impl FnOnce(ConnState) -> bool,
) -> CmResult<&mut Conn> {
    let conn = conns.get_mut(&id);
    let state = conn.as_ref().map(|conn| conn.state);
    conn.filter(|conn| permits(conn.state)).ok_or_else(|| refuse_state(id, state))
}

/// The refusal of a call that the state of a connection does not permit.
#[cold]
pub(super) fn refuse_state(id: CmId, state: Option<ConnState>) -> VerbsError {
    let (id, state) = (id.0, state.unwrap_or(ConnState::Idle));
    refuse!(EINVAL, "connection", "state"; state as ConnState, id;
        "the connection {id:#010x} is in the state {state:?}, which does not permit the call")
}

/// A peer: its node GUID, and the address that its MADs come from. The GUID alone is what a MAD says.
pub(super) type Node = (u64, Gid);

/// Connections by the ids of the peer; only those that are not in TIMEWAIT.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Finds duplicates.
    by_comm_id: HashMap<(Node, u32), CmId>,
    /// Finds stale connections: has only established ones.
    by_qpn: HashMap<(Node, Qpn), CmId>,
    /// Our QPN: finds the connection that the first packet arrived on.
    by_local_qpn: HashMap<Qpn, CmId>,
}

impl Peers {
    pub(super) fn by_comm_id(&self, node: Node, comm_id: u32) -> Option<CmId> {
        self.by_comm_id.get(&(node, comm_id)).copied()
    }

    pub(super) fn by_qpn(&self, node: Node, qpn: Qpn) -> Option<CmId> {
        self.by_qpn.get(&(node, qpn)).copied()
    }

    pub(super) fn by_local_qpn(&self, qpn: Qpn) -> Option<CmId> {
        self.by_local_qpn.get(&qpn).copied()
    }

    /// Enters the peer's half of a connection; the caller has checked that the key is free.
    pub(super) fn insert(&mut self, id: CmId, node: Node, comm_id: u32) {
        self.by_comm_id.insert((node, comm_id), id);
    }

    fn insert_established(&mut self, id: CmId, conn: &Conn) {
        // Connections without a queue pair have this number.
        if conn.remote_qpn != Qpn::new(0) {
            self.by_qpn.insert(((conn.remote_guid, conn.dst), conn.remote_qpn), id);
        }
    }

    fn remove_established(&mut self, id: CmId, conn: &Conn) {
        remove_if_ours(&mut self.by_qpn, ((conn.remote_guid, conn.dst), conn.remote_qpn), id);
    }

    pub(super) fn insert_local(&mut self, id: CmId, qpn: Qpn) {
        self.by_local_qpn.insert(qpn, id);
    }

    fn remove(&mut self, id: CmId, conn: &Conn) {
        let node = (conn.remote_guid, conn.dst);
        remove_if_ours(&mut self.by_comm_id, (node, conn.remote_id), id);
        remove_if_ours(&mut self.by_local_qpn, conn.local_qpn, id);
    }
}

/// Removes an entry, unless another connection has taken the key since.
fn remove_if_ours<K: Eq + core::hash::Hash>(map: &mut HashMap<K, CmId>, key: K, id: CmId) {
    if let Entry::Occupied(entry) = map.entry(key)
        && *entry.get() == id
    {
        entry.remove();
    }
}

/// The listeners.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    by_id: HashMap<ListenerId, Listener>,
    by_service: HashMap<ServiceId, Vec<ListenerId>>,
    next: u32,
}

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) params: ListenParams,
    /// Requests reported and not yet taken.
    pending: u32,
}

impl Listeners {
    /// The listener for a request to `dst`; one bound to the address wins over a wildcard.
    pub(super) fn find(&self, service_id: ServiceId, dst: Gid) -> Option<(ListenerId, &Listener)> {
        let ids = self.by_service.get(&service_id)?;
        let covering = ids.iter().filter_map(|id| {
            let listener = self.by_id.get(id)?;
            listener.params.address.covers(dst).then_some((*id, listener))
        });
        covering.max_by_key(|(_, l)| matches!(l.params.address, super::ListenAddress::Gid(_)))
    }

    /// Counts a request against the backlog; false if it is full.
    fn admit(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.by_id.get_mut(&id) else { return false };
        let backlog = match listener.params.backlog {
            0 => BACKLOG_DEFAULT,
            n => n.min(BACKLOG_DEFAULT),
        };
        let room = listener.pending < backlog;
        listener.pending += u32::from(room);
        room
    }

    fn release(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }
}

impl Cm {
    /// Listens for a service. The owner has checked that the port is free.
    ///
    /// # Errors
    /// `EINVAL` if a listener has the same service and address.
    pub fn listen(&mut self, params: ListenParams) -> CmResult<ListenerId> {
        let ids = self.listeners.by_service.entry(params.service_id).or_default();
        let by_id = &self.listeners.by_id;
        if ids.iter().any(|id| by_id.get(id).is_some_and(|l| l.params.address == params.address)) {
            let service = params.service_id.0;
            return Err(refuse!(EINVAL, "listener", "service_id"; service;
                "another listener has the service {service:#x} and this address"));
        }
        self.listeners.next = self.listeners.next.wrapping_add(1);
        let id = ListenerId(self.listeners.next);
        ids.push(id);
        self.listeners.by_id.insert(id, Listener { params, pending: 0 });
        Ok(id)
    }

    /// Stops listening. Requests already reported stay and must be accepted, refused or destroyed.
    pub fn unlisten(&mut self, id: ListenerId) {
        let Some(listener) = self.listeners.by_id.remove(&id) else { return };
        if let Entry::Occupied(mut entry) = self.listeners.by_service.entry(listener.params.service_id) {
            entry.get_mut().retain(|other| *other != id);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }

    /// The application has taken a request: it no longer counts against the backlog.
    pub fn request_taken(&mut self, id: CmId) {
        let backlog_of = match (self.conns.get_mut(&id), self.exchanges.get_mut(&id)) {
            (Some(conn), _) => conn.backlog_of.take(),
            (None, Some(exchange)) => exchange.backlog_of.take(),
            (None, None) => None,
        };
        if let Some(listener) = backlog_of {
            self.listeners.release(listener);
        }
    }

    /// Room in the backlog, and a communication id for what takes it.
    pub(super) fn admit(&mut self, listener: ListenerId) -> Option<CmId> {
        let room = self.listeners.admit(listener);
        let id = room.then(|| self.allocate_id().ok()).flatten();
        if room && id.is_none() {
            self.listeners.release(listener);
        }
        self.counters.rx_backlog_full += u64::from(id.is_none());
        id
    }

    /// A fresh communication id.
    pub(super) fn allocate_id(&mut self) -> CmResult<CmId> {
        if self.conns.len() + self.exchanges.len() >= CONNECTIONS_MAX {
            let count = CONNECTIONS_MAX;
            return Err(refuse!(ENOMEM, "device", "connections"; count;
                "the process has its largest number of connections and requests, {count}"));
        }
        loop {
            let counter = self.next_id % CmId::COUNTERS;
            self.next_id = self.next_id.wrapping_add(1);
            let id = CmId::new(self.config.slot, counter);
            // A notice of the last owner of the slot may still be due under this id.
            let is_taken =
                self.conns.contains_key(&id) || self.exchanges.contains_key(&id) || self.has_notice_of(id);
            if counter != 0 && !is_taken {
                return Ok(id);
            }
        }
    }

    /// The connection with this pair of ids, if the MAD came from its peer. `remote_id` 0 finds only
    /// connections without a known peer.
    pub(super) fn lookup(
        &mut self,
        local_id: u32,
        remote_id: u32,
        from: Arrival,
    ) -> Option<(CmId, &mut Conn)> {
        let id = CmId(local_id);
        let conn = self.conns.get_mut(&id).filter(|conn| conn.remote_id == remote_id)?;
        if !conn.is_peer(from) {
            self.counters.rx_foreign += 1;
            return None;
        }
        Some((id, conn))
    }

    /// The request was accepted by both ends, refused or withdrawn.
    pub(super) fn no_longer_half_open(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id)
            && mem::replace(&mut conn.is_half_open, false)
        {
            self.half_open.remove(conn.dst);
        }
    }

    /// The connection is established: its peer is probed, and a REQ with the same queue pair is a reason to
    /// probe it.
    pub(super) fn enter_established(&mut self, id: CmId) {
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.state = ConnState::Established;
            self.peers.insert_established(id, conn);
            self.keep_alive(id);
        }
    }

    /// The connection is no longer established, if it was. Probes go on while a DREP is missing: the process
    /// of the peer may have been killed.
    pub(super) fn leave_established(&mut self, id: CmId, state: ConnState) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let before = mem::replace(&mut conn.state, state);
        if before == ConnState::Established {
            conn.stale = None;
            self.peers.remove_established(id, conn);
        }
        if before.is_probed() && !state.is_probed() {
            self.keepalive.remove((conn.src, conn.dst), id);
        }
    }

    /// Ends an exchange without TIMEWAIT.
    pub(super) fn reset_to_idle(&mut self, id: CmId) {
        self.leave(id, ConnState::Idle);
    }

    /// Removes it from the tables and the timer, and sets its state.
    pub(super) fn leave(&mut self, id: CmId, state: ConnState) {
        self.disarm(id);
        self.remove_from_journal(id);
        self.no_longer_half_open(id);
        self.leave_established(id, state);
        if let Some(conn) = self.conns.get(&id) {
            self.peers.remove(id, conn);
        }
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, id: CmId) {
        self.request_taken(id);
        self.reset_to_idle(id);
        self.conns.remove(&id);
        self.events.retain(|event| event.id != id);
    }
}
