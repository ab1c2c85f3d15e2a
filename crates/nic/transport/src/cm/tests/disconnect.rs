//! DREQ, DREP and TIMEWAIT, in every state they can meet (IBA 12.9.8).

use super::*;
use ConnState::*;
use wire::cm::Dreq;

#[test]
fn the_drep_waits_for_the_application() {
    let (mut net, a, b) = Net::established();
    net.cm[A].disconnect(net.now, a, b"bye").unwrap();
    net.run();
    assert_eq!(net.names(), [(A, "DREQ")]);
    assert_eq!(net.states(a, b), (DreqSent, DreqRcvd));
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { timed_out: false }));
    assert!(net.event(A).is_none(), "not before the DREP");
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Disconnected { timed_out: false }));
    assert_eq!(net.states(a, b), (Timewait, Timewait));
    net.step();
    for side in [A, B] {
        assert!(matches!(net.event(side).unwrap().kind, CmEventKind::TimewaitExit));
    }
    assert_eq!(net.now_ms(), 512, "the ACK timeout of 17, as Linux 6.12");
    assert_eq!(net.states(a, b), (Idle, Idle));
    net.assert_quiet();
}

#[test]
fn a_dreq_without_drep_is_repeated_and_given_up() {
    let (mut net, a, b) = Net::established();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    assert!(matches!(net.wait_event(A).kind, CmEventKind::Disconnected { timed_out: true }));
    assert_eq!(net.log.iter().filter(|(_, _, n)| *n == "DREQ").count(), 16);
    assert_eq!(net.now_ms(), 16 * 4608);
    assert_eq!(net.states(a, b), (Timewait, DreqRcvd));
    assert!(matches!(net.wait_event(A).kind, CmEventKind::TimewaitExit));
}

#[test]
fn the_passive_side_repeats_its_dreq_at_its_own_interval() {
    let (mut net, a, b) = Net::established();
    net.lose.push((B, "DREQ", u32::MAX));
    net.cm[B].disconnect(net.now, b, b"").unwrap();
    net.run();
    assert!(matches!(net.wait_event(B).kind, CmEventKind::Disconnected { timed_out: true }));
    assert_eq!(net.now_ms(), 16 * 4096);
    assert_eq!(net.cm[A].state(a), Some(Established), "never heard of it");
}

#[test]
fn crossing_dreqs_end_with_two_dreps() {
    let (mut net, a, b) = Net::established();
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.cm[B].disconnect(net.now, b, b"").unwrap();
    net.run();
    assert_eq!(net.states(a, b), (DreqRcvd, DreqRcvd));
    for (side, id) in [(A, a), (B, b)] {
        assert!(matches!(net.event(side).unwrap().kind, CmEventKind::Disconnected { timed_out: false }));
        net.cm[side].drep(net.now, id, b"").unwrap();
    }
    net.run();
    assert_eq!(net.states(a, b), (Timewait, Timewait));
    assert_eq!(net.names()[2..], [(A, "DREP"), (B, "DREP")]);
}

#[test]
fn a_dreq_in_timewait_gets_another_drep() {
    let (mut net, a, b) = Net::established();
    net.lose.push((B, "DREP", 1));
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    net.cm[B].drep(net.now, b, b"notice").unwrap();
    net.run();
    assert_eq!(net.states(a, b), (DreqSent, Timewait));
    net.repeat_last(A, "DREQ");
    assert_eq!(net.states(a, b), (Timewait, Timewait));
    let CmMessage::Drep(drep) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!(&drep.private_data[..9], b"notice\0\0\0");
    assert_eq!(net.cm[B].counters().rx_duplicates, 1);
}

#[test]
fn a_dreq_for_another_qp_is_ignored() {
    let (mut net, a, b) = Net::established();
    let dreq = |qpn| {
        let mut mad = [0; 256];
        let ids = Dreq { tid: 5, local_comm_id: b.0, remote_comm_id: a.0, ..Dreq::default() };
        Dreq { remote_qpn: Qpn::new(qpn), ..ids }.emit(&mut mad);
        mad
    };
    net.cm[A].handle_mad(net.now, &dreq(0x777), net.gid[B], net.gid[A]);
    net.run();
    assert_eq!(net.cm[A].state(a), Some(Established));
    assert!(net.log.is_empty());
    net.cm[A].handle_mad(net.now, &dreq(0x10123), net.gid[B], net.gid[A]);
    assert_eq!(net.cm[A].state(a), Some(DreqRcvd));
}

#[test]
fn a_dreq_for_unknown_ids_gets_a_drep() {
    let mut net = Net::new();
    let mut mad = [0; 256];
    Dreq { tid: 5, local_comm_id: 7, remote_comm_id: 0x0010_0009, ..Dreq::default() }.emit(&mut mad);
    net.cm[A].handle_mad(net.now, &mad, net.gid[B], net.gid[A]);
    net.run();
    let CmMessage::Drep(drep) = net.sent.last().unwrap().1 else { panic!() };
    assert_eq!((drep.tid, drep.local_comm_id, drep.remote_comm_id), (5, 0x0010_0009, 7));
}

