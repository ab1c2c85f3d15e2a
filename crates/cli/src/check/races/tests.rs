//! Verdicts about operations that are written by hand: times are nanoseconds, memory is that of process 2.

use std::net::{IpAddr, Ipv4Addr};
use std::slice::from_ref;

use roxie::trace::Use;

use super::area::Receive;
use super::*;
use crate::trace::model::{Execution, Message};

/// Process 1 posts on queue pair `qpn` at `posted`; process 2 executes from `executed` on.
fn operation(qpn: u32, does: Use, posted: u64, executed: u64) -> Operation {
    between((1, 2), qpn, does, posted, executed)
}

pub(super) fn between((pid, peer): (u32, u32), qpn: u32, does: Use, posted: u64, executed: u64) -> Operation {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let message = Message {
        pid,
        qpn,
        peer: 100 + qpn,
        local: address,
        remote: address,
        service: "RC".to_owned(),
        opcode: format!("{does:?}"),
        wr_id: 7,
        bytes: 8,
        first: 0,
        end: 1,
        retransmitted: 0,
        rnr_ns: 0,
        lost_ns: 0,
        status: Some(0),
        posted,
        left: None,
        last: None,
        executed: Some(executed + 5),
        execution: Some(Execution { pid: peer, begin: executed, end: executed + 5, is_certain: true }),
        acked: None,
        completed: executed + 10,
        polled: None,
        is_left: false,
    };
    let (polled, told) = (u64::MAX, u64::MAX);
    Operation { message, does, site: qpn, posted, polled, told, place: 1, fence: None, areas: Vec::new() }
}

impl Operation {
    fn with(mut self, is_local: bool, effect: Effect) -> Self {
        let process = if is_local { self.message.pid } else { self.message.execution.expect("known").pid };
        self.areas.push(Area { process, first: 1000, end: 1008, effect, is_local, receive: None });
        self
    }

    fn remote(self, effect: Effect) -> Self {
        self.with(false, effect)
    }

    /// A SEND that takes a receive, which the peer posted then.
    fn received(self, posted: u64) -> Self {
        let mut send = self.remote(Effect::Write);
        send.areas.iter_mut().for_each(|area| area.receive = Some(Receive { posted, site: 99 }));
        send
    }

    fn over(mut self, service: &str) -> Self {
        self.message.service = service.to_owned();
        self
    }

    fn polled(self, polled: u64) -> Self {
        Self { polled, told: polled, ..self }
    }

    /// The second one of its queue pair.
    fn second(self, has_fence: bool) -> Self {
        Self { place: 2, fence: has_fence.then_some(2), ..self }
    }
}

fn kinds(operations: &[Operation]) -> Vec<&'static str> {
    kinds_beside(operations, HashMap::new())
}

/// `others`: when processes got other messages.
fn kinds_beside(operations: &[Operation], others: HashMap<u32, Vec<u64>>) -> Vec<&'static str> {
    assert!(operations.is_sorted_by_key(|operation| operation.posted));
    let operations = Operations { list: operations.to_vec(), others, ..Operations::default() };
    find(&operations).iter().map(|race| race.kind().name()).collect()
}

#[test]
fn writes_of_two_queue_pairs_race_until_the_completion_is_polled() {
    let first = operation(1, Use::Write, 100, 200).remote(Effect::Write);
    let at = |posted| operation(2, Use::Write, posted, 900).remote(Effect::Write);
    assert_eq!(kinds(&[first.clone(), at(150)]), ["race-remote"], "before its execution");
    assert_eq!(kinds(&[first.clone(), at(250)]), ["unordered-remote"]);
    let polled = first.clone().polled(400);
    assert_eq!(kinds(&[polled.clone(), at(150)]), ["race-remote"]);
    assert_eq!(kinds(&[polled.clone(), at(250)]), ["unordered-remote"]);
    assert!(kinds(&[polled, at(450)]).is_empty());
    let mut same = at(150).second(false);
    same.message.qpn = 1;
    assert!(kinds(&[first, same]).is_empty(), "one queue pair");
}

#[test]
fn a_pair_of_stacks_is_reported_once_and_as_the_certain_kind() {
    let write = |qpn, posted| operation(qpn, Use::Write, posted, posted + 100).remote(Effect::Write);
    let operations = [write(1, 100), write(2, 250), write(1, 300), write(2, 520), write(1, 530)];
    assert_eq!(kinds(&operations), ["race-remote"]);
    assert_eq!(kinds(&operations[..2]), ["unordered-remote"]);
}

