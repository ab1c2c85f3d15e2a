//! A queue pair: the checks every packet passes first, the order of what is sent, and the ways into and out of the error
//! states. The halves are in `requester.rs` and `responder.rs`, what `modify` permits in `modify.rs`.

use wire::{DropReason, Operation, PKey, Packet, Qpn, Service};

use crate::attr::{PathMtu, QpAttr, QpConfig, QpState, QpType};
use crate::counters::QpCounters;
use crate::emit::{Buffer, Transmit, congestion_notification};
use crate::endpoint::Endpoint;
use crate::error::VerbsError;
use crate::event::{AsyncEventKind, QpEvent};
use crate::fault::{Fault, NakKind};
use crate::memory::{Memory, PdId};
use crate::recv_queue::{RecvQueue, SrqTable};
use crate::reorder::ReorderBuffer;
use crate::requester::{Requester, Step};
use crate::responder::Responder;
use crate::time::Instant;
use crate::ud::{self, PacketSource, Received};
use crate::wc::WcStatus;
use crate::wr::{AddressVector, RecvWr, SendWr, UdDest};

/// A queue pair, without clock, socket or memory of its own.
///
/// Input goes in through `handle_packet` (then once `end_of_batch`), `handle_timeout`, `post_send`, `post_recv` and `modify`.
/// Outputs are level-triggered: after any of these, drain a [`turn`](Self::turn) and `poll_event` to `None`, then ask
/// `poll_timeout`. Nothing allocates but `new` and `modify`.
#[derive(Debug)]
pub struct Qp {
    pub(crate) ep: Endpoint,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) rq: RecvQueue,
    /// COMM_EST was raised.
    pub(crate) established: bool,
    /// What the port carries.
    pub(crate) max_path_mtu: PathMtu,
}

/// The ECN field of the traffic class, and what it says of a packet that met congestion (RFC 3168, section 5).
const ECN: u8 = 3;
const ECN_CE: u8 = 3;

impl Qp {
    /// A queue pair in RESET.
    ///
    /// # Errors
    /// `Invalid` when a size is above what the device has.
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

    /// Never sends faster than so many kbit/s on the wire (0: no limit), unless `modify` sets another limit; that is forgotten
    /// in RESET, this one is not.
    pub fn set_initial_rate_limit(&mut self, rate_limit_kbps: u32) {
        self.ep.attr.rate_limit = rate_limit_kbps;
        self.ep.congestion.set_initial_limit(rate_limit_kbps);
    }

