//! Ports on the two ends of a veth, each in a network namespace; as root, else skipped.

mod bursts;
mod life;
mod queues;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::super::{UdpPortConfig, receive_socket};
use super::*;
use crate::xdp::{Mode, Presence};
use sys::testing::{Host, ip, run};
use sys::{Netlink, SockAddr, XdpMode};
use wire::FlushIcrc;

const UDP_PORT: u16 = 4791;
/// The slot of host n is n; so is the last byte of its addresses.
const V4: &str = "10.79.0.";
const V6: &str = "fd79::";
/// Packets in flight during a transfer, a pause that means that some were lost, and how often that may
/// happen.
const WINDOW: usize = 200;
const REPEAT_AFTER: Duration = Duration::from_secs(1);
const REPEATS_MAX: u32 = 5;

/// Two hosts connected by a veth.
struct Net {
    hosts: [Host; 2],
}

impl Net {
    fn new(mtu: u32, queues: u32) -> Option<Net> {
        let hosts = [Host::new()?, Host::new()?];
        let peer = hosts[1].path();
        hosts[0].visit(|| {
            let queues = format!("numrxqueues {queues} numtxqueues {queues}");
            ip(&format!("link add veth0 {queues} type veth peer name veth0 {queues} netns {peer}"));
        });
        for (host, n) in hosts.iter().zip(1..) {
            host.visit(|| {
                ip(&format!("address add {V4}{n}/24 dev veth0"));
                ip(&format!("address add {V6}{n}/64 dev veth0 nodad"));
                ip(&format!("link set veth0 mtu {mtu} addrgenmode none up"));
            });
        }
        Some(Net { hosts })
    }

    fn xsk(&self, host: usize, mode: XdpMode) -> XskPort {
        self.try_xsk(host, Mode::Only(mode), UDP_PORT).map_err(|refusal| refusal.0).unwrap()
    }

    fn try_xsk(&self, host: usize, mode: Mode, udp_port: u16) -> Result<XskPort, Box<(XskError, UdpPort)>> {
        self.hosts[host].visit(|| {
            let inner = udp(udp_port);
            let (slot, bursts) = (host as u16 + 1, BurstPath::Ring);
            XskPort::open(XskPortConfig { inner, ifindex: ifindex(), slot, udp_port, mode, bursts })
        })
    }

    fn udp(&self, host: usize) -> UdpPort {
        self.hosts[host].visit(|| udp(UDP_PORT))
    }
}

fn ifindex() -> u32 {
    Netlink::new().unwrap().links().unwrap().iter().find(|l| l.name == "veth0").unwrap().index
}

fn udp(udp_port: u16) -> UdpPort {
    let bound = |port: u16| {
        let (socket, v6) = receive_socket().unwrap();
        sys::set_receive_buffer(socket.as_fd(), super::super::RECEIVE_BUFFER).unwrap();
        let any = if v6 { "::" } else { "0.0.0.0" };
        // The sockets of a previous test may still be open in its namespace.
        sys::bind(socket.as_fd(), &SockAddr::ip(any.parse().unwrap(), port, 0)).unwrap();
        socket
    };
    let (gsi, slot) = (bound(udp_port + 1), bound(udp_port));
    UdpPort::new(UdpPortConfig { gsi, slot, udp_port, ifindex: ifindex() })
}

fn address(net: &str, host: usize) -> IpAddr {
    format!("{net}{}", host + 1).parse().unwrap()
}

/// A flow from one host to the other.
fn flow_key(family: &str, from: usize) -> FlowKey {
    let (src, dst) = (address(family, from), address(family, 1 - from));
    FlowKey { src, dst, dst_slot: 2 - from as u16, tos: 0x28, ttl: 33, flush_icrc: FlushIcrc::Iba, above: 0 }
}

fn flow(net: &Net, port: &mut dyn Port, family: &str, from: usize) -> FlowId {
    net.hosts[from].visit(|| port.open_flow(&flow_key(family, from), Destination::Elsewhere).unwrap())
}

/// A packet without ICRC: a BTH for a QP of the other host's slot, a number, a pattern.
fn packet(to: usize, number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u32 * 7 + number) as u8).collect();
    bytes[..12].copy_from_slice(&[0x04, 0, 0xff, 0xff, 0, 0, (to as u8 + 1) << 4, 9, 0, 0, 0, 0]);
    bytes[12..16].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn commit(port: &mut dyn Port, flow: FlowId, bytes: &[u8]) {
    port.tx_slot()[..bytes.len()].copy_from_slice(bytes);
    port.tx_commit(flow, bytes.len());
}

