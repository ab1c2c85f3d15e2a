//! Many requests at once.

use super::super::window::UNANSWERED_MAX;
use super::*;

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

fn reqs(net: &Net) -> usize {
    net.names().into_iter().filter(|sent| *sent == (A, "REQ")).count()
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
fn a_silent_peer_delays_the_others_by_one_retry() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    asked(&mut net);
    net.run();
    let mut sent_first = vec![reqs(&net)];
    while sent_first.last() < Some(&MANY) {
        let now = net.now;
        assert!(net.step());
        if net.now > now {
            sent_first.push(reqs(&net) - net.cm[A].counters().tx_retries as usize);
        }
    }
    assert_eq!(sent_first[..2], [UNANSWERED_MAX, 2 * UNANSWERED_MAX]);
    assert!(net.now_ms() < 4 * 4608, "{}", net.now_ms());
}

#[test]
fn a_request_that_is_withdrawn_while_it_waits_is_not_sent() {
    let mut net = Net::listening();
    let ids = asked(&mut net);
    ids[UNANSWERED_MAX..].iter().for_each(|id| net.cm[A].destroy(net.now, *id));
    net.run();
    assert_eq!(reqs(&net), UNANSWERED_MAX);
    let request = net.event(B).expect("a request");
    net.cm[B].reject(request.id, RejReason::CONSUMER_DEFINED, b"").unwrap();
    net.run();
    assert_eq!(reqs(&net), UNANSWERED_MAX, "no other one takes its place");
}
