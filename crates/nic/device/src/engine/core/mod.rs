//! The state that the engine's lock protects, and the order of one poll: receive, timers, transmit.

mod post;
mod receive;
mod transmit;

use std::io;

use transport::numbering::slot_of;
use transport::refusal::{Os, ip_halves, ip_of};
use transport::{AddressVector, Errno, Instant, QpAttr, QpAttrMask, QpState, QpType, VerbsError, refuse};
use wire::{FlushIcrc, Gid, Qpn};

use super::entry::QpEntry;
use super::multicast;
use super::tables::{Tables, no_queue_pair};
use crate::gid::{Source, refuse_gid_index};
use crate::port::{Destination, FlowKey, Port, RxQueues};
use crate::qp_numbers::QpIndex;
use crate::sched::{Quantum, Trigger, Tuning};
use crate::stages::Hooks;
use crate::trace;

/// The device behind the engine's lock. Its callers pass the time; it reads no clock.
pub(crate) struct Core {
    pub(crate) port: Box<dyn Port>,
    pub(crate) hooks: Hooks,
    pub(crate) tables: Tables,
    pub(super) tuning: Tuning,
    /// Polls so far. A completion queue spends at most one credit per poll.
    pub(super) polls: u64,
    /// The thread that holds the lock is an application's, which polls steadily.
    pub(super) is_polled: bool,
}

impl Core {
    pub(crate) fn new(port: Box<dyn Port>, hooks: Hooks, tables: Tables, tuning: Tuning) -> Self {
        Self { port, hooks, tables, tuning, polls: 0, is_polled: false }
    }

    /// Whether no queue pair is ready to send and the port reports no packets, so that at most timers have
    /// work. Reads memory only, without a system call: packets in kernel socket buffers are not seen.
    #[inline]
    pub(super) fn is_quiet(&mut self) -> bool {
        self.tables.queue.is_empty() && self.port.is_quiet()
    }

    /// Receives, runs timers and transmits one batch. While a queue pair owes READ responses it repeats this
    /// for several batches, so that a request for a lost response does not wait behind all other responses.
    /// Returns the number of batches received. `clock` is called once for each round, and once
    /// more before the last transmission.
    #[inline]
    pub(crate) fn poll(&mut self, clock: impl Fn() -> Instant, queues: RxQueues, trigger: Trigger) -> usize {
        self.polls += 1;
        let mut batches = 0;
        for _ in 0..self.tuning.response_batches {
            let now = clock();
            self.place_late(now);
            let received = self.receive(now, queues.into()) + self.expire(now, queues);
            batches += received;
            let owes_responses = self.transmit_round(now, trigger);
            if received > 0 && sys::trace::is_on() {
                trace::batch(now, received);
            }
            if !owes_responses {
                return batches;
            }
        }
        self.transmit(clock());
        batches
    }

    /// Returns the earliest time at which this core must run again even if no packet arrives. Reads `clock`
    /// only while packets wait for the port or for the reader of a recording.
    #[inline]
    pub(crate) fn next_deadline(&self, clock: impl Fn() -> Instant) -> Option<Instant> {
        let retry = || clock().plus_ns(self.tuning.port_retry_ns);
        if self.hooks.is_waiting_for_reader() {
            return Some(retry());
        }
        let held = self.hooks.next_due_ns().map(Instant);
        let room = (self.tables.queue.is_port_full() || self.port.has_unsent()).then(retry);
        let late = self.tables.observer.next(&self.tables.mrs, self.tables.queue.ready());
        let timers = Instant::earliest(self.tables.timers.next(), held);
        Instant::earliest(timers, Instant::earliest(room, late))
    }

    /// Places the bytes that were kept until now.
    #[inline]
    pub(super) fn place_late(&mut self, now: Instant) {
        self.tables.mrs.place_due(now);
    }

    /// Opens the flow for the address vector of a queue pair, which leads to `to`, or finds it if it is open.
    pub(crate) fn bind_flow(&mut self, index: QpIndex, to: Destination) -> Result<(), VerbsError> {
        let entry = self.tables.qp(index).ok_or_else(|| no_queue_pair(index))?;
        let (av, dest_qp) = (*entry.qp.av(), entry.qp.dest_qpn());
        let src = self.tables.gids.source(av.sgid_index).ok_or_else(|| refuse_gid_index(av.sgid_index))?;
        let traffic = self.tables.traffic;
        let (tos, flush_icrc) = (traffic.class(av.traffic_class), traffic.flush_icrc);
        let key = FlowKey { tos, flush_icrc, ..flow_key(src, &av, dest_qp) };
        let flow = self.port.open_flow(&key, to).map_err(|error| {
            let ([low, high], os) = (ip_halves(key.dst), Os::from(&error));
            refuse!(EINVAL, "address handle", "dgid"; low, high, os as Os; let dst = ip_of(low, high);
                "no packets can be sent to {dst}: {os} (ip route get {dst})")
        })?;
        if let Some(old) = self.tables.move_to_flow(index, Some(flow)) {
            self.port.close_flow(old);
        }
        let window_bytes = self.port.tx_state(Some(flow)).window_bytes;
        self.tables.queue.set_window(Some(flow), window_bytes);
        Ok(())
    }

    /// Records the state of a queue pair for `roxie trace`.
    #[cold]
    pub(crate) fn trace_state(&self, index: QpIndex) {
        if let Some(entry) = self.tables.qp(index) {
            let local = self.tables.source_ip(entry.qp.av().sgid_index).map(Gid::from);
            trace::moved(&entry.qp, local.unwrap_or_default());
        }
    }

