//! Resolving a destination: which addresses are accepted; waiting for the neighbour.

use super::*;

/// Returns an identifier at A that waits for the neighbour 10.0.0.9.
fn waiting(world: &World) -> Id {
    world.hosts[A].unresolved.lock().unwrap().push(at(9, PORT).ip());
    let id = world.id(A, PortSpace::Tcp, 7);
    id.resolve_addr(None, at(9, PORT), RESOLVE_MAX).unwrap();
    world.assert_no_event(A);
    id
}

fn solicited(world: &World) -> u64 {
    world.hosts[A].solicited.load(Ordering::Relaxed)
}

#[test]
fn an_address_is_resolved_when_its_neighbour_is_known() {
    let world = World::new();
    let id = waiting(&world);
    assert_eq!(number(id.resolve_route()), libc::EINVAL);
    assert_eq!(number(id.resolve_addr(None, at(2, PORT), RESOLVE_MAX)), libc::EINVAL);
    world.wait_ms(100);
    world.assert_no_event(A);
    world.hosts[A].unresolved.lock().unwrap().clear();
    world.wait_ms(50);
    assert_eq!(world.event(A).kind, CmEventKind::AddrResolved);
    id.resolve_route().unwrap();
    assert_eq!(solicited(&world), 1);
}

#[test]
fn an_address_with_a_silent_neighbour_is_an_error_after_the_timeout() {
    let world = World::new();
    let id = waiting(&world);
    for _ in 0..19 {
        world.wait_ms(100);
    }
    world.assert_no_event(A);
    assert_eq!(solicited(&world), 2, "solicited once per second");
    world.wait_ms(100);
    let event = world.event(A);
    assert_eq!((event.kind, event.status), (CmEventKind::AddrError, -libc::ETIMEDOUT));
    let why = event.failure().expect("a failure");
    assert!(
        why.starts_with(
            "no connection to 10.0.0.9 port 7174 (RDMA_CM_EVENT_ADDR_ERROR, -110): no answer from "
        ),
        "{why}"
    );
    // A destination with a known neighbour is resolved.
    id.resolve_addr(None, at(2, PORT), RESOLVE_MAX).unwrap();
    assert_eq!(world.event(A).kind, CmEventKind::AddrResolved);
    world.wait_ms(5000);
    world.assert_no_event(A);
}

#[test]
fn a_destroyed_identifier_leaves_no_query_behind() {
    let world = World::new();
    let (first, second) = (waiting(&world), waiting(&world));
    first.destroy();
    drop(second);
    world.wait_ms(5000);
    world.assert_no_event(A);
    assert_eq!(world.hosts[A].driver.poll_timeout(), None);
}

#[test]
fn only_addresses_of_the_device_are_accepted() {
    let world = World::new();
    let bind = |ip: [u8; 4], port| world.id(A, PortSpace::Tcp, 0).bind_addr(SocketAddr::from((ip, port)));
    assert_eq!(number(bind([10, 1, 0, 1], 0)), libc::ENODEV, "an address of another device of this host");
    assert_eq!(number(bind([10, 0, 0, 77], 0)), libc::EADDRNOTAVAIL);
    let resolve = |ip: [u8; 4]| {
        let id = world.id(A, PortSpace::Tcp, 0);
        id.resolve_addr(None, SocketAddr::from((ip, PORT)), RESOLVE_MAX).map(|()| id)
    };
    assert_eq!(number(resolve([192, 0, 2, 1])), libc::ENETUNREACH);
    let _id = resolve([10, 1, 0, 9]).unwrap();
    let event = world.event(A);
    assert_eq!((event.kind, event.status), (CmEventKind::AddrError, -libc::ENODEV));
    let why = event.failure().expect("a failure");
    assert!(
        why.contains("10.1.0.9")
            && why.contains("(RDMA_CM_EVENT_ADDR_ERROR, -19): no device has an address "),
        "{why}"
    );
}
