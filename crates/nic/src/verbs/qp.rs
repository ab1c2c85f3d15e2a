//! Queue pairs (ibv_create_qp(3), ibv_modify_qp(3), ibv_post_send(3)).

use std::sync::{Arc, MutexGuard, Weak};

use transport::{
    MAX_QP_WR, MAX_SGE, Qp as TransportQp, QpAttr, QpAttrMask, QpCap, QpConfig, QpState, QpType,
};
use transport::{RecvWr, SendWr, VerbsError};
use wire::{Gid, Qpn};

use super::device::INLINE_MAX;
use super::{Cq, Pd, Srq, Xrcd};
use crate::engine::tables::QpEntry;
use crate::engine::{Core, Engine};
use crate::srqs::InReach;

/// What a new queue pair shall be.
#[derive(Clone)]
pub struct QpInitAttr {
    /// Service.
    pub ty: QpType,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// Receives come from here instead of its own queue.
    pub srq: Option<Srq>,
    /// Sizes asked for.
    pub cap: QpCap,
    /// Every send completes with a CQE, not only signalled ones.
    pub sq_sig_all: bool,
    /// Name used in its events.
    pub cookie: u64,
}

/// A queue pair.
#[derive(Clone)]
pub struct Qp(Arc<QpInner>);

struct QpInner {
    pd: Pd,
    engine: Arc<Engine>,
    qpn: Qpn,
    ty: QpType,
    cap: QpCap,
    send_cq: Cq,
    recv_cq: Cq,
    srq: Option<Srq>,
    /// The domain of an XRC receiving one, which is in use.
    _xrcd: Option<Xrcd>,
}

/// A handle that does not keep the queue pair.
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

impl Qp {
    pub(super) fn new(pd: &Pd, init: &QpInitAttr) -> Result<Self, VerbsError> {
        // The receiving end of XRC belongs to its domain: `Xrcd::create_qp`.
        if init.ty == QpType::XrcTgt {
            return Err(VerbsError::Invalid);
        }
        Self::build(pd, init, None)
    }

    /// The receiving end of XRC.
    pub(super) fn new_target(pd: &Pd, nowhere: &Cq, xrcd: &Xrcd, cookie: u64) -> Result<Self, VerbsError> {
        let init = QpInitAttr {
            ty: QpType::XrcTgt,
            send_cq: nowhere.clone(),
            recv_cq: nowhere.clone(),
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
        let too_big = cap.max_send_wr > MAX_QP_WR
            || cap.max_recv_wr > MAX_QP_WR
            || cap.max_send_sge as usize > MAX_SGE
            || cap.max_recv_sge as usize > MAX_SGE
            || cap.max_inline_data > INLINE_MAX;
        if too_big {
            return Err(VerbsError::Invalid);
        }
        cap.max_send_sge = cap.max_send_sge.max(1);
        cap.max_recv_sge = cap.max_recv_sge.max(1);
        if init.ty == QpType::XrcIni {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        let max_path_mtu = pd.context().device().gids().active_mtu();
        let cqs = (Arc::clone(init.send_cq.queue()), Arc::clone(init.recv_cq.queue()));
        let srqs = InReach { own: init.srq.as_ref().map(Srq::index), xrcd: xrcd.map(Xrcd::id) };
        let index = match (xrcd, &init.srq) {
            (Some(_), _) => 0,
            (None, Some(srq)) => srq.engine().index(),
            (None, None) => {
                init.send_cq.server_or(|| init.recv_cq.server().unwrap_or_else(|| pd.engine().next_in_turn()))
            }
        };
        let engine = Arc::clone(pd.engine().at(index));
        let traffic = engine.lock().tables.traffic;
        let qpn = engine.insert_qp(|qpn| {
            let config = QpConfig {
                qpn,
                ty: init.ty,
                pd: pd.id(),
                cap,
                sq_sig_all: init.sq_sig_all,
                srq: init.srq.is_some(),
                max_path_mtu,
                equal_writes: engine.prefers_equal_packets(),
            };
            let mut qp = TransportQp::new(config)?;
            qp.set_initial_rate_limit(traffic.rate_limit_kbps);
            Ok(QpEntry::new(qp, cqs, srqs, Arc::clone(pd.events()), init.cookie))
        })?;
        let (send_cq, recv_cq) = (init.send_cq.clone(), init.recv_cq.clone());
        send_cq.serve_by(index);
        recv_cq.serve_by(index);
        let (pd, srq) = (pd.clone(), init.srq.clone());
        let _xrcd = xrcd.cloned();
        Ok(Self(Arc::new(QpInner { pd, engine, qpn, ty: init.ty, cap, send_cq, recv_cq, srq, _xrcd })))
    }

    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// Its service.
    #[must_use]
    pub fn ty(&self) -> QpType {
        self.0.ty
    }

    /// Capacities granted.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.0.cap
    }

    /// The domain it belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Where sends complete.
    #[must_use]
    pub fn send_cq(&self) -> &Cq {
        &self.0.send_cq
    }

    /// Where receives complete.
    #[must_use]
    pub fn recv_cq(&self) -> &Cq {
        &self.0.recv_cq
    }

    /// The shared receive queue, if it uses one.
    #[must_use]
    pub fn srq(&self) -> Option<&Srq> {
        self.0.srq.as_ref()
    }

    /// Changes attributes and state; the mask must fit the transition.
    ///
    /// # Errors
    /// `Invalid` for a wrong mask, state, value, GID index or a path MTU above the port's.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let engine = self.engine();
        let mut core = engine.lock();
        let index = self.0.qpn.value() as u16;
        if mask.contains(QpAttrMask::AV) && core.tables.source_ip(attr.av.sgid_index).is_none() {
            return Err(VerbsError::Invalid);
        }
        let now = engine.now();
        let entry = core.tables.by_qpn(self.0.qpn).ok_or(VerbsError::Invalid)?;
        entry.qp.modify(now, attr, mask)?;
        if entry.qp.state() == QpState::Reset {
            let (send, recv) = (Arc::clone(&entry.send_cq), Arc::clone(&entry.recv_cq));
            send.purge(self.0.qpn.value());
            recv.purge(self.0.qpn.value());
        }
        if mask.contains(QpAttrMask::AV) {
            core.bind_flow(index)?;
        }
        core.tables.update_after_input(now, index);
        core.transmit(now);
        engine.unlock_and_spread(core);
        Ok(())
    }

