//! What the owner of a [`Cm`](super::Cm) is told.

use wire::cm::{RejReason, ServiceId, SidrStatus};
use wire::{Gid, QKey, Qpn};

use super::params::{CmId, ListenerId, REJ_PRIVATE_MAX, REP_PRIVATE_MAX, REQ_PRIVATE_MAX};
use super::params::{SIDR_REP_PRIVATE_MAX, SIDR_REQ_PRIVATE_MAX, Transport};
use crate::{PathMtu, VerbsError};

/// Something happened to a connection.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// To which one.
    pub id: CmId,
    /// What.
    pub kind: CmEventKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum CmEventKind {
    /// Passive: somebody wants to connect. Answer with accept, reject or destroy.
    ConnectRequest(Box<ConnectRequest>),
    /// Active: the peer accepted. Bring the QP to RTS and call rtu, or reject.
    ConnectResponse(Box<ConnectResponse>),
    /// Passive: RTU, or the first packet, has come.
    Established,
    /// The peer refused, or took back its acceptance.
    Rejected(Box<Rejection>),
    /// No answer after all retries.
    Unreachable,
    /// DREQ has come (`Ok`), DREP has come (`Ok`), or neither did (`timed_out`).
    Disconnected {
        /// The DREQ was never answered.
        timed_out: bool,
    },
    /// The QP number may be reused.
    TimewaitExit,
    /// Passive: somebody asks for a UD QP. Answer with sidr_reply or destroy.
    SidrRequest(Box<SidrRequest>),
    /// Active: the answer to our SIDR_REQ.
    SidrResponse(Box<SidrResponse>),
}

/// The peer's half of the negotiation, already swapped for the reader: `responder_resources` is what we may
/// be asked to serve, `initiator_depth` what we may have outstanding.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PeerParams {
    /// READs and atomics the peer wants outstanding.
    pub responder_resources: u8,
    /// READs and atomics the peer can serve.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries of both QPs; 0 in a response, which does not carry it.
    pub retry_count: u8,
    /// RNR retries our QP shall make.
    pub rnr_retry_count: u8,
    /// The peer's QP uses an SRQ.
    pub srq: bool,
    /// The peer's QP.
    pub qpn: Qpn,
}

/// A REQ.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// Whose listener it met.
    pub listener: ListenerId,
    /// What it asked for.
    pub service_id: ServiceId,
    /// Our address (IP-CM header).
    pub local: Gid,
    /// The peer's address (IP-CM header).
    pub peer: Gid,
    /// The peer's RDMA port.
    pub peer_port: u16,
    /// Addresses packets will use.
    pub path: (Gid, Gid),
    /// Service.
    pub transport: Transport,
    /// MTU of both QPs.
    pub path_mtu: PathMtu,
    /// The peer's half.
    pub params: PeerParams,
    /// Zero padded.
    pub private_data: [u8; REQ_PRIVATE_MAX],
}

/// A REP.
#[derive(Clone, Debug)]
pub struct ConnectResponse {
    /// The peer's half.
    pub params: PeerParams,
    /// Zero padded.
    pub private_data: [u8; REP_PRIVATE_MAX],
}

/// A REJ.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Why.
    pub reason: RejReason,
    /// Additional reject information, as long as the peer said.
    pub ari: Vec<u8>,
    /// Zero padded.
    pub private_data: [u8; REJ_PRIVATE_MAX],
}

/// A SIDR_REQ.
#[derive(Clone, Debug)]
pub struct SidrRequest {
    /// Whose listener it met.
    pub listener: ListenerId,
    /// What it asked for.
    pub service_id: ServiceId,
    /// Our address (IP-CM header).
    pub local: Gid,
    /// The peer's address (IP-CM header).
    pub peer: Gid,
    /// The peer's RDMA port.
    pub peer_port: u16,
    /// Zero padded.
    pub private_data: [u8; SIDR_REQ_PRIVATE_MAX],
}

/// A SIDR_REP.
#[derive(Clone, Debug)]
pub struct SidrResponse {
    /// Whether the QP may be used.
    pub status: SidrStatus,
    /// The QP.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub q_key: QKey,
    /// Zero padded.
    pub private_data: [u8; SIDR_REP_PRIVATE_MAX],
}

/// What became of a MAD given to [`Cm::handle_mad`](super::Cm::handle_mad).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MadOutcome {
    /// Used, answered, or dropped for a reason.
    Handled,
    /// A request nobody here listens for; another process may. If none does, call
    /// [`Cm::reject_no_listener`](super::Cm::reject_no_listener).
    NotOurs {
        /// What it asks for.
        service_id: ServiceId,
        /// The address it asks at.
        dst_gid: Gid,
    },
    /// A request dropped because its listener has as many unread ones as it wants. Given again a little later it may
    /// find room; the peer repeats it only after seconds.
    BacklogFull,
}

/// Errors of [`Cm`](super::Cm) calls: `Invalid` in the wrong state or for too much private data, `NoMem` at a
/// limit.
pub type CmResult<T> = Result<T, VerbsError>;
