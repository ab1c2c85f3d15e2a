//! The sending half: work requests to packets, in order, within the window; going back and sending again.
//! Packets are written in `segment.rs`, what comes back is handled in `completer.rs`, timers in `retry.rs`.
//!
//! Invariant: `una <= cursor <= next <= sq.end`, all of them packet numbers (see [`SendWqe`]). Packets before `una`
//! are acknowledged, those before `cursor` are on their way but for those that `board` says are lost, those from `cursor`
//! to `next` were sent before and are taken for lost. Read IBA 9.7.3, 9.7.4.

use crate::attr::{QpConfig, QpState, QpType};
use crate::emit::{Buffer, Transmit};
use crate::endpoint::Endpoint;
use crate::error::VerbsError;
use crate::local;
use crate::memory::Memory;
use crate::peer::Peer;
use crate::ring::Ring;
use crate::rtt::Rtt;
use crate::scoreboard::{SPAN, Scoreboard};
use crate::segment::{Part, chunk};
use crate::time::Instant;
use crate::unasked::Unasked;
use crate::wc::{Wc, WcStatus};
use crate::wqe::{SendQueue, SendWqe};
use crate::wr::{SendFlags, SendWr, WrOp};

/// Packets that may be unacknowledged: five bursts of 62. Large enough for a burst in each direction of the path, small
/// enough that what is sent again after a loss fits a socket buffer.
const WINDOW_PKTS: u64 = 310;
/// Bytes that may be unacknowledged, expected READ data included.
const WINDOW_BYTES: u64 = 320 * 1024;

/// Full packets that may be unacknowledged at a path MTU.
#[inline]
pub(crate) fn window_pkts(mtu: usize) -> u64 {
    WINDOW_PKTS.min(full_packets(WINDOW_BYTES, mtu))
}

/// How many packets so many bytes fill. A path MTU is a power of two (IBA 9.2); a division per packet would show.
#[inline]
pub(crate) fn full_packets(bytes: u64, mtu: usize) -> u64 {
    bytes >> mtu.trailing_zeros()
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// Nothing to do, or nothing more.
    Idle,
    /// A packet was written.
    Sent(Transmit),
    /// A work request completed in error; the rest must be flushed.
    Fatal,
}

/// A READ request or atomic that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetch {
    /// Number of the first response packet.
    pub(crate) first: u64,
    /// One past the last.
    pub(crate) end: u64,
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) sq: SendQueue,
    /// Oldest unacknowledged packet.
    pub(crate) una: u64,
    /// Bytes of the stream before `una`.
    una_byte: u64,
    /// One past the last packet ever sent.
    pub(crate) next: u64,
    /// The packet to send next.
    pub(crate) cursor: u64,
    /// Index of the work request that `cursor` is in.
    pub(crate) cursor_index: u32,
    /// Bytes of the stream before `cursor`.
    cursor_byte: u64,
    /// READ requests and atomics on their way, oldest first.
    pub(crate) fetches: Ring<Fetch>,
    pub(crate) retry_left: u8,
    pub(crate) rnr_left: u8,
    /// One past the last packet that has asked for an acknowledgement.
    asked: u64,
    /// When the ACK timer was started or restarted.
    pub(crate) timer_base: Instant,
    /// End of the wait after an RNR NAK.
    pub(crate) rnr_until: Option<Instant>,
    /// The peer said that it executed everything before this; answers that are missing may keep `una` behind it.
    pub(crate) acked: u64,
    /// One past the furthest answer that arrived.
    pub(crate) seen: u64,
    /// One past the furthest packet that is known to have arrived, or whose answer is here, while an earlier one is missing.
    pub(crate) reached: u64,
    /// Where the part of a READ begins that was asked for last, if that is not the READ's beginning.
    pub(crate) part: Option<u64>,
    pub(crate) board: Scoreboard,
    pub(crate) peer: Peer,
    pub(crate) rtt: Rtt,
    /// Probes since the last progress, and when the last one was made.
    pub(crate) probes: u8,
    pub(crate) probed_at: Instant,
    /// The work request at the cursor cannot be executed; it is reported when the earlier ones are complete.
    pub(crate) failed: Option<WcStatus>,
    /// A request of the peer has come since the last message left.
    pub(crate) is_answering: bool,
    pub(crate) unasked: Unasked,
    pub(crate) run: Run,
}

