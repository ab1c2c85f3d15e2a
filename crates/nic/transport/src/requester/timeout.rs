//! The requester's deadlines: the local ACK timeout, the probe before it, and the wait after an RNR NAK (IBA
//! 9.7.6.1.3, 9.7.5.2.8).

use super::{Requester, Step, window_pkts};
use crate::ack_policy::ASK_AFTER_SILENCE_NS;
use crate::cause::Cause;
use crate::endpoint::Endpoint;
use crate::time::{Instant, ack_timeout_ns, further_timeout_ns};

/// `rnr_retry` of 7 means without limit.
const RNR_RETRY_FOREVER: u8 = 7;

/// Timers and retry counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetryState {
    /// Retries that are left after a local ACK timeout, and after an RNR NAK.
    retry_left: u8,
    rnr_left: u8,
    /// One past the last packet that asked for an acknowledgement.
    asked: u64,
    /// Until the packet with this number leaves, the peer is not asked for an ACK: the memory of the youngest
    /// packet cannot be read.
    not_asked_before: u64,
    /// The next retransmission only asks for an ACK: the peer has reported nothing missing since it was
    /// decided.
    only_asks: bool,
    /// When the ACK timer was started or restarted.
    timer_base: Instant,
    /// End of the wait after an RNR NAK.
    rnr_until: Option<Instant>,
    /// Probes since the last progress, and when the first and the last one were made.
    probes: u8,
    first_probe_at: Instant,
    probed_at: Instant,
    /// When the packet was sent, or the progress was made, that the first probe followed.
    silent_since: Instant,
    /// The first probe left later than the round-trip time alone demands, because the peer is known to pause.
    is_deferred: bool,
}

impl RetryState {
    /// The peer reports a packet missing.
    #[inline]
    pub(super) fn reported(&mut self) {
        self.only_asks = false;
    }

    pub(super) fn new(psn: u64) -> Self {
        Self { asked: psn, ..Self::default() }
    }

    /// Sets both retry counters to the attributes.
    #[inline]
    pub(super) fn reload(&mut self, ep: &Endpoint) {
        self.retry_left = ep.attr.retry_cnt;
        self.rnr_left = ep.attr.rnr_retry;
    }

    /// Restarts the ACK timer.
    #[inline]
    pub(super) fn restart_timer(&mut self, now: Instant) {
        self.timer_base = now;
    }

    /// The peer has acknowledged something new: nothing of the past counts.
    #[inline]
    pub(super) fn progress(&mut self, now: Instant, ep: &Endpoint) {
        self.reload(ep);
        self.timer_base = now;
        self.probes = 0;
    }

    /// A packet before `end` asks for an acknowledgement.
    #[inline]
    pub(super) fn ask(&mut self, end: u64) {
        self.asked = self.asked.max(end);
    }

    /// Whether a packet from `una` on has asked for an acknowledgement.
    #[inline]
    pub(super) fn is_asked(&self, una: u64) -> bool {
        self.asked > una
    }

    /// When the ACK timer was started or restarted.
    #[inline]
    pub(super) fn timer_base(&self) -> Instant {
        self.timer_base
    }

    /// A probe is about to be sent; `is_deferred`: later than the round-trip time alone demands.
    fn probe(&mut self, is_deferred: bool, now: Instant) {
        if self.probes == 0 {
            self.silent_since = self.timer_base;
            (self.first_probe_at, self.is_deferred) = (now, is_deferred);
        }
        self.probes = self.probes.saturating_add(1);
        self.probed_at = now;
    }

    /// Whether the peer said that it is not ready, and that wait is not over.
    #[inline]
    pub(super) fn is_rnr_wait(&self) -> bool {
        self.rnr_until.is_some()
    }

    pub(super) fn end_rnr_wait(&mut self) {
        self.rnr_until = None;
    }

