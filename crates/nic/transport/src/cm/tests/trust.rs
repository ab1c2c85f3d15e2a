//! Messages from hosts that are not the peer, and floods of them: connections stay as they are, and the state
//! is bounded.

use super::*;
use ConnState::*;
use wire::cm::{Answered, Dreq, Req};

/// A host that is no end of the connection.
fn stranger() -> Gid {
    Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 77))
}

/// The last message `name` of `from` arrives from the stranger's address instead of its own.
fn forge(net: &mut Net, from: usize, name_wanted: &str) {
    let found = net.sent.iter().rev().find(|(side, m, _)| *side == from && name(m) == name_wanted);
    let mad = found.expect("was sent").2;
    let (to, dst) = (1 - from, net.gid[1 - from]);
    net.cm[to].handle_mad(net.now, &mad, stranger(), dst);
}

/// As [`Net::run`], but replies to the stranger are lost; returns their names.
fn run_without_stranger(net: &mut Net) -> Vec<&'static str> {
    let mut names = Vec::new();
    for cm in &mut net.cm {
        let others: VecDeque<_> = std::mem::take(&mut cm.transmit);
        for out in others {
            if out.dst == stranger() {
                names.push(name(&CmMessage::parse(&out.mad).unwrap()));
            } else {
                cm.transmit.push_back(out);
            }
        }
    }
    net.run();
    names
}

#[test]
fn a_rep_from_another_address_is_ignored() {
    let (mut net, a, b) = Net::requested();
    net.lose.push((B, "REP", 1));
    net.accept(b);
    net.run();
    forge(&mut net, B, "REP");
    assert_eq!(net.cm[A].state(a), Some(ReqSent));
    assert!(net.event(A).is_none());
    assert_eq!(net.cm[A].counters().rx_foreign, 1);
    net.repeat_last(B, "REP");
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::ConnectResponse(_)));
}

#[test]
fn a_reply_to_a_req_with_another_transaction_id_is_ignored() {
    for message in ["REP", "REJ", "MRA"] {
        let (mut net, a, b) = Net::requested();
        net.lose.push((B, message, 1));
        match message {
            "REP" => net.accept(b),
            "REJ" => net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, b"").unwrap(),
            _ => net.repeat_last(A, "REQ"),
        }
        net.run();
        let (_, _, mut mad) = *net.sent.iter().rev().find(|(_, m, _)| name(m) == message).unwrap();
        // The upper half of the transaction id; the lower half is the communication id.
        mad[8] ^= 1;
        net.cm[A].handle_mad(net.now, &mad, net.gid[B], net.gid[A]);
        assert_eq!(net.cm[A].state(a), Some(ReqSent), "{message}");
        assert!(net.event(A).is_none(), "{message}");
        net.repeat_last(B, message);
        assert_ne!(net.cm[A].state(a), Some(ReqSent), "{message}");
    }
}

#[test]
fn an_rtu_from_another_address_is_ignored() {
    let (mut net, a, b) = Net::responded();
    net.lose.push((A, "RTU", 1));
    net.cm[A].rtu(a, b"").unwrap();
    net.run();
    forge(&mut net, A, "RTU");
    assert_eq!(net.cm[B].state(b), Some(RepSent));
    assert!(net.event(B).is_none());
    net.repeat_last(A, "RTU");
    assert_eq!(net.cm[B].state(b), Some(Established));
}

#[test]
fn a_rej_from_another_address_is_ignored() {
    let (mut net, a, b) = Net::requested();
    net.lose.push((B, "REJ", 1));
    net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, b"").unwrap();
    net.run();
    forge(&mut net, B, "REJ");
    assert_eq!(net.cm[A].state(a), Some(ReqSent));
    assert!(net.event(A).is_none());
}

#[test]
fn a_withdrawal_from_another_address_is_ignored() {
    let (mut net, a, b) = Net::requested();
    net.lose.push((A, "REJ", 1));
    net.cm[A].destroy(net.now, a);
    net.run();
    forge(&mut net, A, "REJ");
    assert_eq!(net.cm[B].state(b), Some(MraReqSent));
    net.repeat_last(A, "REJ");
    assert_eq!(net.cm[B].state(b), Some(Idle));
}

#[test]
fn a_withdrawal_without_our_id_does_not_end_an_established_connection() {
    let (mut net, a, b) = Net::established();
    let ari = 0x0200_0aff_fe00_0001_u64.to_be_bytes();
    let tid = net.cm[B].conns[&b].tid;
    for (tid, remote_id, expected) in [
        (tid, 0, Established),
        (tid, b.0 ^ 1, Established),
        (tid ^ 1, b.0, Established),
        (tid, b.0, Timewait),
    ] {
        let rej = message::rej(tid, (a.0, remote_id), Answered::OTHER, RejReason::TIMEOUT, &ari);
        let mad = message::emit(|mad| rej.emit(mad));
        net.cm[B].handle_mad(net.now, &mad, net.gid[A], net.gid[B]);
        assert_eq!(net.cm[B].state(b), Some(expected), "{remote_id:#x}");
    }
}