/// Received packets after checks of ICRC, addresses, TOS and TTL.
fn receive(port: &mut dyn Port, net: &str, from: usize) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let (src, dst) = (address(net, from), address(net, 1 - from));
    port.recv(RxQueues::ALL.into(), &mut |batch| {
        // The kernel assigns one to each end of the veth; a UDP socket does not report them.
        assert!(batch.macs.is_none_or(|[from, to]| from != to && from.0 != [0; 6] && to.0 != [0; 6]));
        assert_eq!((batch.src, batch.dst, batch.tos, batch.ttl), (src, dst, 0x28, 33));
        let icrc = batch.icrc_header().unwrap();
        for (i, packet) in batch.packets().enumerate() {
            let id = icrc.verify(batch.ip_id.unwrap_or(0).wrapping_add(i as u16), packet).unwrap();
            assert!(batch.ip_id.is_none_or(|first| id == first.wrapping_add(i as u16)));
            packets.push(packet[..packet.len() - 4].to_vec());
        }
    });
    packets
}

/// Sends `sent` and receives it all, in order. Packets that the kernel drops on a busy machine
/// (unresolved neighbour, full backlog) are retransmitted from the first missing one on, a few times only: a
/// port that loses or reorders packets itself needs more.
fn transfer(tx: &mut dyn Port, rx: &mut dyn Port, flow: FlowId, net: &str, from: usize, sent: Vec<Vec<u8>>) {
    let mut expected: VecDeque<_> = sent.iter().collect();
    let mut waiting = expected.clone();
    let (mut progress, mut repeats) = (Instant::now(), 0);
    while let Some(first) = expected.front() {
        if progress.elapsed() > REPEAT_AFTER {
            (progress, repeats) = (Instant::now(), repeats + 1);
            waiting = expected.clone();
            assert!(repeats <= REPEATS_MAX, "packet {:?} is missing: {:?}", &first[12..16], rx.report().rows);
        }
        // No more than a window: the receiver's memory is finite.
        while waiting.len() + WINDOW > expected.len() {
            let Some(packet) = waiting.pop_front() else { break };
            commit(tx, flow, packet);
        }
        tx.flush();
        // The sender's port has neighbours to follow.
        assert_eq!(receive(tx, net, 1 - from), Vec::<Vec<u8>>::new());
        for packet in receive(rx, net, from) {
            let number = u32::from_be_bytes(packet[12..16].try_into().unwrap());
            assert!(packet == sent[number as usize], "the bytes of packet {number}");
            if expected.front().is_some_and(|first| **first == packet) {
                expected.pop_front();
                progress = Instant::now();
            }
        }
    }
}

fn mixed(to: usize, lengths: &[usize], count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|i| packet(to, i, lengths[i as usize % lengths.len()])).collect()
}

fn all_lengths(mtu: u32) -> &'static [usize] {
    // Crossing the end of the first chunk by one byte and more: 4096 - 128 - 4.
    if mtu > 4200 { &[16, 1036, 4096, 3964, 3968, 60, 2060, 4140] } else { &[16, 1036, 60, 400, 1040] }
}

fn is_native(mode: XdpMode) -> bool {
    mode == XdpMode::Native
}

#[test]
fn two_ports_exchange_packets_in_every_mode_family_and_size() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for mtu in [1500, 9000] {
            let Some(net) = Net::new(mtu, 1) else { return };
            let (mut a, mut b) = (net.xsk(0, mode), net.xsk(1, mode));
            assert!(
                a.report().description.starts_with(&format!("xsk, {mode} mode, copy, multi-buffer, 1 queue")),
                "{}",
                a.report().description
            );
            for family in [V4, V6] {
                let (there, back) = (flow(&net, &mut a, family, 0), flow(&net, &mut b, family, 1));
                transfer(&mut a, &mut b, there, family, 0, mixed(1, all_lengths(mtu), 3000));
                transfer(&mut b, &mut a, back, family, 1, mixed(0, all_lengths(mtu), 3000));
            }
            for port in [&mut a, &mut b] {
                let counters = port.report().counters;
                assert_eq!(
                    (counters.rx_malformed, counters.tx_no_buffer),
                    (0, 0),
                    "{:?}",
                    port.report().rows
                );
                // Only the first packets, before the neighbour was resolved, used UDP.
                assert!(port.extra.tx_inner < 1000, "{:?}", port.report().rows);
                assert!(port.counters.tx_packets > 5000 && port.counters.rx_packets > 5000);
                assert_eq!(port.extra.rx_joined > 0, mtu == 9000);
            }
            for mut port in [a, b] {
                let teardown = port.close();
                assert_eq!(teardown.lost, 0, "{teardown:?}");
                assert_eq!(port.report().description, "xsk, closed");
            }
        }
    }
}

