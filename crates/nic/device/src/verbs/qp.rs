//! Queue pairs (ibv_create_qp(3), ibv_modify_qp(3), ibv_post_send(3)).

use std::sync::{Arc, Weak};

use transport::{
    MAX_QP_WR, MAX_SGE, Qp as TransportQp, QpAttr, QpAttrMask, QpCap, QpConfig, QpState, QpType, refuse,
};
use transport::{RecvWr, SendWr, VerbsError};
use wire::{Gid, Qpn};

use super::device::INLINE_MAX;
use super::quota::{Share, memory_for, queue_memory};
use super::{Cq, Pd, Srq, Xrcd};
use crate::engine::entry::QpEntry;
use crate::engine::tables::no_queue_pair;
use crate::engine::{Core, Engine};
use crate::gid::refuse_gid_index;
use crate::guard;
use crate::locked::Locked;
use crate::port::Destination;
use crate::qp_numbers::QpIndex;
use crate::same_device;
use crate::srqs::SrqScope;
use crate::trace;

/// Attributes of a new queue pair.
#[derive(Clone)]
pub struct QpInitAttr {
    /// Transport service.
    pub ty: QpType,
    /// CQ of the send completions.
    pub send_cq: Cq,
    /// CQ of the receive completions.
    pub recv_cq: Cq,
    /// If set, receives come from this SRQ instead of the queue pair's own queue.
    pub srq: Option<Srq>,
    /// Requested sizes. The elements of a work request are at most as many as requested: none if 0.
    pub cap: QpCap,
    /// Every send makes a completion, not only signaled ones.
    pub sq_sig_all: bool,
    /// Identifies the queue pair in its events.
    pub cookie: u64,
}

/// A queue pair.
#[derive(Clone)]
pub struct Qp(Arc<QpInner>);

struct QpInner {
    pd: Pd,
    engine: Arc<Engine>,
    /// Its place in the tables of the engine.
    index: QpIndex,
    qpn: Qpn,
    ty: QpType,
    cap: QpCap,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    /// The XRC domain that an XRC target keeps in use.
    _xrcd: Option<Xrcd>,
    _share: Share,
}

/// A handle that does not keep the queue pair alive.
pub(super) struct WeakQp(Weak<QpInner>);

impl WeakQp {
    pub(super) fn lives(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub(super) fn upgrade(&self) -> Option<Qp> {
        self.0.upgrade().map(Qp)
    }
}

impl Drop for QpInner {
    fn drop(&mut self) {
        self.engine.remove_qp(self.qpn);
    }
}

/// Checks the sizes of a queue pair.
pub(crate) fn check_sizes(cap: &QpCap) -> Result<(), VerbsError> {
    macro_rules! at_most {
        ($($field:literal, $size:expr, $limit:expr;)*) => {$(
            let (size, limit) = ($size, $limit);
            if size > limit {
                return Err(refuse!(EINVAL, "queue pair", $field; size, limit;
                    is "{size}, the largest value is {limit} (ibv_query_device)"));
            }
        )*};
    }
    at_most! {
        "max_send_wr", cap.max_send_wr, MAX_QP_WR;
        "max_recv_wr", cap.max_recv_wr, MAX_QP_WR;
        "max_send_sge", cap.max_send_sge, MAX_SGE as u32;
        "max_recv_sge", cap.max_recv_sge, MAX_SGE as u32;
        "max_inline_data", cap.max_inline_data, INLINE_MAX;
    }
    Ok(())
}

impl Pd {
    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// `EINVAL` for capacities beyond the device's limits and for queues of another device, `EOPNOTSUPP` for
    /// an unsupported type, `ENOMEM` if the device has its largest number.
    pub fn create_qp(&self, init: &QpInitAttr) -> Result<Qp, VerbsError> {
        // `Xrcd::create_qp` makes the receiving end of XRC, which belongs to its domain.
        if init.ty == QpType::XrcTgt {
            let ty = init.ty;
            return Err(refuse!(EINVAL, "queue pair", "qp_type"; ty as QpType;
                "a queue pair of type {ty} belongs to an XRC domain, which creates it"));
        }
        Qp::build(self, init, None)
    }
}

impl Qp {
    /// Creates the receiving end of XRC. It never produces a completion; `unused_cq` takes the place of its
    /// CQs.
    pub(super) fn new_target(pd: &Pd, unused_cq: &Cq, xrcd: &Xrcd, cookie: u64) -> Result<Self, VerbsError> {
        let init = QpInitAttr {
            ty: QpType::XrcTgt,
            send_cq: unused_cq.clone(),
            recv_cq: unused_cq.clone(),
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: false,
            cookie,
        };
        Self::build(pd, &init, Some(xrcd))
    }

