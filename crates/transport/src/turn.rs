//! The packets amid a message, about which nothing is left to decide: how many there are is settled once, with the packet in
//! front of them. Deciding costs each of them as much as writing it.

use crate::attr::QpState;
use crate::emit::Buffer;
use crate::endpoint::Endpoint;
use crate::memory::Memory;
use crate::requester::Requester;
use crate::segment::Part;
use crate::unasked::ack_interval;

/// What one who drains a queue pair remembers from one [`poll_turn`](crate::Qp::poll_turn) to the next. It ends with whatever else
/// happens to the queue pair: a packet, a timer, a verb.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    /// Number of the next packet; those from it to `end` are of one message, and none asks for an acknowledgement.
    next: u64,
    end: u64,
}

impl Requester {
    /// The packets that may follow the one that was just sent with `budget`, before one that may ask for an acknowledgement: the last
    /// of the message, of a window, of the budget or of an interval.
    #[inline]
    pub(crate) fn turn(&self, budget: usize, ep: &Endpoint) -> Turn {
        let next = self.cursor;
        if self.cursor_index == self.sq.tail || next < self.next {
            return Turn::default();
        }
        let wqe = self.sq.wqe(self.cursor_index);
        let is_amid = next > wqe.first && !wqe.op.is_fetch();
        if !is_amid || !ep.ty.is_reliable() || ep.attr.state != QpState::Rts || self.board.has_lost() {
            return Turn::default();
        }
        let window = self.window(ep.mtu).saturating_sub(next - self.una);
        let unasked = ack_interval(ep.mtu).saturating_sub(self.unasked.packets.into());
        let allowed = (budget as u64).saturating_sub(1);
        let packets = (wqe.end - next).min(window).min(unasked).min(allowed);
        Turn { next, end: next + packets.saturating_sub(1) }
    }

    /// Writes the packet at the cursor if it is one of those; its length. None is written where its memory is gone.
    #[inline]
    pub(crate) fn transmit_amid(
        &mut self,
        turn: &mut Turn,
        mem: &impl Memory,
        ep: &mut Endpoint,
        buf: &mut Buffer,
    ) -> Option<usize> {
        if turn.next != self.cursor || turn.next >= turn.end {
            return None;
        }
        let wqe = *self.sq.wqe(self.cursor_index);
        let part = Part { index: self.cursor_index, first: turn.next, end: turn.next + 1 };
        let len = self.write_message(part, &wqe, mem, false, ep, buf).ok()?;
        turn.next += 1;
        self.unasked.packets += 1;
        self.advance_cursor(&wqe, turn.next, ep.mtu);
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{MAX_PACKET, PathMtu, QpAttr, QpConfig, QpType};
    use crate::testing::{Bench, Pkt, SQ_PSN, attr, config, write};
    use crate::time::Instant;
    use crate::wr::{SendFlags, WrOp};
    use proptest::prelude::*;
    use wire::NakCode;

    /// What happens to a queue pair.
    #[derive(Clone, Debug)]
    enum Event {
        Post {
            is_send: bool,
            bytes: u32,
        },
        /// So many packets may leave, by this budget.
        Poll {
            packets: usize,
            budget: usize,
        },
        /// So many more packets have arrived, and perhaps the next one is missing.
        Answer {
            packets: u32,
            is_nak: bool,
        },
        Wait {
            us: u64,
        },
        MemoryGoes,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            3 => (any::<bool>(), 0..60_000_u32).prop_map(|(is_send, bytes)| Event::Post { is_send, bytes }),
            6 => (1..150_usize, 0..200_usize).prop_map(|(packets, budget)| Event::Poll { packets, budget }),
            3 => (1..200_u32, prop::bool::weighted(0.2))
                .prop_map(|(packets, is_nak)| Event::Answer { packets, is_nak }),
            1 => (1..40_000_u64).prop_map(|us| Event::Wait { us }),
            1 => Just(Event::MemoryGoes),
        ]
    }

    /// Up to so many packets; with one turn for all of them, or a new one for each.
    fn poll(b: &mut Bench, packets: usize, mut budget: usize, is_one_turn: bool) -> Vec<Vec<u8>> {
        let (mut turn, mut all) = (Turn::default(), Vec::new());
        while all.len() < packets {
            let mut buf = vec![0; MAX_PACKET];
            let before = b.qp.packets_in_flight();
            let Some(sent) = b.qp.poll_turn(b.now, &b.mem, budget, &mut turn, &mut buf) else { break };
            budget = budget.saturating_sub(b.qp.packets_in_flight().saturating_sub(before));
            buf.truncate(sent.len);
            all.push(buf);
            if !is_one_turn {
                turn = Turn::default();
            }
        }
        all
    }

    proptest! {
        /// Whoever remembers the turn sends just what one sends who decides anew about each packet.
        #[test]
        fn a_turn_changes_nothing_but_the_cost(
            equal_writes in any::<bool>(),
            events in prop::collection::vec(event(), 1..40),
        ) {
            let config = QpConfig { equal_writes, ..config(QpType::Rc) };
            let attr = QpAttr { path_mtu: PathMtu::M256, ..attr() };
            let mut both = [(); 2].map(|()| Bench::new(config, &attr, QpState::Rts));
            let mut una = SQ_PSN;
            for event in events {
                if let Event::Answer { packets, .. } = event {
                    una += packets.min(both[0].qp.packets_in_flight() as u32);
                }
                let sent = [true, false].map(|is_one_turn| {
                    let b = &mut both[usize::from(is_one_turn)];
                    match event {
                        Event::Post { is_send, bytes } => {
                            let op = if is_send { WrOp::Send } else { write(0) };
                            let _full = b.post_flags(1, op, bytes, SendFlags::SIGNALED);
                        }
                        Event::Poll { packets, budget } => return poll(b, packets, budget, is_one_turn),
                        Event::Answer { is_nak, .. } => {
                            let answer =
                                if is_nak { Pkt::nak(una, NakCode::PsnSequenceError) } else { Pkt::ack(una - 1) };
                            let _stale = b.recv(&answer);
                        }
                        Event::Wait { us } => b.at(Instant(b.now.0 + us * 1000)),
                        Event::MemoryGoes => b.mem.local_gone.set(true),
                    }
                    Vec::new()
                });
                prop_assert_eq!(&sent[0], &sent[1]);
                let [one, other] = both.each_ref().map(|b| {
                    let (on_way, pending) = (b.qp.packets_in_flight(), b.qp.pending_packets());
                    (on_way, pending, b.qp.wants_transmit(), b.qp.poll_timeout(), *b.qp.counters())
                });
                prop_assert_eq!(one, other);
            }
        }
    }
}
