//! Laws of a data centre: bytes and frames are conserved, the seed determines the run.

use super::topology::Topology;
use super::*;

/// A star of hosts at 10 Gbit/s with an incast of 100 KB from each to the last.
fn star(hosts: usize) -> Spec {
    let (rate, delay) = (Rate { bps: 10_000_000_000 }, Time { ps: 1_000_000 });
    let (buffer, duration) = (Bytes(4_000_000), Time { ps: 100_000_000_000 });
    let spec = Spec::new(Shape::Star, rate, delay, buffer, duration);
    Spec { hosts: Some(hosts), workload: vec![incast(100_000)], ..spec }
}

fn incast(size: u64) -> Workload {
    Workload { size: Some(Bytes(size)), ..Workload::new(Kind::Incast) }
}

fn results(spec: &Spec, seed: u64) -> Results {
    run_datacentre(spec, seed, &mut |_| true).expect("the description is right")
}

#[test]
fn an_incast_takes_as_long_as_its_bytes_on_the_last_link() {
    let results = results(&star(9), 1);
    assert_eq!((results.flows, results.complete, results.failed), (8, 8, 0));
    assert_eq!(results.received_bytes, 800_000);
    let seconds = results.virtual_seconds;
    // 25 packets with 98 bytes around each: 819,600 bytes at 1.25 GB/s are 656 us.
    assert!((0.000_656..0.000_670).contains(&seconds), "{seconds}");
    assert!(results.fairness > Some(0.98), "{:?}", results.fairness);
}

/// Four leaf and two spine switches with 16 hosts.
fn leaf_spine() -> Spec {
    Spec {
        topology: Shape::LeafSpine,
        leaves: Some(4),
        spines: Some(2),
        hosts_per_leaf: Some(4),
        hosts: None,
        duration: Time { ps: 5_000_000_000 },
        ..star(2)
    }
}

fn with(kind: Kind, size: u64) -> Workload {
    Workload { kind, ..incast(size) }
}

fn poisson(mix: Mix, load: f64) -> Workload {
    Workload { kind: Kind::Poisson, size: None, mix: Some(mix), load: Some(load), ..incast(1) }
}

/// Runs until nothing is in flight, and checks that every frame and every byte is accounted for.
fn drained(spec: &Spec, seed: u64) -> Results {
    let mut world = World::new(spec, seed).expect("the description is right");
    assert!(world.run(spec, &mut |_| true));
    let until = world.now + 1_000_000_000_000;
    while let Some((at, event)) = world.network.events.take()
        && at < until
    {
        world.now = at;
        if event != Event::Sample {
            world.handle(event, 1);
        }
    }
    assert!(world.network.is_quiet(), "frames are left");
    let flows = &world.works.flows;
    assert!(flows.iter().all(|flow| flow.end_ps.is_some() && !flow.is_failed), "a flow is incomplete");
    let bytes: u64 = flows.iter().map(|flow| flow.bytes).sum();
    assert_eq!(world.hosts.received_bytes, bytes, "each byte is written once");
    let Tally { sent, delivered, dropped, lost, .. } = world.network.tally;
    assert_eq!(sent, delivered + dropped + lost);
    world.results(seed, false)
}

#[test]
fn frames_and_bytes_are_conserved_on_every_topology_by_every_workload() {
    let dumbbell = Spec { topology: Shape::Dumbbell, hosts: Some(8), ..star(2) };
    let fat_tree = Spec { pods: Some(3), cores_per_spine: Some(2), topology: Shape::FatTree, ..leaf_spine() };
    let works = [
        incast(200_000),
        Workload { every: Some(Time { ps: 1_000_000_000 }), senders: Some(3), ..incast(50_000) },
        with(Kind::Permutation, 300_000),
        Workload { parallel: Some(2), ..with(Kind::AllToAll, 20_000) },
        with(Kind::RingAllReduce, 400_000),
        with(Kind::TreeAllReduce, 100_000),
        poisson(Mix::Hadoop, 0.3),
    ];
    for topology in [star(5), dumbbell, leaf_spine(), fat_tree] {
        for work in &works {
            let spec = Spec { workload: vec![work.clone()], ..topology.clone() };
            let results = drained(&spec, 3);
            assert!(results.flows > 0, "{:?} {:?}", spec.topology, work.kind);
            let is_collective = matches!(work.kind, Kind::RingAllReduce | Kind::TreeAllReduce);
            assert_eq!(results.collectives.len(), usize::from(is_collective));
        }
    }
}

