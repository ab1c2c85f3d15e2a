//! The disconnect journal.

use super::*;

/// The journal as its owner has stored it.
fn journal_of(cm: &mut Cm) -> Vec<DisconnectNotice> {
    let mut journal: Vec<DisconnectNotice> = Vec::new();
    while let Some(change) = cm.poll_journal() {
        match change {
            JournalChange::Add(notice) => journal.push(notice),
            JournalChange::Remove(id) => journal.retain(|notice| notice.id != id),
        }
    }
    journal
}

#[test]
fn a_third_process_disconnects_for_one_that_died() {
    let (mut net, a, b) = Net::established();
    let journal = journal_of(&mut net.cm[B]);
    assert_eq!(journal.len(), 1);
    assert_eq!((journal[0].id, journal[0].src, journal[0].dst), (b, net.gid[B], net.gid[A]));
    // B has died; another process of its host has its journal.
    net.cm[B] = Cm::new(CmConfig::new(9, 1, 0x0200_0aff_fe00_0002, PathMtu::M4096));
    net.cm[B].send_notice(net.now, journal[0]);
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
    let journal = journal_of(&mut net.cm[A]);
    assert_eq!((journal.len(), journal[0].id, journal[0].remote_id), (1, a, 0));
    net.accept(b);
    // A has died before the REP arrived; another process of its host has its journal.
    net.cm[A] = Cm::new(CmConfig::new(9, 1, 0x0200_0aff_fe00_0001, PathMtu::M4096));
    net.cm[A].send_notice(net.now, journal[0]);
    let before = net.now;
    let withdrawn = loop {
        if let Some(event) = net.event(B) {
            break event;
        }
        assert!(net.step(), "B gets an event");
    };
    assert_eq!(net.now, before, "at once");
    assert_eq!(withdrawn.id, b);
    let CmEventKind::Rejected(rejection) = withdrawn.kind else { panic!("{:?}", withdrawn.kind) };
    assert_eq!(rejection.reason, RejReason::TIMEOUT);
    assert_eq!(net.cm[B].state(b), Some(ConnState::Idle));
}

#[test]
fn a_request_that_is_refused_leaves_the_journal() {
    let (mut net, a, b) = Net::requested();
    net.cm[B].reject(b, RejReason::CONSUMER_DEFINED, &[]).unwrap();
    net.run();
    assert!(journal_of(&mut net.cm[A]).is_empty(), "{a:?}");
}

#[test]
fn a_disconnect_notice_is_sent_three_times_and_no_more() {
    let (mut net, a, b) = Net::established();
    let journal = journal_of(&mut net.cm[B]);
    net.cm[B].destroy(net.now, b);
    net.run();
    net.event(A).unwrap();
    net.cm[A].drep(net.now, a, &[]).unwrap();
    net.run();
    net.log.clear();
    journal_of(&mut net.cm[B]);
    let start = net.now.0 / 1_000_000;
    // The DREPs go to the process that died.
    net.lose.push((A, "DREP", 3));
    net.cm[B].send_notice(net.now, journal[0]);
    assert_eq!(net.cm[B].poll_journal(), None, "the sending process may die, too");
    while net.step() {}
    assert_eq!(net.cm[B].poll_journal(), Some(JournalChange::Remove(journal[0].id)));
    let sent: Vec<_> = net.log.iter().filter(|(_, node, name)| (*node, *name) == (B, "DREQ")).collect();
    assert_eq!(sent.iter().map(|(ms, ..)| ms - start).collect::<Vec<_>>(), [0, 1000, 2000]);
    assert!(matches!(net.event(A).unwrap().kind, CmEventKind::TimewaitExit));
    assert!(net.event(A).is_none(), "the peer gets no further event");
}

#[test]
fn the_journal_has_connections_that_the_peer_may_count_as_established() {
    let (mut net, a, b) = Net::requested();
    assert_eq!(journal_of(&mut net.cm[A]).len(), 1, "the request");
    assert!(journal_of(&mut net.cm[B]).is_empty());
    net.accept(b);
    assert_eq!(journal_of(&mut net.cm[B]).len(), 1, "the REP may arrive");
    net.run();
    net.event(A).unwrap();
    assert!(journal_of(&mut net.cm[A]).is_empty(), "no RTU was sent");
    net.cm[A].rtu(a, &[]).unwrap();
    assert_eq!(net.cm[A].poll_journal(), Some(JournalChange::Remove(a)));
    let change = net.cm[A].poll_journal();
    assert!(matches!(change, Some(JournalChange::Add(DisconnectNotice { remote_id: 1.., .. }))));
    net.run();
    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
    assert_eq!(net.cm[B].poll_journal(), None, "nothing new");
    net.cm[A].disconnect(net.now, a, &[]).unwrap();
    net.run();
    assert_eq!(net.cm[A].poll_journal(), None, "the DREQ may be lost");
    net.event(B).unwrap();
    net.cm[B].drep(net.now, b, &[]).unwrap();
    assert_eq!(net.cm[B].poll_journal(), Some(JournalChange::Remove(b)));
    net.run();
    assert_eq!(net.cm[A].poll_journal(), Some(JournalChange::Remove(a)));
}

#[test]
fn a_destroyed_connection_leaves_the_journal() {
    let (mut net, _, b) = Net::established();
    net.cm[B].destroy(net.now, b);
    assert!(journal_of(&mut net.cm[B]).is_empty());
}