#[test]
fn a_dreq_is_not_repeated_after_its_drep() {
    let (mut net, a, b) = Net::established();
    net.cm[A].destroy(net.now, a);
    net.run();
    assert_eq!(net.names(), [(A, "DREQ")]);
    assert_eq!(net.cm[A].state(a), None);
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { .. }));
    net.cm[B].destroy(net.now, b);
    net.run();
    assert_eq!(net.names()[1..], [(B, "DREP")]);
    assert!(net.cm[A].is_empty() && net.cm[B].is_empty());
    net.assert_quiet();
}

/// The applications of B confirm every DREQ at once.
fn disconnect_time(net: &mut Net, b: CmId) -> u64 {
    assert!(matches!(net.wait_event(B).kind, CmEventKind::Disconnected { timed_out: false }));
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    net.now_ms()
}

#[test]
fn a_dreq_that_is_lost_is_said_again_although_its_owner_has_gone() {
    for disconnected_before in [false, true] {
        let (mut net, a, b) = Net::established();
        net.lose.push((A, "DREQ", 2));
        if disconnected_before {
            net.cm[A].disconnect(net.now, a, b"").unwrap();
        }
        net.cm[A].destroy(net.now, a);
        net.run();
        assert_eq!(net.cm[A].state(a), None);
        assert_eq!(disconnect_time(&mut net, b), 2000);
        assert_eq!(net.names(), [(A, "DREQ"), (A, "DREQ"), (A, "DREQ"), (B, "DREP")]);
        assert!(!net.cm[A].is_shutting_down());
    }
}

#[test]
fn a_silent_peer_gets_three_dreqs() {
    let (mut net, a, _) = Net::established();
    net.lose.push((A, "DREQ", 9));
    net.cm[A].destroy(net.now, a);
    net.run();
    while net.step() {}
    assert_eq!(net.log, [(0, A, "DREQ"), (1000, A, "DREQ"), (2000, A, "DREQ")]);
    net.assert_quiet();
}

#[test]
fn whoever_asks_to_disconnect_as_well_is_not_asked_again() {
    let (mut net, a, b) = Net::established();
    net.lose.push((A, "DREQ", 1));
    net.cm[A].destroy(net.now, a);
    net.run();
    net.cm[B].disconnect(net.now, b, b"").unwrap();
    net.run();
    assert!(!net.cm[A].is_shutting_down());
    assert_eq!(net.names(), [(A, "DREQ"), (B, "DREQ"), (A, "DREP")]);
}

#[test]
fn a_process_that_ends_repeats_its_dreqs_soon() {
    for destroyed in [false, true] {
        let (mut net, a, b) = Net::established();
        net.lose.push((A, "DREQ", 3));
        net.cm[A].disconnect(net.now, a, b"").unwrap();
        net.run();
        if destroyed {
            net.cm[A].destroy(net.now, a);
        }
        net.cm[A].begin_shutdown(net.now);
        assert!(net.cm[A].is_shutting_down());
        assert_eq!(disconnect_time(&mut net, b), 15, "ms");
        assert!(!net.cm[A].is_shutting_down(), "the process may end");
    }
}

/// Both ends disconnect and end, and no application agrees to the peer's DREQ.
#[test]
fn processes_that_end_agree_to_crossing_dreqs() {
    for crossed_before in [false, true] {
        let (mut net, a, b) = Net::established();
        for (side, id) in [(A, a), (B, b)] {
            net.cm[side].disconnect(net.now, id, b"").unwrap();
        }
        if crossed_before {
            net.run();
        }
        for side in [A, B] {
            net.cm[side].begin_shutdown(net.now);
        }
        net.run();
        assert_eq!(net.names()[..2], [(A, "DREQ"), (B, "DREQ")]);
        assert!(net.names()[2..].contains(&(A, "DREP")) && net.names()[2..].contains(&(B, "DREP")));
        assert_eq!(net.names().len(), 4);
        assert_eq!(net.states(a, b), (Timewait, Timewait));
        assert!([A, B].iter().all(|side| !net.cm[*side].is_shutting_down()), "the processes may end");
    }
}

#[test]
fn a_process_that_ends_rejects_what_is_not_established() {
    for (start, reason) in [
        (Net::requested as fn() -> (Net, CmId, CmId), [RejReason::TIMEOUT, RejReason::CONSUMER_DEFINED]),
        (Net::responded, [RejReason::CONSUMER_DEFINED; 2]),
    ] {
        for (ends, stays) in [(A, B), (B, A)] {
            let (mut net, ..) = start();
            net.cm[ends].begin_shutdown(net.now);
            net.run();
            assert!(!net.cm[ends].is_shutting_down(), "no answer is waited for");
            let CmEventKind::Rejected(rejection) = net.wait_event(stays).kind else { panic!("no REJ") };
            assert_eq!((rejection.reason, net.now_ms()), (reason[ends], 0));
        }
    }
}

#[test]
fn a_process_that_ends_does_not_wait_for_long() {
    let (mut net, a, _) = Net::established();
    net.lose.push((A, "DREQ", 9));
    net.cm[A].destroy(net.now, a);
    net.cm[A].begin_shutdown(net.now);
    while net.cm[A].is_shutting_down() {
        net.step();
    }
    assert_eq!(net.now_ms(), 25);
}
