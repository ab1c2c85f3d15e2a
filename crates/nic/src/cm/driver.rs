//! Between the state machine, the engine and the identifiers.
//!
//! Locks, outermost first: `order` (one thread at a time carries output, so that it stays in order), an
//! identifier's state, `state` (the state machine and the tables), a channel's queue. The engine calls in
//! without holding its own lock; we call the engine (to send, to modify a QP) without holding `state`. No
//! `Arc` of an identifier is dropped under `state`: its destructor takes that lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use transport::Instant;
use transport::cm::{
    Cm, CmConfig, CmEventKind, CmId, Farewell, ListenerId, MadBytes, MadOutcome, PeerParams, WillChange,
};
use wire::{Gid, Qpn};

use super::event::Happening;
use super::host::GsiLink;
use super::id::{Birth, IdInner};
use super::port::Ports;
use super::resolve::Queries;
use crate::gid::GidTable;
use sys::KeptLock;

/// Drives the connections of one process.
pub(crate) struct CmDriver {
    state: Mutex<State>,
    order: Mutex<()>,
}

/// What the lock protects.
pub(super) struct State {
    pub(super) cm: Cm,
    pub(super) ids: HashMap<CmId, Weak<IdInner>>,
    pub(super) listeners: HashMap<ListenerId, Weak<IdInner>>,
    pub(super) ports: Ports,
    pub(super) queries: Queries,
}

/// One thing that happened, and to whom.
struct Delivery {
    target: Arc<IdInner>,
    happening: Happening,
}

/// The locks of a driver, held while the process forks.
pub(crate) struct CmLocks {
    // Unlocked in this order.
    _state: KeptLock<CmDriver, State>,
    _order: KeptLock<CmDriver, ()>,
}

/// What the state machine wants done.
struct Output {
    will: Vec<WillChange>,
    mads: Vec<(Gid, Gid, MadBytes)>,
    deliveries: Vec<Delivery>,
}

impl CmDriver {
    /// For the process with `slot`. Communication ids start at random, so that peers do not take us for the
    /// process that had the slot before.
    pub(crate) fn new(slot: u8, gids: &GidTable) -> Self {
        let guid = u64::from_be_bytes(gids.node_guid);
        let mut cm = Cm::new(CmConfig::new(slot, sys::random_u64() as u32, guid, gids.active_mtu()));
        cm.set_gids(&addresses(gids));
        let state = State {
            cm,
            ids: HashMap::new(),
            listeners: HashMap::new(),
            ports: Ports::new(),
            queries: Queries::default(),
        };
        Self { state: Mutex::new(state), order: Mutex::new(()) }
    }

    /// The addresses have changed.
    pub(crate) fn set_gids(&self, gids: &GidTable) {
        self.lock().cm.set_gids(&addresses(gids));
    }

    /// Takes a MAD that arrived on QP1; its consequences leave with the next [`poll`](Self::poll).
    pub(crate) fn handle_mad(&self, now: Instant, mad: &MadBytes, src: Gid, dst: Gid) -> MadOutcome {
        self.lock().cm.handle_mad(now, mad, src, dst)
    }

    /// Answers a request that no process of this host listens for.
    pub(crate) fn reject_no_listener(&self, mad: &MadBytes, src: Gid, dst: Gid) {
        self.lock().cm.reject_no_listener(mad, src, dst);
    }

    /// Tells the peer of another process of this host, which has died; with the next [`poll`](Self::poll).
    pub(crate) fn say_farewell(&self, now: Instant, farewell: Farewell) {
        self.lock().cm.send_notice(now, farewell);
    }

    /// The process is about to end; see [`Cm::take_leave`].
    pub(crate) fn take_leave(&self, now: Instant) {
        self.lock().cm.begin_shutdown(now);
    }

    /// Peers are still to be told.
    pub(crate) fn is_leaving(&self) -> bool {
        self.lock().cm.is_shutting_down()
    }

    /// A QP of ours has received its first packet.
    pub(crate) fn qp_established(&self, qpn: Qpn) {
        self.lock().cm.establish_qp(qpn);
    }

