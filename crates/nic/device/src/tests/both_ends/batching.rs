//! The engine holds messages for a larger batch while the application has left completions in the CQ; these
//! tests show what ends the hold. `sched/departure_tests.rs` has the decisions as tables.

use transport::numbering::place_of;
use transport::{QpState, QpType, SendFlags, WcStatus};

use super::end::MTU;
use super::pair::{HERE, Pair, Setup};
use crate::port::RxQueues;
use crate::sched::{Trigger, Tuning, asked};

/// Returns a pair after the application has taken one of three completions.
fn backlogged() -> Pair {
    let mut pair = Pair::new(&Setup::new(QpType::Rc));
    for _ in 0..3 {
        write(&mut pair, 8);
    }
    pair.run();
    assert!(pair.here.send_cq.pop_one().is_some());
    pair
}

fn write(pair: &mut Pair, len: usize) {
    let open = pair.there.open;
    pair.post(open.write(0), len);
}

/// Polls once as the application; returns how many packets leave.
fn poll(pair: &mut Pair) -> usize {
    let before = pair.cable.described_by(HERE).len();
    let now = pair.now;
    pair.here.core.poll(|| now, RxQueues::ALL, Trigger::Poll);
    pair.cable.described_by(HERE).len() - before
}

#[test]
fn messages_are_held_until_the_application_has_taken_its_completions() {
    let mut pair = backlogged();
    for _ in 0..2 {
        write(&mut pair, 8);
        assert_eq!(poll(&mut pair), 0);
    }
    while pair.here.send_cq.pop_one().is_some() {}
    assert_eq!(poll(&mut pair), 2);
    write(&mut pair, 8);
    assert_eq!(poll(&mut pair), 1, "an empty CQ ends the hold");
}

#[test]
fn polls_that_take_no_completion_end_the_hold() {
    let mut pair = backlogged();
    write(&mut pair, 8);
    let sent: Vec<usize> = (0..=Tuning::default().backlog_polls).map(|_| poll(&mut pair)).collect();
    assert_eq!(sent, [0, 0, 0, 0, 1]);
}

#[test]
fn an_armed_completion_queue_ends_the_hold() {
    let mut pair = backlogged();
    write(&mut pair, 8);
    pair.here.send_cq.arm(false);
    assert_eq!(poll(&mut pair), 1);
}

#[test]
fn a_message_of_two_packets_is_not_held() {
    let mut pair = backlogged();
    write(&mut pair, MTU + 1);
    assert_eq!(poll(&mut pair), 2);
}

#[test]
fn a_read_response_leaves_at_once_together_with_the_held_message() {
    let mut pair = backlogged();
    write(&mut pair, 8);
    let (granted, sge) = (pair.here.open, pair.there.sge(8));
    let posted = pair.there.post_send(pair.now, granted.read(0), &[sge], SendFlags::empty());
    posted.expect("a well-formed work request");
    pair.there.core.transmit(pair.now);
    assert_eq!(poll(&mut pair), 2);
    pair.run();
    assert_eq!(pair.there.observe().sends, [WcStatus::Success]);
}

/// Each decision costs a look at the queue pair, and a post that leaves affects no other queue pair.
#[test]
fn a_post_is_decided_about_once() {
    let mut pair = Pair::new(&Setup::new(QpType::Rc));
    let (now, index) = (pair.now, place_of(pair.here.qpn));
    for (bytes, is_sent) in [(8, true), (3 * MTU, true), (8, false)] {
        write(&mut pair, bytes);
        let before = pair.cable.described_by(HERE).len();
        let asked = || (asked::DECISIONS.get(), asked::BACKLOGS.get());
        let (decisions, backlogs) = asked();
        pair.here.core.post(|| now, index, 1);
        assert_eq!(asked(), (decisions + 1, backlogs + 1), "{bytes} bytes");
        assert_eq!(pair.cable.described_by(HERE).len() > before, is_sent);
    }
}

#[test]
fn posts_behind_a_held_message_wait_until_the_batch_is_full() {
    let mut pair = backlogged();
    let (now, before) = (pair.now, pair.cable.described_by(HERE).len());
    let mut sent = Vec::new();
    for _ in 0..Tuning::default().batch_pkts {
        write(&mut pair, 8);
        let index = place_of(pair.here.qpn);
        pair.here.core.post(|| now, index, 1);
        sent.push(pair.cable.described_by(HERE).len() - before);
    }
    let held = sent.iter().take_while(|sent| **sent == 0).count();
    assert_eq!((held, sent.last()), (95, Some(&96)));
}

#[test]
fn many_small_messages_leave_as_one_burst() {
    let mut pair = Pair::new(&Setup::new(QpType::Rc));
    for _ in 0..64 {
        write(&mut pair, 8);
    }
    pair.run();
    assert_eq!(pair.cable.handed_over_by(HERE), [64]);
}

#[test]
fn posts_that_the_window_blocks_cause_no_round_and_leave_after_the_ack() {
    let mut pair = Pair::new(&Setup::new(QpType::Rc));
    pair.cable.set_window(2 * MTU);
    let (now, index) = (pair.now, place_of(pair.here.qpn));
    let mut tried = Vec::new();
    for _ in 0..5 {
        write(&mut pair, 8);
        tried.push(pair.here.core.post(|| now, index, 1));
    }
    assert_eq!(tried, [true, true, true, false, false], "the third finds the window full");
    assert_eq!(pair.cable.described_by(HERE).len(), 2);
    pair.run();
    assert_eq!(pair.here.observe().sends, [WcStatus::Success; 5]);
}

#[test]
fn a_post_leaves_at_once_if_the_window_has_room_again() {
    let mut pair = Pair::new(&Setup::new(QpType::Rc));
    let (now, index) = (pair.now, place_of(pair.here.qpn));
    // As after a round in which others of the flow sent before it.
    pair.here.core.tables.block(index);
    write(&mut pair, 8);
    assert!(pair.here.core.post(|| now, index, 1));
    assert_eq!(pair.cable.described_by(HERE).len(), 1);
}

#[test]
fn a_message_leaves_when_the_queue_pair_that_fills_the_window_is_destroyed() {
    let mut pair = Pair::new(&Setup::new(QpType::Rc));
    pair.cable.set_window(2 * MTU);
    let now = pair.now;
    for _ in 0..2 {
        write(&mut pair, 8);
        pair.here.core.post(|| now, place_of(pair.here.qpn), 1);
    }
    let peer = (pair.here.entry().qp.av().dgid, pair.there.qpn);
    let first = pair.here.change_qp();
    pair.here.connect(peer, QpState::Rts, |_| ());
    write(&mut pair, 8);
    pair.here.core.post(|| now, place_of(pair.here.qpn), 1);
    assert_eq!(pair.cable.described_by(HERE).len(), 2);
    pair.here.core.remove_qp(now, first);
    assert_eq!(pair.cable.described_by(HERE).len(), 3);
}