#[test]
fn only_effects_that_conflict_race() {
    let pairs = [
        (Effect::Read, Effect::Read, false),
        (Effect::Atomic, Effect::Atomic, false),
        (Effect::Read, Effect::Atomic, false),
        (Effect::Read, Effect::Write, true),
        (Effect::Atomic, Effect::Write, true),
    ];
    for (a, b, races) in pairs {
        for (a, b) in [(a, b), (b, a)] {
            let first = operation(1, Use::Write, 100, 200).remote(a);
            let second = operation(2, Use::Write, 150, 250).remote(b);
            assert_eq!(kinds(&[first, second]).len(), usize::from(races), "{a:?} {b:?}");
        }
    }
    let first = operation(1, Use::Write, 100, 200).remote(Effect::Write);
    let mut beside = operation(2, Use::Write, 150, 250).remote(Effect::Write);
    (beside.areas[0].first, beside.areas[0].end) = (1008, 1016);
    assert!(kinds(&[first, beside]).is_empty(), "other memory");
}

#[test]
fn a_message_of_the_target_orders() {
    let first = operation(1, Use::Write, 100, 200).remote(Effect::Write);
    let second = operation(2, Use::Write, 500, 600).remote(Effect::Write);
    let message = |ends, does, posted, executed| between(ends, 3, does, posted, executed);
    let with = |between: &[Operation]| {
        let all = [from_ref(&first), between, from_ref(&second)].concat();
        kinds(&all).len()
    };
    assert_eq!(with(&[]), 1);
    assert_eq!(with(&[message((2, 1), Use::Write, 300, 400)]), 0, "the target has polled its memory");
    assert_eq!(with(&[message((2, 1), Use::Write, 150, 400)]), 1, "posted before the first was executed");
    assert_eq!(with(&[message((2, 1), Use::Write, 300, 550)]), 1, "it arrives too late");
    assert_eq!(with(&[message((1, 2), Use::Read, 300, 400)]), 0, "a READ of the target's memory");
    assert_eq!(with(&[message((1, 2), Use::Write, 300, 400)]), 1, "it brings nothing back");
    assert_eq!(with(&[message((1, 2), Use::Send, 300, 400).polled(450)]), 0, "the target posted a receive");
    let third = [message((2, 3), Use::Send, 300, 350), message((3, 1), Use::Send, 360, 400)];
    assert_eq!(with(&third), 0, "through a third process");
    assert_eq!(with(&third[1..]), 1);
}

#[test]
fn a_datagram_may_tell_everything_that_happened_before() {
    let first = operation(1, Use::Write, 100, 200).remote(Effect::Write);
    let second = operation(2, Use::Write, 500, 600).remote(Effect::Write);
    let with = |others: &[(u32, u64)]| {
        let others = others.iter().map(|(process, at)| (*process, vec![*at])).collect();
        kinds_beside(&[first.clone(), second.clone()], others).len()
    };
    assert_eq!(with(&[(1, 300)]), 0);
    assert_eq!(with(&[(1, 150)]), 1, "before the execution");
    assert_eq!(with(&[(1, 550)]), 1, "after the second post");
    assert_eq!(with(&[(3, 300)]), 1, "in another process");
}

#[test]
fn an_operation_of_another_process_races_with_the_memory_of_a_send() {
    let write = operation(1, Use::Write, 100, 200).remote(Effect::Write);
    let send = |posted| between((2, 1), 2, Use::Send, posted, posted + 100).with(true, Effect::Read);
    assert_eq!(kinds(&[write.clone(), send(150)]), ["race-local"]);
    assert!(kinds(&[write.clone(), send(250)]).is_empty(), "process 2 may have seen its memory");
    assert_eq!(kinds(&[send(50), write.clone()]), ["race-local"]);
    let received = Operation { told: 90, ..send(50) };
    assert_eq!(kinds(&[received, write]), ["race-local"], "executed at 150 only");
}

#[test]
fn the_result_of_a_read_is_there_at_its_completion() {
    let result = operation(1, Use::Read, 100, 200).with(true, Effect::Write).polled(400);
    let send = |qpn, posted| operation(qpn, Use::Send, posted, 900).with(true, Effect::Read);
    assert_eq!(kinds(&[result.clone(), send(2, 300)]), ["race-local"]);
    assert!(kinds(&[result.clone(), send(2, 450)]).is_empty());
    assert_eq!(kinds(&[result.clone(), send(1, 300).second(false)]), ["missing-fence"]);
    assert!(kinds(&[result.clone(), send(1, 450).second(false)]).is_empty());
    assert!(kinds(&[result.clone(), send(1, 300).second(true)]).is_empty());
    // The fence of an earlier request, and of one in between.
    let fenced = |fence, place| Operation { fence: Some(fence), place, ..send(1, 300) };
    assert_eq!(kinds(&[result.clone(), fenced(1, 3)]), ["missing-fence"]);
    assert!(kinds(&[result, fenced(2, 3)]).is_empty());
    let read = operation(1, Use::Read, 100, 200).remote(Effect::Read);
    let write = operation(1, Use::Write, 300, 400).remote(Effect::Write).second(false);
    assert_eq!(kinds(&[read.clone(), write.clone()]), ["missing-fence"], "a repeated READ");
    let write = Operation { fence: Some(2), ..write };
    assert!(kinds(&[read, write]).is_empty());
}

