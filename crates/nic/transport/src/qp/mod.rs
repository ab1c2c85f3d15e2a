//! A queue pair: the checks that every packet passes first, the ways into and out of the error states, and
//! its timers.
//!
//! `quantum.rs` sends, `backlog.rs` and `query.rs` report, `modify.rs` and `transition.rs` are
//! `ibv_modify_qp`. The halves are in `requester/` and `responder/`.

mod backlog;
mod modify;
mod quantum;
mod query;
mod transition;

pub use backlog::Backlog;
pub use quantum::TransmitQuantum;
pub use query::{PostedSend, Progress, PsnWindow};

use wire::{DropReason, Operation, PKey, Packet, Qpn, Service};

use crate::attr::{PathMtu, QpConfig, QpState, QpType};
use crate::cause::Cause;
use crate::completion_counts::{CompletionCount, CountedOp};
use crate::endpoint::Endpoint;
use crate::event::{AsyncEventKind, QpEvent};
use crate::fault::{Fault, NakKind};
use crate::memory::Memory;
use crate::recv_queue::{RecvQueue, SrqTable};
use crate::refusal::VerbsError;
use crate::refuse;
use crate::reorder::ReorderBuffer;
use crate::requester::{Requester, Step};
use crate::responder::Responder;
use crate::time::Instant;
use crate::trust::Half;
use crate::ud::{self, PacketSource, Received};
use crate::wr::{RecvWr, SendWr};

/// A queue pair, without clock, socket or memory of its own.
///
/// The owner passes input to `handle_packet` (and once per batch `end_of_batch`), `handle_timeout`,
/// `post_send`, `post_recv` and `modify`. Outputs are level-triggered: after any of these calls the owner
/// drains a [`transmit_quantum`](Self::transmit_quantum) and `poll_event` to `None`, then asks
/// `poll_timeout`. Only `new` and `modify` allocate.
#[derive(Debug)]
pub struct Qp {
    ep: Endpoint,
    requester: Requester,
    responder: Responder,
    rq: RecvQueue,
    /// COMM_EST was raised.
    established: bool,
    /// The largest path MTU that the port carries.
    max_path_mtu: PathMtu,
}

/// The ECN field of the traffic class, and its value in a packet that met congestion (RFC 3168, section 5).
const ECN: u8 = 3;
const ECN_CE: u8 = 3;

impl Qp {
    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// `EINVAL` when a size is above what the device has.
    pub fn new(config: QpConfig) -> Result<Self, VerbsError> {
        let rq = if config.srq {
            RecvQueue::new(0, 0, config.pd)?
        } else {
            RecvQueue::new(config.cap.max_recv_wr, config.cap.max_recv_sge, config.pd)?
        };
        Ok(Self {
            requester: Requester::new(&config)?,
            responder: Responder::new(),
            rq,
            ep: Endpoint::new(&config),
            established: false,
            max_path_mtu: config.max_path_mtu,
        })
    }

    /// Limits what the queue pair sends to this rate in kbit/s on the wire (0: no limit), until `modify` sets
    /// another limit. RESET restores this one.
    pub fn set_initial_rate_limit(&mut self, rate_limit_kbps: u32) {
        self.ep.attr.rate_limit = rate_limit_kbps;
        self.ep.congestion.set_initial_limit(rate_limit_kbps);
    }

