//! A port that sends to itself over loopback; every received packet's ICRC is verified.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;

use super::super::MAX_PACKET;
use super::*;
use crate::port::{GSI_FLOW_SLOT, RxQueues};
use sys::testing::run;
use sys::{PollFd, SockAddr};
use wire::FlushIcrc;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A port that receives its own packets in its slot queue.
fn port_to_itself() -> UdpPort {
    let (slot, v6) = receive_socket().unwrap();
    let any: IpAddr = if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    sys::bind(slot.as_fd(), &SockAddr::ip(any, 0, 0)).unwrap();
    let udp_port = sys::local_port(slot.as_fd()).unwrap();
    let gsi = UdpSocket::bind("127.0.0.1:0").unwrap().into();
    UdpPort::new(UdpPortConfig { gsi, slot, udp_port, ifindex: 0 })
}

fn flow_key(ip: IpAddr) -> FlowKey {
    FlowKey { src: ip, dst: ip, dst_slot: 0, tos: 0, ttl: 0, flush_icrc: FlushIcrc::Iba, above: 0 }
}

/// A packet that contains its number, with a pattern in all other bytes.
fn packet(number: u32, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u32 * 7 + number) as u8).collect();
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn commit(port: &mut UdpPort, flow: FlowId, bytes: &[u8]) {
    port.tx_slot()[..bytes.len()].copy_from_slice(bytes);
    port.tx_commit(flow, bytes.len());
}

#[derive(Debug)]
struct Got {
    src_port: u16,
    tos: u8,
    ttl: u8,
    /// Packets without ICRC.
    packets: Vec<Vec<u8>>,
}

/// Receives until no more packets come; checks addresses and ICRCs.
fn receive_all(port: &mut UdpPort, ip: IpAddr) -> Vec<Got> {
    let mut got = Vec::new();
    let mut fds = [PollFd::readable(port.properties().poll_fds[0])];
    // Loopback delivers before the send call returns; the wait is for kernels that do not.
    while sys::poll(&mut fds, Some(20_000_000)).unwrap() > 0 {
        port.recv(RxQueues::ALL.into(), &mut |batch| {
            assert_eq!((batch.src, batch.dst, batch.queue), (ip, ip, RxQueue::Slot));
            let icrc = batch.icrc_header().unwrap();
            let mut packets = Vec::new();
            for (id, packet) in batch.packets().enumerate() {
                icrc.verify(id as u16, packet).unwrap_or_else(|e| panic!("packet {id}: {e:?}"));
                let expected = icrc.icrc(id as u16, &packet[..packet.len() - 4]);
                assert_eq!(packet[packet.len() - 4..], expected.to_le_bytes(), "id is the index: {id}");
                packets.push(packet[..packet.len() - 4].to_vec());
            }
            got.push(Got { src_port: batch.src_port, tos: batch.tos, ttl: batch.ttl, packets });
        });
    }
    got
}

fn lengths(got: &[Got]) -> Vec<Vec<usize>> {
    got.iter().map(|g| g.packets.iter().map(Vec::len).collect()).collect()
}

#[test]
fn equal_packets_travel_as_one_burst_and_a_shorter_packet_ends_it() {
    for ip in [V4, V6] {
        let mut port = port_to_itself();
        let flow = port.open_flow(&flow_key(ip), Destination::Elsewhere).unwrap();
        let sent: Vec<_> = [64, 64, 64, 20, 64].iter().zip(0..).map(|(len, i)| packet(i, *len)).collect();
        sent.iter().for_each(|p| commit(&mut port, flow, p));
        assert_eq!(port.flush(), 5);
        assert_eq!(port.flush(), 0);
        let got = receive_all(&mut port, ip);
        assert_eq!(lengths(&got), [vec![64, 64, 64, 20], vec![64]]);
        assert_eq!(got.into_iter().flat_map(|g| g.packets).collect::<Vec<_>>(), sent);
        let counters = port.counters();
        assert_eq!((counters.tx_packets, counters.tx_bursts, counters.rx_packets), (5, 2, 5));
        assert_eq!((counters.rx_batches, counters.tx_errors, counters.tx_last_errno), (2, 0, 0));
    }
}

