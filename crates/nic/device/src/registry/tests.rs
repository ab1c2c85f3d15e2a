//! Domains of a few members, each with its own name and port, so that tests run in parallel.

use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use transport::cm::{CmId, DisconnectNotice, JournalChange};
use transport::numbering::{ID_SHIFT, qpn_at};
use wire::{Gid, Qpn};

use super::group::{Found, SocketSet};
use super::*;
use crate::port::{Destination, Port, RxBatch, RxQueue, RxQueues, UdpPort, UdpPortConfig};
use sys::{Credentials, PollFd, random_u64};

/// Returns a domain that no other test uses. Its port is below the kernel's ephemeral ports.
pub(crate) fn new_domain() -> DomainConfig {
    let udp_port = loop {
        let port = 20_000 + (random_u64() % 12_000) as u16;
        if UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            break port;
        }
    };
    let name = format!("roxie-test/{:016x}", random_u64());
    DomainConfig { name, udp_port, ..DomainConfig::default() }
}

/// Returns the slots with an owner, whether the owner answers or not.
fn slots_of(config: &DomainConfig) -> Vec<u16> {
    let in_use = names::GroupNames::slots_in_use(config).into_iter();
    let owned = in_use.filter(|(group, slot)| sys::connect_seqpacket(&group.slot(*slot)).is_ok());
    owned.map(|(_, slot)| slot).collect()
}

/// A copy of a received batch.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Got {
    queue: RxQueue,
    src: IpAddr,
    dst: IpAddr,
    src_port: u16,
    segment: usize,
    bytes: Vec<u8>,
}

impl Got {
    fn of(batch: &RxBatch<'_>) -> Got {
        let RxBatch { queue, src, dst, src_port, segment, bytes, .. } = *batch;
        Got { queue, src, dst, src_port, segment, bytes: bytes.to_vec() }
    }
}

/// Runs `f` while a thread serves `members`; also returns the batches that were forwarded to them.
pub(super) fn while_serving<T>(members: &[&Membership], f: impl FnOnce() -> T) -> (T, Vec<Got>) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let mut got = Vec::new();
            loop {
                // Read first, so that everything sent before the end is served.
                let is_last = stop.load(Ordering::Relaxed);
                let mut fds: Vec<_> = members.iter().map(|m| PollFd::readable(m.listener_fd())).collect();
                sys::poll(&mut fds, Some(1_000_000)).unwrap();
                for member in members {
                    member.poll_listener(&mut |batch| got.push(Got::of(batch)));
                }
                if is_last {
                    break got;
                }
            }
        });
        let result = f();
        stop.store(true, Ordering::Relaxed);
        (result, server.join().unwrap())
    })
}

/// Creates a domain and joins it `count - 1` times.
pub(super) fn members_of(config: &DomainConfig, count: usize) -> Vec<Membership> {
    let mut all = vec![Membership::join(config).unwrap()];
    while all.len() < count {
        let (new, _) = while_serving(&all.iter().collect::<Vec<_>>(), || Membership::join(config).unwrap());
        all.push(new);
    }
    all
}

fn port_of(member: &Membership) -> UdpPort {
    let config = UdpPortConfig {
        gsi: member.gsi_socket().unwrap(),
        slot: member.slot_socket().unwrap(),
        udp_port: member.udp_port(),
        ifindex: 0,
    };
    UdpPort::new(config)
}

fn receive(port: &mut UdpPort) -> Vec<Got> {
    let mut got = Vec::new();
    while port.recv(RxQueues::ALL.into(), &mut |batch| got.push(Got::of(batch))) > 0 {}
    got
}

fn qpn_of(slot: u16, place: u32) -> u32 {
    qpn_at(slot, place).value()
}

/// Returns a payload for a queue pair.
pub(super) fn for_qp(qpn: u32) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..4].copy_from_slice(&[4, 0, 0xff, 0xff]);
    // The congestion bits next to the QPN must be ignored.
    bytes[4..8].copy_from_slice(&(0xc000_0000 | qpn).to_be_bytes());
    bytes
}

/// Returns a payload for QP 1: attribute id, then the first two words of the CM body.
fn cm_message(attribute: u16, first: u32, second: u32) -> Vec<u8> {
    let mut bytes = for_qp(1);
    bytes.resize(12 + 8 + 256 + 4, 0);
    bytes[36..38].copy_from_slice(&attribute.to_be_bytes());
    bytes[44..48].copy_from_slice(&first.to_be_bytes());
    bytes[48..52].copy_from_slice(&second.to_be_bytes());
    // The QPN of a DREQ; 0 would make it a probe.
    bytes[54] = 7;
    bytes
}

