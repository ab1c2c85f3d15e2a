//! The sending half of a queue pair: work requests to packets, in order, within the window; retransmission.
//!
//! `window.rs` holds the packet numbers, `transmit.rs` decides which packet leaves and `segment.rs` writes
//! it, `response.rs` handles what the peer sends back, `retransmit.rs`, `timeout.rs` and `silence.rs` repair
//! losses. Read IBA 9.7.3, 9.7.4.

mod local;
mod peer;
mod response;
mod retransmit;
mod rtt;
mod scoreboard;
mod segment;
mod send_queue;
mod silence;
mod timeout;
mod transmit;
mod window;

pub(crate) use retransmit::GAP_UNIT;
pub(crate) use scoreboard::PacketSet;
pub(crate) use send_queue::SendWqe;

use peer::Peer;
use rtt::Rtt;
use scoreboard::Scoreboard;
use segment::read_request_end;
use send_queue::SendQueue;
use silence::Silence;
use timeout::RetryState;
use window::SendWindow;

use wire::Qpn;

use crate::ack_policy::AckRequests;
use crate::attr::{QpConfig, QpState};
use crate::cause::Cause;
use crate::completion_counts::CountedOp;
use crate::emit::Transmit;
use crate::endpoint::Endpoint;
use crate::in_flight::{SPAN, full_packets};
use crate::memory::Memory;
use crate::refusal::VerbsError;
use crate::refuse;
use crate::ring::Ring;
use crate::time::Instant;
use crate::wc::Wc;
use crate::wc_status::WcStatus;
use crate::wr::{SendFlags, SendWr, WrOp};

/// Packets that may be unacknowledged: five bursts of 62. Large enough for a burst in each direction of the
/// path, small enough that what is retransmitted after a loss fits a socket buffer.
const WINDOW_PKTS: u64 = 310;
/// Payload bytes that may be unacknowledged, expected READ data included.
const WINDOW_BYTES: u64 = 320 * 1024;

/// Packets of the path MTU that may be unacknowledged.
#[inline]
fn window_pkts(mtu: usize) -> u64 {
    WINDOW_PKTS.min(full_packets(WINDOW_BYTES, mtu))
}

/// Result of one step of the requester.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// Nothing to do, or nothing more.
    Idle,
    /// A packet was written.
    Sent(Transmit),
    /// A work request completed in error; the rest must be flushed.
    Fatal,
}

/// A request in flight that has a response of its own: READ, atomic, ATOMIC WRITE or FLUSH.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    /// Number of the first response packet.
    first: u64,
    /// One past the last.
    end: u64,
}

/// The requests in flight that have responses of their own, and what is known of these responses.
#[derive(Debug)]
struct Fetches {
    /// Oldest first.
    in_flight: Ring<Fetch>,
    /// The peer has executed everything before this; missing responses may keep `una` behind it.
    executed: u64,
    /// One past the furthest response that arrived.
    seen: u64,
    /// First packet of the READ request that was retransmitted last for a part of a READ other than its
    /// beginning.
    part: Option<u64>,
}

impl Fetches {
    fn new(psn: u64, limit: u8) -> Self {
        Self { in_flight: Ring::new(usize::from(limit)), executed: psn, seen: psn, part: None }
    }

    /// The request in flight that the response with this number belongs to.
    fn at(&self, position: u64) -> Option<Fetch> {
        self.iter().find(|fetch| position < fetch.end).filter(|fetch| fetch.first <= position)
    }

    /// Oldest first.
    fn iter(&self) -> impl Iterator<Item = Fetch> {
        let (oldest, youngest) = self.in_flight.bounds();
        (0..youngest.wrapping_sub(oldest))
            .map_while(move |i| self.in_flight.get(oldest.wrapping_add(i)).copied())
    }
}

/// Unsignaled work requests posted in a row.
#[derive(Clone, Copy, Debug, Default)]
struct UnsignaledRun {
    length: u32,
    /// Length of the run directly before the work request that was posted last, if that is signaled; else 0.
    ended: u32,
}

impl UnsignaledRun {
    #[inline]
    fn posted(&mut self, is_signaled: bool) {
        *self = if is_signaled {
            Self { length: 0, ended: self.length }
        } else {
            Self { length: self.length.saturating_add(1), ended: 0 }
        };
    }
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    sq: SendQueue,
    window: SendWindow,
    fetches: Fetches,
    retry: RetryState,
    board: Scoreboard,
    peer: Peer,
    rtt: Rtt,
    silence: Silence,
    pub(crate) acks: AckRequests,
    /// The work request at the cursor cannot be executed; it is reported when the earlier ones are complete.
    failed: Option<Cause>,
    unsignaled: UnsignaledRun,
}

