//! Many requests at once.

use super::super::window::PLACES;
use super::*;

const UNANSWERED_MAX: usize = PLACES as usize;
const MANY: usize = 3 * UNANSWERED_MAX + 1;

/// A asks for many connections at once.
fn asked(net: &mut Net) -> Vec<CmId> {
    let connect = |n: usize| {
        let qp = LocalQp { qpn: Qpn::new(0x10000 + n as u32), ..net.params().qp };
        let params = ConnectParams { qp, ..net.params() };
        net.cm[A].connect(net.now, &params).unwrap()
    };
    (0..MANY).map(connect).collect()
}

/// A REJ of this REQ.
fn answer(req: &MadBytes) -> MadBytes {
    let Ok(CmMessage::Req(req)) = CmMessage::parse(req) else { panic!("a REQ") };
    let ids = (0, req.local_comm_id);
    let rej = message::rej(req.tid, ids, wire::cm::Answered::REQ, RejReason::CONSUMER_DEFINED, &[]);
    *message::emit(|mad| rej.emit(mad))
}

/// How many messages of this name A has sent.
fn count(net: &Net, name: &str) -> usize {
    net.names().into_iter().filter(|sent| *sent == (A, name)).count()
}

fn reqs(net: &Net) -> usize {
    count(net, "REQ")
}

/// The most REQs that A sends at one instant, in the first minute. `each` is called at each of these.
fn most_at_once(net: &mut Net, each: impl Fn(&Net)) -> usize {
    let (mut sent, mut most) = (reqs(net), 0);
    while net.now_ms() < 60_000 {
        assert!(net.step());
        most = most.max(reqs(net) - sent);
        sent = reqs(net);
        each(net);
    }
    most
}

#[test]
fn requests_wait_until_the_peer_has_answered_enough_others() {
    let mut net = Net::listening();
    asked(&mut net);
    net.run();
    assert_eq!(reqs(&net), UNANSWERED_MAX);
    let mut accepted = 0;
    while let Some(request) = net.event(B) {
        if !matches!(request.kind, CmEventKind::ConnectRequest(_)) {
            continue;
        }
        net.cm[B].request_taken(request.id);
        let qp = LocalQp { qpn: Qpn::new(0x20000 + accepted), ..Net::accept_params().qp };
        net.cm[B].accept(net.now, request.id, &AcceptParams { qp, ..Net::accept_params() }).unwrap();
        accepted += 1;
        net.run();
        while let Some(response) = net.event(A) {
            net.cm[A].rtu(response.id, b"").unwrap();
        }
        net.run();
    }
    assert_eq!((accepted as usize, reqs(&net)), (MANY, MANY));
    assert_eq!((net.now_ms(), net.cm[A].counters().tx_retries), (0, 0));
}

#[test]
fn a_silent_peer_gets_a_window_with_each_repetition_and_never_two_windows_at_once() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    asked(&mut net);
    net.run();
    assert_eq!(reqs(&net), UNANSWERED_MAX);
    let first_sent = |net: &Net| reqs(net) - net.cm[A].counters().tx_retries as usize;
    let most = most_at_once(&mut net, |net| {
        assert!(net.now_ms() > 4608 || first_sent(net) <= 2 * UNANSWERED_MAX);
    });
    assert_eq!(first_sent(&net), MANY);
    assert!(most <= 8, "{most} at one instant");
}

/// The server stops after it has refused the first 256.
#[test]
fn a_peer_that_becomes_silent_never_gets_two_windows_at_once() {
    let mut net = Net::listening();
    asked(&mut net);
    net.lose.push((A, "REQ", u32::MAX));
    for _ in 0..UNANSWERED_MAX {
        let (src, dst, mad) = net.cm[A].poll_transmit().expect("a REQ");
        net.cm[A].handle_mad(net.now, &answer(&mad), dst, src);
    }
    net.run();
    let most = most_at_once(&mut net, |_| {});
    assert!(most <= 8, "{most} at one instant");
}

