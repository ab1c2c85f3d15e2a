//! A queue pair that receives CNPs, and one that sends them. The path MTU is 1024; a packet is 1110 bytes
//! on the wire.

use wire::{DropReason, Opcode, Packet};

use crate::testing::{Bench, Pkt, REMOTE, RKEY, ms, read, us, write};
use crate::{Instant, QpAttr, QpAttrMask, QpState, WrOp};

const CE: u8 = 3;
const ECT_0: u8 = 2;

fn cnp() -> Pkt {
    Pkt::new(Opcode::CNP, 0)
}

/// Packets that leave until then; the owner polls at every timeout.
fn sent_until(b: &mut Bench, end: Instant) -> usize {
    let mut sent = 0;
    loop {
        sent += core::iter::from_fn(|| b.poll()).count();
        match b.qp.poll_timeout().filter(|&at| at <= end) {
            Some(at) => {
                assert!(at > b.now, "no timer is due twice");
                b.at(at);
            }
            None => return sent,
        }
    }
}

fn limit(b: &mut Bench, kbps: u32) {
    let attr = QpAttr { rate_limit: kbps, ..QpAttr::default() };
    b.qp.modify(b.now, &attr, QpAttrMask::RATE_LIMIT).unwrap();
}

#[test]
fn a_marked_packet_causes_a_cnp_before_all_other_packets() {
    let mut b = Bench::rc();
    let request = |psn| Pkt::new(Opcode::RC_WRITE_ONLY, psn).reth(REMOTE, RKEY, 8).payload(1, 8).ack_req();
    b.from.tos = ECT_0;
    b.recv(&request(100)).unwrap();
    assert_eq!(b.sent(), ["Acknowledge 100 msn 1"]);
    b.from.tos = CE | 0x68;
    b.batch(&[request(101), request(102)]);
    let (bytes, to) = b.poll().unwrap();
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(
        (packet.bth.opcode, packet.bth.becn, packet.bth.dest_qp),
        (Opcode::CNP, true, b.qp.dest_qpn())
    );
    assert_eq!(packet.bytes()[12..28], [0; 16]);
    let to = to.unwrap();
    assert_eq!((to.av.dgid, to.av.traffic_class), (b.qp.av().dgid, 0xc0), "DSCP 48 on the same path");
    assert_eq!(b.sent(), ["Acknowledge 102 msn 3"]);
    assert_eq!((b.qp.counters().np_ecn_marked_roce_packets, b.qp.counters().np_cnp_sent), (2, 1));
    b.at(us(50));
    b.recv(&request(103)).unwrap();
    assert!(b.qp.wants_transmit());
    assert_eq!(b.sent().len(), 2);
    assert_eq!(b.qp.counters().sent_pkts, 5, "two CNPs among them");
}

/// A response may be marked, too; a CNP never causes a CNP.
#[test]
fn a_marked_response_causes_a_cnp_and_a_marked_cnp_does_not() {
    let mut b = Bench::rc();
    b.post(1, read(0), 1024);
    b.sent();
    b.from.tos = CE;
    b.recv(&cnp()).unwrap();
    assert_eq!(b.qp.counters().np_ecn_marked_roce_packets, 0);
    b.recv(&Pkt::new(Opcode::RC_READ_RESPONSE_ONLY, 500).payload(1, 1024)).unwrap();
    assert_eq!(b.sent().len(), 1);
    assert_eq!(b.qp.counters().np_cnp_sent, 1);
}

/// From 40 to 2.5 Gbit/s by four cuts: 281 packets of 1110 bytes take a millisecond, without recovery.
#[test]
fn a_sender_that_receives_cnps_slows_down_and_recovers() {
    let mut b = Bench::rc();
    b.post(0, write(0), 8);
    b.sent();
    b.post(1, write(0), 500 * 1024);
    for i in 0..4 {
        b.at(us(50 * i));
        b.recv(&cnp()).unwrap();
    }
    assert_eq!(b.qp.counters().rp_cnp_handled, 4);
    let first = sent_until(&mut b, us(150));
    assert!((28..=30).contains(&first), "{first}: what 100 us allow at once");
    let next = sent_until(&mut b, us(250));
    assert!((30..=50).contains(&next), "{next} in 100 us, recovering to 5 Gbit/s");
    b.recv(&Pkt::ack(500 + (first + next) as u32)).unwrap();
    b.at(ms(60));
    assert!(b.sent().len() > 300, "no limit, after additive increase");
    assert_eq!(b.qp.poll_timeout().map(|at| at >= ms(60)), Some(true), "and no timer of the rate");
}

#[test]
fn a_burst_of_cnps_counts_once() {
    let mut b = Bench::rc();
    b.batch(&[cnp()]);
    assert_eq!(b.qp.counters().rp_cnp_handled, 0, "nothing was sent that a switch could have marked");
    b.post(1, write(0), 8);
    b.sent();
    b.batch(&[cnp(), cnp(), cnp()]);
    assert_eq!((b.qp.counters().rp_cnp_handled, b.qp.counters().rp_cnp_ignored), (1, 3));
}

