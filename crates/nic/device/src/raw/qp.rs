//! Raw packet queue pairs and flow rules as handles (ibv_create_qp(3), ibv_create_flow(3)).

use std::sync::Arc;

use transport::{QpAttr, QpAttrMask, QpCap, QpState, RecvQueue, RecvWr, SendWr, VerbsError, refuse};
use wire::Qpn;

use super::queue::{Completer, Queue, SendSide, base};
use super::rss::RxHash;
use super::state::Entry;
use super::table::{FlowAttr, QueueId};
use super::wq::IndTable;
use super::{Raw, no_queue};
use crate::same_device;
use crate::verbs::{Cq, Pd, Qp, check_sizes};

/// Attributes of a new raw packet queue pair.
#[derive(Clone)]
pub struct RawQpAttr {
    /// CQ of the send completions.
    pub send_cq: Cq,
    /// CQ of the receive completions.
    pub recv_cq: Cq,
    /// Requested sizes. The elements of a work request are at most as many as requested: none if 0.
    pub cap: QpCap,
    /// Every send makes a completion, not only signaled ones.
    pub sq_sig_all: bool,
    /// Identifies the queue pair in its events.
    pub cookie: u64,
}

/// A raw packet queue pair.
#[derive(Clone)]
pub struct RawQp(Arc<Inner>);

struct Inner {
    raw: Arc<Raw>,
    id: QueueId,
    /// Reserves the number and keeps domain and completion queues in use; it never leaves RESET.
    base: Qp,
    cap: QpCap,
    /// An RSS queue pair receives into the work queues of this table, and has no queues of its own.
    table: Option<IndTable>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.raw.lock().remove(self.id);
    }
}

/// A flow rule; dropping it removes the rule.
pub struct Flow {
    qp: RawQp,
    id: u64,
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Fails only if the device has ended, and its rules with it.
        let _ended = self.qp.0.raw.with(|state, _| state.remove_flow(self.id));
        self.qp.0.raw.kick.signal(1);
    }
}

#[cold]
fn no_states(qpn: Qpn) -> VerbsError {
    refuse!(EOPNOTSUPP, "queue pair", "rwq_ind_tbl"; qpn as Qpn;
        "the queue pair {qpn} (RSS) has no states and no attributes; its work queues have")
}

#[cold]
fn no_transition(qpn: Qpn, from: QpState, to: QpState) -> VerbsError {
    refuse!(EINVAL, "queue pair", "qp_state"; to as QpState, from as QpState, qpn as Qpn;
        "the queue pair {qpn} (raw) is in {from}, which has no transition to {to}")
}

