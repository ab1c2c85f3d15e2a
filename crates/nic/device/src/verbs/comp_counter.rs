//! Completion counters (ibv_create_comp_cntr(3)): how many operations of some queue pairs have completed.
//!
//! A counter counts unsignaled work requests, too. A WRITE of the peer may arrive as several WRITE Only
//! messages, and a READ as several requests (docs/deviations.md), so only their bytes can be counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use transport::{CountedOp, VerbsError, refuse};
use wire::Qpn;

use super::cq::poll_engines;
use super::quota::{COMP_COUNTER_MAX, Share};
use super::{Context, Qp};
use crate::comp_counter::CounterValues;
use crate::engine::Engine;
use crate::same_device;

/// What a counter counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CompCounterType {
    /// Completed operations.
    WorkRequests,
    /// The bytes of completed operations. Failed operations are counted one by one.
    Bytes,
}

/// A completion counter: the number of operations that succeeded, or their bytes, and of those that failed.
/// Both are modulo 2^64.
#[derive(Clone)]
pub struct CompCounter(Arc<Inner>);

struct Inner {
    values: Arc<CounterValues>,
    context: Context,
    /// The device's first engine.
    engine: Arc<Engine>,
    /// Bit n is set if engine n has queue pairs that update this counter.
    engine_mask: AtomicU32,
    _share: Share,
}

/// The kinds of operations that every counter counts.
const LOCAL_OPS: u32 =
    CountedOp::Send.bit() | CountedOp::Recv.bit() | CountedOp::Read.bit() | CountedOp::Write.bit();
/// The kinds that a counter of bytes counts besides.
const REMOTE_OPS: u32 = CountedOp::RemoteRead.bit() | CountedOp::RemoteWrite.bit();

impl Context {
    /// Creates a completion counter with the value 0.
    ///
    /// # Errors
    /// `ENOMEM` at the limit of the device; `ENODEV` if the engine does not start.
    pub fn create_comp_counter(&self, ty: CompCounterType) -> Result<CompCounter, VerbsError> {
        let engine = self.device().engine_or_refusal()?;
        let _share = self.quotas().comp_counters.take()?;
        let values = CounterValues { counts_bytes: ty == CompCounterType::Bytes, ..CounterValues::default() };
        let (values, engine_mask, context) = (Arc::new(values), AtomicU32::new(0), self.clone());
        Ok(CompCounter(Arc::new(Inner { values, context, engine, engine_mask, _share })))
    }
}

impl CompCounter {
    /// Most counters of a device.
    pub const MAX: u32 = COMP_COUNTER_MAX;
    /// The kinds of operations that some counter counts ([`CountedOp::bit`]).
    pub const OPS: u32 = LOCAL_OPS | REMOTE_OPS;

    /// Makes a queue pair update this counter from now on, for the kinds of operations in `op_mask`
    /// ([`CountedOp::bit`]). It does so until it is destroyed.
    ///
    /// # Errors
    /// `EINVAL` in any state but RESET and INIT, for no kind, and for a queue pair of another device;
    /// `EOPNOTSUPP` for an unknown kind, and for operations of the peer unless the counter counts bytes;
    /// `EBUSY` if a kind has a counter.
    pub fn attach(&self, qp: &Qp, op_mask: u32) -> Result<(), VerbsError> {
        let Inner { values, context, engine_mask, .. } = &*self.0;
        if op_mask == 0 {
            return Err(refuse!(EINVAL, "completion counter", "op_mask"; op_mask; is "0: no operations"));
        }
        same_device!("completion counter", "qp"; context.device(), qp.pd().device())?;
        let supported = if values.counts_bytes { Self::OPS } else { LOCAL_OPS };
        if op_mask & !supported != 0 {
            return Err(refuse!(EOPNOTSUPP, "completion counter", "op_mask"; op_mask, supported;
                is "{op_mask:#x}, the counter counts the operations {supported:#x}"));
        }
        let mut core = qp.engine().lock();
        let entry = qp.entry(&mut core)?;
        if entry.counters.as_ref().is_some_and(|counters| counters.overlaps(op_mask)) {
            let qpn = qp.qpn();
            return Err(refuse!(EBUSY, "completion counter", "op_mask"; op_mask, qpn as Qpn;
                "the queue pair {qpn} has a counter for operations of op_mask {op_mask:#x}"));
        }
        entry.qp.count_completions()?;
        entry.counters.get_or_insert_default().attach(op_mask, values);
        engine_mask.fetch_or(1 << qp.engine().index(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the number of operations that succeeded, or of their bytes. Runs the engines of its queue
    /// pairs, as polling a CQ does.
    #[must_use]
    pub fn completions(&self) -> u64 {
        self.poll();
        self.0.values.completions.load(Ordering::Acquire)
    }

    /// Returns the number of operations that failed or were flushed. Runs the engines, too.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.poll();
        self.0.values.errors.load(Ordering::Acquire)
    }

    /// Sets the number of operations that succeeded.
    pub fn set_completions(&self, value: u64) {
        self.0.values.completions.store(value, Ordering::Relaxed);
    }

    /// Sets the number of operations that failed.
    pub fn set_errors(&self, value: u64) {
        self.0.values.errors.store(value, Ordering::Relaxed);
    }

    /// Adds to the number of operations that succeeded; the sum wraps.
    pub fn add_completions(&self, amount: u64) {
        self.0.values.completions.fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds to the number of operations that failed; the sum wraps.
    pub fn add_errors(&self, amount: u64) {
        self.0.values.errors.fetch_add(amount, Ordering::Relaxed);
    }

    /// True if a queue pair updates it.
    #[must_use]
    pub fn in_use(&self) -> bool {
        Arc::strong_count(&self.0.values) > 1
    }

    fn poll(&self) {
        poll_engines(&self.0.engine, self.0.engine_mask.load(Ordering::Relaxed));
    }
}
