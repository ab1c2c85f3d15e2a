//! Ports of members of one domain, connected by rings, or by UDP sockets on loopback where there are
//! none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;

use transport::numbering::qpn_at;
use wire::FlushIcrc;

use super::*;
use crate::port::{Icrc, RxQueue, TxRoom, UdpPort, UdpPortConfig};
use crate::registry::{DomainConfig, Membership, Registry};
use sys::byte_ring::{Consumer, Producer, RING_BYTES};
use sys::{PollFd, now_ns, poll, random_u64};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A member with its port.
struct Member {
    member: Membership,
    port: ShmPort,
    /// See [`RxScope::with_icrc`].
    with_icrc: bool,
}

fn domain() -> DomainConfig {
    let udp_port = loop {
        let port = 20_000 + (random_u64() % 12_000) as u16;
        if std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            break port;
        }
    };
    let name = format!("roxie-test/{:016x}", random_u64());
    DomainConfig { name, udp_port, ..DomainConfig::default() }
}

fn udp_of(member: &Membership) -> Box<UdpPort> {
    let (gsi, slot) = (member.gsi_socket().unwrap(), member.slot_socket().unwrap());
    let udp_port = member.udp_port();
    Box::new(UdpPort::new(UdpPortConfig { gsi, slot, udp_port, ifindex: 0 }))
}

impl Member {
    /// Joins while `others` serve requests.
    fn join(config: &DomainConfig, others: &[&Member]) -> Member {
        let member = std::thread::scope(|scope| {
            let joining = scope.spawn(|| Membership::join(config).unwrap());
            while !joining.is_finished() {
                for other in others {
                    other.member.poll_listener(&mut |_| {});
                }
            }
            joining.join().unwrap()
        });
        let port = ShmPort::new(udp_of(&member), member.rings());
        Member { member, port, with_icrc: false }
    }

    fn flow_to(&mut self, other_slot: u16, ip: IpAddr) -> FlowId {
        let flush_icrc = FlushIcrc::Iba;
        let key = FlowKey { src: ip, dst: ip, dst_slot: other_slot, tos: 0x20, ttl: 9, flush_icrc, above: 0 };
        self.port.open_flow(&key, Destination::ThisHost).unwrap()
    }

    fn send(&mut self, flow: FlowId, packet: &[u8]) {
        self.port.tx_slot()[..packet.len()].copy_from_slice(packet);
        self.port.tx_commit(flow, packet.len());
    }

    fn serve(&mut self) {
        self.member.poll_listener(&mut |_| {});
    }

    /// Calls `recv` once; returns the packets without their ICRCs, which are verified where they are
    /// filled in.
    fn recv(&mut self) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let scope = RxScope { with_icrc: self.with_icrc, ..RxQueues::SLOT.into() };
        self.port.recv(scope, &mut |batch| {
            let icrc = batch.icrc_header().unwrap();
            assert_eq!((batch.tos, batch.ttl), (0x20, 9));
            for (id, packet) in batch.packets().enumerate() {
                let id = if batch.src.is_ipv4() { id as u16 } else { 0 };
                match batch.icrc {
                    Icrc::Omitted => assert_eq!(packet.last_chunk(), Some(&[0; ICRC_LEN])),
                    Icrc::Present => assert_eq!(icrc.verify(id, packet), Ok(id)),
                }
                assert_eq!(batch.queue, RxQueue::Slot);
                assert!(batch.ip_id.is_none_or(|id| id == 0 && batch.src.is_ipv4()));
                got.push(packet[..packet.len() - ICRC_LEN].to_vec());
            }
        });
        got
    }

    fn recv_until(&mut self, count: usize) -> Vec<Vec<u8>> {
        let (mut got, start) = (Vec::new(), now_ns());
        while got.len() < count && now_ns() - start < 5_000_000_000 {
            got.extend(self.recv());
        }
        assert_eq!(got.len(), count);
        got
    }

    fn rings_out(&self) -> usize {
        self.port.outbound.iter().flatten().filter(|out| out.is_open).count()
    }
}

/// A packet for a QP of `slot` that contains `number`.
fn packet(slot: u16, number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u32 * 7 + number) as u8).collect();
    bytes[..4].copy_from_slice(&[4, 0, 0xff, 0xff]);
    bytes[4..8].copy_from_slice(&qpn_at(slot, 0x20).value().to_be_bytes());
    bytes[12..16].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Two members, with a ring from the first to the second.
fn pair(ip: IpAddr) -> (Member, Member, FlowId) {
    let config = domain();
    let mut a = Member::join(&config, &[]);
    let mut b = Member::join(&config, &[&a]);
    let flow = a.flow_to(b.member.slot(), ip);
    open_ring(&mut a, &mut b);
    (a, b, flow)
}