#[test]
fn a_long_first_packet_shares_its_burst_with_one_shorter_packet() {
    for (ip, middles_max) in [(V4, 62), (V6, 62)] {
        let mut port = port_to_itself();
        let flow = port.open_flow(&flow_key(ip), Destination::Elsewhere).unwrap();
        commit(&mut port, flow, &packet(0, 1052));
        (1..=70).for_each(|i| commit(&mut port, flow, &packet(i, 1036)));
        port.flush();
        assert_eq!(port.counters().tx_packets, 71);
        let got = receive_all(&mut port, ip);
        let counts: Vec<_> = got.iter().map(|g| g.packets.len()).collect();
        assert_eq!(counts, [2, middles_max, 69 - middles_max]);
        let numbers: Vec<_> = got.iter().flat_map(|g| g.packets.iter().map(|p| p[3])).collect();
        assert_eq!(numbers, (0..=70).collect::<Vec<u8>>());
    }
}

#[test]
fn many_small_packets_leave_in_bursts_of_128() {
    let mut port = port_to_itself();
    let flow = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    (0..300).for_each(|i| commit(&mut port, flow, &packet(i, 24)));
    assert_eq!(port.flush(), 300);
    let got = receive_all(&mut port, V4);
    let most = got.iter().map(|g| g.packets.len()).max().unwrap();
    assert_eq!(most, usize::from(port.tx.segments_max));
    assert_eq!(got.iter().map(|g| g.packets.len()).sum::<usize>(), 300);
}

#[test]
fn every_size_arrives_intact() {
    for ip in [V4, V6] {
        let mut port = port_to_itself();
        let flow = port.open_flow(&flow_key(ip), Destination::Elsewhere).unwrap();
        // From a bare BTH to the largest packet, one of each length; growing lengths end each burst.
        let sizes = (12..=4156).step_by(37).chain([MAX_PACKET - 4]);
        let sent: Vec<_> = sizes.zip(0..).map(|(len, i)| packet(i, len)).collect();
        let mut packets = Vec::new();
        for group in sent.chunks(20) {
            group.iter().for_each(|p| commit(&mut port, flow, p));
            assert_eq!(port.flush(), group.len());
            packets.extend(receive_all(&mut port, ip).into_iter().flat_map(|g| g.packets));
        }
        assert_eq!(packets, sent);
    }
}

#[test]
fn alternating_flows_share_staging_but_not_bursts() {
    let mut port = port_to_itself();
    let keys = [
        flow_key(V4),
        FlowKey { dst_slot: 7, ..flow_key(V4) },
        FlowKey { tos: 0x68, ..flow_key(V4) },
        FlowKey { ttl: 9, ..flow_key(V4) },
    ];
    let flows = keys.map(|key| port.open_flow(&key, Destination::Elsewhere).unwrap());
    assert_eq!(port.open_flow(&keys[1], Destination::Elsewhere).unwrap(), flows[1]);
    assert_eq!(port.tx.sockets.len(), 9, "eight classes of slots and QP1");
    for i in 0..40 {
        commit(&mut port, flows[i % 4], &packet(i as u32, 100 + i % 4));
    }
    assert_eq!(port.flush(), 40);
    let got = receive_all(&mut port, V4);
    assert_eq!(got.len(), 4);
    let mut by_kind = HashMap::new();
    for g in &got {
        assert_eq!(g.packets.len(), 10);
        let which = g.packets[0].len() - 100;
        for (n, p) in g.packets.iter().enumerate() {
            assert_eq!(*p, packet((n * 4 + which) as u32, 100 + which));
        }
        by_kind.insert(which, (g.src_port, g.tos, g.ttl));
    }
    let (plain, slot7, tos, ttl) = (by_kind[&0], by_kind[&1], by_kind[&2], by_kind[&3]);
    assert_ne!(plain.0, slot7.0, "each destination slot has its own source port");
    assert!(plain.0 >= 0xc000);
    assert_eq!((plain.1, plain.2), (0, 64));
    assert_eq!(tos, (plain.0, 0x68, 64));
    assert_eq!(ttl, (plain.0, 0, 9));
}

#[test]
fn tos_and_ttl_reach_the_receiver_over_ipv6() {
    let mut port = port_to_itself();
    let first =
        port.open_flow(&FlowKey { tos: 0x02, ttl: 1, ..flow_key(V6) }, Destination::Elsewhere).unwrap();
    let second =
        port.open_flow(&FlowKey { tos: 0x60, ttl: 255, ..flow_key(V6) }, Destination::Elsewhere).unwrap();
    for flow in [first, second] {
        (0..3).for_each(|i| commit(&mut port, flow, &packet(i, 40)));
    }
    assert_eq!(port.flush(), 6);
    let got = receive_all(&mut port, V6);
    let seen: Vec<_> = got.iter().map(|g| (g.tos, g.ttl, g.packets.len())).collect();
    assert_eq!(seen, [(0x02, 1, 3), (0x60, 255, 3)]);
}

