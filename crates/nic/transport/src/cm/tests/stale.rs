//! A REQ or REP with the QPN of a connection: from a peer that has lost its memory, or forged.

use super::*;
use ConnState::*;
use wire::cm::Req;

/// The active process dies without a word; its successor has the same QPNs and new communication ids.
fn restart_a(net: &mut Net) {
    net.cm[A] = Cm::new(CmConfig::new(1, 0x0044_0000, 0x0200_0aff_fe00_0001, PathMtu::M4096));
    net.cm[A].set_gids(&[net.gid[A]]);
}

/// The first REQ with another communication id, as a forger or the successor of A sends it.
fn another_req(net: &Net, comm_id: u32) -> MadBytes {
    let (_, _, mad) = net.sent.iter().find(|(_, m, _)| name(m) == "REQ").unwrap();
    let mut req = Req::parse(mad);
    req.local_comm_id = comm_id;
    message::emit(|mad| req.emit(mad)).as_ref().to_owned()
}

fn give_b(net: &mut Net, mad: &MadBytes) -> MadOutcome {
    let outcome = net.cm[B].handle_mad(net.now, mad, net.gid[A], net.gid[B]);
    net.run();
    outcome
}

#[test]
fn a_req_that_reuses_a_qpn_is_handled_when_the_peer_has_lost_the_old_connection() {
    let (mut net, a, b) = Net::established();
    restart_a(&mut net);
    let again = net.connect();
    net.run();
    assert_ne!(a, again);
    assert_eq!(net.names(), [(A, "REQ"), (B, "DREQ"), (A, "DREP")]);
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: true }));
    assert_eq!(net.cm[B].state(b), Some(Timewait));
    let request = net.event(B).unwrap();
    assert!(matches!(request.kind, CmEventKind::ConnectRequest(_)), "the REQ that waited");
    net.accept(request.id);
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::ConnectResponse(_)));
    net.cm[A].rtu(again, b"").unwrap();
    net.run();
    assert_eq!(net.states(again, request.id), (Established, Established));
    assert_eq!(net.now_ms(), 0);
}

#[test]
fn a_lost_probe_costs_one_repetition_of_the_req() {
    for lost in [(B, "DREQ", 1), (A, "DREP", 1)] {
        let (mut net, _, b) = Net::established();
        restart_a(&mut net);
        net.lose.push(lost);
        net.connect();
        net.run();
        assert_eq!(net.cm[B].state(b), Some(Established));
        assert!(net.step());
        assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: true }));
        assert!(matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)));
        assert!(net.now_ms() < 5000, "{}", net.now_ms());
    }
}

#[test]
fn a_forged_req_with_address_guid_and_qpn_of_the_peer_ends_no_connection() {
    let (mut net, a, b) = Net::established();
    for n in 0..20 {
        let mad = another_req(&net, 0x0900_0000 + n);
        give_b(&mut net, &mad);
        net.now += core::time::Duration::from_secs(1);
    }
    assert_eq!(net.names(), [(B, "DREQ"); 20], "the live peer ignores each probe");
    assert_eq!(net.states(a, b), (Established, Established));
    assert!(net.event(A).is_none() && net.event(B).is_none());
    assert_eq!(net.cm[B].counters().rx_stale, 20);
    assert_eq!(net.cm[B].len(), 1);
}

#[test]
fn a_live_peer_that_sends_its_qpn_again_is_rejected_and_keeps_its_connection() {
    let (mut net, a, b) = Net::established();
    let mad = another_req(&net, 9);
    for _ in 0..3 {
        give_b(&mut net, &mad);
        net.now += core::time::Duration::from_millis(4600);
    }
    assert_eq!(net.names(), [(B, "DREQ"), (B, "DREQ"), (B, "REJ")]);
    assert_eq!(net.states(a, b), (Established, Established));
}

#[test]
fn a_flood_of_reqs_causes_one_probe_per_connection_and_second() {
    let (mut net, a, b) = Net::established();
    for n in 0..1000 {
        let mad = another_req(&net, 0x0900_0000 + n);
        give_b(&mut net, &mad);
        net.now += core::time::Duration::from_millis(5);
    }
    assert_eq!(net.names(), [(B, "DREQ"); 5], "5 s");
    assert_eq!(net.states(a, b), (Established, Established));
}

#[test]
fn a_req_without_a_listener_causes_no_probe() {
    let (mut net, _, b) = Net::established();
    let (_, _, mad) = net.sent.iter().find(|(_, m, _)| name(m) == "REQ").unwrap();
    let mut req = Req::parse(mad);
    (req.local_comm_id, req.service_id) = (9, ServiceId::from_port(ServiceId::TCP, PORT + 1));
    let mad = message::emit(|mad| req.emit(mad));
    assert!(matches!(give_b(&mut net, &mad), MadOutcome::NotOurs { .. }));
    assert_eq!(net.names(), []);
    assert_eq!(net.cm[B].state(b), Some(Established));
}