    pub(super) fn downgrade(&self) -> WeakQp {
        WeakQp(Arc::downgrade(&self.0))
    }

    fn build(pd: &Pd, init: &QpInitAttr, xrcd: Option<&Xrcd>) -> Result<Self, VerbsError> {
        let mut cap = init.cap;
        // Without a receive queue of its own, it ignores the size of one (ibv_create_qp(3)).
        let receives = init.ty != QpType::XrcIni && init.srq.is_none();
        if !receives {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        check_sizes(&cap)?;
        let device = pd.device();
        same_device!("queue pair", "send_cq"; device, init.send_cq.device())?;
        same_device!("queue pair", "recv_cq"; device, init.recv_cq.device())?;
        if let Some(srq) = &init.srq {
            same_device!("queue pair", "srq"; device, srq.pd().device())?;
        }
        let sends = queue_memory(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data);
        memory_for(sends + queue_memory(cap.max_recv_wr, cap.max_recv_sge, 0))?;
        let _share = pd.context().quotas().qps.take()?;
        let max_path_mtu = pd.context().device().gids().active_mtu();
        let cqs = (Arc::clone(init.send_cq.queue()), Arc::clone(init.recv_cq.queue()));
        let srqs = SrqScope { own: init.srq.as_ref().map(Srq::index), xrcd: xrcd.map(Xrcd::id) };
        let index = match (xrcd, &init.srq) {
            (Some(_), _) => 0,
            (None, Some(srq)) => srq.engine().index(),
            (None, None) => init.send_cq.engine_or(|| {
                let owner = init.send_cq.owner();
                init.recv_cq.first_engine().unwrap_or_else(|| pd.engine_for(owner))
            }),
        };
        let engine = Arc::clone(pd.engine().at(index));
        let traffic = engine.lock().tables.traffic;
        let (index, qpn) = engine.insert_qp(|qpn| {
            let config = QpConfig {
                qpn,
                ty: init.ty,
                pd: pd.id(),
                cap,
                sq_sig_all: init.sq_sig_all,
                srq: init.srq.is_some(),
                max_path_mtu,
                // A checker sees each WRITE as a whole.
                equal_writes: engine.prefers_equal_packets() && !sys::guarded::pages::hears_requests(),
            };
            let mut qp = TransportQp::new(config)?;
            qp.set_initial_rate_limit(traffic.rate_limit_kbps);
            Ok(QpEntry::new(qp, cqs, srqs, Arc::clone(pd.events()), init.cookie))
        })?;
        let (send_cq, recv_cq) = (init.send_cq.clone(), init.recv_cq.clone());
        send_cq.add_engine(engine.index());
        recv_cq.add_engine(engine.index());
        let (pd, srq) = (pd.clone(), init.srq.clone());
        let _xrcd = xrcd.cloned();
        let ty = init.ty;
        Ok(Self(Arc::new(QpInner { pd, engine, qpn, index, ty, cap, send_cq, recv_cq, srq, _xrcd, _share })))
    }

    /// Returns its QPN.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// Returns its transport service.
    #[must_use]
    pub fn ty(&self) -> QpType {
        self.0.ty
    }

    /// Returns the granted sizes.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.0.cap
    }

