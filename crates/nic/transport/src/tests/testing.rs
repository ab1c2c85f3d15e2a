//! A bench for script tests: one queue pair, its memory, packets written as values and read as text.

mod memory;

pub(crate) use memory::TestMemory;

use std::cell::{Cell, RefCell};

use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, DropReason, ExtHeader, Feth, Gid, Ieth, ImmDt, Lkey, Msn,
    NakCode, Opcode, PKey, Packet, Psn, QKey, Qpn, Reth, Rkey, Syndrome, Xrceth,
};

use crate::{
    Access, AddressVector, AsyncEventKind, Dest, Instant, MAX_PACKET, PacketSource, PathMtu, PdId, Qp,
    QpAttr, QpAttrMask, QpCap, QpConfig, QpEvent, QpState, QpType, RecvQueue, RecvWr, ReorderBuffer,
    SendFlags, SendWr, Sge, SrqTable, UdDest, VerbsError, Wc, WcStatus, WrOp,
};

pub(crate) const QPN: u32 = 0x11;
pub(crate) const PEER_QPN: u32 = 0x22;
pub(crate) const RQ_PSN: u32 = 100;
pub(crate) const SQ_PSN: u32 = 500;
pub(crate) const PD: PdId = PdId(1);
/// Local memory: `LOCAL` .. `LOCAL` + SIZE under `LKEY`.
pub(crate) const LOCAL: u64 = 0x1_0000;
pub(crate) const LKEY: Lkey = Lkey(0x1001);
/// Memory for the peer: `REMOTE` .. `REMOTE` + SIZE under `RKEY`.
pub(crate) const REMOTE: u64 = 0x80_0000;
pub(crate) const RKEY: Rkey = Rkey(0x2002);
pub(crate) const SIZE: usize = 512 * 1024;

pub(crate) fn us(us: u64) -> Instant {
    Instant(us * 1000)
}

pub(crate) fn ms(ms: u64) -> Instant {
    us(ms * 1000)
}

/// A packet towards the queue pair under test.
#[derive(Clone, Debug)]
pub(crate) struct Pkt {
    pub(crate) bth: Bth,
    reth: Reth,
    atomic: AtomicEth,
    aeth: Aeth,
    original: u64,
    imm: [u8; 4],
    ieth: Rkey,
    deth: Deth,
    feth: Feth,
    srqn: u32,
    payload: Vec<u8>,
}

impl Pkt {
    pub(crate) fn new(opcode: Opcode, psn: u32) -> Self {
        Self {
            bth: Bth { opcode, dest_qp: Qpn::new(QPN), psn: Psn::new(psn), ..Bth::default() },
            reth: Reth::default(),
            atomic: AtomicEth::default(),
            aeth: Aeth { syndrome: Syndrome::ACK, msn: Msn::new(0) },
            original: 0,
            imm: [1, 2, 3, 4],
            ieth: Rkey(0x77),
            deth: Deth::default(),
            feth: Feth::default(),
            srqn: 0,
            payload: Vec::new(),
        }
    }

    pub(crate) fn ack(psn: u32) -> Self {
        Self::new(Opcode::RC_ACKNOWLEDGE, psn)
    }

    pub(crate) fn nak(psn: u32, code: NakCode) -> Self {
        Self::ack(psn).syndrome(Syndrome::Nak(code))
    }

    pub(crate) fn rnr(psn: u32, timer: u8) -> Self {
        Self::ack(psn).syndrome(Syndrome::RnrNak(timer))
    }

    pub(crate) fn syndrome(mut self, syndrome: Syndrome) -> Self {
        self.aeth.syndrome = syndrome;
        self
    }

    pub(crate) fn msn(mut self, msn: u32) -> Self {
        self.aeth.msn = Msn::new(msn);
        self
    }

    pub(crate) fn ack_req(mut self) -> Self {
        self.bth.ack_req = true;
        self
    }

    pub(crate) fn solicited(mut self) -> Self {
        self.bth.solicited = true;
        self
    }

    pub(crate) fn reth(mut self, va: u64, r_key: Rkey, dma_len: u32) -> Self {
        self.reth = Reth { va, r_key, dma_len };
        self
    }

    pub(crate) fn atomic(mut self, va: u64, swap_or_add: u64, compare: u64) -> Self {
        self.atomic = AtomicEth { va, r_key: RKEY, swap_or_add, compare };
        self
    }

    pub(crate) fn original(mut self, original: u64) -> Self {
        self.original = original;
        self
    }

