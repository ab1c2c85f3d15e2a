//! What is counted: every message once, under what it was.

use super::*;
use wire::cm::{Answered, Lap, Mra};

/// Received, again, malformed, unexpected, backlog full; sent, again, dropped.
fn counted(net: &Net, side: usize) -> [u64; 8] {
    let c = net.cm[side].counters();
    let (rx, tx) = (
        [c.rx_msgs, c.rx_duplicates, c.rx_malformed, c.rx_unexpected, c.rx_backlog_full],
        [c.tx_msgs, c.tx_retries, c.tx_dropped],
    );
    [rx[0], rx[1], rx[2], rx[3], rx[4], tx[0], tx[1], tx[2]]
}

fn give(net: &mut Net, to: usize, mad: &MadBytes) {
    let (src, dst) = (net.gid[1 - to], net.gid[to]);
    net.cm[to].handle_mad(net.now, mad, src, dst);
}

#[test]
fn a_connection_is_three_messages_and_its_end_two() {
    let (mut net, a, b) = Net::established();
    assert_eq!(counted(&net, A), [1, 0, 0, 0, 0, 2, 0, 0]);
    assert_eq!(counted(&net, B), [2, 0, 0, 0, 0, 1, 0, 0]);
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    assert_eq!(counted(&net, A), [2, 0, 0, 0, 0, 3, 0, 0]);
    assert_eq!(counted(&net, B), [3, 0, 0, 0, 0, 2, 0, 0]);
}

#[test]
fn a_request_that_waits_for_its_listener_and_its_backlog_is_counted_once() {
    let mut net = Net::new();
    net.connect();
    let (src, dst, mad) = net.cm[A].poll_transmit().unwrap();
    assert!(matches!(net.cm[B].handle_mad(net.now, &mad, src, dst), MadOutcome::NotOurs { .. }));
    let again = |net: &mut Net| net.cm[B].handle_again(net.now, &mad, src, dst);
    assert!(matches!(again(&mut net), MadOutcome::NotOurs { .. }));
    net.listen(0);
    assert_eq!(again(&mut net), MadOutcome::Handled);
    assert_eq!(counted(&net, B)[..5], [1, 0, 0, 0, 0]);
}

#[test]
fn repetitions_are_counted_at_both_ends() {
    let (mut net, _, b) = Net::requested();
    net.accept(b);
    net.lose.push((B, "REP", 1));
    net.run();
    assert!(net.step(), "the REP is repeated");
    assert_eq!(counted(&net, B)[5..], [2, 1, 0]);
    assert_eq!(counted(&net, A)[..2], [1, 0], "one of them was lost");
    net.repeat_last(B, "REP");
    net.repeat_last(A, "REQ");
    assert_eq!([counted(&net, A)[1], counted(&net, B)[1]], [1, 1]);
}

#[test]
fn what_fits_no_connection_is_unexpected_and_what_is_no_message_malformed() {
    let (mut net, a, b) = Net::established();
    let before = counted(&net, A);
    let mut mads = Vec::new();
    let mut add = |emit: &dyn Fn(&mut MadBytes)| {
        let mut mad = [0; wire::MAD_LEN];
        emit(&mut mad);
        mads.push(mad);
    };
    let unknown = 0x7777;
    add(&|mad| Lap::default().emit(mad));
    add(&|mad| Mra { remote_comm_id: unknown, ..Mra::default() }.emit(mad));
    // An MRA for a REP that was confirmed long ago.
    let late = Mra { message: Answered::REP, local_comm_id: b.0, remote_comm_id: a.0, ..Mra::default() };
    add(&|mad| late.emit(mad));
    add(&|mad| wire::cm::Rtu { remote_comm_id: unknown, ..Default::default() }.emit(mad));
    add(&|mad| wire::cm::Rep { remote_comm_id: unknown, ..Default::default() }.emit(mad));
    add(&|mad| wire::cm::Drep { remote_comm_id: unknown, ..Default::default() }.emit(mad));
    add(&|mad| wire::cm::Rej { remote_comm_id: unknown, ..Default::default() }.emit(mad));
    add(&|mad| wire::cm::SidrRep { request_id: unknown, ..Default::default() }.emit(mad));
    let count = mads.len() as u64;
    for mad in &mads {
        give(&mut net, A, mad);
    }
    give(&mut net, A, &[0; wire::MAD_LEN]);
    let after = counted(&net, A);
    assert_eq!(after[0] - before[0], count, "messages");
    assert_eq!(after[1..5], [0, 1, count, 0]);
    assert_eq!(net.states(a, b), (ConnState::Established, ConnState::Established));
    net.assert_quiet();
}