/// Waits until the second has accepted the ring of the first.
fn open_ring(a: &mut Member, b: &mut Member) {
    let (start, before) = (now_ns(), a.rings_out());
    while a.rings_out() == before {
        assert!(now_ns() - start < 5_000_000_000, "no ring");
        b.serve();
        a.serve();
        a.port.follow_ring_events();
    }
}

#[test]
fn packets_of_every_size_arrive_through_the_ring_as_they_were_sent() {
    for ip in [V4, V6] {
        let (mut a, mut b, flow) = pair(ip);
        let slot = b.member.slot();
        let sizes = (16..=4156).step_by(61).chain([64; 600]).chain([4156; 40]);
        let sent: Vec<_> = sizes.zip(0..).map(|(len, n)| packet(slot, n, len)).collect();
        let mut got = Vec::new();
        for (round, some) in sent.chunks(100).enumerate() {
            some.iter().for_each(|packet| a.send(flow, packet));
            assert!(a.port.tx_state(None).room == TxRoom::Open);
            a.port.flush();
            b.with_icrc = round % 2 == 0;
            got.extend(b.recv_until(some.len()));
        }
        assert_eq!(got, sent);
        let (ours, theirs) = (a.port.counters, b.port.counters);
        assert_eq!((ours.tx_packets, theirs.rx_packets), (sent.len() as u64, sent.len() as u64));
        assert_eq!(ours.tx_bytes, theirs.rx_bytes);
        assert_eq!(a.port.inner.report().counters.tx_packets, 0, "nothing went through the kernel");
        assert!(theirs.rx_batches * 7 < theirs.rx_packets, "equal packets share batches: {theirs:?}");
    }
}

#[test]
fn packets_carry_their_icrcs_when_the_receiver_asks_for_them() {
    for ip in [V4, V6] {
        let (mut a, mut b, flow) = pair(ip);
        let slot = b.member.slot();
        for with_icrc in [false, true, false] {
            (0..5).for_each(|n| a.send(flow, &packet(slot, n, 100)));
            a.port.flush();
            let scope = RxScope { with_icrc, ..RxQueues::SLOT.into() };
            let mut icrcs = Vec::new();
            let start = now_ns();
            while icrcs.is_empty() && now_ns() - start < 5_000_000_000 {
                b.port.recv(scope, &mut |batch| {
                    let icrc = batch.icrc_header().unwrap();
                    let is_there = batch
                        .packets()
                        .zip(0u16..)
                        .all(|(packet, id)| icrc.verify(id, packet) == Ok(if ip == V4 { id } else { 0 }));
                    assert_eq!(is_there, with_icrc);
                    icrcs.push(batch.icrc);
                });
            }
            assert_eq!(icrcs, [if with_icrc { Icrc::Present } else { Icrc::Omitted }]);
        }
    }
}

#[test]
fn sockets_are_polled_regularly_while_rings_are_in_use() {
    let config = domain();
    let mut a = Member::join(&config, &[]);
    let mut b = Member::join(&config, &[&a]);
    let mut c = Member::join(&config, &[&a, &b]);
    let slot = b.member.slot();
    let (flow, other) = (a.flow_to(slot, V4), c.flow_to(slot, V4));
    open_ring(&mut a, &mut b);
    for round in 0..20 {
        a.send(flow, &packet(slot, 0, 64));
        a.port.flush();
        assert_eq!(b.recv_until(1), [packet(slot, 0, 64)]);
        // The sender has not learned that the ring was accepted, so this packet goes through the kernel.
        c.send(other, &packet(slot, round, 100));
        c.port.flush();
        let polls = (1..IDLE_POLLS_MAX).find(|_| b.recv() == [packet(slot, round, 100)]);
        assert!(polls.is_some(), "the sockets were not polled while the rings were in use");
    }
    assert_eq!((c.port.counters.tx_packets, b.port.counters.rx_packets), (0, 20));
}

#[test]
fn a_port_reports_quiet_while_rings_in_use_are_empty_but_not_for_long() {
    let (mut a, mut b, flow) = pair(V4);
    let slot = b.member.slot();
    assert!(!b.port.is_quiet(), "sockets may have something");
    for _ in 0..10 {
        a.send(flow, &packet(slot, 0, 64));
        a.port.flush();
        assert!(!b.port.is_quiet(), "there is a packet");
        assert_eq!(b.recv_until(1), [packet(slot, 0, 64)]);
        // By now the sockets have been polled.
        while b.port.inner_poll.skipped > 0 {
            b.recv();
        }
        let quiet = (0..2 * INNER_INTERVAL).take_while(|_| b.port.is_quiet()).count();
        assert_eq!(quiet, INNER_INTERVAL as usize - 1);
    }
}