#[test]
fn datagrams_are_steered_by_qpn_and_by_communication_id() {
    let config = new_domain();
    let all = members_of(&config, 2);
    let (a, b) = (&all[0], &all[1]);
    assert_ne!(a.slot(), b.slot());
    let (mut port_a, mut port_b) = (port_of(a), port_of(b));
    let id = |member: &Membership| u32::from(member.slot()) << ID_SHIFT | 0x2_3456;
    let unused = id(a) ^ 1 << ID_SHIFT;
    for local in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let sender = UdpSocket::bind((local, 0)).unwrap();
        let src_port = sender.local_addr().unwrap().port();
        let mut send = |bytes: &[u8]| {
            sender.send_to(bytes, (local, config.udp_port)).unwrap();
            let mut got = (receive(&mut port_a), receive(&mut port_b));
            let count = got.0.len() + got.1.len();
            assert!(count <= 1, "{got:?}");
            got.0.pop().map(|g| ('a', g)).or(got.1.pop().map(|g| ('b', g))).map(|(receiver, got)| {
                assert_eq!((got.src, got.dst, got.src_port), (local, local, src_port));
                assert_eq!((got.segment, got.bytes.as_slice()), (bytes.len(), bytes));
                (receiver, got.queue)
            })
        };
        for low in [0, 1, 0x234, 0xfff] {
            assert_eq!(send(&for_qp(qpn_of(a.slot(), 0x10 | low))), Some(('a', RxQueue::Slot)));
            assert_eq!(send(&for_qp(qpn_of(b.slot(), 0x10 | low))), Some(('b', RxQueue::Slot)));
        }
        // The first reader of the shared queue gets the datagram.
        let shared = Some(('a', RxQueue::Gsi));
        let mut probe = cm_message(0x15, 1, id(b));
        probe[54] = 0;
        for message in [
            cm_message(0x10, id(b), id(b)),
            cm_message(0x17, id(b), id(b)),
            cm_message(0x12, id(b), 0),
            probe,
            for_qp(0xff_ffff),
            for_qp(qpn_of(SLOTS, 0)),
            for_qp(1),
        ] {
            assert_eq!(send(&message), shared, "{message:02x?}");
        }
        // REP and all later messages carry the receiver's id in the second word, SIDR_REP in the first.
        for attribute in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
            assert_eq!(send(&cm_message(attribute, unused, id(a))), Some(('a', RxQueue::Slot)));
            assert_eq!(send(&cm_message(attribute, unused, id(b))), Some(('b', RxQueue::Slot)));
        }
        assert_eq!(send(&cm_message(0x18, id(b), unused)), Some(('b', RxQueue::Slot)));
    }
}

#[test]
fn a_burst_of_another_process_reaches_its_slot_as_one_batch() {
    let config = new_domain();
    let all = members_of(&config, 2);
    let (mut port_a, mut port_b) = (port_of(&all[0]), port_of(&all[1]));
    let key = crate::port::FlowKey {
        src: Ipv4Addr::LOCALHOST.into(),
        dst: Ipv4Addr::LOCALHOST.into(),
        dst_slot: all[1].slot(),
        tos: 0,
        ttl: 64,
        flush_icrc: wire::FlushIcrc::Iba,
        above: 0,
    };
    let flow = port_a.open_flow(&key, Destination::ThisHost).unwrap();
    let payload = for_qp(qpn_of(all[1].slot(), 0x99));
    for _ in 0..10 {
        port_a.tx_slot()[..payload.len()].copy_from_slice(&payload);
        port_a.tx_commit(flow, payload.len());
    }
    assert_eq!(port_a.flush(), 10);
    let got = receive(&mut port_b);
    assert_eq!(got.len(), 1);
    assert_eq!((got[0].bytes.len(), got[0].segment), (10 * (payload.len() + 4), payload.len() + 4));
    assert!(receive(&mut port_a).is_empty());
}

