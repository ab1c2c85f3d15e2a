//! The application: posts work requests, checks completions and changes attributes.

use transport::{
    Access, AddressVector, Dest, Errno, QpAttr, QpAttrMask, QpState, RecvWr, SendFlags, SendWr, Sge, UdDest,
    Wc, WcOpcode, WcStatus, WrOp,
};
use wire::opcode::Service;
use wire::{Lkey, Qpn, Rkey};

use super::{DEPTH, MAX_SGE, Posted, SRQN, World, shared_queue};
use crate::ledger::{Doing, LOCAL_BASE, LOCAL_KEY, LOCAL_LEN, REGIONS};

impl World<'_> {
    fn sges(&mut self) -> Vec<Sge> {
        let mtu = self.mtu.bytes() as u32;
        (0..self.draw.below(MAX_SGE as u32 + 1))
            .map(|_| {
                let length = match self.draw.below(10) {
                    0 => 8,
                    1 => 0,
                    2 => mtu,
                    3 => 3 * mtu + 1,
                    4 => 16 * 1024,
                    5 => 70_000,
                    6 => self.draw.any::<u8>().into(),
                    7 => mtu - 1,
                    8 => 40,
                    _ => self.draw.any(),
                };
                let room = LOCAL_LEN.saturating_sub(length.into());
                let addr = match self.draw.below(16) {
                    14 => LOCAL_BASE + room + 1,
                    15 => u64::MAX - u64::from(length) / 2,
                    n => LOCAL_BASE + (u64::from(n) * 4099).min(room),
                };
                let lkey = if self.draw.one_in(16) { Lkey(0xdead) } else { LOCAL_KEY };
                Sge { addr, length, lkey }
            })
            .collect()
    }

    pub(super) fn post_send(&mut self) {
        let sges = self.sges();
        let draw = &mut self.draw;
        let (remote_addr, r_key) = (u64::from(draw.any::<u8>()), Rkey(0x77));
        let op = match draw.below(10) {
            0 => WrOp::Send,
            1 => WrOp::SendImm([9; 4]),
            2 => WrOp::SendInv(r_key),
            3 => WrOp::Write { remote_addr, r_key },
            4 => WrOp::WriteImm { remote_addr, r_key, imm: [8; 4] },
            5..=6 => WrOp::Read { remote_addr, r_key },
            7 => WrOp::CompareSwap { remote_addr, r_key, compare: 1, swap: 2 },
            8 => WrOp::FetchAdd { remote_addr, r_key, add: 1 },
            _ => WrOp::LocalInv(draw.pick(&REGIONS).key),
        };
        let flags = SendFlags::from_bits_truncate(draw.below(16));
        let ud = UdDest {
            remote_qpn: Qpn::new(3),
            remote_qkey: wire::QKey(if draw.one_in(2) { u32::MAX } else { 5 }),
            av: AddressVector::default(),
        };
        let dest = if self.service == Service::Xrc { Dest::Srq(SRQN) } else { Dest::Ud(ud) };
        let dest = (!draw.one_in(16)).then_some(dest);
        let wr_id = self.next_wr_id;
        let wr = SendWr { wr_id, op, sg_list: &sges, flags, dest };
        let state = self.qp.state();
        self.memory.post_inline(&sges);
        let posted = self.qp.post_send(&wr, &self.memory);
        self.memory.doing.set(Doing::Nothing);
        match posted {
            Ok(()) => {
                assert!(matches!(state, QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err));
                self.next_wr_id += 1;
                let signaled = self.sig_all || flags.contains(SendFlags::SIGNALED);
                let (fetch, fetches) = match op {
                    WrOp::Read { .. } => (true, sges.iter().map(|sge| u64::from(sge.length)).sum()),
                    WrOp::CompareSwap { .. } | WrOp::FetchAdd { .. } => (true, 8),
                    _ => (false, 0),
                };
                self.sends.push_back(Posted { wr_id, signaled, fetches });
                if !flags.contains(SendFlags::INLINE) {
                    self.memory.grant(wr_id, &sges, fetch, true);
                }
            }
            Err(refused) if [Errno::ENOMEM, Errno::EINVAL, Errno::EFAULT].contains(&refused.kind()) => {}
            Err(error) => panic!("post_send: {error}"),
        }
    }

    pub(super) fn post_recv(&mut self) {
        let sges = self.sges();
        let wr_id = self.next_wr_id;
        let wr = RecvWr { wr_id, sg_list: &sges };
        let posted = match &mut self.srq {
            Some(srq) => srq.post(&wr),
            None => self.qp.post_recv(&wr),
        };
        match posted {
            Ok(()) => {
                self.next_wr_id += 1;
                self.recvs.push_back((wr_id, sges.iter().map(|sge| u64::from(sge.length)).sum()));
                self.memory.grant(wr_id, &sges, true, false);
            }
            Err(refused) if [Errno::ENOMEM, Errno::EINVAL].contains(&refused.kind()) => {}
            Err(error) => panic!("post_recv: {error}"),
        }
    }

    pub(super) fn on_send_wc(&mut self, wc: &Wc) {
        while let Some(posted) = self.sends.pop_front() {
            let last = posted.wr_id == wc.wr_id;
            if !last || wc.status == WcStatus::Success {
                let fetched = self.memory.fetched(posted.wr_id);
                assert!(fetched >= posted.fetches, "{posted:?} completes after {fetched} bytes were written");
            }
            if last {
                assert!(
                    posted.signaled || wc.status != WcStatus::Success,
                    "an unsignaled work request completes with success"
                );
                self.memory.revoke(wc.wr_id, true);
                return;
            }
            assert!(!posted.signaled, "signaled {posted:?} has no completion");
        }
        panic!("work request {} completes twice", wc.wr_id);
    }

    pub(super) fn on_recv_wc(&mut self, wc: &Wc) {
        let (wr_id, room) = self.recvs.pop_front().expect("a receive completion without a receive");
        assert_eq!(wr_id, wc.wr_id, "receives complete out of order");
        if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv {
            assert!(u64::from(wc.byte_len) <= room);
        }
        self.memory.revoke(wr_id, false);
    }

    /// Changes attributes or the state of the queue pair, or registers and deregisters memory.
    pub(super) fn control(&mut self) {
        let attr = self.attr.clone();
        let (state, mask) = match self.draw.below(8) {
            0 => (QpState::Sqd, QpAttrMask::STATE),
            1 => (QpState::Rts, QpAttrMask::STATE),
            2 => (QpState::Err, QpAttrMask::STATE),
            3 => {
                let access = Access::from_bits_truncate(self.draw.any::<u8>().into());
                if self.change(
                    &QpAttr { access, state: QpState::Rts, ..attr },
                    QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS,
                ) {
                    self.memory.qp_access.set(access);
                    self.attr.access = access;
                }
                return;
            }
            4 => {
                let limits = QpAttr {
                    max_rd_atomic: self.draw.pick(&[1, 0, 16]),
                    max_dest_rd_atomic: self.draw.pick(&[1, 0, 16]),
                    ..attr
                };
                self.change(&limits, QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::MAX_DEST_RD_ATOMIC);
                return;
            }
            5 => {
                // Register or deregister a region.
                let region = self.draw.below(REGIONS.len() as u32);
                self.memory.alive.set(self.memory.alive.get() ^ 1 << region);
                return;
            }
            6 => {
                if let Some(srq) = &mut self.srq {
                    srq.arm_limit(self.draw.below(DEPTH + 1)).expect("the limit is within the size");
                }
                return;
            }
            _ => (QpState::Reset, QpAttrMask::STATE),
        };
        let changed = self.change(&QpAttr { state, ..attr }, mask);
        if state == QpState::Reset && changed {
            assert!(self.qp.poll_event().is_none() && !self.qp.wants_transmit());
            assert_eq!((self.qp.packets_in_flight(), self.qp.poll_timeout()), (0, None));
            self.sends.clear();
            self.sent.clear();
            self.memory.revoke_all();
            self.recvs.clear();
            if self.srq.is_some() {
                // Posted receives would outlive the queue pair. A new queue keeps the bookkeeping simple.
                self.srq = Some(shared_queue());
            }
            self.connect();
        }
    }

    fn change(&mut self, attr: &QpAttr, mask: QpAttrMask) -> bool {
        let before = self.qp.state();
        let result = self.qp.modify(self.now, attr, mask);
        if result.is_err() {
            assert_eq!(self.qp.state(), before, "a refused call changed the state");
        }
        result.is_ok()
    }
}
