//! A queue pair with its memory, its shared receive queues and its peer's address.

use std::cell::RefCell;

use transport::{
    Access, AddressVector, Instant, PathMtu, Qp, QpAttr, QpAttrMask, QpCap, QpConfig, QpState, QpType,
    RecvQueue, RecvWr, SendWr, SrqTable, VerbsError,
};
use wire::{Gid, Psn, QKey, Qpn};

use crate::memory::SimMemory;

/// Q_Key of all datagrams.
pub(crate) const Q_KEY: QKey = QKey(0x1357_9bdf);
/// Transport retries of a requester: the maximum.
pub(crate) const RETRY_CNT: u8 = 7;

/// A queue pair and its memory.
pub(crate) struct QueuePair {
    pub(crate) qp: Qp,
    pub(crate) srqs: Srqs,
    pub(crate) memory: SimMemory,
}

/// Shared receive queues of a queue pair: its own, or with XRC those of its domain by number.
#[derive(Default)]
pub(crate) struct Srqs {
    pub(crate) own: Option<RecvQueue>,
    xrc: Vec<(u32, RecvQueue)>,
}

impl SrqTable for &mut Srqs {
    fn own(&mut self) -> Option<&mut RecvQueue> {
        self.own.as_mut()
    }

    fn xrc(&mut self, srqn: u32) -> Option<&mut RecvQueue> {
        self.xrc.iter_mut().find(|(number, _)| *number == srqn).map(|(_, queue)| queue)
    }
}

/// Numbers of the shared receive queues of an XRC domain.
pub(crate) const SRQNS: [u32; 2] = [0x51, 0x5_0052];

/// Attributes drawn for a queue pair, and its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) mtu: PathMtu,
    pub(crate) sq_psn: u32,
    pub(crate) rq_psn: u32,
    pub(crate) rd_atomic: u8,
    pub(crate) timeout: u8,
    pub(crate) min_rnr_timer: u8,
    /// Address and QPN of the peer; unused for datagrams.
    pub(crate) peer: (Gid, Qpn),
}

/// Sizes and options drawn for a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) depth: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) srq: bool,
    pub(crate) equal_writes: bool,
}

impl QueuePair {
    /// Creates a queue pair in state RTS.
    pub(crate) fn new(
        ty: QpType,
        memory: SimMemory,
        sizes: Sizes,
        attributes: &Attributes,
    ) -> Result<Self, VerbsError> {
        let config = QpConfig {
            qpn: memory.qpn,
            ty,
            pd: memory.pd,
            cap: QpCap {
                max_send_wr: sizes.depth,
                max_recv_wr: sizes.depth,
                max_send_sge: sizes.max_sge,
                max_recv_sge: 2,
                max_inline_data: sizes.max_inline,
            },
            sq_sig_all: false,
            srq: sizes.srq,
            max_path_mtu: PathMtu::M4096,
            equal_writes: sizes.equal_writes,
        };
        let mut qp = Qp::new(config)?;
        connect(&mut qp, ty, attributes)?;
        let mut srqs = Srqs::default();
        let new = || RecvQueue::new(sizes.depth, 2, config.pd);
        if sizes.srq {
            srqs.own = Some(new()?);
        }
        if ty == QpType::XrcTgt {
            srqs.xrc = vec![(SRQNS[0], new()?), (SRQNS[1], new()?)];
        }
        Ok(Self { qp, srqs, memory })
    }

    pub(crate) fn post_send(&mut self, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        self.qp.post_send(wr, &self.memory)
    }

    /// Posts a receive, with XRC to the shared receive queue with this number.
    pub(crate) fn post_recv(&mut self, srqn: Option<u32>, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        let mut srqs = &mut self.srqs;
        match srqn.and_then(|srqn| srqs.xrc(srqn)) {
            Some(srq) => srq.post(wr),
            None => match srqs.own() {
                Some(srq) => srq.post(wr),
                None => self.qp.post_recv(wr),
            },
        }
    }
}

/// Creates memory that grants access to these two regions and keys only.
pub(crate) fn memory(pd: u32, qpn: Qpn, local: &[u8], remote: &[u8], keys: &[u32]) -> SimMemory {
    SimMemory {
        pd: transport::PdId(pd),
        qpn,
        local: RefCell::new(local.to_vec()),
        remote: RefCell::new(remote.to_vec()),
        keys: RefCell::new(keys.iter().copied().collect()),
    }
}

/// Takes a queue pair from RESET to RTS.
fn connect(qp: &mut Qp, ty: QpType, attributes: &Attributes) -> Result<(), VerbsError> {
    let Attributes { mtu, sq_psn, rq_psn, rd_atomic, timeout, min_rnr_timer, peer: (dgid, dest_qp) } =
        *attributes;
    let attr = QpAttr {
        path_mtu: mtu,
        q_key: Q_KEY,
        rq_psn: Psn::new(rq_psn),
        sq_psn: Psn::new(sq_psn),
        dest_qp,
        access: Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL,
        av: AddressVector { dgid, ..AddressVector::default() },
        port_num: 1,
        max_rd_atomic: rd_atomic,
        max_dest_rd_atomic: rd_atomic,
        min_rnr_timer,
        timeout,
        retry_cnt: RETRY_CNT,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        qp.modify(Instant::ZERO, &QpAttr { state, ..attr.clone() }, QpAttrMask::required(ty, state))?;
    }
    Ok(())
}
