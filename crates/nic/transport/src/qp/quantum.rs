//! What a queue pair sends, and in which order.
//!
//! Nothing else happens to a queue pair during a transmit quantum. So what decides about mid-message packets
//! is decided once, with the packet before them.

use crate::attr::{MAX_PACKET, QpState};
use crate::emit::{Buffer, Transmit, congestion_notification};
use crate::memory::Memory;
use crate::requester::Step;
use crate::time::Instant;
use crate::wr::UdDest;

use super::Qp;

/// A transmit quantum: the packets that a queue pair sends at one time, see [`Qp::transmit_quantum`].
#[derive(Debug)]
pub struct TransmitQuantum<'a> {
    qp: &'a mut Qp,
    now: Instant,
    budget: usize,
    /// How many mid-message packets follow without a decision.
    mid_message: u64,
}

impl TransmitQuantum<'_> {
    /// The queue pair.
    #[must_use]
    #[inline]
    pub fn qp(&self) -> &Qp {
        self.qp
    }

    /// What is left of the budget.
    #[must_use]
    #[inline]
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Writes one packet, BTH to pad without ICRC, to `buf` (at least [`MAX_PACKET`] bytes); `None` when
    /// nothing may be sent now. Responses leave before requests.
    #[inline]
    pub fn poll(&mut self, mem: &impl Memory, buf: &mut [u8]) -> Option<Transmit> {
        let Some(buf) = buf.first_chunk_mut::<MAX_PACKET>() else {
            debug_assert!(false, "a transmit buffer holds MAX_PACKET bytes");
            return None;
        };
        if self.mid_message > 0 {
            self.mid_message -= 1;
            let Qp { requester, ep, .. } = &mut *self.qp;
            if let Some(len) = requester.transmit_mid_message(mem, ep, buf) {
                ep.counters.sent_pkts += 1;
                self.budget -= 1;
                return Some(Transmit { len, is_datagram: false });
            }
            self.mid_message = 0;
        }
        let ((index, cursor), in_flight) = (self.qp.requester.cursor(), self.qp.requester.in_flight());
        let sent = self.qp.transmit(self.now, mem, self.budget, buf)?;
        let more_in_flight = self.qp.requester.in_flight().saturating_sub(in_flight);
        self.budget = self.budget.saturating_sub(more_in_flight as usize);
        let (index_now, cursor_now) = self.qp.requester.cursor();
        // The packet was a request and not the last of its message. A rate is kept packet by packet.
        if index_now == index && cursor_now > cursor && !self.qp.ep.congestion.is_paced() {
            self.mid_message = self.qp.requester.mid_message_packets(self.budget, &self.qp.ep);
        }
        Some(sent)
    }
}

