//! Connection requests are delivered one at a time.

use std::ops::Range;

use super::super::pace::Pace;
use super::*;

/// Makes one request to B from each of these QPs; returns the clients.
fn requests(world: &World, qpns: Range<u32>) -> Vec<Id> {
    let request = |qpn| {
        let client = world.resolved(PortSpace::Tcp);
        client.connect(Some(&param(qpn)), b"").unwrap();
        client
    };
    let clients = qpns.map(request).collect();
    world.run();
    clients
}

#[test]
fn a_request_is_delayed_until_the_previous_one_is_answered() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Tcp);
    let _clients = requests(&world, 100..102);
    let first = world.event(B).id;
    thread::scope(|scope| {
        let reader = scope.spawn(|| world.event(B));
        thread::sleep(Duration::from_millis(100));
        assert!(!reader.is_finished());
        first.accept(Some(&param(0x20456)), b"").unwrap();
        assert_eq!(reader.join().unwrap().kind, CmEventKind::ConnectRequest);
    });
}

#[test]
fn a_rejected_or_destroyed_request_delays_the_next_one_no_longer() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Tcp);
    let _clients = requests(&world, 100..103);
    let begun = std::time::Instant::now();
    let first = world.event(B).id;
    first.reject(b"").unwrap();
    let second = world.event(B).id;
    second.destroy();
    assert_eq!(world.event(B).kind, CmEventKind::ConnectRequest);
    assert!(begun.elapsed() < Duration::from_millis(900), "waited for its longest delay");
}

#[test]
fn a_program_that_collects_requests_is_delayed_once() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Tcp);
    let _clients = requests(&world, 100..104);
    let begun = std::time::Instant::now();
    let events: Vec<CmEvent> = (0..4).map(|_| world.event(B)).collect();
    assert!(events.iter().all(|event| event.kind == CmEventKind::ConnectRequest));
    assert!(begun.elapsed() < Duration::from_millis(1900), "three delays instead of one");
}

#[test]
fn requests_behind_a_delayed_one_do_not_fill_the_backlog() {
    let world = World::new();
    let listener = world.id(B, PortSpace::Tcp, 100);
    listener.bind_addr(any(PORT)).unwrap();
    listener.listen(1).unwrap();
    let mut clients = requests(&world, 100..101);
    let mut servers = vec![world.event(B).id];
    for qpn in 101..105 {
        // As the reader does meanwhile, see below.
        world.channels[B].admit_requests();
        clients.extend(requests(&world, qpn..qpn + 1));
    }
    for _ in 1..clients.len() {
        servers[servers.len() - 1].accept(Some(&param(0x20456)), b"").unwrap();
        servers.push(world.event(B).id);
    }
    assert_eq!(servers.len(), clients.len());
}

#[test]
fn a_delayed_reader_calls_a_function_again_and_again() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Tcp);
    let _clients = requests(&world, 100..101);
    let first = world.event(B).id;
    let (pace, calls) = (Pace::default(), AtomicU64::new(0));
    pace.wait(&first.0, || panic!("no request before it"));
    pace.wait(&first.0, || {
        if calls.fetch_add(1, Ordering::Relaxed) == 2 {
            first.accept(Some(&param(0x20456)), b"").unwrap();
        }
    });
    assert_eq!(calls.into_inner(), 3, "until the request was answered");
}
