//! What a queue pair has to send and what it waits for, as one value for the owner's scheduler.

use super::Qp;
use crate::in_flight::full_packets;

/// State of a [`Qp`] that a scheduler needs to decide when its packets leave; a snapshot made by
/// [`Qp::backlog`].
///
/// "Posted" and "pending" mean requests of this side. Responses (ACKs, READ data, atomic results) appear only
/// in [`owes_responses`](Self::owes_responses) and [`isolated_packets`](Self::isolated_packets).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Backlog {
    /// Packets posted and not in flight, those to be retransmitted by go-back-N included. A READ counts its
    /// response packets, a local operation (bind, fast registration, invalidation) none.
    pub pending_packets: usize,
    /// Payload bytes of the pending packets; a READ counts the bytes that it asks for.
    pub pending_bytes: usize,
    /// Payload bytes of the work request that was posted last; a READ counts the bytes that it asks for.
    /// Meaningless before the first post.
    pub last_posted_bytes: usize,
    /// Unsignaled work requests posted in a row directly before the one that was posted last, if that one is
    /// signaled; else 0.
    pub unsignaled_run: u32,
    /// Request packets in flight: sent and not acknowledged. A READ counts the response packets that it still
    /// expects. Packets known to have arrived behind a missing one do not count.
    pub in_flight_packets: usize,
    /// Packets of the path MTU that the send window still has room for.
    pub window_room_packets: usize,
    /// Payload bytes of the largest packet of this queue pair.
    pub path_mtu_bytes: usize,
    /// The queue pair keeps a rate (congestion control or a rate limit), so a quantum may end at any packet
    /// and not only where the window or a message ends.
    pub is_paced: bool,
    /// A packet in flight asked for an acknowledgement or a response that has not arrived, so one is
    /// expected.
    pub is_ack_expected: bool,
    /// READ responses or atomic results wait to be sent.
    pub owes_responses: bool,
    /// Packets of the path MTU that will leave with nothing before or after them while the peer waits for
    /// them: the only response that is owed, or all pending requests while nothing is in flight. Else 0.
    pub isolated_packets: usize,
    /// There are pending packets, all of them are new messages of one packet each, nothing is to be
    /// retransmitted, no response or CNP is owed, and neither the first nor the last of the messages is a
    /// READ, atomic or local operation.
    pub only_small_messages: bool,
    /// [`Qp::poll_event`] returns something.
    pub has_event: bool,
    /// The service acknowledges requests (RC, XRC).
    pub is_reliable: bool,
}

