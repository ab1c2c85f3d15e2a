//! The values of completion counters, and which counters a queue pair updates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use transport::{CompletionCount, CountedOp, Qp};

/// The values of one counter. The engines of its queue pairs add to them, the application reads them.
#[derive(Debug, Default)]
pub(crate) struct CounterValues {
    /// Counts bytes instead of operations.
    pub(crate) counts_bytes: bool,
    pub(crate) completions: AtomicU64,
    pub(crate) errors: AtomicU64,
}

/// The counters of a queue pair, by kind of operation.
#[derive(Debug, Default)]
pub(crate) struct AttachedCounters([Option<Arc<CounterValues>>; CountedOp::COUNT]);

impl CounterValues {
    fn add(&self, count: &CompletionCount) {
        let more = if self.counts_bytes { count.bytes } else { count.completions };
        // `errors` first: an application that sees these completions also sees the errors of the same call.
        self.errors.fetch_add(count.errors, Ordering::Release);
        self.completions.fetch_add(more, Ordering::Release);
    }
}

impl AttachedCounters {
    /// Whether a kind in `op_mask` has a counter.
    pub(crate) fn overlaps(&self, op_mask: u32) -> bool {
        CountedOp::ALL.iter().any(|op| op_mask & op.bit() != 0 && self.0[*op as usize].is_some())
    }

    /// Makes the kinds in `op_mask` update this counter.
    pub(crate) fn attach(&mut self, op_mask: u32, values: &Arc<CounterValues>) {
        for op in CountedOp::ALL.iter().filter(|op| op_mask & op.bit() != 0) {
            self.0[*op as usize] = Some(Arc::clone(values));
        }
    }

    /// Adds what the queue pair has completed since the last call.
    #[inline]
    pub(crate) fn update(&self, qp: &mut Qp) {
        let Some(counts) = qp.take_completion_counts() else { return };
        for (values, count) in self.0.iter().zip(&counts) {
            if let Some(values) = values {
                values.add(count);
            }
        }
    }
}