#[test]
fn a_rej_with_another_transaction_id_ends_no_connection() {
    for to in [A, B] {
        let (mut net, a, b) = Net::established();
        let (id, peer) = if to == A { (a, b) } else { (b, a) };
        let tid = net.cm[to].conns[&id].tid;
        for (tid, expected) in [(tid ^ 1 << 32, Established), (tid, Timewait)] {
            let rej = message::rej(tid, (peer.0, id.0), Answered::OTHER, RejReason::CONSUMER_DEFINED, &[]);
            let mad = message::emit(|mad| rej.emit(mad));
            net.cm[to].handle_mad(net.now, &mad, net.gid[1 - to], net.gid[to]);
            assert_eq!(net.cm[to].state(id), Some(expected));
        }
    }
}

#[test]
fn an_mra_from_another_address_is_ignored() {
    let (mut net, a, _) = Net::requested();
    net.lose.push((B, "MRA", 1));
    net.repeat_last(A, "REQ");
    forge(&mut net, B, "MRA");
    assert_eq!(net.cm[A].state(a), Some(ReqSent));
    net.repeat_last(B, "MRA");
    assert_eq!(net.cm[A].state(a), Some(MraReqRcvd));
}

#[test]
fn a_dreq_from_another_address_disconnects_nothing() {
    let (mut net, a, b) = Net::established();
    net.lose.push((A, "DREQ", 1));
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    forge(&mut net, A, "DREQ");
    assert_eq!(net.cm[B].state(b), Some(Established));
    assert!(net.event(B).is_none());
    // The stranger learns no more than with ids that do not exist.
    assert_eq!(run_without_stranger(&mut net), ["DREP"]);
    net.repeat_last(A, "DREQ");
    assert_eq!(net.cm[B].state(b), Some(DreqRcvd));
}

#[test]
fn a_drep_from_another_address_ends_no_disconnect() {
    let (mut net, a, b) = Net::established();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    net.lose.push((B, "DREP", 1));
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    forge(&mut net, B, "DREP");
    assert_eq!(net.cm[A].state(a), Some(DreqSent));
    net.repeat_last(B, "DREP");
    assert_eq!(net.cm[A].state(a), Some(Timewait));
}

#[test]
fn a_drep_from_another_address_stops_no_disconnect_notice() {
    let (mut net, a, b) = Net::established();
    net.lose.push((A, "DREQ", 1));
    net.cm[A].destroy(net.now, a);
    net.run();
    let drep = message::drep(1, (b.0, a.0), &[]);
    net.cm[A].handle_mad(net.now, &drep, stranger(), net.gid[A]);
    net.step();
    assert_eq!(net.names(), [(A, "DREQ"), (A, "DREQ")]);
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { .. }));
}

/// The REQ of `net`'s first connection, changed.
fn req(net: &Net, change: impl FnOnce(&mut Req)) -> MadBytes {
    let found = net.sent.iter().find(|(_, m, _)| name(m) == "REQ");
    let mut req = Req::parse(&found.expect("was sent").2);
    change(&mut req);
    let mut mad = [0; 256];
    req.emit(&mut mad);
    mad
}

/// A REQ that is the stranger's own in all but GUID, QPN and communication id.
fn of_stranger(req: &mut Req) {
    req.primary.local_gid = stranger();
    let header = wire::cm::IpCmHeader { src: stranger().ip(), ..req.ip_header().unwrap() };
    header.emit(req.private_data.first_chunk_mut().unwrap());
}

#[test]
fn a_req_with_a_peers_guid_and_qpn_from_another_address_disconnects_nothing() {
    for own_path in [false, true] {
        let (mut net, a, b) = Net::established();
        let mad = req(&net, |req| {
            req.local_comm_id ^= 0x55;
            if own_path {
                of_stranger(req);
            }
        });
        net.cm[B].handle_mad(net.now, &mad, stranger(), net.gid[B]);
        let replies = run_without_stranger(&mut net);
        assert_eq!(net.names(), [], "no DREQ");
        assert_eq!(net.states(a, b), (Established, Established));
        if own_path {
            assert!(
                matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)),
                "a peer like others"
            );
        } else {
            assert_eq!(replies, ["REJ"]);
            assert!(net.event(B).is_none());
        }
    }
}

#[test]
fn a_stranger_with_a_clients_ids_does_not_block_the_client() {
    let (mut net, _, _) = Net::requested();
    let mut net2 = Net::listening();
    let mad = req(&net, of_stranger);
    net2.sent.append(&mut net.sent);
    net2.cm[B].handle_mad(net2.now, &mad, stranger(), net2.gid[B]);
    assert!(matches!(net2.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)));
    net2.connect();
    net2.run();
    assert!(matches!(net2.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)), "the client's");
}