impl Requester {
    pub(crate) fn new(config: &QpConfig) -> Result<Self, VerbsError> {
        let sq = SendQueue::new(config)?;
        Ok(Self {
            window: SendWindow::new(0, sq.tail()),
            sq,
            fetches: Fetches::new(0, 0),
            retry: RetryState::new(0),
            board: Scoreboard::default(),
            peer: Peer::default(),
            rtt: Rtt::default(),
            silence: Silence::default(),
            acks: AckRequests::default(),
            failed: None,
            unsignaled: UnsignaledRun::default(),
        })
    }

    /// Starts with an empty queue at `sq_psn` (RTR to RTS).
    pub(crate) fn start(&mut self, ep: &Endpoint) {
        self.restart_at(u64::from(ep.attr.sq_psn.value()), ep.attr.max_rd_atomic);
        self.retry.reload(ep);
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        self.restart_at(0, 0);
    }

    /// Empties the queue; the first packet will be `psn`.
    fn restart_at(&mut self, psn: u64, fetch_limit: u8) {
        self.sq.restart_at(psn);
        self.window = SendWindow::new(psn, self.sq.tail());
        self.fetches = Fetches::new(psn, fetch_limit);
        self.retry = RetryState::new(psn);
        self.board = Scoreboard::default();
        self.peer = Peer::default();
        self.rtt = Rtt::default();
        self.silence = Silence::default();
        self.acks = AckRequests::default();
        self.failed = None;
        self.unsignaled = UnsignaledRun::default();
    }

    /// Sets how many READs and atomics may be in flight; none is.
    pub(crate) fn set_fetch_limit(&mut self, limit: u8) {
        debug_assert!(self.fetches.in_flight.is_empty());
        self.fetches.in_flight = Ring::new(usize::from(limit));
    }

    /// Sets the retry counters to the attributes.
    pub(crate) fn reload_retries(&mut self, ep: &Endpoint) {
        self.retry.reload(ep);
    }

