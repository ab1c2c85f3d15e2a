//! Two devices without engines: each has a GID table, and an outbox for MADs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use transport::cm::{JournalChange, MadBytes, MadOutcome};
use transport::{AsyncEventKind, Instant, QpAttrMask, QpState};
use wire::{Gid, Qpn};

use super::host::{Claim, GsiLink, Host};
use super::place::Place;
use super::port::SharedPorts;
use super::resolve::Path;
use super::*;
use crate::engine::outbox::Mad;
use crate::gid::{GidRow, GidTable};
use crate::registry::{ServiceAddress, ServiceRequest};
use crate::runtime::Runtime;
use sys::{PollFd, Route, poll};

mod bind;
mod end;
mod pace;
mod removed;
mod resolve;

struct TestHost {
    driver: CmDriver,
    gids: Arc<GidTable>,
    now_ms: Arc<AtomicU64>,
    outbox: Mutex<Vec<(Gid, Gid, MadBytes)>>,
    /// Time that the next MAD takes to be sent; 0 when its sending has begun.
    next_send_ms: AtomicU64,
    claims: Arc<Mutex<Vec<(u16, u16, ServiceAddress)>>>,
    /// Neighbours that are missing in the kernel's table, and how often the kernel had to solicit one.
    unresolved: Mutex<Vec<IpAddr>>,
    solicited: AtomicU64,
}

struct TestClaim(Arc<Mutex<Vec<(u16, u16, ServiceAddress)>>>, (u16, u16, ServiceAddress));

impl Drop for TestClaim {
    fn drop(&mut self) {
        self.0.lock().unwrap().retain(|claim| *claim != self.1);
    }
}

impl GsiLink for TestHost {
    fn send_mad(&self, src: Gid, dst: Gid, mad: &MadBytes) {
        thread::sleep(Duration::from_millis(self.next_send_ms.swap(0, Ordering::Relaxed)));
        self.outbox.lock().unwrap().push((src, dst, *mad));
    }
    fn update_journal(&self, _change: JournalChange) {}
    fn tell_silent_host(&self, _src: Gid, _dst: Gid) {}
}

