//! A connected queue pair in RTS, its application and a hostile peer: packets, posts and time in any order.
//!
//! What must hold whatever arrives: no panic (overflow counts as one); memory is touched only where and when a
//! work request or a packet gave a reason to (`ledger.rs`); every work request completes at most once, in order, and
//! all of them once the queue pair is in error; what is sent is a well-formed packet; outputs end, and a handled
//! time-out is over.

use std::collections::VecDeque;

use transport::{
    Access, AddressVector, Dest, Instant, MAX_PACKET, PacketSource, PathMtu, Qp, QpAttr, QpAttrMask, QpCap,
    QpConfig, QpEvent, QpState, QpType, RecvQueue, RecvWr, ReorderBuffer, SendFlags, SendWr, Sge, SrqTable,
    UdDest, VerbsError, Wc, WcOpcode, WcStatus, WrOp,
};
use wire::opcode::{OpcodeRow, Operation, Position, Service};
use wire::{Aeth, Gid, Lkey, Msn, PKey, Packet, Psn, Qpn, Rkey, Syndrome};

use crate::craft::{self, Content, Q_KEY};
use crate::draw::Draw;
use crate::ledger::{Doing, LOCAL_BASE, LOCAL_KEY, LOCAL_LEN, Ledger, PD, QPN, REGIONS};

const PEER: Gid = Gid([0xfe; 16]);
const OWN: Gid = Gid([0xfd; 16]);
/// The shared receive queue that XRC requests name.
const SRQN: u32 = 0x12_3456;
const DEPTH: u32 = 8;
const MAX_SGE: usize = 2;
const MAX_INLINE: u32 = 64;
const STEPS: usize = 200;
/// More packets than any queue here can make from what is posted and asked for.
const DRAIN_MAX: usize = 100_000;
/// Packets in flight at most: behind a missing one the window opens as far as single packets can be told apart.
const WINDOW: usize = 512;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut world = World::new(Draw::new(data));
    for _ in 0..STEPS {
        if world.draw.is_empty() {
            break;
        }
        world.step();
        world.check();
    }
    world.finish();
}

/// A request that left.
#[derive(Clone, Copy, Debug)]
struct Sent {
    psn: Psn,
    operation: Operation,
    dma_len: u32,
}

/// A send work request that was posted.
#[derive(Clone, Copy, Debug)]
struct Posted {
    wr_id: u64,
    signaled: bool,
    /// Bytes that must have been written to its memory when it completes: READ and atomics.
    fetches: u64,
}

struct World<'a> {
    draw: Draw<'a>,
    qp: Qp,
    srq: Option<RecvQueue>,
    memory: Ledger,
    service: Service,
    mtu: PathMtu,
    attr: QpAttr,
    sig_all: bool,
    rows: Vec<&'static OpcodeRow>,
    now: Instant,
    /// What the responder probably expects.
    expected: Psn,
    sent: VecDeque<Sent>,
    sends: VecDeque<Posted>,
    recvs: VecDeque<(u64, u64)>,
    next_wr_id: u64,
}

fn psn(draw: &mut Draw<'_>) -> Psn {
    Psn::new(match draw.below(4) {
        0 => 0,
        1 => 0xff_ffff,
        2 => 0x7f_fffe,
        _ => draw.any(),
    })
}

fn shared_queue() -> RecvQueue {
    RecvQueue::new(DEPTH, MAX_SGE as u32, PD).expect("the sizes are below the limits")
}

/// The one shared receive queue, if there is one: the queue pair's own, or on XRC one with a number.
struct Reach<'a>(Service, Option<&'a mut RecvQueue>);

impl SrqTable for Reach<'_> {
    fn own(&mut self) -> Option<&mut RecvQueue> {
        self.1.as_deref_mut().filter(|_| self.0 != Service::Xrc)
    }

    fn xrc(&mut self, srqn: u32) -> Option<&mut RecvQueue> {
        self.1.as_deref_mut().filter(|_| srqn == SRQN)
    }
}

