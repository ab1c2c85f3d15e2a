//! When the responder delays an ACK. The peer's first PSN is 100, that of this side 500; the path MTU is
//! 1024.

use proptest::prelude::*;
use wire::{Opcode, Rkey, Syndrome};

use super::{ACK_DELAY_MAX_NS, AckDelay, POLLED_DELAY_NS, ROUNDS_STABLE};
use crate::testing::{Bench, Pkt, REMOTE, RKEY, RQ_PSN, SQ_PSN, text, us, write};
use crate::{Instant, PathMtu, QpEvent, WrOp};

const NONE: [&str; 0] = [];

/// A WRITE of the peer that asks for an ACK.
fn peer_write(psn: u32) -> Pkt {
    Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE, RKEY, 8).payload(1, 8).ack_req()
}

/// Round `i` of a ping-pong: this side writes, then the peer does. What leaves with the WRITE of this side.
fn round(b: &mut Bench, i: u32) -> Vec<String> {
    b.post(u64::from(i), write(0), 8);
    let sent = b.sent();
    b.batch(&[Pkt::ack(SQ_PSN + i), peer_write(RQ_PSN + i)]);
    sent
}

/// Plays ping-pong until an ACK is delayed; returns how many rounds that took.
fn rounds_until_delay(b: &mut Bench, from: u32) -> u32 {
    let mut rounds = 0;
    loop {
        round(b, from + rounds);
        rounds += 1;
        if !b.qp.wants_transmit() {
            return rounds;
        }
        b.sent();
    }
}

/// Three rounds; the ACK of the third is delayed.
fn in_ping_pong(mut b: Bench) -> Bench {
    (0..3).for_each(|i| drop(round(&mut b, i)));
    assert_eq!(b.sent(), NONE);
    b
}

#[test]
fn in_a_ping_pong_the_ack_leaves_together_with_the_next_request() {
    let mut b = Bench::rc();
    round(&mut b, 0);
    assert_eq!(b.sent(), ["Acknowledge 100 msn 1"], "one round is no ping-pong");
    round(&mut b, 1);
    assert_eq!(b.sent(), NONE);
    assert!(!b.qp.wants_transmit());
    assert_eq!(b.qp.poll_timeout(), Some(Instant(ACK_DELAY_MAX_NS)));
    assert_eq!(round(&mut b, 2), ["WRITE Only 502 AckReq +0x0 len 8 [8]", "Acknowledge 101 msn 2"]);
    assert_eq!(b.qp.counters().ack_deferred, 1);
}

/// Round `i` of a ping-pong of SENDs, received by polling if `is_polled`. What leaves with the SEND of this
/// side, and the completions in their order.
fn round_of_sends(b: &mut Bench, i: u32, is_polled: bool) -> (Vec<String>, String) {
    b.post_recv(u64::from(i), 0, 8);
    b.post(u64::from(i), WrOp::Send, 8);
    let sent = b.sent();
    // A peer that delays its ACK, too, sends it behind its message.
    let packets = [Pkt::new(Opcode::RC_SEND_ONLY, RQ_PSN + i).payload(1, 8).ack_req(), Pkt::ack(SQ_PSN + i)];
    if is_polled {
        b.polled_batch(&packets);
    } else {
        b.batch(&packets);
    }
    let kind = |event: &QpEvent| if matches!(event, QpEvent::SendWc(_)) { 's' } else { 'r' };
    (sent, b.events().iter().map(kind).collect())
}

#[test]
fn an_ack_for_a_send_that_the_application_polled_leaves_with_its_reply() {
    let mut b = Bench::rc();
    for i in 0..2 {
        let (_, completions) = round_of_sends(&mut b, i, true);
        assert_eq!(completions, "sr", "in the order of hardware, which acknowledges at once");
        assert_eq!(b.qp.wants_transmit(), i == 0);
        assert_eq!(b.sent().len(), usize::from(i == 0));
    }
    let (sent, _) = round_of_sends(&mut b, 2, true);
    assert_eq!(sent, ["SEND Only 502 AckReq [8]", "Acknowledge 101 msn 2"]);
    assert_eq!(b.sent(), NONE);
    // The application polls until its own message is acknowledged, and replies.
    b.at(us(10));
    assert_eq!(b.sent(), NONE);
    round_of_sends(&mut b, 3, true);
    // It polls for longer than it needs for that.
    b.at(b.qp.poll_timeout().unwrap());
    assert_eq!(
        (b.now, b.sent()),
        (us(10).plus_ns(POLLED_DELAY_NS), vec!["Acknowledge 103 msn 4".to_owned()])
    );
    round_of_sends(&mut b, 4, true);
    assert_eq!(b.sent(), ["Acknowledge 104 msn 5"], "more rounds are required now");
}