#[test]
fn full_bursts_and_full_tables_are_sent_without_a_flush() {
    let mut port = port_to_itself();
    let flow = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    for i in 0..200 {
        commit(&mut port, flow, &packet(i, 4108));
    }
    let counters = port.counters();
    assert!(counters.tx_packets >= 180, "{counters:?}");
    port.flush();
    assert_eq!(port.counters().tx_packets, 200);
    let flows: Vec<_> = (0..4)
        .map(|slot| {
            port.open_flow(&FlowKey { dst_slot: slot, ..flow_key(V4) }, Destination::Elsewhere).unwrap()
        })
        .collect();
    receive_all(&mut port, V4);
    // Packets of growing length never share a burst: the table of bursts is full first.
    for i in 0..1000 {
        commit(&mut port, flows[i as usize % 4], &packet(i, 12 + i as usize / 4));
    }
    port.flush();
    assert_eq!(port.counters().tx_packets, 1200);
    assert!(port.counters().tx_full > counters.tx_full);
}

#[test]
fn a_refused_burst_is_sent_in_parts_with_new_icrcs() {
    let mut port = port_to_itself();
    let flow = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    for i in 0..100 {
        commit(&mut port, flow, &packet(i, 50));
    }
    commit(&mut port, flow, &packet(100, 30));
    // The kernel's first refusal leads to parts of 64 packets, which ...
    assert_eq!(port.tx.resend_in_parts(0), 101);
    assert_eq!((port.tx.segments_max, port.tx.flows[0].segments_max), (64, 64));
    let got = receive_all(&mut port, V4);
    assert_eq!(got.iter().map(|g| g.packets.len()).collect::<Vec<_>>(), [64, 37]);
    // ... after a refusal of a short burst become single packets.
    port.tx.bursts[0].count = 64;
    assert_eq!(port.tx.resend_in_parts(0), 101);
    assert_eq!(port.tx.flows[0].segments_max, 1);
    let got = receive_all(&mut port, V4);
    assert_eq!(got.iter().map(|g| g.packets.len()).sum::<usize>(), 101);
    assert_eq!(port.counters().tx_gso_refused, 2);
}

#[test]
fn packets_dropped_at_a_full_receive_buffer_are_counted() {
    let mut port = port_to_itself();
    sys::set_opt(port.rx.slot.as_fd(), sys::Opt::RECEIVE_BUFFER, 8192).unwrap();
    let flow = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    for number in 0..64 {
        commit(&mut port, flow, &packet(number, 4096));
        port.flush();
    }
    let kept = receive_all(&mut port, V4).iter().map(|got| got.packets.len() as u64).sum::<u64>();
    let PortCounters { rx_no_buffer, tx_packets, .. } = port.counters();
    assert!(kept > 0 && rx_no_buffer > 0, "{kept} kept, {rx_no_buffer} dropped");
    assert_eq!(kept + rx_no_buffer, tx_packets);
}

#[test]
fn packets_that_cannot_leave_are_counted_by_reason() {
    let mut port = port_to_itself();
    // From loopback there is no route to a foreign network.
    let key = FlowKey { dst: "203.0.113.1".parse().unwrap(), ..flow_key(V4) };
    let nowhere = port.open_flow(&key, Destination::Elsewhere).unwrap();
    let here = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    (0..3).for_each(|i| commit(&mut port, nowhere, &packet(i, 40)));
    (0..3).for_each(|i| commit(&mut port, here, &packet(i, 40)));
    assert_eq!(port.flush(), 3, "the failure of one burst does not affect the others");
    let counters = port.counters();
    let lost = counters.tx_unreachable + counters.tx_errors + counters.tx_forbidden;
    assert_eq!((lost, counters.tx_packets), (3, 3));
    assert_ne!(counters.tx_last_errno, 0);
    assert_eq!(lengths(&receive_all(&mut port, V4)), [vec![40; 3]]);
}