impl Host for TestHost {
    fn driver(&self) -> &CmDriver {
        &self.driver
    }
    fn link(&self) -> &dyn GsiLink {
        self
    }
    fn now(&self) -> Instant {
        Instant(self.now_ms.load(Ordering::Relaxed) * 1_000_000)
    }
    fn wake_before(&self, _deadline: Option<Instant>) {}
    fn gids(&self) -> Arc<GidTable> {
        Arc::clone(&self.gids)
    }
    fn claim(&self, port_space: u16, port: u16, request: ServiceRequest) -> std::io::Result<Claim> {
        let claim = (port_space, port, request.address);
        let mut claims = self.claims.lock().unwrap();
        if claims.contains(&claim) {
            return Err(std::io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        let mut others = claims.iter().filter(|other| (other.0, other.1) == (port_space, port));
        if others.any(|other| request.collides(other.2)) {
            return Err(std::io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        }
        claims.push(claim);
        Ok(Box::new(TestClaim(Arc::clone(&self.claims), claim)))
    }
    fn take_mad(&self, _mad: Mad) {}
    fn route(&self, dst: IpAddr, src: Option<IpAddr>, _oif: u32) -> std::io::Result<Route> {
        let IpAddr::V4(v4) = dst else { return Err(std::io::Error::from_raw_os_error(libc::ENETUNREACH)) };
        let (oif, prefsrc, is_local) = match v4.octets() {
            [10, 0, 0, _] => (2, self.gids.entries[0].gid.ip(), false),
            // An address of another interface of this host.
            [10, 1, 0, 1] => (1, v4.into(), true),
            [10, 1, 0, _] => (3, Ipv4Addr::new(10, 1, 0, 1).into(), false),
            _ => return Err(std::io::Error::from_raw_os_error(libc::ENETUNREACH)),
        };
        if src.is_some_and(|src| src.is_loopback()) && !is_local {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Route { oif, prefsrc: Some(prefsrc), gateway: None, is_local })
    }
    fn knows_neighbour(&self, path: &Path) -> bool {
        assert_eq!(path.ifindex, 2, "the device's interface");
        !self.unresolved.lock().unwrap().contains(&path.next_hop)
    }
    fn solicit_neighbour(&self, _path: &Path) {
        self.solicited.fetch_add(1, Ordering::Relaxed);
    }
}

struct World {
    hosts: [Arc<TestHost>; 2],
    now_ms: Arc<AtomicU64>,
    channels: [EventChannel; 2],
}

const A: usize = 0;
const B: usize = 1;
const PORT: u16 = 7174;
const RESOLVE_MAX: Duration = Duration::from_secs(2);

impl World {
    fn new() -> Self {
        let now_ms = Arc::new(AtomicU64::new(0));
        let hosts = [1u8, 2].map(|n| {
            let gids = Arc::new(GidTable {
                ifindex: 2,
                entries: vec![GidRow { gid: Ipv4Addr::new(10, 0, 0, n).into(), ifindex: 2 }],
                loopback: [GidRow { gid: Ipv4Addr::LOCALHOST.into(), ifindex: 1 }, GidRow::EMPTY],
                node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, n],
                bonds: vec![(2, [2, 0, 0, 0, 0, n])],
                ..GidTable::without_addresses()
            });
            Arc::new(TestHost {
                driver: CmDriver::new(n.into(), &gids, Runtime::Kernel, 0, SharedPorts::default()),
                gids,
                now_ms: Arc::clone(&now_ms),
                outbox: Mutex::default(),
                next_send_ms: AtomicU64::new(0),
                claims: Arc::default(),
                unresolved: Mutex::default(),
                solicited: AtomicU64::new(0),
            })
        });
        Self { hosts, now_ms, channels: [EventChannel::new().unwrap(), EventChannel::new().unwrap()] }
    }

    fn id(&self, side: usize, port_space: PortSpace, cookie: u64) -> Id {
        Id::with_place(
            None,
            Some(Place { host: Arc::clone(&self.hosts[side]) as Arc<dyn Host>, context: None }),
            &self.channels[side],
            (port_space, port_space.qp_type()),
            cookie,
        )
    }

    fn listener(&self, port_space: PortSpace) -> Id {
        let id = self.id(B, port_space, 100);
        id.bind_addr(any(PORT)).unwrap();
        id.listen(0).unwrap();
        id
    }

    /// An identifier at A that is ready to connect.
    fn resolved(&self, port_space: PortSpace) -> Id {
        let id = self.id(A, port_space, 7);
        id.resolve_addr(None, at(2, PORT), RESOLVE_MAX).unwrap();
        assert_eq!(self.event(A).kind, CmEventKind::AddrResolved);
        id.resolve_route().unwrap();
        assert_eq!(self.event(A).kind, CmEventKind::RouteResolved);
        id
    }

    /// A connection between two applications that own their QPs; also returns the listener.
    fn established(&self) -> (Id, Id, Id) {
        let listener = self.listener(PortSpace::Tcp);
        let client = self.resolved(PortSpace::Tcp);
        client.connect(Some(&param(0x10123)), b"hello").unwrap();
        self.run();
        let server = self.event(B).id;
        server.accept(Some(&param(0x20456)), b"welcome").unwrap();
        self.run();
        assert_eq!(self.event(A).kind, CmEventKind::ConnectResponse);
        client.establish().unwrap();
        self.run();
        assert_eq!(self.event(B).kind, CmEventKind::Established);
        (client, server, listener)
    }

    /// The addresses that identifiers at A have claimed.
    fn claimed(&self) -> Vec<ServiceAddress> {
        self.hosts[A].claims.lock().unwrap().iter().map(|claim| claim.2).collect()
    }

    fn run(&self) {
        loop {
            let mut quiet = true;
            for (side, host) in self.hosts.iter().enumerate() {
                host.driver.poll(host.now(), &**host);
                let mads = std::mem::take(&mut *host.outbox.lock().unwrap());
                let other = &self.hosts[1 - side];
                for (src, dst, mad) in mads {
                    quiet = false;
                    let to = if host.gids.index_of(&dst).is_some() { host } else { other };
                    if matches!(
                        to.driver.handle_mad(to.now(), (&mad, true), (src, dst), || {}),
                        MadOutcome::NotOurs { .. }
                    ) {
                        to.driver.reject_no_listener(to.now(), &mad, src, dst);
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn wait_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::Relaxed);
        self.run();
    }

    fn event(&self, side: usize) -> CmEvent {
        assert!(readable(self.channels[side].fd()), "no event");
        self.channels[side].get_event().unwrap()
    }

    fn assert_no_event(&self, side: usize) {
        assert!(!readable(self.channels[side].fd()));
    }
}

fn readable(fd: RawFd) -> bool {
    poll(&mut [PollFd::readable(fd)], Some(0)).unwrap() == 1
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], port))
}

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], port))
}

