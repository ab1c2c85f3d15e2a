//! Back-pressure of several transmit queues: a full one delays no other.

use super::*;

/// A port with two transmit queues, and flows to the other host by each of them.
fn two_queues(net: &Net) -> (XskPort, [FlowId; 2]) {
    queues(net)
}

/// A port with some transmit queues, and a flow to the other host by each of them.
fn queues<const QUEUES: usize>(net: &Net) -> (XskPort, [FlowId; QUEUES]) {
    let (mut a, mut b) = (net.xsk(0, XdpMode::Native), net.xsk(1, XdpMode::Native));
    assert_eq!(a.sockets.queues.len(), QUEUES);
    let to_b = flow(net, &mut a, V4, 0);
    // The neighbours are resolved, so the next packets take the rings.
    transfer(&mut a, &mut b, to_b, V4, 0, mixed(1, &[64], 50));
    let mut flows = [None; QUEUES];
    // The hash of a flow, which is random, selects its queue.
    for dst_slot in 2..100 {
        let key = FlowKey { dst_slot, ..flow_key(V4, 0) };
        let id = net.hosts[0].visit(|| a.open_flow(&key, Destination::Elsewhere).unwrap());
        let flow = &a.flows[id.0 as usize];
        assert!(flow.is_direct);
        flows[flow.queue] = Some(id);
        if flows.iter().all(Option::is_some) {
            // No further packet is completed.
            net.hosts[0].visit(|| ip("link set veth0 down"));
            return (a, flows.map(|flow| flow.expect("all are found")));
        }
    }
    panic!("all flows have one queue");
}

/// The room in a new round.
fn room(port: &mut XskPort, flow: FlowId) -> TxRoom {
    port.flush();
    port.tx_state(Some(flow)).room
}

/// Commits packets to a flow until it is full; returns their number.
fn fill(port: &mut XskPort, flow: FlowId) -> usize {
    let mut sent = 0;
    while room(port, flow) == TxRoom::Open && sent < 5000 {
        commit(port, flow, &packet(1, 0, 1000));
        sent += 1;
    }
    sent
}

#[test]
fn a_full_transmit_queue_delays_no_other_queue() {
    let Some(net) = Net::new(1500, 2) else { return };
    let (mut a, [one, other]) = two_queues(&net);
    fill(&mut a, one);
    assert_eq!((room(&mut a, one), room(&mut a, other)), (TxRoom::FlowFull, TxRoom::Open));
    // Packets of the other queue do not reset the time since which this one is full.
    let start = Instant::now();
    while room(&mut a, one) != TxRoom::Open {
        assert_eq!(room(&mut a, other), TxRoom::Open);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", a.report().rows);
    }
    assert!(start.elapsed() > Duration::from_millis(10));
}

#[test]
fn a_full_transmit_queue_is_asked_once_per_round() {
    let Some(net) = Net::new(1500, 2) else { return };
    let (mut a, [one, _other]) = two_queues(&net);
    fill(&mut a, one);
    for _round in 0..3 {
        a.flush();
        let mut kicks = Vec::new();
        for _flow in 0..3 {
            let before = a.sockets.counters.kicks;
            assert_eq!(a.tx_state(Some(one)).room, TxRoom::FlowFull);
            kicks.push(a.sockets.counters.kicks - before);
        }
        assert!(kicks[0] > 0 && kicks[1..] == [0; 2], "{kicks:?}");
    }
}

#[test]
fn a_port_with_one_transmit_queue_that_is_full_is_full() {
    let Some(net) = Net::new(1500, 1) else { return };
    let (mut a, [only]) = queues(&net);
    fill(&mut a, only);
    assert_eq!(room(&mut a, only), TxRoom::PortFull);
}

#[test]
fn a_transmit_queue_that_sends_nothing_leaves_chunks_to_the_others() {
    let Some(net) = Net::new(1500, 2) else { return };
    let (mut a, [one, other]) = two_queues(&net);
    assert!((500..2000).contains(&fill(&mut a, one)));
    assert_eq!((room(&mut a, one), room(&mut a, other)), (TxRoom::FlowFull, TxRoom::Open));
    std::thread::sleep(Duration::from_millis(30));
    // It applies no back-pressure any more, and its further packets are lost.
    for number in 0..3000 {
        commit(&mut a, one, &packet(1, number, 1000));
    }
    assert!(a.extra.tx_ring_full > 1000 && a.extra.tx_no_chunk == 0, "{:?}", a.report().rows);
    let sent = fill(&mut a, other);
    assert!(sent > 400 && a.extra.tx_no_chunk == 0, "{sent}: {:?}", a.report().rows);
    assert_eq!(room(&mut a, other), TxRoom::PortFull);
}