#[test]
fn packets_sent_before_the_ring_was_accepted_arrive_first() {
    let config = domain();
    let mut a = Member::join(&config, &[]);
    let mut b = Member::join(&config, &[&a]);
    let slot = b.member.slot();
    let flow = a.flow_to(slot, V4);
    (0..50).for_each(|n| a.send(flow, &packet(slot, n, 100)));
    a.port.flush();
    assert_eq!(a.port.inner.report().counters.tx_packets, 50, "through the kernel");
    // Committed, but not sent.
    (50..60).for_each(|n| a.send(flow, &packet(slot, n, 200)));
    open_ring(&mut a, &mut b);
    (60..100).for_each(|n| a.send(flow, &packet(slot, n, 300)));
    a.port.flush();
    assert_eq!(a.port.counters.tx_packets, 40, "through the ring");
    let numbers: Vec<_> = b.recv_until(100).iter().map(|packet| packet[15]).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<u8>>());
}

#[test]
fn a_process_has_a_ring_to_itself() {
    let mut a = Member::join(&domain(), &[]);
    let slot = a.member.slot();
    let flow = a.flow_to(slot, V4);
    let start = now_ns();
    while a.rings_out() == 0 && now_ns() - start < 5_000_000_000 {
        a.serve();
        a.port.follow_ring_events();
    }
    a.send(flow, &packet(slot, 1, 64));
    a.port.flush();
    assert_eq!(a.recv_until(1), [packet(slot, 1, 64)]);
    assert_eq!((a.port.counters.tx_packets, a.port.counters.rx_packets), (1, 1));
}

#[test]
fn only_connections_within_the_host_get_a_ring() {
    let mut a = Member::join(&domain(), &[]);
    let slot = a.member.slot();
    let key = |dst: &str, dst_slot| FlowKey {
        src: V4,
        dst: dst.parse().unwrap(),
        dst_slot,
        tos: 0,
        ttl: 64,
        flush_icrc: FlushIcrc::Iba,
        above: 0,
    };
    for (dst, dst_slot) in
        [("192.0.2.1", slot), ("127.0.0.1", crate::port::GSI_FLOW_SLOT), ("224.0.0.1", slot)]
    {
        a.port.open_flow(&key(dst, dst_slot), Destination::Elsewhere).unwrap();
    }
    a.port.datagram_flow(&key("127.0.0.1", slot)).unwrap();
    assert_eq!(a.port.outbound.iter().flatten().count(), 0);
    let flow = a.port.open_flow(&key("127.0.0.2", slot), Destination::ThisHost).unwrap();
    assert_eq!(a.port.outbound.iter().flatten().count(), 1);
    a.port.close_flow(flow);
    assert!(a.port.flows[flow.0 as usize].route.is_none(), "its number may be another flow's next");
}

#[test]
fn a_full_ring_applies_back_pressure_but_a_stopped_reader_delays_no_other_flow() {
    let (mut a, mut b, flow) = pair(V4);
    let slot = b.member.slot();
    let mut sent = 0;
    while a.port.tx_state(None).room == TxRoom::Open {
        (0..60).for_each(|n| a.send(flow, &packet(slot, sent + n, 4096)));
        a.port.flush();
        sent += 60;
    }
    assert!((sent as usize) < RING_BYTES / 4096 / 2, "{sent}");
    // One transmit quantum more is not lost.
    (0..124).for_each(|n| a.send(flow, &packet(slot, sent + n, 4156)));
    a.port.flush();
    sent += 124;
    assert_eq!(a.port.counters.tx_no_buffer, 0);
    let start = now_ns();
    while a.port.tx_state(None).room != TxRoom::Open {
        assert!(now_ns() - start < 1_000_000_000, "the port still waits for the stopped reader");
    }
    assert!(now_ns() - start > 500_000);
    // Packets that do not fit are lost and counted.
    for n in 0..300 {
        a.send(flow, &packet(slot, sent + n, 4096));
    }
    a.port.flush();
    let lost = a.port.counters.tx_no_buffer as u32;
    assert!(lost > 0 && lost < 300, "{lost}");
    let got = b.recv_until((sent + 300 - lost) as usize);
    for (n, one) in got.iter().enumerate() {
        assert_eq!(one[12..16], (n as u32).to_be_bytes(), "in order, without a gap");
    }
    assert!(a.port.tx_state(None).room == TxRoom::Open);
    a.send(flow, &packet(slot, 7, 4096));
    a.port.flush();
    assert_eq!(b.recv_until(1), [packet(slot, 7, 4096)]);
}