/// Work requests posted in a row that make no completion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    length: u32,
    /// So many stood before the one that was posted last, which does.
    pub(crate) ended: u32,
}

impl Run {
    #[inline]
    fn posted(&mut self, is_signaled: bool) {
        *self = if is_signaled {
            Self { length: 0, ended: self.length }
        } else {
            Self { length: self.length.saturating_add(1), ended: 0 }
        };
    }
}

impl Requester {
    pub(crate) fn new(config: &QpConfig) -> Result<Self, VerbsError> {
        Ok(Self {
            sq: SendQueue::new(config)?,
            una: 0,
            una_byte: 0,
            next: 0,
            cursor: 0,
            cursor_index: 0,
            cursor_byte: 0,
            fetches: Ring::new(0),
            retry_left: 0,
            rnr_left: 0,
            asked: 0,
            timer_base: Instant::ZERO,
            rnr_until: None,
            acked: 0,
            seen: 0,
            reached: 0,
            part: None,
            board: Scoreboard::default(),
            peer: Peer::default(),
            rtt: Rtt::default(),
            probes: 0,
            probed_at: Instant::ZERO,
            failed: None,
            is_answering: false,
            unasked: Unasked::default(),
            run: Run::default(),
        })
    }

    /// Starts with an empty queue at `sq_psn` (RTR to RTS).
    pub(crate) fn start(&mut self, ep: &Endpoint) {
        let psn = u64::from(ep.attr.sq_psn.value());
        self.reset();
        self.sq.restart_at(psn);
        (self.una, self.next, self.cursor) = (psn, psn, psn);
        (self.acked, self.seen, self.reached, self.asked) = (psn, psn, psn, psn);
        self.fetches = Ring::new(usize::from(ep.attr.max_rd_atomic));
        self.reload_retries(ep);
    }

    /// Sets how many READs and atomics may be outstanding; none is.
    pub(crate) fn set_fetch_limit(&mut self, limit: u8) {
        debug_assert!(self.fetches.is_empty());
        self.fetches = Ring::new(usize::from(limit));
    }

    /// Sends again after SQD.
    pub(crate) fn resume(&mut self, now: Instant) {
        self.timer_base = now;
    }

    /// Drops everything without completions.
    pub(crate) fn reset(&mut self) {
        self.sq.restart_at(0);
        (self.una, self.next, self.cursor) = (0, 0, 0);
        (self.acked, self.seen, self.reached, self.asked) = (0, 0, 0, 0);
        self.part = None;
        self.board = Scoreboard::default();
        self.peer = Peer::default();
        self.rtt = Rtt::default();
        self.probes = 0;
        self.probed_at = Instant::ZERO;
        (self.una_byte, self.cursor_byte) = (0, 0);
        self.cursor_index = self.sq.head;
        self.fetches.clear();
        self.rnr_until = None;
        self.failed = None;
        self.unasked = Unasked::default();
        self.run = Run::default();
        self.is_answering = false;
    }