#[test]
fn lost_and_dropped_frames_are_sent_again() {
    for recovery in [Recovery::SelectiveRepeat, Recovery::GoBackN] {
        let lossy = Spec { loss: 0.01, recovery, workload: vec![incast(500_000)], ..leaf_spine() };
        let results = drained(&lossy, 4);
        assert!(results.frames.lost > 50 && results.retransmitted > 0, "{:?}", results.frames);
        let full = Spec { queue: Some(Bytes(60_000)), recovery, ..star(9) };
        let results = drained(&full, 5);
        assert!(results.frames.dropped > 0 && results.retransmitted > 0, "{:?}", results.frames);
    }
}

#[test]
fn pfc_loses_nothing_where_a_switch_without_it_drops() {
    let small = Spec { buffer: Bytes(300_000), workload: vec![incast(1_000_000)], ..star(9) };
    assert!(drained(&small, 1).frames.dropped > 0);
    let paused = drained(&Spec { pfc: true, ..small }, 1);
    assert_eq!((paused.frames.dropped, paused.retransmitted), (0, 0));
    assert!(paused.frames.pauses_to_hosts > 0 && paused.paused_hosts_seconds > 0.0);
    assert!(paused.queue_bytes.max <= 300_000.0);
}

/// All hosts of three leaf switches send to one host of the fourth. The single spine switch pauses the leaf
/// switches, and so stops what their hosts send to each other.
#[test]
fn a_pause_blocks_flows_to_other_hosts_and_not_those_of_another_priority() {
    let incast = Workload { senders: Some(12), ..incast(2_000_000) };
    let victims =
        |dscp| Workload { start: Time { ps: 1_000_000_000 }, dscp, ..with(Kind::Permutation, 20_000) };
    let spec = |dscp| Spec {
        spines: Some(1),
        buffer: Bytes(400_000),
        pfc: true,
        workload: vec![incast.clone(), victims(dscp)],
        ..leaf_spine()
    };
    let slowdown = |dscp| {
        let results = drained(&spec(dscp), 1);
        assert!(results.frames.pauses_to_switches > 0 && results.frames.dropped == 0, "{:?}", results.frames);
        let small = results.classes.iter().find(|class| class.name == "10 to 100 KB");
        small.map_or(0.0, |class| class.slowdown.p50)
    };
    let (same, other) = (slowdown(26), slowdown(0));
    assert!(same > 3.0 * other, "{same} and {other}");
}

/// Three hosts at another switch and one at that of the receiver: pauses share by ports, so the one gets half
/// of the rate (Jain 0.75). DCQCN shares by flows.
#[test]
fn pauses_share_by_ports_and_marks_share_by_flows() {
    let pauses = Spec {
        topology: Shape::Dumbbell,
        rate: Rate { bps: 40_000_000_000 },
        pfc: true,
        pfc_xoff: Some(Bytes(200_000)),
        buffer: Bytes(12_000_000),
        mtu: 1024,
        workload: vec![Workload { size: None, senders: Some(4), ..incast(1) }],
        ..star(6)
    };
    let unfair = results(&pauses, 1).fairness.expect("four flows");
    assert!((unfair - 0.75).abs() < 0.01, "{unfair}");
    let fair = results(&Spec { ecn: true, ..pauses }, 1).fairness.expect("four flows");
    assert!(fair > 0.95, "{fair}");
}

#[test]
fn packets_are_marked_only_in_queues_above_kmin_and_cause_cnps() {
    let marking = Spec { ecn: true, workload: vec![incast(2_000_000)], ..star(5) };
    let results = drained(&marking, 1);
    assert!(results.frames.marked > 0 && results.cnps > 0 && results.cnps_handled > 0);
    let high = Spec { kmin: Bytes(3_000_000), kmax: Bytes(3_500_000), ..marking.clone() };
    assert_eq!(drained(&high, 1).frames.marked, 0, "the queue stays below 3 MB");
    let off = Spec { ecn: false, ..marking };
    let off = drained(&off, 1);
    assert_eq!((off.frames.marked, off.cnps), (0, 0));
    assert!(off.queue_bytes.max > results.queue_bytes.max / 2.0);
}

