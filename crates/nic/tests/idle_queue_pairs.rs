//! What a connected queue pair that does nothing costs: memory, with ten thousand of them on one device.
//!
//! The count is the process's, so this is the one test of its binary.

#[expect(dead_code, reason = "nobody asks for the port")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::alloc::System;

use roxie::transport::{QpCap, QpType};
use roxie::verbs::{Cq, Device, DeviceConfig, Pd, Qp, QpInitAttr, SrqAttr, SrqInitAttr};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const QPS: usize = 10_000;
/// Bytes for each beyond its queues.
const MOST: usize = 4096;

#[test]
fn ten_thousand_idle_queue_pairs_take_less_than_a_page_each() {
    domain::alone("ten_thousand_idle_queue_pairs_take_less_than_a_page_each", || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let pd = context.alloc_pd().expect("the engine starts");
        let cq = context.create_cq(16, None, 0).expect("within limits");
        // The tables of the device grow now; the first count would charge that to whatever it counts.
        cost(&pd, &cq, 1, false);
        for shared in [false, true] {
            // Twice the queues cost what one work request in each does.
            let [one, two] = [1, 2].map(|depth| cost(&pd, &cq, depth, shared));
            let beyond = 2 * one - two;
            println!(
                "{beyond} bytes for each idle queue pair and {} for its queues, shared receive queue: {shared}",
                one - beyond
            );
            assert!(beyond < MOST, "{beyond}");
        }
    });
}

/// Bytes for each of many connected queue pairs with queues of `depth` work requests.
fn cost(pd: &Pd, cq: &Cq, depth: u32, shared: bool) -> usize {
    let cap = QpCap {
        max_send_wr: depth,
        max_recv_wr: depth,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
    let srq = shared.then(|| pd.create_srq(&SrqInitAttr { attr, cookie: 0 }).expect("within limits"));
    let (send_cq, recv_cq) = (cq.clone(), cq.clone());
    let init = QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq, cap, sq_sig_all: false, cookie: 0 };
    let mut qps: Vec<Qp> = Vec::with_capacity(QPS);
    let region = Region::new(ALLOCATOR);
    for _ in 0..QPS {
        qps.push(pd.create_qp(&init).expect("within limits"));
    }
    for pair in qps.chunks_exact(2) {
        rc::connect(&pair[0], &rc::attr_to(&pair[1]));
        rc::connect(&pair[1], &rc::attr_to(&pair[0]));
    }
    let change = region.change();
    (change.bytes_allocated - change.bytes_deallocated) / QPS
}