    /// Attributes as they are now.
    ///
    /// # Errors
    /// None while the QP lives.
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        let mut core = self.engine().lock();
        core.tables.by_qpn(self.0.qpn).map(|entry| entry.qp.attr()).ok_or(VerbsError::Invalid)
    }

    /// State now.
    #[must_use]
    pub fn state(&self) -> QpState {
        let mut core = self.engine().lock();
        core.tables.by_qpn(self.0.qpn).map_or(QpState::Err, |entry| entry.qp.state())
    }

    /// Queues a send and rings the doorbell.
    ///
    /// # Errors
    /// `NoMem` when the queue is full; `Invalid` for a state, opcode, length or SGE count that does not fit.
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.begin_post().send(wr)
    }

    /// Begins a batch of posts that leave together; the doorbell rings when the guard is dropped.
    #[must_use]
    pub fn begin_post(&self) -> PostGuard<'_> {
        let engine = self.engine();
        let spread = SpreadKeys { engine, due: false };
        PostGuard { qpn: self.0.qpn, core: engine.lock(), posted: 0, spread }
    }

    /// Queues a receive.
    ///
    /// # Errors
    /// `NoMem` when the queue is full; `Invalid` in RESET, with an SRQ, or for too many SGEs.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        let mut core = self.engine().lock();
        let entry = core.tables.by_qpn(self.0.qpn).ok_or(VerbsError::Invalid)?;
        entry.qp.post_recv(wr)?;
        if entry.qp.state() == QpState::Err {
            core.tables.update_after_input(self.engine().now(), self.0.qpn.value() as u16);
        }
        Ok(())
    }

    /// Delivers what is sent to a multicast group to this queue pair, too (ibv_attach_mcast(3)).
    ///
    /// # Errors
    /// `Invalid` unless it is a UD queue pair and `group` a multicast address; `NoMem` beyond the device's limit.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.engine().lock().attach_group(self.0.qpn, group)
    }

    /// Ends that.
    ///
    /// # Errors
    /// `Invalid` if it was not attached.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), VerbsError> {
        self.engine().lock().detach_group(self.0.qpn, group)
    }

    /// Whether it is attached to a multicast group.
    #[must_use]
    pub fn in_group(&self) -> bool {
        self.engine().lock().tables.groups.has(self.0.qpn.value() as u16)
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.0.engine
    }
}

/// A batch of sends under one lock and one doorbell (a post list).
pub struct PostGuard<'a> {
    qpn: Qpn,
    core: MutexGuard<'a, Core>,
    /// Work requests.
    posted: usize,
    /// Dropped when the lock no longer is held.
    spread: SpreadKeys<'a>,
}

/// Tells the device's other engines of what was bound.
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
        self.core.tables.post_send(self.qpn.value() as u16, wr)
    }

    /// Once for the whole list, when the guard is dropped.
    #[inline]
    fn ring_doorbell(&mut self) {
        if self.posted > 0 {
            self.spread.engine.ring_doorbell(&mut self.core, self.qpn.value() as u16, self.posted);
            self.spread.due = self.core.tables.mrs.has_changed();
        }
    }
}

impl Drop for PostGuard<'_> {
    fn drop(&mut self) {
        self.ring_doorbell();
    }
}
