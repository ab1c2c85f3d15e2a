//! Every message lost once, and every message delivered twice: the outcome is the same, only later.

use super::*;

/// Connects, disconnects, and returns when the last TIMEWAIT ends (ms). Both applications react at once.
fn life(net: &mut Net) -> u64 {
    let a = net.connect();
    net.run();
    let b = net.wait_event(B);
    assert!(matches!(b.kind, CmEventKind::ConnectRequest(_)));
    let b = b.id;
    net.accept(b);
    net.run();
    assert!(matches!(net.wait_event(A).kind, CmEventKind::ConnectResponse(_)));
    net.cm[A].rtu(a, b"").unwrap();
    net.run();
    assert!(matches!(net.wait_event(B).kind, CmEventKind::Established));
    net.cm[A].disconnect(net.now, a, b"").unwrap();
    net.run();
    assert!(matches!(net.wait_event(B).kind, CmEventKind::Disconnected { timed_out: false }));
    net.cm[B].drep(net.now, b, b"").unwrap();
    net.run();
    let mut last = None;
    for side in [A, B] {
        loop {
            match net.wait_event(side).kind {
                CmEventKind::TimewaitExit => break,
                kind => assert!(
                    side == A && matches!(kind, CmEventKind::Disconnected { timed_out: false }),
                    "{kind:?}"
                ),
            }
        }
        last = Some(net.now_ms());
    }
    last.unwrap()
}

#[test]
fn without_loss_only_timewait_takes_time() {
    assert_eq!(life(&mut Net::listening()), 512);
}

#[test]
fn each_message_may_be_lost_once() {
    for (side, name, delay) in
        [(A, "REQ", 4608), (B, "REP", 4096), (A, "RTU", 4096), (A, "DREQ", 4608), (B, "DREP", 4608)]
    {
        let mut net = Net::listening();
        net.lose.push((side, name, 1));
        assert_eq!(life(&mut net), 512 + delay, "{name} lost");
        let sent = net.log.iter().filter(|(_, s, n)| (*s, *n) == (side, name)).count();
        assert_eq!(sent, 2, "{name}");
        assert!(net.log.len() <= 7, "{:?}", net.log);
    }
}

#[test]
fn a_late_drep_comes_from_a_side_that_has_forgotten_the_connection() {
    let mut net = Net::listening();
    net.lose.push((B, "DREP", 1));
    life(&mut net);
    let dreps = net.log.iter().filter(|(_, _, n)| *n == "DREP").count();
    assert_eq!(dreps, 2, "TIMEWAIT (512 ms) is over when the DREQ is repeated (4608 ms)");
}

#[test]
fn each_message_may_arrive_twice() {
    for doubled in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
        let mut net = Net::listening();
        let (mut a, mut b) = (None, None);
        for expected in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
            match expected {
                "REQ" => a = Some(net.connect()),
                "REP" => {
                    b = Some(net.event(B).unwrap().id);
                    net.accept(b.unwrap());
                }
                "RTU" => {
                    net.event(A).unwrap();
                    net.cm[A].rtu(a.unwrap(), b"").unwrap();
                }
                "DREQ" => net.cm[A].disconnect(net.now, a.unwrap(), b"").unwrap(),
                _ => {
                    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Established));
                    assert!(matches!(net.event(B).unwrap().kind, CmEventKind::Disconnected { .. }));
                    net.cm[B].drep(net.now, b.unwrap(), b"").unwrap();
                }
            }
            net.run();
            if expected == doubled {
                let side = net.sent.last().unwrap().0;
                net.repeat_last(side, doubled);
            }
        }
        assert!(matches!(net.event(A).unwrap().kind, CmEventKind::Disconnected { .. }));
        assert!(net.event(A).is_none() && net.event(B).is_none(), "{doubled} twice");
        assert_eq!(net.states(a.unwrap(), b.unwrap()), (ConnState::Timewait, ConnState::Timewait));
    }
}

#[test]
fn heavy_loss_only_takes_longer() {
    let mut net = Net::listening();
    for (side, name) in [(A, "REQ"), (B, "REP"), (A, "RTU"), (A, "DREQ"), (B, "DREP")] {
        net.lose.push((side, name, 5));
    }
    life(&mut net);
}

#[test]
fn any_bytes_are_survived() {
    let mut net = Net::established().0;
    let base = net.sent.clone();
    let mut seed = 0x5eed_u64;
    for round in 0..20_000 {
        let mut mad = base[round % base.len()].2;
        for _ in 0..1 + round % 4 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            mad[(seed >> 40) as usize % 200] ^= (seed >> 33) as u8;
        }
        let side = round % 2;
        net.cm[side].handle_mad(net.now, &mad, net.gid[1 - side], net.gid[side]);
        while net.cm[side].poll_transmit().is_some() {}
        while net.cm[side].poll_event().is_some() {}
    }
    for cm in &mut net.cm {
        cm.handle_timeout(Instant(u64::MAX / 2));
        assert!(cm.len() < 20_000);
    }
}