    /// Makes an ACK of everything that a queue pair has executed leave with the next
    /// [`transmit`](Self::transmit).
    pub(super) fn release_ack(&mut self, index: QpIndex) {
        if let Some(entry) = self.tables.qp_mut(index) {
            entry.qp.release_ack();
            if entry.qp.wants_transmit() {
                self.tables.queue.list(index);
            }
        }
    }

    /// As [`send_last_ack`](Self::send_last_ack), for all queue pairs.
    pub(super) fn send_last_acks(&mut self, now: Instant) {
        let indices: Vec<QpIndex> = self.tables.qps().map(|(index, _)| index).collect();
        indices.into_iter().for_each(|index| self.send_last_ack(now, index));
    }

    /// A queue pair is about to leave its connection: its peer gets an ACK of everything that was executed,
    /// even if the port is full.
    pub(crate) fn send_last_ack(&mut self, now: Instant, index: QpIndex) {
        // Its memory is the application's afterwards.
        self.tables.mrs.place_all();
        self.release_ack(index);
        self.transmit(now);
        if self.tables.qp(index).is_some_and(|entry| entry.qp.wants_transmit()) {
            let quantum =
                Quantum { budget_pkts: 0, flush_at_pkts: usize::MAX, max_pkts: self.tuning.quantum_pkts };
            self.transmit_quantum(now, index, quantum);
            self.port.flush();
        }
    }

    /// Flushes the receive that a receiving XRC queue pair has taken for an unfinished message: it belongs
    /// to a shared receive queue, which outlives the queue pair. Moves the queue pair to ERR.
    pub(crate) fn complete_begun_receive(&mut self, now: Instant, index: QpIndex) {
        if let Some(entry) = self.tables.qp_mut(index).filter(|entry| entry.qp.ty() == QpType::XrcTgt) {
            let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
            // Any state but RESET may go to ERR, and in RESET no message is received.
            let _done = entry.qp.modify(now, &error, QpAttrMask::STATE);
            self.tables.update_after_input(now, index);
        }
    }

    /// Destroys a queue pair; its peer gets the last ACK first.
    pub(crate) fn remove_qp(&mut self, now: Instant, qpn: Qpn) {
        if let Some(index) = self.tables.index_of(qpn) {
            self.send_last_ack(now, index);
            self.complete_begun_receive(now, index);
            self.tables.tell_used(now, index);
        }
        if let Some(flow) = self.tables.remove_qp(qpn) {
            self.port.close_flow(flow);
        }
        // It has left space in the window of its flow.
        self.transmit(now);
        self.sync_groups();
    }

    /// Attaches a queue pair to a group; does nothing if it is attached.
    ///
    /// # Errors
    /// `EINVAL` unless it is a UD queue pair and `group` a multicast address that the netdev can join;
    /// `ENOMEM`.
    pub(crate) fn attach_group(&mut self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        let (index, entry) = self.attachable(qpn)?;
        let ip = group.ip();
        let ty = entry.qp.ty();
        if ty != QpType::Ud || !ip.is_multicast() {
            let [low, high] = ip_halves(ip);
            return Err(refuse!(EINVAL, "multicast group", "gid"; low, high, ty as QpType;
                let ip = ip_of(low, high);
                "{ip} and a queue pair of type {ty}; groups are multicast addresses, of UD"));
        }
        let ifindex = self.tables.gids.ifindex;
        self.tables.groups.attach(group, index, || multicast::join(ip, ifindex))?;
        if let Err(error) = self.port.hear_groups(true) {
            self.tables.groups.detach(group, index)?;
            let is_full = error.kind() == io::ErrorKind::OutOfMemory;
            let (errno, os) = (if is_full { Errno::ENOMEM } else { Errno::ENODEV }, Os::from(&error));
            return Err(refuse!((errno), "device", "multicast groups"; os as Os;
                "the port of the device cannot receive multicast packets: {os}"));
        }
        Ok(())
    }

    fn attachable(&mut self, qpn: Qpn) -> Result<(QpIndex, &QpEntry), VerbsError> {
        let index = self.tables.index_of(qpn);
        let found = index.and_then(|index| Some((index, &*self.tables.qp_mut(index)?)));
        found.ok_or_else(
            || refuse!(EINVAL, "queue pair", "qp_num"; qpn as Qpn; "the engine has no queue pair {qpn}"),
        )
    }

    /// Detaches a queue pair from a group.
    ///
    /// # Errors
    /// `EINVAL` if it is not attached.
    pub(crate) fn detach_group(&mut self, qpn: Qpn, group: Gid) -> Result<(), VerbsError> {
        let (index, _) = self.attachable(qpn)?;
        self.tables.groups.detach(group, index)?;
        self.sync_groups();
        Ok(())
    }

    /// Stops the port from receiving multicast packets if the last queue pair has left its group.
    pub(crate) fn sync_groups(&mut self) {
        if self.tables.groups.take_end() {
            // On failure, further multicast packets are dropped as not for this host.
            let _still_receiving = self.port.hear_groups(false);
        }
    }
}

/// Returns the key of the flow from `src` to the destination of an address vector.
pub(crate) fn flow_key(src: Source, av: &AddressVector, dest_qp: Qpn) -> FlowKey {
    FlowKey {
        src: src.ip,
        above: src.above,
        dst: av.dgid.ip(),
        dst_slot: slot_of(dest_qp),
        tos: av.traffic_class,
        ttl: av.hop_limit.max(1),
        flush_icrc: FlushIcrc::Iba,
    }
}