    /// Queues a send work request; a [`transmit_quantum`](Self::transmit_quantum) sends it.
    ///
    /// # Errors
    /// `ENOMEM` when the queue is full (work requests count until their completions are polled), `EINVAL` for
    /// a malformed request or in RESET, INIT and RTR, `EFAULT` when inline data cannot be read.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>, mem: &impl Memory) -> Result<(), VerbsError> {
        self.requester.post(wr, mem, &mut self.ep)?;
        self.responder.ack.request_posted();
        Ok(())
    }

    /// Queues a receive work request.
    ///
    /// # Errors
    /// `ENOMEM` when the queue is full (work requests count until their completions are polled), `EINVAL` for
    /// too many elements, in RESET, or when the queue pair uses a shared receive queue or cannot receive.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        if self.ep.attr.state == QpState::Reset || self.ep.srq || self.ep.ty.service() == Service::Xrc {
            return Err(self.refuse_receive());
        }
        let taken = self.ep.events.recv + u32::from(self.responder.holds_wqe());
        if self.rq.len() + taken >= self.rq.max_wr() {
            return Err(self.rq.refuse_full());
        }
        if self.ep.attr.state == QpState::Err {
            self.ep.fail_recv(None, wr.wr_id, Cause::PostedInError);
            return Ok(());
        }
        self.rq.post(wr)
    }

    #[cold]
    fn refuse_receive(&self) -> VerbsError {
        let (qpn, ty) = (self.ep.qpn, self.ep.ty);
        if self.ep.srq {
            refuse!(EINVAL, "queue pair", "srq"; qpn as Qpn;
                "the queue pair {qpn} takes receives from its SRQ: use ibv_post_srq_recv")
        } else if ty.service() == Service::Xrc {
            refuse!(EINVAL, "queue pair", "qp_type"; ty as QpType, qpn as Qpn;
                "the queue pair {qpn} is {ty}: it has no receive queue")
        } else {
            let state = self.ep.attr.state;
            refuse!(EINVAL, "queue pair", "state"; state as QpState, qpn as Qpn;
                "the queue pair {qpn} is in {state}; receives can be posted from INIT on")
        }
    }

    /// Handles one packet addressed to this queue pair, after its ICRC was verified. `srqs` has its shared
    /// receive queue, if it uses one; `reorder` is the device's reorder buffer, the same one in every call.
    ///
    /// # Errors
    /// Why the packet was dropped, for counting. What the protocol sends in response to such a packet is sent
    /// all the same.
    #[inline]
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        from: &PacketSource,
        mem: &impl Memory,
        mut srqs: impl SrqTable,
        reorder: &mut ReorderBuffer,
    ) -> Result<(), DropReason> {
        let row = packet.row();
        let ep = &mut self.ep;
        let is_response = row.is_response();
        let wrong_end = match ep.ty {
            QpType::XrcIni => !is_response,
            QpType::XrcTgt => is_response,
            _ => false,
        };
        if row.service != ep.ty.service() || wrong_end {
            return self.handle_other_service(now, packet, from);
        }
        let accepted = match ep.attr.state {
            QpState::Rts | QpState::Sqd => true,
            QpState::Rtr | QpState::Sqe => !is_response,
            QpState::Reset | QpState::Init | QpState::Err => false,
        };
        if !accepted {
            return Err(DropReason::WrongState);
        }
        if !ep.ty.is_datagram() && from.src != ep.attr.av.dgid {
            return Err(DropReason::WrongPeer);
        }
        if !packet.bth.p_key.matches(PKey::DEFAULT) {
            return Err(DropReason::BadPKey);
        }
        ep.counters.rcvd_pkts += 1;
        let half = if is_response { Half::Responses } else { Half::Requests };
        if ep.ty.is_reliable() && !ep.trust.knows(half, from.src_port) {
            match half {
                Half::Requests => self.responder.admit_foreign(now, packet, from.src_port, ep)?,
                Half::Responses => self.requester.admit_foreign(now, packet, from.src_port, ep)?,
            }
        }
        let is_known = || !ep.ty.is_reliable() || ep.trust.knows(half, from.src_port);
        if from.tos & ECN == ECN_CE && !ep.ty.is_datagram() && is_known() {
            ep.counters.np_ecn_marked_roce_packets += 1;
            ep.congestion.on_marked(now);
        }
        if is_response {
            let step = self.requester.handle_response(now, packet, mem, ep)?;
            self.after(step);
            return Ok(());
        }
        if ep.attr.state == QpState::Rtr && !self.established && !ep.ty.is_datagram() {
            self.established = true;
            ep.events.push_async(AsyncEventKind::CommEst);
        }
        self.requester.acks.peer_request_arrived();
        let rq = srqs.own().filter(|_| ep.srq).unwrap_or(&mut self.rq);
        let result = match ep.ty {
            QpType::Rc => self.responder.handle_request(now, packet, mem, &mut Some(rq), reorder, ep),
            QpType::XrcIni | QpType::XrcTgt => {
                self.responder.handle_request(now, packet, mem, &mut srqs, reorder, ep)
            }
            QpType::Uc => self.responder.handle_unreliable(packet, mem, &mut Some(rq), ep),
            QpType::Ud | QpType::Gsi => {
                if ud::receive(packet, from, mem, rq, ep)? == Received::Fatal {
                    self.enter_err(Cause::FlushedAfterFailure);
                }
                Ok(Ok(()))
            }
        };
        result.unwrap_or_else(|fault| {
            self.on_fault(fault, self.responder.expected());
            Err(fault.row().reason)
        })
    }

    /// Handles a packet of another service. Only a congestion notification has an effect: it slows down what
    /// this queue pair sends, responses included.
    #[cold]
    fn handle_other_service(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        from: &PacketSource,
    ) -> Result<(), DropReason> {
        let ep = &mut self.ep;
        if packet.row().operation != Operation::Cnp || ep.ty.is_datagram() {
            return Err(DropReason::WrongService);
        }
        if matches!(ep.attr.state, QpState::Reset | QpState::Init | QpState::Err) {
            return Err(DropReason::WrongState);
        }
        if from.src != ep.attr.av.dgid {
            return Err(DropReason::WrongPeer);
        }
        if !packet.bth.p_key.matches(PKey::DEFAULT) {
            return Err(DropReason::BadPKey);
        }
        ep.counters.rcvd_pkts += 1;
        let has_sent = self.requester.in_flight() > 0;
        if ep.congestion.on_cnp(now, has_sent, ep.counters.sent_pkts) {
            ep.counters.rp_cnp_handled += 1;
        } else {
            ep.counters.rp_cnp_ignored += 1;
        }
        Ok(())
    }

    /// When `handle_timeout` must be called, at the latest; `None` when no timer runs.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = Instant::earliest(self.requester.deadline(&self.ep), self.responder.ack.deadline());
        Instant::earliest(deadline, self.ep.congestion.deadline())
    }

    /// Handles every timer that is due; does nothing when none is.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.responder.ack.handle_timeout(now);
        if let Some(pacer) = self.ep.congestion.pacer() {
            let was_holding = pacer.is_holding();
            pacer.handle_timeout(now);
            if was_holding && !pacer.is_holding() && self.requester.sendable(&self.ep) {
                // Until now the rate, and not the peer, held the packet back.
                self.requester.start_timer(now);
            }
        }
        let step = self.requester.handle_timeout(now, &mut self.ep);
        self.after(step);
    }

    /// The queue pair's own receive queue, unused with a shared one.
    pub fn recv_queue_mut(&mut self) -> &mut RecvQueue {
        &mut self.rq
    }

    /// Flushes the receives of the own queue if the state is ERR. For receives that were
    /// [hidden](RecvQueue::hide) when the queue pair entered it.
    pub fn flush_shown_receives(&mut self) {
        if self.ep.attr.state == QpState::Err {
            self.flush_receives(Cause::FlushedByPeer);
        }
    }

    /// Removes the next completion or event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.ep.events.pop()
    }

    /// Counts completed operations by kind from now on, for [`take_completion_counts`]. Allocates.
    ///
    /// [`take_completion_counts`]: Self::take_completion_counts
    ///
    /// # Errors
    /// `EINVAL` in any state but RESET and INIT.
    pub fn count_completions(&mut self) -> Result<(), VerbsError> {
        if !matches!(self.ep.attr.state, QpState::Reset | QpState::Init) {
            let (qpn, state) = (self.ep.qpn, self.ep.attr.state);
            return Err(refuse!(EINVAL, "queue pair", "state"; state as QpState, qpn as Qpn;
                "the queue pair {qpn} is in {state}; completions are counted from RESET or INIT on"));
        }
        self.ep.completion_counts.get_or_insert_default();
        Ok(())
    }

    /// Returns what has completed since the last call, by kind; `None` if nothing was counted.
    #[inline]
    pub fn take_completion_counts(&mut self) -> Option<[CompletionCount; CountedOp::COUNT]> {
        self.ep.completion_counts.as_mut()?.take()
    }

    /// Updates the queue pair after a step of the requester.
    #[inline]
    fn after(&mut self, step: Step) {
        match step {
            Step::Fatal if self.ep.ty.is_reliable() => {
                self.responder.silence();
                self.enter_err(Cause::FlushedAfterFailure);
            }
            Step::Fatal => {
                self.ep.attr.state = QpState::Sqe;
                self.requester.flush(Cause::FlushedAfterFailure, &mut self.ep);
            }
            Step::Idle | Step::Sent(_) if self.ep.attr.sq_draining => self.check_drained(),
            Step::Idle | Step::Sent(_) => {}
        }
    }

    /// Raises SQ_DRAINED, if the application asked for it, once everything is acknowledged.
    fn check_drained(&mut self) {
        if self.ep.attr.sq_draining && self.requester.is_drained() {
            self.ep.attr.sq_draining = false;
            if self.ep.attr.en_sqd_async_notify {
                self.ep.events.push_async(AsyncEventKind::SqDrained);
            }
        }
    }

    /// Does what the table of faults says about a fault of the request at `position`.
    fn on_fault(&mut self, fault: Fault, position: u64) {
        let row = fault.row();
        match row.nak {
            NakKind::Silence => {}
            _ if !self.ep.ty.is_reliable() => {}
            NakKind::Rnr => {
                self.ep.counters.send_rnr_err += 1;
                self.responder.nak_not_ready(position, self.ep.attr.min_rnr_timer);
            }
            NakKind::Nak(code) => self.responder.nak_fatal(position, code),
        }
        // In the error state only a response that was still due can fail: the peer is told, the application
        // is not.
        if !row.fatal || self.ep.attr.state == QpState::Err {
            return;
        }
        if row.nak == NakKind::Silence {
            self.responder.silence();
        }
        let is_completed = row.completion.is_some_and(|cause| self.responder.fail_wqe(cause, &mut self.ep));
        if let (false, Some(event)) = (is_completed, row.event) {
            self.ep.events.push_async(event);
        }
        self.enter_err(Cause::FlushedByPeer);
    }

    /// Enters ERR and flushes sends in order, then receives in order, all with this cause. A shared receive
    /// queue keeps its receives.
    fn enter_err(&mut self, cause: Cause) {
        self.ep.attr.state = QpState::Err;
        self.ep.attr.sq_draining = false;
        self.ep.congestion.silence();
        self.requester.flush(cause, &mut self.ep);
        self.responder.fail_wqe(cause, &mut self.ep);
        self.flush_receives(cause);
        if self.ep.srq {
            self.ep.events.push_async(AsyncEventKind::QpLastWqeReached);
        }
    }

    fn flush_receives(&mut self, cause: Cause) {
        while let Some(wr_id) = self.rq.take_id() {
            self.ep.fail_recv(None, wr_id, cause);
        }
    }
}

#[cfg(test)]
mod forger_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod xrc_tests;