    /// Queues a send work request; a [`turn`](Self::turn) sends it.
    ///
    /// # Errors
    /// `NoMem` when the queue is full (completions that were not taken count), `Invalid` for a malformed request or in
    /// RESET, INIT and RTR, `Fault` when inline data cannot be read.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>, mem: &impl Memory) -> Result<(), VerbsError> {
        self.requester.post(wr, mem, &mut self.ep)?;
        self.responder.reply.request_posted();
        Ok(())
    }

    /// Queues a receive work request.
    ///
    /// # Errors
    /// `NoMem` when the queue is full (completions that were not taken count), `Invalid` for too many elements, in RESET,
    /// or when receives come from a shared receive queue or there are none.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        if self.ep.attr.state == QpState::Reset || self.ep.srq || self.ep.ty.service() == Service::Xrc {
            return Err(VerbsError::Invalid);
        }
        let taken = self.ep.events.recv + u32::from(self.responder.holds_wqe);
        if self.rq.len() + taken >= self.rq.max_wr() {
            return Err(VerbsError::NoMem);
        }
        if self.ep.attr.state == QpState::Err {
            self.ep.fail_recv(None, wr.wr_id, WcStatus::WrFlushErr);
            return Ok(());
        }
        self.rq.post(wr)
    }

    /// One packet, ICRC already verified, addressed to this queue pair. `srqs` has its shared receive queue, if it uses
    /// one; `reorder` is always the same buffer, that of the device.
    ///
    /// # Errors
    /// The packet had no effect but what the protocol answers to such a packet; the reason is for counting.
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
        if from.tos & ECN == ECN_CE && !ep.ty.is_datagram() {
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
        self.requester.is_answering = true;
        let rq = srqs.own().filter(|_| ep.srq).unwrap_or(&mut self.rq);
        let result = match ep.ty {
            QpType::Rc => self.responder.handle_request(now, packet, mem, &mut Some(rq), reorder, ep),
            QpType::XrcIni | QpType::XrcTgt => {
                self.responder.handle_request(now, packet, mem, &mut srqs, reorder, ep)
            }
            QpType::Uc => self.responder.handle_unreliable(packet, mem, &mut Some(rq), ep),
            QpType::Ud | QpType::Gsi => {
                if ud::receive(packet, from, mem, rq, ep)? == Received::Fatal {
                    self.enter_err();
                }
                Ok(Ok(()))
            }
        };
        result.unwrap_or_else(|fault| {
            self.on_fault(fault, self.responder.expected);
            Err(fault.row().reason)
        })
    }

    /// A packet that is not of this service, unless it is a congestion notification, which slows down what this queue pair
    /// sends, answers included.
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
        if ep.congestion.on_cnp(now) {
            ep.counters.rp_cnp_handled += 1;
        } else {
            ep.counters.rp_cnp_ignored += 1;
        }
        Ok(())
    }

    /// The packets that arrived together are all handled: a coalesced ACK becomes due.
    #[inline]
    pub fn end_of_batch(&mut self, now: Instant) {
        // A queue that has more to send does not take the ACK along: it is blocked, or sends without it.
        let may_wait = self.ep.attr.state == QpState::Rts
            && self.pending_packets() == 0
            && !self.responder.is_within_message();
        self.responder.reply.end_of_batch(now, may_wait, self.ep.mtu, self.ep.attr.timeout);
    }

    /// An acknowledgement that waits for a request of this side becomes due: the owner is about to drop the queue pair.
    pub fn release_ack(&mut self) {
        self.responder.reply.release_deferred();
    }

    /// Writes the next packet, about which everything is decided here; [`Turn::poll`](crate::Turn::poll) has what it returns.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        mem: &impl Memory,
        budget: usize,
        buf: &mut Buffer,
    ) -> Option<Transmit> {
        if self.ep.congestion.take_cnp() {
            self.ep.counters.np_cnp_sent += 1;
            self.ep.counters.sent_pkts += 1;
            return Some(congestion_notification(buf, &mut self.ep));
        }
        let is_paced = self.ep.congestion.pacer().is_some();
        let is_held = is_paced && self.is_held(now);
        if self.may_reply() && self.responder.has_reply() && !(is_held && self.responder.replay.is_pending())
        {
            let is_answer = self.responder.replay.is_pending();
            match self.responder.transmit(mem, &mut self.ep, buf) {
                Ok(Some(transmit)) => {
                    self.ep.counters.sent_pkts += 1;
                    if is_answer && let Some(pacer) = self.ep.congestion.pacer() {
                        pacer.on_sent(now, transmit.len);
                    }
                    return Some(transmit);
                }
                Ok(None) => {}
                Err(fault) => {
                    let position = self.responder.answering();
                    self.responder.replay.clear();
                    self.on_fault(fault, position);
                    let last = self.responder.transmit(mem, &mut self.ep, buf).ok()??;
                    self.ep.counters.sent_pkts += 1;
                    return Some(last);
                }
            }
        }
        if is_held || !self.requester.sendable(&self.ep) {
            return None;
        }
        let step = self.requester.transmit(now, mem, budget, &mut self.ep, buf);
        self.after(step);
        match step {
            Step::Sent(transmit) => {
                self.ep.counters.sent_pkts += 1;
                if let Some(pacer) = self.ep.congestion.pacer() {
                    pacer.on_sent(now, transmit.len);
                }
                // The ACK that waited for this request follows its last packet: a peer that stops polling at its ACK
                // has then seen the request as well, and the shorter packet can close the same burst.
                if self.responder.reply.is_deferred() {
                    if self.pending_packets() == 0 {
                        let timeout = self.ep.attr.timeout;
                        self.ep.counters.ack_deferred +=
                            u64::from(self.responder.reply.request_left(now, timeout));
                    } else {
                        self.responder.reply.request_moved();
                    }
                }
                Some(transmit)
            }
            Step::Idle | Step::Fatal => None,
        }
    }

    /// Where the packet goes that was polled last, if that is a datagram (see [`Transmit`]).
    #[must_use]
    #[inline]
    pub fn datagram_dest(&self) -> &UdDest {
        &self.ep.datagram_dest
    }

    /// Whether the rate has no room for a packet now.
    #[cold]
    fn is_held(&mut self, now: Instant) -> bool {
        let Some(pacer) = self.ep.congestion.pacer() else { return false };
        let waits = pacer.is_holding();
        let is_held = !pacer.lets_pass(now);
        self.ep.counters.rate_waits += u64::from(is_held && !waits);
        is_held
    }

    /// Whether a [`turn`](Self::turn) has something to send.
    #[must_use]
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        let is_held = self.ep.congestion.is_holding();
        let has_reply = self.responder.has_reply() && !(is_held && self.responder.replay.is_pending());
        (self.may_reply() && has_reply)
            || (!is_held && self.requester.sendable(&self.ep))
            || self.ep.congestion.owes_cnp()
    }

    /// Whether a rate is kept, so that what leaves ends anywhere, not where the window or the message does.
    #[must_use]
    #[inline]
    pub fn is_paced(&self) -> bool {
        self.ep.congestion.is_paced()
    }

    /// Whether READ responses or atomic results wait to be sent.
    #[must_use]
    #[inline]
    pub fn owes_answers(&self) -> bool {
        self.may_reply() && self.responder.replay.is_pending()
    }

    /// Request packets on their way, expected READ responses included, but for those that arrived behind a missing one.
    #[must_use]
    #[inline]
    pub fn packets_in_flight(&self) -> usize {
        self.requester.in_flight() as usize
    }

    /// Full packets that leave by themselves, with the peer waiting for them: the only answer that is owed, or all that was posted
    /// while nothing is on its way. Else 0.
    #[must_use]
    #[inline]
    pub fn lone_packets(&self) -> usize {
        self.backlog().isolated_packets
    }

    /// Packets posted and not yet on their way, those to be sent again included.
    #[must_use]
    #[inline]
    pub fn pending_packets(&self) -> usize {
        (self.requester.sq.end - self.requester.cursor) as usize
    }

    /// Bytes of what they belong to that are not yet on their way; of a READ those that it brings.
    #[must_use]
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        self.requester.pending_bytes() as usize
    }

    /// How many work requests without a completion stand before the one that was posted last, if that makes one; else 0.
    #[must_use]
    #[inline]
    pub fn ended_run(&self) -> u32 {
        self.backlog().unsignaled_run
    }

    /// Bytes of the work request that was posted last; of a READ those that it brings.
    #[must_use]
    #[inline]
    pub fn last_posted_bytes(&self) -> usize {
        self.backlog().last_posted_bytes
    }

    /// Whether all that it has to send are new messages of a packet each: nothing that the peer waits for, nothing that was lost,
    /// and neither first nor last a READ or atomic, whose answer is waited for.
    #[must_use]
    #[inline]
    pub fn has_only_small_messages(&self) -> bool {
        self.backlog().only_small_messages
    }

    /// Payload of its largest packets: its path MTU in bytes.
    #[must_use]
    #[inline]
    pub fn path_mtu_bytes(&self) -> usize {
        self.ep.mtu
    }

    /// Full packets that the window has room for.
    #[must_use]
    #[inline]
    pub fn window_room(&self) -> usize {
        self.backlog().window_room_packets
    }

    /// Whether the peer owes an acknowledgement or an answer, so that one is under way.
    #[must_use]
    #[inline]
    pub fn is_answer_owed(&self) -> bool {
        self.requester.is_asked()
    }

    /// Whether nothing is unacknowledged.
    #[must_use]
    #[inline]
    pub fn is_send_idle(&self) -> bool {
        self.requester.una == self.requester.next
    }

    /// When `handle_timeout` must be called, at the latest; `None` when nothing waits for time.
    #[must_use]
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let earliest = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let deadline = earliest(self.requester.deadline(&self.ep), self.responder.reply.deadline());
        earliest(deadline, self.ep.congestion.deadline())
    }

    /// Time has passed. Harmless when nothing is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.responder.reply.handle_timeout(now, self.ep.attr.timeout);
        if let Some(pacer) = self.ep.congestion.pacer() {
            let was_holding = pacer.is_holding();
            pacer.handle_timeout(now);
            if was_holding && !pacer.is_holding() && self.requester.sendable(&self.ep) {
                // Nobody but the rate has kept anyone waiting until now.
                self.requester.start_timer(now);
            }
        }
        let step = self.requester.handle_timeout(now, &mut self.ep);
        self.after(step);
    }

    /// The next completion or event.
    #[inline]
    pub fn poll_event(&mut self) -> Option<QpEvent> {
        self.ep.events.pop()
    }

    /// Whether [`Qp::poll_event`] has something.
    #[must_use]
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.ep.events.is_empty()
    }

    /// The attributes as they were set, and the state.
    #[must_use]
    pub fn attr(&self) -> QpAttr {
        QpAttr { cur_state: self.ep.attr.state, ..self.ep.attr.clone() }
    }

    /// The state.
    #[must_use]
    #[inline]
    pub fn state(&self) -> QpState {
        self.ep.attr.state
    }

    /// Its number.
    #[must_use]
    #[inline]
    pub fn qpn(&self) -> Qpn {
        self.ep.qpn
    }

    /// Its service.
    #[must_use]
    #[inline]
    pub fn ty(&self) -> QpType {
        self.ep.ty
    }

    /// Its protection domain.
    #[must_use]
    #[inline]
    pub fn pd(&self) -> PdId {
        self.ep.pd
    }

    /// The peer's number.
    #[must_use]
    #[inline]
    pub fn dest_qpn(&self) -> Qpn {
        self.ep.attr.dest_qp
    }

    /// The path to the peer.
    #[must_use]
    #[inline]
    pub fn av(&self) -> &AddressVector {
        &self.ep.attr.av
    }

    /// How long an answer takes, as far as that was measured. That of a READ waits for the answers before it.
    #[must_use]
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.requester.rtt.smoothed_ns()
    }

    /// The rate it must keep, in bits per second on the wire, because of congestion or a limit; `None`: as fast as it goes.
    #[must_use]
    pub fn paced_bps(&mut self, now: Instant) -> Option<u64> {
        self.ep.congestion.pacer()?.rate_bps(now)
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> &QpCounters {
        &self.ep.counters
    }

    /// Answers are given from RTR on; in the error state only the NAK that led to it.
    #[inline]
    fn may_reply(&self) -> bool {
        match self.ep.attr.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => true,
            QpState::Err => self.responder.reply.has_last_word(),
            QpState::Reset | QpState::Init => false,
        }
    }

    /// What a step of the requester means for the queue pair.
    #[inline]
    fn after(&mut self, step: Step) {
        match step {
            Step::Fatal if self.ep.ty.is_reliable() => {
                self.responder.silence();
                self.enter_err();
            }
            Step::Fatal => {
                self.ep.attr.state = QpState::Sqe;
                self.requester.flush(&mut self.ep);
            }
            Step::Idle | Step::Sent(_) if self.ep.attr.sq_draining => self.check_drained(),
            Step::Idle | Step::Sent(_) => {}
        }
    }

    /// Raises SQ_DRAINED, if asked for, once everything is acknowledged.
    pub(crate) fn check_drained(&mut self) {
        if self.ep.attr.sq_draining && self.requester.is_drained() {
            self.ep.attr.sq_draining = false;
            if self.ep.attr.en_sqd_async_notify {
                self.ep.events.push_async(AsyncEventKind::SqDrained);
            }
        }
    }

    /// Does what the table says about a fault of the request at `position`.
    fn on_fault(&mut self, fault: Fault, position: u64) {
        let row = fault.row();
        match row.nak {
            NakKind::Silence => {}
            _ if !self.ep.ty.is_reliable() => {}
            NakKind::Rnr => {
                self.ep.counters.send_rnr_err += 1;
                self.responder.reply.nak_not_ready(position, self.ep.attr.min_rnr_timer);
            }
            NakKind::Nak(code) => self.responder.reply.nak_finally(position, code),
        }
        // What comes in the error state is a fault of an answer that was still to be given: it is told to the peer only.
        if !row.fatal || self.ep.attr.state == QpState::Err {
            return;
        }
        if row.nak == NakKind::Silence {
            self.responder.silence();
        }
        let blamed = row.completion.is_some_and(|status| self.responder.fail_wqe(status, &mut self.ep));
        if let (false, Some(event)) = (blamed, row.event) {
            self.ep.events.push_async(event);
        }
        self.enter_err();
    }

    /// Goes to ERR and flushes: sends in order, then receives in order. A shared receive queue is left alone.
    pub(crate) fn enter_err(&mut self) {
        self.ep.attr.state = QpState::Err;
        self.ep.attr.sq_draining = false;
        self.ep.congestion.silence();
        self.requester.flush(&mut self.ep);
        self.responder.fail_wqe(WcStatus::WrFlushErr, &mut self.ep);
        while let Some(wr_id) = self.rq.take_id() {
            self.ep.fail_recv(None, wr_id, WcStatus::WrFlushErr);
        }
        if self.ep.srq {
            self.ep.events.push_async(AsyncEventKind::QpLastWqeReached);
        }
    }
}

#[cfg(test)]
#[path = "qp_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "xrc_tests.rs"]
mod xrc_tests;
