//! Two queue pairs, their applications and the network between them, driven from one seed.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use roxie_transport::{
    Access, AddressVector, Instant, MAX_PACKET, PacketSource, PathMtu, PdId, Qp, QpAttr, QpAttrMask, QpCap,
    QpConfig, QpCounters, QpEvent, QpState, QpType, RecvQueue, RecvWr, ReorderBuffer, SendFlags, SendWr, Sge,
    VerbsError, Wc, WcOpcode, WcStatus, WrOp,
};
use wire::{Gid, Packet, Psn, Qpn, Rkey};

use crate::sim::memory::{LOCAL_BASE, LOCAL_KEY, REMOTE_BASE, REMOTE_KEY, SimMemory};
use crate::sim::network::{Faults, Network};
use crate::sim::plan::{self, Half, Kind, Op, Shape};
use crate::sim::rng::Rng;

/// Virtual time after which a run is stuck.
const TOO_LATE: u64 = 300_000_000_000;

struct Side {
    qp: Qp,
    srq: Option<RecvQueue>,
    reorder: ReorderBuffer,
    memory: SimMemory,
    half: Half,
    posted: usize,
    /// Signalled operations that were posted and not completed.
    awaited: VecDeque<usize>,
    /// Operations known to be complete.
    completed: usize,
    recvs_posted: usize,
    recvs_done: usize,
    next_app: u64,
    /// Packets that the owner allows in flight.
    flow_window: usize,
    from: PacketSource,
}

/// One run.
pub(crate) struct World {
    rng: Rng,
    now: u64,
    sides: [Side; 2],
    network: Network,
    eager: bool,
    batch: u64,
}

/// Attributes drawn for the run.
#[derive(Clone, Copy)]
struct Limits {
    rd_atomic: u8,
    timeout: u8,
    min_rnr_timer: u8,
}

fn attr_for(index: usize, mtu: PathMtu, psn: [u32; 2], limits: Limits) -> QpAttr {
    let Limits { rd_atomic: rd, timeout, min_rnr_timer } = limits;
    QpAttr {
        path_mtu: mtu,
        rq_psn: Psn::new(psn[1 - index]),
        sq_psn: Psn::new(psn[index]),
        dest_qp: Qpn::new(0x10_0000 + 1 - index as u32),
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE,
        av: AddressVector { dgid: gid(1 - index), ..AddressVector::default() },
        port_num: 1,
        max_rd_atomic: rd,
        max_dest_rd_atomic: rd,
        min_rnr_timer,
        timeout,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    }
}

fn gid(index: usize) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(10, 0, 0, index as u8 + 1))
}

/// Takes a queue pair from RESET to RTS.
fn connect(qp: &mut Qp, attr: &QpAttr) {
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
        qp.modify(Instant::ZERO, &QpAttr { state, ..attr.clone() }, mask | M::STATE).unwrap();
    }
}

