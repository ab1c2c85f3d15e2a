//! The first steps of a packet's way in: port and hooks, then the tables.

use transport::Instant;

use super::Core;
use crate::engine::outbox::Outbox;
use crate::port::{RxBatch, RxQueues, RxScope};

impl Core {
    /// Receives one round of batches from the port and passes each packet to its queue pair. Returns the
    /// number of batches.
    #[inline]
    pub(crate) fn receive(&mut self, now: Instant, scope: RxScope) -> usize {
        let Core { port, hooks, tables, is_polled, .. } = self;
        let mut deliver = |batch: &RxBatch<'_>| tables.receive_batch(now, batch);
        // A caller that wants everything is about to end something: half of a recording's memory is free for
        // it.
        let is_paused = hooks.is_paused(now);
        let batches = if is_paused && !(scope.everything && hooks.is_waiting_for_reader()) {
            0
        } else if let Some(stages) = hooks.ingress() {
            let scope = RxScope { with_icrc: true, ..scope };
            let batches = port.recv(scope, &mut |batch| stages.receive(batch, &mut deliver));
            stages.send_bounced(&mut **port);
            batches
        } else {
            port.recv(scope, &mut deliver)
        };
        if hooks.next_due_ns().is_some() {
            hooks.release(now.0, &mut **port, &mut deliver);
        }
        tables.end_of_batch(now, *is_polled);
        batches
    }

    /// Receives a batch that another process of this host has forwarded.
    pub(crate) fn receive_forwarded(&mut self, now: Instant, batch: &RxBatch<'_>) {
        let Core { port, hooks, tables, .. } = self;
        let mut deliver = |batch: &RxBatch<'_>| tables.receive_batch(now, batch);
        match hooks.ingress() {
            Some(stages) => {
                stages.receive(batch, &mut deliver);
                stages.send_bounced(&mut **port);
            }
            None => deliver(batch),
        }
        tables.end_of_batch(now, false);
    }

    /// Receives a packet that the hook redirected to a slot without a process.
    pub(crate) fn receive_passed(&mut self, now: Instant, batch: &RxBatch<'_>) {
        self.tables.receive_batch(now, batch);
        self.tables.end_of_batch(now, false);
    }

    /// Runs due timers, after all packets in the sockets were received: a response that waits in a socket
    /// must not cause a timeout, even if this process had no CPU for a while. Returns the number of batches
    /// received.
    pub(crate) fn expire(&mut self, now: Instant, queues: RxQueues) -> usize {
        // While packets wait for the reader of a recording, no peer can answer in time.
        if self.hooks.is_waiting_for_reader() || self.tables.timers.next().is_none_or(|at| at > now) {
            return 0;
        }
        let batches = self.drain(now, queues);
        self.tables.expire(now);
        batches
    }

    /// Processes the packets that have arrived: an ACK among them must not be lost to a request that is
    /// about to fail. Returns the number of batches.
    pub(crate) fn drain(&mut self, now: Instant, queues: RxQueues) -> usize {
        let scope = RxScope { everything: true, ..queues.into() };
        let mut batches = 0;
        for _ in 0..self.tuning.drain_batches {
            let received = self.receive(now, scope);
            batches += received;
            if received == 0 {
                break;
            }
        }
        batches
    }

    /// Whether something leaves once the lock is released.
    #[inline]
    pub(in crate::engine) fn has_outbox(&self) -> bool {
        !self.tables.outbox.is_empty() || self.hooks.has_redirected()
    }

    /// Takes it.
    pub(in crate::engine) fn take_outbox(&mut self) -> Outbox {
        let redirected = self.hooks.take_redirected();
        Outbox { redirected, ..std::mem::take(&mut self.tables.outbox) }
    }
}