impl<'a> World<'a> {
    fn new(mut draw: Draw<'a>) -> Self {
        use QpType::{Rc, Uc, Ud, XrcIni, XrcTgt};
        let ty = draw.pick(&[Rc, Rc, Rc, Uc, Ud, XrcIni, XrcTgt]);
        let service = ty.service();
        let mtu = draw.pick(&PathMtu::ALL);
        let has_srq = draw.one_in(4) && service != Service::Xrc;
        let sig_all = draw.one_in(2);
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: MAX_SGE as u32,
            max_recv_sge: MAX_SGE as u32,
            max_inline_data: MAX_INLINE,
        };
        let config = QpConfig {
            qpn: QPN,
            ty,
            pd: PD,
            cap,
            sq_sig_all: sig_all,
            srq: has_srq,
            max_path_mtu: mtu,
            equal_writes: sig_all,
        };
        let qp = Qp::new(config).expect("the sizes are below the limits");
        let srq = (has_srq || ty == XrcTgt).then(shared_queue);
        let mut world = Self {
            draw,
            qp,
            srq,
            memory: Ledger::new(),
            service,
            mtu,
            attr: QpAttr::default(),
            sig_all,
            rows: craft::rows(service),
            now: Instant(1_000_000),
            expected: Psn::new(0),
            sent: VecDeque::new(),
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            next_wr_id: 1,
        };
        world.connect();
        world
    }

    /// From RESET to RTS with drawn attributes.
    fn connect(&mut self) {
        let draw = &mut self.draw;
        let access = match draw.below(4) {
            0..=2 => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            _ => Access::from_bits_truncate(draw.any::<u8>().into()),
        };
        let attr = QpAttr {
            port_num: 1,
            path_mtu: self.mtu,
            access,
            q_key: Q_KEY,
            rq_psn: psn(draw),
            sq_psn: psn(draw),
            dest_qp: Qpn::new(0x65_4321),
            av: AddressVector { dgid: PEER, ..AddressVector::default() },
            max_rd_atomic: draw.pick(&[4, 0, 1, 128]),
            max_dest_rd_atomic: draw.pick(&[4, 0, 1, 128]),
            min_rnr_timer: draw.pick(&[1, 0, 31]),
            timeout: draw.pick(&[14, 0, 1, 31]),
            retry_cnt: draw.pick(&[7, 0, 1]),
            rnr_retry: draw.pick(&[7, 0, 1]),
            ..QpAttr::default()
        };
        self.expected = attr.rq_psn;
        self.memory.qp_access.set(access);
        self.attr = attr;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state, ..self.attr.clone() };
            let mask = QpAttrMask::required(self.qp.ty(), state);
            self.qp.modify(self.now, &attr, mask).expect("a legal transition");
        }
    }

    fn step(&mut self) {
        match self.draw.below(24) {
            0..=5 => self.request(),
            6..=7 => self.message(),
            8..=10 => self.response(),
            11 => self.answer(),
            12..=13 => self.post_send(),
            14..=15 => self.post_recv(),
            16 => self.raw(),
            17 => self.qp.end_of_batch(self.now),
            18..=19 => {
                let most = self.draw.pick(&[1, 3, 40, 1000]);
                self.transmit(most);
            }
            20 => self.events(),
            21 => self.timeout(),
            22 => self.now = self.now.plus_ns(u64::from(self.draw.any::<u16>()) << self.draw.below(24)),
            _ => self.control(),
        }
    }

    /// A packet of any opcode, usually where it is expected.
    fn request(&mut self) {
        let row = self.draw.pick(&self.rows);
        let mtu = self.mtu.bytes();
        let reth = craft::reth(&mut self.draw, self.mtu);
        let payload_len = match self.draw.below(10) {
            0..=3 => match row.position {
                Position::First | Position::Middle => mtu,
                Position::Last | Position::Only => {
                    if row.headers.contains(&wire::opcode::ExtHeader::Reth)
                        && row.operation != Operation::ReadRequest
                    {
                        (reth.dma_len as usize).min(mtu)
                    } else {
                        0
                    }
                }
            },
            4 => mtu,
            5 => 0,
            6 => 1 + self.draw.below(mtu as u32) as usize,
            7 => mtu + 1,
            8 => 8,
            _ => self.draw.below(5000) as usize,
        };
        let content = self.content(reth, payload_len);
        self.deliver(&craft::packet(row, &content));
    }

    fn content(&mut self, reth: wire::Reth, payload_len: usize) -> Content {
        let draw = &mut self.draw;
        let flags = draw.any::<u8>();
        let delta = match flags & 7 {
            0..=4 => 0,
            5 => draw.below(8).wrapping_sub(4),
            6 => draw.any::<i8>() as u32,
            _ => draw.any(),
        };
        let strange = draw.one_in(16);
        let lost = self.service == Service::Xrc && draw.one_in(16);
        Content {
            srqn: if lost { draw.any() } else { SRQN },
            psn: self.expected.advance(delta & 0xff_ffff),
            ack_req: flags & 8 != 0,
            solicited: flags & 16 != 0,
            reth,
            atomic: craft::atomic(draw),
            aeth: craft::aeth(draw),
            original: draw.any::<u8>().into(),
            imm: [1, 2, 3, 4],
            invalidate: draw.pick(&REGIONS).key,
            q_key: if strange { wire::QKey(draw.any()) } else { Q_KEY },
            payload_len,
            pad_error: if strange { draw.any() } else { 0 },
            p_key: if strange { PKey(draw.any()) } else { PKey::DEFAULT },
            dest_qp: QPN,
        }
    }

    /// The top three bits of the opcodes of its service, where it has the opcodes of RC.
    fn base(&self) -> u8 {
        match self.service {
            Service::Uc => 0x20,
            Service::Xrc => 0xa0,
            _ => 0,
        }
    }

    /// The same for responses, which other services do not have.
    fn response_base(&self) -> u8 {
        if self.service == Service::Xrc { 0xa0 } else { 0 }
    }

    /// A whole WRITE or SEND, packet by packet, with something wrong now and then.
    fn message(&mut self) {
        let mtu = self.mtu.bytes();
        let mut reth = craft::reth(&mut self.draw, self.mtu);
        let write = self.draw.one_in(2);
        let imm = self.draw.one_in(2);
        let packets = 1 + self.draw.below(6) as usize;
        let len = (packets - 1) * mtu + self.draw.below(mtu as u32 + 1) as usize;
        if !self.draw.one_in(8) {
            reth.dma_len = len as u32;
        }
        let base = self.base();
        for i in 0..packets {
            let (starts, ends) = (i == 0, i + 1 == packets);
            let low = match (write, starts, ends) {
                (false, true, false) => 0x00,
                (false, false, false) => 0x01,
                (false, false, true) => 0x02 + u8::from(imm),
                (false, true, true) => 0x04 + u8::from(imm),
                (true, true, false) => 0x06,
                (true, false, false) => 0x07,
                (true, false, true) => 0x08 + u8::from(imm),
                (true, true, true) => 0x0a + u8::from(imm),
            };
            let Some(row) = wire::Opcode(base | low).row() else { return };
            let payload_len = (len - i * mtu).min(mtu);
            let mut content = self.content(reth, payload_len);
            match self.draw.below(16) {
                13 => continue,
                14 => content.payload_len ^= 1,
                15 => {}
                _ => content.psn = self.expected,
            }
            self.deliver(&craft::packet(row, &content));
        }
    }

    /// An acknowledgement, NAK or datum for something that was sent, or nearly.
    fn response(&mut self) {
        let row = {
            let low = self.draw.pick(&[0x11, 0x11, 0x10, 0x0d, 0x0e, 0x0f, 0x12]);
            wire::Opcode(self.response_base() | low).row().expect("a response")
        };
        let target = self.draw.below(self.sent.len().max(1) as u32) as usize;
        let at = self.sent.get(target).map_or(self.attr.sq_psn, |sent| sent.psn);
        let delta = match self.draw.below(4) {
            0..=1 => 0,
            2 => self.draw.any::<i8>() as u32,
            _ => self.draw.below(256),
        };
        let payload_len = match self.draw.below(4) {
            0 => self.mtu.bytes(),
            1 => 0,
            2 => self.sent.get(target).map_or(8, |sent| sent.dma_len as usize % self.mtu.bytes()),
            _ => self.draw.below(4200) as usize,
        };
        let reth = wire::Reth { va: 0, r_key: Rkey(0), dma_len: 0 };
        let content = Content {
            psn: at.advance(delta & 0xff_ffff),
            ack_req: false,
            solicited: false,
            ..self.content(reth, payload_len)
        };
        self.deliver(&craft::packet(row, &content));
    }

    /// The right answer to everything that was sent, with something wrong now and then.
    fn answer(&mut self) {
        let mtu = self.mtu.bytes();
        let reth = wire::Reth { va: 0, r_key: Rkey(0), dma_len: 0 };
        while let Some(sent) = self.sent.pop_front() {
            let len = sent.dma_len as usize;
            let packets = if sent.operation == Operation::ReadRequest { len.div_ceil(mtu).max(1) } else { 1 };
            for i in 0..packets.min(300) {
                let (starts, ends) = (i == 0, i + 1 == packets);
                let (low, payload_len) = match sent.operation {
                    Operation::ReadRequest => {
                        let low = match (starts, ends) {
                            (true, true) => 0x10,
                            (true, false) => 0x0d,
                            (false, false) => 0x0e,
                            (false, true) => 0x0f,
                        };
                        (low, (len - i * mtu).min(mtu))
                    }
                    Operation::CompareSwap | Operation::FetchAdd => (0x12, 0),
                    _ => (0x11, 0),
                };
                let row = wire::Opcode(self.response_base() | low).row().expect("a response");
                let psn = sent.psn.advance(i as u32);
                let aeth = Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) };
                let mut content = Content { psn, aeth, ..self.content(reth, payload_len) };
                (content.pad_error, content.p_key) = (0, PKey::DEFAULT);
                match self.draw.below(32) {
                    29 => continue,
                    30 => content.payload_len += 1,
                    31 => content.psn = psn.advance(1),
                    _ => {}
                }
                self.deliver(&craft::packet(row, &content));
            }
            if self.draw.one_in(8) {
                return;
            }
        }
    }

    fn raw(&mut self) {
        let bytes = self.draw.bytes(200).to_vec();
        self.deliver(&bytes);
    }

    /// Hands a packet over as the receive path does, and follows what the responder expects.
    fn deliver(&mut self, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let stranger = self.draw.one_in(64);
        let from = PacketSource { src: if stranger { OWN } else { PEER }, dst: OWN, tos: 2, ttl: 64 };
        let state = self.qp.state();
        if stranger && self.service != Service::Ud {
            // Memory is out of bounds for it.
            let result = self.qp.handle_packet(
                self.now,
                &packet,
                &from,
                &self.memory,
                Reach(self.service, self.srq.as_mut()),
                &mut ReorderBuffer::none(),
            );
            assert!(result.is_err() && self.qp.state() == state);
            return;
        }
        self.memory.packet(&packet);
        let result = self.qp.handle_packet(
            self.now,
            &packet,
            &from,
            &self.memory,
            Reach(self.service, self.srq.as_mut()),
            &mut ReorderBuffer::none(),
        );
        self.memory.doing.set(Doing::Nothing);
        if matches!(state, QpState::Err | QpState::Reset) {
            assert!(result.is_err(), "accepted in {state:?}");
        }
        let new = self.qp.state();
        assert!(new == state || new == QpState::Err, "{state:?} to {new:?} by a packet");
        let row = packet.row();
        if result.is_ok()
            && !row.is_response()
            && (packet.bth.psn == self.expected || self.service == Service::Uc)
        {
            let packets = match packet.reth() {
                Some(reth) if row.operation == Operation::ReadRequest => {
                    reth.dma_len.div_ceil(self.mtu.bytes() as u32).max(1)
                }
                _ => 1,
            };
            self.expected = packet.bth.psn.advance(packets);
        }
    }

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

    fn post_send(&mut self) {
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
            Err(VerbsError::NoMem | VerbsError::Invalid | VerbsError::Fault) => {}
            Err(error) => panic!("post_send: {error}"),
        }
    }

    fn post_recv(&mut self) {
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
            Err(VerbsError::NoMem | VerbsError::Invalid) => {}
            Err(error) => panic!("post_recv: {error}"),
        }
    }

    /// Takes up to `most` packets; whether there was an end.
    fn transmit(&mut self, most: usize) -> bool {
        let mut buf = [0; MAX_PACKET + 4];
        let budget = self.draw.pick(&[usize::MAX, 0, 1, 40]);
        let mut turn = self.qp.turn(self.now, budget);
        for _ in 0..most {
            let wanted = turn.qp().wants_transmit();
            self.memory.doing.set(Doing::Transmit);
            let transmit = turn.poll(&self.memory, &mut buf[..MAX_PACKET]);
            self.memory.doing.set(Doing::Nothing);
            let Some(transmit) = transmit else { return true };
            assert!(wanted, "it said that it had nothing to send");
            assert!(transmit.len.is_multiple_of(4) && transmit.len <= MAX_PACKET);
            assert_eq!(transmit.is_datagram, self.service == Service::Ud);
            let packet = Packet::parse(&buf[..transmit.len + 4]).expect("what is sent is a packet");
            let row = packet.row();
            assert_eq!(row.service, self.service);
            assert!(packet.payload().len() <= self.mtu.bytes());
            assert_eq!(usize::from(packet.bth.pad_cnt), packet.payload().len().wrapping_neg() & 3);
            let in_flight = turn.qp().packets_in_flight();
            assert!(in_flight <= WINDOW, "{in_flight} packets in flight");
            if row.is_response() {
                if let Some(Aeth { syndrome: Syndrome::Nak(_) | Syndrome::RnrNak(_), .. }) = packet.aeth() {
                    self.expected = packet.bth.psn;
                }
            } else if turn.qp().ty().is_reliable() {
                let dma_len = packet.reth().map_or(0, |reth| reth.dma_len);
                self.sent.push_back(Sent { psn: packet.bth.psn, operation: row.operation, dma_len });
                if self.sent.len() > 2 * WINDOW {
                    self.sent.pop_front();
                }
            }
        }
        false
    }

    fn events(&mut self) {
        while let Some(event) = self.qp.poll_event() {
            match event {
                QpEvent::SendWc(wc) => self.on_send_wc(&wc),
                QpEvent::RecvWc { wc, .. } => self.on_recv_wc(&wc),
                QpEvent::Async(_) | QpEvent::XrcLimitReached(_) => {}
            }
        }
    }

    fn on_send_wc(&mut self, wc: &Wc) {
        while let Some(posted) = self.sends.pop_front() {
            let last = posted.wr_id == wc.wr_id;
            if !last || wc.status == WcStatus::Success {
                let fetched = self.memory.fetched(posted.wr_id);
                assert!(fetched >= posted.fetches, "{posted:?} completes with {fetched} bytes");
            }
            if last {
                assert!(posted.signaled || wc.status != WcStatus::Success, "a completion nobody asked for");
                self.memory.revoke(wc.wr_id, true);
                return;
            }
            assert!(!posted.signaled, "{posted:?} without its completion");
        }
        panic!("work request {} completes twice", wc.wr_id);
    }

    fn on_recv_wc(&mut self, wc: &Wc) {
        let (wr_id, room) = self.recvs.pop_front().expect("a receive completion without a receive");
        assert_eq!(wr_id, wc.wr_id, "receives complete in order");
        if wc.status == WcStatus::Success && wc.opcode == WcOpcode::Recv {
            assert!(u64::from(wc.byte_len) <= room);
        }
        self.memory.revoke(wr_id, false);
    }

    fn timeout(&mut self) {
        if let Some(at) = self.qp.poll_timeout()
            && self.draw.one_in(2)
        {
            self.now = self.now.max(at);
        }
        self.qp.handle_timeout(self.now);
        assert!(self.qp.poll_timeout().is_none_or(|at| at > self.now), "a time-out that is handled is over");
    }

    /// What the application's control path does.
    fn control(&mut self) {
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
                // Registrations come and go.
                let region = self.draw.below(REGIONS.len() as u32);
                self.memory.alive.set(self.memory.alive.get() ^ 1 << region);
                return;
            }
            6 => {
                if let Some(srq) = &mut self.srq {
                    srq.arm_limit(self.draw.below(DEPTH + 1)).expect("within the size");
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
                // Its work requests outlive the queue pair's life; begin with a new one to keep the books simple.
                self.srq = Some(shared_queue());
            }
            self.connect();
        }
    }

    fn change(&mut self, attr: &QpAttr, mask: QpAttrMask) -> bool {
        let before = self.qp.state();
        let result = self.qp.modify(self.now, attr, mask);
        if result.is_err() {
            assert_eq!(self.qp.state(), before, "a refused call changes nothing");
        }
        result.is_ok()
    }

    fn check(&self) {
        assert!(self.qp.packets_in_flight() <= WINDOW);
        assert_eq!(self.qp.qpn(), QPN);
    }

    /// Everything that was posted can be brought to an end.
    fn finish(&mut self) {
        self.qp.end_of_batch(self.now);
        for _ in 0..3 {
            assert!(self.transmit(DRAIN_MAX), "sending has no end");
            self.events();
        }
        let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
        self.qp.modify(self.now, &error, QpAttrMask::STATE).expect("every state goes to ERR");
        self.events();
        assert!(
            !self.sends.iter().any(|posted| posted.signaled),
            "sends without completion: {:?}",
            self.sends
        );
        if self.srq.is_none() {
            assert!(self.recvs.is_empty(), "receives without completion: {:?}", self.recvs);
        }
        assert_eq!(self.qp.packets_in_flight(), 0);
        assert!(self.qp.is_send_idle());
        self.memory.check_guards();
    }
}