impl World {
    /// Draws a run from its seed.
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mtu = rng.pick(&PathMtu::ALL);
        let shape = Shape {
            mtu: mtu.bytes(),
            max_sge: rng.between(1, 5) as usize,
            max_inline: rng.pick(&[0, 16, 64, 256]),
            ops: rng.pick(&[1, 5, 20, 60]),
            bytes: rng.pick(&[4 << 10, 64 << 10, 512 << 10]) * (mtu.bytes() / 256).min(2),
            fences: rng.pick(&[0, 0, 100]),
        };
        let mut halves = [Half::default(), Half::default()];
        let [a, b] = &mut halves;
        plan::draw(a, b, &shape, 0x10_0000, &mut rng);
        if rng.chance(700) {
            plan::draw(b, a, &shape, 0x20_0000, &mut rng);
        }
        for half in &mut halves {
            half.local.extend_from_slice(&[0x5a; 32]);
            half.remote.extend_from_slice(&[0x5a; 32]);
            half.local_after = half.local.clone();
            half.remote_after = half.remote.clone();
        }
        let [a, b] = &mut halves;
        plan::apply(a, b);
        plan::apply(b, a);
        let psn = [0, 1].map(|_| {
            if rng.chance(500) { 0xff_ffff - rng.between(0, 300) as u32 } else { rng.next() as u32 }
        });
        let limits = Limits {
            rd_atomic: rng.pick(&[1, 2, 4, 16]),
            timeout: rng.between(8, 11) as u8,
            min_rnr_timer: rng.between(1, 8) as u8,
        };
        // A random subset of faults, so that some runs are calm and some brutal.
        let sometimes = |rng: &mut Rng, max| if rng.chance(500) { rng.between(0, max) } else { 0 };
        let faults = Faults {
            loss: sometimes(&mut rng, 50),
            corruption: sometimes(&mut rng, 10),
            duplication: sometimes(&mut rng, 50),
            reordering: sometimes(&mut rng, 100),
            delay_ns: rng.between(500, 50_000),
            jitter_ns: rng.between(1, 200_000),
        };
        let srq = [rng.chance(250), rng.chance(250)];
        let goes_back = [rng.chance(250), rng.chance(250)];
        let depth = rng.pick(&[1, 4, 64]);
        let flow_window = rng.pick(&[usize::MAX, usize::MAX, 1, 7, 64]);
        let mut index = 0;
        let sides = halves.map(|half| {
            let config = QpConfig {
                qpn: Qpn::new(0x10_0000 + index as u32),
                ty: QpType::Rc,
                pd: PdId(index as u32 + 1),
                cap: QpCap {
                    max_send_wr: depth,
                    max_recv_wr: depth,
                    max_send_sge: shape.max_sge as u32,
                    max_recv_sge: 2,
                    max_inline_data: shape.max_inline as u32,
                },
                sq_sig_all: false,
                srq: srq[index],
                max_path_mtu: PathMtu::M4096,
                equal_writes: rng.chance(500),
            };
            let mut qp = Qp::new(config).unwrap();
            connect(&mut qp, &attr_for(index, mtu, psn, limits));
            let side = Side {
                qp,
                // An end that keeps nothing is a plain go-back-N responder, as hardware and rxe are.
                reorder: if goes_back[index] { ReorderBuffer::none() } else { ReorderBuffer::new(mtu) },
                srq: srq[index].then(|| RecvQueue::new(depth, 2).unwrap()),
                memory: SimMemory {
                    pd: config.pd,
                    qpn: config.qpn,
                    local: RefCell::new(half.local.clone()),
                    remote: RefCell::new(half.remote.clone()),
                    keys: RefCell::new(half.keys.iter().copied().collect::<HashSet<_>>()),
                },
                half,
                posted: 0,
                awaited: VecDeque::new(),
                completed: 0,
                recvs_posted: 0,
                recvs_done: 0,
                next_app: 0,
                flow_window,
                from: PacketSource { src: gid(1 - index), dst: gid(index), tos: 0, ttl: 64 },
            };
            index += 1;
            side
        });
        let (eager, batch) = (rng.chance(500), rng.pick(&[1, 4, 64]));
        Self { rng, now: 0, sides, network: Network::new(faults), eager, batch }
    }

    /// Runs to the end and checks everything.
    pub(crate) fn run(&mut self) {
        while !self.is_done() {
            let next = [self.network.next_arrival()]
                .into_iter()
                .chain(self.sides.iter().map(|side| side.qp.poll_timeout().map(|at| at.0)))
                .chain(self.sides.iter().map(|side| side.wants_app().then_some(side.next_app)))
                .flatten()
                .min()
                .expect("nothing left to wait for, but not done");
            self.now = self.now.max(next);
            assert!(self.now < TOO_LATE, "no end in sight: {}", self.state());
            self.deliver();
            for side in &mut self.sides {
                if side.qp.poll_timeout().is_some_and(|at| at.0 <= self.now) {
                    side.qp.handle_timeout(Instant(self.now));
                    assert!(
                        side.qp.poll_timeout().is_none_or(|at| at.0 > self.now),
                        "a timeout that is handled is over"
                    );
                }
            }
            for index in 0..2 {
                self.application(index);
                self.drain(index);
            }
        }
        for side in &self.sides {
            assert_eq!(*side.memory.local.borrow(), side.half.local_after, "local memory");
            assert_eq!(*side.memory.remote.borrow(), side.half.remote_after, "remote memory");
            assert!(side.memory.keys.borrow().is_empty(), "a key that was not invalidated");
            assert_eq!(side.qp.state(), QpState::Rts);
        }
    }

    /// What both sides counted.
    pub(crate) fn counters(&self) -> QpCounters {
        let mut sum = *self.sides[0].qp.counters();
        sum.absorb(self.sides[1].qp.counters());
        sum
    }

    fn is_done(&self) -> bool {
        self.sides
            .iter()
            .all(|side| side.completed == side.half.ops.len() && side.recvs_done == side.half.recvs.len())
    }

    fn state(&self) -> String {
        let of = |side: &Side| {
            format!(
                "{}/{} sent, {}/{} received, {:?}",
                side.completed,
                side.half.ops.len(),
                side.recvs_done,
                side.half.recvs.len(),
                side.qp.counters()
            )
        };
        format!("{} | {}", of(&self.sides[0]), of(&self.sides[1]))
    }

    /// Hands over what has arrived, in batches.
    fn deliver(&mut self) {
        for _ in 0..self.batch {
            let Some((to, bytes)) = self.network.arrived(self.now) else { break };
            let side = &mut self.sides[to];
            let packet = Packet::parse(&bytes).unwrap();
            // A refused packet is one that the protocol drops; whether that was right shows in the end.
            let _refused = side.qp.handle_packet(
                Instant(self.now),
                &packet,
                &side.from,
                &side.memory,
                side.srq.as_mut(),
                &mut side.reorder,
            );
        }
        for side in &mut self.sides {
            side.qp.end_of_batch(Instant(self.now));
        }
    }

    fn application(&mut self, index: usize) {
        let side = &mut self.sides[index];
        if !side.wants_app() || side.next_app > self.now {
            return;
        }
        let (posts, recvs) =
            if self.eager { (64, 64) } else { (self.rng.between(0, 4), self.rng.between(0, 4)) };
        for _ in 0..recvs {
            if side.recvs_posted == side.half.recvs.len() || !side.post_recv(&mut self.rng) {
                break;
            }
        }
        for _ in 0..posts {
            if side.posted == side.half.ops.len() || !side.post_send() {
                break;
            }
        }
        side.next_app = self.now + self.rng.between(100, 100_000);
    }

    fn drain(&mut self, index: usize) {
        let mut buf = [0; MAX_PACKET];
        let side = &mut self.sides[index];
        loop {
            let budget = side.flow_window.saturating_sub(side.qp.packets_in_flight());
            let wanted = side.qp.wants_transmit();
            let Some(transmit) = side.qp.poll_transmit(Instant(self.now), &side.memory, budget, &mut buf)
            else {
                break;
            };
            assert!(wanted, "it said that it had nothing to send");
            assert!(transmit.ud.is_none() && transmit.len.is_multiple_of(4));
            assert!(side.qp.packets_in_flight() <= 310, "window");
            buf[transmit.len..transmit.len + 4].fill(0);
            self.network.send(self.now, 1 - index, &buf[..transmit.len + 4], &mut self.rng);
        }
        while let Some(event) = side.qp.poll_event() {
            match event {
                QpEvent::SendWc(wc) => side.on_send_wc(&wc, &mut self.rng),
                QpEvent::RecvWc { wc, solicited } => side.on_recv_wc(&wc, solicited),
                QpEvent::Async(kind) => panic!("unexpected {kind:?}"),
            }
            side.next_app = side.next_app.min(self.now + 50);
        }
        self.scribble(index);
    }

    /// What a complete WRITE wrote belongs to the peer again: it may change it, and no late repetition may undo that.
    fn scribble(&mut self, index: usize) {
        let [a, b] = &mut self.sides;
        let (side, peer) = if index == 0 { (a, b) } else { (b, a) };
        if side.half.remote_scribbled == side.completed {
            return;
        }
        for done in &side.half.ops[side.half.remote_scribbled..side.completed] {
            if let Kind::Write { to } = done.kind
                && !done.looked_at
                && done.len > 0
            {
                peer.memory.remote.borrow_mut()[to] ^= 0xff;
                peer.half.remote_after[to] ^= 0xff;
            }
        }
        side.half.remote_scribbled = side.completed;
    }
}