fn param(qpn: u32) -> ConnParam {
    ConnParam { responder_resources: 3, initiator_depth: 2, qp_num: Qpn::new(qpn), ..ConnParam::default() }
}

fn number<T: std::fmt::Debug>(result: Result<T, VerbsError>) -> i32 {
    result.unwrap_err().errno()
}

#[test]
fn a_connection_begins_and_ends_with_events_in_the_documented_order() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    assert!(listener.path().is_none(), "the device of a wildcard address is not known");
    let client = world.resolved(PortSpace::Tcp);
    assert_eq!(client.local_addr().unwrap().ip(), IpAddr::from([10, 0, 0, 1]));
    assert_ne!(client.local_addr().unwrap().port(), 0);
    client.connect(Some(&param(0x10123)), b"hello").unwrap();
    world.run();

    let request = world.event(B);
    assert_eq!(request.kind, CmEventKind::ConnectRequest);
    assert_eq!((request.listen_id.as_ref(), request.id.cookie()), (Some(&listener), 100));
    assert_eq!((request.private_data.len(), &request.private_data[..6]), (56, &b"hello\0"[..]));
    let Param::Conn(offered) = request.param else { panic!() };
    assert_eq!(
        (offered.responder_resources, offered.initiator_depth),
        (2, 3),
        "the peer's depths are swapped"
    );
    assert_eq!(offered.qp_num, Qpn::new(0x10123));
    let server = request.id.clone();
    assert_eq!(server.peer_addr(), client.local_addr());
    assert_eq!(server.local_addr(), client.peer_addr());
    assert_eq!(server.path().unwrap().dgid, client.path().unwrap().sgid);

    server.accept(Some(&param(0x20456)), b"welcome").unwrap();
    world.run();
    let response = world.event(A);
    assert_eq!((response.kind, response.private_data.len()), (CmEventKind::ConnectResponse, 196));
    let (attr, mask) = client.init_qp_attr(QpState::Rtr).unwrap();
    assert_eq!((mask.bits(), attr.dest_qp, attr.av.sgid_index), (0x12_9181, Qpn::new(0x20456), 0));
    client.establish().unwrap();
    world.run();
    let established = world.event(B);
    assert_eq!((established.kind, established.private_data.len()), (CmEventKind::Established, 0));
    assert_eq!(established.id, server);

    client.disconnect().unwrap();
    world.run();
    world.assert_no_event(A);
    assert_eq!(world.event(B).kind, CmEventKind::Disconnected);
    server.disconnect().unwrap();
    world.run();
    let disconnected = world.event(A);
    assert_eq!((disconnected.kind, disconnected.status), (CmEventKind::Disconnected, 0));
    world.assert_no_event(B);
    world.wait_ms(512);
    assert_eq!(world.event(A).kind, CmEventKind::TimewaitExit);
    assert_eq!(world.event(B).kind, CmEventKind::TimewaitExit);
}

