//! The last will.

use super::*;

/// What B has written down.
fn will_of(cm: &mut Cm) -> Vec<Farewell> {
    let mut will: Vec<Farewell> = Vec::new();
    while let Some(change) = cm.poll_will() {
        match change {
            WillChange::Add(farewell) => will.push(farewell),
            WillChange::Remove(id) => will.retain(|farewell| farewell.id != id),
        }
    }
    will
}

#[test]
fn a_third_process_disconnects_for_one_that_died() {
    let (mut net, a, b) = Net::established();
    let will = will_of(&mut net.cm[B]);
    assert_eq!(will.len(), 1);
    assert_eq!((will[0].id, will[0].src, will[0].dst), (b, net.gid[B], net.gid[A]));
    // B has died; another process of its host has its will.
    net.cm[B] = Cm::new(CmConfig::new(9, 1, 0x0200_0aff_fe00_0002, PathMtu::M4096));
    net.cm[B].say_farewell(net.now, will[0]);
    let before = net.now;
    net.step();
    let disconnected = net.event(A).unwrap();
    assert_eq!(disconnected.id, a);
    assert!(matches!(disconnected.kind, CmEventKind::Disconnected { timed_out: false }));
    assert_eq!(net.now, before, "at once");
    assert_eq!(net.cm[A].state(a), Some(ConnState::DreqRcvd));
}

#[test]
fn a_third_process_withdraws_the_request_of_one_that_died() {
    let (mut net, a, b) = Net::requested();
    let will = will_of(&mut net.cm[A]);
    assert_eq!((will.len(), will[0].id, will[0].remote_id), (1, a, 0));
    net.accept(b);
    // A has died before the REP came; another process of its host has its will.
    net.cm[A] = Cm::new(CmConfig::new(9, 1, 0x0200_0aff_fe00_0001, PathMtu::M4096));
    net.cm[A].say_farewell(net.now, will[0]);
    let before = net.now;
    let withdrawn = loop {
        if let Some(event) = net.event(B) {
            break event;
        }
        assert!(net.step(), "B is told");
    };
    assert_eq!(net.now, before, "at once");
    assert_eq!(withdrawn.id, b);
    let CmEventKind::Rejected(rejection) = withdrawn.kind else { panic!("{:?}", withdrawn.kind) };
    assert_eq!(rejection.reason, RejReason::TIMEOUT);
    assert_eq!(net.cm[B].state(b), Some(ConnState::Idle));
}

#[test]
fn a_request_that_is_refused_leaves_the_will() {
    let (mut net, a, b) = Net::requested();
    net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, &[]).unwrap();
    net.run();
    assert!(will_of(&mut net.cm[A]).is_empty(), "{a:?}");
}

#[test]
fn a_farewell_is_said_three_times_and_no_more() {
    let (mut net, a, b) = Net::established();
    let will = will_of(&mut net.cm[B]);
    net.cm[B].destroy(net.now, b);
    net.run();
    net.event(A).unwrap();
    net.cm[A].drep(net.now, a, &[]).unwrap();
    net.run();
    net.log.clear();
    will_of(&mut net.cm[B]);
    let start = net.now.0 / 1_000_000;
    // The answers go to the process that died.
    net.lose.push((A, "DREP", 3));
    net.cm[B].say_farewell(net.now, will[0]);
    assert_eq!(net.cm[B].poll_will(), None, "whoever says it may die, too");
    while net.step() {}
    assert_eq!(net.cm[B].poll_will(), Some(WillChange::Remove(will[0].id)));
    let said: Vec<_> = net.log.iter().filter(|(_, who, name)| (*who, *name) == (B, "DREQ")).collect();
    assert_eq!(said.iter().map(|(ms, ..)| ms - start).collect::<Vec<_>>(), [0, 1000, 2000]);
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::TimewaitExit));
    assert!(net.event(A).is_none(), "the peer hears nothing new");
}

#[test]
fn the_will_names_connections_the_peer_may_believe_in() {
    let (mut net, a, b) = Net::requested();
    assert_eq!(will_of(&mut net.cm[A]).len(), 1, "the request");
    assert!(will_of(&mut net.cm[B]).is_empty());
    net.accept(b);
    assert_eq!(will_of(&mut net.cm[B]).len(), 1, "the REP may arrive");
    net.run();
    net.event(A).unwrap();
    assert!(will_of(&mut net.cm[A]).is_empty(), "it has promised nothing");
    net.cm[A].rtu(a, &[]).unwrap();
    assert_eq!(net.cm[A].poll_will(), Some(WillChange::Remove(a)));
    assert!(matches!(net.cm[A].poll_will(), Some(WillChange::Add(Farewell { remote_id: 1.., .. }))));
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
    assert_eq!(net.cm[B].poll_will(), None, "nothing new");
    net.cm[A].disconnect(net.now, a, &[]).unwrap();
    net.run();
    assert_eq!(net.cm[A].poll_will(), None, "the DREQ may be lost");
    net.event(B).unwrap();
    net.cm[B].drep(net.now, b, &[]).unwrap();
    assert_eq!(net.cm[B].poll_will(), Some(WillChange::Remove(b)));
    net.run();
    assert_eq!(net.cm[A].poll_will(), Some(WillChange::Remove(a)));
}

#[test]
fn a_destroyed_connection_leaves_the_will() {
    let (mut net, _, b) = Net::established();
    net.cm[B].destroy(net.now, b);
    assert!(will_of(&mut net.cm[B]).is_empty());
}
