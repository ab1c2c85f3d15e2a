//! What the owner passes to [`Cm`](super::Cm): identity, and the parameters of each call.

use core::time::Duration;

use wire::cm::{ServiceId, SidrStatus};
use wire::{Gid, Psn, QKey, Qpn};

use super::timing;
use crate::PathMtu;
use crate::numbering::ID_SHIFT;

/// Most private bytes of a REQ after the IP-CM header.
pub const REQ_PRIVATE_MAX: usize = 56;
/// Most private bytes of a REP.
pub const REP_PRIVATE_MAX: usize = 196;
/// Most private bytes of an RTU or DREP.
pub const RTU_PRIVATE_MAX: usize = 224;
/// Most private bytes of a REJ.
pub const REJ_PRIVATE_MAX: usize = 148;
/// Most private bytes of a DREQ.
pub const DREQ_PRIVATE_MAX: usize = 220;
/// Most private bytes of a SIDR_REQ after the IP-CM header.
pub const SIDR_REQ_PRIVATE_MAX: usize = 180;
/// Most private bytes of a SIDR_REP.
pub const SIDR_REP_PRIVATE_MAX: usize = 136;

/// A communication id: slot and counter (`numbering.rs`), never 0. Names one connection or one SIDR exchange.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CmId(pub u32);

impl CmId {
    /// The number of values of the counter.
    pub(super) const COUNTERS: u32 = 1 << ID_SHIFT;

    /// Returns the id with a slot and a counter less than [`COUNTERS`](Self::COUNTERS).
    pub(super) const fn new(slot: u16, counter: u32) -> Self {
        Self((slot as u32) << ID_SHIFT | counter)
    }

    /// Returns the slot: the process that has the connection.
    #[must_use]
    pub const fn slot(self) -> u16 {
        (self.0 >> ID_SHIFT) as u16
    }
}

/// One call of [`Cm::listen`](super::Cm::listen).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct ListenerId(pub u32);

/// Identity and figures of this process.
#[derive(Clone, Debug)]
pub struct CmConfig {
    /// Slot of this process among those of the host; bits 31..20 of its communication ids.
    pub slot: u16,
    /// First value of the counter of communication ids. Must be random, else peers take a restarted process
    /// for its predecessor.
    pub first_id: u32,
    /// Makes transaction ids unpredictable; random.
    pub tid_key: u64,
    /// Node GUID.
    pub ca_guid: u64,
    /// Local ACK delay announced in a REP.
    pub ack_delay: u8,
    /// Packet life time of a path.
    pub packet_life_time: u8,
    /// Interval of the probes to hosts with established connections; zero for no probes.
    pub keepalive: Duration,
    /// A REQ with a larger path MTU is refused.
    pub max_path_mtu: PathMtu,
}

impl CmConfig {
    /// The figures of a Linux host with Soft-RoCE, transaction ids that can be predicted, and no
    /// probes.
    #[must_use]
    pub fn new(slot: u16, first_id: u32, ca_guid: u64, max_path_mtu: PathMtu) -> Self {
        Self {
            slot,
            first_id,
            tid_key: 0,
            ca_guid,
            ack_delay: 15,
            packet_life_time: timing::PACKET_LIFE_TIME,
            keepalive: Duration::ZERO,
            max_path_mtu,
        }
    }
}

/// Service of a connection, as the two bits in a REQ and, for XRC, the three of its extension say it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection (Annex A14): the active end sends, the passive one receives.
    Xrc,
}

/// Local addresses a listener serves.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ListenAddress {
    /// One address.
    Gid(Gid),
    /// Every IPv4 address.
    AnyV4,
    /// Every IPv6 address.
    AnyV6,
    /// Every address.
    Any,
}