#[test]
fn an_xsk_port_exchanges_bursts_with_a_udp_port() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        for mtu in [1500, 9000] {
            let Some(net) = Net::new(mtu, 1) else { return };
            let (mut a, mut b) = (net.xsk(0, mode), net.udp(1));
            for family in [V4, V6] {
                let (there, back) = (flow(&net, &mut a, family, 0), flow(&net, &mut b, family, 1));
                transfer(&mut a, &mut b, there, family, 0, mixed(1, all_lengths(mtu), 2000));
                transfer(&mut b, &mut a, back, family, 1, mixed(0, all_lengths(mtu), 2000));
                // Packets of equal length leave the other side in bursts.
                for len in [16, 60, 304, 1036, if mtu > 4200 { 4120 } else { 1000 }] {
                    transfer(&mut b, &mut a, back, family, 1, mixed(0, &[len], 1000));
                }
            }
            assert_eq!(a.report().counters.rx_malformed, 0);
            assert!(
                b.report().counters.tx_bursts < b.report().counters.tx_packets / 2,
                "{:?}",
                b.report().counters
            );
            // The kernel segments bursts before a native program; in generic mode the port has to.
            assert_eq!(a.extra.rx_unjoined > 0, !is_native(mode), "{:?}", a.report().rows);
        }
    }
}

#[test]
fn every_queue_has_its_socket() {
    let Some(net) = Net::new(1500, 3) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    assert!(a.report().description.contains("3 queues"), "{}", a.report().description);
    // Several slots: several flows, spread over the queues.
    for dst_slot in 0..40 {
        let key = FlowKey { dst_slot, ..flow_key(V4, 0) };
        let flow = net.hosts[0].visit(|| a.open_flow(&key, Destination::Elsewhere).unwrap());
        transfer(&mut a, &mut b, flow, V4, 0, mixed(1, &[100], 50));
    }
    let queues: Vec<usize> = a.flows.iter().map(|flow| flow.queue).collect();
    assert!((0..3).all(|queue| queues.iter().filter(|q| **q == queue).count() > 4), "{queues:?}");
    assert_eq!((a.close().lost, b.close().lost), (0, 0));
}

#[test]
fn a_flooded_queue_does_not_take_the_memory_of_the_others() {
    let Some(net) = Net::new(1500, 2) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let flow = flow(&net, &mut a, V4, 0);
    transfer(&mut a, &mut b, flow, V4, 0, mixed(1, &[100], 10));
    let mut send = |queue: usize, count: u32| {
        a.flows[flow.0 as usize].queue = queue;
        for number in 0..count {
            commit(&mut a, flow, &packet(1, number, 100));
            if number % 100 == 99 {
                a.flush();
            }
        }
        a.flush();
    };
    // More packets than are read, and than there is memory for, on one queue; a few on the other.
    send(0, 6000);
    for _ in 0..30 {
        send(1, 100);
        b.recv(RxQueues::ALL.into(), &mut |_| {});
        send(0, 200);
        let waiting = b.sockets.queues[1].rings.fill.waiting();
        assert!(waiting > 2048 - 200, "{waiting}: {:?}", b.report().rows);
    }
    assert!(b.sockets.statistics().rx_dropped > 1000, "{:?}", b.report().rows);
    assert_eq!((a.close().lost, b.close().lost), (0, 0));
}

