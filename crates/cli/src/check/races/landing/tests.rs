//! Process 1 sends on queue pair 7, process 2 receives on queue pair 107.

use wire::{Qpn, Rkey};

use super::super::tests::between;
use super::*;

/// Executed from `posted + 100` on.
fn message(service: &str, posted: u64) -> Message {
    let message = between((1, 2), 7, Use::Send, posted, posted + 100).message;
    Message { service: service.to_owned(), first: posted, ..message }
}

fn access(number: u32, target: u32) -> Access {
    Access {
        time_ns: 0,
        qpn: Qpn::new(7),
        does: Use::Send,
        is_first: true,
        has_fence: false,
        is_counted: false,
        site: 1,
        remote: (0, Rkey(target)),
        number,
        local: Vec::new(),
    }
}

fn landing(number: u32, bytes: u32, (posted_ns, time_ns): (u64, u64)) -> Landing {
    let address = 1000 * u64::from(number);
    let local = vec![(address, 6), (address + 100, 50)];
    let (qpn, src_qp) = (Qpn::new(107), Qpn::new(7));
    Landing { time_ns, posted_ns, qpn, srqn: 0, number, bytes, src_qp, site: 2, local }
}

/// The landings as one thread has recorded them, after their polls.
fn recording(landings: &[Landing]) -> Recording {
    let mut events = Vec::new();
    for landing in landings {
        let Landing { qpn, bytes, time_ns, .. } = *landing;
        let poll = Entry::Poll { qpn, wr_id: 0, status: 0, is_receive: true, bytes };
        events.push(poll.event(time_ns));
        events.extend(Landing { time_ns: time_ns + 5, ..landing.clone() }.events());
    }
    let (name, command) = (String::new(), String::new());
    Recording { process: 2, token: 0, thread: 3, name, command, events, replaced: 0, lost: 0 }
}

/// Begins and ends of the memory in which each of these messages was placed.
fn placed(service: &str, sent: &[(u64, Access)], landings: &[Landing]) -> Vec<Vec<(u64, u64)>> {
    let mut messages: Vec<Message> = sent.iter().map(|(posted, _)| message(service, *posted)).collect();
    let post = |message: &Message| ((message.pid, message.qpn), message.first, message.posted);
    let accesses = messages.iter().map(post).zip(sent.iter().map(|(_, access)| access.clone())).collect();
    let all = Landings::new(&[recording(landings)], &messages, &accesses);
    let areas = |(message, (_, access)): (&mut Message, &(u64, Access))| {
        let post = post(message);
        all.areas(message, access, post).iter().map(|area| (area.first, area.end)).collect()
    };
    messages.iter_mut().zip(sent).map(areas).collect()
}

#[test]
fn a_send_has_the_receive_with_its_number() {
    let sent = [(100, access(1, 0)), (200, access(3, 0))];
    let landings = [landing(1, 8, (10, 300)), landing(2, 0, (20, 310)), landing(3, 8, (30, 320))];
    let whole = [vec![(1000, 1006), (1100, 1102)], vec![(3000, 3006), (3100, 3102)]];
    assert_eq!(placed("RC", &sent, &landings), whole);
    // Older events were replaced.
    assert_eq!(placed("RC", &sent[1..], &landings[1..]), whole[1..]);
    let none = |landings: &[Landing]| placed("RC", &sent[..1], landings)[0].is_empty();
    assert!(none(&[landing(1, 9, (10, 300))]), "another length");
    assert!(none(&[landing(1, 8, (10, 190))]), "polled before the SEND was executed");
    assert!(none(&[landing(1, 8, (250, 300))]), "posted after that");
    assert!(none(&[landing(1, 8, (10, 300)), landing(1, 8, (20, 310))]), "one of two connections");
    let of_xrc = Landing { srqn: 5, ..landing(1, 8, (10, 300)) };
    assert!(none(std::slice::from_ref(&of_xrc)), "another queue");
    assert!(!placed("XRC_SEND", &[(100, access(1, 5))], &[of_xrc])[0].is_empty());
}

#[test]
fn receives_that_were_counted_in_another_order_than_polled_are_left_out() {
    let sent = [(100, access(2, 0))];
    let landings = [landing(2, 8, (10, 300)), landing(3, 8, (20, 310)), landing(2, 8, (15, 305))];
    assert!(placed("RC", &sent, &landings)[0].is_empty());
    assert!(!placed("RC", &sent, &landings[..2])[0].is_empty());
}

#[test]
fn a_loss_on_an_unreliable_connection_makes_its_receives_unknown() {
    let sent = [(100, access(1, 0)), (200, access(2, 0))];
    let landings = [landing(1, 8, (10, 400)), landing(2, 8, (20, 410))];
    assert!(placed("UC", &sent, &landings).iter().all(|areas| !areas.is_empty()));
    assert!(placed("UC", &sent, &landings[..1]).iter().all(Vec::is_empty));
    assert!(placed("RC", &sent, &landings[..1])[1].is_empty());
}

#[test]
fn datagrams_are_told_apart_while_one_is_in_flight() {
    let sent = [(100, access(0, 107)), (200, access(0, 107)), (300, access(0, 107))];
    let datagrams = |times: &[(u64, u64)]| -> Vec<Landing> {
        times.iter().map(|time| landing(0, 8 + GRH_BYTES, *time)).collect()
    };
    let counts =
        |times| -> Vec<usize> { placed("UD", &sent, &datagrams(times)).iter().map(Vec::len).collect() };
    assert_eq!(counts(&[(10, 150), (20, 250), (30, 350)]), [2, 2, 2]);
    assert_eq!(counts(&[(10, 150), (20, 320), (30, 350)]), [2, 0, 0], "one of two");
    assert_eq!(counts(&[(10, 250)]), [0, 0, 0]);
    let mut datagram = message("UD", 100);
    let accesses = HashMap::from([(((1, 7), 100, 100), access(0, 107))]);
    let all = Landings::new(&[recording(&datagrams(&[(130, 150)]))], &[datagram.clone()], &accesses);
    all.areas(&mut datagram, &access(0, 107), ((1, 7), 100, 100));
    let execution = datagram.execution.expect("the time of the receive");
    assert_eq!((datagram.peer, execution.pid, execution.begin, execution.end), (107, 2, 130, 150));
}