#[test]
fn flows_with_impossible_addresses_are_refused() {
    let mut port = port_to_itself();
    let mixed = FlowKey { dst: V6, ..flow_key(V4) };
    assert_eq!(
        port.open_flow(&mixed, Destination::Elsewhere).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
    let foreign = flow_key("203.0.113.1".parse().unwrap());
    assert_eq!(
        port.open_flow(&foreign, Destination::Elsewhere).unwrap_err().raw_os_error(),
        Some(libc::EADDRNOTAVAIL)
    );
}

#[test]
fn every_address_of_many_gets_a_packet_and_no_flow_stays_for_it() {
    let mut port = port_to_itself();
    let held = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    // More than the maximum number of flows; each is another address of this host.
    for n in 0..70_000u32 {
        let dst = Ipv4Addr::from(0x7f01_0000 + n).into();
        let flow = port.datagram_flow(&FlowKey { dst, ..flow_key(V4) }).unwrap();
        commit(&mut port, flow, &packet(n, 40));
        if n % 100 == 99 {
            assert_eq!(port.flush(), 100);
            let mut got = Vec::new();
            while port.recv(RxQueues::SLOT.into(), &mut |batch| got.push((batch.dst, batch.bytes.len()))) > 0
            {
            }
            let sent = (n - 99..=n).map(|n| (Ipv4Addr::from(0x7f01_0000 + n).into(), 44));
            assert_eq!(got, sent.collect::<Vec<_>>());
        }
    }
    assert!(port.tx.flows.len() <= 1025, "{}", port.tx.flows.len());
    commit(&mut port, held, &packet(1, 40));
    assert_eq!(port.flush(), 1);
    assert_eq!(lengths(&receive_all(&mut port, V4)), [vec![40]], "a held flow is not reused");
}

#[test]
fn a_closed_flow_can_be_evicted() {
    let mut port = port_to_itself();
    let key = |n: u32| FlowKey { dst: Ipv4Addr::from(0x7f01_0000 + n).into(), ..flow_key(V4) };
    let (a, b) = (
        port.open_flow(&key(0), Destination::Elsewhere).unwrap(),
        port.open_flow(&key(0), Destination::Elsewhere).unwrap(),
    );
    assert_eq!(a, b);
    let crowd = |port: &mut UdpPort| assert!((1..2000).all(|n| port.datagram_flow(&key(n)).is_ok()));
    port.close_flow(a);
    crowd(&mut port);
    assert_eq!(port.datagram_flow(&key(0)).unwrap(), a, "one of two holders is left");
    port.close_flow(b);
    crowd(&mut port);
    assert_ne!(port.datagram_flow(&key(0)).unwrap(), a);
}

#[test]
fn a_full_send_buffer_has_no_room_until_the_wire_has_taken_half_of_it() {
    if !sys::testing::enter_new_netns() {
        return;
    }
    // 2.5 MB/s, which a debug build exceeds on a busy machine too; the queue holds everything.
    run("tc", "qdisc add dev lo root tbf rate 20mbit burst 70kb limit 40mb");
    let mut port = port_to_itself();
    let flow = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    let mut pushed_back_after = 0;
    for number in 0..100_000 {
        if port.tx_state(None).room != TxRoom::Open {
            pushed_back_after = number;
            break;
        }
        commit(&mut port, flow, &packet(number, 1040));
        if number % 60 == 59 {
            port.flush();
        }
    }
    assert!(pushed_back_after > 0, "the buffer has a limit");
    port.flush();
    assert_eq!(port.counters().tx_no_buffer, 0, "no packet is lost below the limit");
    assert!(port.tx_state(None).room != TxRoom::Open);
    let begun = std::time::Instant::now();
    while port.tx_state(None).room != TxRoom::Open {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "there is room again");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    commit(&mut port, flow, &packet(0, 1040));
    assert_eq!(port.flush(), 1);
}

#[test]
fn a_refused_datagram_is_handed_over_and_the_next_one_leaves() {
    for (ip, elsewhere) in [(V4, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9))), (V6, V6)] {
        for (slot, kind, other) in [
            (GSI_FLOW_SLOT, RefusedKind::Mads, RefusedKind::Packets),
            (7, RefusedKind::Packets, RefusedKind::Mads),
        ] {
            let absent = UdpSocket::bind((ip, 0)).unwrap();
            let mut port = port_to_itself();
            port.tx.set_udp_port(absent.local_addr().unwrap().port());
            drop(absent);
            let key = FlowKey { dst: elsewhere, dst_slot: slot, ..flow_key(ip) };
            let flow = port.open_flow(&key, Destination::Elsewhere).unwrap();
            commit(&mut port, flow, &packet(1, 276));
            assert_eq!(port.flush(), 1);
            // The kernel has an error for this socket now.
            std::thread::sleep(std::time::Duration::from_millis(20));
            commit(&mut port, flow, &packet(2, 276));
            assert_eq!((port.flush(), port.counters().tx_errors), (1, 0));
            std::thread::sleep(std::time::Duration::from_millis(20));
            port.take_refused(other, &mut |_, _| panic!("it is of the other kind"));
            let mut refused = Vec::new();
            port.take_refused(kind, &mut |to, quoted| {
                assert_eq!(to, elsewhere);
                refused.push(quoted[..276].to_vec());
            });
            assert_eq!(refused, [packet(1, 276), packet(2, 276)]);
            port.take_refused(kind, &mut |_, _| panic!("it is handed over once"));
        }
    }
}

