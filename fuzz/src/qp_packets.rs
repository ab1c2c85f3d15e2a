//! Fuzzes a connected queue pair between an application and a hostile peer: packets, posts and time in any
//! order.
//!
//! Checked for every input: no panic, overflow included; memory is accessed only where and when a work
//! request or a packet gives a reason (`ledger.rs`); every work request completes at most once, in order,
//! and all of them complete in the error state; every sent packet is well formed; sending ends; a handled
//! timeout has not expired.

mod application;
mod peer;

use std::collections::VecDeque;

use transport::{
    Access, AddressVector, Instant, MAX_PACKET, PathMtu, Qp, QpAttr, QpAttrMask, QpCap, QpConfig, QpEvent,
    QpState, QpType, RecvQueue, SrqTable,
};
use wire::opcode::{OpcodeRow, Operation, Service};
use wire::{Aeth, Gid, Packet, Psn, Qpn, Syndrome};

use crate::craft::{self, Q_KEY};
use crate::draw::Draw;
use crate::ledger::{Doing, Ledger, PD, QPN};

const PEER: Gid = Gid([0xfe; 16]);
const OWN: Gid = Gid([0xfd; 16]);
/// Number of the shared receive queue in XRC requests.
const SRQN: u32 = 0x12_3456;
const DEPTH: u32 = 8;
const MAX_SGE: usize = 2;
const MAX_INLINE: u32 = 64;
const STEPS: usize = 200;
/// More packets than the queue pair can make of all posted and received requests.
const DRAIN_MAX: usize = 100_000;
/// Maximum number of packets in flight: after a loss, as many as a selective-repeat requester tracks.
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

/// A request that was sent.
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
    /// PSN that the responder probably expects.
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

/// The shared receive queue, if there is one: the queue pair's own, or with XRC the one with number [`SRQN`].
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

    /// Takes the queue pair from RESET to RTS with drawn attributes.
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
            self.qp.modify(self.now, &attr, mask).expect("the transition is legal");
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
            17 => self.qp.end_of_batch(self.now, false),
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

    /// Takes up to `most` packets. Returns whether the queue pair stopped sending by itself.
    fn transmit(&mut self, most: usize) -> bool {
        let mut buf = [0; MAX_PACKET + 4];
        let budget = self.draw.pick(&[usize::MAX, 0, 1, 40]);
        let mut turn = self.qp.transmit_quantum(self.now, budget);
        for _ in 0..most {
            let wanted = turn.qp().wants_transmit();
            self.memory.doing.set(Doing::Transmit);
            let transmit = turn.poll(&self.memory, &mut buf[..MAX_PACKET]);
            self.memory.doing.set(Doing::Nothing);
            let Some(transmit) = transmit else { return true };
            assert!(wanted, "the queue pair sends although it reported nothing to send");
            assert!(transmit.len.is_multiple_of(4) && transmit.len <= MAX_PACKET);
            assert_eq!(transmit.is_datagram, self.service == Service::Ud);
            let packet = Packet::parse(&buf[..transmit.len + 4]).expect("a sent packet can be parsed");
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

    fn timeout(&mut self) {
        if let Some(at) = self.qp.poll_timeout()
            && self.draw.one_in(2)
        {
            self.now = self.now.max(at);
        }
        self.qp.handle_timeout(self.now);
        assert!(self.qp.poll_timeout().is_none_or(|at| at > self.now), "a handled timeout has expired again");
    }

    fn check(&self) {
        assert!(self.qp.packets_in_flight() <= WINDOW);
        assert_eq!(self.qp.qpn(), QPN);
    }

    /// Checks that sending ends and that every work request completes in the error state.
    fn finish(&mut self) {
        self.qp.end_of_batch(self.now, false);
        for _ in 0..3 {
            assert!(self.transmit(DRAIN_MAX), "sending does not end");
            self.events();
        }
        let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
        self.qp.modify(self.now, &error, QpAttrMask::STATE).expect("every state may change to ERR");
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