#[test]
fn no_request_leaves_after_the_beginning_of_the_end() {
    let mut net = Net::listening();
    asked(&mut net);
    net.run();
    net.cm[A].begin_shutdown(net.now);
    let request = net.event(B).expect("a request");
    net.cm[B].reject(request.id, RejReason::CONSUMER_DEFINED, b"").unwrap();
    net.run();
    assert_eq!(reqs(&net), UNANSWERED_MAX);
}

#[test]
fn a_request_that_is_withdrawn_while_it_waits_is_not_sent() {
    let mut net = Net::listening();
    let ids = asked(&mut net);
    ids[UNANSWERED_MAX..].iter().for_each(|id| net.cm[A].destroy(net.now, *id));
    net.run();
    assert_eq!(count(&net, "REJ"), 0);
    assert_eq!(reqs(&net), UNANSWERED_MAX);
    let request = net.event(B).expect("a request");
    net.cm[B].reject(request.id, RejReason::CONSUMER_DEFINED, b"").unwrap();
    net.run();
    assert_eq!(reqs(&net), UNANSWERED_MAX, "no other one takes its place");
}

#[test]
fn connections_closed_in_the_order_of_their_creation_send_no_request_that_waits() {
    let mut net = Net::listening();
    let ids = asked(&mut net);
    for id in &ids {
        net.cm[A].destroy(net.now, *id);
        net.run();
    }
    assert_eq!((reqs(&net), count(&net, "REJ")), (UNANSWERED_MAX, UNANSWERED_MAX));
    while let Some(change) = net.cm[A].poll_journal() {
        let (JournalChange::Add(DisconnectNotice { id, .. }) | JournalChange::Remove(id)) = change;
        assert!(ids[..UNANSWERED_MAX].contains(&id), "{id:?} never left");
    }
}

#[test]
fn a_withdrawn_request_keeps_its_place_until_it_would_have_been_repeated() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    let ids = asked(&mut net);
    net.run();
    ids[..UNANSWERED_MAX].iter().for_each(|id| net.cm[A].destroy(net.now, *id));
    net.run();
    assert_eq!(reqs(&net), UNANSWERED_MAX);
    while net.now_ms() < 4608 {
        assert!(net.step());
    }
    assert_eq!(reqs(&net), 2 * UNANSWERED_MAX);
}

#[test]
fn every_kind_of_answer_lets_the_next_request_leave() {
    // No listener: each is asked once more, and then refused.
    let mut net = Net::new();
    asked(&mut net);
    net.run();
    assert_eq!((reqs(&net), net.now_ms()), (MANY, 0));
    while net.now_ms() < 50 {
        assert!(net.step());
    }
    assert_eq!(reqs(&net), 2 * MANY);
    // MRA: the application of the peer has the request, and does not decide.
    let mut net = Net::listening();
    asked(&mut net);
    net.run();
    while net.event(B).is_some() {}
    net.repeat_last(A, "REQ");
    assert_eq!(reqs(&net), UNANSWERED_MAX + 1);
    // ICMP: the host has no process that listens.
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    asked(&mut net);
    net.run();
    let mad = net.sent[0].2;
    while reqs(&net) < UNANSWERED_MAX + 2 {
        net.cm[A].handle_refused(net.now, &mad, net.gid[B]);
        assert!(net.step() && net.now_ms() < 3000);
    }
}

#[test]
fn a_window_of_one_host_does_not_delay_requests_to_another() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    asked(&mut net);
    net.run();
    let other = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 3));
    let params = ConnectParams { path: Path { dst: other, ..net.path() }, ..net.params() };
    net.cm[A].connect(net.now, &params).unwrap();
    assert_eq!(net.cm[A].poll_transmit().map(|(_, dst, _)| dst), Some(other));
    assert!(net.cm[A].poll_transmit().is_none());
}

#[test]
fn a_single_request_is_repeated_when_linux_repeats_it() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", 1));
    net.connect();
    net.run();
    assert!(net.step());
    assert_eq!((net.now_ms(), reqs(&net)), (4608, 2));
}
