//! Requests that no application gets to see (IBA 12.6.7.2; Annex A11).

use super::*;
use wire::PKey;
use wire::cm::{Answered, Req};

/// Sends a REQ changed by `change` and returns the REJ.
fn refused(change: impl FnOnce(&mut Req)) -> wire::cm::Rej {
    let mut net = Net::listening();
    net.connect();
    let (_, _, mad) = net.cm[A].poll_transmit().unwrap();
    let mut req = Req::parse(&mad);
    change(&mut req);
    let mut mad = [0; 256];
    req.emit(&mut mad);
    let (src, dst) = (net.gid[A], net.gid[B]);
    if let MadOutcome::NotOurs { .. } = net.cm[B].handle_mad(net.now, &mad, src, dst) {
        net.cm[B].reject_no_listener(net.now, &mad, src, dst);
    }
    assert!(net.event(B).is_none());
    assert!(net.cm[B].is_empty());
    let (from, to, mad) = net.cm[B].poll_transmit().expect("a REJ");
    assert_eq!((from, to), (dst, src));
    let CmMessage::Rej(rej) = CmMessage::parse(&mad).unwrap() else { panic!() };
    assert_eq!((rej.message, rej.local_comm_id, rej.tid), (Answered::REQ, 0, req.tid));
    assert_eq!(rej.remote_comm_id, req.local_comm_id);
    rej
}

#[test]
fn nobody_listens() {
    let rej = refused(|req| req.service_id = ServiceId::from_port(ServiceId::TCP, PORT + 1));
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
}

#[test]
fn another_process_is_asked_before_a_request_is_refused() {
    let mut net = Net::new();
    net.connect();
    let (src, dst, mad) = net.cm[A].poll_transmit().unwrap();
    let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
    let outcome = net.cm[B].handle_mad(net.now, &mad, src, dst);
    assert_eq!(outcome, MadOutcome::NotOurs { service_id, dst_gid: dst });
    assert!(net.cm[B].poll_transmit().is_none());
}

#[test]
fn a_wrong_gid_or_partition_is_refused_with_the_right_gid() {
    let ours = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2));
    let wrong = Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 99));
    let by_gid = refused(|req| req.primary.remote_gid = wrong);
    let by_p_key = refused(|req| req.p_key = PKey(0x1234));
    for rej in [by_gid, by_p_key] {
        assert_eq!((rej.reason, rej.ari_len), (RejReason::INVALID_GID, 16));
        assert_eq!(rej.ari[..16], ours.0);
    }
}

#[test]
fn a_bad_ip_header_is_a_consumer_reject() {
    let changes: [fn(&mut Req); 5] = [
        |req| req.private_data[0] = 0x10,
        |req| req.private_data[1] = 0x50,
        |req| req.private_data[16..20].copy_from_slice(&[127, 0, 0, 1]),
        |req| req.private_data[16..20].copy_from_slice(&[224, 0, 0, 1]),
        |req| req.private_data[16..20].copy_from_slice(&[0, 0, 0, 0]),
    ];
    for change in changes {
        assert_eq!(refused(change).reason, RejReason::CONSUMER_DEFINED);
    }
}

#[test]
fn a_service_known_at_other_addresses_only_has_no_listener() {
    let mut net = Net::new();
    let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
    let address = ListenAddress::AnyV6;
    net.cm[B].listen(ListenParams { service_id, address, backlog: 0, transport: Transport::Rc }).unwrap();
    net.connect();
    net.run();
    let CmMessage::Rej(rej) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
}

#[test]
fn a_request_to_an_address_of_another_device_is_for_another_process() {
    let mut net = Net::listening();
    net.connect();
    let (src, dst, mad) = net.cm[A].poll_transmit().unwrap();
    net.cm[B].set_gids(&[std::net::Ipv4Addr::new(10, 0, 0, 99).into()]);
    let service_id = ServiceId::from_port(ServiceId::TCP, PORT);
    let outcome = net.cm[B].handle_mad(net.now, &mad, src, dst);
    assert_eq!(outcome, MadOutcome::NotOurs { service_id, dst_gid: dst });
}

#[test]
fn another_service_type_is_a_consumer_reject() {
    for transport in [Req::TRANSPORT_UC, 2, 3] {
        assert_eq!(refused(|req| req.transport = transport).reason, RejReason::CONSUMER_DEFINED);
    }
}

#[test]
fn a_path_mtu_we_cannot_carry_is_refused_with_the_one_we_can() {
    for code in [0, 6, 7, 15] {
        let rej = refused(|req| req.path_mtu = code);
        assert_eq!((rej.reason, rej.ari_len, rej.ari[0]), (RejReason::INVALID_MTU, 1, PathMtu::M4096 as u8));
    }
}

#[test]
fn what_is_no_cm_message_is_dropped() {
    let mut net = Net::new();
    let outcome = net.cm[A].handle_mad(net.now, &[0; 256], net.gid[B], net.gid[A]);
    assert_eq!(outcome, MadOutcome::Handled);
    assert_eq!(net.cm[A].counters().rx_malformed, 1);
    net.assert_quiet();
}
