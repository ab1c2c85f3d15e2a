//! A queue pair that leaves its connection has acknowledged everything that it received.

use transport::numbering::place_of;
use transport::{QpType, SendFlags, WcStatus, WrOp};

use super::pair::{Pair, Setup};

/// One end sends, the other replies without asking for an ACK.
fn replied() -> Pair {
    let mut pair = Pair::new(&Setup { sq_sig_all: false, ..Setup::new(QpType::Rc) });
    let sge = pair.here.sge(8);
    pair.here.post_recv(&[sge]);
    pair.receive(8);
    let sge = pair.there.sge(8);
    pair.there.post_send(pair.now, WrOp::Send, &[sge], SendFlags::empty()).expect("room");
    pair.run();
    assert_eq!(pair.here.observe().recvs, [WcStatus::Success]);
    let sge = pair.here.sge(8);
    pair.here.post_send(pair.now, WrOp::Send, &[sge], SendFlags::INLINE).expect("room");
    // The probe for a missing ACK comes later.
    pair.run_for_us(100);
    assert_eq!(pair.there.observe().recvs, [WcStatus::Success]);
    pair
}

#[test]
fn a_send_that_the_peer_received_is_not_flushed_when_the_peer_leaves() {
    let mut pair = replied();
    let index = place_of(pair.there.qpn);
    pair.there.core.send_last_ack(pair.now, index);
    pair.there.fail(pair.now);
    pair.run_for_us(100);
    pair.here.fail(pair.now);
    assert_eq!(pair.here.observe().sends, [], "an unsignaled one completes only with an error");
}

#[test]
fn the_last_ack_leaves_although_the_port_is_full() {
    let mut pair = replied();
    pair.cable.set_full(true);
    let index = place_of(pair.there.qpn);
    pair.there.core.send_last_ack(pair.now, index);
    pair.there.fail(pair.now);
    pair.cable.set_full(false);
    pair.run_for_us(100);
    pair.here.fail(pair.now);
    assert_eq!(pair.here.observe().sends, []);
}

#[test]
fn nothing_more_is_acknowledged_if_everything_was() {
    let mut pair = replied();
    let index = place_of(pair.there.qpn);
    pair.there.core.send_last_ack(pair.now, index);
    let sent = pair.cable.sent_by(super::pair::THERE).len();
    pair.there.core.send_last_ack(pair.now, index);
    assert_eq!(pair.cable.sent_by(super::pair::THERE).len(), sent);
}