    /// Returns the protection domain.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Returns the CQ of its send completions.
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        &self.0.send_cq
    }

    /// Returns the CQ of its receive completions.
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        &self.0.recv_cq
    }

    /// Returns the shared receive queue, if it uses one.
    #[must_use]
    pub fn srq(&self) -> Option<&Srq> {
        self.0.srq.as_ref()
    }

    /// Changes attributes and state (ibv_modify_qp(3)); the mask must fit the transition.
    ///
    /// # Errors
    /// `EINVAL` for a wrong mask, state, value, GID index or a path MTU above the port's.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        if mask.contains(QpAttrMask::STATE) && matches!(attr.state, QpState::Rtr | QpState::Rts) {
            // Packets may arrive or leave from now on, and the application may have installed handlers since
            // it registered its memory.
            guard::watch();
        }
        let engine = self.engine();
        let leaves = mask.contains(QpAttrMask::STATE) && matches!(attr.state, QpState::Err | QpState::Reset);
        if leaves && !matches!(self.state(), QpState::Reset | QpState::Init | QpState::Err) {
            engine.drain();
        }
        let to = if mask.contains(QpAttrMask::AV) {
            let qpn = mask.contains(QpAttrMask::DEST_QPN).then_some(attr.dest_qp);
            engine.destination(attr.av.dgid.ip(), qpn)
        } else {
            Destination::Elsewhere
        };
        let mut core = engine.lock();
        let result = self.modify_locked(&mut core, attr, mask, leaves, to);
        engine.wake_for(&core);
        engine.unlock_and_spread(core);
        result
    }

    /// Changes attributes and state. `leaves`: the queue pair leaves its connection. `to`: where the address
    /// vector leads.
    fn modify_locked(
        &self,
        core: &mut Core,
        attr: &QpAttr,
        mask: QpAttrMask,
        leaves: bool,
        to: Destination,
    ) -> Result<(), VerbsError> {
        if mask.contains(QpAttrMask::AV) && core.tables.source_ip(attr.av.sgid_index).is_none() {
            return Err(refuse_gid_index(attr.av.sgid_index));
        }
        let (now, index) = (self.engine().now(), self.0.index);
        if leaves {
            core.send_last_ack(now, index);
        }
        if attr.state == QpState::Reset && mask == QpAttrMask::STATE {
            core.complete_begun_receive(now, index);
        }
        let entry = self.entry(core)?;
        if let Err(error) = entry.qp.modify(now, attr, mask) {
            // The last ACK may have left the queue pair without a place among the ready ones.
            core.tables.update_after_input(now, index);
            core.transmit(now);
            return Err(error);
        }
        if entry.qp.state() == QpState::Reset {
            let (send, recv) = (Arc::clone(&entry.send_cq), Arc::clone(&entry.recv_cq));
            send.purge(self.0.qpn.value());
            recv.purge(self.0.qpn.value());
        }
        let bound = if mask.contains(QpAttrMask::AV) {
            core.bind_flow(index, to).map(|()| core.tables.tell_peer(now, index))
        } else {
            Ok(())
        };
        if sys::trace::is_on() && mask.contains(QpAttrMask::STATE) {
            core.trace_state(index);
        }
        core.tables.update_after_input(now, index);
        core.transmit(now);
        bound
    }

    /// The queue pair in its engine, as long as a handle lives.
    pub(super) fn entry<'c>(&self, core: &'c mut Core) -> Result<&'c mut QpEntry, VerbsError> {
        core.tables.by_qpn(self.0.qpn).ok_or_else(|| no_queue_pair(self.0.index))
    }

    /// Returns the current attributes.
    ///
    /// # Errors
    /// `EINVAL` if the QP does not exist, which cannot happen while this handle lives.
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        let mut core = self.engine().lock();
        Ok(self.entry(&mut core)?.qp.attr())
    }

    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> QpState {
        let mut core = self.engine().lock();
        core.tables.by_qpn(self.0.qpn).map_or(QpState::Err, |entry| entry.qp.state())
    }

    /// Queues a send and rings the doorbell.
    ///
    /// # Errors
    /// `ENOMEM` when the queue is full; `EINVAL` for an unsuitable state, opcode, length or SGE count.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.begin_post().send(wr)
    }

    /// Begins a batch of posts; the doorbell rings when the guard is dropped.
    #[must_use]
    pub fn begin_post(&self) -> PostGuard<'_> {
        let engine = self.engine();
        let spread = SpreadKeys { engine, due: false };
        PostGuard { index: self.0.index, core: engine.lock_to_post(), posted: 0, spread }
    }

    /// Queues a receive.
    ///
    /// # Errors
    /// `ENOMEM` when the queue is full; `EINVAL` in RESET, with an SRQ, or for too many SGEs.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        let mut core = self.engine().lock_to_post();
        let entry = self.entry(&mut core)?;
        entry.qp.post_recv(wr)?;
        if entry.qp.state() == QpState::Err {
            core.tables.update_after_input(self.engine().now(), self.0.index);
        }
        Ok(())
    }

    /// Delivers messages to a multicast group also to this queue pair (ibv_attach_mcast(3)).
    ///
    /// # Errors
    /// `EINVAL` unless it is a UD queue pair and `group` a multicast address; `ENOMEM` beyond the device's
    /// limit.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.engine().lock().attach_group(self.0.qpn, group)
    }

    /// Stops the delivery of messages to a multicast group (ibv_detach_mcast(3)).
    ///
    /// # Errors
    /// `EINVAL` if it was not attached.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.engine().lock().detach_group(self.0.qpn, group)
    }

    /// Stops the delivery of messages to all multicast groups.
    pub fn leave_groups(&self) {
        let mut core = self.engine().lock();
        core.tables.groups.remove_qp(self.0.index);
        core.sync_groups();
    }

    /// True if it is attached to a multicast group.
    #[must_use]
    pub fn in_group(&self) -> bool {
        self.engine().lock().tables.groups.contains(self.0.index)
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }
}