#[test]
fn a_sleeping_reader_is_woken_once() {
    let (mut a, mut b, flow) = pair(V4);
    let slot = b.member.slot();
    b.port.recv(RxQueues::ALL.into(), &mut |_| panic!("nothing was sent"));
    let is_woken = |b: &Member| {
        let mut fds = [PollFd::readable(b.member.listener_fd())];
        poll(&mut fds, Some(0)).unwrap() > 0
    };
    b.serve();
    a.send(flow, &packet(slot, 0, 64));
    a.port.flush();
    assert!(!is_woken(&b), "no thread sleeps");
    assert_eq!(b.port.set_need_wakeup(true), Readiness::Pending, "there is something to read");
    assert_eq!(b.recv_until(1).len(), 1);
    assert_eq!(b.port.set_need_wakeup(true), Readiness::Idle);
    a.send(flow, &packet(slot, 1, 64));
    a.port.flush();
    assert!(is_woken(&b));
    b.serve();
    a.send(flow, &packet(slot, 2, 64));
    a.port.flush();
    assert!(!is_woken(&b), "the reader was woken already");
    b.port.set_need_wakeup(false);
    assert_eq!(b.recv_until(2).len(), 2);
    assert_eq!(b.port.set_need_wakeup(true), Readiness::Idle);
    b.port.set_need_wakeup(false);
    a.send(flow, &packet(slot, 3, 64));
    a.port.flush();
    assert!(!is_woken(&b), "the wake-up request was withdrawn");
}

#[test]
fn the_last_packets_of_a_dead_process_are_read_and_its_peer_returns_to_the_kernel() {
    let (mut a, mut b, flow) = pair(V4);
    let back = b.flow_to(a.member.slot(), V4);
    open_ring(&mut b, &mut a);
    let slot = b.member.slot();
    (0..10).for_each(|n| a.send(flow, &packet(slot, n, 64)));
    a.port.flush();
    let gone = a.member.slot();
    drop(a);
    let start = now_ns();
    while b.rings_out() > 0 && now_ns() - start < 5_000_000_000 {
        b.serve();
        b.port.follow_ring_events();
    }
    assert_eq!(b.rings_out(), 0);
    assert_eq!(b.recv_until(10).len(), 10);
    b.recv();
    assert!(b.port.inbound.is_empty());
    b.send(back, &packet(gone, 1, 64));
    assert_eq!(b.port.flush(), 1);
    assert_eq!(b.port.inner.report().counters.tx_packets, 1);
}

/// Publishes `published` of `bytes` in a ring and receives, with or without ICRCs; returns the BTHs of
/// the batches, and whether the ring was dropped.
fn receive_from(b: &mut Member, bytes: &[u8], published: usize) -> (Vec<Vec<u8>>, bool) {
    let (mut producer, fd) = Producer::create().unwrap();
    let ring = Consumer::open(fd.as_fd()).unwrap();
    let link = b.port.rings.link(u64::MAX);
    b.port.inbound = vec![Inbound::new(ring, link)];
    assert!(producer.write(0, bytes));
    producer.publish(published);
    let mut got = Vec::new();
    for _ in 0..3 {
        let scope = RxScope { with_icrc: random_u64().is_multiple_of(2), ..RxQueues::SLOT.into() };
        b.port.recv(scope, &mut |batch| got.push(batch.bytes.iter().copied().take(12).collect()));
    }
    (got, b.port.inbound.is_empty())
}

#[test]
fn malformed_batches_end_the_ring() {
    let batch = |len: u32, segment: u16| {
        let mut bytes = [0; HEADER_LEN + 16];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..6].copy_from_slice(&segment.to_le_bytes());
        bytes
    };
    let mut b = Member::join(&domain(), &[]);
    let whole = HEADER_LEN + 16;
    assert_eq!(receive_from(&mut b, &batch(16, 16), whole), (vec![vec![0; 12]], false));
    for (len, segment) in [(0, 0), (0, 1), (16, 0), (16, 17), (17, 17), (25, 1), (u32::MAX, 1), (16_385, 1)] {
        assert_eq!(receive_from(&mut b, &batch(len, segment), whole), (vec![], true), "{len} {segment}");
    }
    // Truncated, in the header and in the packets.
    for published in [1, HEADER_LEN - 1, HEADER_LEN, whole - 1] {
        assert_eq!(receive_from(&mut b, &batch(16, 16), published), (vec![], true), "{published}");
    }
    // Random bytes are random batches: nothing panics.
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..512).flat_map(|_| random_u64().to_le_bytes()).collect();
        receive_from(&mut b, &bytes, bytes.len());
    }
    assert!(b.port.broken > 100);
}
