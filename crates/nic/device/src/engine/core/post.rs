//! The doorbell: work requests were posted. Whether they leave now is decided once.

use transport::Instant;

use super::Core;
use crate::port::{FlowId, TxRoom};
use crate::qp_numbers::QpIndex;
use crate::sched::{Decision, Trigger, budget_pkts, decide};

impl Core {
    /// `work_requests` were posted to a queue pair in one list: they leave now, or are held for a larger
    /// batch. Returns false if the progress thread need not learn of it, because an earlier post of this
    /// queue pair is still held or blocked.
    #[inline]
    pub(crate) fn post(&mut self, clock: impl Fn() -> Instant, index: QpIndex, work_requests: usize) -> bool {
        let queue = &self.tables.queue;
        let Some(entry) = self.tables.qp(index) else { return false };
        let backlog = entry.backlog();
        let flow = entry.share.flow();
        let room_pkts = queue.room_pkts(flow);
        // An ACK on the flow lists the queue pair again. A local operation has no pending packet and needs no
        // window, so it is tried now.
        if queue.is_blocked(index)
            && backlog.pending_packets > 0
            && !backlog.has_event
            && budget_pkts(&backlog, room_pkts, &self.tuning) == 0
        {
            return false;
        }
        let is_listed = queue.is_listed(index);
        let trigger = Trigger::Post { work_requests, is_listed };
        match decide(trigger, &backlog, entry.send_cq.is_backlogged(), room_pkts, &self.tuning) {
            Decision::Hold if is_listed && !backlog.has_event => return false,
            Decision::Hold => self.tables.update_after_input(clock(), index),
            Decision::Send(quantum) => {
                let (now, sends) = (clock(), entry.qp.wants_transmit());
                if sends && !backlog.has_event && self.is_open(now, flow) {
                    let listed = self.tables.queue.take_out(index);
                    self.transmit_quantum(now, index, quantum);
                    self.port.flush();
                    self.tables.queue.pass_on_after(index, flow);
                    // The quantum was full, or has left space in the window for another queue pair.
                    if self.tables.queue.listed() > listed {
                        self.transmit(now);
                    }
                } else {
                    self.tables.update_after_input(now, index);
                    self.transmit(now);
                }
            }
        }
        true
    }

    /// Whether a queue pair may send now by the known window of its flow, and none waits for the port.
    #[inline]
    fn is_open(&mut self, now: Instant, flow: Option<FlowId>) -> bool {
        let state = self.port.tx_state(flow);
        let is_changed = self.tables.queue.set_window(flow, state.window_bytes);
        let is_delayed = self.tables.queue.is_port_full() || self.hooks.is_tx_paused(now);
        matches!(state.room, TxRoom::Open) && !is_changed && !is_delayed && !self.tables.observer.disturbs()
    }
}