#[test]
fn an_ack_for_a_polled_send_is_not_delayed_if_the_last_round_was_long() {
    let mut b = Bench::rc();
    for i in 0..100 {
        b.now = b.now.plus_ns(ACK_DELAY_MAX_NS + 1);
        round_of_sends(&mut b, i, true);
        assert_eq!(b.sent(), [format!("Acknowledge {} msn {}", RQ_PSN + i, i + 1)]);
    }
}

#[test]
fn an_ack_for_a_send_that_the_progress_thread_received_is_not_delayed() {
    let mut b = Bench::rc();
    for i in 0..100 {
        round_of_sends(&mut b, i, false);
        assert_eq!(b.sent(), [format!("Acknowledge {} msn {}", RQ_PSN + i, i + 1)]);
    }
}

#[test]
fn an_ack_that_had_to_leave_alone_doubles_the_rounds_before_the_next_delay() {
    let mut b = Bench::rc();
    let mut rounds = rounds_until_delay(&mut b, 0);
    assert_eq!(rounds, 2);
    for required in [4, 8, 16, 32, 64, 32, 64] {
        b.at(b.qp.poll_timeout().unwrap());
        assert_eq!(b.sent(), [format!("Acknowledge {} msn {rounds}", 99 + rounds)]);
        assert_eq!(rounds_until_delay(&mut b, rounds), required);
        rounds += required;
    }
}

#[test]
fn a_stable_ping_pong_survives_a_pause() {
    let mut b = Bench::rc();
    let stable = u32::from(ROUNDS_STABLE);
    (0..stable).for_each(|i| drop(round(&mut b, i)));
    b.at(us(250));
    assert_eq!(b.sent().len(), 1, "the ACK leaves alone");
    assert_eq!(rounds_until_delay(&mut b, stable), 2);
}

/// A roxie peer sends a long WRITE as one message per packet, the last of which asks; they arrive in any
/// number of batches.
#[test]
fn in_a_ping_pong_of_several_packets_the_ack_is_delayed_too() {
    let mut b = Bench::rc();
    let silent = |psn| Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE, RKEY, 8).payload(1, 8);
    for i in 0..3 {
        b.post(u64::from(i), write(0), 8);
        b.sent();
        let psn = RQ_PSN + 4 * i;
        b.batch(&[Pkt::ack(SQ_PSN + i), silent(psn), silent(psn + 1)]);
        b.batch(&[silent(psn + 2), peer_write(psn + 3)]);
    }
    assert_eq!(b.sent(), NONE);
    b.post(3, write(0), 8);
    assert_eq!(b.sent(), ["WRITE Only 503 AckReq +0x0 len 8 [8]", "Acknowledge 111 msn 12"]);
}

/// Runs rounds of 300 messages; every `interval`th and the last one set AckReq. Returns how many packets
/// leave after each of those in the last round.
fn long_rounds(mut b: Bench, interval: u32) -> Vec<usize> {
    let mut sent = Vec::new();
    for i in 0..3 {
        b.post(u64::from(i), write(0), 8);
        b.sent();
        b.recv(&Pkt::ack(SQ_PSN + i)).unwrap();
        sent.clear();
        for n in 1..=300 {
            let asks = n % interval == 0 || n == 300;
            let mut packet = peer_write(RQ_PSN + 300 * i + n - 1);
            packet.bth.ack_req = asks;
            b.recv(&packet).unwrap();
            if asks {
                sent.push(b.sent().len());
            }
        }
    }
    sent
}