#[test]
fn qp_attributes_of_both_ends_match() {
    let world = World::new();
    let (client, server, _listener) = world.established();
    let rtr = |id: &Id| id.init_qp_attr(QpState::Rtr).unwrap().0;
    let rts = |id: &Id| id.init_qp_attr(QpState::Rts).unwrap().0;
    assert_eq!(rtr(&client).rq_psn, rts(&server).sq_psn);
    assert_eq!(rtr(&server).rq_psn, rts(&client).sq_psn);
    assert_eq!(
        (rtr(&server).max_dest_rd_atomic, rts(&server).max_rd_atomic),
        (3, 2),
        "the depths that the server accepted"
    );
    assert_eq!((rtr(&client).max_dest_rd_atomic, rts(&client).max_rd_atomic), (2, 3));
    assert!(client.init_qp_attr(QpState::Init).unwrap().1.contains(QpAttrMask::ACCESS_FLAGS));
    assert_eq!(number(client.init_qp_attr(QpState::Sqd)), libc::EINVAL);
}

#[test]
fn a_refusal_reports_its_reason_and_data() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Tcp);
    let client = world.resolved(PortSpace::Tcp);
    client.connect(None, b"").unwrap();
    world.run();
    world.event(B).id.reject(b"no").unwrap();
    world.run();
    let event = world.event(A);
    assert_eq!((event.kind, event.status, event.private_data.len()), (CmEventKind::Rejected, 28, 148));
    assert_eq!(&event.private_data[..3], b"no\0");
    assert_eq!(event.failure(), None, "the peer's program tells this one why");
    assert_eq!(number(client.connect(None, b"")), libc::EINVAL, "an id connects once");
    assert!(client.disconnect().is_ok());
}

#[test]
fn a_refusal_without_data_is_explained() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Tcp);
    let client = world.resolved(PortSpace::Tcp);
    client.connect(None, b"").unwrap();
    world.run();
    world.event(B).id.reject(b"").unwrap();
    world.run();
    let why = world.event(A).failure().expect("a failure");
    assert!(
        why.ends_with("(RDMA_CM_EVENT_REJECTED, 28): the listening program rejected it, or ended"),
        "{why}"
    );
}

#[test]
fn a_port_without_listener_rejects_and_a_silent_host_is_unreachable() {
    let world = World::new();
    let client = world.resolved(PortSpace::Tcp);
    client.connect(None, b"").unwrap();
    world.run();
    world.assert_no_event(A);
    world.wait_ms(50);
    let event = world.event(A);
    assert_eq!((event.kind, event.status), (CmEventKind::Rejected, 8));
    let lost = world.id(A, PortSpace::Tcp, 0);
    lost.resolve_addr(None, at(9, PORT), RESOLVE_MAX).unwrap();
    lost.resolve_route().unwrap();
    drop((world.event(A), world.event(A)));
    lost.connect(None, b"").unwrap();
    for _ in 0..16 {
        world.hosts[A].outbox.lock().unwrap().clear();
        world.now_ms.fetch_add(4608, Ordering::Relaxed);
        world.hosts[A].driver.poll(world.hosts[A].now(), &*world.hosts[A]);
    }
    let event = world.event(A);
    assert_eq!((event.kind, event.status), (CmEventKind::Unreachable, -libc::ETIMEDOUT));
}

#[test]
fn destroying_a_listener_rejects_unread_requests() {
    let world = World::new();
    let listener = world.listener(PortSpace::Tcp);
    let client = world.resolved(PortSpace::Tcp);
    client.connect(None, b"").unwrap();
    world.run();
    assert!(readable(world.channels[B].fd()));
    listener.destroy();
    world.assert_no_event(B);
    world.run();
    assert_eq!(world.event(A).status, 28);
    assert!(world.hosts[B].claims.lock().unwrap().is_empty());
    assert_eq!(world.listener(PortSpace::Tcp).local_addr(), Some(any(PORT)), "the port is free again");
}

