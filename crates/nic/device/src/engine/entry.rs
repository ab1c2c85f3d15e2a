//! The entry of a queue pair in the tables of an engine.

use std::sync::Arc;

use transport::{Backlog, Qp};

use crate::comp_counter::AttachedCounters;
use crate::cq::CompletionQueue;
use crate::events::{AsyncEvent, EventQueue};
use crate::sched::FlowShare;
use crate::srqs::SrqScope;

/// A queue pair with what the engine needs to serve it.
pub(crate) struct QpEntry {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Arc<CompletionQueue>,
    pub(crate) recv_cq: Arc<CompletionQueue>,
    pub(crate) srqs: SrqScope,
    /// Present while a completion counter is attached.
    pub(crate) counters: Option<Box<AttachedCounters>>,
    pub(super) events: Arc<EventQueue<AsyncEvent>>,
    /// The application's name for the queue pair in asynchronous events.
    pub(super) cookie: u64,
    /// The flow that a connected queue pair sends to, from the address vector, and its packets in flight.
    pub(super) share: FlowShare,
    /// The queue pair received packets in this batch.
    pub(super) touched: bool,
}

impl QpEntry {
    pub(crate) fn new(
        qp: Qp,
        cqs: (Arc<CompletionQueue>, Arc<CompletionQueue>),
        srqs: SrqScope,
        events: Arc<EventQueue<AsyncEvent>>,
        cookie: u64,
    ) -> Self {
        let (send_cq, recv_cq) = cqs;
        let (share, touched, counters) = (FlowShare::default(), false, None);
        Self { qp, send_cq, recv_cq, srqs, counters, events, cookie, share, touched }
    }

    /// What it has to send, for the scheduler.
    #[inline(always)]
    pub(super) fn backlog(&self) -> Backlog {
        #[cfg(test)]
        crate::sched::asked::count(&crate::sched::asked::BACKLOGS);
        self.qp.backlog()
    }
}
