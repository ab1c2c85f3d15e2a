//! When the peer is asked for an acknowledgement. Each costs both sides a small packet's way through the kernel, so the end of a
//! message alone is no reason: somebody must wait to hear of it (IBA 9.7.5.1 leaves it to the requester).

use crate::attr::QpState;
use crate::endpoint::Endpoint;
use crate::requester::{Requester, full_packets};
use crate::rtt::PROBE_MIN_NS;
use crate::time::Instant;
use crate::wqe::SendWqe;
use crate::wr::SendFlags;

/// An acknowledgement is asked for at least every so many packets, or full packets of so many bytes: every second burst.
const ACK_INTERVAL_PKTS: u64 = 124;
const ACK_INTERVAL_BYTES: u64 = 124 * 1024;
/// ... and of so many messages that nobody waits for. They take room in the windows, and are flushed with an error when the
/// connection ends before they were asked about.
const SILENT_MAX: u32 = 16;
/// What nobody waits for is asked about when nothing has followed it for so long: as long as an answer may take.
const QUIET_NS: u64 = PROBE_MIN_NS;

/// Packets from one that asks for an acknowledgement to the next at most.
#[inline]
pub(crate) fn ack_interval(mtu: usize) -> u64 {
    ACK_INTERVAL_PKTS.min(full_packets(ACK_INTERVAL_BYTES, mtu))
}

/// What was sent since the last AckReq.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unasked {
    packets: u32,
    /// Work requests that end in these.
    messages: u32,
    /// One of them makes a completion, or is read from memory when it is sent again, which the application may take back
    /// when it has reason to believe that it arrived.
    is_awaited: bool,
}

impl Unasked {
    /// A packet was sent that does not ask.
    #[inline]
    pub(crate) fn add_packet(&mut self) {
        self.packets += 1;
    }
}

impl Requester {
    /// How many packets may follow the last one before one that [asks](Self::ask) by the window, by what is left of the budget, or
    /// because it is time.
    #[inline]
    pub(crate) fn packets_before_ask(&self, budget: usize, ep: &Endpoint) -> u64 {
        let window = self.window(ep.mtu).saturating_sub(self.cursor - self.una);
        let interval = ack_interval(ep.mtu).saturating_sub(self.unasked.packets.into());
        window.min(budget as u64).min(interval).saturating_sub(1)
    }

    /// Whether this packet asks: now and then, and when nothing follows it at once but somebody waits.
    #[inline]
    pub(crate) fn ask(&mut self, wqe: &SendWqe, last: bool, budget: usize, ep: &Endpoint) -> bool {
        self.unasked.add_packet();
        if last {
            let is_kept = wqe.length == 0 || wqe.flags.contains(SendFlags::INLINE);
            self.unasked.messages += 1;
            self.unasked.is_awaited |= wqe.is_signaled(ep) || !is_kept;
        }
        let full = budget <= 1 || self.in_flight() + 1 >= self.window(ep.mtu);
        let asks = full
            || (last && self.is_answer_wanted() && !self.is_followed(ep))
            || u64::from(self.unasked.packets) >= ack_interval(ep.mtu);
        if asks {
            self.unasked = Unasked::default();
        }
        self.is_answering &= !last;
        asks
    }

    /// Whether somebody waits to hear of what was sent since the last AckReq: the application for a completion, the queues for
    /// room, or this side for what it sends again. And unless it answers the peer, a message may be one of many, which gather
    /// until an acknowledgement comes. All else is asked about after a while.
    #[inline]
    fn is_answer_wanted(&self) -> bool {
        let Unasked { messages, is_awaited, .. } = self.unasked;
        is_awaited
            || !self.is_answering
            || self.cursor < self.next
            || messages >= SILENT_MAX
            || self.sq.is_half(messages)
    }

    /// Whether the work request behind the one at the cursor is a message that may be sent straight away.
    #[inline]
    fn is_followed(&self, ep: &Endpoint) -> bool {
        let next = self.cursor_index.wrapping_add(1);
        if next == self.sq.tail || ep.attr.state != QpState::Rts {
            return false;
        }
        let wqe = self.sq.wqe(next);
        let is_message = !wqe.op.is_fetch() && !wqe.op.is_local();
        is_message && wqe.fault.is_none() && !wqe.flags.contains(SendFlags::FENCE)
    }

    /// When the peer is asked about what was sent without a question: at once if something waits for all before it.
    pub(crate) fn question_due(&self, ep: &Endpoint) -> Instant {
        let is_waiting = ep.attr.sq_draining
            || self.failed.is_some()
            || (self.cursor_index != self.sq.tail && self.sq.wqe(self.cursor_index).op.is_local());
        self.timer_base.plus_ns(if is_waiting { 0 } else { QUIET_NS })
    }
}

#[cfg(test)]
#[path = "unasked_tests.rs"]
mod tests;