    pub(crate) fn inv(mut self, key: Rkey) -> Self {
        self.ieth = key;
        self
    }

    pub(crate) fn deth(mut self, q_key: QKey, src_qp: u32) -> Self {
        self.deth = Deth { q_key, src_qp: Qpn::new(src_qp) };
        self
    }

    pub(crate) fn feth(mut self, placement: u8, selectivity: u8) -> Self {
        self.feth = Feth { placement, selectivity };
        self
    }

    pub(crate) fn srq(mut self, srqn: u32) -> Self {
        self.srqn = srqn;
        self
    }

    /// `len` bytes of this value.
    pub(crate) fn payload(mut self, value: u8, len: usize) -> Self {
        self.payload = vec![value; len];
        self
    }

    /// From the BTH to four bytes in place of the ICRC.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let pad = self.payload.len().wrapping_neg() & 3;
        let mut out = vec![0; Bth::LEN];
        Bth { pad_cnt: pad as u8, ..self.bth }.emit((&mut out[..]).try_into().unwrap());
        for header in self.bth.opcode.row().unwrap().headers {
            let at = out.len();
            out.resize(at + header.len_bytes(), 0);
            let to = &mut out[at..];
            match header {
                ExtHeader::Reth => self.reth.emit(to.try_into().unwrap()),
                ExtHeader::AtomicEth => self.atomic.emit(to.try_into().unwrap()),
                ExtHeader::Aeth => self.aeth.emit(to.try_into().unwrap()),
                ExtHeader::AtomicAckEth => {
                    AtomicAckEth { original: self.original }.emit(to.try_into().unwrap())
                }
                ExtHeader::ImmDt => ImmDt(self.imm).emit(to.try_into().unwrap()),
                ExtHeader::Ieth => Ieth { r_key: self.ieth }.emit(to.try_into().unwrap()),
                ExtHeader::Feth => self.feth.emit(to.try_into().unwrap()),
                ExtHeader::Xrceth => Xrceth { srqn: self.srqn }.emit(to.try_into().unwrap()),
                ExtHeader::Deth => self.deth.emit(to.try_into().unwrap()),
                _ => {}
            }
        }
        out.extend_from_slice(&self.payload);
        out.resize(out.len() + pad + 4, 0);
        out
    }
}

/// One queue pair under test.
pub(crate) struct Bench {
    pub(crate) qp: Qp,
    pub(crate) mem: TestMemory,
    pub(crate) now: Instant,
    pub(crate) srq: Option<RecvQueue>,
    /// XRC shared receive queues of the right domain, by number.
    pub(crate) xrc: Vec<(u32, RecvQueue)>,
    pub(crate) reorder: ReorderBuffer,
    pub(crate) from: PacketSource,
    pub(crate) budget: usize,
}

/// The shared receive queues of a bench.
struct Srqs<'a> {
    own: Option<&'a mut RecvQueue>,
    xrc: &'a mut [(u32, RecvQueue)],
}

impl SrqTable for Srqs<'_> {
    fn own(&mut self) -> Option<&mut RecvQueue> {
        self.own.as_deref_mut()
    }

    fn xrc(&mut self, srqn: u32) -> Option<&mut RecvQueue> {
        self.xrc.iter_mut().find(|(number, _)| *number == srqn).map(|(_, queue)| queue)
    }
}

/// The peer's UDP source port, which every queue pair knows.
pub(crate) const PORT: u16 = 0xc0de;

pub(crate) fn config(ty: QpType) -> QpConfig {
    let cap =
        QpCap { max_send_wr: 400, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };
    let qpn = Qpn::new(QPN);
    QpConfig {
        qpn,
        ty,
        pd: PD,
        cap,
        sq_sig_all: false,
        srq: false,
        max_path_mtu: PathMtu::M4096,
        equal_writes: false,
    }
}

pub(crate) fn attr() -> QpAttr {
    let peer = Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 2));
    QpAttr {
        path_mtu: PathMtu::M1024,
        q_key: QKey(0x1111),
        rq_psn: Psn::new(RQ_PSN),
        sq_psn: Psn::new(SQ_PSN),
        dest_qp: Qpn::new(PEER_QPN),
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        av: AddressVector { dgid: peer, hop_limit: 64, ..AddressVector::default() },
        port_num: 1,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    }
}

impl Bench {
    pub(crate) fn rc() -> Self {
        Self::new(config(QpType::Rc), &attr(), QpState::Rts)
    }

