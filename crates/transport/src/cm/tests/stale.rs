//! A peer that has lost its memory: reused QPNs and communication ids.

use super::*;
use ConnState::*;
use wire::cm::Answered;

#[test]
fn a_reused_qpn_is_refused_and_the_old_connection_disconnected() {
    let (mut net, a, b) = Net::established();
    // The active process dies without a word; its successor has the same QPN and a new communication id.
    let gids = net.gid;
    net.cm[A] = Cm::new(CmConfig::new(1, 0x0044_0000, 0x0200_0aff_fe00_0001, PathMtu::M4096));
    net.cm[A].set_gids(&gids[..1]);
    let again = net.connect();
    net.run();
    assert_ne!(a, again);
    assert_eq!(net.names(), [(A, "REQ"), (B, "REJ"), (B, "DREQ"), (A, "DREP")]);
    let CmMessage::Rej(rej) = net.sent[net.sent.len() - 3].1 else { panic!() };
    assert_eq!((rej.reason, rej.message), (RejReason::STALE_CONNECTION, Answered::REQ));
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Rejected(_)));
    assert_eq!(net.cm[A].state(again), Some(Timewait));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: false }));
    assert_eq!(net.cm[B].state(b), Some(Timewait));
    net.connect();
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::ConnectRequest(_)), "the retry succeeds");
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
