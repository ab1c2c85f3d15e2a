//! A queue pair connected to the hostile peer, and the accounting of its application.

use std::collections::VecDeque;

use roxie::transport::{
    Access, AddressVector, AsyncEventKind, PathMtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr,
    SendFlags, SendWr, Sge, Wc, WcOpcode, WcStatus, WrOp,
};
use roxie::verbs::{Cq, Qp, QpInitAttr, Srq, SrqAttr, SrqInitAttr};
use roxie::wire::{Psn, QKey, Qpn};

use crate::lab::Lab;
use crate::peer;

pub(crate) const MTU: PathMtu = PathMtu::M1024;
pub(crate) const Q_KEY: QKey = QKey(0x1122_3344);
pub(crate) const RNR_TIMER: u8 = 3;
const DEPTH: u32 = 8;

/// Returns attributes that permit all operations, with the peer's address.
pub(crate) fn connected() -> QpAttr {
    QpAttr {
        port_num: 1,
        path_mtu: MTU,
        q_key: Q_KEY,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        rq_psn: Psn::new(0xff_fffe),
        sq_psn: Psn::new(0xff_ffff),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RNR_TIMER,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av: AddressVector { dgid: peer::gid(), hop_limit: 64, ..AddressVector::default() },
        ..QpAttr::default()
    }
}

/// How a connection failed: what the application was told, without flushed work requests.
#[derive(Debug, Default)]
pub(crate) struct Failure {
    pub(crate) send: Option<WcStatus>,
    pub(crate) recv: Option<WcStatus>,
    pub(crate) events: Vec<AsyncEventKind>,
}

pub(crate) struct Victim {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    pub(crate) srq: Option<Srq>,
    pub(crate) ty: QpType,
    cookie: u64,
    pub(crate) peer_qpn: Qpn,
    /// The PSN that its responder expects next, as far as the peer can know.
    pub(crate) expected: Psn,
    sends: VecDeque<u64>,
    recvs: VecDeque<u64>,
    next_wr_id: u64,
    /// The first completion with an error other than a flush.
    failure: Failure,
    pub(crate) completed: u64,
}

impl Victim {
    pub(crate) fn new(lab: &mut Lab, ty: QpType, shared: bool, attr: QpAttr) -> Self {
        let cookie = u64::from(lab.peer_qpn().value());
        let cq = lab.context.create_cq(4 * DEPTH, None, cookie).expect("a CQ");
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        let srq = shared.then(|| {
            let attr = SrqAttr { max_wr: DEPTH, max_sge: 2, srq_limit: 0 };
            lab.pd.create_srq(&SrqInitAttr { attr, cookie }).expect("an SRQ")
        });
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInitAttr { ty, send_cq, recv_cq, srq: srq.clone(), cap, sq_sig_all: true, cookie };
        let qp = lab.pd.create_qp(&init).expect("a QP");
        let mut victim = Self {
            qp,
            cq,
            srq,
            ty,
            cookie,
            peer_qpn: Qpn::new(0),
            expected: Psn::new(0),
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            next_wr_id: 1,
            failure: Failure::default(),
            completed: 0,
        };
        victim.connect(lab, attr);
        victim
    }

    /// RESET to RTS, with a new QPN at the peer.
    pub(crate) fn connect(&mut self, lab: &mut Lab, attr: QpAttr) {
        self.peer_qpn = lab.peer_qpn();
        self.expected = attr.rq_psn;
        self.failure = Failure::default();
        let attr = QpAttr { dest_qp: self.peer_qpn, ..attr };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state, ..attr.clone() };
            self.qp.modify(&attr, QpAttrMask::required(self.ty, state)).expect("a legal transition");
        }
    }

    /// Moves the QP to RESET; this discards all posted work requests.
    pub(crate) fn reset(&mut self) {
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        self.qp.modify(&attr, QpAttrMask::STATE).expect("always legal");
        self.sends.clear();
        if self.srq.is_none() {
            self.recvs.clear();
        }
    }

    pub(crate) fn has_recv_room(&self) -> bool {
        self.recvs.len() < DEPTH as usize / 2
    }

    pub(crate) fn has_send_room(&self) -> bool {
        self.sends.len() < DEPTH as usize / 2
    }

    pub(crate) fn post_recv(&mut self, sg_list: &[Sge]) {
        let wr = RecvWr { wr_id: self.next_wr_id, sg_list };
        match &self.srq {
            Some(srq) => srq.post_recv(&wr).expect("room"),
            None => self.qp.post_recv(&wr).expect("room"),
        }
        self.recvs.push_back(self.next_wr_id);
        self.next_wr_id += 1;
    }

    pub(crate) fn post_send(&mut self, op: WrOp, sg_list: &[Sge]) {
        let wr = SendWr { wr_id: self.next_wr_id, op, sg_list, flags: SendFlags::empty(), dest: None };
        self.qp.post_send(&wr).expect("room");
        self.sends.push_back(self.next_wr_id);
        self.next_wr_id += 1;
    }

    /// Takes the completions, and checks that each work request completes once and in order, and that the
    /// rest is flushed after an error.
    pub(crate) fn completions(&mut self) {
        while let Some(wc) = self.cq.poll_one() {
            self.completed += 1;
            assert_eq!(wc.qp_num, self.qp.qpn().value());
            if self.sends.front() == Some(&wc.wr_id) {
                self.sends.pop_front();
                note(&mut self.failure.send, &wc);
            } else {
                assert_eq!(self.recvs.pop_front(), Some(wc.wr_id), "a completion out of order: {wc:?}");
                assert!(wc.status != WcStatus::Success || is_recv(&wc), "{wc:?}");
                note(&mut self.failure.recv, &wc);
            }
        }
    }

    /// Checks that all work requests of a failed queue pair are complete, and returns the cause.
    pub(crate) fn take_failure(&mut self, lab: &mut Lab) -> Failure {
        assert_eq!(self.qp.state(), QpState::Err);
        self.completions();
        assert!(self.sends.is_empty(), "sends that were not flushed: {:?}", self.sends);
        if self.srq.is_none() {
            assert!(self.recvs.is_empty(), "receives that were not flushed: {:?}", self.recvs);
        }
        lab.read_events();
        let events = lab.events(self.cookie);
        Failure { events, ..std::mem::take(&mut self.failure) }
    }

    /// True if nothing has failed. Otherwise the queue pair must be in ERR.
    pub(crate) fn is_alive(&mut self) -> bool {
        // Completions first: a failure between the two steps counts as failed.
        self.completions();
        match self.qp.state() {
            QpState::Rts => {
                assert_eq!((self.failure.send, self.failure.recv), (None, None));
                true
            }
            QpState::Err => false,
            other => panic!("a packet made a {:?} go to {other:?}", self.ty),
        }
    }

    /// Checks that the queue pair works, and that no event was raised.
    pub(crate) fn check_alive(&mut self, lab: &mut Lab) {
        assert!(self.is_alive());
        assert_eq!(lab.events(self.cookie), []);
    }
}

fn is_recv(wc: &Wc) -> bool {
    matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
}

fn note(first: &mut Option<WcStatus>, wc: &Wc) {
    match wc.status {
        WcStatus::Success => assert_eq!(*first, None, "success after an error: {wc:?}"),
        WcStatus::WrFlushErr => {}
        status => {
            assert_eq!(*first, None, "a second error: {wc:?}");
            *first = Some(status);
        }
    }
}
