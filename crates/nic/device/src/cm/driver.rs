//! Connects the CM state machine with the engine and the identifiers.
//!
//! Locks, outermost first: `order` (one thread at a time delivers output, so that it stays in order), an
//! identifier's state, `state` (the state machine and the tables), a channel's queue. The engine calls the
//! driver without holding its own lock. The driver calls the engine (to send, or to modify a QP) without
//! holding `state`. No `Arc` of an identifier is dropped under `state`: its destructor takes that lock.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use transport::Instant;
use transport::cm::{
    Cm, CmConfig, CmEventKind, CmId, DisconnectNotice, JournalChange, ListenerId, MadBytes, MadOutcome,
    ServiceId,
};
use wire::{Gid, Qpn};

use super::event::RawEvent;
use super::host::GsiLink;
use super::id::{ChildInit, IdInner};
use super::listen::{RequestHost, RequestTarget};
use super::pace::Handled;
use super::place::Place;
use super::port::SharedPorts;
use super::resolve::Queries;
use crate::gid::GidTable;
use crate::locked::Locked;
use crate::runtime::Runtime;
use crate::status::{ObjectKind, ObjectStatus, Row};
use sys::KeptLock;

/// Runs the connections of one process.
pub(crate) struct CmDriver {
    state: Mutex<State>,
    order: Mutex<()>,
    handled: Handled,
    runtime: Runtime,
}

/// Protected by the driver's lock.
pub(super) struct State {
    pub(super) cm: Cm,
    pub(super) ids: HashMap<CmId, Weak<IdInner>>,
    pub(super) listeners: HashMap<ListenerId, Listening>,
    /// The identifiers that have an address of the device.
    pub(super) placed: HashMap<PlacedId, Weak<IdInner>>,
    pub(super) ports: SharedPorts,
    pub(super) queries: Queries,
    /// The device was removed, and its identifiers are being told.
    pub(super) is_removed: bool,
}

/// An identifier, by its address in memory.
pub(super) type PlacedId = usize;

/// An identifier that listens for a service, and this driver's device as its requests have it.
pub(super) struct Listening {
    pub(super) id: Weak<IdInner>,
    pub(super) service: ServiceId,
    pub(super) place: Place,
}

/// An event, and the identifier that gets it.
struct Delivery {
    target: Arc<IdInner>,
    raw: RawEvent,
}

/// The locks of a driver; held while the process forks.
pub(crate) struct CmLocks {
    // Fields are dropped, and so unlocked, in this order.
    _state: KeptLock<CmDriver, State>,
    _order: KeptLock<CmDriver, ()>,
}

/// Output of the state machine.
struct Output {
    silent_hosts: Vec<(Gid, Gid)>,
    journal: Vec<JournalChange>,
    mads: Vec<(Gid, Gid, MadBytes)>,
    deliveries: Vec<Delivery>,
}

impl CmDriver {
    /// Creates the driver of the process with `slot`. Communication ids start at a random number, so that
    /// peers do not mistake this process for the previous owner of the slot. Probes leave every
    /// `keepalive_ns`; 0 for none.
    pub(crate) fn new(
        slot: u16,
        gids: &GidTable,
        runtime: Runtime,
        keepalive_ns: u64,
        ports: SharedPorts,
    ) -> Self {
        let guid = u64::from_be_bytes(gids.node_guid);
        let tid_key = runtime.random_u64();
        // Peers see the communication ids, and must not learn the key from them.
        let first_id = runtime.random_u64() as u32;
        let config = CmConfig::new(slot, first_id, guid, gids.active_mtu());
        let mut cm = Cm::new(CmConfig { tid_key, keepalive: Duration::from_nanos(keepalive_ns), ..config });
        cm.set_gids(&addresses(gids));
        let state = State {
            cm,
            ids: HashMap::new(),
            listeners: HashMap::new(),
            placed: HashMap::new(),
            ports,
            queries: Queries::default(),
            is_removed: false,
        };
        Self { state: Mutex::new(state), order: Mutex::new(()), handled: Handled::default(), runtime }
    }

    /// Updates the addresses of the device, and the path MTU of new connections.
    pub(crate) fn set_gids(&self, gids: &GidTable) {
        let mut state = self.lock();
        state.cm.set_gids(&addresses(gids));
        state.cm.set_max_path_mtu(gids.active_mtu());
    }

    /// Handles a MAD that arrived on QP1, or that waits since then if it is not new; the next
    /// [`poll`](Self::poll) delivers the resulting output. Calls `record` before, unless another process or
    /// device may be the one for it.
    pub(crate) fn handle_mad(
        &self,
        now: Instant,
        (mad, is_new): (&MadBytes, bool),
        (src, dst): (Gid, Gid),
        record: impl FnOnce(),
    ) -> MadOutcome {
        let handle = if is_new { Cm::handle_mad } else { Cm::handle_again };
        // The reply leaves in `flush`.
        let _in_order = Locked::new(self.runtime.lock(&self.order));
        let outcome = handle(&mut self.lock().cm, now, mad, src, dst);
        if matches!(outcome, MadOutcome::Handled | MadOutcome::BacklogFull) {
            record();
        }
        outcome
    }