#[test]
fn without_the_execution_nothing_is_claimed_about_different_queue_pairs() {
    let mut first = operation(1, Use::Write, 100, 200).with(true, Effect::Read);
    first.message.execution = None;
    let second = operation(2, Use::Read, 150, 250).with(true, Effect::Write);
    assert!(kinds(&[first, second]).is_empty());
}

#[test]
fn a_send_races_in_the_memory_of_its_receive() {
    let send = operation(1, Use::Send, 100, 200).received(50);
    let other = |does, effect, posted| operation(2, does, posted, posted + 100).remote(effect);
    assert_eq!(kinds(&[send.clone(), other(Use::Read, Effect::Read, 150)]), ["race-remote"]);
    assert_eq!(kinds(&[send.clone(), other(Use::Atomic, Effect::Atomic, 250)]), ["unordered-remote"]);
    assert_eq!(kinds(&[other(Use::Write, Effect::Write, 90), send.clone()]), ["race-remote"]);
    let polled = Operation { told: 220, ..send.clone() };
    assert!(kinds(&[polled, other(Use::Read, Effect::Read, 250)]).is_empty(), "the receive was polled");
    let own = between((2, 1), 2, Use::Write, 150, 250).with(true, Effect::Read);
    assert_eq!(kinds(&[send.clone(), own]), ["race-local"], "the receiver sends the memory");
    let mut same = other(Use::Write, Effect::Write, 150).second(false);
    same.message.qpn = 1;
    assert!(kinds(&[send.clone(), same]).is_empty(), "one queue pair");
    let message = operation(2, Use::Send, 150, 250);
    assert!(kinds(&[send.clone(), message.clone().received(50)]).is_empty(), "two receives");
    let message = between((2, 1), 2, Use::Send, 150, 250).with(true, Effect::Read);
    assert!(kinds(&[send, message]).is_empty(), "a ping-pong in one buffer");
}

/// What the receiver sees before it posts a receive is ordered before the SEND, whenever that was posted.
#[test]
fn a_receive_orders_what_was_executed_before_its_post() {
    let write = |posted, executed| operation(2, Use::Write, posted, executed).remote(Effect::Write);
    for (receive, count) in [(190, 1), (210, 0)] {
        let send = |posted| operation(1, Use::Send, posted, 300).received(receive);
        assert_eq!(
            kinds(&[write(100, 200), send(150)]).len(),
            count,
            "the WRITE first, receive at {receive}"
        );
        assert_eq!(kinds(&[send(50), write(100, 200)]).len(), count, "the SEND first, receive at {receive}");
    }
    let mut elsewhere = write(100, 200);
    elsewhere.message.execution = None;
    let send = operation(1, Use::Send, 50, 300).received(150);
    assert!(kinds(&[send, elsewhere]).is_empty(), "not known when");
}

#[test]
fn the_completion_of_a_request_over_uc_does_not_order() {
    let write = operation(1, Use::Write, 100, 200).remote(Effect::Write).polled(150).over("UC");
    let write = Operation { told: u64::MAX, ..write };
    let read = |posted| operation(2, Use::Read, posted, posted + 100).remote(Effect::Read);
    assert_eq!(kinds(&[write.clone(), read(300)]), ["unordered-remote"]);
    assert_eq!(kinds(&[write.clone(), read(160)]), ["unordered-remote"], "it may be lost");
    let received = Operation { told: 250, ..write.clone() };
    assert!(kinds(&[received, read(300)]).is_empty(), "the receiver has polled a receive");
    let answer = between((2, 1), 3, Use::Send, 220, 280);
    assert!(kinds(&[write.clone(), answer, read(300)]).is_empty(), "the receiver tells");
    let mut lost = write;
    lost.message.execution = lost.message.execution.map(|at| Execution { is_certain: false, ..at });
    assert!(kinds(&[lost, read(300)]).is_empty(), "it may not have been executed");
    // Its own memory is free at its completion.
    let send = operation(1, Use::Send, 100, 400).with(true, Effect::Read).polled(150).over("UC");
    let send = Operation { told: u64::MAX, ..send };
    let result = |posted| operation(2, Use::Read, posted, posted + 100).with(true, Effect::Write);
    assert_eq!(kinds(&[send.clone(), result(140)]), ["unordered-local"]);
    assert!(kinds(&[send, result(160)]).is_empty());
}