impl Qp {
    /// Starts a transmit quantum, which ends when the result is dropped. `budget` is how many new request
    /// packets may leave; responses and the retransmission of the oldest unacknowledged packet ignore it.
    #[inline]
    pub fn transmit_quantum(&mut self, now: Instant, budget: usize) -> TransmitQuantum<'_> {
        TransmitQuantum { qp: self, now, budget, mid_message: 0 }
    }

    /// The first packet of a [`transmit_quantum`](Self::transmit_quantum).
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mem: &impl Memory,
        budget: usize,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        self.transmit_quantum(now, budget).poll(mem, buf)
    }

    /// Every packet of a receive batch was handled: the ACK for the batch becomes due, or is delayed
    /// (`ack_policy.rs`). `is_polled`: an application thread received the batch by polling, so it sees the
    /// completions at once, and its reply may take the ACK along.
    #[inline]
    pub fn end_of_batch(&mut self, now: Instant, is_polled: bool) {
        // A request that is blocked would not take the ACK along.
        let may_delay = self.ep.attr.state == QpState::Rts && self.requester.pending_packets() == 0;
        self.responder.end_of_batch(now, may_delay, is_polled, self.ep.mtu);
    }

    /// Makes an ACK due of everything that was executed, unless it has left: the queue pair is about to leave
    /// its connection.
    pub fn release_ack(&mut self) {
        if self.ep.ty.is_reliable() {
            self.responder.release_ack();
        }
    }

    /// Destination of the packet that was polled last, if that is a datagram (see [`Transmit`]).
    #[must_use]
    #[inline]
    pub fn datagram_dest(&self) -> &UdDest {
        &self.ep.datagram_dest
    }

    /// Whether a [`transmit_quantum`](Self::transmit_quantum) with an unlimited budget would send something.
    #[must_use]
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        let is_held = self.ep.congestion.is_holding();
        let has_reply = self.responder.has_reply() && !(is_held && self.responder.owes_responses());
        (self.may_respond() && has_reply)
            || (!is_held && self.requester.sendable(&self.ep))
            || self.ep.congestion.owes_cnp()
    }

    /// Whether responses may be sent: from RTR on; in the error state only the NAK that led to it.
    #[inline]
    pub(super) fn may_respond(&self) -> bool {
        match self.ep.attr.state {
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => true,
            QpState::Err => self.responder.owes_fatal_nak(),
            QpState::Reset | QpState::Init => false,
        }
    }

    /// Writes the next packet, for which everything is decided here.
    #[inline]
    fn transmit(
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
        if self.may_respond()
            && self.responder.has_reply()
            && !(is_held && self.responder.owes_responses())
            && let Some(transmit) = self.transmit_reply(now, mem, buf)
        {
            return Some(transmit);
        }
        if is_held || !self.requester.sendable(&self.ep) {
            return None;
        }
        let step = self.requester.transmit(now, mem, budget, &mut self.ep, buf);
        self.after(step);
        let Step::Sent(transmit) = step else { return None };
        self.note_sent(now, transmit, true);
        // The ACK follows the last packet of the request that it waited for: a peer that stops polling at its
        // ACK has then seen the request as well, and the shorter packet can end the same burst.
        if self.responder.ack.is_delayed() && self.requester.pending_packets() == 0 {
            self.ep.counters.ack_deferred += u64::from(self.responder.ack.requests_left());
        }
        Some(transmit)
    }

    /// Writes the next response, NAK, ACK or gap report. A response from memory that was deregistered becomes
    /// a NAK.
    #[inline(never)] // keeps the path of a request short
    fn transmit_reply(&mut self, now: Instant, mem: &impl Memory, buf: &mut Buffer) -> Option<Transmit> {
        let is_response = self.responder.owes_responses();
        match self.responder.transmit(mem, &mut self.ep, buf) {
            Ok(transmit) => {
                self.note_sent(now, transmit?, is_response);
                transmit
            }
            Err(fault) => {
                let position = self.responder.responding_to();
                self.responder.clear_responses();
                self.on_fault(fault, position);
                let nak = self.responder.transmit(mem, &mut self.ep, buf).ok()??;
                self.ep.counters.sent_pkts += 1;
                Some(nak)
            }
        }
    }

    /// Counts a packet, and its bytes towards the rate if that applies to it.
    #[inline]
    fn note_sent(&mut self, now: Instant, transmit: Transmit, is_paced: bool) {
        self.ep.counters.sent_pkts += 1;
        if is_paced && let Some(pacer) = self.ep.congestion.pacer() {
            pacer.on_sent(now, transmit.len);
        }
    }

    /// Whether the rate limit holds back the next packet now.
    #[cold]
    fn is_held(&mut self, now: Instant) -> bool {
        let Some(pacer) = self.ep.congestion.pacer() else { return false };
        let was_holding = pacer.is_holding();
        let is_held = !pacer.lets_pass(now);
        self.ep.counters.rate_waits += u64::from(is_held && !was_holding);
        is_held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{PathMtu, QpAttr, QpConfig, QpState, QpType};
    use crate::testing::{Bench, Pkt, REMOTE, RKEY, RQ_PSN, SIZE, SQ_PSN, attr, config, read, write};
    use crate::wr::{SendFlags, WrOp};
    use proptest::prelude::*;
    use wire::{NakCode, Opcode};

    /// How many mid-message packets follow the first packet of a message of `packets` without a decision.
    fn mid_message(op: WrOp, packets: u32, budget: usize) -> u64 {
        let mut b = Bench::rc();
        b.post(1, op, packets * 1024);
        let mut quantum = b.qp.transmit_quantum(b.now, budget);
        assert!(quantum.poll(&b.mem, &mut [0; MAX_PACKET]).is_some());
        quantum.mid_message
    }

    #[test]
    fn the_last_packet_of_a_message_a_budget_and_an_ack_interval_is_not_a_mid_message_packet() {
        assert_eq!([1, 2, 3, 64].map(|packets| mid_message(WrOp::Send, packets, usize::MAX)), [0, 0, 1, 62]);
        assert_eq!([1, 2, 3, 10].map(|budget| mid_message(write(0), 64, budget)), [0, 0, 1, 8]);
        assert_eq!(mid_message(write(0), 300, usize::MAX), 122, "the 124th packet asks for an ACK");
        assert_eq!(mid_message(read(0), 64, usize::MAX), 0);
    }

    /// An input to a queue pair.
    #[derive(Clone, Debug)]
    enum Event {
        Post {
            kind: u8,
            bytes: u32,
            flags: SendFlags,
        },
        /// The owner polls up to this many packets with this budget.
        Poll {
            packets: usize,
            budget: usize,
        },
        /// The peer acknowledges this many packets, then NAKs one (true: sequence NAK, false: RNR NAK).
        Acknowledge {
            packets: u32,
            nak: Option<bool>,
        },
        /// A WRITE of the peer, with or without AckReq.
        Request {
            asks: bool,
        },
        Wait {
            us: u64,
        },
        /// The application deregisters its memory, or registers it again.
        Memory {
            is_gone: bool,
        },
    }

    fn event() -> impl Strategy<Value = Event> {
        let flags = prop::sample::select(vec![SendFlags::empty(), SendFlags::SIGNALED, SendFlags::FENCE]);
        prop_oneof![
            4 => (0..8_u8, 0..120_000_u32, flags)
                .prop_map(|(kind, bytes, flags)| Event::Post { kind, bytes, flags }),
            8 => (1..150_usize, 0..200_usize).prop_map(|(packets, budget)| Event::Poll { packets, budget }),
            4 => (1..200_u32, prop::option::weighted(0.2, any::<bool>()))
                .prop_map(|(packets, nak)| Event::Acknowledge { packets, nak }),
            1 => any::<bool>().prop_map(|asks| Event::Request { asks }),
            1 => (1..40_000_u64).prop_map(|us| Event::Wait { us }),
            1 => prop::bool::weighted(0.2).prop_map(|is_gone| Event::Memory { is_gone }),
        ]
    }

    /// Polls up to `packets` packets, in one quantum or in a new one for each.
    fn poll(b: &mut Bench, packets: usize, mut budget: usize, is_one_quantum: bool) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut buf = [0; MAX_PACKET];
        let mut quantum = b.qp.transmit_quantum(b.now, budget);
        while all.len() < packets {
            let wanted = quantum.qp().wants_transmit();
            let Some(sent) = quantum.poll(&b.mem, &mut buf) else { break };
            assert!(wanted);
            all.push(buf[..sent.len].to_vec());
            budget = quantum.budget();
            if !is_one_quantum {
                quantum = b.qp.transmit_quantum(b.now, budget);
            }
        }
        all
    }

    proptest! {
        #[test]
        fn one_quantum_sends_the_same_packets_as_a_quantum_for_each(
            equal_writes in any::<bool>(),
            path_mtu in prop::sample::select(vec![PathMtu::M256, PathMtu::M1024, PathMtu::M4096]),
            events in prop::collection::vec(event(), 1..60),
        ) {
            let config = QpConfig { equal_writes, ..config(QpType::Rc) };
            let attr = QpAttr { path_mtu, ..attr() };
            let mut both = [(); 2].map(|()| Bench::new(config, &attr, QpState::Rts));
            for b in &both {
                *b.mem.local.borrow_mut() = (0..SIZE).map(|at| ((at / 3) ^ (at / 251)) as u8).collect();
            }
            let (mut una, mut requests) = (SQ_PSN, RQ_PSN);
            for event in events {
                if let Event::Acknowledge { packets, .. } = event {
                    una += packets.min(both[0].qp.packets_in_flight() as u32);
                }
                let request = Pkt::new(Opcode::RC_WRITE_ONLY, requests);
                requests += u32::from(matches!(event, Event::Request { .. }));
                let sent = [true, false].map(|is_one_quantum| {
                    let b = &mut both[usize::from(is_one_quantum)];
                    match event {
                        Event::Post { kind, bytes, flags } => {
                            let op = match kind {
                                0..3 => WrOp::Send,
                                3..7 => write(0),
                                _ => read(0),
                            };
                            let _full = b.post_flags(bytes.into(), op, bytes, flags);
                        }
                        Event::Poll { packets, budget } => return poll(b, packets, budget, is_one_quantum),
                        Event::Acknowledge { nak, .. } => {
                            let _stale = b.recv(&match nak {
                                None => Pkt::ack(una - 1),
                                Some(true) => Pkt::nak(una, NakCode::PsnSequenceError),
                                Some(false) => Pkt::rnr(una, 12),
                            });
                        }
                        Event::Request { asks } => {
                            let write = request.clone().reth(REMOTE, RKEY, 8).payload(1, 8);
                            let _late = b.recv(&if asks { write.ack_req() } else { write });
                        }
                        Event::Wait { us } => b.at(Instant(b.now.0 + us * 1000)),
                        Event::Memory { is_gone } => b.mem.local_gone.set(is_gone),
                    }
                    Vec::new()
                });
                prop_assert_eq!(&sent[0], &sent[1]);
                let [one, other] = both.each_mut().map(|b| {
                    let (in_flight, pending) = (b.qp.packets_in_flight(), b.qp.backlog().pending_packets);
                    let state = (b.qp.wants_transmit(), b.qp.poll_timeout(), *b.qp.counters());
                    (in_flight, pending, state, b.events())
                });
                prop_assert_eq!(one, other);
            }
        }
    }
}