    /// The host `dst` has refused a MAD by ICMP; the next [`poll`](Self::poll) delivers the resulting output.
    pub(crate) fn handle_refused(&self, now: Instant, mad: &MadBytes, dst: Gid) {
        self.lock().cm.handle_refused(now, mad, dst);
    }

    /// The host `dst` has refused a packet in flight from `src` by ICMP.
    pub(crate) fn handle_refused_packet(&self, now: Instant, src: Gid, dst: Gid) {
        self.lock().cm.handle_refused_packet(now, src, dst);
    }

    /// Another process of this host got no answer to its probes from the host `dst`.
    pub(crate) fn handle_silent_host(&self, now: Instant, src: Gid, dst: Gid) {
        self.lock().cm.handle_silent_host(now, src, dst);
    }

    /// Rejects a request that no process of this host listens for.
    pub(crate) fn reject_no_listener(&self, now: Instant, mad: &MadBytes, src: Gid, dst: Gid) {
        self.lock().cm.reject_no_listener(now, mad, src, dst);
    }

    /// Replies to a DREQ or probe for a slot that no process of this host has.
    pub(crate) fn reply_without_process(&self, now: Instant, mad: &MadBytes, src: Gid, dst: Gid) {
        self.lock().cm.reply_without_process(now, mad, src, dst);
    }

    /// Sends a disconnect notice for another process of this host, which has died; the next
    /// [`poll`](Self::poll) delivers it.
    pub(crate) fn send_disconnect_notice(&self, now: Instant, notice: DisconnectNotice) {
        self.lock().cm.send_notice(now, notice);
    }

    /// Sends what a process that is about to end tells its peers; see [`Cm::begin_shutdown`]. When this
    /// returns, the MADs that other threads were sending are sent, too.
    pub(crate) fn send_disconnects(&self, now: Instant, link: &dyn GsiLink) {
        self.lock().cm.begin_shutdown(now);
        self.flush(now, link);
    }