impl Qp {
    /// What this queue pair has to send and what it waits for, for a scheduler.
    ///
    /// Fields that the caller does not read cost nothing: this function is always inlined, only reads memory
    /// and cannot panic, so the compiler drops the rest.
    #[must_use]
    #[inline(always)]
    pub fn backlog(&self) -> Backlog {
        let (requester, ep) = (&self.requester, &self.ep);
        let pending_packets = requester.pending_packets();
        let pending_bytes = requester.pending_bytes();
        let in_flight = requester.in_flight();
        let owes_responses = self.may_respond() && self.responder.owes_responses();
        let isolated_packets = if owes_responses {
            self.responder.isolated_packets()
        } else if in_flight > 0 {
            0
        } else {
            full_packets(pending_bytes + ep.mtu as u64 - 1, ep.mtu)
        };
        Backlog {
            pending_packets: pending_packets as usize,
            pending_bytes: pending_bytes as usize,
            last_posted_bytes: requester.last_posted_bytes() as usize,
            unsignaled_run: requester.unsignaled_run(),
            in_flight_packets: in_flight as usize,
            window_room_packets: requester.window_limit(ep.mtu).saturating_sub(in_flight) as usize,
            path_mtu_bytes: ep.mtu,
            is_paced: ep.congestion.is_paced(),
            is_ack_expected: requester.is_ack_expected(),
            owes_responses,
            isolated_packets: isolated_packets as usize,
            only_small_messages: requester.has_only_small_messages()
                && !self.responder.has_reply()
                && !ep.congestion.owes_cnp(),
            has_event: !ep.events.is_empty(),
            is_reliable: ep.ty.is_reliable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::{PathMtu, QpState, QpType};
    use crate::testing::{Bench, Pkt, REMOTE, RKEY, RQ_PSN, SQ_PSN, attr, config, read, write};
    use crate::wr::{SendFlags, WrOp};
    use wire::Opcode;

    const UNSIGNALED: SendFlags = SendFlags::empty();

    /// An RC queue pair with nothing to do, with a path MTU of 1024.
    const IDLE: Backlog = Backlog {
        pending_packets: 0,
        pending_bytes: 0,
        last_posted_bytes: 0,
        unsignaled_run: 0,
        in_flight_packets: 0,
        window_room_packets: 310,
        path_mtu_bytes: 1024,
        is_paced: false,
        is_ack_expected: false,
        owes_responses: false,
        isolated_packets: 0,
        only_small_messages: false,
        has_event: false,
        is_reliable: true,
    };

    #[test]
    fn a_posted_write_is_pending_then_in_flight_then_an_event() {
        let mut b = Bench::rc();
        assert_eq!(b.qp.backlog(), IDLE);
        b.post(1, write(0), 2500);
        let posted = Backlog { last_posted_bytes: 2500, ..IDLE };
        let pending = Backlog { pending_packets: 3, pending_bytes: 2500, isolated_packets: 3, ..posted };
        assert_eq!(b.qp.backlog(), pending);
        b.sent();
        let in_flight =
            Backlog { in_flight_packets: 3, window_room_packets: 307, is_ack_expected: true, ..posted };
        assert_eq!(b.qp.backlog(), in_flight);
        b.recv(&Pkt::ack(SQ_PSN + 2)).unwrap();
        assert_eq!(b.qp.backlog(), Backlog { has_event: true, ..posted });
    }

    #[test]
    fn new_messages_of_one_packet_are_only_small_messages() {
        let mut b = Bench::rc();
        for wr_id in 0..3 {
            b.post_flags(wr_id, write(0), 8, UNSIGNALED).unwrap();
            assert_eq!((b.qp.backlog().only_small_messages, b.qp.backlog().unsignaled_run), (true, 0));
        }
        b.post(3, write(0), 8);
        assert_eq!((b.qp.backlog().only_small_messages, b.qp.backlog().unsignaled_run), (true, 3));
        b.post(4, write(0), 1025);
        assert_eq!((b.qp.backlog().only_small_messages, b.qp.backlog().unsignaled_run), (false, 0));
    }

    #[test]
    fn a_read_or_a_retransmission_is_not_a_small_message() {
        let mut b = Bench::rc();
        b.post(1, read(0), 8);
        assert!(!b.qp.backlog().only_small_messages);
        let mut b = Bench::rc();
        b.post(1, write(0), 8);
        b.sent();
        b.recv(&Pkt::nak(SQ_PSN, wire::NakCode::PsnSequenceError)).unwrap();
        assert!(b.qp.wants_transmit() && !b.qp.backlog().only_small_messages);
    }

    #[test]
    fn a_read_response_is_owed_and_isolated_until_its_first_packet_leaves() {
        let mut b = Bench::rc();
        b.recv(&Pkt::new(Opcode::RC_READ_REQUEST, RQ_PSN).reth(REMOTE, RKEY, 3000)).unwrap();
        let Backlog { owes_responses, isolated_packets, .. } = b.qp.backlog();
        assert_eq!((owes_responses, isolated_packets, b.qp.wants_transmit()), (true, 3, true));
        b.poll();
        assert_eq!(b.qp.backlog().isolated_packets, 0);
        b.sent();
        assert_eq!(b.qp.backlog(), IDLE);
    }

    #[test]
    fn an_unreliable_paced_queue_pair_with_a_small_mtu_says_so() {
        let attr = crate::QpAttr { path_mtu: PathMtu::M256, ..attr() };
        let mut b = Bench::new(config(QpType::Uc), &attr, QpState::Rts);
        b.qp.set_initial_rate_limit(1000);
        b.post(1, WrOp::Send, 1024);
        let Backlog { is_reliable, is_paced, path_mtu_bytes, pending_packets, .. } = b.qp.backlog();
        assert_eq!((is_reliable, is_paced, path_mtu_bytes, pending_packets), (false, true, 256, 4));
    }
}
