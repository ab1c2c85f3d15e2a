//! Two queue pairs without connection to the hostile peer: their traffic must always be correct.

use std::time::{Duration, Instant};

use roxie::transport::{
    Access, AddressVector, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr, SendFlags, SendWr,
};
use roxie::transport::{Sge, Wc, WcStatus, WrOp};
use roxie::verbs::{Buffer, Cq, Qp, QpInitAttr};
use roxie::wire::{Psn, Qpn};

use crate::arena::Target;
use crate::lab::Lab;
use crate::victim::connected;
use roxie_tests::random::Rng;

const LEN: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct Bystanders {
    ours: Buffer,
    theirs: Buffer,
    cq: Cq,
    a: Qp,
    b: Qp,
    rounds: u8,
}

impl Bystanders {
    pub(crate) fn new(lab: &Lab) -> Self {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let buffer = || lab.other.alloc_buffer(LEN, all).expect("memory");
        let (ours, theirs) = (buffer(), buffer());
        let cq = lab.context.create_cq(64, None, 0).expect("a CQ");
        let cap =
            QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init =
            QpInitAttr { ty: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let qp = || lab.other.create_qp(&init).expect("a QP");
        let (a, b) = (qp(), qp());
        let dgid = lab.context.gids().first().expect("lo has an address").gid;
        connect(&a, b.qpn(), dgid);
        connect(&b, a.qpn(), dgid);
        Self { ours, theirs, cq, a, b, rounds: 0 }
    }

    /// Memory for which the peer may use the right key.
    pub(crate) fn target(&self) -> Target {
        Target { key: self.theirs.rkey(), va: self.theirs.addr(), len: LEN as u64 }
    }

    pub(crate) fn has(&self, qpn: u32) -> bool {
        [&self.a, &self.b].iter().any(|qp| qp.qpn().value() == qpn)
    }

    /// Returns one of the two QPNs, and a PSN that it may expect.
    pub(crate) fn aim(&self, rng: &mut Rng) -> (Qpn, Psn) {
        let qp = if rng.one_in(2) { &self.a } else { &self.b };
        let attr = connected();
        (
            qp.qpn(),
            rng.pick(&[attr.rq_psn, attr.sq_psn]).advance(rng.below(4 * usize::from(self.rounds) + 4) as u32),
        )
    }

    /// A WRITE, a READ of the written bytes and a SEND: checks the bytes, and that nothing else completes.
    pub(crate) fn exchange(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        let data: Vec<u8> = (0..512).map(|i| i as u8 & 0x7f ^ self.rounds & 0x7f).collect();
        self.ours.write(0, &data);
        let (remote_addr, r_key) = (self.theirs.addr() + 1024, self.theirs.rkey());
        self.done(WrOp::Write { remote_addr, r_key }, self.ours.sge(0, 512), 1);
        self.done(WrOp::Read { remote_addr, r_key }, self.ours.sge(2048, 512), 1);
        let wr = RecvWr { wr_id: 2, sg_list: &[self.theirs.sge(3000, 600)] };
        self.b.post_recv(&wr).expect("room");
        self.done(WrOp::Send, self.ours.sge(2048, 512), 2);
        let mut arrived = [0; 512];
        self.theirs.read(3000, &mut arrived);
        assert_eq!(arrived[..], data[..], "the bytes between the two bystanders");
        assert_eq!((self.a.state(), self.b.state()), (QpState::Rts, QpState::Rts));
    }

    /// Posts one work request and waits for `completions`.
    fn done(&self, op: WrOp, sge: Sge, completions: usize) {
        let wr = SendWr { wr_id: 1, op, sg_list: &[sge], flags: SendFlags::empty(), dest: None };
        self.a.post_send(&wr).expect("room");
        let start = Instant::now();
        for _ in 0..completions {
            let wc: Wc = loop {
                if let Some(wc) = self.cq.poll_one() {
                    break wc;
                }
                assert!(start.elapsed() < TIMEOUT, "{op:?} does not complete");
            };
            assert_eq!(wc.status, WcStatus::Success, "{op:?}: {wc:?}");
        }
    }
}

fn connect(qp: &Qp, dest_qp: Qpn, dgid: roxie::wire::Gid) {
    let both = connected();
    let av = AddressVector { dgid, ..both.av };
    let attr = QpAttr { dest_qp, av, sq_psn: both.rq_psn, ..both };
    use QpAttrMask as M;
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        ),
        (QpState::Rts, M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC),
    ];
    for (state, mask) in steps {
        qp.modify(&QpAttr { state, ..attr.clone() }, mask | M::STATE).expect("a legal transition");
    }
}