    /// True while disconnects of [`send_disconnects`](Self::send_disconnects) are unanswered.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().cm.is_shutting_down()
    }

    /// Records that a QP has received its first packet.
    pub(crate) fn qp_established(&self, qpn: Qpn) {
        self.lock().cm.establish_qp(qpn);
    }

    /// Where readers wait until a request is handled.
    pub(super) fn handled(&self) -> &Handled {
        &self.handled
    }

    /// Name and value of every counter.
    pub(crate) fn rows(&self) -> [Row; 11] {
        self.lock().cm.counters().rows()
    }

    /// When [`poll`](Self::poll) must be called even if no MAD arrives: at once if there is output.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let state = self.lock();
        if state.cm.has_output() {
            return Some(Instant::ZERO);
        }
        [state.cm.poll_timeout(), state.queries.next()].into_iter().flatten().min()
    }

    /// Runs the timers, sends the MADs and delivers the events that are ready; returns their number.
    pub(crate) fn poll(&self, now: Instant, link: &dyn GsiLink) -> usize {
        self.poll_queries(now);
        {
            let mut state = self.lock();
            if state.cm.poll_timeout().is_some_and(|at| at <= now) {
                state.cm.handle_timeout(now);
            }
            if !state.cm.has_output() {
                return 0;
            }
        }
        self.flush(now, link)
    }

    /// Reports to the identifiers of the device that it was removed.
    pub(crate) fn lose_device(&self) {
        self.lock().is_removed = true;
        self.of_device().iter().for_each(|id| id.lose_device(self));
    }

    /// Tells the identifiers with an address of a bond if that has another MAC than when they got it.
    pub(crate) fn tell_failover(&self, gids: &GidTable) {
        self.of_device().iter().for_each(|id| id.tell_failover(gids));
    }

    /// Returns the identifiers of the device, and those that listen there. The handles are collected first:
    /// an identifier's lock comes before `state`, and dropping a handle may take both.
    fn of_device(&self) -> Vec<Arc<IdInner>> {
        let state = self.lock();
        let listening = state.listeners.values().map(|listening| &listening.id);
        let known = state.ids.values().chain(state.placed.values()).chain(listening);
        let mut all: Vec<_> = known.filter_map(Weak::upgrade).collect();
        all.sort_by_key(|id| id.number());
        all.dedup_by_key(|id| id.number());
        all
    }

    /// Returns the device with the address `to`, for a request to a service: a program that listens on a
    /// wildcard address listens on each device, and on some from their first request on.
    pub(crate) fn host_of_request(&self, service: ServiceId, to: RequestTarget) -> Option<RequestHost> {
        // See `of_device`.
        let listening: Vec<Arc<IdInner>> = {
            let state = self.lock();
            let of_service = state.listeners.values().filter(|listening| listening.service == service);
            of_service.filter_map(|listening| listening.id.upgrade()).collect()
        };
        listening.iter().find_map(|id| id.listen_at(service, to))
    }

    /// Starts a thread.
    pub(super) fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.runtime.spawn(name, body)
    }

    /// Checks the neighbours that identifiers wait for. No lock is held, because dropping an identifier takes
    /// `state`.
    fn poll_queries(&self, now: Instant) {
        let due = self.lock().queries.take_due(now);
        for query in due {
            if let Some(unanswered) = query.check(now) {
                self.lock().queries.add(unanswered);
            }
        }
    }

    /// Runs `f` on the state machine and the tables.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.lock())
    }

    fn flush(&self, now: Instant, link: &dyn GsiLink) -> usize {
        let _in_order = Locked::new(self.runtime.lock(&self.order));
        let mut delivered = 0;
        loop {
            let Output { silent_hosts, journal, mads, deliveries } = self.lock().drain(now);
            silent_hosts.into_iter().for_each(|(src, dst)| link.tell_silent_host(src, dst));
            journal.into_iter().for_each(|change| link.update_journal(change));
            if mads.is_empty() && deliveries.is_empty() {
                return delivered;
            }
            delivered += mads.len() + deliveries.len();
            for (src, dst, mad) in &mads {
                link.send_mad(*src, *dst, mad);
            }
            for Delivery { target, raw } in deliveries {
                target.deliver(raw);
            }
        }
    }

    /// Takes the locks, or returns `None` if that lasts until `until_ns`.
    pub(crate) fn keep_locked(self: &Arc<Self>, until_ns: u64) -> Option<CmLocks> {
        let order = KeptLock::take(self, |driver| &driver.order, until_ns)?;
        let state = KeptLock::take(self, |driver| &driver.state, until_ns)?;
        Some(CmLocks { _state: state, _order: order })
    }

    /// The identifiers that listen, connect or are connected, from a number on. One that a thread uses at the
    /// moment is left out.
    pub(crate) fn identifiers(&self, from: u32) -> Vec<ObjectStatus> {
        let known: BTreeMap<u32, Arc<IdInner>> = {
            let state = self.lock();
            let listening = state.listeners.values().map(|listening| &listening.id);
            let all = state.ids.values().chain(state.placed.values()).chain(listening);
            all.filter_map(Weak::upgrade).map(|id| (id.number(), id)).collect()
        };
        known.range(from..).filter_map(|(_, id)| id.status()).take(ObjectKind::CmId.page_max() + 1).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn addresses(gids: &GidTable) -> Vec<Gid> {
    gids.all_rows().map(|(_, row)| row.gid).collect()
}

impl State {
    fn drain(&mut self, now: Instant) -> Output {
        let mut deliveries = Vec::new();
        while let Some(event) = self.cm.poll_event() {
            match event.kind {
                CmEventKind::ConnectRequest(request) => {
                    let init = ChildInit {
                        cm_id: event.id,
                        local: request.local,
                        path: request.path,
                        port: request.service_id.port(),
                        peer: request.peer,
                        peer_port: request.peer_port,
                        params: Some(request.params),
                    };
                    deliveries.extend(self.request(now, request.listener, init, &request.private_data));
                }
                CmEventKind::SidrRequest(request) => {
                    let init = ChildInit {
                        cm_id: event.id,
                        local: request.local,
                        path: (request.local, request.peer),
                        port: request.service_id.port(),
                        peer: request.peer,
                        peer_port: request.peer_port,
                        params: None,
                    };
                    deliveries.extend(self.request(now, request.listener, init, &request.private_data));
                }
                kind => {
                    if let Some(target) = self.ids.get(&event.id).and_then(Weak::upgrade) {
                        deliveries.push(Delivery { target, raw: RawEvent::Cm(kind) });
                    }
                }
            }
        }
        let mads = iter::from_fn(|| self.cm.poll_transmit()).collect();
        let journal = iter::from_fn(|| self.cm.poll_journal()).collect();
        let silent_hosts = iter::from_fn(|| self.cm.poll_silent_host()).collect();
        Output { silent_hosts, journal, mads, deliveries }
    }

    /// Creates a child of the listener for a request. If the listener or the device no longer exists, rejects
    /// the request and returns `None`.
    fn request(
        &mut self,
        now: Instant,
        listener: ListenerId,
        init: ChildInit,
        private_data: &[u8],
    ) -> Option<Delivery> {
        let cm_id = init.cm_id;
        let listening = self.listeners.get(&listener).filter(|_| !self.is_removed);
        let Some((target, place)) = listening.and_then(|it| Some((it.id.upgrade()?, it.place.clone())))
        else {
            self.cm.destroy(now, cm_id);
            return None;
        };
        let params = init.params;
        let child = IdInner::child(&target, place, init);
        self.ids.insert(cm_id, Arc::downgrade(&child));
        let raw = RawEvent::Request { child, params, private_data: private_data.to_vec() };
        Some(Delivery { target, raw })
    }
}