    /// When [`poll`](Self::poll) must be called even if no MAD arrives: at once if something waits to leave.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let state = self.lock();
        if state.cm.has_output() {
            return Some(Instant::ZERO);
        }
        [state.cm.poll_timeout(), state.queries.next()].into_iter().flatten().min()
    }

    /// Runs the timers, sends what waits to be sent and reports what has happened; how many of these there
    /// were.
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
        self.carry(now, link)
    }

    /// Tells identifiers with one of these addresses that the device is gone.
    pub(crate) fn lose_device(&self, addresses: &[Gid]) {
        // All are held before any is looked at: their locks come before ours, and so may their ends.
        let targets: Vec<Arc<IdInner>> = {
            let state = self.lock();
            state.ids.values().chain(state.listeners.values()).filter_map(Weak::upgrade).collect()
        };
        for target in targets {
            if target.local().is_some_and(|local| addresses.contains(&local)) {
                target.happened(Happening::DeviceRemoval);
            }
        }
    }

    /// Looks at the neighbours that identifiers wait for, with nothing locked: an identifier's end needs the lock.
    fn poll_queries(&self, now: Instant) {
        let due = self.lock().queries.take_due(now);
        for query in due {
            if let Some(unanswered) = query.look(now) {
                self.lock().queries.add(unanswered);
            }
        }
    }

    /// Access to the state machine and the tables.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.lock())
    }

    fn carry(&self, now: Instant, link: &dyn GsiLink) -> usize {
        let _in_order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let mut carried = 0;
        loop {
            let Output { will, mads, deliveries } = self.lock().drain(now);
            will.into_iter().for_each(|change| link.change_will(change));
            if mads.is_empty() && deliveries.is_empty() {
                return carried;
            }
            carried += mads.len() + deliveries.len();
            for (src, dst, mad) in &mads {
                link.send_mad(*src, *dst, mad);
            }
            for Delivery { target, happening } in deliveries {
                target.happened(happening);
            }
        }
    }

    /// `None` if it takes until `until_ns`.
    pub(crate) fn keep_locked(self: &Arc<Self>, until_ns: u64) -> Option<CmLocks> {
        let order = KeptLock::take(self, |driver| &driver.order, until_ns)?;
        let state = KeptLock::take(self, |driver| &driver.state, until_ns)?;
        Some(CmLocks { _state: state, _order: order })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn addresses(gids: &GidTable) -> Vec<Gid> {
    gids.rows().map(|(_, row)| row.gid).collect()
}

impl State {
    fn drain(&mut self, now: Instant) -> Output {
        let mut deliveries = Vec::new();
        while let Some(event) = self.cm.poll_event() {
            match event.kind {
                CmEventKind::ConnectRequest(request) => {
                    let birth = Birth {
                        cm_id: event.id,
                        local: request.local,
                        path: request.path,
                        port: request.service_id.port(),
                        peer: request.peer,
                        peer_port: request.peer_port,
                        params: request.params,
                    };
                    deliveries.extend(self.request(now, request.listener, birth, &request.private_data));
                }
                CmEventKind::SidrRequest(request) => {
                    let birth = Birth {
                        cm_id: event.id,
                        local: request.local,
                        path: (request.local, request.peer),
                        port: request.service_id.port(),
                        peer: request.peer,
                        peer_port: request.peer_port,
                        params: PeerParams {
                            responder_resources: 0,
                            initiator_depth: 0,
                            flow_control: false,
                            retry_count: 0,
                            rnr_retry_count: 0,
                            srq: false,
                            qpn: Qpn::new(0),
                        },
                    };
                    deliveries.extend(self.request(now, request.listener, birth, &request.private_data));
                }
                kind => {
                    if let Some(target) = self.ids.get(&event.id).and_then(Weak::upgrade) {
                        deliveries.push(Delivery { target, happening: Happening::Cm(kind) });
                    }
                }
            }
        }
        let mut mads = Vec::new();
        while let Some(mad) = self.cm.poll_transmit() {
            mads.push(mad);
        }
        let mut will = Vec::new();
        while let Some(change) = self.cm.poll_journal() {
            will.push(change);
        }
        Output { will, mads, deliveries }
    }

    /// A child of the listener for a request; `None` if the listener is gone, and then the peer is told.
    fn request(
        &mut self,
        now: Instant,
        listener: ListenerId,
        birth: Birth,
        private_data: &[u8],
    ) -> Option<Delivery> {
        let cm_id = birth.cm_id;
        let Some(target) = self.listeners.get(&listener).and_then(Weak::upgrade) else {
            self.cm.destroy(now, cm_id);
            return None;
        };
        let params = birth.params;
        let child = IdInner::child(&target, birth);
        self.ids.insert(cm_id, Arc::downgrade(&child));
        let happening = Happening::Request { child, params, private_data: private_data.to_vec() };
        Some(Delivery { target, happening })
    }
}
