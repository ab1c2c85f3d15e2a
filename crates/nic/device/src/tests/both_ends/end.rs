//! One end of a connection: a device behind its port, with one queue pair.

use std::net::IpAddr;
use std::sync::Arc;

use transport::numbering::place_of;
use transport::{
    Access, AddressVector, AsyncEventKind, Dest, Instant, PathMtu, PdId, QpAttr, QpAttrMask, QpCap, QpConfig,
    QpState, QpType, RecvQueue, RecvWr, SendFlags, SendWr, Sge, UdDest, VerbsError, Wc, WcStatus, WrOp,
};
use wire::{Gid, Lkey, Psn, QKey, Qpn, Rkey};

use super::cable::Cable;
use crate::cq::CompletionQueue;
use crate::engine::Core;
use crate::engine::entry::QpEntry;
use crate::engine::tables::Tables;
use crate::events::EventQueue;
use crate::gid::{GidRow, GidTable};
use crate::keys::{MwType, Range};
use crate::mr::DmaMemory;
use crate::port::Destination;
use crate::port::RxQueues;
use crate::sched::Tuning;
use crate::srqs::{SrqEntry, SrqScope, XrcScope, srqn};
use crate::stages::Hooks;
use crate::verbs::AsyncEvent;

/// Payload of a full packet.
pub(super) const MTU: usize = 1024;
/// The first PSN in both directions.
pub(super) const PSN: u32 = 100;
pub(super) const Q_KEY: QKey = QKey(0x1122_3344);
/// 0.64 ms.
pub(super) const RNR_TIMER: u8 = 12;
pub(super) const PD: PdId = PdId(1);
pub(super) const OTHER_PD: PdId = PdId(2);
/// The protection domain ID that stands for the XRC domain.
const XRC_DOMAIN: PdId = PdId(3);
/// Memory of an end (bytes): first the buffer of its work requests, then the range granted to the peer.
const LOCAL_LEN: u64 = 64 * 1024;
const GRANTED_LEN: u64 = 64 * 1024;
const COOKIE: u64 = 1;
const CQ_COOKIE: u64 = 2;
const SRQ_COOKIE: u64 = 3;

pub(super) const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::MW_BIND);

/// A memory range that the peer may access, with its R_Key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) va: u64,
    pub(super) key: u32,
    pub(super) len: u64,
}

impl Granted {
    pub(super) fn write(self, offset: u64) -> WrOp {
        WrOp::Write { remote_addr: self.va.wrapping_add(offset), r_key: Rkey(self.key) }
    }

    pub(super) fn write_imm(self, offset: u64) -> WrOp {
        WrOp::WriteImm { remote_addr: self.va.wrapping_add(offset), r_key: Rkey(self.key), imm: [1; 4] }
    }

    pub(super) fn read(self, offset: u64) -> WrOp {
        WrOp::Read { remote_addr: self.va.wrapping_add(offset), r_key: Rkey(self.key) }
    }

    pub(super) fn add(self, offset: u64) -> WrOp {
        WrOp::FetchAdd { remote_addr: self.va.wrapping_add(offset), r_key: Rkey(self.key), add: 1 }
    }

    pub(super) fn atomic_write(self, offset: u64) -> WrOp {
        WrOp::AtomicWrite { remote_addr: self.va.wrapping_add(offset), r_key: Rkey(self.key) }
    }

    pub(super) fn flush(self, placement: u8, selectivity: u8) -> WrOp {
        let (remote_addr, r_key) = (self.va, Rkey(self.key));
        WrOp::Flush { remote_addr, r_key, length: 8, placement, selectivity }
    }
}

/// How an end is created.
#[derive(Clone, Copy)]
pub(super) struct EndConfig {
    pub(super) ty: QpType,
    /// Entries of the receive CQ.
    pub(super) recv_cqe: u32,
    pub(super) send_cqe: u32,
    /// Receives come from an SRQ.
    pub(super) shared: bool,
    pub(super) sq_sig_all: bool,
}

/// What the application of an end and `roxie stat` can observe.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Observed {
    pub(super) sends: Vec<WcStatus>,
    pub(super) recvs: Vec<WcStatus>,
    pub(super) events: Vec<AsyncEventKind>,
    pub(super) state: QpState,
    /// Counters that are not 0, except [`TRAFFIC_COUNTERS`].
    pub(super) counted: Vec<String>,
}

pub(super) struct End {
    pub(super) core: Core,
    pub(super) qpn: Qpn,
    pub(super) send_cq: Arc<CompletionQueue>,
    pub(super) recv_cq: Arc<CompletionQueue>,
    pub(super) channel: Arc<EventQueue<u64>>,
    events: Arc<EventQueue<AsyncEvent>>,
    memory: DmaMemory,
    lkey: u32,
    /// The range granted with all rights.
    pub(super) open: Granted,
    /// Destination of each work request, for UD and XRC.
    pub(super) dest: Option<Dest>,
    next_wr_id: u64,
}