#[test]
fn datagrams_to_a_sending_socket_do_not_hide_a_refused_datagram() {
    let absent = UdpSocket::bind((V4, 0)).unwrap();
    let mut port = port_to_itself();
    port.tx.set_udp_port(absent.local_addr().unwrap().port());
    drop(absent);
    let flow = port.open_flow(&flow_key(V4), Destination::Elsewhere).unwrap();
    let (stranger, to) = (UdpSocket::bind((V4, 0)).unwrap(), port.headers(flow).unwrap().ports().0);
    for _ in 0..1000 {
        stranger.send_to(&[0; 1400], (V4, to)).unwrap();
    }
    commit(&mut port, flow, &packet(1, 276));
    assert_eq!(port.flush(), 1);
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut refused = 0;
    port.take_refused(RefusedKind::Packets, &mut |_, _| refused += 1);
    assert_eq!(refused, 1);
}

/// The numbers of the packets that wait in `reader`, which has the place of a network.
fn numbers(reader: &OwnedFd) -> Vec<u32> {
    let mut bytes = [0; 65_536];
    let records = std::iter::from_fn(|| {
        let record = sys::recv_record(reader.as_fd(), &mut bytes, &mut Vec::new(), false).ok()?;
        // Each packet is 1000 bytes long, with its ICRC.
        Some(
            bytes[..record.len]
                .chunks(1000)
                .map(|bytes| u32::from_be_bytes(bytes[..4].try_into().unwrap()))
                .collect::<Vec<_>>(),
        )
    });
    records.flatten().collect()
}

#[test]
fn packets_wait_for_a_full_send_buffer_and_leave_once_and_in_order() {
    let mut port = port_to_itself();
    let flows = [V4, V6].map(|ip| port.open_flow(&flow_key(ip), Destination::Elsewhere).unwrap());
    let (writer, reader) = sys::seqpacket_pair().unwrap();
    port.tx.set_sockets(&writer);
    let (mut committed, mut arrived) = (0, Vec::new());
    while !port.has_unsent() {
        flows.iter().for_each(|flow| commit(&mut port, *flow, &packet(committed, 996)));
        committed += 1;
        port.flush();
    }
    assert_eq!(port.tx_state(None).room, TxRoom::PortFull);
    // Further packets join those that wait.
    for _ in 0..20 {
        flows.iter().for_each(|flow| commit(&mut port, *flow, &packet(committed, 996)));
        committed += 1;
    }
    while port.has_unsent() {
        let found = numbers(&reader);
        assert!(!found.is_empty());
        arrived.extend(found);
        port.recv(RxQueues::SLOT.into(), &mut |_| {});
    }
    port.flush();
    arrived.extend(numbers(&reader));
    for number in 0..committed {
        assert_eq!(arrived.iter().filter(|found| **found == number).count(), 2, "{number}");
    }
    let counters = port.counters();
    assert_eq!((counters.tx_packets, counters.tx_no_buffer), (2 * u64::from(committed), 0));
    assert!(counters.tx_waits > 0 && port.tx_state(None).room == TxRoom::Open);
    // Without space in the staging area, packets are lost and counted.
    while port.counters().tx_no_buffer == 0 {
        flows.iter().for_each(|flow| commit(&mut port, *flow, &packet(committed, 996)));
        committed += 1;
    }
    arrived.clear();
    while port.has_unsent() {
        arrived.extend(numbers(&reader));
        port.flush();
    }
    arrived.extend(numbers(&reader));
    let counters = port.counters();
    assert_eq!(counters.tx_packets + counters.tx_no_buffer, 2 * u64::from(committed));
}
