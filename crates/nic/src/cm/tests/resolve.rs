//! A destination is resolved when its neighbour has answered.

use super::*;

/// An identifier at A that waits for the neighbour 10.0.0.9.
fn waiting(world: &World) -> Id {
    world.desks[A].strangers.lock().unwrap().push(at(9, PORT).ip());
    let id = world.id(A, PortSpace::Tcp, 7);
    id.resolve_addr(None, at(9, PORT), RESOLVE_MAX).unwrap();
    world.assert_no_event(A);
    id
}

fn asked(world: &World) -> u64 {
    world.desks[A].asked.load(Ordering::Relaxed)
}

#[test]
fn the_neighbour_is_waited_for() {
    let world = World::new();
    let id = waiting(&world);
    assert_eq!(number(id.resolve_route()), libc::EINVAL);
    assert_eq!(number(id.resolve_addr(None, at(2, PORT), RESOLVE_MAX)), libc::EINVAL);
    world.wait_ms(100);
    world.assert_no_event(A);
    world.desks[A].strangers.lock().unwrap().clear();
    world.wait_ms(50);
    assert_eq!(world.event(A).kind, CmEventKind::AddrResolved);
    id.resolve_route().unwrap();
    assert_eq!(asked(&world), 1);
}

#[test]
fn a_neighbour_that_does_not_answer_in_time_is_an_error() {
    let world = World::new();
    let id = waiting(&world);
    for _ in 0..19 {
        world.wait_ms(100);
    }
    world.assert_no_event(A);
    assert_eq!(asked(&world), 2, "once a second");
    world.wait_ms(100);
    let event = world.event(A);
    assert_eq!((event.kind, event.status), (CmEventKind::AddrError, -libc::ETIMEDOUT));
    // Another one is.
    id.resolve_addr(None, at(2, PORT), RESOLVE_MAX).unwrap();
    assert_eq!(world.event(A).kind, CmEventKind::AddrResolved);
    world.wait_ms(5000);
    world.assert_no_event(A);
}

#[test]
fn an_identifier_that_is_gone_waits_for_nobody() {
    let world = World::new();
    let (first, second) = (waiting(&world), waiting(&world));
    first.destroy();
    drop(second);
    world.wait_ms(5000);
    world.assert_no_event(A);
    assert_eq!(world.desks[A].driver.poll_timeout(), None);
}
