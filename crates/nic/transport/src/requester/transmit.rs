//! Which packet of the requester leaves next, and what is noted about it.

use super::segment::{Part, read_request_end};
use super::send_queue::SendWqe;
use super::{Requester, Step, local};
use crate::ack_policy::Outgoing;
use crate::attr::QpState;
use crate::emit::{Buffer, Transmit};
use crate::endpoint::Endpoint;
use crate::memory::Memory;
use crate::time::Instant;
use crate::wr::SendFlags;

impl Requester {
    /// Writes the next packet, executing local operations on the way. The caller has checked
    /// [`Requester::sendable`].
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
            return self.retransmit_lost(now, mem, ep, buf);
        }
        let is_reliable = ep.ty.is_reliable();
        let is_datagram = !is_reliable && ep.ty.is_datagram();
        loop {
            let (index, cursor) = self.cursor();
            let wqe = *self.sq.wqe(index);
            if let Some(cause) = wqe.fault {
                return self.fail(cause, ep);
            }
            if wqe.op.is_local() {
                if let Err(cause) = local::execute(&wqe.op, mem, ep) {
                    return self.fail(cause, ep);
                }
                self.window.skip_work_request();
                self.complete_head(Ok(()), ep);
                if self.sendable(ep) {
                    continue;
                }
                return Step::Idle;
            }
            let is_resending = self.window.is_resending();
            if budget == 0 && !(is_resending && cursor == self.window.una()) {
                return Step::Idle;
            }
            if is_datagram && wqe.length as usize > ep.mtu {
                // IBA C10-93.1.1: nothing is sent, no error is raised.
                ep.counters.ud_send_too_long += 1;
                self.window.advance_cursor(&wqe, cursor + 1, ep.mtu);
                self.progress(cursor + 1, ep);
                if self.sendable(ep) {
                    continue;
                }
                return Step::Idle;
            }
            let is_fetch = wqe.op.is_fetch();
            let end = if is_fetch { self.fetch_end(&wqe, ep.mtu) } else { cursor + 1 };
            let part = Part { index, first: cursor, end };
            let ack_req = is_reliable && (is_fetch || self.asks(&wqe, end == wqe.end, budget, ep));
            let written = if is_datagram {
                self.write_datagram(part, &wqe, mem, ep, buf)
            } else if is_fetch {
                self.begin_fetch(part, &wqe, mem, ep, buf)
            } else {
                self.write_message(part, &wqe, mem, ack_req, ep, buf)
            };
            let len = match written {
                Ok(len) => len,
                Err(cause) => return self.fail(cause, ep),
            };
            self.note_sent(now, end, ack_req);
            if is_resending {
                ep.counters.retransmitted_pkts += 1;
                self.rtt.retransmitted(cursor, cursor == self.window.una(), now);
            } else if ack_req {
                self.rtt.sent(cursor, now);
            }
            self.window.advance_cursor(&wqe, end, ep.mtu);
            if !is_reliable {
                self.progress(end, ep);
            }
            return Step::Sent(Transmit { len, is_datagram });
        }
    }

    /// How many packets may leave by [`transmit_mid_message`](Self::transmit_mid_message) behind a packet of
    /// the same message that has just left. None of them ends the message or asks for an acknowledgement, and
    /// none was sent before.
    #[inline]
    pub(crate) fn mid_message_packets(&self, budget: usize, ep: &Endpoint) -> u64 {
        let (index, cursor) = self.cursor();
        let wqe = self.sq.wqe(index);
        if self.window.is_resending() || wqe.op.is_fetch() || !ep.ty.is_reliable() {
            return 0;
        }
        let room = self.window_limit(ep.mtu).saturating_sub(self.window.span());
        let before_ask = room.min(budget as u64).min(self.acks.packets_left(ep.mtu)).saturating_sub(1);
        before_ask.min(wqe.end - cursor - 1)
    }

    /// Writes the packet at the cursor, one of the [`mid_message_packets`](Self::mid_message_packets), and
    /// returns its length. `None`, and nothing has changed, when its memory was deregistered.
    #[inline]
    pub(crate) fn transmit_mid_message(
        &mut self,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Option<usize> {
        let (index, first) = self.cursor();
        let wqe = *self.sq.wqe(index);
        let part = Part { index, first, end: first + 1 };
        let len = self.write_message(part, &wqe, mem, false, ep, buf).ok()?;
        self.acks.packet_sent();
        self.window.advance_cursor(&wqe, part.end, ep.mtu);
        Some(len)
    }

    /// Whether the packet at the cursor asks for an acknowledgement.
    #[inline]
    fn asks(&mut self, wqe: &SendWqe, ends_message: bool, budget: usize, ep: &Endpoint) -> bool {
        let packet = Outgoing {
            ends_message,
            is_signaled: wqe.is_signaled(ep),
            is_last_allowed: budget <= 1
                || self.in_flight() + 1 >= self.window_limit(ep.mtu)
                || ep.congestion.is_slow(),
            is_retransmission: self.window.is_resending(),
            half_queue: self.sq.limit() / 2,
        };
        let next = self.window.cursor_index().wrapping_add(1);
        let sq = &self.sq;
        let is_followed = || {
            next != sq.tail() && ep.attr.state == QpState::Rts && {
                let wqe = sq.wqe(next);
                let is_message = !wqe.op.is_fetch() && !wqe.op.is_local();
                is_message && wqe.fault.is_none() && !wqe.flags.contains(SendFlags::FENCE)
            }
        };
        self.acks.decide(packet, is_followed, ep.mtu)
    }

    /// A packet leaves. The ACK timer runs from the first one that asks for a response (IBA 9.7.6.1.3).
    #[inline]
    pub(super) fn note_sent(&mut self, now: Instant, end: u64, asks: bool) {
        self.start_timer(now);
        if asks {
            self.retry.ask(end);
        }
    }

    /// Starts the ACK timer, unless it runs because an acknowledgement is expected.
    #[inline]
    pub(crate) fn start_timer(&mut self, now: Instant) {
        if !self.is_ack_expected() {
            self.retry.restart_timer(now);
        }
    }

    /// One past the last packet of the READ request at the cursor. A request that probes the peer asks for
    /// one packet. The peer may have executed that as a READ of its own, so a later request ends there too.
    #[inline]
    fn fetch_end(&mut self, wqe: &SendWqe, mtu: usize) -> u64 {
        let cursor = self.window.cursor();
        if self.window.is_resending() && self.peer.is_probe(cursor) {
            let end = cursor + 1;
            self.board.set_end(cursor);
            self.board.retransmitted(cursor, end, self.window.next());
            return end;
        }
        let end = read_request_end(wqe, cursor, mtu).0;
        if self.window.is_resending() { self.board.first_end(cursor, end) } else { end }
    }
}

#[cfg(test)]
#[path = "transmit_tests.rs"]
mod tests;