#[test]
fn dropping_the_last_handle_destroys_the_identifier() {
    let world = World::new();
    let (client, server, listener) = world.established();
    drop(client);
    world.run();
    assert_eq!(world.event(B).kind, CmEventKind::Disconnected);
    drop((server, listener));
    world.run();
    for host in &world.hosts {
        host.driver.with(|state| {
            assert!(state.cm.is_empty() && state.ids.is_empty() && state.listeners.is_empty());
        });
    }
}

#[test]
fn a_child_gets_no_events_until_it_is_accepted() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Tcp);
    let client = world.resolved(PortSpace::Tcp);
    client.connect(None, b"").unwrap();
    world.run();
    let server = world.event(B).id;
    client.destroy();
    world.run();
    world.assert_no_event(B);
    assert_eq!(number(server.accept(None, b"")), libc::EINVAL);
}

#[test]
fn destroy_waits_until_events_are_acknowledged() {
    let world = World::new();
    let client = world.id(A, PortSpace::Tcp, 0);
    client.resolve_addr(None, at(2, PORT), RESOLVE_MAX).unwrap();
    let event = world.event(A);
    let other = client.clone();
    let destroyer = thread::spawn(move || other.destroy());
    thread::sleep(Duration::from_millis(20));
    assert!(!destroyer.is_finished());
    drop(event);
    destroyer.join().unwrap();
    assert_eq!(number(client.resolve_route()), libc::EINVAL);
}

#[test]
fn migrating_moves_unread_events() {
    let world = World::new();
    let client = world.id(A, PortSpace::Tcp, 0);
    client.resolve_addr(None, at(2, PORT), RESOLVE_MAX).unwrap();
    let channel = EventChannel::new().unwrap();
    client.migrate(&channel).unwrap();
    world.assert_no_event(A);
    assert_eq!(channel.get_event().unwrap().kind, CmEventKind::AddrResolved);
    client.resolve_route().unwrap();
    assert_eq!(channel.get_event().unwrap().kind, CmEventKind::RouteResolved);
}

#[test]
fn the_first_packet_or_notify_establishes_a_connection_with_a_late_rtu() {
    for notify in [false, true] {
        let world = World::new();
        let _listener = world.listener(PortSpace::Tcp);
        let client = world.resolved(PortSpace::Tcp);
        client.connect(None, b"").unwrap();
        world.run();
        let server = world.event(B).id;
        assert_eq!(number(server.notify(AsyncEventKind::CommEst)), libc::EINVAL, "not accepted yet");
        server.accept(Some(&param(0x20456)), b"").unwrap();
        if notify {
            server.notify(AsyncEventKind::CommEst).unwrap();
        } else {
            world.hosts[B].driver.qp_established(Qpn::new(0x20456));
            world.run();
        }
        assert_eq!(world.event(B).kind, CmEventKind::Established);
    }
}

#[test]
fn a_datagram_service_is_resolved_with_one_request() {
    let world = World::new();
    let _listener = world.listener(PortSpace::Udp);
    let client = world.resolved(PortSpace::Udp);
    client.connect(None, b"request").unwrap();
    world.run();
    let request = world.event(B);
    assert_eq!((request.kind, request.private_data.len()), (CmEventKind::ConnectRequest, 180));
    assert!(matches!(request.param, Param::Ud(_)));
    request.id.accept(Some(&param(0x20789)), b"reply").unwrap();
    world.run();
    let event = world.event(A);
    assert_eq!((event.kind, event.private_data.len()), (CmEventKind::Established, 136));
    let Param::Ud(ud) = event.param else { panic!() };
    assert_eq!((ud.qp_num, ud.q_key, ud.av.dgid), (Qpn::new(0x20789), UDP_QKEY, at(2, 0).ip().into()));
    world.assert_no_event(B);
    let again = world.resolved(PortSpace::Udp);
    again.connect(None, b"").unwrap();
    world.run();
    world.event(B).id.reject(b"").unwrap();
    world.run();
    let event = world.event(A);
    assert_eq!((event.kind, event.status), (CmEventKind::Unreachable, 2));
}

