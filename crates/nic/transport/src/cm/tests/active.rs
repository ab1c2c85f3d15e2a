//! The active side, one state and message after the other (IBA 12.9.6).

use super::*;
use ConnState::*;
use wire::cm::{Answered, Mra};

#[test]
fn a_connection_is_made_with_three_messages() {
    let (mut net, a, b) = Net::responded();
    net.cm[A].rtu(a, b"").unwrap();
    net.run();
    assert_eq!(net.names(), [(A, "REQ"), (B, "REP"), (A, "RTU")]);
    assert_eq!(net.states(a, b), (Established, Established));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
    net.assert_quiet();
}

#[test]
fn both_sides_learn_what_the_other_offered() {
    let mut net = Net::listening();
    let a = net.connect();
    net.run();
    let CmEvent { id: b, kind: CmEventKind::ConnectRequest(request) } = net.event(B).unwrap() else {
        panic!()
    };
    assert_eq!((request.params.responder_resources, request.params.initiator_depth), (2, 3), "swapped");
    assert_eq!((request.params.retry_count, request.params.rnr_retry_count), (7, 6));
    assert_eq!(request.params.qpn, Qpn::new(0x10123));
    assert_eq!((request.local, request.peer, request.peer_port), (net.gid[B], net.gid[A], 45678));
    assert_eq!(&request.private_data[..6], b"hello\0");
    net.accept(b);
    net.run();
    let CmEvent { id, kind: CmEventKind::ConnectResponse(response) } = net.event(A).unwrap() else {
        panic!()
    };
    assert_eq!(id, a);
    assert_eq!((response.params.responder_resources, response.params.initiator_depth), (3, 2), "swapped");
    assert_eq!((response.params.rnr_retry_count, response.params.srq), (5, true));
    assert_eq!(response.params.qpn, Qpn::new(0x20456));
    assert_eq!(&response.private_data[..8], b"welcome\0");
}

#[test]
fn a_req_that_comes_before_its_listener_is_made_again_once() {
    let mut net = Net::new();
    let a = net.connect();
    net.run();
    assert_eq!(net.names(), [(A, "REQ"), (B, "REJ")]);
    assert!(net.event(A).is_none());
    net.listen(0);
    assert!(matches!(net.wait_event(B).kind, CmEventKind::ConnectRequest(_)));
    assert_eq!((net.now_ms(), net.cm[A].state(a)), (50, Some(ReqSent)));

    let mut net = Net::new();
    let a = net.connect();
    net.run();
    let CmEventKind::Rejected(rejection) = net.wait_event(A).kind else { panic!() };
    assert_eq!((rejection.reason, net.now_ms()), (RejReason::INVALID_SERVICE_ID, 50));
    assert_eq!(net.names(), [(A, "REQ"), (B, "REJ"), (A, "REQ"), (B, "REJ")]);
    assert_eq!(net.cm[A].state(a), Some(Idle));
    net.assert_quiet();
}

#[test]
fn a_refusal_that_took_its_time_is_final() {
    let mut net = Net::new();
    net.connect();
    let (src, dst, mad) = net.cm[A].poll_transmit().unwrap();
    net.now += timing::LISTENER_WAIT;
    net.cm[B].reject_no_listener(net.now, &mad, src, dst);
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Rejected(_)));
    net.assert_quiet();
}

#[test]
fn a_req_is_repeated_15_times_and_then_the_peer_is_unreachable() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    let a = net.connect();
    net.run();
    let event = net.wait_event(A);
    assert!(matches!(event.kind, CmEventKind::Unreachable { is_refused: false }));
    assert_eq!(net.log.len(), 16);
    assert_eq!(
        net.log[1].0 - net.log[0].0,
        4608,
        "two packet life times of 2^16 and a response time of 2^20, as Linux 6.12"
    );
    assert_eq!(net.now_ms(), 16 * 4608, "74 s until it gives up");
    assert_eq!(net.cm[A].state(a), Some(Idle));
    let first = net.sent[0].2;
    assert!(net.sent.iter().all(|(_, _, mad)| *mad == first), "identical bytes");
    net.assert_quiet();
}

