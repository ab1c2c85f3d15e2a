//! Two queue pairs on a link with a rate, a delay and losses.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use roxie_sim::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY, Rng, SimMemory};
use transport::{
    Access, AddressVector, Instant, MAX_PACKET, PacketSource, PathMtu, PdId, Qp, QpAttr, QpAttrMask, QpCap,
    QpConfig, QpEvent, QpState, QpType, RecvWr, ReorderBuffer, SendFlags, SendWr, Sge, WcStatus, WrOp,
};
use wire::{Gid, Packet, Psn, Qpn};

/// Bytes of each run.
const TOTAL: u64 = 32 << 20;
const MTU: u64 = 1024;
/// The path: 2.5 GB/s and 10 us one way.
const NS_PER_PACKET: u64 = 400;
const DELAY_NS: u64 = 10_000;
/// Interval at which both sides poll.
const POLL_NS: u64 = 5_000;
/// An end does not make packets while a burst is still waiting for the line.
const BURST_NS: u64 = 62 * NS_PER_PACKET;
/// Bytes posted in advance, at least two messages.
const AHEAD: u64 = 1 << 20;

/// What the responder does with packets after a gap.
#[derive(Clone, Copy)]
pub(crate) enum Peer {
    SelectiveRepeat,
    GoBackN,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SelectiveRepeat => "selective",
            Self::GoBackN => "go-back-N",
        }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Operation {
    Write,
    Send,
    Read,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "WRITE",
            Self::Send => "SEND",
            Self::Read => "READ",
        }
    }
}

/// Result of a run.
pub(crate) struct Outcome {
    pub(crate) elapsed_ns: u64,
    /// Packets with payload that were sent, and the number needed without loss.
    pub(crate) packets: u64,
    pub(crate) needed: u64,
}

pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) memory: SimMemory,
    pub(crate) reorder: ReorderBuffer,
    pub(crate) from: PacketSource,
    /// In flight to this end, with the time of arrival.
    arriving: VecDeque<(u64, Vec<u8>)>,
    /// Time when the line towards this end is free again.
    line_free: u64,
}

/// One run. The first end posts the work requests.
pub(crate) struct Link {
    ends: [End; 2],
    operation: Operation,
    size: u64,
    loss_per_100_000: u64,
    rng: Rng,
    now: u64,
    packets: u64,
}

fn gid(index: usize) -> Gid {
    std::net::Ipv4Addr::new(10, 0, 0, index as u8 + 1).into()
}

pub(crate) fn end(index: usize, peer: Peer, size: u64) -> End {
    use QpAttrMask as M;
    let qpn = |index: usize| Qpn::new(0x10 + index as u32);
    let cap =
        QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let config = QpConfig {
        qpn: qpn(index),
        ty: QpType::Rc,
        pd: PdId(1),
        cap,
        sq_sig_all: true,
        srq: false,
        max_path_mtu: PathMtu::M1024,
        equal_writes: true,
    };
    let attr = QpAttr {
        path_mtu: PathMtu::M1024,
        rq_psn: Psn::new(0xff_0000),
        sq_psn: Psn::new(0xff_0000),
        dest_qp: qpn(1 - index),
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        av: AddressVector { dgid: gid(1 - index), ..AddressVector::default() },
        port_num: 1,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    let steps = [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER,
        ),
        (QpState::Rts, M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC),
    ];
    let mut qp = Qp::new(config).expect("the sizes are within the limits");
    for (state, mask) in steps {
        qp.modify(Instant::ZERO, &QpAttr { state, ..attr.clone() }, mask | M::STATE).expect("permitted");
    }
    let region = |fill| RefCell::new(vec![fill; size as usize]);
    let memory = SimMemory {
        pd: PdId(1),
        qpn: qpn(index),
        local: region(index as u8),
        remote: region(2 + index as u8),
        keys: RefCell::new(BTreeSet::new()),
    };
    let reorder = match peer {
        Peer::SelectiveRepeat => ReorderBuffer::new(PathMtu::M1024),
        Peer::GoBackN => ReorderBuffer::none(),
    };
    let from = PacketSource { src: gid(1 - index), src_port: 0xc000, dst: gid(index), tos: 0, ttl: 64 };
    End { qp, memory, reorder, from, arriving: VecDeque::new(), line_free: 0 }
}