#[test]
fn a_req_with_the_address_of_another_host_is_rejected() {
    let (net, _, _) = Net::requested();
    let in_header = req(&net, |req| {
        req.local_comm_id ^= 1;
        req.local_qpn = Qpn::new(0x777);
        of_stranger(req);
        req.primary.local_gid = net.gid[A];
    });
    let in_path = req(&net, |req| req.primary.local_gid = stranger());
    for mad in [in_header, in_path] {
        let mut net = Net::listening();
        net.cm[B].handle_mad(net.now, &mad, net.gid[A], net.gid[B]);
        net.run();
        assert_eq!(net.names(), [(B, "REJ")]);
        assert!(net.event(B).is_none() && net.cm[B].is_empty());
    }
}

#[test]
fn a_sidr_rep_from_another_address_is_ignored() {
    let mut net = Net::new();
    net.lose.push((B, "SIDR_REP", 1));
    let params = SidrParams {
        service_id: ServiceId::from_port(ServiceId::UDP, PORT),
        path: net.path(),
        private_data: b"",
    };
    net.cm[A].sidr_connect(net.now, &params).unwrap();
    net.run();
    forge(&mut net, B, "SIDR_REP");
    assert!(net.event(A).is_none());
    net.repeat_last(B, "SIDR_REP");
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::SidrResponse(_)));
}

/// A REQ number `n` from one of `peers` addresses.
fn flood_req(net: &Net, n: u32, peers: u32) -> (MadBytes, Gid) {
    let src = Gid::from(std::net::Ipv4Addr::from(0x0a01_0000 + n % peers));
    let mad = req(net, |req| {
        req.local_comm_id = n + 1;
        req.local_qpn = Qpn::new(n);
        req.local_ca_guid = 7;
        of_stranger(req);
        req.primary.local_gid = src;
        let header = wire::cm::IpCmHeader { src: src.ip(), ..req.ip_header().unwrap() };
        header.emit(req.private_data.first_chunk_mut().unwrap());
    });
    (mad, src)
}

#[test]
fn a_flood_of_reqs_to_a_server_that_accepts_leaves_a_bounded_state() {
    for (peers, limit) in [(1, HALF_OPEN_PEER_MAX), (5000, HALF_OPEN_MAX)] {
        let (mut net, _, b) = Net::requested();
        net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, b"").unwrap();
        let mut accepted = 0;
        for n in 0..20_000 {
            let (mad, src) = flood_req(&net, n, peers);
            net.cm[B].handle_mad(net.now, &mad, src, net.gid[B]);
            while let Some(event) = net.cm[B].poll_event() {
                net.cm[B].request_taken(event.id);
                let qp = LocalQp { qpn: Qpn::new(accepted + 1), ..Net::accept_params().qp };
                let params = AcceptParams { qp, ..Net::accept_params() };
                net.cm[B].accept(net.now, event.id, &params).unwrap();
                accepted += 1;
            }
            while net.cm[B].poll_transmit().is_some() || net.cm[B].poll_journal().is_some() {}
        }
        assert_eq!(net.cm[B].len(), limit + 1, "one was rejected before");
        assert_eq!(net.cm[B].counters().rx_backlog_full, 20_000 - limit as u64);
        // The peers never respond; then there is room again, sooner than without a flood.
        let until = net.now + core::time::Duration::from_secs(17);
        while let Some(at) = net.cm[B].poll_timeout().filter(|at| *at <= until) {
            net.cm[B].handle_timeout(at);
            net.now = at;
            while net.cm[B].poll_transmit().is_some() {}
        }
        let (mad, src) = flood_req(&net, 20_001, peers);
        while net.cm[B].poll_event().is_some() {}
        net.cm[B].handle_mad(net.now, &mad, src, net.gid[B]);
        let reported = net.cm[B].poll_event();
        assert!(matches!(reported.unwrap().kind, CmEventKind::ConnectRequest(_)), "{peers} peers");
    }
}

#[test]
fn a_client_can_connect_while_one_host_floods() {
    let (mut net, _, b) = Net::requested();
    net.cm[B].destroy(net.now, b);
    net.run();
    for n in 0..2000 {
        let (mad, src) = flood_req(&net, n, 1);
        net.cm[B].handle_mad(net.now, &mad, src, net.gid[B]);
    }
    while net.cm[B].poll_event().is_some() {}
    net.connect();
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)));
}

#[test]
fn replies_to_messages_without_a_connection_are_limited() {
    let mut net = Net::new();
    let mut mad = [0; 256];
    for n in 0..10_000 {
        Dreq { tid: 5, local_comm_id: n, remote_comm_id: 0x0020_0009, ..Dreq::default() }.emit(&mut mad);
        net.cm[B].handle_mad(net.now, &mad, stranger(), net.gid[B]);
    }
    let sent = std::iter::from_fn(|| net.cm[B].poll_transmit()).count() as u64;
    assert!(sent < 3000, "{sent}");
    assert_eq!(sent + net.cm[B].counters().tx_limited, 10_000);
}