    pub(crate) fn reload_retries(&mut self, ep: &Endpoint) {
        self.retry_left = ep.attr.retry_cnt;
        self.rnr_left = ep.attr.rnr_retry;
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
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(VerbsError::Invalid),
        };
        if matches!(ep.attr.state, QpState::Sqe | QpState::Err) {
            push_completion(ep, wr.wr_id, &wr.op, 0, WcStatus::WrFlushErr);
            return Ok(());
        }
        self.sq.push(wr, length, ep.mtu, mem)?;
        self.run.posted(self.sq.last().is_some_and(|wqe| wqe.is_signaled(ep)));
        Ok(())
    }

    /// Whether [`Requester::transmit`] would do something with an unlimited budget.
    #[inline]
    pub(crate) fn sendable(&self, ep: &Endpoint) -> bool {
        if self.board.has_lost() && self.rnr_until.is_none() {
            return true;
        }
        if self.cursor_index == self.sq.tail || self.failed.is_some() || self.rnr_until.is_some() {
            return false;
        }
        let Some(wqe) = self.sq.get(self.cursor_index) else { return false };
        let begun = self.cursor > wqe.first || self.cursor < self.next;
        match ep.attr.state {
            QpState::Rts => {}
            QpState::Sqd if begun => {}
            _ => return false,
        }
        if wqe.fault.is_some() || !ep.ty.is_reliable() {
            return true;
        }
        if !begun && wqe.flags.contains(SendFlags::FENCE) && !self.fetches.is_empty() {
            return false;
        }
        match wqe.op {
            _ if wqe.op.is_local() => self.sq.head == self.cursor_index,
            _ if !wqe.op.is_fetch() => self.window_has(1, 1, self.peer.limit(u64::MAX), ep.mtu),
            _ if self.cursor < self.next => self.in_flight() == 0 || !self.peer.is_being_asked(),
            _ if ep.attr.max_rd_atomic == 0 => true,
            _ => {
                let (end, bytes) = chunk(wqe, self.cursor, ep.mtu);
                !self.fetches.is_full()
                    && self.window_has(end - self.cursor, bytes, self.peer.fetch_limit(), ep.mtu)
            }
        }
    }

    /// Whether all pending packets are new messages of one packet each, and neither the first nor the last of them is a
    /// READ, atomic or local operation.
    #[inline]
    pub(crate) fn has_only_small_messages(&self) -> bool {
        let pending_packets = self.sq.end - self.cursor;
        let is_plain = |wqe: &SendWqe| !wqe.op.is_fetch() && !wqe.op.is_local();
        pending_packets > 0
            && pending_packets == u64::from(self.sq.tail.wrapping_sub(self.cursor_index))
            && self.cursor == self.next
            && !self.board.has_lost()
            && self.sq.get(self.cursor_index).is_some_and(|wqe| is_plain(wqe) && wqe.first == self.cursor)
            && self.sq.last().is_some_and(is_plain)
    }

    /// Whether so much more may be on its way; the first packet always may.
    #[inline]
    fn window_has(&self, packets: u64, bytes: u64, limit: u64, mtu: usize) -> bool {
        let in_flight = self.cursor - self.una;
        in_flight == 0
            || (in_flight + packets <= limit.min(WINDOW_PKTS)
                && self.cursor_byte - self.una_byte + bytes <= WINDOW_BYTES)
            || (self.reached > self.una && self.window_has_beyond(packets, limit, mtu))
    }

    /// What arrived behind a missing packet is not on its way any more: the window opens while that is sent again, as far as
    /// single packets can be told apart.
    #[cold]
    fn window_has_beyond(&self, packets: u64, limit: u64, mtu: usize) -> bool {
        self.cursor + packets - self.una <= SPAN && self.in_flight() + packets <= limit.min(window_pkts(mtu))
    }

    /// Packets on their way: those that are known to have arrived behind a missing one are not.
    #[inline]
    pub(crate) fn in_flight(&self) -> u64 {
        self.cursor.saturating_sub(self.una.max(self.reached))
    }

    /// Payload of what was posted and is not yet on its way, or is to be sent again.
    #[inline]
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.sq.end_byte - self.cursor_byte
    }

    /// Full packets that may be on their way.
    #[inline]
    pub(crate) fn window(&self, mtu: usize) -> u64 {
        self.peer.limit(window_pkts(mtu))
    }

    /// Writes the next packet, executing local operations on the way. The caller has asked [`Requester::sendable`].
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        mem: &impl Memory,
        budget: usize,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Step {
        if self.board.has_lost() {
            return self.send_again(now, mem, ep, buf);
        }
        loop {
            let index = self.cursor_index;
            let wqe = *self.sq.wqe(index);
            if let Some(status) = wqe.fault {
                return self.fail(status, ep);
            }
            if wqe.op.is_local() {
                if let Err(status) = local::execute(&wqe.op, mem, ep) {
                    return self.fail(status, ep);
                }
                self.cursor_index = index.wrapping_add(1);
                self.complete_head(WcStatus::Success, ep);
                if self.sendable(ep) {
                    continue;
                }
                return Step::Idle;
            }
            let resend_of_oldest = self.cursor == self.una && self.cursor < self.next;
            if budget == 0 && !resend_of_oldest {
                return Step::Idle;
            }
            let is_fetch = wqe.op.is_fetch();
            let end = if is_fetch { self.fetch_end(&wqe, ep.mtu) } else { self.cursor + 1 };
            let part = Part { index, first: self.cursor, end };
            let ack_req = ep.ty.is_reliable() && (is_fetch || self.ask(&wqe, end == wqe.end, budget, ep));
            let written = match ep.ty {
                QpType::Ud | QpType::Gsi => {
                    if wqe.length as usize > ep.mtu {
                        // IBA C10-93.1.1: nothing is sent, no error is raised.
                        ep.counters.ud_send_too_long += 1;
                        self.advance_cursor(&wqe, self.cursor + 1, ep.mtu);
                        self.progress(self.cursor, ep);
                        if self.sendable(ep) {
                            continue;
                        }
                        return Step::Idle;
                    }
                    self.write_datagram(part, &wqe, mem, ep, buf)
                }
                _ if is_fetch => self.begin_fetch(part, &wqe, mem, ep, buf),
                _ => self.write_message(part, &wqe, mem, ack_req, ep, buf),
            };
            let len = match written {
                Ok(len) => len,
                Err(status) => return self.fail(status, ep),
            };
            self.note_sent(now, end, ack_req);
            if self.cursor < self.next {
                ep.counters.retransmitted_pkts += 1;
                self.rtt.sent_again(self.cursor, self.cursor == self.una, now);
            } else if ack_req {
                self.rtt.sent(self.cursor, now);
            }
            self.advance_cursor(&wqe, end, ep.mtu);
            if !ep.ty.is_reliable() {
                self.progress(end, ep);
            }
            return Step::Sent(Transmit { len, is_datagram: ep.ty.is_datagram() });
        }
    }

    /// A packet leaves. The timer runs from the first one on that asks for an answer; before that nobody owes any (IBA
    /// 9.7.6.1.3).
    #[inline]
    pub(crate) fn note_sent(&mut self, now: Instant, end: u64, asks: bool) {
        self.start_timer(now);
        if asks {
            self.asked = self.asked.max(end);
        }
    }

    /// Starts the ACK timer, unless it runs because the peer owes an answer.
    #[inline]
    pub(crate) fn start_timer(&mut self, now: Instant) {
        if !self.is_asked() {
            self.timer_base = now;
        }
    }

    /// Whether the peer owes an answer.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked > self.una
    }

    /// Where the READ request at the cursor ends. To see whether the peer keeps what is behind, it is just one packet.
    #[inline]
    fn fetch_end(&mut self, wqe: &SendWqe, mtu: usize) -> u64 {
        if self.cursor < self.next && self.peer.is_asked(self.cursor) {
            let end = self.cursor + 1;
            self.board.set_end(self.cursor);
            self.board.sent_again(self.cursor, end);
            return end;
        }
        chunk(wqe, self.cursor, mtu).0
    }

    #[inline]
    pub(crate) fn advance_cursor(&mut self, wqe: &SendWqe, cursor: u64, mtu: usize) {
        self.cursor = cursor;
        self.next = self.next.max(cursor);
        if cursor == wqe.end {
            self.cursor_index = self.cursor_index.wrapping_add(1);
            self.cursor_byte = wqe.first_byte + u64::from(wqe.length);
        } else {
            self.cursor_byte = wqe.first_byte + (cursor - wqe.first) * mtu as u64;
        }
    }

    /// Puts the cursor back to a packet between `una` and `next`.
    pub(crate) fn go_back(&mut self, to: u64, ep: &Endpoint) {
        let mut index = self.sq.head;
        while index != self.sq.tail && self.sq.wqe(index).end <= to && index != self.cursor_index {
            index = index.wrapping_add(1);
        }
        self.board.going_back(to, self.cursor);
        self.reached = self.una;
        self.cursor = to;
        self.cursor_index = index;
        self.cursor_byte = self.byte_at(index, to, ep.mtu);
        self.failed = None;
    }

    #[inline]
    fn byte_at(&self, index: u32, position: u64, mtu: usize) -> u64 {
        if index == self.sq.tail {
            return self.sq.end_byte;
        }
        let wqe = self.sq.wqe(index);
        wqe.first_byte + (position - wqe.first) * mtu as u64
    }

    /// Takes everything before `to` as acknowledged and completes what that covers. Returns whether that is news.
    #[inline]
    pub(crate) fn progress(&mut self, to: u64, ep: &mut Endpoint) -> bool {
        if to <= self.una {
            return false;
        }
        if self.board.is_in_use() {
            self.board.done(self.una, to);
        }
        self.una = to;
        while self.fetches.front().is_some_and(|fetch| fetch.end <= to) {
            self.fetches.pop();
        }
        while !self.sq.is_empty() {
            let wqe = self.sq.wqe(self.sq.head);
            // A local operation (no packets) completes by being executed, not by an acknowledgement.
            if wqe.end > to || wqe.first == wqe.end {
                break;
            }
            if self.cursor_index == self.sq.head {
                self.cursor_index = self.cursor_index.wrapping_add(1);
            }
            self.complete_head(WcStatus::Success, ep);
        }
        self.una_byte = self.byte_at(self.sq.head, to, ep.mtu);
        if self.cursor <= to {
            if self.cursor < to {
                self.failed = None;
                self.rnr_until = None;
            }
            self.cursor = to;
            self.cursor_index = self.sq.head;
            self.cursor_byte = self.una_byte;
        }
        true
    }

    /// Completes the oldest work request.
    #[inline]
    pub(crate) fn complete_head(&mut self, status: WcStatus, ep: &mut Endpoint) {
        let wqe = self.sq.wqe(self.sq.head);
        if status == WcStatus::Success {
            ep.counters.rdma_sends += 1;
        }
        if wqe.is_signaled(ep) || status != WcStatus::Success {
            let byte_len = if wqe.op.scatters() { wqe.length } else { 0 };
            push_completion(ep, wqe.wr_id, &wqe.op, byte_len, status);
        }
        self.sq.head = self.sq.head.wrapping_add(1);
    }

    /// The work request at the cursor cannot be executed. It is reported once all earlier ones are complete.
    pub(crate) fn fail(&mut self, status: WcStatus, ep: &mut Endpoint) -> Step {
        self.failed = Some(status);
        self.report_failure(ep)
    }

    /// Completes the failed work request if it is its turn.
    pub(crate) fn report_failure(&mut self, ep: &mut Endpoint) -> Step {
        match self.failed {
            Some(status) if self.sq.head == self.cursor_index && !self.sq.is_empty() => {
                ep.counters.send_err += 1;
                self.complete_head(status, ep);
                Step::Fatal
            }
            _ => Step::Idle,
        }
    }

    /// Completes everything that is left with `WR_FLUSH_ERR`.
    pub(crate) fn flush(&mut self, ep: &mut Endpoint) {
        while !self.sq.is_empty() {
            self.complete_head(WcStatus::WrFlushErr, ep);
        }
        self.una = self.sq.end;
        self.next = self.sq.end;
        self.cursor = self.sq.end;
        (self.una_byte, self.cursor_byte) = (self.sq.end_byte, self.sq.end_byte);
        self.cursor_index = self.sq.tail;
        self.fetches.clear();
        self.board = Scoreboard::default();
        self.rnr_until = None;
        self.failed = None;
    }

    /// Whether nothing waits for an acknowledgement and no message is half sent.
    pub(crate) fn is_drained(&self) -> bool {
        let between =
            self.cursor_index == self.sq.tail || self.cursor == self.sq.wqe(self.cursor_index).first;
        self.una == self.next && between
    }
}

#[inline]
fn push_completion(ep: &mut Endpoint, wr_id: u64, op: &WrOp, byte_len: u32, status: WcStatus) {
    let qp_num = ep.qpn.value();
    ep.events.push_send(Wc { wr_id, status, opcode: op.wc_opcode(), byte_len, qp_num, ..Wc::default() });
}