#[test]
fn batches_are_forwarded_to_slots_and_services() {
    let config = new_domain();
    let all = members_of(&config, 3);
    let [a, b, c] = &all[..] else { unreachable!() };
    let dst = Gid::from(Ipv4Addr::new(192, 0, 2, 2));
    let other = Gid::from(Ipv4Addr::new(192, 0, 2, 9));
    let bytes = [7; 20];
    let sent = RxBatch::of_test(&bytes);
    let empty_slot = (0..SLOTS).find(|s| all.iter().all(|m| m.slot() != *s)).unwrap();
    let ((), got) = while_serving(&[b], || {
        assert_eq!(a.forward(b.slot(), &sent).unwrap(), ForwardOutcome::Delivered);
        for slot in [empty_slot, a.slot(), SLOTS] {
            assert_eq!(a.forward(slot, &sent).unwrap(), ForwardOutcome::NoMember);
        }
    });
    assert_eq!(got, [Got { queue: RxQueue::Forwarded, ..Got::of(&sent) }]);

    // First no process listens; then b at any address; then c at one address.
    assert!(!a.is_alone() && !c.is_alone());
    assert!(!a.forward_to_service(0x106, 7174, dst, &sent).unwrap());
    let claim = b.claim_service(0x106, 7174, ServiceAddress::Any4.into()).unwrap();
    let ((), got) = while_serving(&[b], || {
        assert!(a.forward_to_service(0x106, 7174, dst, &sent).unwrap());
        assert!(c.forward_to_service(0x106, 7174, other, &sent).unwrap());
        assert!(!a.forward_to_service(0x106, 7175, dst, &sent).unwrap());
        assert!(!a.forward_to_service(0x111, 7174, dst, &sent).unwrap());
        assert!(
            !b.forward_to_service(0x106, 7174, dst, &sent).unwrap(),
            "a process does not forward to itself"
        );
        assert!(!a.forward_to_service(0x106, 7174, Ipv6Addr::LOCALHOST.into(), &sent).unwrap());
    });
    assert_eq!(got.len(), 2);
    drop(claim);
    assert!(!a.forward_to_service(0x106, 7174, dst, &sent).unwrap());
    // The name has a new owner: connections to the old one must not be used any more.
    let _claim = c.claim_service(0x106, 7174, ServiceAddress::Gid(dst).into()).unwrap();
    let ((), got) = while_serving(&[c], || {
        assert!(a.forward_to_service(0x106, 7174, dst, &sent).unwrap());
        assert!(!a.forward_to_service(0x106, 7174, other, &sent).unwrap());
    });
    assert_eq!(got.len(), 1);

    let (taken, got) = while_serving(&[b, c], || a.forward_to_all(&sent));
    assert_eq!((taken, got.len()), (2, 2));
}

#[test]
fn connections_end_with_the_services_they_lead_to() {
    let config = new_domain();
    let all = members_of(&config, 2);
    let [a, b] = &all[..] else { unreachable!() };
    let held = || a.server.sockets.lock().unwrap().len();
    let before = held();
    for port in 7000..7010 {
        let claim = b.claim_service(0x106, port, ServiceAddress::Any4.into()).unwrap();
        let dst = Gid::from(Ipv4Addr::new(192, 0, 2, 2));
        let (taken, _) = while_serving(&[b], || {
            a.forward_to_service(0x106, port, dst, &RxBatch::of_test(&[7; 20])).unwrap()
        });
        assert!(taken && held() == before + 1);
        drop(claim);
        a.poll_listener(&mut |_| {});
        assert_eq!(held(), before);
    }
    assert!(a.links.open.lock().unwrap().len() <= 1, "names of closed connections are removed");
}

#[test]
fn forwarding_to_all_members_retries_empty_slots_at_most_every_100_ms() {
    let config = new_domain();
    let all = members_of(&config, 2);
    let (taken, got) = while_serving(&[&all[1]], || {
        let start = sys::now_ns();
        let taken = (0..200).map(|_| all[0].forward_to_all(&RxBatch::of_test(&[1; 8]))).sum::<usize>();
        // At most once per slot and 100 ms.
        let rounds = 1 + (sys::now_ns() - start) / 100_000_000;
        assert!(all[0].connects() <= rounds * u64::from(SLOTS), "{} in {rounds} rounds", all[0].connects());
        taken
    });
    assert_eq!((taken, got.len()), (200, 200), "every batch reaches the other member");
}

