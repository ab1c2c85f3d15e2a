//! What a process can know: whether it could have learned that an operation was executed.
//!
//! Messages carry knowledge. Whatever an application may learn without a completion counts as learned: the
//! peer of an operation sees its memory change as soon as the operation is executed, and sends what it knows
//! with each later message. Sockets and shared memory are not seen.

use std::collections::HashMap;

use roxie::trace::Use;

use super::area::Area;
use super::operation::{Operation, Operations};

/// Messages before a post that are looked at; beyond them everything counts as known.
const MESSAGES_MAX: usize = 20_000;
/// Messages of a chain of processes, at most; beyond them everything counts as known.
const HOPS_MAX: usize = 8;

/// Whether the process of `second` could know at its post, by messages, that `first` was executed and does
/// not use `area` any more. Both are among the operations.
pub(super) fn could_know(
    operations: &Operations,
    (first, area): (&Operation, &Area),
    second: &Operation,
) -> bool {
    let Operations { list: operations, others, .. } = operations;
    let Some(execution) = first.message.execution else { return true };
    let mut known = Known(HashMap::new());
    known.learns(execution.pid, execution.begin);
    // The result of a READ or atomic shows in memory before its completion.
    let is_answered = matches!(first.does, Use::Read | Use::Atomic);
    let completes = if first.tells_end(area) { first.polled } else { u64::MAX };
    known.learns(first.message.pid, if is_answered { execution.begin } else { completes });
    // The senders of these messages are not known; each may have known.
    for (process, times) in others {
        if let Some(next) = times.get(times.partition_point(|at| *at < execution.begin)) {
            known.learns(*process, *next);
        }
    }
    let until = operations.partition_point(|operation| operation.posted <= second.posted);
    let from = until.saturating_sub(MESSAGES_MAX);
    let is_whole = from == 0 || operations[from].posted < first.posted;
    for _ in 0..HOPS_MAX {
        if !is_whole || known.at(second.message.pid) <= second.posted {
            return true;
        }
        let mut has_changed = false;
        for message in &operations[from..until] {
            has_changed |= known.spreads_by(message);
        }
        if !has_changed {
            return false;
        }
    }
    true
}

/// From when on each process can know.
struct Known(HashMap<u32, u64>);

impl Known {
    fn at(&self, process: u32) -> u64 {
        self.0.get(&process).copied().unwrap_or(u64::MAX)
    }

    /// Returns whether that is new.
    fn learns(&mut self, process: u32, at: u64) -> bool {
        let is_new = at < self.at(process);
        if is_new {
            self.0.insert(process, at);
        }
        is_new
    }

    /// Returns whether a message tells a process more than it knew.
    fn spreads_by(&mut self, operation: &Operation) -> bool {
        let message = &operation.message;
        let Some(execution) = operation.message.execution else { return false };
        let (own, peer) = (message.pid, execution.pid);
        let mut is_new = false;
        // What the process knew while it posted reaches the peer; a READ shows the peer nothing.
        if operation.does != Use::Read && self.at(own) <= message.posted {
            is_new |= self.learns(peer, execution.begin.max(self.at(own)));
        }
        if self.at(peer) <= execution.end {
            // Memory of the peer comes back; the completion of a SEND tells that a receive was posted.
            let back = match operation.does {
                Use::Read | Use::Atomic => execution.begin.max(self.at(peer)),
                Use::Send if operation.is_acknowledged() => operation.polled,
                Use::Send | Use::Write | Use::AtomicWrite | Use::Nothing => u64::MAX,
            };
            is_new |= self.learns(own, back);
        }
        is_new
    }
}
