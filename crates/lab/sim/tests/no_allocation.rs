//! After set-up the transport does not allocate: not for posting, sending, receiving or completing. Recovery
//! from loss allocates once for each queue pair, at its first retransmission.
//!
//! This is the only test of its binary, because the allocation counters belong to the process.

use std::alloc::System;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use roxie_sim::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY, SimMemory};
use roxie_tests::main_thread::wait_until_main_thread_sleeps;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, Stats, StatsAlloc};
use transport::{
    Access, AddressVector, Dest, Instant, MAX_PACKET, PacketSource, PathMtu, PdId, Qp, QpAttr, QpAttrMask,
    QpCap, QpConfig, QpEvent, QpState, QpType, RecvQueue, RecvWr, ReorderBuffer, SendFlags, SendWr, Sge,
    SrqTable, UdDest, WcStatus, WrOp,
};
use wire::{Gid, Packet, Psn, QKey, Qpn};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const DEPTH: u32 = 16;
const SRQN: u32 = 0x12_3456;
/// Longer than a path MTU and not a multiple of it.
const MESSAGE: u32 = 5000;

struct End {
    qp: Qp,
    memory: SimMemory,
    from: PacketSource,
    reorder: ReorderBuffer,
    /// XRC: the only shared receive queue.
    srq: Option<RecvQueue>,
    completions: u64,
}

struct OneSrq<'a>(Option<&'a mut RecvQueue>);

impl SrqTable for OneSrq<'_> {
    fn own(&mut self) -> Option<&mut RecvQueue> {
        None
    }

    fn xrc(&mut self, srqn: u32) -> Option<&mut RecvQueue> {
        self.0.as_deref_mut().filter(|_| srqn == SRQN)
    }
}

struct Link {
    ends: [End; 2],
    now: Instant,
    packets: u64,
    /// One of so many packets is lost.
    loss_every: u64,
    buf: [u8; MAX_PACKET + 4],
}

fn gid(index: usize) -> Gid {
    Ipv4Addr::new(10, 0, 0, index as u8 + 1).into()
}

fn qpn(index: usize) -> Qpn {
    Qpn::new(0x10 + index as u32)
}

fn ud_dest(index: usize) -> UdDest {
    let av = AddressVector { dgid: gid(index), ..AddressVector::default() };
    UdDest { av, remote_qpn: qpn(index), remote_qkey: QKey(7) }
}

fn end(ty: QpType, index: usize) -> End {
    let cap = QpCap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    };
    let (qpn, dest_qp) = (qpn(index), qpn(1 - index));
    let pd = PdId(1);
    let config = QpConfig {
        qpn,
        ty,
        pd,
        cap,
        sq_sig_all: true,
        srq: false,
        max_path_mtu: PathMtu::M4096,
        equal_writes: true,
    };
    let attr = QpAttr {
        path_mtu: PathMtu::M1024,
        q_key: QKey(7),
        rq_psn: Psn::new(0xff_fff0),
        sq_psn: Psn::new(0xff_fff0),
        dest_qp,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        av: AddressVector { dgid: gid(1 - index), ..AddressVector::default() },
        port_num: 1,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 8,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    let mut qp = Qp::new(config).expect("the sizes are within the limits");
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let attr = QpAttr { state, ..attr.clone() };
        qp.modify(Instant::ZERO, &attr, QpAttrMask::required(ty, state)).expect("permitted");
    }
    let region = || RefCell::new(vec![0x5a; 4 * MESSAGE as usize]);
    let memory =
        SimMemory { pd, qpn, local: region(), remote: region(), keys: RefCell::new(BTreeSet::new()) };
    let from = PacketSource { src: gid(1 - index), src_port: 0xc000, dst: gid(index), tos: 0, ttl: 64 };
    let srq = (ty == QpType::XrcTgt)
        .then(|| RecvQueue::new(DEPTH, 2, pd).expect("the sizes are within the limits"));
    End { qp, memory, from, reorder: ReorderBuffer::new(PathMtu::M1024), srq, completions: 0 }
}

impl Link {
    fn new(ty: QpType, loss_every: u64) -> Self {
        let peer = if ty == QpType::XrcIni { QpType::XrcTgt } else { ty };
        let ends = [end(ty, 0), end(peer, 1)];
        Self { ends, now: Instant::ZERO, packets: 0, loss_every, buf: [0; MAX_PACKET + 4] }
    }