#[test]
fn loopback_connects_identifiers_of_one_host() {
    let world = World::new();
    let listener = world.id(A, PortSpace::Tcp, 0);
    listener.bind_addr(any(PORT)).unwrap();
    listener.listen(1).unwrap();
    let client = world.id(A, PortSpace::Tcp, 0);
    client.resolve_addr(None, SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)), RESOLVE_MAX).unwrap();
    client.resolve_route().unwrap();
    drop((world.event(A), world.event(A)));
    client.connect(None, b"").unwrap();
    world.run();
    let request = world.event(A);
    assert_eq!(request.kind, CmEventKind::ConnectRequest);
    assert_eq!(request.id.path().unwrap().sgid_index, 254, "behind the table");
}

#[test]
fn calls_in_the_wrong_state_return_einval() {
    let world = World::new();
    let id = world.id(A, PortSpace::Tcp, 0);
    for result in
        [id.resolve_route(), id.connect(None, b""), id.accept(None, b""), id.reject(b""), id.disconnect()]
    {
        assert_eq!(number(result), libc::EINVAL);
    }
    let id = world.resolved(PortSpace::Tcp);
    assert_eq!(number(id.connect(None, &[0; 57])), libc::EINVAL);
    let deep = ConnParam { initiator_depth: 200, ..ConnParam::default() };
    assert_eq!(number(id.connect(Some(&deep), b"")), libc::EINVAL);
    assert_eq!(number(id.listen(1)), libc::EINVAL);
    id.connect(None, &[0; 56]).unwrap();
    assert_eq!(number(id.establish()), libc::EINVAL);
}

#[test]
fn options_are_checked_for_length_and_state() {
    let world = World::new();
    let id = world.id(A, PortSpace::Tcp, 0);
    id.set_option(0, 0, &[0x20]).unwrap();
    assert_eq!(number(id.set_option(0, 0, &[0; 4])), libc::EINVAL);
    id.set_option(0, 1, &1i32.to_ne_bytes()).unwrap();
    id.set_option(0, 3, &[14]).unwrap();
    assert_eq!(number(id.set_option(0, 9, &[1])), libc::ENOSYS);
    assert_eq!(number(id.set_option(1, 1, &[0; 72])), libc::EINVAL, "the address is not resolved yet");
    id.resolve_addr(None, at(2, PORT), RESOLVE_MAX).unwrap();
    id.set_option(1, 1, &[0; 72]).unwrap();
    drop(world.event(A));
    assert_eq!(world.event(A).kind, CmEventKind::RouteResolved);
    assert_eq!(id.path().unwrap().traffic_class, 0x20);
    id.connect(None, b"").unwrap();
    let udp = world.id(A, PortSpace::Udp, 0);
    assert_eq!(number(udp.set_option(0, 3, &[14])), libc::EINVAL);
}

#[test]
fn identifiers_with_an_address_of_a_bond_learn_of_a_failover_to_another_mac() {
    let world = World::new();
    let (client, server, wildcard) = world.established();
    let bound = world.id(B, PortSpace::Tcp, 8);
    bound.bind_addr(at(2, PORT + 1)).unwrap();
    let fail_over = |mac: [u8; 6]| {
        let TestHost { driver, gids, .. } = &*world.hosts[B];
        driver.tell_failover(&GidTable { bonds: vec![(2, mac)], ..(**gids).clone() });
    };
    fail_over([2, 0, 0, 0, 0, 9]);
    let mut told = [world.event(B), world.event(B)].map(|event| (event.kind, event.id.cookie()));
    told.sort_by_key(|(_, cookie)| *cookie);
    let change = CmEventKind::AddrChange;
    assert_eq!(told, [(change, bound.cookie()), (change, server.cookie())]);
    // Back to the MAC that they know.
    fail_over([2, 0, 0, 0, 0, 2]);
    world.assert_no_event(B);
    // They can be used as before.
    bound.listen(1).unwrap();
    client.disconnect().unwrap();
    world.run();
    assert_eq!(world.event(B).kind, CmEventKind::Disconnected);
    [bound, server, wildcard].iter().for_each(Id::destroy);
}
