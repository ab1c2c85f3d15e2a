//! Data centres of 64 and of 1,000 hosts, and the memory of their connections.
//!
//! The allocation counters belong to the process; the tests of this file run in processes of their own with
//! nextest, and one after the other by a lock without it.

use std::alloc::System;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use roxie_sim::{
    Bytes, Kind, Mix, Rate, Recovery, Results, RunProgress, Shape, Spec, Time, Workload, run_datacentre,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

static ALONE: Mutex<()> = Mutex::new(());

/// A virtual millisecond in picoseconds.
const MS: u64 = 1_000_000_000;

/// Leaf-spine at 10 Gbit/s with a path MTU of 4096, 30 % load of web search.
fn leaf_spine(leaves: usize, hosts_per_leaf: usize, duration: Time) -> Spec {
    let (rate, delay, buffer) = (Rate { bps: 10_000_000_000 }, Time { ps: 1_000_000 }, Bytes(4_000_000));
    let web_search = Workload { load: Some(0.3), mix: Some(Mix::WebSearch), ..Workload::new(Kind::Poisson) };
    Spec {
        leaves: Some(leaves),
        spines: Some(hosts_per_leaf / 2),
        hosts_per_leaf: Some(hosts_per_leaf),
        ecn: true,
        workload: vec![web_search],
        ..Spec::new(Shape::LeafSpine, rate, delay, buffer, duration)
    }
}

fn run(spec: &Spec) -> Results {
    run_datacentre(spec, 1, &mut |_| true).expect("the description is right")
}

fn check(results: &Results, hosts: usize) {
    assert_eq!((results.hosts, results.complete, results.failed), (hosts, results.flows, 0));
    assert_eq!(results.timeouts, 0);
    let all = results.classes.last().expect("flows are complete");
    assert_eq!((all.name, all.flows), ("all", results.flows));
    assert!((1.0..4.0).contains(&all.slowdown.p50), "{:?}", all.slowdown);
    let load = results.goodput_bps / (hosts as f64 * 10e9);
    assert!((0.15..0.35).contains(&load), "{load}");
}

#[test]
fn all_flows_of_64_hosts_complete() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    check(&run(&leaf_spine(8, 8, Time { ps: 20 * MS })), 64);
}

/// 100 ms of 1,000 hosts within 20 minutes on one core; some 9 million data packets.
#[test]
#[expect(clippy::disallowed_methods, reason = "the time that the simulation takes")]
fn all_flows_of_1000_hosts_complete() {
    if std::env::var_os("ROXIE_TEST_FULL").is_none() {
        println!("skipped: ./check --full runs it");
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let began = Instant::now();
    let results = run(&leaf_spine(25, 40, Time { ps: 100 * MS }));
    let took = began.elapsed();
    println!("{} frames in {took:.1?}", results.frames.sent);
    check(&results, 1000);
    assert!(took < Duration::from_secs(20 * 60), "{took:?}");
}

/// A tree of hosts has a connection in each direction of each edge, and all but a few are idle.
#[test]
fn each_end_of_an_idle_connection_takes_less_than_4_kib() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const HOSTS: usize = 20_000;
    let spec = Spec {
        topology: Shape::Star,
        hosts: Some(HOSTS),
        recovery: Recovery::GoBackN,
        workload: vec![Workload { size: Some(Bytes(1000)), ..Workload::new(Kind::TreeAllReduce) }],
        ..leaf_spine(1, 2, Time { ps: 100 * MS })
    };
    let region = Region::new(ALLOCATOR);
    let mut per_end = None;
    let mut watch = |_: RunProgress| {
        let stats = region.change();
        let bytes = stats.bytes_allocated.saturating_sub(stats.bytes_deallocated);
        per_end.get_or_insert(bytes / (4 * (HOSTS - 1)));
        true
    };
    let results = run_datacentre(&spec, 1, &mut watch).expect("the description is right");
    assert_eq!(results.collectives.len(), 1);
    let bytes = per_end.expect("the observer was called");
    println!("{bytes} bytes for each end, with its share of hosts, ports and events");
    assert!(bytes < 4096, "{bytes}");
}