#[test]
fn a_rejection_ends_it() {
    let (mut net, a, b) = Net::requested();
    net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, b"no").unwrap();
    net.run();
    let CmEventKind::Rejected(rejection) = net.event(A).unwrap().kind else { panic!() };
    assert_eq!(rejection.reason, RejReason::CONSUMER_DEFINED);
    assert_eq!(&rejection.private_data[..3], b"no\0");
    assert_eq!(net.states(a, b), (Idle, Idle));
    let CmMessage::Rej(rej) = net.sent[1].1 else { panic!() };
    assert_eq!(
        (rej.local_comm_id, rej.message),
        (b.0, Answered::REQ),
        "the REQ was reported, so the id is real"
    );
    net.assert_quiet();
}

#[test]
fn a_stale_rejection_leads_through_timewait() {
    let (mut net, a, b) = Net::requested();
    net.cm[B].reject(b, RejReason::STALE_CONNECTION, b"").unwrap();
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Rejected(_)));
    assert_eq!(net.cm[A].state(a), Some(Timewait));
    net.step();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::TimewaitExit));
    assert_eq!(net.now_ms(), 512, "2^(17-8) ms");
}

#[test]
fn an_mra_stretches_the_wait_once() {
    let mut net = Net::listening();
    net.lose.push((A, "REQ", u32::MAX));
    let a = net.connect();
    net.run();
    let tid = net.cm[A].conns[&a].tid;
    let mra = |service_timeout| {
        let mut mad = [0; 256];
        Mra { tid, local_comm_id: 0x0200_0001, remote_comm_id: a.0, service_timeout, ..Mra::default() }
            .emit(&mut mad);
        mad
    };
    let (src, dst) = (net.gid[B], net.gid[A]);
    net.cm[A].handle_mad(net.now, &mra(20), src, dst);
    assert_eq!(net.cm[A].state(a), Some(MraReqRcvd));
    assert_eq!(net.cm[A].poll_timeout(), Some(Instant((4096 + 512) * 1_000_000)));
    net.cm[A].handle_mad(net.now, &mra(24), src, dst);
    assert_eq!(net.cm[A].poll_timeout(), Some(Instant((4096 + 512) * 1_000_000)), "a second one is ignored");
    assert!(matches!(net.wait_event(A).kind, CmEventKind::Unreachable { is_refused: false }));
}

#[test]
fn a_rep_is_welcome_after_an_mra() {
    let mut net = Net::listening();
    let a = net.connect();
    net.run();
    let b = net.event(B).unwrap().id;
    net.repeat_last(A, "REQ");
    assert_eq!(net.states(a, b), (MraReqRcvd, MraReqSent));
    net.accept(b);
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::ConnectResponse(_)));
}

#[test]
fn destroying_a_request_takes_it_back() {
    let (mut net, a, b) = Net::requested();
    net.cm[A].destroy(net.now, a);
    net.run();
    let CmMessage::Rej(rej) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!((rej.reason, rej.message), (RejReason::TIMEOUT, Answered::OTHER));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id, rej.ari_len), (a.0, 0, 8));
    assert_eq!(rej.ari[..8], 0x0200_0aff_fe00_0001u64.to_be_bytes());
    assert!(is_for_every_process(&net.sent.last().unwrap().2) && !is_for_every_process(&net.sent[0].2));
    let is_for_all = |reason, remote_comm_id| {
        let mut mad = [0; wire::mad::MAD_LEN];
        wire::cm::Rej { reason, remote_comm_id, ..rej }.emit(&mut mad);
        is_for_every_process(&mad)
    };
    assert!(is_for_all(RejReason::TIMEOUT, 0));
    assert!(!is_for_all(RejReason::TIMEOUT, 7) && !is_for_all(RejReason::CONSUMER_DEFINED, 0));
    let CmEventKind::Rejected(rejection) = net.event(B).unwrap().kind else { panic!() };
    assert_eq!(rejection.reason, RejReason::TIMEOUT);
    assert_eq!(net.cm[B].state(b), Some(Idle));
    assert_eq!(net.cm[A].state(a), None);
    assert!(net.cm[B].accept(net.now, b, &Net::accept_params()).is_err());
    net.assert_quiet();
}