#[test]
fn no_chunk_is_lost_whenever_the_port_is_closed() {
    for (mode, mtu) in [(XdpMode::Native, 1500), (XdpMode::Generic, 9000)] {
        let Some(net) = Net::new(mtu, 2) else { return };
        for round in 0..6 {
            let (mut a, mut b) = (net.xsk(0, mode), net.xsk(1, mode));
            let (there, back) = (flow(&net, &mut a, V4, 0), flow(&net, &mut b, V4, 1));
            let mut seen = 0;
            let start = Instant::now();
            // In both directions at once; closed with packets queued, in flight and unread.
            while seen < 1000 + round * 137 {
                assert!(start.elapsed().as_secs() < 20, "{:?}", b.report().rows);
                for number in 0..60 {
                    commit(&mut a, there, &packet(1, number, all_lengths(mtu)[number as usize % 5]));
                    commit(&mut b, back, &packet(0, number, 64));
                }
                a.flush();
                seen += receive(&mut b, V4, 0).len() + receive(&mut a, V4, 1).len();
                for port in [&mut a, &mut b] {
                    let held = u32::from(port.staging.chunk.is_some());
                    let [rx, tx] = port.audit();
                    assert_eq!((rx.in_hand(), tx.in_hand()), (0, held), "{rx:?} {tx:?}");
                }
            }

            for mut port in [a, b] {
                let teardown = port.close();
                assert_eq!(teardown.lost, 0, "{teardown:?}");
                assert!(teardown.reclaimed >= 256, "{teardown:?}");
            }
        }
    }
}

#[test]
fn a_driver_that_sends_nothing_applies_back_pressure_for_a_while_and_loses_no_packet_meanwhile() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let to_b = flow(&net, &mut a, V4, 0);
    // The neighbours are resolved, so the next packets take the rings.
    transfer(&mut a, &mut b, to_b, V4, 0, mixed(1, &[64], 50));
    let full = |a: &mut XskPort| {
        let mut sent = 0;
        while a.tx_state(None).room == TxRoom::Open && sent < 5000 {
            commit(a, to_b, &packet(1, 0, 1000));
            sent += 1;
        }
        sent
    };
    net.hosts[0].visit(|| ip("link set veth0 down"));
    let sent = full(&mut a);
    assert!((100..5000).contains(&sent) && a.sockets.counters.down > 0, "{sent}: {:?}", a.report().rows);
    assert_eq!((a.extra.tx_no_chunk, a.extra.tx_ring_full), (0, 0));
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(
        a.tx_state(None).room,
        TxRoom::Open,
        "a sender that waits for an answer must be able to time out"
    );
    net.hosts[0].visit(|| ip("link set veth0 up"));
    let start = Instant::now();
    while a.sockets.is_stalled() || a.sockets.audit()[1].lent > 0 {
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", a.report().rows);
        a.flush();
        a.sockets.reap();
        receive(&mut b, V4, 0);
    }
    assert_eq!(a.tx_state(None).room, TxRoom::Open);
}

#[test]
fn routes_neighbours_and_mtu_are_followed() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    let there = flow(&net, &mut a, V4, 0);
    assert!(!a.flows[0].is_direct, "the neighbour is not resolved yet");
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[500], 500));
    assert!(a.flows[0].is_direct);
    // The neighbour changes its Ethernet address, and announces it.
    net.hosts[1].visit(|| ip("link set veth0 address 02:00:00:00:77:01"));
    net.hosts[0].visit(|| ip("neigh replace 10.79.0.2 lladdr 02:00:00:00:77:01 dev veth0 nud reachable"));
    let before = a.extra.tx_inner;
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[500], 500));
    assert_eq!(a.extra.tx_inner, before, "no packet used UDP");
    // Behind a gateway that does not exist: nothing arrives, and the flow waits for a neighbour.
    net.hosts[0].visit(|| ip("route add 10.79.0.2/32 via 10.79.0.99"));
    let deadline = Instant::now() + Duration::from_secs(5);
    while a.flows[0].is_direct {
        a.recv(RxQueues::ALL.into(), &mut |_| {});
        assert!(Instant::now() < deadline);
    }
    net.hosts[0].visit(|| ip("route del 10.79.0.2/32"));
    while !a.flows[0].is_direct {
        a.recv(RxQueues::ALL.into(), &mut |_| {});
        assert!(Instant::now() < deadline);
    }
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[500], 500));
    // A packet that is too long now is counted here; the driver would drop it silently.
    net.hosts[0].visit(|| ip("link set veth0 mtu 600"));
    a.recv(RxQueues::ALL.into(), &mut |_| {});
    commit(&mut a, there, &packet(1, 1, 1000));
    a.flush();
    assert_eq!((a.counters.tx_too_long, a.paths.link.mtu), (1, 600));
    net.hosts[0].visit(|| ip("link set veth0 mtu 9000"));
    net.hosts[1].visit(|| ip("link set veth0 mtu 9000"));
    a.recv(RxQueues::ALL.into(), &mut |_| {});
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, all_lengths(9000), 500));
}

