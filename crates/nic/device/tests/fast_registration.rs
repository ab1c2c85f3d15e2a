//! Peers can access a region between REG_MR and its invalidation by a LOCAL_INV or a SEND with Invalidate.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;
mod rc;

use std::time::{Duration, Instant};

use roxie::transport::{
    Access, Errno, QpAttr, QpCap, QpType, RecvWr, SendFlags, SendWr, VerbsError, Wc, WcOpcode, WcStatus, WrOp,
};
use roxie::verbs::{Buffer, Context, Cq, Device, DeviceConfig, FastMr, Pd, Qp, QpInitAttr};
use roxie::wire::Rkey;

const TIMEOUT: Duration = Duration::from_secs(10);
const IOVA: u64 = 0x5000_0000;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// Two connected queue pairs of this process with one completion queue.
struct Pair {
    cq: Cq,
    ours: Qp,
    theirs: Qp,
    buffer: Buffer,
}

impl Pair {
    fn new(context: &Context, pd: &Pd) -> Self {
        let buffer = pd.alloc_buffer(4096, Access::LOCAL_WRITE).expect("memory");
        let cq = context.create_cq(64, None, 0).expect("within limits");
        let cap =
            QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let ty = QpType::Rc;
        let init = QpInitAttr { ty, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let [ours, theirs] = [(); 2].map(|()| pd.create_qp(&init).expect("within limits"));
        rc::connect(&ours, &QpAttr { access: Access::REMOTE_WRITE, ..rc::attr_to(&theirs) });
        rc::connect(&theirs, &QpAttr { access: Access::REMOTE_WRITE, ..rc::attr_to(&ours) });
        Self { cq, ours, theirs, buffer }
    }

    fn post(&self, qp: &Qp, op: WrOp, len: usize) -> Wc {
        let sge = [self.buffer.sge(0, len)];
        let sg_list = if len == 0 { &[] } else { &sge[..] };
        qp.post_send(&SendWr { wr_id: 1, op, sg_list, flags: SendFlags::empty(), dest: None }).expect("room");
        self.next()
    }

    fn next(&self) -> Wc {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(wc) = self.cq.poll_one() {
                return wc;
            }
            assert!(Instant::now() < until, "no completion");
        }
    }

    fn write(&self, r_key: Rkey, remote_addr: u64) -> WcStatus {
        self.post(&self.theirs, WrOp::Write { remote_addr, r_key }, 4).status
    }
}

#[test]
fn a_region_is_accessible_between_reg_mr_and_invalidate() {
    domain::on_both_paths("a_region_is_accessible_between_reg_mr_and_invalidate", || {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let pd = context.alloc_pd().expect("the engine starts");
        let pair = Pair::new(&context, &pd);
        let target = pd.alloc_buffer(4096, Access::LOCAL_WRITE).expect("memory");
        let mut fast = pd.alloc_fast_mr().expect("room");
        assert_eq!(fast.map(&target, 4000, 97).map_err(VerbsError::kind), Err(Errno::EINVAL));
        fast.map(&target, 100, 16).expect("not valid yet");
        pair.buffer.write(0, b"fast");

        let first = fast.registration(1, IOVA, RIGHTS);
        assert_eq!(pair.post(&pair.ours, WrOp::RegMr(first), 0).opcode, WcOpcode::RegMr);
        assert_eq!(pair.write(first.key, IOVA + 12), WcStatus::Success);
        let mut bytes = [0; 5];
        target.read(112, &mut bytes);
        assert_eq!(&bytes, b"fast\0");
        assert_eq!(fast.map(&target, 0, 16).map_err(VerbsError::kind), Err(Errno::EBUSY));
        let done = pair.post(&pair.ours, WrOp::LocalInv(first.key), 0);
        assert_eq!((done.opcode, done.status), (WcOpcode::LocalInv, WcStatus::Success));

        // The same memory with another key; this time the peer invalidates it.
        let second = fast.registration(2, IOVA, RIGHTS);
        assert_eq!(pair.post(&pair.ours, WrOp::RegMr(second), 0).status, WcStatus::Success);
        pair.ours.post_recv(&RecvWr { wr_id: 2, sg_list: &[] }).expect("room");
        let ends = [pair.post(&pair.theirs, WrOp::SendInv(second.key), 0), pair.next()];
        let received =
            ends.iter().find(|wc| wc.opcode == WcOpcode::Recv).expect("one of the completions is a receive");
        assert_eq!(received.wc_flags, Wc::WITH_INV);
        assert_eq!(received.imm_data, second.key.0.to_ne_bytes());
        fast.map(&target, 0, 16).expect("it is invalid again");
        assert_eq!(pair.write(second.key, IOVA), WcStatus::RemAccessErr);

        // The region keeps the memory after its buffer is dropped, until the region is dropped.
        let again = Pair::new(&context, &pd);
        let third = fast.registration(3, IOVA, RIGHTS);
        assert_eq!(again.post(&again.ours, WrOp::RegMr(third), 0).status, WcStatus::Success);
        drop(target);
        assert_eq!(again.write(third.key, IOVA), WcStatus::Success);
        drop::<FastMr>(fast);
        assert_eq!(again.write(third.key, IOVA), WcStatus::RemAccessErr);
    });
}
