//! Bursts in copy mode.

use super::*;

/// A port of host 0; its bursts leave through UDP sockets.
fn with_bursts_by_udp(net: &Net, mode: XdpMode) -> XskPort {
    net.hosts[0].visit(|| {
        let (inner, mode) = (udp(UDP_PORT), Mode::Only(mode));
        let bursts = BurstPath::Udp;
        let config = XskPortConfig { inner, ifindex: ifindex(), slot: 1, udp_port: UDP_PORT, mode, bursts };
        XskPort::open(config).map_err(|refusal| refusal.0).unwrap()
    })
}

#[test]
fn bursts_leave_through_udp_sockets_and_single_packets_through_the_ring() {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let Some(net) = Net::new(1500, 1) else { return };
        let (mut a, mut b) = (with_bursts_by_udp(&net, mode), net.xsk(1, mode));
        assert!(a.report().description.contains(", bursts by UDP, 1 queue"), "{}", a.report().description);
        assert!(a.properties().prefers_equal_packets && !b.properties().prefers_equal_packets);
        for family in [V4, V6] {
            let there = flow(&net, &mut a, family, 0);
            let alone = |a: &mut XskPort, b: &mut XskPort, number: usize| {
                transfer(a, b, there, family, 0, vec![packet(1, 0, 100 + number)]);
            };
            // The first packets resolve the neighbour.
            (0..5).for_each(|number| alone(&mut a, &mut b, number));
            let (ring, bursts) = (a.counters.tx_packets, a.extra.tx_bursts);
            (0..5).for_each(|number| alone(&mut a, &mut b, number));
            assert_eq!((a.counters.tx_packets - ring, a.extra.tx_bursts - bursts), (5, 0), "{family} {mode}");
            // In order: `transfer` repeats at most a few times. A window is one round.
            transfer(&mut a, &mut b, there, family, 0, mixed(1, &[1036], 3000));
            let by_udp = a.extra.tx_bursts - bursts;
            assert!(by_udp >= 2000, "{family} {mode}: {by_udp} {:?}", a.report().rows);
            // AF_XDP receives them; in generic mode a burst is one frame.
            assert!(b.counters.rx_packets >= by_udp, "{:?}", b.report().rows);
            assert_eq!(b.extra.rx_unjoined > 0, !is_native(mode), "{:?}", b.report().rows);
            // After some single packets the flow leaves through the ring again.
            for number in 0..200 {
                alone(&mut a, &mut b, number);
            }
            let ring = a.counters.tx_packets;
            alone(&mut a, &mut b, 0);
            assert_eq!(a.counters.tx_packets - ring, 1, "{family} {mode}");
        }
        assert_eq!((a.close().lost, b.close().lost), (0, 0));
    }
}

#[test]
fn a_tap_is_told_the_headers_and_the_identification_of_a_packet_of_a_burst() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, mut b) = (with_bursts_by_udp(&net, XdpMode::Generic), net.xsk(1, XdpMode::Generic));
    let there = flow(&net, &mut a, V4, 0);
    transfer(&mut a, &mut b, there, V4, 0, mixed(1, &[1036], 1000));
    let (src_port, _) = a.headers(there).unwrap().ports();
    for number in 0..8 {
        assert_eq!(a.identification(there, 1036), number);
        commit(&mut a, there, &packet(1, number.into(), 1036));
    }
    a.flush();
    let (mut ports, start) = (Vec::new(), Instant::now());
    while ports.is_empty() && start.elapsed() < REPEAT_AFTER {
        b.recv(RxQueues::ALL.into(), &mut |batch| ports.push((batch.src_port, batch.packets().count())));
    }
    assert_eq!(ports, [(src_port, 8)]);
}