impl ListenAddress {
    /// Whether the listener serves requests to `dst`.
    #[must_use]
    pub fn covers(&self, dst: Gid) -> bool {
        match self {
            Self::Gid(gid) => *gid == dst,
            Self::AnyV4 => dst.ip().is_ipv4(),
            Self::AnyV6 => dst.ip().is_ipv6(),
            Self::Any => true,
        }
    }
}

/// Parameters of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenParams {
    /// Port space and port.
    pub service_id: ServiceId,
    /// Where.
    pub address: ListenAddress,
    /// Most requests that may be reported and not yet accepted; 0 means [`BACKLOG_DEFAULT`].
    pub backlog: u32,
    /// Service that a REQ must ask for; ignored for SIDR.
    pub transport: Transport,
}

/// Backlog when none was asked for, and the most that is granted (Linux ucma.c max_backlog).
pub const BACKLOG_DEFAULT: u32 = 1024;

/// Most connections of a process that were requested by peers and are not established: reported, accepted or
/// not. A further REQ gets no reply, and the peer repeats it after seconds. Half: 1000 clients that connect
/// at once wait for a retry. Double: a flood of forged REQs takes twice the memory (each accepted one has a
/// QP of the application).
pub const HALF_OPEN_MAX: usize = 1024;
/// Most of them from one address, so that one host leaves room for the others.
pub const HALF_OPEN_PEER_MAX: usize = 768;

/// The QP side of one end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct LocalQp {
    /// Its number.
    pub qpn: Qpn,
    /// The PSN that the peer starts with.
    pub starting_psn: Psn,
    /// It takes receives from an SRQ.
    pub srq: bool,
}

/// The addresses of a connection. `src` and `dst` are the ones packets carry.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Our GID.
    pub src: Gid,
    /// The peer's GID.
    pub dst: Gid,
    /// Our RDMA port, as the peer will see it.
    pub src_port: u16,
    /// IP time to live.
    pub hop_limit: u8,
    /// IP type of service.
    pub traffic_class: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
}

/// Everything a REQ needs.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// The service to ask for.
    pub service_id: ServiceId,
    /// Where.
    pub path: Path,
    /// Service.
    pub transport: Transport,
    /// Our end.
    pub qp: LocalQp,
    /// READs and atomics we can serve.
    pub responder_resources: u8,
    /// READs and atomics we want outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control, informational.
    pub flow_control: bool,
    /// Retries of both QPs; values above 7 become 7.
    pub retry_count: u8,
    /// RNR retries of the peer's QP; values above 7 become 7.
    pub rnr_retry_count: u8,
    /// MTU of both QPs.
    pub path_mtu: PathMtu,
    /// Replaces the packet life time plus one (RDMA_OPTION_ID_ACK_TIMEOUT).
    pub ack_timeout: Option<u8>,
    /// At most [`REQ_PRIVATE_MAX`] bytes.
    pub private_data: &'a [u8],
}

/// Everything a REP needs.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// Our end.
    pub qp: LocalQp,
    /// READs and atomics we can serve.
    pub responder_resources: u8,
    /// READs and atomics we want outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control, informational.
    pub flow_control: bool,
    /// RNR retries of the active side's QP; values above 7 become 7.
    pub rnr_retry_count: u8,
    /// At most [`REP_PRIVATE_MAX`] bytes.
    pub private_data: &'a [u8],
}

/// Everything a SIDR_REQ needs.
#[derive(Clone, Copy, Debug)]
pub struct SidrParams<'a> {
    /// The service to ask for.
    pub service_id: ServiceId,
    /// Where.
    pub path: Path,
    /// At most [`SIDR_REQ_PRIVATE_MAX`] bytes.
    pub private_data: &'a [u8],
}

/// Parameters of a SIDR_REP.
#[derive(Clone, Copy, Debug)]
pub struct SidrAnswer<'a> {
    /// Whether the QP may be used.
    pub status: SidrStatus,
    /// The QP.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub q_key: QKey,
    /// At most [`SIDR_REP_PRIVATE_MAX`] bytes.
    pub private_data: &'a [u8],
}