    /// Begins the wait after an RNR NAK. The peer is alive, so the retries of the ACK timeout count anew.
    /// Returns false, and does nothing, when no RNR retry is left.
    pub(super) fn begin_rnr_wait(&mut self, until: Instant, ep: &Endpoint) -> bool {
        if ep.attr.rnr_retry != RNR_RETRY_FOREVER {
            let Some(left) = self.rnr_left.checked_sub(1) else { return false };
            self.rnr_left = left;
        }
        self.retry_left = ep.attr.retry_cnt;
        self.rnr_until = Some(until);
        // The RNR NAK has answered the probe: the wait is no pause of the peer.
        self.probes = 0;
        true
    }

    /// Probes since the last progress.
    #[inline]
    pub(super) fn probes(&self) -> u8 {
        self.probes
    }

    /// A retransmission that serves as a probe has just been scheduled.
    pub(super) fn probed(&mut self, now: Instant) {
        self.probed_at = now;
    }

    /// When the peer made progress or was probed last.
    #[inline]
    pub(super) fn quiet_since(&self) -> Instant {
        self.timer_base.max(self.probed_at)
    }
}

impl Requester {
    /// When [`Requester::handle_timeout`] must be called next.
    #[inline]
    pub(crate) fn deadline(&self, ep: &Endpoint) -> Option<Instant> {
        if let Some(until) = self.retry.rnr_until {
            return Some(until);
        }
        if self.window.is_empty() {
            return None;
        }
        if !self.is_ack_expected() {
            // A packet that the rate holds back, or that is about to be retransmitted, will ask.
            let is_about_to = (ep.congestion.is_holding() && self.sendable(ep))
                || self.board.has_lost()
                || self.window.cursor() == self.window.una()
                || (self.retry.not_asked_before == self.window.cursor() && !self.is_waited_for(ep));
            return (!is_about_to).then(|| self.ask_due(ep));
        }
        match (self.timeout(ep), self.probe_due(ep)) {
            (Some(timeout), Some(probe)) => Some(timeout.min(probe)),
            (timeout, probe) => timeout.or(probe),
        }
    }

    /// When the peer is asked about packets that left without AckReq: at once if something waits for their
    /// completion.
    fn ask_due(&self, ep: &Endpoint) -> Instant {
        self.retry.timer_base.plus_ns(if self.is_waited_for(ep) { 0 } else { ASK_AFTER_SILENCE_NS })
    }

    /// Whether something cannot go on before the peer has acknowledged what was sent.
    fn is_waited_for(&self, ep: &Endpoint) -> bool {
        let index = self.window.cursor_index();
        ep.attr.sq_draining
            || self.failed.is_some()
            || (index != self.sq.tail() && self.sq.wqe(index).op.is_local())
    }

    /// Decides whether a probe is left out until another packet has left, because its payload cannot be read,
    /// and notes it. The peer was not asked for an ACK of the packet, has sent a request since, and then the
    /// application took the memory back: it knows from that request that the message has arrived. If the peer
    /// reports it missing, the work request fails.
    pub(super) fn leaves_out_probe(&mut self, ep: &Endpoint) -> bool {
        let is_left_out = self.retry.only_asks
            && !self.is_ack_expected()
            && self.acks.is_reply()
            && !self.is_waited_for(ep);
        if is_left_out {
            self.retry.not_asked_before = self.window.cursor();
        }
        is_left_out
    }

    /// When the local ACK timeout is over.
    #[inline]
    fn timeout(&self, ep: &Endpoint) -> Option<Instant> {
        let is_first = self.retry.retry_left == ep.attr.retry_cnt;
        let wait_ns = if is_first { ack_timeout_ns } else { further_timeout_ns };
        Some(self.retry.timer_base.plus_ns(wait_ns(ep.attr.timeout)?))
    }

