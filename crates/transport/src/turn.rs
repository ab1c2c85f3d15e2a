//! A queue pair's turn at sending. What it has to decide about packets amid a message, how many of them may leave, it decides
//! once, with the packet in front of them: nothing else happens to a queue pair during its turn.

use std::ops::Range;

use crate::attr::MAX_PACKET;
use crate::emit::{Buffer, Transmit};
use crate::memory::Memory;
use crate::qp::Qp;
use crate::segment::Part;
use crate::time::Instant;

/// A queue pair that sends, see [`Qp::turn`].
#[derive(Debug)]
pub struct Turn<'a> {
    qp: &'a mut Qp,
    now: Instant,
    budget: usize,
    /// Numbers of the packets that follow, all of one message, of which none ends it or asks for an acknowledgement.
    amid: Range<u64>,
}

impl Qp {
    /// Its turn at sending, which takes no time. `budget` is how many new request packets the owner allows; responses and the
    /// repetition of the oldest unacknowledged packet ignore it.
    #[inline]
    pub fn turn(&mut self, now: Instant, budget: usize) -> Turn<'_> {
        Turn { qp: self, now, budget, amid: 0..0 }
    }

    /// The first packet of a [`turn`](Self::turn).
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        mem: &impl Memory,
        budget: usize,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        self.turn(now, budget).poll(mem, buf)
    }

    /// See [`Turn::amid`]; the packet in front of them, of the same message, has just been sent, so there was no answer to be
    /// given. A rate is kept packet by packet, and what was sent before, or needs no acknowledgement, is booked otherwise.
    #[inline]
    fn amid(&self, budget: usize) -> Range<u64> {
        let (requester, ep) = (&self.requester, &self.ep);
        let at = requester.cursor;
        let wqe = requester.sq.wqe(requester.cursor_index);
        if at < requester.next || wqe.op.is_fetch() || !ep.ty.is_reliable() || self.is_paced() {
            return at..at;
        }
        at..at + requester.packets_before_ask(budget, ep).min(wqe.end - at - 1)
    }

    /// Writes the packet at the cursor, one of those; its length. `None` where its memory is gone, and nothing has changed.
    #[inline]
    fn transmit_amid(&mut self, mem: &impl Memory, buf: &mut Buffer) -> Option<usize> {
        let (requester, ep) = (&mut self.requester, &mut self.ep);
        let (index, first) = (requester.cursor_index, requester.cursor);
        let wqe = *requester.sq.wqe(index);
        let part = Part { index, first, end: first + 1 };
        let len = requester.write_message(part, &wqe, mem, false, ep, buf).ok()?;
        requester.unasked.add_packet();
        requester.advance_cursor(&wqe, part.end, ep.mtu);
        ep.counters.sent_pkts += 1;
        Some(len)
    }
}