impl RawQp {
    /// Creates a queue pair in state RESET.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW; `EINVAL` for sizes beyond the device's limits; `EOPNOTSUPP` for
    /// a netdev that is not Ethernet; `ENOMEM` if the device has its largest number.
    pub fn new(pd: &Pd, attr: &RawQpAttr) -> Result<Self, VerbsError> {
        check_sizes(&attr.cap)?;
        let (raw, cap) = (Raw::of(pd.engine())?, attr.cap);
        raw.lock().open()?;
        let base = base(pd, [&attr.send_cq, &attr.recv_cq], attr.cookie)?;
        let completer = |cq: &Cq| Completer {
            cq: Arc::clone(cq.queue()),
            number: base.qpn().value(),
            cookie: Some(attr.cookie),
            events: Arc::clone(pd.events()),
        };
        let send = SendSide {
            completer: completer(&attr.send_cq),
            pd: pd.id(),
            max_wr: cap.max_send_wr,
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            all_signaled: attr.sq_sig_all,
            outstanding: 0,
        };
        let queue = Queue {
            state: QpState::Reset,
            receives: RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge, pd.id())?,
            completer: completer(&attr.recv_cq),
            send: Some(send),
        };
        let id = raw.lock().insert(Entry::Queue(Box::new(queue)));
        Ok(Self(Arc::new(Inner { raw: Arc::clone(raw), id, base, cap, table: None })))
    }

    /// Creates an RSS queue pair: it only receives, into the work queues of `table`.
    ///
    /// # Errors
    /// `EINVAL` for a table of another device; `EPERM` without CAP_NET_RAW; `ENOMEM` if the device has
    /// its largest number of queue pairs.
    pub fn new_rss(pd: &Pd, table: &IndTable, hash: RxHash, cookie: u64) -> Result<Self, VerbsError> {
        let raw = Raw::of(pd.engine())?;
        same_device!("queue pair", "rwq_ind_tbl"; pd.device(), table.device())?;
        raw.lock().open()?;
        let cq = table.cq();
        let base = base(pd, [cq, cq], cookie)?;
        let id = raw.lock().insert(Entry::Rss { hash, table: table.queues() });
        let (raw, cap, table) = (Arc::clone(raw), QpCap::default(), Some(table.clone()));
        Ok(Self(Arc::new(Inner { raw, id, base, cap, table })))
    }

    /// Returns its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.0.base.qpn()
    }

    /// Returns the granted sizes.
    #[must_use]
    pub fn cap(&self) -> QpCap {
        self.0.cap
    }

    /// True for an RSS queue pair.
    #[must_use]
    pub fn is_rss(&self) -> bool {
        self.0.table.is_some()
    }

    /// True while flow rules lead to it.
    #[must_use]
    pub fn has_flows(&self) -> bool {
        self.0.raw.lock().has_flows(self.0.id)
    }

    /// Changes the state (ibv_modify_qp(3)).
    ///
    /// # Errors
    /// `EINVAL` for a mask that does not fit the transition, or a port other than 1; `EOPNOTSUPP` for an
    /// RSS queue pair, and for a rate limit.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        let (given, qpn) = (mask.bits(), self.qpn());
        if self.is_rss() {
            return Err(no_states(qpn));
        }
        if mask.contains(QpAttrMask::RATE_LIMIT) {
            return Err(refuse!(EOPNOTSUPP, "queue pair", "attr_mask"; given, qpn as Qpn;
                "the queue pair {qpn} (raw) has no rate limit (IBV_QP_RATE_LIMIT)"));
        }
        let id = self.0.id;
        self.0.raw.with(|state, engine| {
            let now = state.queue(id).ok_or_else(|| no_queue(id))?.state;
            let to = if mask.contains(QpAttrMask::STATE) { attr.state } else { now };
            let wanted = match (now, to) {
                (QpState::Reset, QpState::Err) => return Err(no_transition(qpn, now, to)),
                (_, QpState::Reset | QpState::Err)
                | (QpState::Init, QpState::Init | QpState::Rtr)
                | (QpState::Rtr | QpState::Rts, QpState::Rts) => QpAttrMask::empty(),
                (QpState::Reset, QpState::Init) => QpAttrMask::PORT,
                _ => return Err(no_transition(qpn, now, to)),
            };
            if mask & !(QpAttrMask::STATE | QpAttrMask::CUR_STATE) != wanted {
                let wanted = wanted.bits();
                return Err(refuse!(EINVAL, "queue pair", "attr_mask"; given, wanted, qpn as Qpn;
                    "the transition of the raw queue pair {qpn} takes the attributes {wanted:#x} besides the \
                     states, attr_mask has {given:#x}"));
            }
            let (asked, port) = (attr.cur_state, attr.port_num);
            if mask.contains(QpAttrMask::CUR_STATE) && asked != now {
                return Err(refuse!(EINVAL, "queue pair", "cur_qp_state"; asked as QpState, now as QpState;
                    "cur_qp_state is {asked}, the queue pair is in {now}"));
            }
            if wanted.contains(QpAttrMask::PORT) && port != 1 {
                return Err(refuse!(EINVAL, "queue pair", "port_num"; port; is "{port}, the only port is 1"));
            }
            state.set_state(engine.now(), id, to);
            Ok(())
        })?
    }

    /// Returns the current state; RTS for an RSS queue pair, which has no states.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.0.raw.lock().queue(self.0.id).map_or(QpState::Rts, |queue| queue.state)
    }

    /// Returns the current attributes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an RSS queue pair.
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        if self.is_rss() {
            return Err(no_states(self.qpn()));
        }
        let state = self.state();
        let port_num = u8::from(state != QpState::Reset);
        Ok(QpAttr { state, cur_state: state, port_num, ..QpAttr::default() })
    }

    /// Posts sends, each a whole frame from the Ethernet header on, and rings the doorbell. Returns the
    /// number of requests that were posted before the first refused one.
    ///
    /// # Errors
    /// With the number: `EINVAL` before RTS, for another operation than SEND, for an RSS queue pair, less
    /// than 14 bytes, too many SGEs or too much inline data; `ENOMEM` when the queue is full.
    pub fn post_send<'a>(
        &self,
        requests: impl Iterator<Item = Result<SendWr<'a>, VerbsError>>,
    ) -> Result<(), (usize, VerbsError)> {
        let id = self.0.id;
        let posted = self.0.raw.with(|state, engine| {
            let core = engine.lock();
            for (i, wr) in requests.enumerate() {
                wr.and_then(|wr| state.post_send(id, &wr, &core.tables.mrs)).map_err(|error| (i, error))?;
            }
            Ok(())
        });
        posted.map_err(|error| (0, error))?
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL` in RESET, for an RSS queue pair, and for too many SGEs; `ENOMEM` when the queue is full.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        let now = sys::now_ns();
        self.0.raw.lock().post_recv(transport::Instant(now), self.0.id, wr)
    }

    /// Creates a flow rule that leads frames to this queue pair.
    ///
    /// # Errors
    /// `EINVAL` for specifications of a rule that takes none; `ENOSPC` for a priority above 15; `ENOMEM` at
    /// the limit of the device.
    pub fn create_flow(&self, attr: &FlowAttr) -> Result<Flow, VerbsError> {
        let id = self.0.raw.with(|state, _| state.add_flow(attr, self.0.id))??;
        // The thread must watch the new sockets, too.
        self.0.raw.kick.signal(1);
        Ok(Flow { qp: self.clone(), id })
    }
}