#[test]
fn in_a_ping_pong_of_long_writes_only_the_last_ack_is_delayed() {
    assert_eq!(long_rounds(Bench::rc(), 124), [1, 1, 0]);
    let b = Bench::rc_with(|attr| attr.path_mtu = PathMtu::M4096);
    assert_eq!(long_rounds(b, 31), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn a_ping_pong_that_turns_into_a_stream_loses_250_us_once() {
    let mut b = in_ping_pong(Bench::rc());
    for n in 0..24 {
        b.recv(&peer_write(103 + n)).unwrap();
        assert_eq!(b.sent(), NONE);
        b.at(us(10 * (u64::from(n) + 1)));
    }
    b.at(us(250));
    assert_eq!(b.sent(), ["Acknowledge 126 msn 27"]);
    b.recv(&peer_write(127)).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 127 msn 28"]);
}

#[test]
fn a_mid_message_packet_is_acknowledged_at_once() {
    let mut b = in_ping_pong(Bench::rc());
    b.post(3, write(0), 8);
    b.sent();
    let first = Pkt::new(Opcode::RC_WRITE_FIRST, 103).reth(REMOTE, RKEY, 2048).payload(1, 1024);
    b.batch(&[Pkt::ack(503), first.ack_req()]);
    assert_eq!(b.sent(), ["Acknowledge 103 msn 3"]);
    b.recv(&Pkt::new(Opcode::RC_WRITE_LAST, 104).payload(1, 1024).ack_req()).unwrap();
    assert_eq!(b.sent(), NONE);
}

#[test]
fn a_delayed_ack_waits_for_the_end_of_a_long_request_but_not_beyond_the_limit() {
    for is_acknowledged in [true, false] {
        let mut b = in_ping_pong(Bench::rc());
        (0..320).for_each(|i| b.post(i, write(0), 8));
        assert_eq!(b.sent().len(), 310, "a window");
        b.at(us(249));
        assert_eq!(b.sent(), NONE);
        if is_acknowledged {
            b.recv(&Pkt::ack(503 + 309)).unwrap();
        } else {
            b.at(us(250));
        }
        assert_eq!(b.sent().pop(), Some("Acknowledge 102 msn 3".to_owned()));
    }
}

#[test]
fn a_duplicate_is_acknowledged_at_once() {
    let mut b = in_ping_pong(Bench::rc());
    b.recv(&peer_write(102)).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 102 msn 3"]);
}

/// The owner releases the ACK before it closes the queue pair.
#[test]
fn a_delayed_ack_is_released_before_the_end() {
    let mut b = in_ping_pong(Bench::rc());
    b.qp.release_ack();
    assert_eq!(b.sent(), ["Acknowledge 102 msn 3"]);
    b.qp.release_ack();
    assert_eq!(b.sent(), NONE, "no further ACK is delayed");
}

#[test]
fn a_blocked_send_queue_does_not_delay_acks() {
    let mut b = Bench::rc_with(|attr| attr.max_rd_atomic = 1);
    for i in 0..4 {
        let op = WrOp::FetchAdd { remote_addr: REMOTE, r_key: RKEY, add: 1 };
        b.post(u64::from(i), op, 8);
        b.sent();
        b.recv(&peer_write(100 + i)).unwrap();
        assert_eq!(b.sent(), [format!("Acknowledge {} msn {}", 100 + i, 1 + i)]);
    }
}

#[test]
fn a_message_that_makes_a_completion_is_acknowledged_at_once() {
    let mut b = Bench::rc();
    for i in 0..4 {
        b.post(u64::from(i), write(0), 8);
        b.sent();
        b.post_recv(u64::from(i), 0, 64);
        b.batch(&[Pkt::ack(500 + i), Pkt::new(Opcode::RC_SEND_ONLY, 100 + i).payload(1, 8).ack_req()]);
        assert_eq!(b.sent(), [format!("Acknowledge {} msn {}", 100 + i, 1 + i)]);
    }
}

/// An input of the law below.
#[derive(Clone, Copy, Debug)]
enum Input {
    /// The application posts a WRITE or READ of this length.
    Post {
        is_read: bool,
        bytes: u32,
    },
    /// The peer acknowledges everything in flight.
    Ack,
    /// WRITEs of the peer arrive in one batch; the last one asks for an ACK if `asks`.
    Writes {
        count: u32,
        asks: bool,
    },
    /// The first packet of a longer WRITE arrives and asks; the rest does when the next WRITEs arrive.
    First,
    /// A READ request arrives.
    Read,
    /// The peer retransmits its last WRITE.
    Duplicate,
    Wait {
        us: u64,
    },
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        6 => (prop::bool::weighted(0.1), 0..4000_u32)
            .prop_map(|(is_read, bytes)| Input::Post { is_read, bytes }),
        4 => Just(Input::Ack),
        8 => (prop_oneof![4 => Just(1_u32), 1 => 1..130_u32], prop::bool::weighted(0.9))
            .prop_map(|(count, asks)| Input::Writes { count, asks }),
        1 => Just(Input::First),
        1 => Just(Input::Read),
        1 => Just(Input::Duplicate),
        4 => (0..300_u64).prop_map(|us| Input::Wait { us }),
    ]
}

/// A queue pair with an owner that polls, and the packets that have asked it for an ACK.
struct Polled {
    b: Bench,
    /// Number of the peer's next packet.
    next: u32,
    is_within_write: bool,
    /// Packets that asked and were not acknowledged, with the time of their arrival.
    asked: Vec<(u32, Instant)>,
}

impl Polled {
    fn arrive(&mut self, packets: &[Pkt]) {
        let psns = packets.iter().filter(|packet| packet.bth.ack_req).map(|packet| packet.bth.psn.value());
        self.asked.extend(psns.map(|psn| (psn, self.b.now)));
        assert!(self.b.batch(packets).iter().all(Result::is_ok));
        self.next = self.next.max(packets.iter().map(|packet| packet.bth.psn.value() + 1).max().unwrap());
    }

    /// Polls everything and checks that no ACK is late.
    fn poll(&mut self) {
        while let Some((bytes, _)) = self.b.poll() {
            let packet = wire::Packet::parse(&bytes).unwrap();
            if let Some(aeth) = packet.aeth() {
                assert!(matches!(aeth.syndrome, Syndrome::Ack(_)), "{}", text(&bytes));
                self.asked.retain(|(psn, _)| *psn > packet.bth.psn.value());
            }
        }
        self.b.events();
        for (psn, since) in &self.asked {
            assert!(self.b.now < since.plus_ns(ACK_DELAY_MAX_NS), "the ACK of {psn} is late");
        }
    }

    fn wait(&mut self, until: Instant) {
        while let Some(due) = self.b.qp.poll_timeout().filter(|&due| due <= until) {
            self.b.at(due.max(self.b.now));
            self.poll();
        }
        self.b.at(until);
        self.poll();
    }

    fn input(&mut self, input: Input) {
        let empty = |psn| Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(0, Rkey(0), 0);
        match input {
            Input::Post { is_read, bytes } => {
                let op = if is_read { crate::testing::read(0) } else { write(0) };
                let _full = self.b.post_flags(1, op, bytes, crate::SendFlags::SIGNALED);
            }
            Input::Ack => {
                let in_flight = self.b.qp.packets_in_flight() as u32;
                let una = self.b.qp.progress().acknowledged as u32;
                if in_flight > 0 {
                    let _read_is_not_acknowledged = self.b.recv(&Pkt::ack(una + in_flight - 1));
                }
            }
            Input::Writes { count, asks } => {
                let mut packets = Vec::new();
                if std::mem::take(&mut self.is_within_write) {
                    packets.push(Pkt::new(Opcode::RC_WRITE_LAST, self.next).payload(1, 8));
                }
                let first = self.next + packets.len() as u32;
                packets.extend((first..first + count).map(empty));
                if asks {
                    let last = packets.pop().unwrap();
                    packets.push(last.ack_req());
                }
                self.arrive(&packets);
            }
            Input::First if !self.is_within_write => {
                self.is_within_write = true;
                let first = Pkt::new(Opcode::RC_WRITE_FIRST, self.next).reth(REMOTE, RKEY, 1032);
                self.arrive(&[first.payload(1, 1024).ack_req()]);
            }
            Input::Read if !self.is_within_write => {
                self.arrive(&[Pkt::new(Opcode::RC_READ_REQUEST, self.next).reth(REMOTE, RKEY, 8).ack_req()]);
            }
            Input::Duplicate if self.next > RQ_PSN => {
                let packet = empty(self.next - 1).ack_req();
                self.arrive(&[packet]);
            }
            Input::First | Input::Read | Input::Duplicate => {}
            Input::Wait { us } => self.wait(self.b.now.plus_ns(us * 1000)),
        }
        self.poll();
    }
}

proptest! {
    /// With an owner that polls, no ACK leaves later than 250 us after the packet that asked for it.
    #[test]
    fn no_ack_is_delayed_beyond_the_limit(
        rounds in 0..80_u32,
        inputs in prop::collection::vec(input(), 1..120),
    ) {
        let mut p = Polled { b: Bench::rc(), next: RQ_PSN, is_within_write: false, asked: Vec::new() };
        for _ in 0..rounds {
            p.input(Input::Post { is_read: false, bytes: 8 });
            p.input(Input::Ack);
            p.input(Input::Writes { count: 1, asks: true });
        }
        for input in inputs {
            p.input(input);
        }
        p.wait(p.b.now.plus_ns(ACK_DELAY_MAX_NS));
        prop_assert!(p.asked.is_empty());
    }
}

/// A message with a completion restarts the count of rounds while an ACK is delayed.
#[test]
fn the_rounds_before_a_delay_stay_bounded_whatever_the_peer_sends() {
    let mut delay = AckDelay::new();
    for _ in 0..20 {
        while !delay.is_delayed() {
            delay.sent();
            delay.request_posted();
            delay.message_arrived(true);
            delay.asked(1);
            delay.end_of_batch(Instant(0), true, false, 1024);
        }
        delay.message_arrived(false);
        delay.handle_timeout(Instant(ACK_DELAY_MAX_NS));
        delay.sent();
        assert!(delay.rounds_required <= ROUNDS_STABLE, "{}", delay.rounds_required);
    }
}