impl Link {
    pub(crate) fn new(peer: Peer, operation: Operation, size: u64, loss_per_100_000: u64) -> Self {
        let ends = [end(0, peer, size), end(1, peer, size)];
        Self { ends, operation, size, loss_per_100_000, rng: Rng(7), now: 0, packets: 0 }
    }

    pub(crate) fn run(mut self) -> Outcome {
        let messages = TOTAL / self.size;
        let ahead = (AHEAD / self.size).max(2).min(messages);
        let (mut posted, mut done, mut received) = (0, 0, 0);
        while done < messages {
            assert!(self.now < 60_000_000_000, "32 MiB took longer than a virtual minute");
            while posted < messages && posted < done + ahead {
                if self.operation == Operation::Send {
                    let wr = RecvWr { wr_id: posted, sg_list: &[self.sge()] };
                    self.ends[1].qp.post_recv(&wr).expect("the receive queue has room");
                }
                self.post(posted);
                posted += 1;
            }
            for index in 0..2 {
                self.poll(index);
                while let Some(event) = self.ends[index].qp.poll_event() {
                    match event {
                        QpEvent::SendWc(wc) => {
                            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, done));
                            done += 1;
                        }
                        QpEvent::RecvWc { wc, .. } => {
                            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, received));
                            received += 1;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            self.now += POLL_NS;
        }
        let [a, b] = &self.ends;
        match self.operation {
            Operation::Write => assert_eq!(*b.memory.remote.borrow(), *a.memory.local.borrow()),
            Operation::Send => assert_eq!(*b.memory.local.borrow(), *a.memory.local.borrow()),
            Operation::Read => assert_eq!(*a.memory.local.borrow(), *b.memory.remote.borrow()),
        }
        Outcome { elapsed_ns: self.now, packets: self.packets, needed: TOTAL / MTU }
    }

    fn sge(&self) -> Sge {
        Sge { addr: LOCAL_BASE, length: self.size as u32, lkey: LOCAL_KEY }
    }

    fn post(&mut self, wr_id: u64) {
        let (remote_addr, r_key) = (REMOTE_BASE, REMOTE_KEY);
        let op = match self.operation {
            Operation::Write => WrOp::Write { remote_addr, r_key },
            Operation::Send => WrOp::Send,
            Operation::Read => WrOp::Read { remote_addr, r_key },
        };
        let wr = SendWr { wr_id, op, sg_list: &[self.sge()], flags: SendFlags::empty(), dest: None };
        let End { qp, memory, .. } = &mut self.ends[0];
        qp.post_send(&wr, memory).expect("the send queue has room");
    }

    /// One poll of an engine: receive, timers, transmit.
    fn poll(&mut self, index: usize) {
        let (left, right) = self.ends.split_at_mut(1);
        let (end, far) =
            if index == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
        let now = Instant(self.now);
        while end.arriving.front().is_some_and(|(at, _)| *at <= self.now)
            && let Some((_, bytes)) = end.arriving.pop_front()
        {
            let packet = Packet::parse(&bytes).expect("the packet is well formed");
            // The protocol decides what happens to packets after a loss.
            let _: Result<_, _> =
                end.qp.handle_packet(now, &packet, &end.from, &end.memory, None, &mut end.reorder);
        }
        end.qp.end_of_batch(now, false);
        if end.qp.poll_timeout().is_some_and(|at| at <= now) {
            end.qp.handle_timeout(now);
        }
        let mut buf = [0; MAX_PACKET];
        while far.line_free < self.now + BURST_NS
            && let Some(transmit) = end.qp.poll_transmit(now, &end.memory, usize::MAX, &mut buf)
        {
            let bytes = buf[..transmit.len + 4].to_vec();
            let payload = Packet::parse(&bytes).expect("the packet is well formed").payload().len() as u64;
            self.packets += u64::from(payload > 0);
            far.line_free = far.line_free.max(self.now) + NS_PER_PACKET * payload.max(64) / MTU;
            if self.rng.next() % 100_000 >= self.loss_per_100_000 {
                far.arriving.push_back((far.line_free + DELAY_NS, bytes));
            }
        }
    }
}
