//! Memory of idle connected queue pairs, with ten thousand of them on one device.
//!
//! The allocator counts for the whole process, so this is the only test of its binary.

#[expect(dead_code, reason = "this test does not use the port")]
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
/// Limit in bytes for each queue pair without its queues.
const BYTES_MAX: usize = 4096;

#[test]
fn ten_thousand_idle_queue_pairs_take_less_than_a_page_each() {
    domain::alone("ten_thousand_idle_queue_pairs_take_less_than_a_page_each", || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let pd = context.alloc_pd().expect("the engine starts");
        let cq = context.create_cq(16, None, 0).expect("within limits");
        // The first call grows the tables of the device, so its result does not count.
        cost(&pd, &cq, 1, false);
        for shared in [false, true] {
            // The difference between depths 1 and 2 is the cost of one work request in each queue.
            let [one, two] = [1, 2].map(|depth| cost(&pd, &cq, depth, shared));
            let beyond = 2 * one - two;
            println!(
                "{beyond} bytes for each idle queue pair, {} for its queues (shared receive queue: {shared})",
                one - beyond
            );
            assert!(beyond < BYTES_MAX, "{beyond}");
        }
    });
}

/// Returns the bytes for each of [`QPS`] connected queue pairs with queues of `depth` work requests.
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
