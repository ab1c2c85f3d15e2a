//! Two ends, a cable, and a virtual clock.

use std::net::{IpAddr, Ipv4Addr};

use transport::{Access, Dest, Instant, MwBind, QpAttr, QpState, QpType, SendFlags, Sge, WrOp};
use wire::{Gid, Lkey, Rkey};

use super::cable::{Cable, Fate};
use super::end::{End, EndConfig, PD};
use crate::keys::MwType;

/// Number of the end that is the requester.
pub(super) const HERE: usize = 0;
/// Number of the end that is the responder.
pub(super) const THERE: usize = 1;
/// Time that a packet takes from one end to the other.
const HOP_NS: u64 = 1_000;
/// Rounds after which a test is taken to run for ever.
const ROUNDS_MAX: usize = 1_000_000;

/// How the ends of a pair are created. `here` is the requester, `there` the responder.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) ty: QpType,
    /// Changes the default attributes of the queue pair.
    pub(super) here: fn(&mut QpAttr),
    pub(super) there: fn(&mut QpAttr),
    /// The state of the responder.
    pub(super) there_state: QpState,
    /// Entries of the send CQ of the requester, and of the receive CQ of the responder.
    pub(super) send_cqe: u32,
    pub(super) recv_cqe: u32,
    /// Receives of the responder come from an SRQ.
    pub(super) shared: bool,
    /// Every work request of the requester is signaled.
    pub(super) sq_sig_all: bool,
}

impl Setup {
    pub(super) const fn new(ty: QpType) -> Self {
        Self {
            ty,
            here: |_| (),
            there: |_| (),
            there_state: QpState::Rts,
            send_cqe: 64,
            recv_cqe: 64,
            shared: false,
            sq_sig_all: true,
        }
    }
}

pub(super) struct Pair {
    pub(super) here: End,
    pub(super) there: End,
    pub(super) cable: Cable,
    pub(super) now: Instant,
}

impl Pair {
    pub(super) fn new(setup: &Setup) -> Self {
        let cable = Cable::default();
        let addresses = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)].map(IpAddr::V4);
        let (ty, peer_ty) = match setup.ty {
            QpType::XrcIni => (QpType::XrcIni, QpType::XrcTgt),
            ty => (ty, ty),
        };
        let Setup { send_cqe, sq_sig_all, .. } = *setup;
        let config = EndConfig { ty, recv_cqe: 64, send_cqe, shared: false, sq_sig_all };
        let mut here = End::new(HERE, addresses[HERE], &cable, config);
        let shared = setup.shared || peer_ty == QpType::XrcTgt;
        let config =
            EndConfig { ty: peer_ty, recv_cqe: setup.recv_cqe, send_cqe: 64, shared, sq_sig_all: true };
        let mut there = End::new(THERE, addresses[THERE], &cable, config);
        here.connect((Gid::from(addresses[THERE]), there.qpn), QpState::Rts, setup.here);
        there.connect((Gid::from(addresses[HERE]), here.qpn), setup.there_state, setup.there);
        if ty == QpType::XrcIni {
            here.dest = Some(Dest::Srq(there.srqn()));
        }
        Self { here, there, cable, now: Instant::ZERO }
    }

    /// Posts a work request of `len` bytes at the requester; it leaves when the pair runs.
    pub(super) fn post(&mut self, op: WrOp, len: usize) {
        let sge = self.here.sge(len);
        self.post_sges(op, if len == 0 { &[] } else { std::slice::from_ref(&sge) });
    }

    pub(super) fn post_sges(&mut self, op: WrOp, sges: &[Sge]) {
        self.here.post_send(self.now, op, sges, SendFlags::empty()).expect("a well-formed work request");
    }

    /// Posts the bind of a window to a region without MW_BIND at the requester.
    pub(super) fn bind_window_without_mw_bind(&mut self) {
        let r_key = Rkey(self.here.window(MwType::Type2));
        let plain = self.here.grant(PD, Access::LOCAL_WRITE);
        let mr = Lkey(plain.key);
        let bind = MwBind { r_key, mr, addr: plain.va, len: 8, access: Access::REMOTE_READ };
        self.post(WrOp::BindMw(bind), 0);
    }

    /// Posts a receive of `len` bytes at the responder.
    pub(super) fn receive(&mut self, len: usize) {
        let sge = self.there.sge(len);
        self.there.post_recv(&[sge]);
    }

    /// Lets `judge` decide on each packet of one end; its argument is the number of earlier packets of that
    /// end.
    pub(super) fn judge(
        &self,
        end: usize,
        mut judge: impl FnMut(usize, &mut Vec<u8>) -> Fate + Send + 'static,
    ) {
        let mut before = 0;
        self.cable.judge(Box::new(move |from, packet| {
            if from != end {
                return Fate::Arrives;
            }
            before += 1;
            judge(before - 1, packet)
        }));
    }

    /// Lets time pass until no packet is in flight and no timer is armed.
    pub(super) fn run(&mut self) {
        self.run_until(Instant(u64::MAX));
    }

    /// As [`run`](Self::run), at most until `end`.
    pub(super) fn run_until(&mut self, end: Instant) {
        for _ in 0..ROUNDS_MAX {
            let moved = self.here.run_batch(self.now) | self.there.run_batch(self.now);
            let next = self.now.plus_ns(HOP_NS);
            if moved || !self.cable.is_empty() {
                self.now = next;
            } else {
                let deadlines = [&self.here, &self.there].map(|end| end.core.next_deadline(|| self.now));
                let Some(deadline) = deadlines.into_iter().flatten().min() else { return };
                self.now = deadline.max(next);
            }
            if self.now > end {
                self.now = end;
                return;
            }
        }
        panic!("the ends never become idle; last packet: {:?}", self.cable.described_by(HERE).last());
    }

    pub(super) fn run_for_us(&mut self, us: u64) {
        self.run_until(self.now.plus_ns(us * 1000));
    }
}