    pub(crate) fn rc_with(change: impl FnOnce(&mut QpAttr)) -> Self {
        let mut attr = attr();
        change(&mut attr);
        Self::new(config(QpType::Rc), &attr, QpState::Rts)
    }

    /// A queue pair taken as far as `state`.
    pub(crate) fn new(config: QpConfig, attr: &QpAttr, state: QpState) -> Self {
        let mut qp = Qp::new(config).unwrap();
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            if (to as u32) <= state as u32 {
                let attr = QpAttr { state: to, ..attr.clone() };
                qp.modify(Instant::ZERO, &attr, QpAttrMask::required(config.ty, to)).unwrap();
            }
        }
        let mem = TestMemory {
            local: RefCell::new(vec![0; SIZE]),
            remote: RefCell::new(vec![0; SIZE]),
            revoked: Cell::new(false),
            local_gone: Cell::new(false),
            read_only: Cell::new(false),
            invalidated: RefCell::new(vec![]),
            changed: RefCell::default(),
            last_pd: Cell::default(),
        };
        let dst = Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 1));
        let from = PacketSource { src: attr.av.dgid, src_port: PORT, dst, tos: 0, ttl: 64 };
        qp.learn_port(PORT);
        let srq = config.srq.then(|| RecvQueue::new(16, 4, PD).unwrap());
        let reorder = ReorderBuffer::new(attr.path_mtu);
        Self { qp, mem, now: Instant::ZERO, srq, xrc: Vec::new(), reorder, from, budget: usize::MAX }
    }

    /// Lets time pass up to `now`, firing due timers.
    pub(crate) fn at(&mut self, now: Instant) {
        while let Some(due) = self.qp.poll_timeout().filter(|&due| due <= now) {
            self.now = self.now.max(due);
            self.qp.handle_timeout(self.now);
        }
        self.now = now;
    }

    /// Packets that arrive together.
    pub(crate) fn batch(&mut self, packets: &[Pkt]) -> Vec<Result<(), DropReason>> {
        let results = self.handle(packets);
        self.qp.end_of_batch(self.now, false);
        results
    }

    /// Packets that an application thread receives together by polling.
    pub(crate) fn polled_batch(&mut self, packets: &[Pkt]) {
        assert!(self.handle(packets).iter().all(Result::is_ok));
        self.qp.end_of_batch(self.now, true);
    }

    fn handle(&mut self, packets: &[Pkt]) -> Vec<Result<(), DropReason>> {
        packets
            .iter()
            .map(|pkt| {
                let bytes = pkt.bytes();
                let packet = Packet::parse(&bytes).unwrap();
                self.qp.handle_packet(
                    self.now,
                    &packet,
                    &self.from,
                    &self.mem,
                    Srqs { own: self.srq.as_mut(), xrc: &mut self.xrc },
                    &mut self.reorder,
                )
            })
            .collect()
    }

    /// One packet by itself.
    pub(crate) fn recv(&mut self, packet: &Pkt) -> Result<(), DropReason> {
        self.batch(core::slice::from_ref(packet))[0]
    }

    /// The next packet that is sent, as bytes with four zero bytes behind.
    pub(crate) fn poll(&mut self) -> Option<(Vec<u8>, Option<UdDest>)> {
        let mut buf = vec![0xee; MAX_PACKET];
        let wanted = self.qp.wants_transmit();
        let transmit = self.qp.poll_transmit(self.now, &self.mem, self.budget, &mut buf)?;
        assert!(wanted);
        buf.truncate(transmit.len);
        buf.resize(transmit.len + 4, 0);
        Some((buf, transmit.is_datagram.then(|| *self.qp.datagram_dest())))
    }

    /// Everything that is sent now, as text: `WRITE First 500 AckReq ..`.
    pub(crate) fn sent(&mut self) -> Vec<String> {
        core::iter::from_fn(|| self.poll().map(|(bytes, _)| text(&bytes))).collect()
    }

    /// The payloads of everything that is sent now, in a row.
    pub(crate) fn sent_payload(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some((bytes, _)) = self.poll() {
            all.extend_from_slice(Packet::parse(&bytes).unwrap().payload());
        }
        all
    }

    pub(crate) fn post(&mut self, wr_id: u64, op: WrOp, len: u32) {
        self.post_flags(wr_id, op, len, SendFlags::SIGNALED).unwrap();
    }

    pub(crate) fn post_flags(
        &mut self,
        wr_id: u64,
        op: WrOp,
        len: u32,
        flags: SendFlags,
    ) -> Result<(), VerbsError> {
        let sge = Sge { addr: LOCAL, length: len, lkey: LKEY };
        self.post_sges(wr_id, op, &[sge], flags)
    }

    pub(crate) fn post_sges(
        &mut self,
        wr_id: u64,
        op: WrOp,
        sg_list: &[Sge],
        flags: SendFlags,
    ) -> Result<(), VerbsError> {
        self.post_to(None, wr_id, op, sg_list, flags)
    }

    pub(crate) fn post_to(
        &mut self,
        dest: Option<Dest>,
        wr_id: u64,
        op: WrOp,
        sg_list: &[Sge],
        flags: SendFlags,
    ) -> Result<(), VerbsError> {
        self.qp.post_send(&SendWr { wr_id, op, sg_list, flags, dest }, &self.mem)
    }

    /// Posts a receive of `len` bytes at `LOCAL` + `offset`.
    pub(crate) fn post_recv(&mut self, wr_id: u64, offset: u64, len: u32) {
        let sge = Sge { addr: LOCAL + offset, length: len, lkey: LKEY };
        let wr = RecvWr { wr_id, sg_list: &[sge] };
        match &mut self.srq {
            Some(srq) => srq.post(&wr).unwrap(),
            None => self.qp.post_recv(&wr).unwrap(),
        }
    }

    pub(crate) fn events(&mut self) -> Vec<QpEvent> {
        core::iter::from_fn(|| {
            let is_said = self.qp.has_event();
            let event = self.qp.poll_event();
            assert_eq!(is_said, event.is_some());
            event
        })
        .collect()
    }

    /// The send completions that are there: wr_id and status.
    pub(crate) fn send_wcs(&mut self) -> Vec<(u64, WcStatus)> {
        self.events()
            .into_iter()
            .map(|event| match event {
                QpEvent::SendWc(wc) => (wc.wr_id, wc.status),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// The one receive completion that is there.
    pub(crate) fn recv_wc(&mut self) -> Wc {
        match self.events()[..] {
            [QpEvent::RecvWc { wc, .. }] => wc,
            ref other => panic!("{other:?}"),
        }
    }

    /// Asserts that the queue pair ended in ERR with exactly this event.
    pub(crate) fn assert_err_event(&mut self, kind: AsyncEventKind) {
        assert_eq!(self.events(), [QpEvent::Async(kind)]);
        assert_eq!(self.qp.state(), QpState::Err);
    }
}

/// A packet as text, without service, destination and the commonplace.
pub(crate) fn text(bytes: &[u8]) -> String {
    let packet = Packet::parse(bytes).unwrap();
    assert_eq!(packet.bth.p_key, PKey::DEFAULT);
    let name = packet.row().name;
    let mut out = name.trim_start_matches("XRC ").replacen("RC ", "", 1).replacen("RDMA ", "", 1);
    out += &format!(" {}", packet.bth.psn);
    for (set, word) in [(packet.bth.ack_req, " AckReq"), (packet.bth.solicited, " SE")] {
        if set {
            out += word;
        }
    }
    if let Some(header) = packet.xrceth() {
        out += &format!(" srq {}", header.srqn);
    }
    if let Some(reth) = packet.reth() {
        out += &format!(" +{:#x} len {}", reth.va - REMOTE, reth.dma_len);
    }
    if let Some(aeth) = packet.aeth() {
        match aeth.syndrome {
            Syndrome::ACK => {}
            Syndrome::RnrNak(code) => out += &format!(" RNR {code}"),
            Syndrome::Nak(code) => out += &format!(" NAK {}", code as u8),
            other => out += &format!(" {other}"),
        }
        out += &format!(" msn {}", aeth.msn);
    }
    if let Some(ack) = packet.atomic_ack_eth() {
        out += &format!(" original {}", ack.original);
    }
    if packet.imm().is_some() {
        out += " imm";
    }
    if let Some(key) = packet.ieth() {
        out += &format!(" inv {key}");
    }
    if !packet.payload().is_empty() {
        out += &format!(" [{}]", packet.payload().len());
    }
    out
}

pub(crate) fn write(len_at: u64) -> WrOp {
    WrOp::Write { remote_addr: REMOTE + len_at, r_key: RKEY }
}

pub(crate) fn read(at: u64) -> WrOp {
    WrOp::Read { remote_addr: REMOTE + at, r_key: RKEY }
}
