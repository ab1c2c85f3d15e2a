//! The requester's deadlines: the local ACK timeout and the wait after an RNR NAK (IBA 9.7.6.1.3, 9.7.5.2.8).

use crate::endpoint::Endpoint;
use crate::requester::{Requester, Step};
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
        Some(self.timer_base.plus_ns(ack_timeout_ns(ep.attr.timeout)?))
    }

    /// Ends an RNR wait, or takes everything unacknowledged for lost.
    pub(crate) fn handle_timeout(&mut self, now: Instant, ep: &mut Endpoint) -> Step {
        if self.deadline(ep).is_none_or(|deadline| now < deadline) {
            return Step::Idle;
        }
        if self.rnr_until.take().is_some() {
            self.timer_base = now;
            return Step::Idle;
        }
        ep.counters.local_ack_timeout_err += 1;
        if !self.take_retry(ep) {
            return Step::Fatal;
        }
        self.go_back(self.una, ep);
        self.timer_base = now;
        self.restarted = false;
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
