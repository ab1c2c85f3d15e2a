//! What the engine's lock protects, and the order of one poll: receive, timers, transmit.

use std::net::IpAddr;

use transport::{AddressVector, Instant, VerbsError};
use wire::{FlushIcrc, Qpn};

use super::tables::{QpEntry, Tables};
use crate::hook::Hooks;
use crate::port::{FlowKey, Port, RxQueues, RxScope};
use crate::sched::{Decision, Trigger, Tuning, decide};

/// The device behind the engine's lock. It takes the time and reads no clock.
pub(crate) struct Core {
    pub(crate) port: Box<dyn Port>,
    pub(crate) hooks: Hooks,
    pub(crate) tables: Tables,
    pub(super) tuning: Tuning,
    /// Polls so far: completion queues count their credits by it.
    pub(super) polls: u64,
}

impl Core {
    pub(crate) fn new(port: Box<dyn Port>, hooks: Hooks, tables: Tables, tuning: Tuning) -> Self {
        Self { port, hooks, tables, tuning, polls: 0 }
    }

    /// Whether only timers can have work, as far as that is known at the cost of a load.
    #[inline]
    pub(super) fn is_quiet(&mut self) -> bool {
        self.tables.queue.is_empty() && self.port.is_quiet()
    }

    /// Receives, runs timers and transmits one batch; several batches while READ responses are owed, so
    /// that a request for a lost response is not behind all that are left. Returns the number of batches
    /// received.
    #[inline]
    pub(crate) fn poll(&mut self, clock: impl Fn() -> Instant, queues: RxQueues, trigger: Trigger) -> usize {
        self.polls += 1;
        let mut batches = 0;
        for _ in 0..self.tuning.response_batches {
            let now = clock();
            batches += self.receive(now, queues.into());
            batches += self.expire(now, queues);
            if !self.transmit_round(now, trigger) {
                return batches;
            }
        }
        self.transmit(clock());
        batches
    }

    /// Runs the timers that are due, after everything has been read that lies in the sockets: a response
    /// that has arrived is not overdue, however long this process was kept from reading it. Returns the
    /// number of batches received.
    pub(crate) fn expire(&mut self, now: Instant, queues: RxQueues) -> usize {
        if self.tables.timers.next().is_none_or(|at| at > now) {
            return 0;
        }
        let mut batches = 0;
        for _ in 0..self.tuning.drain_batches {
            let received = self.receive(now, RxScope { everything: true, ..queues.into() });
            batches += received;
            if received == 0 {
                break;
            }
        }
        self.tables.expire(now);
        batches
    }

    /// The doorbell: `work_requests` were posted to a queue pair in one list. Returns false if nothing has
    /// changed that the progress thread must know: an earlier post that is still held has seen to that.
    #[inline]
    pub(crate) fn posted(&mut self, clock: impl Fn() -> Instant, index: u16, work_requests: usize) -> bool {
        let Some(entry) = self.tables.qp(index) else { return false };
        let (backlog, is_backlogged) = (entry.qp.backlog(), entry.send_cq.is_backlogged());
        let is_listed = self.tables.queue.is_listed(index);
        let trigger = Trigger::Post { work_requests, is_listed };
        // The room in the flow is looked at when the packets leave.
        let leaves = decide(trigger, &backlog, is_backlogged, 0, &self.tuning) != Decision::Hold;
        if !leaves && is_listed && !backlog.has_event {
            return false;
        }
        self.update_after_post(clock(), index, leaves);
        true
    }

    /// A queue pair was posted to, and its packets leave now or stay on the ready list.
    pub(crate) fn update_after_post(&mut self, now: Instant, index: u16, leaves: bool) {
        let only_sends = |entry: &QpEntry| !entry.qp.has_event() && entry.qp.wants_transmit();
        if leaves && self.tables.qp(index).is_some_and(only_sends) {
            // Its timer is armed in its quantum, after the packets have left.
            self.tables.queue.list(index);
        } else {
            self.tables.update_after_input(now, index);
        }
        if leaves {
            self.transmit(now);
        }
    }

    /// The earliest time at which this core must run again although nothing arrives.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let held = self.hooks.next_due_ns().map(Instant);
        let room = self.tables.queue.retry_at(now, self.tuning.port_retry_ns);
        [self.tables.timers.next(), held, room].into_iter().flatten().min()
    }

    /// Opens (or finds) the flow that a queue pair's address vector means.
    pub(crate) fn bind_flow(&mut self, index: u16) -> Result<(), VerbsError> {
        let entry = self.tables.qp(index).ok_or(VerbsError::Invalid)?;
        let (av, dest_qp) = (*entry.qp.av(), entry.qp.dest_qpn());
        let src = self.tables.source_ip(av.sgid_index).ok_or(VerbsError::Invalid)?;
        let traffic = self.tables.traffic;
        let (tos, flush_icrc) = (traffic.class(av.traffic_class), traffic.flush_icrc);
        let key = FlowKey { tos, flush_icrc, ..flow_key(src, &av, dest_qp) };
        let flow = self.port.open_flow(&key).map_err(|_| VerbsError::Invalid)?;
        if let Some(old) = self.tables.move_to_flow(index, Some(flow)) {
            self.port.close_flow(old);
        }
        Ok(())
    }

    /// Makes a delayed ACK of a queue pair leave with the next [`transmit`](Self::transmit).
    pub(super) fn release_ack(&mut self, index: u16) {
        if let Some(entry) = self.tables.qp_mut(index) {
            entry.qp.release_ack();
            if entry.qp.wants_transmit() {
                self.tables.queue.list(index);
            }
        }
    }

    /// As [`release_ack`](Self::release_ack), for all queue pairs.
    pub(super) fn release_acks(&mut self) {
        let indices: Vec<u16> = self.tables.qps().map(|(index, _)| index).collect();
        indices.into_iter().for_each(|index| self.release_ack(index));
    }

    /// Destroys a queue pair; its peer gets a delayed ACK first.
    pub(super) fn remove_qp(&mut self, now: Instant, qpn: Qpn) {
        self.release_ack(qpn.value() as u16);
        self.transmit(now);
        if let Some(flow) = self.tables.remove_qp(qpn) {
            self.port.close_flow(flow);
        }
        self.sync_groups();
    }
}

/// The flow from `src` that an address vector and a destination QP mean.
pub(crate) fn flow_key(src: IpAddr, av: &AddressVector, dest_qp: Qpn) -> FlowKey {
    FlowKey {
        src,
        dst: av.dgid.ip(),
        dst_slot: (dest_qp.value() >> 16) as u8,
        tos: av.traffic_class,
        ttl: av.hop_limit.max(1),
        flush_icrc: FlushIcrc::Iba,
    }
}
