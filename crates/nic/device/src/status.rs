//! Status of an engine for 'roxie top' and 'roxie metrics': a snapshot of existing state.

use std::net::{IpAddr, SocketAddr};

use transport::QpCounters;
use wire::{Psn, Qpn};

use crate::qp_numbers::QpIndex;

/// Name of a counter (that of rxe or of the drivers) and its value.
pub type Row = (&'static str, u64);

/// Status of an engine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EngineStatus {
    /// Name of the device.
    pub device: String,
    /// The netdev of the device; `NAME (removed)` if it does not exist any more.
    pub netdev: String,
    /// Kind and mode of the port.
    pub port: String,
    /// Name and value of every counter, as in [`Device::counters`](crate::verbs::Device::counters).
    pub counters: Vec<(String, u64)>,
}

/// Status of a queue pair.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct QpStatus {
    /// Its number.
    pub qpn: Qpn,
    /// Transport service: RC, UC, UD, XRC.
    pub service: String,
    /// State: RESET, INIT, RTR, RTS, SQD, SQE, ERR.
    pub state: String,
    /// Local address, once the queue pair has a path.
    pub local: Option<IpAddr>,
    /// Address of the peer, if connected.
    pub remote: Option<IpAddr>,
    /// QPN of the peer, if connected.
    pub dest_qpn: Option<Qpn>,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// First PSN of the local requests.
    pub sq_psn: Psn,
    /// First PSN of the peer's requests.
    pub rq_psn: Psn,
    /// Local ACK timeout n: 4.096 us * 2^n; 0 for none.
    pub timeout: u8,
    /// Number of retries without an answer.
    pub retry_cnt: u8,
    /// Number of retries after an RNR NAK; 7 means no limit.
    pub rnr_retry: u8,
    /// READs and atomics in flight as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight as responder.
    pub max_dest_rd_atomic: u8,
    /// IPv4 TOS or IPv6 traffic class of sent packets.
    pub traffic_class: u8,
    /// Size of the send queue in work requests.
    pub max_send_wr: u32,
    /// Size of the receive queue in work requests; 0 with a shared receive queue.
    pub max_recv_wr: u32,
    /// Request packets in flight.
    pub in_flight: u32,
    /// Request packets that wait to be sent.
    pub pending: u32,
    /// Smoothed round-trip time, once measured.
    pub round_trip_ns: Option<u64>,
    /// Current rate limit (congestion control or configured), in bits per second on the wire.
    pub paced_bps: Option<u64>,
    /// Counters of the queue pair.
    pub counters: QpCounters,
}

/// Some queue pairs of an engine, in the order of their QPNs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct QpPage {
    /// The queue pairs.
    pub qps: Vec<QpStatus>,
    /// Where the next page starts.
    pub next: Option<QpIndex>,
}

/// Queue pairs in one page: each takes about 400 bytes of a reply, and 1 us under the engine's lock.
pub(crate) const PAGE_MAX: usize = 128;

/// A kind of objects beside queue pairs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ObjectKind {
    /// Protection domains.
    Pd,
    /// Completion queues.
    Cq,
    /// Memory regions.
    Mr,
    /// Identifiers of connections.
    CmId,
    /// Contexts.
    Ctx,
    /// Shared receive queues.
    Srq,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [ObjectKind; 6] = [Self::Pd, Self::Cq, Self::Mr, Self::CmId, Self::Ctx, Self::Srq];

    /// Objects in one page of a reply (128 KiB): at most 120 bytes each, 600 of a shared receive queue.
    pub(crate) fn page_max(self) -> usize {
        if self == Self::Srq { 128 } else { 1000 }
    }
}

/// An object of a device. Its number tells it from the others of its kind in the process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ObjectStatus {
    /// A protection domain.
    Pd {
        /// Its number.
        id: u32,
        /// Number of its context.
        ctx: u32,
        /// Queue pairs, shared receive queues and memory regions.
        users: u64,
    },
    /// A completion queue.
    Cq {
        /// Its number.
        id: u32,
        /// Number of its context.
        ctx: u32,
        /// Completions that it has room for.
        entries: u32,
        /// Send and receive queues.
        users: u64,
    },
    /// A memory region.
    Mr {
        /// Its number.
        id: u32,
        /// Its L_Key, which is its R_Key.
        key: u32,
        /// Bytes.
        len: u64,
        /// Number of its protection domain.
        pd: u32,
    },
    /// An identifier that listens, connects or is connected.
    CmId {
        /// Its number.
        id: u32,
        /// `enum rdma_cm_state` of Linux.
        state: u8,
        /// Its port space, as `enum rdma_port_space`.
        port_space: u16,
        /// Its queue pair, if it has one.
        qpn: Option<Qpn>,
        /// Local address and port.
        local: Option<SocketAddr>,
        /// Address and port of the peer.
        remote: Option<SocketAddr>,
    },
    /// An open device.
    Ctx {
        /// Its number.
        id: u32,
    },
    /// A shared receive queue.
    Srq {
        /// Its number.
        id: u32,
        /// Number of its protection domain.
        pd: u32,
        /// Number of the completion queue of an XRC queue.
        cq: Option<u32>,
        /// The queue pairs that were created with it, at most [`SRQ_QPS_MAX`](Self::SRQ_QPS_MAX).
        qps: Vec<Qpn>,
    },
}

impl ObjectStatus {
    /// Most queue pairs that are listed of a shared receive queue: `rdma` prints some 30.
    pub const SRQ_QPS_MAX: usize = 128;

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        match self {
            Self::Pd { id, .. }
            | Self::Cq { id, .. }
            | Self::Mr { id, .. }
            | Self::CmId { id, .. }
            | Self::Ctx { id }
            | Self::Srq { id, .. } => *id,
        }
    }

    /// The number of the protection domain of a region.
    pub(crate) fn pd(&self) -> Option<u32> {
        if let Self::Mr { pd, .. } = self { Some(*pd) } else { None }
    }
}

/// Some objects of one kind, in the order of their numbers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ObjectPage {
    /// The objects.
    pub objects: Vec<ObjectStatus>,
    /// Number with which the next page starts.
    pub next: Option<u32>,
}

impl ObjectPage {
    /// Whether the numbers ascend from `from` on, up to that of the next page.
    #[must_use]
    pub fn is_in_order(&self, from: u32) -> bool {
        let numbers = || self.objects.iter().map(ObjectStatus::id).chain(self.next);
        numbers().is_sorted_by(|one, next| one < next) && numbers().next().is_none_or(|first| first >= from)
    }
}

impl EngineStatus {
    pub(crate) fn new(device: String, netdev: String, port: String, rows: Vec<Row>) -> EngineStatus {
        let counters = rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        EngineStatus { device, netdev, port, counters }
    }
}