impl Turn<'_> {
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

    /// Writes one packet, BTH to pad without ICRC, to `buf` (at least [`MAX_PACKET`] bytes); `None` when nothing may be sent now.
    /// Responses come before requests.
    #[inline]
    pub fn poll(&mut self, mem: &impl Memory, buf: &mut [u8]) -> Option<Transmit> {
        let Some(buf) = buf.first_chunk_mut::<MAX_PACKET>() else {
            debug_assert!(false, "a transmit buffer holds MAX_PACKET bytes");
            return None;
        };
        if self.amid.next().is_some() {
            if let Some(len) = self.qp.transmit_amid(mem, buf) {
                self.budget -= 1;
                return Some(Transmit { len, is_datagram: false });
            }
            self.amid = 0..0;
        }
        let place = |qp: &Qp| (qp.requester.cursor_index, qp.requester.cursor);
        let ((index, cursor), on_way) = (place(self.qp), self.qp.packets_in_flight());
        let sent = self.qp.transmit(self.now, mem, self.budget, buf)?;
        self.budget = self.budget.saturating_sub(self.qp.packets_in_flight().saturating_sub(on_way));
        let (index_now, cursor_now) = place(self.qp);
        if index_now == index && cursor_now > cursor {
            self.amid = self.qp.amid(self.budget);
        }
        Some(sent)
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

    /// How many packets follow the first one of a message of so many without a decision.
    fn amid(op: WrOp, packets: u32, budget: usize) -> u64 {
        let mut b = Bench::rc();
        b.post(1, op, packets * 1024);
        let mut turn = b.qp.turn(b.now, budget);
        assert!(turn.poll(&b.mem, &mut [0; MAX_PACKET]).is_some());
        turn.amid.end - turn.amid.start
    }

    #[test]
    fn the_last_packet_of_a_message_a_budget_and_an_interval_is_decided_about() {
        assert_eq!([1, 2, 3, 64].map(|packets| amid(WrOp::Send, packets, usize::MAX)), [0, 0, 1, 62]);
        assert_eq!([1, 2, 3, 10].map(|budget| amid(write(0), 64, budget)), [0, 0, 1, 8]);
        assert_eq!(amid(write(0), 300, usize::MAX), 122, "the 124th asks");
        assert_eq!(amid(read(0), 64, usize::MAX), 0);
    }

    /// What happens to a queue pair.
    #[derive(Clone, Debug)]
    enum Event {
        Post {
            kind: u8,
            bytes: u32,
            flags: SendFlags,
        },
        /// So many packets may leave, by this budget.
        Poll {
            packets: usize,
            budget: usize,
        },
        /// So many more packets have arrived; then one has not, or was not expected yet.
        Answer {
            packets: u32,
            nak: Option<bool>,
        },
        /// A WRITE of the peer.
        Request {
            asks: bool,
        },
        Wait {
            us: u64,
        },
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
                .prop_map(|(packets, nak)| Event::Answer { packets, nak }),
            1 => any::<bool>().prop_map(|asks| Event::Request { asks }),
            1 => (1..40_000_u64).prop_map(|us| Event::Wait { us }),
            1 => prop::bool::weighted(0.2).prop_map(|is_gone| Event::Memory { is_gone }),
        ]
    }

    /// Up to so many packets, in one turn or in a new one for each.
    fn poll(b: &mut Bench, packets: usize, mut budget: usize, is_one_turn: bool) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut buf = [0; MAX_PACKET];
        let mut turn = b.qp.turn(b.now, budget);
        while all.len() < packets {
            let wanted = turn.qp().wants_transmit();
            let Some(sent) = turn.poll(&b.mem, &mut buf) else { break };
            assert!(wanted);
            all.push(buf[..sent.len].to_vec());
            budget = turn.budget();
            if !is_one_turn {
                turn = b.qp.turn(b.now, budget);
            }
        }
        all
    }

    proptest! {
        /// Whether packets leave in one turn or in one each makes no difference, to the peer or to the queue pair.
        #[test]
        fn a_turn_changes_nothing_but_the_cost(
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
                if let Event::Answer { packets, .. } = event {
                    una += packets.min(both[0].qp.packets_in_flight() as u32);
                }
                let request = Pkt::new(Opcode::RC_WRITE_ONLY, requests);
                requests += u32::from(matches!(event, Event::Request { .. }));
                let sent = [true, false].map(|is_one_turn| {
                    let b = &mut both[usize::from(is_one_turn)];
                    match event {
                        Event::Post { kind, bytes, flags } => {
                            let op = match kind {
                                0..3 => WrOp::Send,
                                3..7 => write(0),
                                _ => read(0),
                            };
                            let _full = b.post_flags(bytes.into(), op, bytes, flags);
                        }
                        Event::Poll { packets, budget } => return poll(b, packets, budget, is_one_turn),
                        Event::Answer { nak, .. } => {
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
                    let (on_way, pending) = (b.qp.packets_in_flight(), b.qp.pending_packets());
                    let state = (b.qp.wants_transmit(), b.qp.poll_timeout(), *b.qp.counters());
                    (on_way, pending, state, b.events())
                });
                prop_assert_eq!(one, other);
            }
        }
    }
}