    /// Queues a work request, or flushes it at once in the error states.
    #[inline]
    pub(crate) fn post(
        &mut self,
        wr: &SendWr<'_>,
        mem: &impl Memory,
        ep: &mut Endpoint,
    ) -> Result<(), VerbsError> {
        let length = match ep.attr.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => self.sq.check(wr, ep.events.send)?,
            state @ (QpState::Reset | QpState::Init | QpState::Rtr) => {
                let qpn = ep.qpn;
                return Err(refuse!(EINVAL, "queue pair", "state"; state as QpState, qpn as Qpn;
                    "the queue pair {qpn} is in {state}; it sends from RTS on"));
            }
        };
        if matches!(ep.attr.state, QpState::Sqe | QpState::Err) {
            ep.count_completion(CountedOp::of(&wr.op), 0, WcStatus::WrFlushErr);
            push_completion(ep, wr.wr_id, &wr.op, 0, Err(Cause::PostedInError));
            return Ok(());
        }
        self.sq.push(wr, length, ep.mtu, mem)?;
        self.unsignaled.posted(ep.sq_sig_all || wr.flags.contains(SendFlags::SIGNALED));
        Ok(())
    }

    /// Whether [`Requester::transmit`] would do something with an unlimited budget.
    #[inline]
    pub(crate) fn sendable(&self, ep: &Endpoint) -> bool {
        if self.board.has_lost() && !self.retry.is_rnr_wait() {
            return true;
        }
        let window = &self.window;
        if window.cursor_index() == self.sq.tail() || self.failed.is_some() || self.retry.is_rnr_wait() {
            return false;
        }
        let Some(wqe) = self.sq.get(window.cursor_index()) else { return false };
        let is_begun = window.cursor() > wqe.first || window.is_resending();
        match ep.attr.state {
            QpState::Rts => {}
            QpState::Sqd if is_begun => {}
            _ => return false,
        }
        if wqe.fault.is_some() || !ep.ty.is_reliable() {
            return true;
        }
        if !is_begun && wqe.flags.contains(SendFlags::FENCE) && !self.fetches.in_flight.is_empty() {
            return false;
        }
        match wqe.op {
            _ if wqe.op.is_local() => self.sq.head() == window.cursor_index(),
            _ if !wqe.op.is_fetch() => self.window_has(1, 1, self.peer.limit(u64::MAX), ep.mtu),
            _ if window.is_resending() => window.in_flight() == 0 || !self.peer.is_probed(),
            _ if ep.attr.max_rd_atomic == 0 => true,
            _ => {
                let (end, bytes) = read_request_end(wqe, window.cursor(), ep.mtu);
                !self.fetches.in_flight.is_full()
                    && self.window_has(end - window.cursor(), bytes, self.peer.fetch_limit(), ep.mtu)
            }
        }
    }

    /// Whether the window has room for so much more; the first packet is always let through.
    #[inline]
    fn window_has(&self, packets: u64, bytes: u64, limit: u64, mtu: usize) -> bool {
        let span = self.window.span();
        span == 0
            || (span + packets <= limit.min(WINDOW_PKTS) && self.window.span_bytes() + bytes <= WINDOW_BYTES)
            || (self.window.has_gap() && self.window_has_beyond(packets, limit, mtu))
    }

    /// As [`window_has`](Self::window_has) while packets behind a missing one have arrived. They are not in
    /// flight, so the window opens while the missing one is retransmitted, as far as the scoreboard reaches.
    #[cold]
    fn window_has_beyond(&self, packets: u64, limit: u64, mtu: usize) -> bool {
        let window = &self.window;
        window.span() + packets <= SPAN && window.in_flight() + packets <= limit.min(window_pkts(mtu))
    }

    /// Packets in flight: those known to have arrived behind a missing one are not.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.window.in_flight()
    }

    /// Numbers of the oldest unacknowledged packet, and one past the last that was sent.
    pub(crate) fn in_flight_range(&self) -> (u64, u64) {
        (self.window.una(), self.window.next())
    }

    /// Probes and timeouts since the peer has acknowledged something.
    pub(crate) fn unanswered_probes(&self) -> u8 {
        self.retry.probes()
    }

    /// Work request and number of the packet to send next.
    #[inline]
    pub(crate) fn cursor(&self) -> (u32, u64) {
        (self.window.cursor_index(), self.window.cursor())
    }

    /// Packets that were posted and are not in flight, or that go-back-N will retransmit.
    #[inline]
    pub(crate) fn pending_packets(&self) -> u64 {
        self.sq.end() - self.window.cursor()
    }

    /// Payload bytes of the pending packets.
    #[inline]
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.sq.end_byte() - self.window.cursor_byte()
    }

    /// Payload bytes of the work request that was posted last.
    #[inline]
    pub(crate) fn last_posted_bytes(&self) -> u32 {
        self.sq.last().map_or(0, |wqe| wqe.length)
    }

    /// The work request that was posted last and has not completed, with its place in the send queue.
    pub(crate) fn last_posted(&self) -> Option<(u32, &SendWqe)> {
        Some((self.sq.tail().wrapping_sub(1), self.sq.last()?))
    }

    /// Place in the send queue of the work request that completes next.
    pub(crate) fn completes_next(&self) -> u32 {
        self.sq.head()
    }

    /// Unsignaled work requests directly before the one that was posted last, if that is signaled; else 0.
    #[inline]
    pub(crate) fn unsignaled_run(&self) -> u32 {
        self.unsignaled.ended
    }

    /// Whether all pending packets are new messages of one packet each, and neither the first nor the last of
    /// them is a READ, atomic or local operation.
    #[inline]
    pub(crate) fn has_only_small_messages(&self) -> bool {
        let (index, cursor) = self.cursor();
        let is_plain = |wqe: &SendWqe| !wqe.op.is_fetch() && !wqe.op.is_local();
        self.pending_packets() > 0
            && self.pending_packets() == u64::from(self.sq.tail().wrapping_sub(index))
            && !self.window.is_resending()
            && !self.board.has_lost()
            && self.sq.get(index).is_some_and(|wqe| is_plain(wqe) && wqe.first == cursor)
            && self.sq.last().is_some_and(is_plain)
    }

    /// Packets of the path MTU that may be in flight.
    #[inline]
    pub(crate) fn window_limit(&self, mtu: usize) -> u64 {
        self.peer.limit(window_pkts(mtu))
    }

    /// Whether a packet in flight has asked for an acknowledgement or response.
    #[inline]
    pub(crate) fn is_ack_expected(&self) -> bool {
        self.retry.is_asked(self.window.una())
    }

    /// Whether every packet that was sent is acknowledged.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// Whether nothing waits for an acknowledgement and no message is half sent.
    pub(crate) fn is_drained(&self) -> bool {
        let (index, cursor) = self.cursor();
        self.window.is_empty() && (index == self.sq.tail() || cursor == self.sq.wqe(index).first)
    }

    /// Smoothed time from a packet to its acknowledgement, once it was measured.
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        self.rtt.smoothed_ns()
    }

    /// Restarts the ACK timer: the queue pair continues to send after SQD.
    pub(crate) fn resume(&mut self, now: Instant) {
        self.retry.restart_timer(now);
    }

    /// Takes everything before `to` as acknowledged and completes the work requests that end there. Returns
    /// whether that is new.
    #[inline]
    fn progress(&mut self, to: u64, ep: &mut Endpoint) -> bool {
        let una = self.window.una();
        if to <= una {
            return false;
        }
        if self.board.is_in_use() {
            self.board.done(una, to);
        }
        while self.fetches.in_flight.front().is_some_and(|fetch| fetch.end <= to) {
            self.fetches.in_flight.pop();
        }
        while !self.sq.is_empty() {
            let wqe = self.sq.wqe(self.sq.head());
            // A local operation (no packets) completes by being executed, not by an acknowledgement.
            if wqe.end > to || wqe.first == wqe.end {
                break;
            }
            if self.window.cursor_index() == self.sq.head() {
                self.window.skip_work_request();
            }
            self.complete_head(Ok(()), ep);
        }
        if self.window.cursor() < to {
            self.failed = None;
            self.retry.end_rnr_wait();
        }
        self.window.acknowledge(to, &self.sq, ep.mtu);
        true
    }

    /// Moves the cursor back to a packet between `una` and `next`.
    fn go_back(&mut self, to: u64, ep: &Endpoint) {
        self.board.going_back(to, self.window.cursor());
        self.window.go_back(to, &self.sq, ep.mtu);
        self.failed = None;
    }

    /// Completes the oldest work request.
    #[inline]
    fn complete_head(&mut self, result: Result<(), Cause>, ep: &mut Endpoint) {
        let wqe = self.sq.wqe(self.sq.head());
        if result.is_ok() {
            ep.counters.rdma_sends += 1;
        }
        if ep.completion_counts.is_some() {
            let status = result.map_or_else(Cause::status, |()| WcStatus::Success);
            ep.count_completion(CountedOp::of(&wqe.op), u64::from(wqe.length), status);
        }
        if wqe.is_signaled(ep) || result.is_err() {
            let byte_len = if wqe.op.scatters() { wqe.length } else { 0 };
            push_completion(ep, wqe.wr_id, &wqe.op, byte_len, result);
        }
        self.sq.pop();
    }

    /// The work request at the cursor cannot be executed. It is reported once all earlier ones are complete.
    fn fail(&mut self, cause: Cause, ep: &mut Endpoint) -> Step {
        self.failed = Some(cause);
        self.report_failure(ep)
    }

    /// Completes the failed work request if all earlier ones are complete.
    fn report_failure(&mut self, ep: &mut Endpoint) -> Step {
        match self.failed {
            Some(cause) if self.sq.head() == self.window.cursor_index() && !self.sq.is_empty() => {
                ep.counters.send_err += 1;
                self.complete_head(Err(cause), ep);
                Step::Fatal
            }
            _ => Step::Idle,
        }
    }

    /// Completes every work request that is left with a cause of `WR_FLUSH_ERR`.
    pub(crate) fn flush(&mut self, cause: Cause, ep: &mut Endpoint) {
        while !self.sq.is_empty() {
            self.complete_head(Err(cause), ep);
        }
        self.window.close(&self.sq);
        self.fetches.in_flight.clear();
        self.board = Scoreboard::default();
        self.retry.end_rnr_wait();
        self.failed = None;
    }
}

#[inline]
fn push_completion(ep: &mut Endpoint, wr_id: u64, op: &WrOp, byte_len: u32, result: Result<(), Cause>) {
    let qp_num = ep.qpn.value();
    let wc = Wc { wr_id, opcode: op.wc_opcode(), byte_len, qp_num, ..Wc::default() };
    ep.events.push_send(wc.with_result(result));
}
