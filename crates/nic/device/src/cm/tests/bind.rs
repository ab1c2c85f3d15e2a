//! Ports of bound identifiers.

use super::*;

#[test]
fn a_bound_port_is_exclusive() {
    let world = World::new();
    let first = world.id(A, PortSpace::Tcp, 0);
    first.bind_addr(at(1, PORT)).unwrap();
    let second = world.id(A, PortSpace::Tcp, 0);
    assert_eq!(number(second.bind_addr(at(1, PORT))), libc::EADDRINUSE);
    assert_eq!(number(second.bind_addr(any(PORT))), libc::EADDRNOTAVAIL);
    second.bind_addr(any(0)).unwrap();
    assert!(second.local_addr().unwrap().port() >= 1024);
    assert_eq!(number(second.bind_addr(any(0))), libc::EINVAL, "bound already");
    drop(first);
    world.id(A, PortSpace::Tcp, 0).bind_addr(at(1, PORT)).unwrap();
}

#[test]
fn a_client_leaves_the_other_addresses_of_its_port_to_other_identifiers() {
    let mut world = World::new();
    let host = Arc::get_mut(&mut world.hosts[A]).unwrap();
    let second = GidRow { gid: Ipv4Addr::new(10, 0, 0, 3).into(), ifindex: 2 };
    Arc::get_mut(&mut host.gids).unwrap().entries.push(second);
    let client = world.id(A, PortSpace::Tcp, 0);
    client.bind_addr(any(PORT)).unwrap();
    let other = world.id(A, PortSpace::Tcp, 0);
    assert_eq!(number(other.bind_addr(at(3, PORT))), libc::EADDRNOTAVAIL);
    client.resolve_addr(None, at(2, PORT), RESOLVE_MAX).unwrap();
    assert_eq!(world.claimed(), [ServiceAddress::Gid(Ipv4Addr::new(10, 0, 0, 1).into())]);
    other.bind_addr(at(3, PORT)).unwrap();
}

#[test]
fn the_option_afonly_of_a_bound_identifier_changes_what_it_claims() {
    let world = World::new();
    let id = world.id(A, PortSpace::Tcp, 0);
    let set = |af_only: i32| id.set_option(0, 2, &af_only.to_ne_bytes());
    set(0).unwrap();
    id.bind_addr(SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
    let both = [ServiceAddress::Any6, ServiceAddress::Any4];
    assert_eq!(world.claimed(), both);
    set(1).unwrap();
    assert_eq!(world.claimed(), both[..1]);
    // Another process has the IPv4 addresses.
    let v4 = ServiceRequest { compatible: both.to_vec(), ..both[1].into() };
    let other = world.hosts[A].claim(PortSpace::Tcp as u16, PORT, v4).unwrap();
    assert!(set(0).is_err());
    drop(other);
    assert_eq!(world.claimed(), both[..1]);
    set(0).unwrap();
    assert_eq!(world.claimed(), both);
}
