//! The requester's deadlines: the local ACK timeout, the probe before it, and the wait after an RNR NAK (IBA 9.7.6.1.3,
//! 9.7.5.2.8).

use crate::endpoint::Endpoint;
use crate::requester::{Requester, Step, window_pkts};
use crate::time::{Instant, ack_timeout_ns};
use crate::wc::WcStatus;

impl Requester {
    /// When [`Requester::handle_timeout`] must be called next.
    #[inline]
    pub(crate) fn deadline(&self, ep: &Endpoint) -> Option<Instant> {
        if let Some(until) = self.rnr_until {
            return Some(until);
        }
        if self.una == self.next {
            return None;
        }
        if !self.is_asked() {
            // What is held back, or about to be sent again, will ask.
            let is_about_to = (ep.congestion.is_holding() && self.sendable(ep))
                || self.board.has_lost()
                || self.cursor == self.una;
            return (!is_about_to).then(|| self.question_due(ep));
        }
        match (self.timeout(ep), self.probe_due(ep)) {
            (Some(timeout), Some(probe)) => Some(timeout.min(probe)),
            (timeout, probe) => timeout.or(probe),
        }
    }

    /// When the local ACK timeout is over.
    #[inline]
    fn timeout(&self, ep: &Endpoint) -> Option<Instant> {
        Some(self.timer_base.plus_ns(ack_timeout_ns(ep.attr.timeout)?))
    }

    /// When an answer is overdue by what the path has taken so far. It costs no retry: how long the peer may be silent is
    /// what `timeout` and `retry_cnt` say.
    #[inline]
    fn probe_due(&self, ep: &Endpoint) -> Option<Instant> {
        let is_repairing = self.board.is_repairing() || self.una < self.peer.recover();
        // Who asks for no timeout is not served one that is a guess.
        let is_wanted = ep.ty.is_reliable() && (ep.attr.timeout != 0 || self.rtt.is_known());
        let wait = self.rtt.probe_ns(self.probes, is_repairing);
        is_wanted.then(|| self.timer_base.max(self.probed_at).plus_ns(wait))
    }

    /// Ends an RNR wait, or asks the peer again when it has been silent for too long.
    pub(crate) fn handle_timeout(&mut self, now: Instant, ep: &mut Endpoint) -> Step {
        if self.deadline(ep).is_none_or(|deadline| now < deadline) {
            return Step::Idle;
        }
        if self.rnr_until.take().is_some() {
            self.timer_base = now;
            return Step::Idle;
        }
        if !self.is_asked() {
            ep.counters.probes += 1;
            self.timer_base = now;
            self.question();
            return Step::Idle;
        }
        if self.timeout(ep).is_some_and(|timeout| timeout <= now) {
            ep.counters.local_ack_timeout_err += 1;
            if !self.take_retry(ep) {
                return Step::Fatal;
            }
            self.timer_base = now;
        } else {
            ep.counters.probes += 1;
        }
        self.probes = self.probes.saturating_add(1);
        self.probed_at = now;
        self.peer.on_timeout(self.next, window_pkts(ep.mtu));
        self.probe(now);
        Step::Idle
    }

    /// Uses up one retry; without one left the oldest work request fails. 7 means seven.
    pub(crate) fn take_retry(&mut self, ep: &mut Endpoint) -> bool {
        if let Some(left) = self.retry_left.checked_sub(1) {
            self.retry_left = left;
            return true;
        }
        ep.counters.retry_exceeded_err += 1;
        self.complete_head(WcStatus::RetryExcErr, ep);
        false
    }
}
