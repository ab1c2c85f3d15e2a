//! Messages that wait for more of the kind, so that they leave in one system call, and how long they may.

use transport::{QpType, SendFlags, WcStatus};

use super::end::MTU;
use super::pair::{HERE, Pair, Setup};
use crate::cq::POLLS_BEHIND;
use crate::port::RxQueues;
use crate::sched::doorbell::BEHIND_NS;

/// Three WRITEs of its application have completed, and it has taken one of these completions.
fn behind() -> Pair {
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

/// The application polls; how many packets leave by that.
fn polls(pair: &mut Pair) -> usize {
    let before = pair.cable.said_by(HERE).len();
    pair.here.core.receive(pair.now, RxQueues::ALL);
    pair.here.core.transmit_gathered(pair.now);
    pair.cable.said_by(HERE).len() - before
}

#[test]
fn who_has_completions_to_take_gathers_messages_until_he_has_taken_them() {
    let mut pair = behind();
    for _ in 0..2 {
        write(&mut pair, 8);
        assert_eq!(polls(&mut pair), 0);
    }
    while pair.here.send_cq.pop_one().is_some() {}
    assert_eq!(polls(&mut pair), 2);
    write(&mut pair, 8);
    assert_eq!(polls(&mut pair), 1, "who waits for something does not gather");
}

#[test]
fn what_gathers_leaves_after_a_while() {
    let mut pair = behind();
    write(&mut pair, 8);
    assert_eq!(polls(&mut pair), 0);
    pair.now = pair.now.plus_ns(BEHIND_NS - 1);
    assert_eq!(polls(&mut pair), 0);
    pair.now = pair.now.plus_ns(1);
    assert_eq!(polls(&mut pair), 1);
}

#[test]
fn who_polls_but_takes_nothing_does_not_go_on_posting() {
    let mut pair = behind();
    write(&mut pair, 8);
    let polled: Vec<usize> = (0..=POLLS_BEHIND).map(|_| polls(&mut pair)).collect();
    assert_eq!(polled, [0, 0, 0, 0, 1]);
}

#[test]
fn who_is_about_to_sleep_has_nothing_gathering() {
    let mut pair = behind();
    write(&mut pair, 8);
    pair.here.send_cq.arm(false);
    assert_eq!(polls(&mut pair), 1);
}

#[test]
fn only_small_messages_gather_and_nothing_that_the_peer_waits_for() {
    let mut pair = behind();
    write(&mut pair, MTU + 1);
    assert_eq!(polls(&mut pair), 2, "a message of two packets");
    let mut pair = behind();
    write(&mut pair, 8);
    let (granted, sge) = (pair.here.open, pair.there.sge(8));
    pair.there
        .post_send(pair.now, granted.read(0), &[sge], SendFlags::empty())
        .expect("a work request that is well-formed");
    pair.there.core.transmit(pair.now);
    assert_eq!(polls(&mut pair), 2, "the answer, and what may as well leave with it");
    pair.run();
    assert_eq!(pair.there.look().sends, [WcStatus::Success]);
}

/// How many posts, one by one, of `len` bytes and with such flags do not make what leaves whatever is on its way.
fn gathers(setup: &Setup, len: usize, flags: impl Fn(usize) -> SendFlags) -> usize {
    let mut pair = Pair::new(setup);
    let (open, sge) = (pair.there.open, pair.here.sge(len));
    let mut post = |n| {
        let posted = pair.here.post_send(pair.now, open.write(0), std::slice::from_ref(&sge), flags(n));
        posted.expect("room");
        pair.here.entry().has_gathered(1)
    };
    (0..128).take_while(|n| !post(*n)).count()
}

#[test]
fn a_burst_leaves_and_so_does_the_completion_at_the_end_of_a_run() {
    let unsignaled = Setup { sq_sig_all: false, ..Setup::new(QpType::Rc) };
    let (none, last) = (|_| SendFlags::empty(), SendFlags::SIGNALED);
    assert_eq!(gathers(&unsignaled, 8, none), 95);
    assert_eq!(gathers(&Setup::new(QpType::Rc), 8, none), 95);
    let one_in = |n: usize| move |at: usize| if at % n == n - 1 { last } else { SendFlags::empty() };
    assert_eq!(gathers(&unsignaled, 8, one_in(72)), 71);
    assert_eq!(
        [2, 16, 17].map(|n| gathers(&unsignaled, 8, one_in(n))),
        [95, 95, 16],
        "short runs do not count"
    );
    assert_eq!(gathers(&unsignaled, 64 * MTU, none), 0, "a burst by itself");
    assert_eq!(gathers(&unsignaled, 31 * MTU, none), 3, "two bursts of several");
    assert_eq!(gathers(&Setup::new(QpType::Uc), 8, none), 0);
}

#[test]
fn a_long_list_leaves_by_itself() {
    let mut pair = behind();
    write(&mut pair, 8);
    assert_eq!([1, 31, 32].map(|posted| pair.here.entry().has_gathered(posted)), [false, false, true]);
}

/// The halves are for messages that keep the peer busy.
#[test]
fn many_small_messages_leave_in_one_piece() {
    let mut pair = Pair::new(&Setup::new(QpType::Rc));
    for _ in 0..64 {
        write(&mut pair, 8);
    }
    pair.run();
    assert_eq!(pair.cable.handed_over_by(HERE), [64]);
}