#[test]
fn a_batch_of_64_kib_is_forwarded_whole() {
    let config = new_domain();
    let all = members_of(&config, 2);
    let bytes: Vec<u8> = (0..65_480_u32).map(|i| i as u8).collect();
    let sent = RxBatch { segment: 1040, ..RxBatch::of_test(&bytes) };
    let (outcome, got) = while_serving(&[&all[1]], || all[0].forward(all[1].slot(), &sent).unwrap());
    assert_eq!(outcome, ForwardOutcome::Delivered);
    assert_eq!((got[0].bytes.as_slice(), got[0].segment), (bytes.as_slice(), 1040));
}

#[test]
fn colliding_claims_are_refused_and_released_names_are_free() {
    let config = new_domain();
    let all = members_of(&config, 2);
    let (a, b) = (&all[0], &all[1]);
    let v4 = ServiceAddress::Gid(Gid::from(Ipv4Addr::new(192, 0, 2, 2)));
    let other_v4 = ServiceAddress::Gid(Gid::from(Ipv4Addr::new(192, 0, 2, 3)));
    let v6 = ServiceAddress::Gid(Gid::from(Ipv6Addr::LOCALHOST));
    let error = |m: &Membership, address: ServiceAddress| {
        m.claim_service(1, 2, address.into()).err().and_then(|e| e.raw_os_error())
    };
    let claim = a.claim_service(1, 2, v4.into()).unwrap();
    assert_eq!(error(b, v4), Some(libc::EADDRINUSE));
    assert_eq!(error(a, v4), Some(libc::EADDRINUSE));
    assert_eq!(error(b, ServiceAddress::Any4), Some(libc::EADDRNOTAVAIL));
    for free in [other_v4, v6, ServiceAddress::Any6] {
        assert_eq!(error(b, free), None);
    }
    assert!(b.claim_service(1, 3, v4.into()).is_ok() && b.claim_service(2, 2, v4.into()).is_ok());
    drop(claim);
    let _any = b.claim_service(1, 2, ServiceAddress::Any4.into()).unwrap();
    assert_eq!(error(a, v4), Some(libc::EADDRNOTAVAIL));
    assert_eq!(error(a, ServiceAddress::Any4), Some(libc::EADDRNOTAVAIL));
    assert_eq!(error(a, v6), Some(libc::EADDRNOTAVAIL), "an IPv6 address is for both families");
    let v6_only = |compatible| ServiceRequest { address: v6, af_only: true, compatible };
    assert!(a.claim_service(1, 2, v6_only(Vec::new())).is_ok());
    let compatible = vec![ServiceAddress::Any4];
    assert!(a.claim_service(1, 2, ServiceRequest { af_only: false, ..v6_only(compatible) }).is_ok());
}

#[test]
fn joining_reports_a_busy_port_and_a_member_that_does_not_answer() {
    let config = new_domain();
    let stranger = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, config.udp_port)).unwrap();
    let reason = |e: io::Error| *e.get_ref().unwrap().downcast_ref::<JoinError>().unwrap();
    let error = Membership::join(&config).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(reason(error), JoinError::PortBusy { port: config.udp_port });
    drop(stranger);
    // No thread calls the member's `poll_listener`.
    let _member = Membership::join(&config).unwrap();
    let error = Membership::join(&config).unwrap_err();
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    let member = Credentials { pid: std::process::id() as i32, uid: sys::effective_uid() };
    assert_eq!(reason(error), JoinError::Silent { port: config.udp_port, member });
}

#[test]
fn processes_that_join_at_once_get_different_slots() {
    let config = new_domain();
    let stop = AtomicBool::new(false);
    let joined = thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|_| {
                scope.spawn(|| {
                    let member = Membership::join(&config).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        let mut fds = [PollFd::readable(member.listener_fd())];
                        sys::poll(&mut fds, Some(1_000_000)).unwrap();
                        member.poll_listener(&mut |_| {});
                    }
                    member.slot()
                })
            })
            .collect();
        let start = sys::now_ns();
        let mut seen = 0;
        while seen < 6 && sys::now_ns() - start < 10_000_000_000 {
            seen = slots_of(&config).len();
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        let mut slots: Vec<_> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        slots.sort_unstable();
        slots.dedup();
        (seen, slots.len())
    });
    assert_eq!(joined, (6, 6));
    // All members have left: the domain can be created again.
    drop(Membership::join(&config).unwrap());
}