#[test]
fn packets_follow_added_and_removed_addresses() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    net.hosts[1].visit(|| ip("address add 10.79.0.77/24 dev veth0"));
    let key = FlowKey { dst: "10.79.0.77".parse().unwrap(), tos: 0, ttl: 0, ..flow_key(V4, 0) };
    let there = net.hosts[0].visit(|| a.open_flow(&key, Destination::Elsewhere).unwrap());
    let steered = |a: &mut XskPort, b: &mut XskPort| {
        let before = b.counters.rx_packets;
        commit(a, there, &packet(1, 1, 100));
        a.flush();
        a.recv(RxQueues::ALL.into(), &mut |_| {});
        b.recv(RxQueues::ALL.into(), &mut |_| {});
        b.counters.rx_packets > before
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while !steered(&mut a, &mut b) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    net.hosts[1].visit(|| ip("address del 10.79.0.77/24 dev veth0"));
    while steered(&mut a, &mut b) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_slot_that_cannot_be_steered_is_added_and_receives_over_udp() {
    let Some(net) = Net::new(1500, 1) else { return };
    let mut port = net.xsk(0, XdpMode::Native);
    let mut add = |slot: u16| {
        let (queue, _) = net.hosts[0].visit(|| receive_socket().unwrap());
        port.add_slot(slot, queue).unwrap();
        port.extra.slots_over_udp
    };
    // The map of the program has no such slot.
    assert_eq!([add(7), add(5000)], [0, 1]);
}

#[test]
fn packets_for_others_reach_the_network_stack() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let Some(net) = Net::new(1500, 1) else { return };
        let (mut a, mut b) = (net.xsk(0, mode), net.udp(1));
        let there = flow(&net, &mut a, V4, 0);
        transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[500], 100));
        // Another slot, QP 1, and traffic that is not RoCE.
        let back = flow(&net, &mut b, V4, 1);
        for dest_qp in [[0, 0, 1], [9, 0, 9]] {
            let mut other = packet(0, 1, 60);
            other[5..8].copy_from_slice(&dest_qp);
            commit(&mut b, back, &other);
        }
        b.flush();
        let (mut steered, mut seen) = (a.counters.rx_packets, 0);
        let deadline = Instant::now() + Duration::from_secs(5);
        while seen < 2 {
            a.recv(RxQueues::ALL.into(), &mut |batch| seen += batch.packets().count());
            assert!(Instant::now() < deadline);
        }
        steered = a.counters.rx_packets - steered;
        assert_eq!(steered, 0, "they arrived at the UDP port");
        let listener = net.hosts[0].visit(|| std::net::TcpListener::bind("10.79.0.1:5000").unwrap());
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap()
        });
        let copied = net.hosts[1].visit(|| {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect("10.79.0.1:5000").unwrap();
            let data: Vec<u8> = (0..1_000_000u32).map(|i| (i >> 3) as u8).collect();
            let mut writer = stream.try_clone().unwrap();
            let sent = data.clone();
            let sender = std::thread::spawn(move || {
                writer.write_all(&sent).unwrap();
                writer.shutdown(std::net::Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            sender.join().unwrap();
            got == data
        });
        assert!(copied && echo.join().unwrap() == 1_000_000);
    }
}

#[test]
fn an_xsk_port_on_loopback_is_refused() {
    let Some(host) = Host::new() else { return };
    let error = host.visit(|| {
        let bound = |port| {
            let (socket, _) = receive_socket().unwrap();
            sys::bind(socket.as_fd(), &SockAddr::ip("::".parse().unwrap(), port, 0)).unwrap();
            socket
        };
        let config = UdpPortConfig { gsi: bound(1), slot: bound(2), udp_port: 2, ifindex: 1 };
        let inner = UdpPort::new(config);
        let config = XskPortConfig {
            inner,
            ifindex: 1,
            slot: 1,
            udp_port: 2,
            mode: Mode::Auto,
            bursts: BurstPath::Udp,
        };
        XskPort::open(config).map(drop).map_err(|refusal| refusal.0).unwrap_err()
    });
    assert_eq!(error.to_string(), "not an Ethernet interface");
}