    /// Both ends post every operation of their service; then all packets are exchanged.
    fn round(&mut self) {
        let (remote_addr, r_key, imm) = (REMOTE_BASE, REMOTE_KEY, [1, 2, 3, 4]);
        let all = [
            (WrOp::Send, MESSAGE),
            (WrOp::SendImm(imm), 16),
            (WrOp::Write { remote_addr, r_key }, MESSAGE),
            (WrOp::WriteImm { remote_addr, r_key, imm }, MESSAGE),
            (WrOp::Read { remote_addr, r_key }, MESSAGE),
            (WrOp::CompareSwap { remote_addr, r_key, compare: 0, swap: 1 }, 8),
            (WrOp::FetchAdd { remote_addr, r_key, add: 1 }, 8),
        ];
        for (index, end) in self.ends.iter_mut().enumerate() {
            let ty = end.qp.ty();
            let (ops, dest) = match ty {
                QpType::Rc => (&all[..], None),
                QpType::Uc => (&all[..4], None),
                QpType::Ud | QpType::Gsi => (&all[..2], Some(Dest::Ud(ud_dest(1 - index)))),
                QpType::XrcIni => (&all[..], Some(Dest::Srq(SRQN))),
                QpType::XrcTgt => (&all[..0], None),
            };
            let receive = RecvWr { wr_id: 0, sg_list: &sges(2 * MESSAGE) };
            while end
                .srq
                .as_mut()
                .map_or_else(|| end.qp.post_recv(&receive), |srq| srq.post(&receive))
                .is_ok()
            {}
            for &(op, length) in ops {
                let length = if ty.is_datagram() { length.min(1024) } else { length };
                let inline =
                    if matches!(op, WrOp::SendImm(_)) { SendFlags::INLINE } else { SendFlags::empty() };
                let wr = SendWr { wr_id: 0, op, sg_list: &sges(length), flags: inline, dest };
                end.qp.post_send(&wr, &end.memory).expect("the send queue has room");
            }
        }
        self.carry();
    }

    fn carry(&mut self) {
        loop {
            let moved = self.exchange(0) | self.exchange(1);
            if moved {
                continue;
            }
            let Some(due) = self.ends.iter().filter_map(|end| end.qp.poll_timeout()).min() else { return };
            self.now = self.now.max(due);
            for end in &mut self.ends {
                end.qp.handle_timeout(self.now);
            }
        }
    }

    /// Moves one packet from an end to the other, if it has one.
    fn exchange(&mut self, from: usize) -> bool {
        let (left, right) = self.ends.split_at_mut(1);
        let (sender, receiver) =
            if from == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
        let sent = sender.qp.poll_transmit(self.now, &sender.memory, usize::MAX, &mut self.buf);
        if let Some(transmit) = &sent {
            self.packets += 1;
            if !self.packets.is_multiple_of(self.loss_every) {
                let packet = Packet::parse(&self.buf[..transmit.len + 4]).expect("the packet is well formed");
                // The protocol decides what happens to packets after a loss; the test counts completions.
                let _: Result<_, _> = receiver.qp.handle_packet(
                    self.now,
                    &packet,
                    &receiver.from,
                    &receiver.memory,
                    OneSrq(receiver.srq.as_mut()),
                    &mut receiver.reorder,
                );
                receiver.qp.end_of_batch(self.now, false);
            }
        }
        for end in &mut self.ends {
            while let Some(event) = end.qp.poll_event() {
                if let QpEvent::SendWc(wc) | QpEvent::RecvWc { wc, .. } = event {
                    assert_eq!(wc.status, WcStatus::Success);
                    end.completions += 1;
                }
            }
        }
        sent.is_some()
    }
}

/// Returns `length` bytes in two elements.
fn sges(length: u32) -> [Sge; 2] {
    let first = Sge { addr: LOCAL_BASE, length: length / 2, lkey: LOCAL_KEY };
    [first, Sge { addr: LOCAL_BASE + u64::from(2 * MESSAGE), length: length - length / 2, lkey: LOCAL_KEY }]
}

#[test]
fn traffic_after_set_up_does_not_allocate() {
    wait_until_main_thread_sleeps();
    let region = Region::new(ALLOCATOR);
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(region.change().allocations, 1, "the allocator does not count allocations");
    for (ty, loss_every) in [
        (QpType::Rc, u64::MAX),
        (QpType::Rc, 29),
        (QpType::Uc, u64::MAX),
        (QpType::Uc, 29),
        (QpType::Ud, 29),
        (QpType::XrcIni, u64::MAX),
        (QpType::XrcIni, 29),
    ] {
        let mut link = Link::new(ty, loss_every);
        let region = Region::new(ALLOCATOR);
        for _ in 0..100 {
            link.round();
        }
        let change = region.change();
        let is_lossy = ty.is_reliable() && loss_every < u64::MAX;
        // Each end that retransmits allocates its sets of packets, once.
        let (allocations, bytes) = (change.allocations, change.bytes_allocated);
        let expected = Stats { allocations, bytes_allocated: bytes, ..Stats::default() };
        assert_eq!(change, expected, "{ty:?}, one packet of {loss_every} lost: nothing is released");
        let most = if is_lossy { link.ends.len() } else { 0 };
        let is_little = allocations <= most && bytes <= 1024 * most;
        assert!(is_little, "{ty:?}: {allocations} allocations, {bytes} bytes");
        let completions = link.ends.iter().map(|end| end.completions).min();
        assert!(completions > Some(150), "{ty:?}: {completions:?}");
        let counters = link.ends[0].qp.counters();
        let repeated = counters.duplicate_request + counters.completer_retry_err;
        assert!(
            !ty.is_reliable() || loss_every == u64::MAX || repeated > 0,
            "packets were lost but none was retransmitted"
        );
    }
}