impl Side {
    fn wants_app(&self) -> bool {
        self.posted < self.half.ops.len() || self.recvs_posted < self.half.recvs.len()
    }

    fn post_send(&mut self) -> bool {
        let op = &self.half.ops[self.posted];
        let mut addr = LOCAL_BASE + op.local as u64;
        let sges: Vec<Sge> = op
            .pieces
            .iter()
            .map(|&length| {
                // The key of an empty element is not looked at, nor is that of inline data.
                let lkey = if length == 0 || op.inline { wire::Lkey(0xdead) } else { LOCAL_KEY };
                let sge = Sge { addr, length, lkey };
                addr += u64::from(length);
                sge
            })
            .collect();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, op.signaled);
        flags.set(SendFlags::SOLICITED, op.solicited);
        flags.set(SendFlags::FENCE, op.fence);
        flags.set(SendFlags::INLINE, op.inline);
        let wr = SendWr { wr_id: self.posted as u64, op: op.wr_op(), sg_list: &sges, flags, ud: None };
        match self.qp.post_send(&wr, &self.memory) {
            Ok(()) => {}
            Err(VerbsError::NoMem) => return false,
            Err(error) => panic!("post_send: {error}"),
        }
        if op.signaled {
            self.awaited.push_back(self.posted);
        }
        self.posted += 1;
        true
    }

    fn post_recv(&mut self, rng: &mut Rng) -> bool {
        let recv = &self.half.recvs[self.recvs_posted];
        let first = rng.between(0, recv.room as u64);
        let addr = LOCAL_BASE + recv.local as u64;
        let sges = [
            Sge { addr, length: first as u32, lkey: LOCAL_KEY },
            Sge { addr: addr + first, length: recv.room as u32 - first as u32, lkey: LOCAL_KEY },
        ];
        let wr = RecvWr { wr_id: 0x1000 + self.recvs_posted as u64, sg_list: &sges };
        let result = match &mut self.srq {
            Some(srq) => srq.post(&wr),
            None => self.qp.post_recv(&wr),
        };
        match result {
            Ok(()) => self.recvs_posted += 1,
            Err(VerbsError::NoMem) => return false,
            Err(error) => panic!("post_recv: {error}"),
        }
        true
    }

    /// Signalled work requests complete once and in order, with the bytes they asked for.
    fn on_send_wc(&mut self, wc: &Wc, rng: &mut Rng) {
        assert_eq!(wc.status, WcStatus::Success, "wr {} of {:?}", wc.wr_id, self.qp.counters());
        let index = self.awaited.pop_front().expect("a completion nobody asked for");
        assert_eq!(wc.wr_id, index as u64, "completions in order");
        for op in &mut self.half.ops[self.completed..=index] {
            let bytes = op.local..op.local + op.len;
            let mut local = self.memory.local.borrow_mut();
            match op.kind {
                Kind::Read { .. } | Kind::CompareSwap { .. } | Kind::FetchAdd { .. } => {
                    assert_eq!(local[bytes], op.fetched, "what {:?} brought", op.kind);
                }
                Kind::LocalInv { key } => assert!(!self.memory.keys.borrow().contains(&key)),
                // The source belongs to the application again; nothing may look at it any more.
                _ if op.len > 0 && rng.chance(500) => {
                    local[op.local] ^= 0xff;
                    self.half.local_after[op.local] ^= 0xff;
                }
                _ => {}
            }
        }
        self.completed = index + 1;
    }

    /// Receive work requests complete once and in order, with the message that is theirs.
    fn on_recv_wc(&mut self, wc: &Wc, solicited: bool) {
        let recv = &self.half.recvs[self.recvs_done];
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, 0x1000 + self.recvs_done as u64));
        assert_eq!(wc.byte_len as usize, recv.byte_len);
        assert_eq!(solicited, recv.solicited);
        let local = self.memory.local.borrow();
        match &recv.data {
            Some(data) => {
                assert_eq!(wc.opcode, WcOpcode::Recv);
                assert_eq!(local[recv.local..recv.local + data.len()], **data, "what the SEND brought");
            }
            None => assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm),
        }
        let flags = if recv.imm.is_some() { Wc::WITH_IMM } else { 0 }
            | if recv.inv.is_some() { Wc::WITH_INV } else { 0 };
        assert_eq!(wc.wc_flags, flags);
        if let Some(imm) = recv.imm {
            assert_eq!(wc.imm_data, imm);
        }
        if let Some(key) = recv.inv {
            assert_eq!(u32::from_ne_bytes(wc.imm_data), key);
            assert!(!self.memory.keys.borrow().contains(&key));
        }
        self.recvs_done += 1;
    }
}

impl Op {
    fn wr_op(&self) -> WrOp {
        let r_key = REMOTE_KEY;
        let remote = |at: usize| REMOTE_BASE + at as u64;
        match self.kind {
            Kind::Send => WrOp::Send,
            Kind::SendImm { imm } => WrOp::SendImm(imm),
            Kind::SendInv { key } => WrOp::SendInv(Rkey(key)),
            Kind::Write { to } => WrOp::Write { remote_addr: remote(to), r_key },
            Kind::WriteImm { to, imm } => WrOp::WriteImm { remote_addr: remote(to), r_key, imm },
            Kind::Read { from } => WrOp::Read { remote_addr: remote(from), r_key },
            Kind::CompareSwap { word, compare, swap } => {
                WrOp::CompareSwap { remote_addr: remote(word), r_key, compare, swap }
            }
            Kind::FetchAdd { word, add } => WrOp::FetchAdd { remote_addr: remote(word), r_key, add },
            Kind::LocalInv { key } => WrOp::LocalInv(Rkey(key)),
        }
    }
}
