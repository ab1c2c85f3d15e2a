//! Work queues and indirection tables (ibv_create_wq(3), ibv_create_rwq_ind_table(3)).

use std::sync::Arc;

use transport::{Instant, QpState, RecvQueue, RecvWr, VerbsError, refuse};

use super::Raw;
use super::queue::{Completer, Queue, base};
use super::state::{Entry, State};
use super::table::QueueId;
use crate::same_device;
use crate::verbs::{Cq, Device, Pd, Qp};

/// States of a work queue (`enum ibv_wq_state`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WqState {
    /// It takes no receives.
    Reset = 0,
    /// It receives.
    Ready = 1,
    /// Receives complete with an error.
    Err = 2,
}

/// A work queue: receives of RSS queue pairs.
#[derive(Clone)]
pub struct RawWq(Arc<WqInner>);

struct WqInner {
    raw: Arc<Raw>,
    id: QueueId,
    base: Qp,
    cq: Cq,
    sizes: (u32, u32),
}

impl Drop for WqInner {
    fn drop(&mut self) {
        self.raw.lock().remove(self.id);
    }
}

impl RawWq {
    /// Creates a work queue in state RESET, for `max_wr` receives of up to `max_sge` elements.
    ///
    /// # Errors
    /// As [`RawQp::new`](super::RawQp::new).
    pub fn new(pd: &Pd, cq: &Cq, max_wr: u32, max_sge: u32, cookie: u64) -> Result<Self, VerbsError> {
        same_device!("work queue", "cq"; pd.device(), cq.device())?;
        let max_sge = max_sge.max(1);
        let receives = RecvQueue::new(max_wr, max_sge, pd.id())?;
        let raw = Raw::of(pd.engine())?;
        raw.lock().open()?;
        let base = base(pd, [cq, cq], cookie)?;
        let completer = Completer {
            cq: Arc::clone(cq.queue()),
            number: base.qpn().value(),
            cookie: None,
            events: Arc::clone(pd.events()),
        };
        let queue = Queue { state: QpState::Reset, receives, completer, send: None };
        let id = raw.lock().insert(Entry::Queue(Box::new(queue)));
        Ok(Self(Arc::new(WqInner {
            raw: Arc::clone(raw),
            id,
            base,
            cq: cq.clone(),
            sizes: (max_wr, max_sge),
        })))
    }

    fn device(&self) -> &Device {
        self.0.cq.device()
    }

    /// Returns its number, which its completions have as queue pair number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.0.base.qpn().value()
    }

    /// Returns the granted numbers of receives and of elements in each.
    #[must_use]
    pub fn sizes(&self) -> (u32, u32) {
        self.0.sizes
    }

    /// True while an indirection table refers to it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> WqState {
        state_of(&mut self.0.raw.lock(), self.0.id)
    }

    /// Changes the state (ibv_modify_wq(3)): from RESET to ready, from ready to ERR, and from any state to
    /// RESET. A change to the present state has no effect. With `from`, the present state must be that one.
    ///
    /// # Errors
    /// `EINVAL` for other transitions, and for another present state than `from`.
    pub fn modify(&self, from: Option<WqState>, to: WqState) -> Result<(), VerbsError> {
        let id = self.0.id;
        self.0.raw.with(|raw, engine| {
            let now = state_of(raw, id);
            if from.is_some_and(|from| from != now) {
                let now = now as u32;
                return Err(refuse!(EINVAL, "work queue", "curr_wq_state"; now;
                    "the work queue is in the state {now}, curr_wq_state is another"));
            }
            let state = match (now, to) {
                (WqState::Reset | WqState::Ready, WqState::Ready) => QpState::Rts,
                (_, WqState::Reset) => QpState::Reset,
                (WqState::Ready | WqState::Err, WqState::Err) => QpState::Err,
                (WqState::Reset, WqState::Err) | (WqState::Err, WqState::Ready) => {
                    let (from, to) = (now as u32, to as u32);
                    return Err(refuse!(EINVAL, "work queue", "wq_state"; to, from;
                        "a work queue has no transition from the state {from} to {to}"));
                }
            };
            if now != to {
                raw.set_state(engine.now(), id, state);
            }
            Ok(())
        })?
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `EINVAL` in RESET and for too many SGEs; `ENOMEM` when the queue is full.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        self.0.raw.lock().post_recv(Instant(sys::now_ns()), self.0.id, wr)
    }
}

fn state_of(state: &mut State, id: QueueId) -> WqState {
    match state.queue(id).map(|queue| queue.state) {
        Some(QpState::Rts) => WqState::Ready,
        Some(QpState::Reset) => WqState::Reset,
        _ => WqState::Err,
    }
}

/// A table of work queues; the hash of a frame selects one.
#[derive(Clone)]
pub struct IndTable(Arc<TableInner>);

struct TableInner {
    raw: Arc<Raw>,
    wqs: Vec<RawWq>,
}

impl Drop for TableInner {
    fn drop(&mut self) {
        self.raw.lock().tables -= 1;
    }
}

impl IndTable {
    /// Most entries of a table; its logarithm is that of the smallest ConnectX.
    pub const LEN_MAX: u32 = 128;
    /// Most tables of a device.
    pub const COUNT_MAX: u32 = 1024;

    /// Creates a table.
    ///
    /// # Errors
    /// `EINVAL` unless the number of entries is a power of two up to [`LEN_MAX`](Self::LEN_MAX), and all
    /// work queues are of one device; `ENOMEM` if the device has its largest number.
    pub fn new(wqs: Vec<RawWq>) -> Result<Self, VerbsError> {
        let len = wqs.len();
        let first = wqs.first().filter(|_| len.is_power_of_two() && len <= Self::LEN_MAX as usize);
        let first = first.ok_or_else(|| {
            let most = Self::LEN_MAX;
            refuse!(EINVAL, "indirection table", "log_ind_tbl_size"; len, most;
                "a table of {len} work queues; it has a power of two, up to {most}")
        })?;
        let raw = Arc::clone(&first.0.raw);
        for wq in &wqs {
            same_device!("indirection table", "ind_tbl"; first.device(), wq.device())?;
        }
        let mut state = raw.lock();
        let tables = state.tables;
        if tables >= Self::COUNT_MAX {
            return Err(refuse!(ENOMEM, "device", "indirection tables"; tables;
                "the device has its largest number of indirection tables, {tables}"));
        }
        state.tables += 1;
        drop(state);
        Ok(Self(Arc::new(TableInner { raw, wqs })))
    }

    /// True while an RSS queue pair uses it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the device of its work queues.
    #[must_use]
    pub fn device(&self) -> &Device {
        // A table is never empty.
        self.0.wqs[0].device()
    }

    /// Returns the completion queue of the first work queue.
    pub(super) fn cq(&self) -> &Cq {
        &self.0.wqs[0].0.cq
    }

    /// Returns the entries.
    pub(super) fn queues(&self) -> Box<[QueueId]> {
        self.0.wqs.iter().map(|wq| wq.0.id).collect()
    }
}