#[test]
fn a_forged_reply_to_the_probe_of_a_stale_check_ends_no_connection() {
    let (mut net, a, b) = Net::established();
    let mad = another_req(&net, 9);
    net.cm[B].handle_mad(net.now, &mad, net.gid[A], net.gid[B]);
    let (.., probe) = net.cm[B].poll_transmit().unwrap();
    let tid = wire::cm::Dreq::parse(&probe).tid;
    for wrong in [0, tid ^ 1, tid ^ 1 << 63] {
        let drep = message::drep(wrong, (a.0, b.0), &[]);
        net.cm[B].handle_mad(net.now, &drep, net.gid[A], net.gid[B]);
        assert_eq!(net.cm[B].state(b), Some(Established));
    }
    let drep = message::drep(tid, (a.0, b.0), &[]);
    let elsewhere = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 9));
    net.cm[B].handle_mad(net.now, &drep, elsewhere, net.gid[B]);
    assert_eq!(net.cm[B].state(b), Some(Established));
    net.cm[B].handle_mad(net.now, &drep, net.gid[A], net.gid[B]);
    assert_eq!(net.cm[B].state(b), Some(Timewait), "the true reply");
}

#[test]
fn a_req_that_waited_for_long_is_left_to_its_repetition() {
    let (mut net, a, b) = Net::established();
    let mad = another_req(&net, 9);
    net.cm[B].handle_mad(net.now, &mad, net.gid[A], net.gid[B]);
    let (.., probe) = net.cm[B].poll_transmit().unwrap();
    net.now += core::time::Duration::from_secs(30);
    let drep = message::drep(wire::cm::Dreq::parse(&probe).tid, (a.0, b.0), &[]);
    net.cm[B].handle_mad(net.now, &drep, net.gid[A], net.gid[B]);
    assert_eq!(net.cm[B].state(b), Some(Timewait));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: true }));
    assert!(net.event(B).is_none());
}

#[test]
fn a_peer_that_has_ended_the_old_connection_is_believed() {
    let (mut net, a, b) = Net::established();
    // The peer has given up, and each of its DREQs was lost.
    net.lose.push((A, "DREQ", u32::MAX));
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    while net.cm[A].state(a) != Some(Timewait) {
        assert!(net.step());
    }
    net.connect();
    net.run();
    assert_eq!(net.cm[B].state(b), Some(Timewait));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: true }));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)));
}

#[test]
fn a_req_that_waits_is_handled_when_the_peer_disconnects() {
    let (mut net, a, b) = Net::established();
    let req = another_req(&net, 0x0900_0000);
    net.lose.push((B, "DREQ", 1));
    give_b(&mut net, &req);
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    assert_eq!(net.cm[B].state(b), Some(DreqRcvd));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: false }));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)));
}

#[test]
fn a_forged_request_in_the_name_of_a_client_does_not_block_its_queue_pair() {
    let (mut net, ..) = Net::requested();
    let mad = another_req(&net, 0x0900_0000);
    let mut net2 = Net::listening();
    net2.sent.append(&mut net.sent);
    give_b(&mut net2, &mad);
    let forged = net2.event(B).unwrap().id;
    net2.accept(forged);
    net2.run();
    let a = net2.connect();
    net2.run();
    let b = net2.event(B).expect("the request of the client").id;
    net2.cm[B]
        .accept(
            net2.now,
            b,
            &AcceptParams {
                qp: LocalQp { qpn: Qpn::new(0x20457), ..Net::accept_params().qp },
                ..Net::accept_params()
            },
        )
        .unwrap();
    net2.run();
    net2.cm[A].rtu(a, b"").unwrap();
    net2.run();
    assert_eq!(net2.states(a, b), (Established, Established));
}

#[test]
fn connections_without_a_queue_pair_are_never_stale() {
    let (mut net, ..) = Net::requested();
    let (_, _, mad) = net.sent.iter().find(|(_, m, _)| name(m) == "REQ").unwrap();
    let mut req = Req::parse(mad);
    req.local_qpn = Qpn::new(0);
    for n in 1..=3 {
        req.local_comm_id = n;
        let mad = message::emit(|mad| req.emit(mad));
        net.cm[B].handle_mad(net.now, &mad, net.gid[A], net.gid[B]);
        let id = net.event(B).expect("a request").id;
        net.accept(id);
        let rtu =
            wire::cm::Rtu { tid: req.tid, local_comm_id: n, remote_comm_id: id.0, ..Default::default() };
        let mad = message::emit(|mad| rtu.emit(mad));
        net.cm[B].handle_mad(net.now, &mad, net.gid[A], net.gid[B]);
        assert_eq!(net.cm[B].state(id), Some(Established));
        assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
    }
}

#[test]
fn a_rep_from_a_qp_we_are_connected_to_is_refused() {
    let (mut net, a, _) = Net::established();
    // The passive process dies; its successor uses the same QPN.
    let gids = net.gid;
    net.cm[B] = Cm::new(CmConfig::new(2, 0x0044_0000, 0x0200_0aff_fe00_0002, PathMtu::M4096));
    net.cm[B].set_gids(&gids[1..]);
    net.listen(0);
    let mut params = net.params();
    params.qp.qpn = Qpn::new(0x10999);
    let second = net.cm[A].connect(net.now, &params).unwrap();
    net.run();
    let b = net.event(B).unwrap().id;
    net.accept(b);
    net.log.clear();
    net.run();
    assert_eq!(net.names(), [(B, "REP"), (A, "REJ"), (A, "DREQ"), (B, "DREP")]);
    assert_eq!(net.cm[A].state(second), Some(ReqSent), "stays");
    assert_eq!(net.cm[A].state(a), Some(Timewait));
    assert!(net.cm[A].poll_timeout().is_some());
}

#[test]
fn a_connection_in_timewait_is_not_in_the_way() {
    let (mut net, a, b) = Net::established();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    assert_eq!(net.states(a, b), (Timewait, Timewait));
    while net.event(B).is_some() {}
    net.connect();
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)));
}