/// Counters of ordinary traffic, and aliases of other counters.
const TRAFFIC_COUNTERS: [&str; 12] = [
    "sent_pkts",
    "rcvd_pkts",
    "sent_bytes",
    "rcvd_bytes",
    "rdma_sends",
    "rdma_recvs",
    "ack_deferred",
    "probes",
    "retransmitted_pkts",
    "out_of_sequence",
    "packet_seq_err",
    "rnr_nak_retry_err",
];

fn insert_qp(
    core: &mut Core,
    end: EndConfig,
    cqs: (Arc<CompletionQueue>, Arc<CompletionQueue>),
    srqs: SrqScope,
    events: &Arc<EventQueue<AsyncEvent>>,
) -> Qpn {
    let inserted = core.tables.insert_qp(Instant(0), |qpn| {
        let config = QpConfig {
            qpn,
            ty: end.ty,
            pd: if end.ty == QpType::XrcTgt { XRC_DOMAIN } else { PD },
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 64,
            },
            sq_sig_all: end.sq_sig_all,
            srq: srqs.own.is_some(),
            max_path_mtu: PathMtu::M1024,
            equal_writes: false,
        };
        Ok(QpEntry::new(transport::Qp::new(config)?, cqs, srqs, Arc::clone(events), COOKIE))
    });
    inserted.expect("space").1
}

impl End {
    /// Creates an end on port `number` of the cable, with its queue pair in RESET.
    pub(super) fn new(number: usize, address: IpAddr, cable: &Cable, config: EndConfig) -> Self {
        let table = GidTable {
            ifindex: 7,
            entries: vec![GidRow { gid: Gid::from(address), ifindex: 7 }],
            ..GidTable::without_addresses()
        };
        let slot = number as u16 + 1;
        let tables = Tables::new(slot, &Arc::new(table));
        let port = Box::new(cable.plug(number, address));
        let mut core = Core::new(port, Hooks::default(), tables, Tuning::default());
        let events = Arc::new(EventQueue::new().expect("descriptors"));
        let channel = Arc::new(EventQueue::new().expect("descriptors"));
        let cq = |cqe| {
            let channel = Some(Arc::clone(&channel));
            CompletionQueue::new(
                cqe,
                channel,
                CQ_COOKIE,
                Arc::default(),
                &Arc::default(),
                Tuning::default().backlog_polls,
            )
        };
        let (send_cq, recv_cq) = (cq(config.send_cqe), cq(config.recv_cqe));
        let is_target = config.ty == QpType::XrcTgt;
        if config.shared {
            let queue = RecvQueue::new(16, 2, PD).expect("small");
            let xrc = is_target.then(|| XrcScope { domain: XRC_DOMAIN, cq: Arc::clone(&recv_cq) });
            let entry = SrqEntry { id: 1, queue, cookie: SRQ_COOKIE, xrc };
            core.tables.srqs.entries.push(Some(entry));
        }
        let own = (config.shared && !is_target).then_some(0);
        let srqs = SrqScope { own, xrcd: is_target.then_some(XRC_DOMAIN) };
        let cqs = (Arc::clone(&send_cq), Arc::clone(&recv_cq));
        let qpn = insert_qp(&mut core, config, cqs, srqs, &events);
        let memory = DmaMemory::zeroed((LOCAL_LEN + GRANTED_LEN) as usize).expect("memory");
        let local = Range { base: memory.addr(), len: LOCAL_LEN, iova: memory.addr() };
        let lkey = core.tables.mrs.register(PD, local, Access::LOCAL_WRITE).expect("space");
        let open = Granted { va: 0, key: 0, len: GRANTED_LEN };
        let mut end = Self {
            core,
            qpn,
            send_cq,
            recv_cq,
            channel,
            events,
            memory,
            lkey,
            open,
            dest: None,
            next_wr_id: 1,
        };
        end.open = end.grant(PD, ALL_RIGHTS);
        end
    }

    /// From now on this end uses a further RC queue pair, in RESET; returns the one before.
    pub(super) fn change_qp(&mut self) -> Qpn {
        let (send_cqe, recv_cqe) = (64, 64);
        let config = EndConfig { ty: QpType::Rc, send_cqe, recv_cqe, shared: false, sq_sig_all: true };
        let cqs = (Arc::clone(&self.send_cq), Arc::clone(&self.recv_cq));
        let srqs = SrqScope { own: None, xrcd: None };
        let next = insert_qp(&mut self.core, config, cqs, srqs, &self.events);
        std::mem::replace(&mut self.qpn, next)
    }

    /// Registers the granted range once more, with these rights.
    pub(super) fn grant(&mut self, pd: PdId, access: Access) -> Granted {
        let va = self.memory.addr() + LOCAL_LEN;
        let range = Range { base: va, len: GRANTED_LEN, iova: va };
        let key = self.core.tables.mrs.register(pd, range, access).expect("space");
        Granted { va, key, len: GRANTED_LEN }
    }

    pub(super) fn deregister(&mut self, granted: Granted) {
        self.core.tables.mrs.remove(granted.key);
    }

    pub(super) fn window(&mut self, ty: MwType) -> u32 {
        self.core.tables.mrs.alloc_window(PD, ty).expect("space")
    }