/// Prints `slot <n>` and serves until it is killed, if [`spawn_member`] started it.
#[test]
#[ignore = "helper process of other tests"]
fn member_process() {
    let Ok(text) = std::env::var("ROXIE_TEST_MEMBER") else { return };
    let (name, port) = text.split_once(' ').unwrap();
    let config =
        DomainConfig { name: name.to_owned(), udp_port: port.parse().unwrap(), ..DomainConfig::default() };
    let member = Membership::join(&config).unwrap();
    // Only one member gets the claim.
    let _claim = member.claim_service(1, 2, ServiceAddress::Any4.into());
    member.update_journal(JournalChange::Add(notice_of(member.slot()))).unwrap();
    // Number of descriptors to leave free.
    let left: Option<usize> = std::env::var("ROXIE_TEST_DESCRIPTORS").ok().and_then(|n| n.parse().ok());
    let mut files: Vec<_> = left.map(|_| fill_descriptors()).unwrap_or_default();
    files.truncate(files.len().saturating_sub(left.unwrap_or(0)));
    println!("\nslot {}", member.slot());
    let start = sys::now_ns();
    while sys::now_ns() - start < 60_000_000_000 {
        let mut fds = [PollFd::readable(member.listener_fd())];
        sys::poll(&mut fds, Some(100_000_000)).unwrap();
        member.poll_listener(&mut |_| {});
        for notice in member.take_disconnect_notices() {
            member.update_journal(JournalChange::Remove(notice.id)).unwrap();
        }
        if left.is_some() {
            println!("\nround");
        }
    }
}

/// Opens files until the process is out of descriptors.
fn fill_descriptors() -> Vec<std::fs::File> {
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

/// The notice that the member with a slot records in [`member_process`].
pub(super) fn notice_of(slot: u16) -> DisconnectNotice {
    let (src, dst) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(10, 0, (slot >> 8) as u8, slot as u8).into());
    let id = CmId(u32::from(slot) << ID_SHIFT | 1);
    DisconnectNotice { id, src, dst, remote_id: 7, remote_qpn: Qpn::new(9) }
}

/// Starts a member in another process; also returns its slot.
pub(super) fn spawn_member(config: &DomainConfig) -> (Child, u16) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "registry::tests::member_process", "--ignored", "--nocapture"])
        .env("ROXIE_TEST_MEMBER", format!("{} {}", config.name, config.udp_port))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let slot = output.lines().find_map(|line| line.unwrap().strip_prefix("slot ")?.parse().ok()).unwrap();
    (child, slot)
}

#[test]
fn a_killed_founder_leaves_a_working_domain_and_free_names() {
    let config = new_domain();
    let (mut founder, slot) = spawn_member(&config);
    let a = Membership::join(&config).unwrap();
    let mut found: Vec<_> = slots_of(&config);
    found.sort_unstable();
    let mut want = [slot, a.slot()];
    want.sort_unstable();
    assert_eq!(found, want);
    a.poll_listener(&mut |_| {});
    assert_eq!(
        a.claim_service(1, 2, ServiceAddress::Any4.into()).unwrap_err().raw_os_error(),
        Some(libc::EADDRNOTAVAIL)
    );

    founder.kill().unwrap();
    founder.wait().unwrap();
    // The kernel releases the names of a killed process a little later.
    let until = Instant::now() + Duration::from_secs(20);
    while slots_of(&config) != [a.slot()] {
        assert!(Instant::now() < until, "a killed process has its names");
        thread::yield_now();
    }
    a.poll_listener(&mut |_| {});
    let _claim = a.claim_service(1, 2, ServiceAddress::Any4.into()).unwrap();
    assert_eq!(a.forward(slot, &RxBatch::of_test(&[1; 8])).unwrap(), ForwardOutcome::NoMember);
    // Steering works as before, and no living member gets datagrams for the dead one.
    let mut port = port_of(&a);
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for qpn in [qpn_of(a.slot(), 0x20), qpn_of(slot, 0x20), 1] {
        sender.send_to(&for_qp(qpn), (Ipv4Addr::LOCALHOST, config.udp_port)).unwrap();
    }
    let queues: Vec<_> = receive(&mut port).iter().map(|g| g.queue).collect();
    assert_eq!(queues, [RxQueue::Slot, RxQueue::Gsi]);
    // New members join the survivor. The slot that was found empty just now counts as empty for a while; skip
    // it.
    let b = loop {
        let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
        if b.slot() != slot {
            break b;
        }
    };
    let (outcome, got) = while_serving(&[&b], || a.forward(b.slot(), &RxBatch::of_test(&[1; 8])).unwrap());
    assert_eq!((outcome, got.len()), (ForwardOutcome::Delivered, 1));
}

