//! The passive side, one state and message after the other (IBA 12.9.7).

use super::*;
use ConnState::*;
use wire::cm::Answered;

#[test]
fn a_duplicate_req_is_silent_until_the_application_has_seen_it() {
    let mut net = Net::listening();
    net.connect();
    net.run();
    net.log.clear();
    net.repeat_last(A, "REQ");
    assert!(net.log.is_empty());
    net.event(B).unwrap();
    net.repeat_last(A, "REQ");
    assert_eq!(net.names(), [(B, "MRA")]);
    let CmMessage::Mra(mra) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!((mra.message, mra.service_timeout), (Answered::REQ, 24));
    assert!(net.event(B).is_none(), "one request, one event");
}

#[test]
fn a_duplicate_req_gets_no_mra_once_accepted() {
    let (mut net, _, b) = Net::requested();
    net.lose.push((B, "REP", 1));
    net.accept(b);
    net.run();
    net.log.clear();
    net.repeat_last(A, "REQ");
    assert!(net.log.is_empty());
}

#[test]
fn a_rep_is_repeated_and_then_the_peer_is_unreachable() {
    let (mut net, _, b) = Net::requested();
    net.lose.push((B, "REP", u32::MAX));
    net.accept(b);
    net.run();
    // The active side's own retries would interfere: they meet a silent REP_SENT (tested above).
    net.lose.push((A, "REQ", u32::MAX));
    let event = net.wait_event(B);
    assert!(matches!(event.kind, CmEventKind::Unreachable { is_refused: false }));
    let reps: Vec<u64> = net.log.iter().filter(|(_, _, n)| *n == "REP").map(|(at, ..)| *at).collect();
    assert_eq!(reps.len(), 16, "1 + max_cm_retries of the REQ");
    assert!(reps.windows(2).all(|w| w[1] - w[0] == 4096));
    assert_eq!(net.now_ms(), 16 * 4096, "66 s until it gives up");
    assert_eq!(net.cm[B].state(b), Some(Idle));
}

#[test]
fn the_first_packet_establishes_without_an_rtu() {
    let (mut net, a, b) = Net::responded();
    net.lose.push((A, "RTU", 1));
    net.cm[A].rtu(a, b"").unwrap();
    net.run();
    assert_eq!(net.cm[B].state(b), Some(RepSent));
    net.cm[B].establish_qp(Qpn::new(0x20456));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
    net.repeat_last(A, "RTU");
    assert_eq!(net.cm[B].counters().rx_duplicates, 1);
    net.cm[B].establish_qp(Qpn::new(0x20456));
    net.cm[B].establish(b).unwrap();
    net.assert_quiet();
}

#[test]
fn notify_is_invalid_before_the_rep() {
    let (mut net, _, b) = Net::requested();
    assert!(net.cm[B].establish(b).is_err());
    net.accept(b);
    net.cm[B].establish(b).unwrap();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
}

#[test]
fn a_dreq_that_overtakes_the_rtu_tells_of_both() {
    let (mut net, a, b) = Net::responded();
    net.lose.push((A, "RTU", 1));
    net.cm[A].rtu(a, b"").unwrap();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: false }));
    assert_eq!(net.cm[B].state(b), Some(DreqRcvd));
    net.repeat_last(A, "RTU");
    assert_eq!(net.cm[B].counters().rx_duplicates, 1);
    assert!(net.event(B).is_none(), "no second ESTABLISHED");
}

#[test]
fn a_stale_rejection_of_the_rep_leads_through_timewait() {
    let (mut net, a, b) = Net::responded();
    net.cm[A].reject(a, RejReason::STALE_CONNECTION, b"").unwrap();
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Rejected(_)));
    assert_eq!(net.cm[B].state(b), Some(Timewait));
    net.step();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::TimewaitExit));
}

#[test]
fn destroying_a_request_refuses_it() {
    let (mut net, a, b) = Net::requested();
    net.cm[B].destroy(net.now, b);
    net.run();
    let CmEventKind::Rejected(rejection) = net.event(A).unwrap().kind else { panic!() };
    assert_eq!(rejection.reason, RejReason::CONSUMER_DEFINED);
    assert_eq!((net.cm[A].state(a), net.cm[B].state(b)), (Some(Idle), None));
    net.assert_quiet();
}

#[test]
fn destroying_an_accepted_request_takes_it_back() {
    let (mut net, a, b) = Net::responded();
    net.cm[B].destroy(net.now, b);
    net.run();
    let CmMessage::Rej(rej) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!((rej.message, rej.reason), (Answered::OTHER, RejReason::CONSUMER_DEFINED));
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Rejected(_)));
    assert_eq!(net.cm[A].state(a), Some(Timewait));
}

#[test]
fn a_full_backlog_drops_silently_and_the_retry_gets_in() {
    let mut net = Net::new();
    net.listen(1);
    net.connect();
    let mut params = net.params();
    params.qp.qpn = Qpn::new(0x10124);
    net.cm[A].connect(net.now, &params).unwrap();
    net.run();
    assert_eq!(net.names(), [(A, "REQ"), (A, "REQ")], "no REJ");
    let first = net.event(B).unwrap().id;
    assert!(net.event(B).is_none());
    assert_eq!(net.cm[B].counters().rx_backlog_full, 1);
    net.cm[B].request_taken(first);
    net.step();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)));
}

#[test]
fn unlistening_leaves_requests_alone() {
    let mut net = Net::new();
    let listener = net.listen(0);
    let a = net.connect();
    net.run();
    let b = net.event(B).unwrap().id;
    net.cm[B].unlisten(listener);
    net.accept(b);
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::ConnectResponse(_)));
    net.cm[A].rtu(a, b"").unwrap();
    net.run();
    let other = net.connect();
    net.run();
    assert!(net.step(), "the REQ is repeated once, for a late listener");
    assert_eq!(net.cm[A].state(other), Some(Idle), "refused: no listener");
}

#[test]
fn the_listener_bound_to_the_address_wins() {
    let mut net = Net::listening();
    let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
    let address = ListenAddress::Gid(net.gid[B]);
    let params = ListenParams { service_id, address, backlog: 0, transport: Transport::Rc };
    let bound = net.cm[B].listen(params).unwrap();
    assert!(net.cm[B].listen(params).is_err(), "twice");
    net.connect();
    net.run();
    let CmEventKind::ConnectRequest(request) = net.event(B).unwrap().kind else { panic!() };
    assert_eq!(request.listener, bound);
}

#[test]
fn communication_ids_carry_the_slot_and_are_never_zero() {
    let mut net = Net::new();
    let mut config = CmConfig::new(9, 0x00ff_ffff, 1, PathMtu::M4096);
    net.cm[A] = Cm::new(config.clone());
    assert_eq!(net.connect(), CmId(0x009f_ffff));
    assert_eq!(net.connect(), CmId(0x0090_0001), "the counter skips 0");
    config.first_id = 0x1200_0000;
    net.cm[A] = Cm::new(config);
    assert_eq!(net.connect(), CmId(0x0090_0001), "only 20 bits of the start count");
}