    pub(super) fn entry(&mut self) -> &mut QpEntry {
        self.core.tables.by_qpn(self.qpn).expect("the queue pair exists")
    }

    /// Moves the queue pair to `state`, connected to `peer`.
    pub(super) fn connect(&mut self, peer: (Gid, Qpn), state: QpState, change: fn(&mut QpAttr)) {
        let mut attr = QpAttr {
            path_mtu: PathMtu::M1024,
            q_key: Q_KEY,
            rq_psn: Psn::new(PSN),
            sq_psn: Psn::new(PSN),
            dest_qp: peer.1,
            access: ALL_RIGHTS - Access::MW_BIND,
            av: AddressVector { dgid: peer.0, hop_limit: 64, ..AddressVector::default() },
            port_num: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RNR_TIMER,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        change(&mut attr);
        let ty = self.entry().qp.ty();
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            if to as u32 <= state as u32 {
                let attr = QpAttr { state: to, ..attr.clone() };
                self.modify(Instant::ZERO, &attr, QpAttrMask::required(ty, to)).expect("a legal transition");
            }
        }
        if ty == QpType::Ud {
            self.dest = Some(Dest::Ud(UdDest { av: attr.av, remote_qpn: peer.1, remote_qkey: Q_KEY }));
        } else {
            self.core
                .bind_flow(place_of(self.qpn), Destination::Elsewhere)
                .expect("the cable has both addresses");
        }
    }

    /// Moves the queue pair to ERR, which flushes its work requests.
    pub(super) fn fail(&mut self, now: Instant) {
        let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
        self.modify(now, &error, QpAttrMask::STATE).expect("every state but RESET may go to ERR");
    }

    pub(super) fn modify(&mut self, now: Instant, attr: &QpAttr, mask: QpAttrMask) -> Result<(), VerbsError> {
        self.entry().qp.modify(now, attr, mask)?;
        self.core.tables.update_after_input(now, place_of(self.qpn));
        self.core.transmit(now);
        Ok(())
    }

    /// The number of the XRC shared receive queue.
    pub(super) fn srqn(&self) -> u32 {
        srqn(self.core.tables.slot(), 0)
    }

    /// `len` bytes of local memory.
    pub(super) fn sge(&self, len: usize) -> Sge {
        Sge { addr: self.memory.addr(), length: len as u32, lkey: Lkey(self.lkey) }
    }

    pub(super) fn write_local(&self, bytes: &[u8]) {
        self.memory.write(0, bytes);
    }

    pub(super) fn local(&self, len: usize) -> Vec<u8> {
        self.read(0, len)
    }

    pub(super) fn write_granted(&self, offset: u64, bytes: &[u8]) {
        self.memory.write((LOCAL_LEN + offset) as usize, bytes);
    }

    pub(super) fn granted(&self, offset: u64, len: usize) -> Vec<u8> {
        self.read(LOCAL_LEN + offset, len)
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(at as usize, &mut bytes);
        bytes
    }

    /// Posts a work request and rings the doorbell, as the verb does.
    pub(super) fn post_send(
        &mut self,
        now: Instant,
        op: WrOp,
        sg_list: &[Sge],
        flags: SendFlags,
    ) -> Result<(), VerbsError> {
        let wr = SendWr { wr_id: self.next_wr_id, op, sg_list, flags, dest: self.dest };
        self.next_wr_id += 1;
        let index = place_of(self.qpn);
        self.core.tables.post_send(index, &wr)?;
        self.core.tables.update_after_input(now, index);
        Ok(())
    }

    pub(super) fn post_recv(&mut self, sg_list: &[Sge]) {
        let wr = RecvWr { wr_id: self.next_wr_id, sg_list };
        self.next_wr_id += 1;
        let index = place_of(self.qpn);
        match self.core.tables.srqs.get_mut(0) {
            Some(srq) => srq.queue.post(&wr).expect("space"),
            None => self.entry().qp.post_recv(&wr).expect("space"),
        }
        self.core.tables.update_after_input(Instant::ZERO, index);
    }

    /// Processes one batch as the engine does. Returns whether packets had arrived.
    pub(super) fn run_batch(&mut self, now: Instant) -> bool {
        let batches = self.core.receive(now, RxQueues::ALL.into()) + self.core.expire(now, RxQueues::ALL);
        self.core.transmit(now);
        batches > 0
    }

    /// Returns the state and the counters, and takes the completions and events since the last call.
    pub(super) fn observe(&mut self) -> Observed {
        let take = |cq: &CompletionQueue| -> Vec<WcStatus> {
            std::iter::from_fn(|| cq.pop_one()).map(|wc: Wc| wc.status).collect()
        };
        let (sends, recvs) = (take(&self.send_cq), take(&self.recv_cq));
        let mut events = Vec::new();
        self.events.for_each(|event| events.push(event.kind));
        self.events.retain(|_| false);
        let rows = self.core.rows();
        let shown = rows.iter().filter(|(name, value)| *value > 0 && !TRAFFIC_COUNTERS.contains(name));
        let counted = shown.map(|(name, value)| format!("{name} {value}")).collect();
        Observed { sends, recvs, events, state: self.entry().qp.state(), counted }
    }
}