#[test]
fn a_second_mra_is_a_duplicate() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    let a = net.connect();
    net.run();
    let mut mad = [0; wire::MAD_LEN];
    let tid = net.cm[A].conns[&a].tid;
    Mra { tid, remote_comm_id: a.0, service_timeout: 20, ..Mra::default() }.emit(&mut mad);
    give(&mut net, A, &mad);
    assert_eq!(counted(&net, A)[..4], [1, 0, 0, 0]);
    give(&mut net, A, &mad);
    assert_eq!(counted(&net, A)[..4], [2, 1, 0, 0]);
}

/// The timers make up for what is dropped.
#[test]
fn a_full_queue_of_messages_takes_no_more() {
    let mut net = Net::new();
    let params = SidrParams {
        service_id: ServiceId::from_port(ServiceId::UDP, PORT),
        path: net.path(),
        private_data: b"",
    };
    for _ in 0..TRANSMIT_MAX + 3 {
        net.cm[A].sidr_connect(net.now, &params).unwrap();
    }
    let sent = std::iter::from_fn(|| net.cm[A].poll_transmit()).count();
    assert_eq!(sent, TRANSMIT_MAX);
    assert_eq!(counted(&net, A), [0, 0, 0, 0, 0, TRANSMIT_MAX as u64, 0, 3]);
}

/// What the messages carry: all of it, and not a byte more.
#[test]
fn private_data_goes_up_to_the_limit_of_each_message() {
    const BYTES: [u8; 256] = [0x5a; 256];
    let (mut net, a, b) = Net::requested();
    let mut connect = net.params();
    for (len, fits) in [(REQ_PRIVATE_MAX, true), (REQ_PRIVATE_MAX + 1, false), (200, false)] {
        connect.private_data = &BYTES[..len];
        assert_eq!(net.cm[A].connect(net.now, &connect).is_ok(), fits, "REQ {len}");
    }
    let mut params = Net::accept_params();
    for (len, fits) in [(REP_PRIVATE_MAX + 1, false), (256, false), (REP_PRIVATE_MAX, true)] {
        params.private_data = &BYTES[..len];
        assert_eq!(net.cm[B].accept(net.now, b, &params).is_ok(), fits, "REP {len}");
    }
    net.run();
    let cm = &mut net.cm;
    for (len, fits) in [(RTU_PRIVATE_MAX + 1, false), (256, false), (RTU_PRIVATE_MAX, true)] {
        assert_eq!(cm[A].rtu(a, &BYTES[..len]).is_ok(), fits, "RTU {len}");
    }
    net.run();
    let cm = &mut net.cm;
    for (len, fits) in [(DREQ_PRIVATE_MAX + 1, false), (256, false), (DREQ_PRIVATE_MAX, true)] {
        assert_eq!(cm[A].disconnect(net.now, a, &BYTES[..len]).is_ok(), fits, "DREQ {len}");
    }
    net.run();
    let cm = &mut net.cm;
    for (len, fits) in [(RTU_PRIVATE_MAX + 1, false), (256, false), (RTU_PRIVATE_MAX, true)] {
        assert_eq!(cm[B].drep(net.now, b, &BYTES[..len]).is_ok(), fits, "DREP {len}");
    }
    let (mut net, _, b) = Net::requested();
    for (len, fits) in [(REJ_PRIVATE_MAX + 1, false), (256, false), (REJ_PRIVATE_MAX, true)] {
        let refused = net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, &BYTES[..len]);
        assert_eq!(refused.is_ok(), fits, "REJ {len}");
    }
}
