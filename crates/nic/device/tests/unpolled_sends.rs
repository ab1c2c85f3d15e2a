//! A send that is held for batching, because the application left completions in the CQ, is sent although no
//! thread polls any more.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::thread::sleep;
use std::time::{Duration, Instant};

use roxie::transport::{Access, QpAttr, QpCap, QpType, SendFlags, SendWr, WrOp};
use roxie::verbs::{Device, DeviceConfig, QpInitAttr};

/// Longer than the background thread stays awake.
const IDLE: Duration = Duration::from_millis(300);
/// Shorter than the background thread's sleep.
const LIMIT: Duration = Duration::from_millis(100);

#[test]
fn a_send_that_is_held_for_batching_is_sent_without_further_polls() {
    domain::on_both_paths("a_send_that_is_held_for_batching_is_sent_without_further_polls", || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let pd = context.alloc_pd().expect("the engine starts");
        let memory = pd.alloc_buffer(16, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("memory");
        let cq = context.create_cq(16, None, 0).expect("within limits");
        let cap =
            QpCap { max_send_wr: 8, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init =
            QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let [a, b] = [0; 2].map(|_| pd.create_qp(&init).expect("within limits"));
        for (this, that) in [(&a, &b), (&b, &a)] {
            rc::connect(this, &QpAttr { access: Access::REMOTE_WRITE, ..rc::attr_to(that) });
        }
        let write = |value: u8| {
            memory.write(0, &[value]);
            let op = WrOp::Write { remote_addr: memory.addr() + 8, r_key: memory.rkey() };
            let sg_list = &[memory.sge(0, 1)];
            a.post_send(&SendWr { wr_id: 0, op, sg_list, flags: SendFlags::empty(), dest: None })
                .expect("room");
        };
        for round in 1..=4 {
            sleep(IDLE);
            (0..3).for_each(|_| write(0));
            while cq.poll_one().is_none() {}
            // The ACK of the first WRITE is in flight while the second one is posted.
            write(0);
            write(round);
            let posted = Instant::now();
            while memory.load(8) != round {
                assert!(posted.elapsed() < LIMIT, "round {round}");
                std::thread::yield_now();
            }
            while cq.poll_one().is_some() {}
        }
    });
}
