//! An impaired network, made by a native stage.

use super::*;

#[test]
fn an_impaired_network_has_the_given_rates_and_repeats_with_its_seed() {
    let run = |text: &str| {
        let mut world = World::with(HookPoint::Ingress, Hook::parse(text).unwrap());
        let arrived: Vec<u8> =
            (0..10_000).flat_map(|n| world.receive(&packet(n as u8, 8))).map(|packet| packet.3[11]).collect();
        (arrived, world.counters(HookPoint::Ingress))
    };
    let (arrived, counters) = run("impair:loss=10%,seed=7");
    assert!((900..1100).contains(&counters.drop), "{counters:?}");
    assert_eq!(arrived.len() as u64, counters.pass);
    assert_eq!(run("impair:loss=10%,seed=7").0, arrived);
    assert_ne!(run("impair:loss=10%,seed=8").0, arrived);
    assert_eq!(run("impair:loss=100%").0, []);

    let (arrived, counters) = run("impair:duplicate=10%,seed=7");
    assert_eq!(arrived.len() as u64, 10_000 + counters.doubled);
    assert!((900..1100).contains(&counters.doubled), "{counters:?}");
}

#[test]
fn an_impairment_may_concern_one_packet_of_a_kind() {
    let arrived = |text: &str| {
        let mut world = World::with(HookPoint::Ingress, Hook::parse(text).unwrap());
        let arrived = (0..6).flat_map(|n| world.receive(&packet(n, 8))).map(|packet| packet.3[11]);
        arrived.collect::<Vec<u8>>()
    };
    let opcode = wire::Opcode(packet(0, 8)[0]).row().unwrap().name.replace(' ', "-");
    assert_eq!(arrived(&format!("impair:loss=100%,opcode={opcode},nth=2")), [0, 2, 3, 4, 5]);
    assert_eq!(arrived("impair:loss=100%,nth=3.."), [0, 1]);
    assert_eq!(arrived("impair:loss=100%,opcode=cnp"), [0, 1, 2, 3, 4, 5]);
}

/// Marked packets belong to another flow than the others.
#[test]
fn a_marked_packet_keeps_its_place_in_the_order() {
    let mut world = World::with(HookPoint::Egress, Hook::parse("impair:ecn=100%,nth=2").unwrap());
    let flow = world.port.open_flow(&key(PEER), Destination::Elsewhere).unwrap();
    world.hooks.change_flow();
    for psn in 1..=2 {
        world.port.slot[..52].copy_from_slice(&packet(psn, 40)[..52]);
        world.hooks.commit(&mut world.port, flow, 52);
    }
    let sent: Vec<(u8, u8)> = world.port.sent.iter().map(|(key, bytes)| (key.tos, bytes[11])).collect();
    assert_eq!((world.port.flushed, sent), (1, vec![(5, 1), (7, 2)]));
}

#[test]
fn delayed_packets_arrive_late_in_both_directions() {
    let late = || Hook::parse("impair:delay=1s").unwrap();
    let mut world = World::with(HookPoint::Ingress, late());
    world.hooks.attach(HookPoint::Egress, late(), false).unwrap();
    assert_eq!((world.receive(&packet(1, 40)).len(), world.send(&packet(2, 40)[..52]).len()), (0, 0));
    let due_ns = world.hooks.next_due_ns().unwrap();
    // They are released although the hooks were detached.
    world.hooks.detach(HookPoint::Ingress).unwrap();
    world.hooks.detach(HookPoint::Egress).unwrap();
    let mut arrived = Vec::new();
    world.hooks.release(due_ns - 1, &mut world.port, &mut |_| panic!("too early"));
    world
        .hooks
        .release(due_ns + 1_000_000_000, &mut world.port, &mut |batch| arrived.push(batch.bytes.to_vec()));
    assert_eq!(arrived, [packet(1, 40)]);
    assert_eq!(world.port.sent, [(key(PEER), packet(2, 40)[..52].to_vec())]);
    assert_eq!((world.port.flushed, world.hooks.next_due_ns()), (1, None));
    assert_eq!((world.row("rx_xdp_held"), world.row("tx_xdp_held")), (1, 1));
}

#[test]
fn doubled_packets_leave_twice() {
    let mut world = World::with(HookPoint::Egress, Hook::parse("impair:duplicate=100%").unwrap());
    let sent = world.send(&packet(1, 40)[..52]);
    assert_eq!(sent, vec![(key(PEER), packet(1, 40)[..52].to_vec()); 2]);
}