#[test]
fn the_port_is_free_when_all_members_were_killed() {
    let config = new_domain();
    let (mut child, _) = spawn_member(&config);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(slots_of(&config).is_empty());
    let member = Membership::join(&config).unwrap();
    drop(member);
    UdpSocket::bind((Ipv6Addr::UNSPECIFIED, config.udp_port)).unwrap();
}

#[test]
fn a_new_member_does_not_receive_what_was_sent_to_its_slot_before() {
    let config = new_domain();
    let a = Membership::join(&config).unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // For a slot without a page the kernel selects any socket, and that may be the shared one.
    let pages = a.server.socket_set.pages().unwrap();
    let has_socket = |slot: &u16| *slot != a.slot() && a.server.socket_set.has_slot(*slot, pages);
    for slot in (0..SLOTS).filter(has_socket) {
        let payload = for_qp(qpn_of(slot, 0x20));
        sender.send_to(&payload, (Ipv4Addr::LOCALHOST, config.udp_port)).unwrap();
    }
    let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
    assert_eq!(receive(&mut port_of(&b)).len(), 0);
}

#[test]
fn datagrams_to_unowned_slots_pin_no_memory() {
    let config = new_domain();
    let a = Membership::join(&config).unwrap();
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Sends 200 datagrams to a slot and returns how many its socket queues.
    let kept = |socket_set: &SocketSet, slot: u16| {
        let payload = [&for_qp(qpn_of(slot, 0x20))[..], &[0; 1000]].concat();
        for _ in 0..200 {
            sender.send_to(&payload, (Ipv4Addr::LOCALHOST, config.udp_port)).unwrap();
        }
        let Found::Bound(queue) = socket_set.queue_of(slot).unwrap() else { panic!("no slot {slot}") };
        sys::discard_waiting(queue.as_fd())
    };
    let ends = a.server.socket_set.ends().map(|end| end.try_clone_to_owned().unwrap());
    let (socket_set, _) = SocketSet::open(ends).unwrap();
    let (b, _) = while_serving(&[&a], || Membership::join(&config).unwrap());
    let slot = b.slot();
    let exists = |slot: &u16| socket_set.has_slot(*slot, 1);
    let unclaimed = (0..SLOTS).filter(exists).find(|s| ![a.slot(), slot].contains(s)).unwrap();
    assert!(kept(&socket_set, unclaimed) <= 2);
    // A claimed slot queues many datagrams; after its release it does not.
    assert!(kept(&socket_set, slot) > 50);
    drop(b);
    assert!(kept(&socket_set, slot) <= 2);
}

#[test]
fn a_member_without_descriptors_does_not_spin() {
    let config = new_domain();
    // The limit holds for the helper only: it creates the domain, then opens all descriptors but three. To
    // find out which user has connected takes two.
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -n 200; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "registry::tests::member_process", "--ignored", "--nocapture"])
        .env("ROXIE_TEST_MEMBER", format!("{} {}", config.name, config.udp_port))
        .env("ROXIE_TEST_DESCRIPTORS", "3")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut lines = lines.filter(|line| !line.is_empty());
    let slot = lines.find_map(|line| line.strip_prefix("slot ")?.parse().ok()).unwrap();
    let names = names::GroupNames::slots_in_use(&config);
    let name = names.iter().find(|(_, there)| *there == slot).map(|(group, _)| group.slot(slot)).unwrap();
    let waiting: Vec<_> = (0..8).map(|_| sys::connect_seqpacket(&name).unwrap()).collect();
    // The helper waits up to 100 ms per round; each failed accept and each pause wakes it once.
    let start = sys::now_ns();
    assert!(lines.by_ref().take(30).all(|line| line == "round"));
    let took = sys::now_ns() - start;
    assert!(took > 1_000_000_000, "30 rounds in {took} ns");
    // When the accepted connections close, others are accepted.
    drop(waiting);
    let next = sys::connect_seqpacket(&name).unwrap();
    record::Record::Ping.send(&next, None, &[]).unwrap();
    let mut answer = [PollFd::readable(next.as_raw_fd())];
    assert_eq!(sys::poll(&mut answer, Some(5_000_000_000)).unwrap(), 1, "no answer");
    child.kill().unwrap();
    child.wait().unwrap();
}