#[test]
fn flows_spread_over_the_ways_by_their_udp_source_port() {
    let spec = Spec { spines: Some(4), ..leaf_spine() };
    let topology = Topology::new(&spec).expect("it is right");
    let mut counts = std::collections::BTreeMap::new();
    for port in 0xc000..0xd000_u16 {
        let hash = topology::flow_hash(0, 15, port);
        let path: Vec<u32> = topology.path(0, 15, hash).collect();
        assert_eq!(path.len(), 4, "up to a spine switch, and down");
        assert_eq!(path, topology.path(0, 15, hash).collect::<Vec<_>>(), "one flow has one way");
        *counts.entry(path[1]).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 4);
    assert!(counts.values().all(|count| (900..1150).contains(count)), "{counts:?}");
    assert_eq!(topology.path(0, 3, 7).count(), 2, "hosts of one leaf need no spine");
}

#[test]
fn a_seed_determines_the_whole_run() {
    let spec = Spec { ecn: true, loss: 0.001, workload: vec![poisson(Mix::Storage, 0.4)], ..leaf_spine() };
    let text = |seed| format!("{:?}", results(&spec, seed));
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn poisson_arrivals_bring_the_load_that_was_asked_for() {
    let spec = Spec {
        duration: Time { ps: 50_000_000_000 },
        workload: vec![poisson(Mix::Storage, 0.5)],
        ..star(16)
    };
    let results = results(&spec, 1);
    let load = results.goodput_bps / 160e9;
    assert!((0.45..0.55).contains(&load), "{load}");
}

#[test]
fn an_observer_ends_a_run() {
    let endless = vec![Workload { size: None, ..incast(1) }];
    let spec = Spec { rate: Rate { bps: 40_000_000_000 }, workload: endless, ..star(5) };
    let mut calls = 0;
    let stopped = run_datacentre(&spec, 1, &mut |progress| {
        calls += 1;
        assert!(progress.frames > 0 && progress.incomplete == 0);
        calls < 3
    });
    let stopped = stopped.expect("the description is right");
    assert!(stopped.is_stopped && calls == 3 && stopped.virtual_seconds < 0.1);
    let whole = results(&spec, 1);
    assert!(!whole.is_stopped && (whole.virtual_seconds - 0.1).abs() < 1e-3);
    assert!(whole.goodput_bps > 36e9, "{}", whole.goodput_bps);
}

#[test]
fn a_description_that_cannot_be_simulated_is_refused_by_its_key() {
    let bad = [
        ("hosts", Spec { hosts: Some(1), ..star(2) }),
        ("hosts", Spec { hosts: None, ..star(2) }),
        ("hosts", Spec { leaves: Some(60_000), hosts_per_leaf: Some(60_000), ..leaf_spine() }),
        ("leaves", Spec { leaves: Some(20_000), hosts_per_leaf: Some(1), ..leaf_spine() }),
        ("pods", Spec { topology: Shape::FatTree, ..leaf_spine() }),
        ("mtu", Spec { mtu: 1500, ..star(2) }),
        ("loss", Spec { loss: -0.1, ..star(2) }),
        ("pmax", Spec { pmax: f64::NAN, ..star(2) }),
        ("kmin", Spec { kmin: Bytes(9), kmax: Bytes(8), ..star(2) }),
        ("buffer", Spec { pfc: true, buffer: Bytes(30_000), ..star(9) }),
        ("duration", Spec { duration: Time { ps: 0 }, ..star(2) }),
        ("limit", Spec { limit: Some(Time { ps: 1 }), ..star(2) }),
        ("workload", Spec { workload: vec![], ..star(2) }),
        ("senders", Spec { workload: vec![Workload { senders: Some(2), ..incast(1) }], ..star(2) }),
        ("size", Spec { workload: vec![Workload { size: None, ..with(Kind::AllToAll, 1) }], ..star(2) }),
        ("load", Spec { workload: vec![Workload { load: None, ..poisson(Mix::Storage, 0.1) }], ..star(2) }),
        ("mix", Spec { workload: vec![Workload { mix: None, ..poisson(Mix::Storage, 0.1) }], ..star(2) }),
    ];
    for (key, spec) in bad {
        let error = spec.check().expect_err(key);
        assert_eq!(error.key, key, "{error}");
    }
}