/// A batch of sends under one lock and one doorbell (a post list).
pub struct PostGuard<'a> {
    index: QpIndex,
    core: Locked<'a, Core>,
    /// Number of posted work requests.
    posted: usize,
    /// Declared after `core`, so that it is dropped after the lock is released.
    spread: SpreadKeys<'a>,
}

/// On drop, copies bound keys to the device's other engines if `due`.
struct SpreadKeys<'a> {
    engine: &'a Engine,
    due: bool,
}

impl Drop for SpreadKeys<'_> {
    fn drop(&mut self) {
        if self.due {
            self.engine.spread_keys();
        }
    }
}

impl PostGuard<'_> {
    /// Queues one send.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    #[inline]
    pub fn send(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.posted += 1;
        let result = self.core.tables.post_send(self.index, wr);
        if sys::trace::is_on() {
            self.trace(&result);
        }
        result
    }

    #[cold]
    fn trace(&self, result: &Result<(), VerbsError>) {
        if let (Ok(()), Some(entry)) = (result, self.core.tables.qp(self.index)) {
            trace::posted(&entry.qp);
        }
    }

    /// Once for the whole list, when the guard is dropped.
    #[inline]
    fn ring_doorbell(&mut self) {
        if self.posted > 0 {
            self.spread.engine.ring_doorbell(&mut self.core, self.index, self.posted);
            self.spread.due = self.core.tables.mrs.has_changed();
        }
    }
}

impl Drop for PostGuard<'_> {
    fn drop(&mut self) {
        self.ring_doorbell();
    }
}
