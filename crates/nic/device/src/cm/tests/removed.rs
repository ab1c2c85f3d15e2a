//! Identifiers of a device that is removed, in the moment of its removal too.

use super::super::place::{Places, Wanted};
use super::*;

#[test]
fn each_identifier_of_a_removed_device_learns_of_it_once() {
    let world = World::new();
    let (client, server, wildcard) = world.established();
    let bound = world.id(B, PortSpace::Tcp, 8);
    bound.bind_addr(at(2, PORT + 1)).unwrap();
    let removed = |side: usize, count: usize| {
        (0..count).map(|_| world.event(side)).filter(|event| event.kind == CmEventKind::DeviceRemoval).count()
    };
    for _ in 0..2 {
        world.hosts[B].driver.lose_device();
    }
    assert_eq!(removed(B, 2), 2, "the end of the connection, and the bound identifier");
    world.assert_no_event(B);
    assert_eq!(number(bound.listen(1)), libc::EINVAL);
    assert_eq!(number(server.reject(&[])), libc::EINVAL);
    // What the peer does afterwards raises no event.
    client.disconnect().unwrap();
    world.run();
    world.assert_no_event(B);
    [bound, server, wildcard].iter().for_each(Id::destroy);
}

#[test]
fn a_listener_that_has_lost_its_device_leaves_its_address_to_others() {
    let world = World::new();
    let lost = world.id(B, PortSpace::Tcp, 8);
    lost.bind_addr(at(2, PORT)).unwrap();
    lost.listen(0).unwrap();
    world.hosts[B].driver.lose_device();
    assert_eq!(world.event(B).kind, CmEventKind::DeviceRemoval);
    let client = world.resolved(PortSpace::Tcp);
    client.connect(None, b"").unwrap();
    world.run();
    // The client asks once more, for a listener that is late.
    world.wait_ms(60);
    let rejected = world.event(A);
    assert_eq!((rejected.kind, rejected.status), (CmEventKind::Rejected, 8), "no listener");
    // The kernel's identifier is destroyed after the event, and its port is free (ucma.c ucma_close_id).
    assert!(world.hosts[B].claims.lock().unwrap().is_empty());
    assert_eq!(lost.local_addr(), Some(at(2, PORT)));
    lost.destroy();
}

/// Two devices, of which the second is removed when an identifier has chosen it.
struct Vanishing([Arc<TestHost>; 2]);

impl Places for Vanishing {
    fn find(&self, wanted: &mut Wanted<'_>) -> Result<Option<Place>, VerbsError> {
        let Some(host) = self.0.iter().find(|host| wanted(&host.gids)) else { return Ok(None) };
        if Arc::ptr_eq(host, &self.0[B]) {
            host.driver.lose_device();
        }
        Ok(Some(Place { host: Arc::clone(host) as Arc<dyn Host>, context: None }))
    }

    fn route(&self, dst: IpAddr, src: Option<IpAddr>, oif: u32) -> std::io::Result<Route> {
        self.0[A].route(dst, src, oif)
    }
}

impl World {
    fn id_of_vanishing(&self) -> Id {
        let places = Some(Box::new(Vanishing(self.hosts.clone())) as Box<dyn Places>);
        Id::with_place(places, None, &self.channels[A], (PortSpace::Tcp, PortSpace::Tcp.qp_type()), 7)
    }
}

#[test]
fn an_identifier_that_chose_a_device_in_the_moment_of_its_removal_learns_of_it() {
    let world = World::new();
    let id = world.id_of_vanishing();
    id.bind_addr(at(2, PORT)).unwrap();
    assert_eq!(world.event(A).kind, CmEventKind::DeviceRemoval);
    let id = world.id_of_vanishing();
    id.resolve_addr(Some(at(2, 0)), at(1, PORT), RESOLVE_MAX).unwrap();
    let kinds = [world.event(A), world.event(A)].map(|event| event.kind);
    assert_eq!(kinds, [CmEventKind::AddrResolved, CmEventKind::DeviceRemoval]);
    world.assert_no_event(A);
}

#[test]
fn a_wildcard_address_is_not_listened_for_at_a_device_that_is_removed_in_that_moment() {
    let world = World::new();
    let id = world.id_of_vanishing();
    id.bind_addr(any(PORT)).unwrap();
    id.listen(0).unwrap();
    let [first, second] = &world.hosts;
    let listeners = |host: &TestHost| host.driver.with(|driver| driver.listeners.len());
    assert_eq!((listeners(first), listeners(second)), (1, 0));
    let service = PortSpace::Tcp.service(PORT);
    let dst = Gid::from(at(2, PORT).ip());
    assert!(matches!(first.driver.host_of_request(service, (dst, None)), Some(RequestHost::Opening)));
    while Arc::strong_count(&id.0) > 1 {
        // The thread that opens the device has not ended.
        thread::yield_now();
    }
    assert_eq!((listeners(first), listeners(second)), (1, 0));
    world.assert_no_event(A);
}