#[test]
fn a_duplicate_rep_gets_an_mra_while_the_owner_prepares() {
    let (mut net, a, b) = Net::responded();
    assert_eq!(net.states(a, b), (MraRepSent, RepSent));
    net.repeat_last(B, "REP");
    let CmMessage::Mra(mra) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!((mra.message, mra.service_timeout), (Answered::REP, 24));
    assert_eq!(net.states(a, b), (MraRepSent, MraRepRcvd));
    let deadline = net.cm[B].poll_timeout().unwrap();
    assert_eq!(deadline, Instant((65_536 + 512) * 1_000_000), "REP waits for the MRA's time");
    net.cm[A].rtu(a, b"").unwrap();
    net.run();
    assert_eq!(net.states(a, b), (Established, Established));
}

#[test]
fn a_duplicate_rep_gets_the_same_rtu_once_established() {
    let (mut net, ..) = Net::established();
    let rtu = net.sent.last().unwrap().2;
    net.repeat_last(B, "REP");
    assert_eq!(net.names(), [(A, "RTU")]);
    assert_eq!(net.sent.last().unwrap().2, rtu);
    assert_eq!(net.cm[B].counters().rx_duplicates, 1);
    net.assert_quiet();
}

#[test]
fn the_active_side_may_refuse_the_response() {
    let (mut net, a, b) = Net::responded();
    net.cm[A].reject(a, RejReason::CONSUMER_DEFINED, b"changed my mind").unwrap();
    net.run();
    let CmMessage::Rej(rej) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!((rej.message, rej.local_comm_id, rej.remote_comm_id), (Answered::REP, a.0, b.0));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Rejected(_)));
    assert_eq!(net.states(a, b), (Idle, Idle));
    net.assert_quiet();
}

#[test]
fn a_rejection_of_an_established_connection_leads_to_timewait() {
    let (mut net, a, b) = Net::established();
    let rej = wire::cm::Rej {
        tid: net.cm[A].conns[&a].tid,
        local_comm_id: b.0,
        remote_comm_id: a.0,
        message: Answered::OTHER,
        reason: RejReason::CONSUMER_DEFINED,
        ..Default::default()
    };
    let mut mad = [0; 256];
    rej.emit(&mut mad);
    net.cm[A].handle_mad(net.now, &mad, net.gid[B], net.gid[A]);
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Rejected(_)));
    assert_eq!(net.cm[A].state(a), Some(Timewait));
}

#[test]
fn crossing_requests_are_two_connections() {
    let mut net = Net::listening();
    let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
    let address = ListenAddress::Any;
    net.cm[A].listen(ListenParams { service_id, address, backlog: 0, transport: Transport::Rc }).unwrap();
    let a = net.connect();
    let mut params = net.params();
    params.path = Path { src: net.gid[B], dst: net.gid[A], ..params.path };
    params.qp.qpn = Qpn::new(0x20777);
    let b = net.cm[B].connect(net.now, &params).unwrap();
    net.run();
    let (at_a, at_b) = (net.event(A).unwrap().id, net.event(B).unwrap().id);
    assert!(at_a != a && at_b != b);
    net.accept(at_b);
    let mut params = Net::accept_params();
    params.qp.qpn = Qpn::new(0x10888);
    net.cm[A].accept(net.now, at_a, &params).unwrap();
    net.run();
    let response_at_a = net.event(A).unwrap().id;
    net.cm[A].rtu(response_at_a, b"").unwrap();
    let response_at_b = net.event(B).unwrap().id;
    net.cm[B].rtu(response_at_b, b"").unwrap();
    net.run();
    assert_eq!(net.states(a, at_b), (Established, Established));
    assert_eq!(net.states(at_a, b), (Established, Established));
}

#[test]
fn calls_in_the_wrong_state_or_with_too_much_data_are_invalid() {
    let (mut net, a, b) = Net::requested();
    assert!(net.cm[A].rtu(a, b"").is_err(), "no REP yet");
    assert!(net.cm[A].disconnect(net.now, a, b"").is_err());
    assert!(net.cm[B].drep(net.now, b, b"").is_err());
    assert!(net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, &[0; 149]).is_err());
    let mut params = Net::accept_params();
    params.private_data = &[0; 197];
    assert!(net.cm[B].accept(net.now, b, &params).is_err());
    let mut params = net.params();
    params.private_data = &[0; 57];
    assert!(net.cm[A].connect(net.now, &params).is_err());
    net.accept(b);
    assert!(net.cm[B].accept(net.now, b, &Net::accept_params()).is_err(), "twice");
    assert!(net.cm[A].rtu(CmId(1), b"").is_err(), "no such id");
}