    /// When an acknowledgement is overdue by the measured round-trip time. A probe costs no retry: `timeout`
    /// and `retry_cnt` alone say how long the peer may be silent.
    #[inline]
    fn probe_due(&self, ep: &Endpoint) -> Option<Instant> {
        // A timeout of 0 means none, so there is no probe either until its time was measured.
        let is_wanted = ep.ty.is_reliable() && (ep.attr.timeout != 0 || self.rtt.is_known());
        is_wanted.then(|| self.retry.quiet_since().plus_ns(self.probe_wait_ns(ep)))
    }

    #[inline]
    fn probe_wait_ns(&self, ep: &Endpoint) -> u64 {
        let retry = &self.retry;
        if retry.probes == 0 {
            return self.first_probe_wait_ns(ep).max(self.round_trip_wait_ns(0));
        }
        // The wait of the first probe is made up for: see `silence.rs`.
        self.round_trip_wait_ns(retry.probes - u8::from(retry.is_deferred))
    }

    /// How long the peer may be silent by the measured round-trip time alone.
    #[inline]
    fn round_trip_wait_ns(&self, probes: u8) -> u64 {
        let is_repairing = self.board.is_repairing() || self.window.una() < self.peer.recover();
        self.rtt.probe_ns(probes, is_repairing)
    }

    /// How long the pauses of the peer delay the first probe of a silence.
    #[inline]
    fn first_probe_wait_ns(&self, ep: &Endpoint) -> u64 {
        self.silence.first_probe_ns(self.retry.quiet_since(), ack_timeout_ns(ep.attr.timeout))
    }

    /// The peer makes progress after a silence longer than [`PROBE_MIN_NS`](super::PROBE_MIN_NS).
    #[cold]
    pub(super) fn silence_ended(&mut self, now: Instant) {
        let RetryState { probes, timer_base, silent_since, first_probe_at, .. } = self.retry;
        if probes == 0 {
            self.silence.ended_by_itself(now.since(timer_base).as_nanos() as u64, now);
            return;
        }
        let silent_ns = now.since(silent_since).as_nanos() as u64;
        let answer_ns = now.since(first_probe_at).as_nanos() as u64;
        self.silence.ended_after_probe(silent_ns, answer_ns, self.rtt.least_ns(), now);
    }

    /// Ends an RNR wait, or probes a peer that has been silent for too long.
    pub(crate) fn handle_timeout(&mut self, now: Instant, ep: &mut Endpoint) -> Step {
        if self.deadline(ep).is_none_or(|deadline| now < deadline) {
            return Step::Idle;
        }
        if self.retry.rnr_until.take().is_some() {
            self.retry.timer_base = now;
            return Step::Idle;
        }
        if !self.is_ack_expected() {
            ep.counters.probes += 1;
            self.retry.timer_base = now;
            self.retry.only_asks = true;
            self.probe_youngest();
            return Step::Idle;
        }
        let is_deferred = self.first_probe_wait_ns(ep) > self.round_trip_wait_ns(0);
        if self.timeout(ep).is_some_and(|timeout| timeout <= now) {
            ep.counters.local_ack_timeout_err += 1;
            if !self.take_retry(ep) {
                return Step::Fatal;
            }
            // Before the timer restarts: the silence is older.
            self.retry.probe(is_deferred, now);
            self.retry.timer_base = now;
        } else {
            ep.counters.probes += 1;
            self.retry.probe(is_deferred, now);
        }
        self.peer.on_timeout(self.window.next(), window_pkts(ep.mtu));
        self.probe(now);
        Step::Idle
    }

    /// Uses up one retry; without one left the oldest work request fails. 7 means seven.
    pub(super) fn take_retry(&mut self, ep: &mut Endpoint) -> bool {
        if let Some(left) = self.retry.retry_left.checked_sub(1) {
            self.retry.retry_left = left;
            return true;
        }
        ep.counters.retry_exceeded_err += 1;
        self.complete_head(Err(Cause::NoAnswer), ep);
        false
    }
}