#[test]
fn a_cnp_of_another_peer_has_no_effect() {
    let mut b = Bench::rc();
    b.from.src = core::net::Ipv4Addr::new(10, 0, 0, 9).into();
    assert_eq!(b.recv(&cnp()), Err(DropReason::WrongPeer));
    b.post(1, write(0), 300 * 1024);
    assert_eq!(b.sent().len(), 300);
    let mut reset = Bench::rc();
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    reset.qp.modify(Instant::ZERO, &attr, QpAttrMask::STATE).unwrap();
    assert_eq!(reset.recv(&cnp()), Err(DropReason::WrongState));
}

/// 1 Gbit/s: 8.88 us for each packet of 1110 bytes, 112 in a millisecond.
#[test]
fn a_rate_limit_holds_for_requests_and_can_be_removed() {
    let mut b = Bench::rc();
    limit(&mut b, 1_000_000);
    assert_eq!(b.qp.attr().rate_limit, 1_000_000);
    b.post(1, write(0), 300 * 1024);
    let sent = sent_until(&mut b, ms(1));
    assert!((112..=114).contains(&sent), "{sent}");
    assert!(b.qp.counters().rate_waits > 0);
    limit(&mut b, 0);
    assert_eq!(b.sent().len(), 300 - sent);
}

#[test]
fn read_responses_keep_the_rate_and_acks_need_not() {
    let mut b = Bench::rc();
    limit(&mut b, 1_000_000);
    let write = Pkt::new(Opcode::RC_WRITE_ONLY, 100).reth(REMOTE, RKEY, 8).payload(1, 8).ack_req();
    b.recv(&write).unwrap();
    b.sent();
    b.recv(&Pkt::new(Opcode::RC_READ_REQUEST, 101).reth(REMOTE, RKEY, 200 * 1024)).unwrap();
    let sent = sent_until(&mut b, ms(1));
    assert!((112..=114).contains(&sent), "{sent}");
    assert!(!b.qp.wants_transmit(), "not before its time");
    let sent = sent + sent_until(&mut b, ms(2));
    assert_eq!(sent, 200);
    b.post(2, WrOp::Send, 8);
    b.recv(&Pkt::new(Opcode::RC_WRITE_ONLY, 301).reth(REMOTE, RKEY, 8).payload(1, 8).ack_req()).unwrap();
    assert_eq!(b.sent()[0], "Acknowledge 301 msn 3");
}

/// A packet takes 88.8 us at 100 Mbit/s, and only the last one asks for an acknowledgement.
#[test]
fn no_probe_is_sent_before_a_packet_with_ack_req() {
    let mut b = Bench::rc();
    limit(&mut b, 100_000);
    b.post(1, write(0), 100 * 1024);
    assert!((88..=92).contains(&sent_until(&mut b, ms(8))));
    sent_until(&mut b, ms(12));
    assert_eq!((b.qp.counters().sent_pkts, b.qp.counters().probes), (100, 0));
    sent_until(&mut b, ms(13));
    assert_eq!(b.qp.counters().probes, 1, "4 ms behind the last one");
}

/// RESET drops the limit of `modify`, but not the initial one.
#[test]
fn the_initial_rate_limit_survives_reset() {
    let mut b = Bench::rc();
    b.qp.set_initial_rate_limit(5000);
    limit(&mut b, 1_000_000);
    let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    b.qp.modify(Instant::ZERO, &attr, QpAttrMask::STATE).unwrap();
    assert_eq!(b.qp.attr().rate_limit, 5000);
}

/// A packet each 4.4 ms over a path of 2 to 3 ms. Without acknowledgements between them, the packets of a
/// message would fill the window that queue pairs of one destination share.
#[test]
fn each_packet_of_a_slow_flow_asks_and_no_probe_is_sent() {
    let mut b = Bench::rc();
    limit(&mut b, 2_000);
    b.post(0, write(0), 64 * 1024);
    let (mut acks, mut asked) = (std::collections::VecDeque::new(), 0_u32);
    loop {
        while let Some((bytes, _)) = b.poll() {
            let packet = Packet::parse(&bytes).unwrap();
            if packet.bth.ack_req {
                asked += 1;
                let delay_ns = 3_000_000 - u64::from(asked % 2) * 1_000_000;
                acks.push_back((b.now.plus_ns(delay_ns), packet.bth.psn.value()));
            }
        }
        let ack = acks.front().copied();
        let Some(next) = Instant::earliest(b.qp.poll_timeout(), ack.map(|(at, _)| at)) else { break };
        b.at(next);
        if let Some((_, psn)) = ack.filter(|(at, _)| *at == next) {
            acks.pop_front();
            b.recv(&Pkt::ack(psn)).unwrap();
        }
    }
    assert_eq!((asked, b.qp.counters().probes, b.qp.counters().retransmitted_pkts), (63, 0, 0));
}
